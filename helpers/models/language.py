"""A small language model around an attention layer: what `generate` runs, and what the cache is measured on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: `attend(layer, x_new, cache)` -> (B, n, d_model): the layer's output for new tokens that follow on the cached ones.
Attend = Callable[[nn.Module, Tensor, Any], Tensor]


class LanguageModel(nn.Module):
    """Embeddings, a few attention layers with residual connections, and a score for every token that may come next.

    `attention(d_model)` makes a layer: anything with `w_q w_k w_v w_o n_heads d_head` and
    `forward(x, keep=...) -> (output, weights)`, such as `lambda d_model: MultiHeadAttention(d_model, 4)`; a layer
    with fewer key/value heads says so in `n_kv_heads`. `attend` and `cache` are what runs it on new tokens alone,
    such as `attend_with_cache` and `KVCache`; they may also be set later, as attributes. All weights are drawn from
    `seed`, those of the layers too, at the scale at which scores have a variance of about 1.
    """

    def __init__(
        self,
        attention: Callable[[int], nn.Module],
        attend: Attend | None = None,
        cache: Callable[..., Any] | None = None,
        *,
        vocabulary: int,
        d_model: int = 48,
        n_layers: int = 2,
        max_tokens: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.max_tokens = max_tokens
        self.attend, self.cache = attend, cache
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tokens = nn.Embedding(vocabulary, d_model)
            self.positions = nn.Embedding(max_tokens, d_model)
            self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(n_layers))
            self.layers = nn.ModuleList(attention(d_model) for _ in range(n_layers))
            self.last_norm = nn.LayerNorm(d_model)
            self.readout = nn.Linear(d_model, vocabulary, bias=False)
            for layer in self.layers:
                for name in ("w_q", "w_k", "w_v", "w_o"):
                    weight = getattr(layer, name).weight
                    nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))

    def forward(self, tokens: Tensor, caches: Sequence[Any] | None = None) -> Tensor:
        """Ids (B, T) -> logits (B, T, vocabulary), for these tokens only: they follow on whatever `caches` hold.

        ValueError if the sequence would be longer than `max_tokens`.
        """
        n_before = 0 if caches is None else len(caches[0])
        n_total = n_before + tokens.shape[1]
        if n_total > self.max_tokens:
            raise ValueError(f"{n_total} tokens are more than the {self.max_tokens} that this model has positions for")
        x = self.tokens(tokens) + self.positions.weight[n_before:n_total]
        for number, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            if caches is None:
                x = x + layer(norm(x), keep=_causal(n_total))[0]
            else:
                x = x + self.attend(layer, norm(x), caches[number])
        return self.readout(self.last_norm(x))

    def new_caches(self, batch: int, max_tokens: int) -> list[Any]:
        """One empty cache for each layer, with room for `max_tokens` tokens of `batch` texts.

        ValueError if the model was given no `attend` and `cache`.
        """
        if self.attend is None or self.cache is None:
            raise ValueError("this model has no `attend` and `cache` yet: it can only read whole texts")
        return [
            self.cache(
                batch,
                getattr(layer, "n_kv_heads", layer.n_heads),
                max_tokens,
                layer.d_head,
                dtype=self.tokens.weight.dtype,
            )
            for layer in self.layers
        ]


def _causal(n_tokens: int) -> Tensor:
    return torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()
