"""Chapter 6: several query heads share one head of keys and values; what that saves, and how a trained layer is "
"made so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from helpers.checks.chapter_04_output_mixing import Layer
from helpers.checks.chapter_05_kv_cache import KVCache, cached_causal_mask
from helpers.checks.exercise import INPUTS_UNCHANGED, Arguments, Case, Exercise, Law, Misconception, Quiz, given

# Headings of the notebook that cards point to.
REPEAT = "One key for several queries"
GROUPS = "Attention in groups"
LAYER = "One layer, one number to change"
SAVES = "What it saves"
CONVERT = "From many heads to few"

_LIBRARY_CALLS = (
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
    "torch.nn.MultiheadAttention",
    "torch.nn.attention.flex_attention.flex_attention",
)


def _check_sizes(d_model: int, n_heads: int, n_kv_heads: int) -> None:
    if min(d_model, n_heads, n_kv_heads) < 1:
        raise ValueError(f"all sizes must be at least 1, got {d_model}, {n_heads} and {n_kv_heads}")
    if d_model % n_heads:
        raise ValueError(f"{n_heads} heads cannot share d_model = {d_model}")
    _check_groups(n_heads, n_kv_heads)


def _check_groups(n_heads: int, n_kv_heads: int) -> None:
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot be shared out among {n_kv_heads} key/value heads")


# Oracles: torch's own attention, and slow, obvious loops over heads.


def repeat_kv(x: Tensor, group_size: int) -> Tensor:
    """(B, H_kv, T, d) -> (B, H_kv * group_size, T, d): each head `group_size` times, then the next head."""
    return torch.stack([x[:, head] for head in range(x.shape[1]) for _ in range(group_size)], dim=1)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q (B, H_q, T_q, d), k and v (B, H_kv, T_k, d) -> output (B, H_q, T_q, d), weights (B, H_q, T_q, T_k).

    ValueError if H_q is not a multiple of H_kv.
    """
    _check_groups(q.shape[1], k.shape[1])
    group_size = q.shape[1] // k.shape[1]
    everything = torch.ones((), dtype=torch.bool, device=q.device)
    keep = (everything if keep is None else keep).broadcast_to(*q.shape[:-1], k.shape[-2])
    precise = torch.float64 if q.dtype == torch.float64 else torch.float32
    output = scaled_dot_product_attention(q.to(precise), k.to(precise), v.to(precise), attn_mask=keep, enable_gqa=True)
    weights = [
        _weights_of_one_head(q[:, head].to(precise), k[:, head // group_size].to(precise), keep[:, head])
        for head in range(q.shape[1])
    ]
    return output.to(q.dtype), torch.stack(weights, dim=1).to(q.dtype)


def _weights_of_one_head(q: Tensor, k: Tensor, keep: Tensor) -> Tensor:
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores.masked_fill(~keep, -math.inf), dim=-1)
    return weights.masked_fill(~keep, 0.0)


class GroupedQueryAttention(nn.Module):
    """Grouped-query attention on the oracle above. The stand-in of later chapters."""

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.check(d_model, n_heads, n_kv_heads)
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_model // n_heads
        self.w_q = self.linear(d_model, n_heads * self.d_head, bias=False)
        self.w_k = self.linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_v = self.linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_o = self.linear(n_heads * self.d_head, d_model, bias=False)

    def forward(self, x: Tensor, keep: Tensor | None = None, cache: Any = None) -> tuple[Tensor, Tensor]:
        """(B, n, d_model) -> output (B, n, d_model), weights (B, n_heads, n, n_total).

        With a cache, n_total counts its tokens too, and attention is causal; `keep` (n, n_total) applies as well.
        """
        q, k, v = (self.split(y) for y in self.project(x))
        if cache is not None:
            k, v = self.remember(cache, k, v)
            keep = self.visible(q.shape[2], k.shape[2], keep)
        output, weights = self.attend(q, k, v, keep)
        return self.give(x, self.write(self.combine(output)), weights)

    # The steps, so that a misconception can replace one of them.

    linear = nn.Linear
    check = staticmethod(_check_sizes)
    attend = staticmethod(grouped_attention)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, n, n_heads * d_head), keys and values (B, n, n_kv_heads * d_head)."""
        return self.w_q(x), self.w_k(x), self.w_v(x)

    def split(self, x: Tensor) -> Tensor:
        """(B, n, H * d_head) -> (B, H, n, d_head), whatever H is."""
        return torch.stack(x.split(self.d_head, dim=-1), dim=1)

    def remember(self, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, old and new."""
        return cache.append(k, v)

    def visible(self, n_new: int, n_total: int, keep: Tensor | None) -> Tensor:
        """The mask that goes with a cache."""
        causal = cached_causal_mask(n_new, n_total)
        return causal if keep is None else causal & keep

    def combine(self, heads: Tensor) -> Tensor:
        """(B, n_heads, n, d_head) -> (B, n, n_heads * d_head)"""
        return torch.cat(heads.unbind(dim=1), dim=-1)

    def write(self, joined: Tensor) -> Tensor:
        """What all heads found, mixed."""
        return self.w_o(joined)

    def give(self, x: Tensor, output: Tensor, weights: Tensor) -> Any:
        """What `forward` returns."""
        return output, weights


def gqa_parameter_count(d_model: int, n_heads: int, n_kv_heads: int) -> int:
    """The entries of the four matrices, counted on a layer whose matrices have sizes and no memory."""
    with torch.device("meta"):
        layer = GroupedQueryAttention(d_model, n_heads, n_kv_heads)
    return sum(matrix.numel() for matrix in layer.parameters())


def kv_saving(n_heads: int, n_kv_heads: int) -> float:
    """The tensors that a cache holds, one of keys and one of values for each head, without sharing over with."""
    _check_groups(n_heads, n_kv_heads)
    without = [kind for _ in range(n_heads) for kind in ("keys", "values")]
    shared = [kind for _ in range(n_kv_heads) for kind in ("keys", "values")]
    return len(without) / len(shared)


def mha_to_gqa(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    """A layer whose key/value heads are the means of neighbouring heads of `mha`, number by number."""
    layer = GroupedQueryAttention(mha.d_model, mha.n_heads, n_kv_heads).to(mha.w_q.weight.dtype)
    group_size = mha.n_heads // n_kv_heads
    with torch.no_grad():
        layer.w_q.weight.copy_(mha.w_q.weight)
        layer.w_o.weight.copy_(mha.w_o.weight)
        for head in range(n_kv_heads):
            for place in range(mha.d_head):
                members = [(head * group_size + member) * mha.d_head + place for member in range(group_size)]
                for mine, theirs in ((layer.w_k, mha.w_k), (layer.w_v, mha.w_v)):
                    mine.weight[head * mha.d_head + place] = sum(theirs.weight[row] for row in members) / group_size
    return layer


def _normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


# repeat_kv


def _named_entries(batch: int, n_heads: int, n_tokens: int) -> Tensor:
    """(B, H, T, 1), an entry of 100 b + 10 h + t for sequence b, head h, token t."""
    b, h, t = (torch.arange(n) for n in (batch, n_heads, n_tokens))
    return (100 * b[:, None, None, None] + 10 * h[:, None, None] + t[:, None]).float()


def _to_repeat(
    group_size: int, *shape: int, dtype: torch.dtype = torch.float32
) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: given(_normal(rng, *shape, dtype=dtype), group_size)


def _as_split_from_tokens(rng: np.random.Generator) -> Arguments:
    return given(_normal(rng, 2, 5, 3, 4).transpose(1, 2), 2)


def _take_turns(x: Tensor, group_size: int) -> Tensor:
    return torch.cat([x] * group_size, dim=1)


def _cut_anew(x: Tensor, repeated: Tensor) -> Tensor:
    """To the shape that was asked for, in memory order, if it has as many numbers."""
    return repeated.reshape(x.shape[0], -1, *x.shape[2:])


def _tokens_repeated(x: Tensor, group_size: int) -> Tensor:
    return _cut_anew(x, x.repeat_interleave(group_size, dim=2))


def _turns_text(values: Mapping[str, Any]) -> str:
    n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
    return (
        f"Your heads take turns: the {n_kv_heads} heads one after the other, and then all of them again, so that query "
        f"head 1 reads head {1 % n_kv_heads}. Neighbours share: query heads 0 to {group_size - 1} read head 0, heads "
        f"{group_size} to {2 * group_size - 1} head 1. The copies of one head stand next to each other."
    )


def _n_kv_heads_and_group_size(values: Mapping[str, Any]) -> tuple[int, int]:
    if "x" in values and "group_size" in values:
        return values["x"].shape[1], values["group_size"]
    if "q" in values:
        n_heads, n_kv_heads = values["q"].shape[1], values["k"].shape[1]
    elif "mha" in values:
        n_heads, n_kv_heads = values["mha"].n_heads, values["n_kv_heads"]
    else:
        n_heads, n_kv_heads = values["n_heads"], values["n_kv_heads"]
    return n_kv_heads, n_heads // n_kv_heads if n_kv_heads > 0 else 0


def _along_tokens_text(values: Mapping[str, Any]) -> str:
    n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
    return (
        f"You repeat tokens, not heads: a sequence becomes {group_size} times as long. The axes are (B, H_kv, T, d), "
        "so the heads are axis 1."
    )


def _swapped_text(values: Mapping[str, Any]) -> str:
    n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
    return (
        f"The size of a group and the number of groups have changed places. There are {n_kv_heads} key/value heads, "
        f"and each serves {group_size} query heads: so each is needed {group_size} times, and query head h reads h // "
        f"{group_size}."
    )


_COPIES = "copies of one head next to each other"

_repeat_kv = Exercise(
    id="repeat_kv",
    points=3,
    section=REPEAT,
    reference=repeat_kv,
    families={_COPIES: 0.6, "one head, groups of one, one token": 0.15, "any dtype": 0.15, INPUTS_UNCHANGED: 0.1},
    cases=(
        Case("two heads, two tokens, twice", _COPIES, lambda rng: given(_named_entries(1, 2, 2), 2)),
        Case("two heads, three times", _COPIES, _to_repeat(3, 1, 2, 2, 2)),
        Case("a batch of 2, 3 heads, 5 tokens, twice", _COPIES, _to_repeat(2, 2, 3, 5, 4)),
        Case("a batch of 3, 2 heads, 4 tokens, five times", _COPIES, _to_repeat(5, 3, 2, 4, 1)),
        Case("all sizes 2", _COPIES, _to_repeat(2, 2, 2, 2, 2)),
        Case("heads split from token vectors by a transpose", _COPIES, _as_split_from_tokens),
        Case("groups of one", "one head, groups of one, one token", _to_repeat(1, 2, 3, 4, 5)),
        Case("one head for four", "one head, groups of one, one token", _to_repeat(4, 2, 1, 3, 2)),
        Case("one token", "one head, groups of one, one token", _to_repeat(3, 2, 2, 1, 4)),
        Case("float64", "any dtype", _to_repeat(2, 2, 3, 4, 1, dtype=torch.float64)),
        Case("bfloat16", "any dtype", _to_repeat(3, 1, 2, 3, 2, dtype=torch.bfloat16)),
        Case("integers", "any dtype", lambda rng: given(_named_entries(2, 2, 3).long(), 3)),
    ),
    misconceptions=(
        Misconception("heads_take_turns", _take_turns, _turns_text, REPEAT),
        *(
            Misconception("repeated_along_tokens", implementation, _along_tokens_text, REPEAT)
            for implementation in (
                lambda x, group_size: x.repeat_interleave(group_size, dim=2),
                lambda x, group_size: x.repeat(1, 1, group_size, 1),
                _tokens_repeated,
            )
        ),
        *(
            Misconception(
                "repeated_along_numbers",
                implementation,
                "You repeat the numbers of each vector, the last axis. The axes are (B, H_kv, T, d), so the heads are "
                "axis 1.",
                REPEAT,
            )
            for implementation in (
                lambda x, group_size: x.repeat_interleave(group_size, dim=3),
                lambda x, group_size: x.repeat(1, 1, 1, group_size),
            )
        ),
        *(
            Misconception(
                "repeated_along_batch",
                implementation,
                "You repeat whole sequences, axis 0. The axes are (B, H_kv, T, d), so the heads are axis 1.",
                REPEAT,
            )
            for implementation in (
                lambda x, group_size: x.repeat_interleave(group_size, dim=0),
                lambda x, group_size: x.repeat(group_size, 1, 1, 1),
            )
        ),
        *(
            Misconception(
                "flattened",
                implementation,
                "`repeat_interleave` without `dim` flattens the tensor and repeats every single number. Say along "
                "which axis: the heads are axis 1.",
                REPEAT,
            )
            for implementation in (
                lambda x, group_size: x.repeat_interleave(group_size),
                lambda x, group_size: x.repeat_interleave(group_size).reshape(x.shape[0], -1, *x.shape[2:]),
            )
        ),
        Misconception(
            "not_repeated",
            lambda x, group_size: x,
            "You return the heads as they came. Each is needed `group_size` times. (Methods such as "
            "`repeat_interleave` return a new tensor; the old one stays as it is.)",
            REPEAT,
        ),
        Misconception(
            "group_size_swapped",
            lambda x, group_size: x.repeat_interleave(x.shape[1], dim=1),
            _swapped_text,
            REPEAT,
        ),
        Misconception(
            "one_head_for_all",
            lambda x, group_size: x[:, :1].repeat_interleave(group_size * x.shape[1], dim=1),
            "All heads of your result are copies of head 0. Each of the heads is repeated, in its turn.",
            REPEAT,
        ),
        Misconception(
            "axis_left_over",
            lambda x, group_size: x[:, :, None].expand(-1, -1, group_size, -1, -1),
            "Your result has an axis too many: (B, H_kv, group_size, T, d). Join the heads and their copies to one "
            "axis, in this order.",
            REPEAT,
        ),
        Misconception(
            "axis_left_over",
            lambda x, group_size: x[:, None].expand(-1, group_size, -1, -1, -1),
            "Your result has an axis too many: (B, group_size, H_kv, T, d). And its order is that of heads that take "
            "turns: the axis of the copies belongs behind that of the heads.",
            REPEAT,
        ),
        Misconception(
            "one_copy_too_many",
            lambda x, group_size: x.repeat_interleave(group_size + 1, dim=1),
            "Each head is there once more than it should be. `group_size` counts all of its copies.",
            REPEAT,
        ),
    ),
)


# grouped_attention: one description in steps, one of which a mistake replaces. `GroupedQueryAttention` inherits them.


def _neighbours(x: Tensor, group_size: int) -> Tensor:
    return x.repeat_interleave(group_size, dim=1)


def _softmax(scores: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(scores, dim)


def _hidden(scores: Tensor, keep: Tensor | None, fill: float = -math.inf) -> Tensor:
    return scores if keep is None else scores.masked_fill(~keep, fill)


def _weigh(scores: Tensor, keep: Tensor | None) -> Tensor:
    weights = _softmax(_hidden(scores, keep))
    return weights if keep is None else torch.nan_to_num(weights)


@dataclass(frozen=True)
class _Steps:
    """Grouped attention that repeats keys and values, step by step."""

    share: Callable[[Tensor, int], Tensor] = _neighbours
    scale: Callable[[Tensor, Tensor], float] = lambda q, k: q.shape[-1] ** -0.5
    weigh: Callable[[Tensor, Tensor | None], Tensor] = _weigh
    give: Callable[[Tensor, Tensor, Tensor], Any] = lambda output, weights, scores: (output, weights)
    check: Callable[[int, int], None] = _check_groups

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Any:
        self.check(q.shape[1], k.shape[1])
        group_size = q.shape[1] // k.shape[1]
        k, v = self.share(k, group_size), self.share(v, group_size)
        scores = q @ k.transpose(-2, -1) * self.scale(q, k)
        weights = self.weigh(scores, keep)
        return self.give(weights @ v, weights, scores)


def _in_groups(q: Tensor, k: Tensor) -> Tensor:
    """Scores (B, H_kv, group_size, T_q, T_k)."""
    _check_groups(q.shape[1], k.shape[1])
    grouped = q.unflatten(1, (k.shape[1], -1))
    return grouped @ k[:, :, None].transpose(-2, -1) * q.shape[-1] ** -0.5


def _masked_in_groups(
    hide: Callable[[Tensor, Tensor], Tensor],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The mask meets scores that still have an axis for groups and one for the heads in them."""

    def implementation(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = _in_groups(q, k)
        weights = _softmax(scores if keep is None else hide(scores, keep)).nan_to_num()
        return (weights @ v[:, :, None]).flatten(1, 2), weights.flatten(1, 2)

    return implementation


def _groups_left_over(also_weights: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def implementation(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, weights = _Steps()(q, k, v, keep)
        output = output.unflatten(1, (k.shape[1], -1))
        return output, weights.unflatten(1, (k.shape[1], -1)) if also_weights else weights

    return implementation


def _joined_in_turns(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Grouped rightly, and put back with the axes of groups and of heads in a group exchanged."""
    output, weights = _Steps()(q, k, v, keep)
    return tuple(x.unflatten(1, (k.shape[1], -1)).transpose(1, 2).flatten(1, 2) for x in (output, weights))


def _groups_exchanged(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q cut into (group_size, H_kv): an error unless the two are equal."""
    grouped = q.unflatten(1, (q.shape[1] // k.shape[1], k.shape[1]))
    scores = grouped @ k[:, :, None].transpose(-2, -1) * q.shape[-1] ** -0.5
    weights = _weigh(scores.flatten(1, 2), keep)
    return (weights.unflatten(1, grouped.shape[1:3]) @ v[:, :, None]).flatten(1, 2), weights


def _shared_apart(share_k: Callable[..., Tensor], share_v: Callable[..., Tensor]) -> Callable[..., Any]:
    """Keys shared in one way and values in another."""

    def implementation(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Any:
        _check_groups(q.shape[1], k.shape[1])
        group_size = q.shape[1] // k.shape[1]
        return _Steps(share=lambda x, group_size: x)(q, share_k(k, group_size), share_v(v, group_size), keep)

    return implementation


def _softmax_in_groups(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = _in_groups(q, k)
    if keep is not None:
        kept = keep.broadcast_to(*q.shape[:-1], k.shape[-2]).unflatten(1, (k.shape[1], -1))
        scores = scores.masked_fill(~kept, -math.inf)
    weights = _softmax(scores, 2).nan_to_num()
    return (weights @ v[:, :, None]).flatten(1, 2), weights.flatten(1, 2)


def _queries_averaged(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One query for each group, the mean of its own."""
    group_size = q.shape[1] // k.shape[1]
    mean = q.unflatten(1, (k.shape[1], -1)).mean(2)
    return _Steps()(mean.repeat_interleave(group_size, dim=1), k, v, keep)


def _groups_averaged(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A result for each key/value head only."""
    output, weights = _Steps()(q, k, v, keep)
    return tuple(x.unflatten(1, (k.shape[1], -1)).mean(2) for x in (output, weights))


def _by_number(which: Callable[[int, int, int], int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Query head h reads the key/value head of number `which(h, n_heads, n_kv_heads)`."""

    def implementation(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        read = [which(head, q.shape[1], k.shape[1]) for head in range(q.shape[1])]
        return _Steps(share=lambda x, group_size: x)(q, k[:, read], v[:, read], keep)

    return implementation


def _softmax_along(dim: int | None) -> Callable[[Tensor, Tensor | None], Tensor]:
    def weigh(scores: Tensor, keep: Tensor | None) -> Tensor:
        masked = _hidden(scores, keep)
        weights = _softmax(masked.flatten()).reshape(scores.shape) if dim is None else _softmax(masked, dim)
        return weights if keep is None else torch.nan_to_num(weights)

    return weigh


def _with_mask(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    return lambda scores, keep: _softmax(scores) if keep is None else weigh(scores, keep)


def _mask_changed(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    return _with_mask(lambda scores, keep: _weigh(scores, change(keep)))


def _first_of_axis_1(scores: Tensor, keep: Tensor) -> Tensor:
    return torch.cat([_weigh(scores, keep)[:, :1], _softmax(scores)[:, 1:]], dim=1)


def _powers_without_maximum(scores: Tensor, keep: Tensor | None) -> Tensor:
    powers = torch.exp(_hidden(scores, keep))
    return powers / powers.sum(-1, keepdim=True)


def _causal_always(scores: Tensor, keep: Tensor | None) -> Tensor:
    past = cached_causal_mask(*scores.shape[-2:])
    return _weigh(scores, past if keep is None else keep & past)


def _causal_from_top_left(scores: Tensor, keep: Tensor | None) -> Tensor:
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return _weigh(scores, past if keep is None else keep & past)


def _d_head(values: Mapping[str, Any]) -> int:
    return values["q"].shape[-1] if "q" in values else values["d_model"] // values["n_heads"]


def _n_heads(values: Mapping[str, Any]) -> int:
    return values["q"].shape[1] if "q" in values else values["n_heads"]


def _scale_text(words: str) -> Callable[[Mapping[str, Any]], str]:
    def text(values: Mapping[str, Any]) -> str:
        d, n_heads = _d_head(values), _n_heads(values)
        return words.format(d=d, root=math.sqrt(d), n_heads=n_heads, width=n_heads * d)

    return text


_SCALE_BY_D = " A score is a sum of d = {d} terms, whatever the number of heads: divide it by sqrt(d) = {root:.3g}."


def _not_repeated_text(values: Mapping[str, Any]) -> str:
    n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
    return (
        f"{_n_heads(values)} heads of queries meet {n_kv_heads} heads of keys, which no product puts together. Either "
        f"repeat each head of k and of v {group_size} times, along the heads, or give q an axis for groups."
    )


def _reads_text(values: Mapping[str, Any]) -> str:
    n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
    return (
        f"Your query heads take turns: head h reads key/value head h % {n_kv_heads}. Neighbours share: heads 0 to "
        f"{group_size - 1} read head 0, heads {group_size} to {2 * group_size - 1} head 1, that is, h // {group_size}. "
        f"If you gave q an axis for groups, it is ({n_kv_heads}, {group_size}), in this order."
    )


def _joined_text(values: Mapping[str, Any]) -> str:
    n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
    return (
        f"Your heads come back in another order: 0, {group_size}, {2 * group_size}, ... You put the axes together as "
        f"({group_size}, {n_kv_heads}). They are ({n_kv_heads}, {group_size}), the group first: join them without "
        "exchanging them."
    )


_TOKENS_REPEATED = (
    "You repeat the tokens of k and v, not their heads: the keys of a query are then the same few, several times. The "
    "axes are (B, H_kv, T_k, d), so the heads are axis 1."
)

#: (id, what computes (output, weights) wrongly, explanation, section): mistakes of the function and of the layer.
_WIRING_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = (
    ("heads_take_turns", _Steps(share=_take_turns), _reads_text, REPEAT),
    ("repeated_along_tokens", _Steps(share=_tokens_repeated), _TOKENS_REPEATED, REPEAT),
    ("repeated_along_tokens", _Steps(share=lambda x, g: x.repeat_interleave(g, dim=2)), _TOKENS_REPEATED, REPEAT),
    ("repeated_along_tokens", _Steps(share=lambda x, g: x.repeat(1, 1, g, 1)), _TOKENS_REPEATED, REPEAT),
    ("not_repeated", _Steps(share=lambda x, g: x), _not_repeated_text, REPEAT),
    ("group_size_swapped", _Steps(share=lambda x, g: x.repeat_interleave(x.shape[1], dim=1)), _swapped_text, REPEAT),
    ("group_size_swapped", _by_number(lambda head, n_heads, n_kv_heads: head // n_kv_heads), _swapped_text, REPEAT),
    ("group_size_swapped", _groups_exchanged, _swapped_text, REPEAT),
    (
        "one_head_for_all",
        _by_number(lambda head, n_heads, n_kv_heads: 0),
        "All your query heads read key/value head 0. Each group reads a head of its own.",
        REPEAT,
    ),
    (
        "values_take_turns",
        _shared_apart(_neighbours, _take_turns),
        "Your keys are shared rightly, but the values take turns. Both belong to the same group: share them alike.",
        REPEAT,
    ),
    (
        "values_take_turns",
        _shared_apart(_take_turns, _neighbours),
        "Your values are shared rightly, but the keys take turns. Both belong to the same group: share them alike.",
        REPEAT,
    ),
    ("heads_out_of_order", _joined_in_turns, _joined_text, GROUPS),
    (
        "queries_averaged",
        _queries_averaged,
        "You average the queries of a group. They stay apart: only keys and values are shared, and each query head "
        "keeps its own weights.",
        GROUPS,
    ),
)

_SCALE_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = (
    ("no_scale", _Steps(scale=lambda q, k: 1.0), _scale_text("Your scores have no scale." + _SCALE_BY_D), GROUPS),
    (
        "scaled_by_d",
        _Steps(scale=lambda q, k: 1 / q.shape[-1]),
        _scale_text(
            "Your scores are divided by d = {d} itself; is the root missing, or do you divide twice?" + _SCALE_BY_D
        ),
        GROUPS,
    ),
    (
        "multiplied_by_scale",
        _Steps(scale=lambda q, k: q.shape[-1] ** 0.5),
        _scale_text("Your scores are multiplied by sqrt(d)." + _SCALE_BY_D),
        GROUPS,
    ),
    (
        "scaled_by_d_model",
        _Steps(scale=lambda q, k: (q.shape[1] * q.shape[-1]) ** -0.5),
        _scale_text("Your scores are divided by the root of d_model = {n_heads} * {d} = {width}." + _SCALE_BY_D),
        GROUPS,
    ),
    *(
        (
            "scaled_by_another_size",
            _Steps(scale=scale),
            _scale_text("Your scores are divided by the root of another size than d." + _SCALE_BY_D),
            GROUPS,
        )
        for scale in (
            lambda q, k: q.shape[1] ** -0.5,
            lambda q, k: q.shape[2] ** -0.5,
            lambda q, k: k.shape[2] ** -0.5,
        )
    ),
)


def _shared_width(head_count: Callable[[int, int], float]) -> Callable[..., Any]:
    """Scores over the root of so many heads times d."""

    def implementation(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Any:
        width = head_count(q.shape[1], k.shape[1]) * q.shape[-1]
        return _Steps(scale=lambda q, k: width**-0.5)(q, k, v, keep)

    return implementation


_SHARED_SCALE_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = tuple(
    (
        "scaled_by_shared_width",
        _shared_width(head_count),
        _scale_text(f"Your scores are divided by the root of d times the {what}.{_SCALE_BY_D}"),
        GROUPS,
    )
    for head_count, what in (
        (lambda n_heads, n_kv_heads: n_kv_heads, "number of key/value heads"),
        (lambda n_heads, n_kv_heads: n_heads / n_kv_heads, "size of a group"),
    )
)

_WEIGHT_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = (
    (
        "over_queries",
        _Steps(weigh=_softmax_along(-2)),
        "Your weights sum to 1 down the columns, over the queries. Each query has its own 100 % to spend on the keys: "
        "take the softmax along the last axis.",
        GROUPS,
    ),
    (
        "softmax_over_heads",
        _Steps(weigh=_softmax_along(1)),
        "Your weights sum to 1 over the heads. Every query of every head has 100 % of its own: take the softmax along "
        "the last axis.",
        GROUPS,
    ),
    (
        "softmax_over_heads",
        _softmax_in_groups,
        "Your weights sum to 1 over the query heads of a group. They share keys, not a budget: take the softmax along "
        "the last axis.",
        GROUPS,
    ),
    (
        "over_everything",
        _Steps(weigh=_softmax_along(None)),
        "All your weights together sum to 1. Every query of every head has a budget of its own.",
        GROUPS,
    ),
    (
        "no_softmax",
        _Steps(weigh=lambda scores, keep: scores if keep is None else scores * keep),
        "Your weights are the scores themselves. A softmax along the last axis makes shares of them.",
        GROUPS,
    ),
    (
        "no_max_subtracted",
        _Steps(weigh=_powers_without_maximum),
        "Your softmax does not subtract the largest score of each row, so exp overflows and the result is NaN. "
        "`torch.softmax` does.",
        GROUPS,
    ),
    (
        "causal_always",
        _Steps(weigh=_causal_always),
        "Your queries see only the past, though no mask says so. What may be seen is `keep`'s business alone.",
        GROUPS,
    ),
    (
        "causal_always",
        _Steps(weigh=_causal_from_top_left),
        "Your queries see only the past, though no mask says so. What may be seen is `keep`'s business alone.",
        GROUPS,
    ),
)

_MASK_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = (
    (
        "ignores_mask",
        _Steps(weigh=lambda scores, keep: _softmax(scores)),
        "Your weights are those without a mask. Is `keep` handed on, and is the result of the masking used?",
        GROUPS,
    ),
    (
        "inverted_mask",
        _Steps(weigh=_mask_changed(torch.logical_not)),
        "Your mask works the other way round: `keep` True means that a key may be attended to.",
        GROUPS,
    ),
    (
        "mask_after_softmax",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores) * keep)),
        "You set hidden weights to 0 after the softmax: the rows no longer sum to 1. Hide the scores first, with "
        "-infinity, then take the softmax.",
        GROUPS,
    ),
    (
        "mask_added",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores + keep.to(scores.dtype)))),
        "You add the mask to the scores: True counts as 1, so a hidden key loses only 1 point of score. Hidden scores "
        "must become -infinity.",
        GROUPS,
    ),
    (
        "hidden_score_zero",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores * keep))),
        "Your weights equal those of hidden scores set to 0, by multiplying with the mask or with a fill such as "
        "1e-9. exp(0) is 1, not 0: a hidden score must become -infinity.",
        GROUPS,
    ),
    (
        "fully_masked_nan",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(_hidden(scores, keep)))),
        "A query that may attend to nothing gets NaN in your code, a softmax of nothing but -infinity. Its weights "
        "are all 0. (`torch.nan_to_num` puts 0 where NaN is.)",
        GROUPS,
    ),
    (
        "fully_masked_uniform",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(_hidden(scores, keep, -1e9)))),
        "A query that may attend to nothing gets equal weights in your code, since all its scores are filled with the "
        "same number. Its weights are all 0.",
        GROUPS,
    ),
    (
        "mask_on_first_head_only",
        _Steps(weigh=_with_mask(_first_of_axis_1)),
        "The mask reaches only head 0. Let it broadcast over all heads.",
        GROUPS,
    ),
    (
        "mask_along_queries",
        _Steps(weigh=_mask_changed(lambda keep: keep.transpose(-1, -2))),
        "Your mask lies along the queries: rows and columns are exchanged. In `keep` the last axis belongs to the "
        "keys, as in the scores.",
        GROUPS,
    ),
    *(
        (
            "mask_on_groups",
            implementation,
            "The mask meets scores of five axes, (B, H_kv, group_size, T_q, T_k), and lines up from the right: its "
            "batch lands on the key/value heads, its heads on the members of a group. Give the scores their four axes "
            "(B, H_q, T_q, T_k) back before you mask.",
            GROUPS,
        )
        for implementation in (
            _masked_in_groups(lambda scores, keep: scores.masked_fill(~keep, -math.inf)),
            _masked_in_groups(lambda scores, keep: torch.where(keep, scores, -math.inf)),
        )
    ),
    *(
        (
            "mask_on_groups",
            implementation,
            "You insert an axis into every mask so that it fits scores of five axes. That is right for one form of "
            "mask and wrong for the others (T_q, T_k), (B, 1, 1, T_k), (1, H_q, T_q, T_k). Give the scores their four "
            "axes (B, H_q, T_q, T_k) back before you mask, and `keep` broadcasts as it is.",
            GROUPS,
        )
        for implementation in (
            _masked_in_groups(lambda scores, keep: scores.masked_fill(~keep.unsqueeze(1), -math.inf)),
            _masked_in_groups(lambda scores, keep: scores.masked_fill(~keep.unsqueeze(2), -math.inf)),
            _masked_in_groups(lambda scores, keep: scores.masked_fill(~keep.unsqueeze(-3), -math.inf)),
        )
    ),
    *(
        (
            "mask_axis_inserted",
            _Steps(weigh=_mask_changed(change)),
            "You insert an axis into the mask. `keep` arrives ready to broadcast to (B, H_q, T_q, T_k): whoever calls "
            "has put the axis for the heads in, where one was needed.",
            GROUPS,
        )
        for change in (
            lambda keep: keep.unsqueeze(1),
            lambda keep: keep.unsqueeze(1) if keep.ndim == 3 else keep,
        )
    ),
    (
        "mask_batch_on_heads",
        _Steps(weigh=_mask_changed(lambda keep: keep.squeeze(1) if keep.ndim == 4 else keep)),
        "Your code drops the axis of length 1 that stands for the heads, so the masks of the sequences land on the "
        "heads: an error, or, with as many sequences as heads, silently the wrong masks. Leave the axes of `keep` as "
        "they are.",
        GROUPS,
    ),
)


_RETURN_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = (
    (
        "returned_in_wrong_order",
        _Steps(give=lambda output, weights, scores: (weights, output)),
        "You return (weights, output). Return the output first.",
        GROUPS,
    ),
    (
        "weights_missing",
        _Steps(give=lambda output, weights, scores: output),
        "You return the output alone. The pair (output, weights) is asked for.",
        GROUPS,
    ),
    (
        "scores_returned",
        _Steps(give=lambda output, weights, scores: (output, scores)),
        "The second thing you return are the scores. The weights are asked for: after the softmax, each row sums to 1.",
        GROUPS,
    ),
    (
        "weights_averaged",
        _Steps(give=lambda output, weights, scores: (output, weights.mean(1))),
        "You average the weights over the heads. Return them for each query head, (B, H_q, T_q, T_k).",
        GROUPS,
    ),
)


_ATTENTION_MISTAKES = (
    *_WIRING_MISTAKES,
    *_SCALE_MISTAKES,
    *_SHARED_SCALE_MISTAKES,
    *_WEIGHT_MISTAKES,
    *_MASK_MISTAKES,
    *_RETURN_MISTAKES,
)


def _without_check(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Any:
    """Groups of different sizes where the heads cannot be shared out evenly."""
    return _by_number(lambda head, n_heads, n_kv_heads: head * n_kv_heads // n_heads)(q, k, v, keep)


def _rest_left_out(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Any:
    """Query heads without a group are dropped."""
    group_size = q.shape[1] // k.shape[1]
    return _Steps()(q[:, : group_size * k.shape[1]], k, v, keep) if group_size else (q, q)


def _unequal_text(values: Mapping[str, Any]) -> str:
    n_heads, n_kv_heads = _n_heads(values), values["k"].shape[1] if "k" in values else values["n_kv_heads"]
    return (
        f"{n_heads} query heads and {n_kv_heads} key/value heads are let through, though {n_heads} / {n_kv_heads} is "
        "no whole number. Raise a ValueError."
    )


def _q_k_v(
    sizes: tuple[int, int, int, int, int, int],
    dtype: torch.dtype = torch.float32,
    keep: Callable[[np.random.Generator], Tensor] | None = None,
) -> Callable[[np.random.Generator], Arguments]:
    """`sizes` are B, H_q, H_kv, T_q, T_k and d."""
    batch, n_heads, n_kv_heads, n_queries, n_keys, d = sizes

    def arguments(rng: np.random.Generator) -> Arguments:
        q = _normal(rng, batch, n_heads, n_queries, d, dtype=dtype)
        k, v = (_normal(rng, batch, n_kv_heads, n_keys, d, dtype=dtype) for _ in range(2))
        return given(q, k, v) if keep is None else given(q, k, v, keep=keep(rng))

    return arguments


def _by_hand(rng: np.random.Generator) -> Arguments:
    """Head 0 of keys and values serves queries 0 and 1, head 1 the others; weights are 1/4 and 3/4, or 1/2 and 1/2."""
    q = torch.tensor([1.0, 0.0, -1.0, 2.0]).reshape(1, 4, 1, 1)
    k = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]]).reshape(1, 2, 2, 1)
    v = torch.tensor([[0.0, 4.0], [100.0, 200.0]]).reshape(1, 2, 2, 1)
    return given(q, k, v)


def _far_apart(rng: np.random.Generator) -> Arguments:
    """Scores of 1000, 1001 and -1000, and of 500 times that in the second head."""
    q = torch.full((1, 4, 2, 1), 100.0)
    k = torch.tensor([[10.0, 10.01, -10.0], [-5.0, 5.0, 5.005]]).reshape(1, 2, 3, 1)
    return given(q, k, _normal(rng, 1, 2, 3, 1))


def _causal(n_queries: int, n_keys: int) -> Callable[[np.random.Generator], Tensor]:
    return lambda rng: cached_causal_mask(n_queries, n_keys)


def _padding(*lengths: int, n_tokens: int) -> Callable[[np.random.Generator], Tensor]:
    return lambda rng: (torch.arange(n_tokens) < torch.tensor(lengths)[:, None])[:, None, None]


def _some_kept(*shape: int) -> Callable[[np.random.Generator], Tensor]:
    """A random mask, no two rows of it alike in a square, and no row empty."""

    def make(rng: np.random.Generator) -> Tensor:
        keep = rng.random(shape) < 0.55
        first = np.arange(math.prod(shape[:-1])).reshape(shape[:-1]) % shape[-1]
        np.put_along_axis(keep, first[..., None], True, axis=-1)
        np.put_along_axis(keep, (first[..., None] + 1) % shape[-1], False, axis=-1)
        return torch.from_numpy(keep)

    return make


def _without_token_1(n_tokens: int) -> Callable[[np.random.Generator], Tensor]:
    """(T, T): nobody may attend to token 1, and token 3 not to token 0 either. The future is left to others."""

    def make(rng: np.random.Generator) -> Tensor:
        keep = torch.ones(n_tokens, n_tokens, dtype=torch.bool)
        keep[:, 1] = False
        keep[3, 0] = False
        return keep

    return make


def _with_empty_rows(*shape: int) -> Callable[[np.random.Generator], Tensor]:
    """The same, but queries 0 and 2 of it may attend to nothing."""

    def make(rng: np.random.Generator) -> Tensor:
        keep = _some_kept(*shape)(rng)
        keep[..., 0, :] = False
        keep[..., 2, :] = False
        return keep

    return make


_SHARED = "queries share keys and values"
_ENDS = "groups of one, one group, one token"
_MASKED = "masks"
_EMPTY = "a query that may attend to nothing"
_PRECISE = "any dtype, scores of any size"
_UNEQUAL = "heads that cannot be shared out"

_grouped_attention = Exercise(
    id="grouped_attention",
    points=5,
    section=GROUPS,
    reference=grouped_attention,
    returns=("output", "weights"),
    forbidden=_LIBRARY_CALLS,
    exact_zeros=True,
    families={
        _SHARED: 0.4,
        _ENDS: 0.1,
        _MASKED: 0.15,
        _EMPTY: 0.1,
        _PRECISE: 0.1,
        _UNEQUAL: 0.1,
        INPUTS_UNCHANGED: 0.05,
    },
    cases=(
        Case("four query heads, two of keys and values, one number each", _SHARED, _by_hand),
        Case("one new token, 7 keys, 8 heads share 2", _SHARED, _q_k_v((1, 8, 2, 1, 7, 3))),
        Case("a batch of 2, 3 queries, 5 keys, 6 heads share 2", _SHARED, _q_k_v((2, 6, 2, 3, 5, 4))),
        Case("a batch of 3, 4 queries, 2 keys, 6 heads share 3", _SHARED, _q_k_v((3, 6, 3, 4, 2, 5))),
        Case("as many tokens as heads and numbers", _SHARED, _q_k_v((2, 4, 2, 4, 4, 4))),
        Case("groups of one: a head of keys for every query head", _ENDS, _q_k_v((2, 3, 3, 4, 5, 2))),
        Case("one group: all query heads share one head of keys", _ENDS, _q_k_v((2, 3, 1, 4, 5, 2))),
        Case("a single head", _ENDS, _q_k_v((1, 1, 1, 2, 3, 2))),
        Case("a single key", _ENDS, _q_k_v((2, 4, 2, 3, 1, 2))),
        Case("a causal mask", _MASKED, _q_k_v((1, 4, 2, 4, 4, 3), keep=_causal(4, 4))),
        Case("2 new tokens after 3 old ones", _MASKED, _q_k_v((2, 6, 2, 2, 5, 3), keep=_causal(2, 5))),
        Case("padding, (B, 1, 1, T_k)", _MASKED, _q_k_v((3, 4, 2, 2, 5, 3), keep=_padding(3, 5, 1, n_tokens=5))),
        Case(
            "padding, as many sequences as key/value heads",
            _MASKED,
            _q_k_v((2, 4, 2, 3, 5, 3), keep=_padding(3, 5, n_tokens=5)),
        ),
        Case("a mask for each sequence", _MASKED, _q_k_v((2, 4, 2, 3, 5, 2), keep=_some_kept(2, 1, 3, 5))),
        Case("a mask for each head", _MASKED, _q_k_v((2, 6, 3, 2, 4, 2), keep=_some_kept(6, 2, 4))),
        Case("a mask for each head of each sequence", _MASKED, _q_k_v((2, 4, 2, 3, 4, 2), keep=_some_kept(2, 4, 3, 4))),
        Case("rows 0 and 2 are hidden", _EMPTY, _q_k_v((2, 4, 2, 3, 4, 2), keep=_with_empty_rows(3, 4))),
        Case(
            "rows 0 and 2 are hidden, for each head",
            _EMPTY,
            _q_k_v((1, 6, 2, 3, 5, 2), keep=_with_empty_rows(1, 6, 3, 5)),
        ),
        Case("a sequence of nothing but padding", _EMPTY, _q_k_v((2, 4, 2, 2, 3, 2), keep=_padding(0, 2, n_tokens=3))),
        Case("float64", _PRECISE, _q_k_v((2, 4, 2, 3, 5, 2), torch.float64)),
        Case("bfloat16, with a mask", _PRECISE, _q_k_v((1, 4, 2, 3, 3, 2), torch.bfloat16, _causal(3, 3))),
        Case("float16", _PRECISE, _q_k_v((1, 6, 2, 2, 3, 2), torch.float16)),
        Case("scores of 1000 and more", _PRECISE, _far_apart),
        Case("6 query heads, 4 key/value heads", _UNEQUAL, _q_k_v((1, 6, 4, 2, 3, 2))),
        Case("3 query heads, 2 key/value heads", _UNEQUAL, _q_k_v((2, 3, 2, 2, 3, 2))),
        Case("2 query heads, 4 key/value heads", _UNEQUAL, _q_k_v((1, 2, 4, 2, 3, 2))),
    ),
    misconceptions=(
        *(Misconception(*mistake) for mistake in _ATTENTION_MISTAKES),
        Misconception(
            "scaled_by_d",
            _Steps(scale=lambda q, k: 1 / (2 * q.shape[-1])),
            _scale_text(
                "Your scores are divided by 2 * d = 2 * {d}. In Python `d ** 1/2` is (d ** 1) / 2, as the power binds "
                "more tightly." + _SCALE_BY_D
            ),
            GROUPS,
        ),
        Misconception(
            "finite_fill",
            _Steps(weigh=_with_mask(lambda scores, keep: _softmax(_hidden(scores, keep, -100.0)))),
            "You fill hidden scores with -100. exp of that is not nothing, and where everything is hidden, the "
            "weights come out equal instead of 0. Only -infinity is below every score.",
            GROUPS,
        ),
        Misconception(
            "groups_left_over",
            _groups_left_over(also_weights=True),
            "Your results still have an axis for groups: (B, H_kv, group_size, T_q, ...). Join groups and their "
            "members to H_q heads again.",
            GROUPS,
        ),
        Misconception(
            "groups_left_over",
            _groups_left_over(also_weights=False),
            "Your output still has an axis for groups: (B, H_kv, group_size, T_q, d). Join groups and their members "
            "to H_q heads again.",
            GROUPS,
        ),
        Misconception(
            "groups_averaged",
            _groups_averaged,
            "You average over the members of a group and return H_kv heads. Each of the H_q query heads has a result "
            "of its own.",
            GROUPS,
        ),
        Misconception(
            "keys_for_values",
            lambda q, k, v, keep=None: _Steps()(q, k, k, keep),
            "Your output mixes keys. The weights come from q and k; what they mix are the values.",
            GROUPS,
        ),
        Misconception(
            "keys_and_values_swapped",
            lambda q, k, v, keep=None: _Steps()(q, v, k, keep),
            "Keys and values have changed places: weights come from q and k, and what they mix are the values.",
            GROUPS,
        ),
        Misconception("accepts_unequal_groups", _without_check, _unequal_text, GROUPS),
        Misconception("accepts_unequal_groups", _rest_left_out, _unequal_text, GROUPS),
    ),
)


# GroupedQueryAttention


@dataclass(frozen=True)
class Weights:
    """The four matrices that a case puts into a layer: the same ones for the same seed and sizes."""

    seed: int
    dtype: torch.dtype = torch.float32

    def put_into(self, layer: Any, d_model: int, n_heads: int, n_kv_heads: int) -> Any:
        """Overwrite the layer's own, with values at which scores have a variance of about 1. ValueError: other "
        "shapes."""
        layer = layer if self.dtype == torch.float32 else layer.to(self.dtype)
        rng = np.random.default_rng(self.seed)
        with torch.no_grad():
            for name, shape in _shapes(d_model, n_heads, n_kv_heads).items():
                weight, bias = getattr(layer, name).weight, getattr(getattr(layer, name), "bias", None)
                if tuple(weight.shape) != shape:
                    raise ValueError(f"{name}.weight should have the shape {shape}, and has {tuple(weight.shape)}")
                weight.copy_(_normal(rng, *shape) / math.sqrt(shape[1]))
                if bias is not None:
                    bias.fill_(0.5)
        return layer

    def __str__(self) -> str:
        return "random numbers, put into w_q, w_k, w_v and w_o"


def _shapes(d_model: int, n_heads: int, n_kv_heads: int) -> dict[str, tuple[int, int]]:
    d_head = d_model // n_heads
    own, shared = n_heads * d_head, n_kv_heads * d_head
    return {"w_q": (own, d_model), "w_k": (shared, d_model), "w_v": (shared, d_model), "w_o": (d_model, own)}


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _forward(
    implementation: Any,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    weights: Weights,
    x: Tensor,
    keep: Tensor | None = None,
) -> Any:
    """Build it, put weights in, run it."""
    layer = weights.put_into(implementation(d_model, n_heads, n_kv_heads), d_model, n_heads, n_kv_heads)
    return layer(x) if keep is None else layer(x, keep=keep)


def _attributes(implementation: Any, d_model: int, n_heads: int, n_kv_heads: int) -> dict[str, Any]:
    """What it is made of, as it was built."""
    layer = implementation(d_model, n_heads, n_kv_heads)
    found = {"n_heads": layer.n_heads, "n_kv_heads": layer.n_kv_heads, "d_head": layer.d_head}
    for name in ("w_q", "w_k", "w_v", "w_o"):
        found[f"shape of {name}.weight"] = tuple(getattr(layer, name).weight.shape)
        found[f"{name} has a bias"] = getattr(getattr(layer, name), "bias", None) is not None
    return found


def _in_chunks(
    implementation: Any,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    weights: Weights,
    x: Tensor,
    chunks: list[int],
    keep: Tensor | None = None,
) -> Any:
    """Run it on so many tokens at a time, with one cache; `keep` (T, T) is handed over row by row."""
    layer = weights.put_into(implementation(d_model, n_heads, n_kv_heads), d_model, n_heads, n_kv_heads)
    cache = KVCache(len(x), n_kv_heads, x.shape[1], d_model // n_heads, dtype=x.dtype)
    found: dict[str, Any] = {}
    n_total = 0
    for number, part in enumerate(x.split(chunks, dim=1), start=1):
        n_before, n_total = n_total, n_total + part.shape[1]
        masks = {} if keep is None else {"keep": keep[n_before:n_total, :n_total]}
        result = layer(part, cache=cache, **masks)
        if not _is_pair(result):
            return result
        found[f"output of chunk {number}"], found[f"weights of chunk {number}"] = result
        found[f"tokens in the cache after chunk {number}"] = len(cache)
    return found


def _after_others(
    implementation: Any,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    weights: Weights,
    old_keys: Tensor,
    old_values: Tensor,
    x: Tensor,
) -> Any:
    """Run it on new tokens, with a cache in which there are other ones already."""
    layer = weights.put_into(implementation(d_model, n_heads, n_kv_heads), d_model, n_heads, n_kv_heads)
    n_total = old_keys.shape[2] + x.shape[1]
    cache = KVCache(len(x), n_kv_heads, n_total, d_model // n_heads, dtype=x.dtype)
    cache.append(old_keys, old_values)
    return layer(x, cache=cache)


def _two_conversations(
    implementation: Any, d_model: int, n_heads: int, n_kv_heads: int, weights: Weights, x: Tensor, other: Tensor
) -> Any:
    """Two caches used in turn with one layer, then the layer without a cache, then a cache after its reset."""
    layer = weights.put_into(implementation(d_model, n_heads, n_kv_heads), d_model, n_heads, n_kv_heads)
    ours, theirs = (KVCache(len(tokens), n_kv_heads, tokens.shape[1], d_model // n_heads) for tokens in (x, other))
    found = {}
    for name, tokens, cache in (
        ("output of conversation 1", x[:, :2], ours),
        ("output of conversation 2", other[:, :1], theirs),
        ("output of conversation 1, continued", x[:, 2:], ours),
        ("output of conversation 2, continued", other[:, 1:], theirs),
        ("output without a cache", x, None),
        ("output of conversation 1, begun anew", x[:, 1:], ours),
    ):
        if "anew" in name:
            ours.reset()
        result = layer(tokens) if cache is None else layer(tokens, cache=cache)
        if not _is_pair(result):
            return result
        found[name] = result[0]
    return found


def _build_and_run(implementation: Any, d_model: int, n_heads: int, n_kv_heads: int) -> Any:
    """Build it and run it on two tokens, as some mistakes come out only then."""
    layer = implementation(d_model, n_heads, n_kv_heads)
    layer(torch.ones(1, 2, d_model))
    return {"n_heads": layer.n_heads, "n_kv_heads": layer.n_kv_heads}


def _build_and_run_or_refuse(implementation: Any, d_model: int, n_heads: int, n_kv_heads: int) -> Any:
    """The same, where any error will do: Python's own for a count of 0 says enough."""
    try:
        return _build_and_run(implementation, d_model, n_heads, n_kv_heads)
    except NotImplementedError:
        raise
    except Exception as error:
        raise ValueError(str(error)) from None


class _Blank(nn.Linear):
    """A projection whose weights nobody draws, as every case overwrites them."""

    def reset_parameters(self) -> None:
        pass


class _Quick(GroupedQueryAttention):
    """The layer that mistakes are made of: many of them run in every check."""

    linear = _Blank
    attend = staticmethod(_Steps())

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def combine(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)


def _layer_with(**methods: Any) -> type:
    """The layer with some steps replaced, under the name that errors of a learner's own class show."""
    return type("GroupedQueryAttention", (_Quick,), methods)


def _with_kv_heads(count: Callable[[int, int], int]) -> type:
    """A layer whose w_k and w_v make `count(n_heads, n_kv_heads)` heads."""

    def __init__(self: Any, d_model: int, n_heads: int, n_kv_heads: int) -> None:
        _Quick.__init__(self, d_model, n_heads, n_kv_heads)
        width = count(n_heads, n_kv_heads) * self.d_head
        self.w_k, self.w_v = (_Blank(d_model, width, bias=False) for _ in range(2))

    return _layer_with(__init__=__init__)


def _d_head_of_groups(self: Any, d_model: int, n_heads: int, n_kv_heads: int) -> None:
    """The size of a head taken from the number of key/value heads."""
    _Quick.__init__(self, d_model, n_heads, n_kv_heads)
    self.d_head = d_model // n_kv_heads
    self.w_k, self.w_v = (_Blank(d_model, n_kv_heads * self.d_head, bias=False) for _ in range(2))


def _with_biases(names: tuple[str, ...]) -> type:
    def __init__(self: Any, d_model: int, n_heads: int, n_kv_heads: int) -> None:
        _Quick.__init__(self, d_model, n_heads, n_kv_heads)
        for name in names:
            setattr(self, name, _Blank(d_model, getattr(self, name).out_features))

    return _layer_with(__init__=__init__)


def _repeated_before_the_cache(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    group_size = self.n_heads // self.n_kv_heads
    return cache.append(_neighbours(k, group_size), _neighbours(v, group_size))


def _tokens_before_heads(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    k, v = cache.append(k.transpose(1, 2), v.transpose(1, 2))
    return k.transpose(1, 2), v.transpose(1, 2)


def _result_ignored(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    cache.append(k, v)
    return k, v


def _appended_twice(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    return cache.append(k, v)[0], cache.append(k, v)[1]


def _keys_twice(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    return cache.append(k, k)


def _exchanged_in_the_cache(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    return cache.append(v, k)


def _old_ones_only(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    """Appended after attention: the new tokens see only those before them."""
    n_before = len(cache)
    return tuple(x[:, :, :n_before] for x in cache.append(k, v))


def _kept_in_the_layer(self: Any, cache: Any, k: Tensor, v: Tensor) -> Any:
    """All conversations in one memory, that of the layer."""
    old = getattr(self, "_memory", None)
    if old is not None:
        k, v = (torch.cat([before, new], dim=2) for before, new in zip(old, (k, v), strict=True))
    self._memory = (k, v)
    return k, v


def _from_top_left(self: Any, n_new: int, n_total: int, keep: Tensor | None) -> Tensor:
    causal = torch.ones(n_new, n_total, dtype=torch.bool).tril()
    return causal if keep is None else causal & keep


def _square(self: Any, n_new: int, n_total: int, keep: Tensor | None) -> Tensor:
    causal = torch.ones(n_new, n_new, dtype=torch.bool).tril()
    return causal if keep is None else causal & keep


def _not_itself(self: Any, n_new: int, n_total: int, keep: Tensor | None) -> Tensor:
    causal = torch.ones(n_new, n_total, dtype=torch.bool).tril(n_total - n_new - 1)
    return causal if keep is None else causal & keep


def _one_ahead(self: Any, n_new: int, n_total: int, keep: Tensor | None) -> Tensor:
    causal = torch.ones(n_new, n_total, dtype=torch.bool).tril(n_total - n_new + 1)
    return causal if keep is None else causal & keep


def _forward_causal(self: Any, x: Tensor, keep: Tensor | None = None, cache: Any = None) -> Any:
    """Causal with and without a cache."""
    if cache is None:
        causal = cached_causal_mask(x.shape[1], x.shape[1])
        keep = causal if keep is None else causal & keep
    return GroupedQueryAttention.forward(self, x, keep, cache)


def _forward_without_cache(self: Any, x: Tensor, keep: Tensor | None = None, cache: Any = None) -> Any:
    """The cache is taken and never used."""
    if cache is not None:
        causal = cached_causal_mask(x.shape[1], x.shape[1])
        keep = causal if keep is None else causal & keep
    return GroupedQueryAttention.forward(self, x, keep)


def _forward_without_keep(self: Any, x: Tensor, keep: Tensor | None = None, cache: Any = None) -> Any:
    return GroupedQueryAttention.forward(self, x, None, cache)


def _merged_in_memory_order(self: Any, heads: Tensor) -> Tensor:
    return heads.reshape(len(heads), heads.shape[2], -1)


def _split_in_memory_order(self: Any, x: Tensor) -> Tensor:
    return x.reshape(len(x), -1, x.shape[1], self.d_head)


def _split_alternating(self: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (self.d_head, -1)).permute(0, 3, 1, 2)


def _check_only(*, groups: bool, d_model: bool, positive: bool) -> Callable[[int, int, int], None]:
    def check(width: int, n_heads: int, n_kv_heads: int) -> None:
        if positive and min(width, n_heads, n_kv_heads) < 1:
            raise ValueError
        if d_model and width % n_heads:
            raise ValueError
        if groups and n_heads % n_kv_heads:
            raise ValueError

    return check


def _full_size_text(values: Mapping[str, Any]) -> str:
    d_head = values["d_model"] // values["n_heads"]
    return (
        f"Your w_k and w_v make {values['n_heads']} heads, one for each query head. They make {values['n_kv_heads']}: "
        f"their width is n_kv_heads * d_head = {values['n_kv_heads']} * {d_head} = {values['n_kv_heads'] * d_head}. "
        "That is where parameters and cache are saved."
    )


def _group_size_width_text(values: Mapping[str, Any]) -> str:
    n_heads, n_kv_heads = values["n_heads"], values["n_kv_heads"]
    return (
        f"Your w_k and w_v make {n_heads // n_kv_heads} heads, as many as a group has members. They make n_kv_heads = "
        f"{n_kv_heads}, one for each group."
    )


def _sizes_text(words: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda values: words.format(**{name: values[name] for name in ("d_model", "n_heads", "n_kv_heads")})


_NO_CAUSALITY = (
    "With a cache, your new tokens see each other's future: a chunk of several tokens needs the mask that is aligned "
    "to the end, `cached_causal_mask(n_new, n_total)`."
)

_LAYER_MISTAKES: tuple[tuple[str, type, Any, str], ...] = (
    ("kv_heads_of_full_size", _with_kv_heads(lambda n_heads, n_kv_heads: n_heads), _full_size_text, LAYER),
    (
        "group_size_swapped",
        _with_kv_heads(lambda n_heads, n_kv_heads: n_heads // n_kv_heads),
        _group_size_width_text,
        LAYER,
    ),
    (
        "one_kv_head_always",
        _with_kv_heads(lambda n_heads, n_kv_heads: 1),
        _sizes_text(
            "Your w_k and w_v make a single head. They make n_kv_heads = {n_kv_heads}; one for all is only the "
            "special case MQA."
        ),
        LAYER,
    ),
    (
        "d_head_of_groups",
        _layer_with(__init__=_d_head_of_groups),
        _sizes_text(
            "Your d_head is d_model / n_kv_heads. A head is as wide as ever, d_model / n_heads = {d_model} / "
            "{n_heads}: there are fewer heads of keys, not wider ones."
        ),
        LAYER,
    ),
    *(
        (
            "with_biases",
            _with_biases(names),
            "Your projections have biases. `nn.Linear` has one unless it is told `bias=False`; none is asked for here.",
            LAYER,
        )
        for names in (("w_q", "w_k", "w_v", "w_o"), ("w_o",), ("w_q", "w_k", "w_v"))
    ),
    (
        "cache_gets_repeated_keys",
        _layer_with(
            remember=_repeated_before_the_cache,
            attend=staticmethod(_Steps(share=lambda x, g: x, check=lambda *_: None)),
        ),
        lambda values: (
            f"You repeat keys and values before they go into the cache, {values['n_heads']} heads of them. That undoes "
            f"the saving: append the {values['n_kv_heads']} heads as they are, and share what `append` returns."
        ),
        LAYER,
    ),
    (
        "cache_gets_tokens_before_heads",
        _layer_with(remember=_tokens_before_heads),
        "The cache takes (B, H_kv, n, d_head), and you append (B, n, H_kv, d_head). Swap the axes of tokens and heads "
        "first.",
        LAYER,
    ),
    (
        "cache_result_ignored",
        _layer_with(remember=_result_ignored, visible=_square),
        "Keys and values are appended, but what `append` returns is thrown away: the new tokens see only each other. "
        "It returns all keys and values so far; attend to those.",
        LAYER,
    ),
    (
        "cache_result_ignored",
        _layer_with(remember=_result_ignored),
        "Keys and values are appended, but what `append` returns is thrown away: the new tokens see only each other. "
        "It returns all keys and values so far; attend to those.",
        LAYER,
    ),
    (
        "cache_not_used",
        _layer_with(forward=_forward_without_cache),
        "The cache stays empty: the new keys and values are never appended to it.",
        LAYER,
    ),
    (
        "cache_not_used",
        _layer_with(forward=lambda self, x, keep=None, cache=None: GroupedQueryAttention.forward(self, x, keep)),
        "The cache stays empty: the new keys and values are never appended to it.",
        LAYER,
    ),
    (
        "appended_twice",
        _layer_with(remember=_appended_twice),
        "You append the same tokens twice. One call of `append` returns both, all keys and all values.",
        LAYER,
    ),
    (
        "keys_cached_as_values",
        _layer_with(remember=_keys_twice),
        "You append keys as values: `append` takes the keys first and the values second.",
        LAYER,
    ),
    (
        "cache_swaps_keys_and_values",
        _layer_with(remember=_exchanged_in_the_cache),
        "Keys and values have changed places in the cache: `append` takes the keys first and the values second, and "
        "returns them so.",
        LAYER,
    ),
    (
        "appended_after_attention",
        _layer_with(remember=_old_ones_only, visible=lambda self, n_new, n_total, keep: None),
        "Your new tokens see those that were in the cache before, and not themselves. Append first, then attend to "
        "all.",
        LAYER,
    ),
    (
        "memory_in_the_layer",
        _layer_with(remember=_kept_in_the_layer),
        "Your layer keeps keys and values itself, so that two conversations get mixed up. What is remembered belongs "
        "in the cache that is handed in.",
        LAYER,
    ),
    (
        "mask_from_top_left",
        _layer_with(visible=_from_top_left),
        "Your causal mask begins at the top left: the first new token sees only the oldest one. The new tokens are "
        "the last ones, so the mask is aligned to the end: `cached_causal_mask(n_new, n_total)`.",
        LAYER,
    ),
    *(
        (
            "square_mask_on_cached_keys",
            _layer_with(visible=_square, attend=staticmethod(_Steps(weigh=weigh))),
            "Your causal mask is square, as large as the new tokens. With a cache there are more keys than that: "
            "`cached_causal_mask(n_new, n_total)` is as wide as all of them.",
            LAYER,
        )
        for weigh in (
            _weigh,
            _with_mask(lambda scores, keep: torch.nan_to_num(_softmax(torch.where(keep, scores, -math.inf)))),
        )
    ),
    ("not_causal_in_chunk", _layer_with(visible=lambda self, n_new, n_total, keep: keep), _NO_CAUSALITY, LAYER),
    (
        "token_does_not_see_itself",
        _layer_with(visible=_not_itself),
        "With a cache, your tokens see those before them, and not themselves. A token may attend to itself and the "
        "past.",
        LAYER,
    ),
    (
        "sees_one_ahead",
        _layer_with(visible=_one_ahead),
        "With a cache, your tokens see one token too many, the next one. A token may attend to itself and the past.",
        LAYER,
    ),
    (
        "keep_ignored_with_cache",
        _layer_with(visible=lambda self, n_new, n_total, keep: cached_causal_mask(n_new, n_total)),
        "With a cache, `keep` is ignored. It applies as well: a key must be allowed by both masks.",
        LAYER,
    ),
    (
        "keep_or_causal",
        _layer_with(
            visible=lambda self, n_new, n_total, keep: (
                cached_causal_mask(n_new, n_total) if keep is None else cached_causal_mask(n_new, n_total) | keep
            )
        ),
        "You join the masks with `|`: a key may then be seen if either allows it. It must be allowed by both: `&`.",
        LAYER,
    ),
    (
        "keep_replaces_causal",
        _layer_with(
            visible=lambda self, n_new, n_total, keep: cached_causal_mask(n_new, n_total) if keep is None else keep
        ),
        "With a cache, `keep` takes the place of the causal mask. Both apply: a key must be allowed by each.",
        LAYER,
    ),
    (
        "causal_always",
        _layer_with(forward=_forward_causal),
        "Without a cache your layer is causal, though no mask says so. It is causal only with a cache; else `keep` "
        "decides.",
        LAYER,
    ),
    (
        "ignores_mask",
        _layer_with(forward=_forward_without_keep),
        "`keep` changes nothing in your layer. Is it handed on to the attention?",
        LAYER,
    ),
    (
        "values_from_w_k",
        _layer_with(project=lambda self, x: (self.w_q(x), self.w_k(x), self.w_k(x))),
        "Your values are made by w_k. They have a projection of their own, w_v.",
        LAYER,
    ),
    (
        "keys_and_values_swapped",
        _layer_with(project=lambda self, x: (self.w_q(x), self.w_v(x), self.w_k(x))),
        "Keys and values have changed places: keys come from w_k, values from w_v. Look at the order of the arguments.",
        LAYER,
    ),
    (
        "split_without_transpose",
        _layer_with(split=_split_in_memory_order),
        "Your heads equal those of a reshape straight to (B, heads, T, d_head), without a transpose: they mix numbers "
        "of different tokens. Cut the last axis into (heads, d_head) first, then swap the axes of tokens and heads.",
        LAYER,
    ),
    (
        "combine_without_transpose",
        _layer_with(combine=_merged_in_memory_order),
        "Your output equals a reshape straight from (B, n_heads, T, d_head), without a transpose: rows mix numbers of "
        "different tokens. Swap the axes of heads and tokens first, then join the last two.",
        LAYER,
    ),
    (
        "split_without_transpose",
        _layer_with(split=_split_in_memory_order, combine=_merged_in_memory_order),
        "You reshape without a transpose both when splitting and when combining: in between, the heads mix numbers of "
        "different tokens. Swap the axes of tokens and heads both times.",
        LAYER,
    ),
    (
        "heads_interleaved",
        _layer_with(split=_split_alternating),
        "Your heads take every n-th number instead of blocks of neighbours: cut the last axis into (heads, d_head), "
        "in this order, not into (d_head, heads).",
        LAYER,
    ),
    (
        "w_o_missing",
        _layer_with(write=lambda self, joined: joined),
        "Your output equals the heads side by side, without w_o. One step is missing, the mixing desk of chapter 4.",
        LAYER,
    ),
    (
        "w_o_transposed",
        _layer_with(write=lambda self, joined: joined @ self.w_o.weight),
        "Your output is multiplied by `w_o.weight`, which is W_O transposed. Call the layer: `w_o(joined)`.",
        LAYER,
    ),
    (
        "residual_added",
        _layer_with(give=lambda self, x, output, weights: (x + output, weights)),
        "You add the input to the output. That belongs around attention, in a whole block, and is not asked for here.",
        LAYER,
    ),
    (
        "returned_in_wrong_order",
        _layer_with(give=lambda self, x, output, weights: (weights, output)),
        "You return (weights, output). Return the output first.",
        LAYER,
    ),
    (
        "weights_missing",
        _layer_with(give=lambda self, x, output, weights: output),
        "You return the output alone. The pair (output, weights) is asked for.",
        LAYER,
    ),
    (
        "weights_averaged",
        _layer_with(give=lambda self, x, output, weights: (output, weights.mean(1))),
        "You average the weights over the heads. Return them for each query head, (B, n_heads, T, T).",
        LAYER,
    ),
    (
        "accepts_unequal_groups",
        _layer_with(
            check=staticmethod(_check_only(groups=False, d_model=True, positive=True)),
            attend=staticmethod(_without_check),
        ),
        _unequal_text,
        LAYER,
    ),
    (
        "accepts_unequal_heads",
        _layer_with(check=staticmethod(_check_only(groups=True, d_model=False, positive=True))),
        _sizes_text(
            "{n_heads} heads are let through for d_model = {d_model}, though they cannot share it evenly. Raise a "
            "ValueError when the layer is built."
        ),
        LAYER,
    ),
)


#: Mistakes of `grouped_attention` that are named for the layer as well, which need not be built on it.
_INHERITED = (
    "heads_take_turns",
    "repeated_along_tokens",
    "not_repeated",
    "group_size_swapped",
    "one_head_for_all",
    "heads_out_of_order",
    "no_scale",
    "scaled_by_d",
    "scaled_by_d_model",
    "over_queries",
    "softmax_over_heads",
    "inverted_mask",
    "mask_after_softmax",
    "mask_added",
    "fully_masked_nan",
    "fully_masked_uniform",
)


def _layer_case(
    title: str,
    family: str,
    sizes: tuple[int, int, int],
    batch: tuple[int, int],
    *,
    call: Callable[..., Any] = _forward,
    dtype: torch.dtype = torch.float32,
    keep: Callable[[np.random.Generator], Tensor] | None = None,
    **more: Any,
) -> Case:
    """`sizes` are d_model, n_heads and n_kv_heads, `batch` is B and T."""

    def arguments(rng: np.random.Generator) -> Arguments:
        named = _sizes(sizes) | {"weights": Weights(int(rng.integers(2**31)), dtype)}
        named["x"] = _normal(rng, *batch, sizes[0], dtype=dtype)
        return given(**named, **more) if keep is None else given(**named, **more, keep=keep(rng))

    return Case(title, family, arguments, call)


def _sizes(sizes: tuple[int, int, int]) -> dict[str, Any]:
    return dict(zip(("d_model", "n_heads", "n_kv_heads"), sizes, strict=True))


def _with_old_tokens(sizes: tuple[int, int, int], batch: int, n_old: int, n_new: int) -> Callable[..., Arguments]:
    d_model, n_heads, n_kv_heads = sizes

    def arguments(rng: np.random.Generator) -> Arguments:
        named = _sizes(sizes) | {"weights": Weights(int(rng.integers(2**31)))}
        for name in ("old_keys", "old_values"):
            named[name] = _normal(rng, batch, n_kv_heads, n_old, d_model // n_heads)
        return given(**named, x=_normal(rng, batch, n_new, d_model))

    return arguments


def _with_two_inputs(sizes: tuple[int, int, int], n_tokens: int, n_others: int) -> Callable[..., Arguments]:
    def arguments(rng: np.random.Generator) -> Arguments:
        named = _sizes(sizes) | {"weights": Weights(int(rng.integers(2**31)))}
        return given(**named, x=_normal(rng, 2, n_tokens, sizes[0]), other=_normal(rng, 3, n_others, sizes[0]))

    return arguments


def _impossible_layer(title: str, *sizes: int, lenient: bool = False) -> Case:
    call = _build_and_run_or_refuse if lenient else _build_and_run
    return Case(title, _IMPOSSIBLE, lambda rng: given(**_sizes(sizes)), call)


_BUILT = "projections and attributes"
_CACHED = "with a cache"
_IMPOSSIBLE = "sizes that cannot be"

_grouped_query_attention = Exercise(
    id="GroupedQueryAttention",
    points=5,
    section=LAYER,
    reference=GroupedQueryAttention,
    returns=("output", "weights"),
    forbidden=_LIBRARY_CALLS,
    exact_zeros=True,
    families={_SHARED: 0.3, _BUILT: 0.1, _ENDS: 0.1, _MASKED: 0.15, _CACHED: 0.25, _IMPOSSIBLE: 0.1},
    cases=(
        _layer_case("two tokens, 4 heads of one number share 2", _SHARED, (4, 4, 2), (1, 2)),
        _layer_case("a batch of 2, 5 tokens, 6 heads share 2", _SHARED, (12, 6, 2), (2, 5)),
        _layer_case("a batch of 3, 4 tokens, 6 heads of 4 share 3", _SHARED, (24, 6, 3), (3, 4)),
        _layer_case("as many tokens as heads and numbers in a head", _SHARED, (16, 4, 2), (2, 4)),
        Case(
            "d_model 24, 6 heads, 3 for keys and values", _BUILT, lambda rng: given(**_sizes((24, 6, 3))), _attributes
        ),
        _layer_case("MHA: 3 heads of each kind", _ENDS, (12, 3, 3), (2, 4)),
        _layer_case("MQA: 4 heads share one", _ENDS, (12, 4, 1), (2, 3)),
        _layer_case("one token", _ENDS, (8, 4, 2), (2, 1)),
        _layer_case("a causal mask", _MASKED, (12, 6, 2), (1, 4), keep=_causal(4, 4)),
        _layer_case(
            "padding, as many sequences as key/value heads",
            _MASKED,
            (12, 4, 2),
            (2, 5),
            keep=_padding(3, 5, n_tokens=5),
        ),
        _layer_case("a mask for each head", _MASKED, (12, 6, 3), (2, 3), keep=_some_kept(1, 6, 3, 3)),
        _layer_case("rows 0 and 2 are hidden", _MASKED, (8, 4, 2), (2, 3), keep=_with_empty_rows(3, 3)),
        _layer_case("three tokens, one at a time", _CACHED, (8, 4, 2), (2, 3), call=_in_chunks, chunks=[1, 1, 1]),
        _layer_case("a prompt of 4, then 1, then 2", _CACHED, (12, 6, 2), (2, 7), call=_in_chunks, chunks=[4, 1, 2]),
        _layer_case("MQA, in chunks of 1 and 3", _CACHED, (6, 3, 1), (3, 4), call=_in_chunks, chunks=[1, 3]),
        _layer_case(
            "float64, in chunks of 2 and 1",
            _CACHED,
            (8, 4, 2),
            (2, 3),
            call=_in_chunks,
            chunks=[2, 1],
            dtype=torch.float64,
        ),
        _layer_case(
            "a mask that hides token 1 as well, in chunks of 3 and 2",
            _CACHED,
            (12, 6, 3),
            (2, 5),
            call=_in_chunks,
            chunks=[3, 2],
            keep=_without_token_1(5),
        ),
        Case("2 new tokens after 3 that others cached", _CACHED, _with_old_tokens((12, 6, 2), 2, 3, 2), _after_others),
        Case("two conversations in turn", _CACHED, _with_two_inputs((8, 4, 2), 4, 3), _two_conversations),
        _impossible_layer("4 heads, 3 of keys and values", 12, 4, 3),
        _impossible_layer("2 heads, 4 of keys and values", 12, 2, 4),
        _impossible_layer("d_model 10, 4 heads", 10, 4, 2),
        _impossible_layer("no heads of keys and values", 12, 4, 0, lenient=True),
        _impossible_layer("-2 heads of keys and values", 12, 4, -2, lenient=True),
    ),
    misconceptions=(
        *(Misconception(*mistake) for mistake in _LAYER_MISTAKES),
        *(
            Misconception(name, _layer_with(attend=staticmethod(attend)), explanation, section)
            for name, attend, explanation, section in _ATTENTION_MISTAKES
            if name in _INHERITED
        ),
    ),
)


# What sharing saves


def _width(values: Mapping[str, Any]) -> dict[str, Any]:
    d_head = values["d_model"] // values["n_heads"]
    return {
        **{name: values[name] for name in ("d_model", "n_heads", "n_kv_heads")},
        "d_head": d_head,
        "width": values["n_kv_heads"] * d_head,
        "group_size": values["n_heads"] // values["n_kv_heads"],
    }


def _counted(words: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda values: words.format(**_width(values))


_ENTRIES = "the entries of the four matrices"

_gqa_parameter_count = Exercise(
    id="gqa_parameter_count",
    points=2,
    section=SAVES,
    reference=gqa_parameter_count,
    families={_ENTRIES: 0.8, "MHA and MQA": 0.2},
    cases=(
        Case("d_model 12, 6 heads share 2", _ENTRIES, lambda rng: given(12, 6, 2)),
        Case("d_model 24, 6 heads share 3", _ENTRIES, lambda rng: given(24, 6, 3)),
        Case("Llama-3-8B: d_model 4096, 32 heads share 8", _ENTRIES, lambda rng: given(4096, 32, 8)),
        Case("SmolLM2-135M: d_model 576, 9 heads share 3", _ENTRIES, lambda rng: given(576, 9, 3)),
        Case("MHA: d_model 512, 8 heads of each kind", "MHA and MQA", lambda rng: given(512, 8, 8)),
        Case("MQA: d_model 512, 8 heads share one", "MHA and MQA", lambda rng: given(512, 8, 1)),
    ),
    misconceptions=(
        Misconception(
            "counted_as_mha",
            lambda d_model, n_heads, n_kv_heads: 4 * d_model**2,
            _counted(
                "You count 4 d_model^2, as without sharing. W_K and W_V are narrower: n_kv_heads * d_head = "
                "{n_kv_heads} * {d_head} = {width} columns each."
            ),
            SAVES,
        ),
        Misconception(
            "group_size_swapped",
            lambda d_model, n_heads, n_kv_heads: (
                2 * d_model**2 + 2 * d_model * (n_heads // n_kv_heads) * (d_model // n_heads)
            ),
            _counted(
                "You count {group_size} heads in W_K and W_V, the size of a group. There are n_kv_heads = {n_kv_heads}."
            ),
            SAVES,
        ),
        Misconception(
            "all_matrices_shrunk",
            lambda d_model, n_heads, n_kv_heads: 4 * d_model * n_kv_heads * (d_model // n_heads),
            "You make all four matrices narrower. Every query head keeps its own queries, and W_O mixes all n_heads "
            "of them: W_Q and W_O stay as they were.",
            SAVES,
        ),
        Misconception(
            "all_matrices_shrunk",
            lambda d_model, n_heads, n_kv_heads: d_model**2 + 3 * d_model * n_kv_heads * (d_model // n_heads),
            "You make three matrices narrower. Only W_K and W_V are; W_Q and W_O both belong to all n_heads query "
            "heads.",
            SAVES,
        ),
        Misconception(
            "only_keys_shared",
            lambda d_model, n_heads, n_kv_heads: 3 * d_model**2 + d_model * n_kv_heads * (d_model // n_heads),
            "You make only one of W_K and W_V narrower. Keys and values are both shared.",
            SAVES,
        ),
        Misconception(
            "w_o_forgotten",
            lambda d_model, n_heads, n_kv_heads: d_model**2 + 2 * d_model * n_kv_heads * (d_model // n_heads),
            "You count W_Q, W_K and W_V. W_O is missing: d_model x d_model, like W_Q.",
            SAVES,
        ),
        Misconception(
            "one_of_k_and_v",
            lambda d_model, n_heads, n_kv_heads: 2 * d_model**2 + d_model * n_kv_heads * (d_model // n_heads),
            "You count one of W_K and W_V. There are both.",
            SAVES,
        ),
        Misconception(
            "one_kv_head_counted",
            lambda d_model, n_heads, n_kv_heads: 2 * d_model**2 + 2 * d_model * (d_model // n_heads),
            _counted(
                "You count a single head in W_K and W_V. There are n_kv_heads = {n_kv_heads}, of {d_head} columns each."
            ),
            SAVES,
        ),
        Misconception(
            "with_biases",
            lambda d_model, n_heads, n_kv_heads: (
                2 * d_model**2 + 2 * d_model + 2 * (d_model + 1) * n_kv_heads * (d_model // n_heads)
            ),
            "You count biases too. The four matrices have none.",
            SAVES,
        ),
        Misconception(
            "cache_counted",
            lambda d_model, n_heads, n_kv_heads: 2 * n_kv_heads * (d_model // n_heads),
            "That is what a token leaves in the cache. Asked for are the parameters: the entries of W_Q, W_K, W_V and "
            "W_O.",
            SAVES,
        ),
    ),
)


def _saved(words: str) -> Callable[[Mapping[str, Any]], str]:
    def text(values: Mapping[str, Any]) -> str:
        n_heads, n_kv_heads = values["n_heads"], values["n_kv_heads"]
        return words.format(n_heads=n_heads, n_kv_heads=n_kv_heads, saving=n_heads / n_kv_heads)

    return text


_FACTOR = "how many times smaller the cache is"

_kv_saving = Exercise(
    id="kv_saving",
    points=1,
    section=SAVES,
    reference=kv_saving,
    families={_FACTOR: 1.0},
    cases=(
        Case("32 heads share 8", _FACTOR, lambda rng: given(32, 8)),
        Case("64 heads share 8", _FACTOR, lambda rng: given(64, 8)),
        Case("9 heads share 3", _FACTOR, lambda rng: given(9, 3)),
        Case("MQA: 32 heads share one", _FACTOR, lambda rng: given(32, 1)),
        Case("MHA: 8 heads of each kind", _FACTOR, lambda rng: given(8, 8)),
    ),
    misconceptions=(
        Misconception(
            "upside_down",
            lambda n_heads, n_kv_heads: n_kv_heads / n_heads,
            _saved(
                "That is the share which is left: {n_kv_heads} / {n_heads}. Asked for is how many times smaller the "
                "cache is: {saving:g} here."
            ),
            SAVES,
        ),
        *(
            Misconception(
                "share_saved",
                implementation,
                _saved(
                    "That is the share which is saved, 1 - {n_kv_heads} / {n_heads}. Asked for is how many times "
                    "smaller the cache is: {saving:g} here."
                ),
                SAVES,
            )
            for implementation in (
                lambda n_heads, n_kv_heads: 1 - n_kv_heads / n_heads,
                lambda n_heads, n_kv_heads: 100 * (1 - n_kv_heads / n_heads),
            )
        ),
        *(
            Misconception(
                "tensors_saved",
                implementation,
                _saved(
                    "That is how many heads or tensors fewer there are. Asked for is how many times smaller the cache "
                    "is: a ratio."
                ),
                SAVES,
            )
            for implementation in (
                lambda n_heads, n_kv_heads: n_heads - n_kv_heads,
                lambda n_heads, n_kv_heads: 2 * (n_heads - n_kv_heads),
            )
        ),
        *(
            Misconception(
                "kinds_counted_once",
                implementation,
                _saved(
                    "Keys and values are both cached, with sharing and without: the factor 2 is in both numbers and "
                    "cancels, {n_heads} / {n_kv_heads}."
                ),
                SAVES,
            )
            for implementation in (
                lambda n_heads, n_kv_heads: 2 * n_heads / n_kv_heads,
                lambda n_heads, n_kv_heads: n_heads / (2 * n_kv_heads),
            )
        ),
        Misconception(
            "eight_always",
            lambda n_heads, n_kv_heads: 8.0,
            _saved("The factor is not always 8: it depends on both numbers. Here {n_heads} heads share {n_kv_heads}."),
            SAVES,
        ),
        Misconception(
            "queries_counted",
            lambda n_heads, n_kv_heads: 3 * n_heads / (n_heads + 2 * n_kv_heads),
            "You count queries too. They are never cached: nobody asks with an old query again.",
            SAVES,
        ),
    ),
)


# mha_to_gqa


def _converted(mha_to_gqa: Callable[..., Any], mha: Layer, n_kv_heads: int) -> Any:
    """Sizes and weights of the new layer."""
    layer = _convert(mha_to_gqa, mha.build(), n_kv_heads)
    if not _is_layer(layer):
        return layer
    sizes = {"n_heads": layer.n_heads, "n_kv_heads": layer.n_kv_heads, "d_head": layer.d_head}
    return sizes | {f"{name}.weight": getattr(layer, name).weight for name in ("w_q", "w_o", "w_k", "w_v")}


def _convert(mha_to_gqa: Callable[..., Any], mha: nn.Module, n_kv_heads: int) -> Any:
    """What it returns; weights that stay as they were drawn are the same in every check."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mha_to_gqa(mha, n_kv_heads)


def _is_layer(value: Any) -> bool:
    return isinstance(value, nn.Module)


def _converted_and_run(
    mha_to_gqa: Callable[..., Any], mha: Layer, n_kv_heads: int, x: Tensor, keep: Tensor | None = None
) -> Any:
    """What the new layer gives."""
    layer = _convert(mha_to_gqa, mha.build(), n_kv_heads)
    if not _is_layer(layer):
        return layer
    result = layer(x) if keep is None else layer(x, keep=keep)
    return {"output": result[0], "weights": result[1]} if _is_pair(result) else result


def _original_after(mha_to_gqa: Callable[..., Any], mha: Layer, n_kv_heads: int, x: Tensor) -> Any:
    """What the original gives afterwards, where gradients of the new layer arrive, and what overwriting it changes."""
    old = mha.build()
    new = _convert(mha_to_gqa, old, n_kv_heads)
    if not _is_layer(new):
        return new
    found = {"output of the original afterwards": old(x)[0]}
    found["w_q, w_k, w_v and w_o of the new layer can be trained"] = all(
        getattr(new, name).weight.requires_grad and getattr(new, name).weight.is_leaf
        for name in ("w_q", "w_k", "w_v", "w_o")
    )
    with torch.no_grad():
        for name in ("w_q", "w_k", "w_v", "w_o"):
            getattr(new, name).weight.fill_(0.5)
    return found | {"output of the original once the new layer is changed": old(x)[0]}


def _converted_or_refused(mha_to_gqa: Callable[..., Any], mha: Layer, n_kv_heads: int, x: Tensor) -> Any:
    """Any error will do, when it is converted or when it first runs."""
    try:
        return _converted_and_run(mha_to_gqa, mha, n_kv_heads, x)
    except NotImplementedError:
        raise
    except Exception as error:
        raise ValueError(str(error)) from None


def _mha_case(
    title: str,
    family: str,
    sizes: tuple[int, int],
    n_kv_heads: int,
    call: Callable[..., Any] = _converted,
    n_tokens: int | None = None,
    keep: Callable[[np.random.Generator], Tensor] | None = None,
) -> Case:
    """`sizes` are d_model and n_heads."""
    d_model, n_heads = sizes

    def arguments(rng: np.random.Generator) -> Arguments:
        named: dict[str, Any] = {"mha": Layer(d_model, n_heads, d_model // n_heads, seed=int(rng.integers(2**31)))}
        named["n_kv_heads"] = n_kv_heads
        if n_tokens is not None:
            named["x"] = _normal(rng, 2, n_tokens, d_model)
        return given(**named) if keep is None else given(**named, keep=keep(rng))

    return Case(title, family, arguments, call)


#: (mha, n_kv_heads, weight (n_heads * d_head, d_model)) -> (n_kv_heads * d_head, d_model)
Pool = Callable[[nn.Module, int, Tensor], Tensor]


def _heads_of(mha: nn.Module, weight: Tensor) -> Tensor:
    """(n_heads, d_head, d_model)"""
    return weight.detach().unflatten(0, (mha.n_heads, mha.d_head))


def _pooling(pool: Callable[[Tensor], Tensor]) -> Pool:
    """`pool` makes (n_kv_heads, d_head, d_model) of (n_kv_heads, group_size, d_head, d_model)."""
    return lambda mha, n_kv_heads, weight: pool(_heads_of(mha, weight).unflatten(0, (n_kv_heads, -1))).flatten(0, 1)


_mean_pool = _pooling(lambda groups: groups.mean(1))


def _into(
    mha: nn.Module,
    n_kv_heads: int,
    keys: Pool | None = _mean_pool,
    values: Pool | None = _mean_pool,
    copied: tuple[str, ...] = ("w_q", "w_o"),
) -> nn.Module:
    """A layer with pooled keys and values; what is None or not copied stays as it was drawn."""
    layer = GroupedQueryAttention(mha.d_model, mha.n_heads, n_kv_heads)
    new = {name: getattr(mha, name).weight for name in copied}
    new |= {
        name: pool(mha, n_kv_heads, getattr(mha, name).weight)
        for name, pool in (("w_k", keys), ("w_v", values))
        if pool
    }
    with torch.no_grad():
        for name, weight in new.items():
            getattr(layer, name).weight.copy_(weight)
    return layer


def _pooled(pool: Pool) -> Callable[..., nn.Module]:
    return lambda mha, n_kv_heads: _into(mha, n_kv_heads, pool, pool)


def _strided(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    return _heads_of(mha, weight).unflatten(0, (-1, n_kv_heads)).mean(0).flatten(0, 1)


def _first_heads(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    return _heads_of(mha, weight)[:n_kv_heads].flatten(0, 1)


def _all_heads(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    return _heads_of(mha, weight).mean(0).repeat(n_kv_heads, 1)


def _rows_cut_wrongly(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    """Rows cut into (n_kv_heads, d_head, group_size): means of neighbouring rows, not of heads."""
    return weight.detach().unflatten(0, (n_kv_heads, mha.d_head, -1)).mean(2).flatten(0, 1)


def _columns_pooled(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    """Columns of the weight, which are sliders of the input, averaged as if they were heads."""
    return _mean_pool(mha, n_kv_heads, weight.T)


def _columns_pooled_without_turning(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    return _columns_pooled(mha, n_kv_heads, weight).T


def _swapped_pool(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    """Groups of n_kv_heads heads."""
    return _heads_of(mha, weight).unflatten(0, (-1, n_kv_heads)).mean(1).flatten(0, 1)


def _swapped_whole(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    return _into(mha, mha.n_heads // n_kv_heads)


def _divided_by_groups(mha: nn.Module, n_kv_heads: int, weight: Tensor) -> Tensor:
    return _pooling(lambda groups: groups.sum(1) / n_kv_heads)(mha, n_kv_heads, weight)


def _queries_pooled(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    layer = _into(mha, n_kv_heads)
    group_size = mha.n_heads // n_kv_heads
    mean = _mean_pool(mha, n_kv_heads, mha.w_q.weight).unflatten(0, (n_kv_heads, -1))
    with torch.no_grad():
        layer.w_q.weight.copy_(mean.repeat_interleave(group_size, dim=0).flatten(0, 1))
    return layer


def _sharing(share: Callable[[nn.Module, nn.Module], None]) -> Callable[..., nn.Module]:
    def implementation(mha: nn.Module, n_kv_heads: int) -> nn.Module:
        layer = _into(mha, n_kv_heads)
        share(layer, mha)
        return layer

    return implementation


def _share_modules(layer: nn.Module, mha: nn.Module) -> None:
    layer.w_q, layer.w_o = mha.w_q, mha.w_o


def _share_data(layer: nn.Module, mha: nn.Module) -> None:
    layer.w_q.weight.data, layer.w_o.weight.data = mha.w_q.weight.data, mha.w_o.weight.data


def _in_place(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    """The original's own projections are replaced."""
    layer = _into(mha, n_kv_heads)
    mha.w_k, mha.w_v = layer.w_k, layer.w_v
    return layer


def _original_averaged(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    """Each head of the original becomes the mean of its group, and the first of each is copied."""
    with torch.no_grad():
        for linear in (mha.w_k, mha.w_v):
            mean = _mean_pool(mha, n_kv_heads, linear.weight).unflatten(0, (n_kv_heads, -1))
            linear.weight.copy_(mean.repeat_interleave(mha.n_heads // n_kv_heads, dim=0).flatten(0, 1))
    return _into(mha, n_kv_heads)


def _frozen(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    layer = _into(mha, n_kv_heads)
    layer.w_k.requires_grad_(False)
    layer.w_v.requires_grad_(False)
    return layer


def _frozen_whole(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    return _into(mha, n_kv_heads).requires_grad_(False)


def _rest_not_pooled(mha: nn.Module, n_kv_heads: int) -> nn.Module:
    """Heads that fit into no group of full size are left out, and the layer is made of sizes that fit."""
    group_size = max(mha.n_heads // n_kv_heads, 1)
    fitting = next(n for n in range(min(n_kv_heads, mha.n_heads), 0, -1) if mha.n_heads % n == 0)
    return _into(mha, fitting if mha.n_heads % n_kv_heads else n_kv_heads) if group_size else mha


def _pool_text(words: str) -> Callable[[Mapping[str, Any]], str]:
    def text(values: Mapping[str, Any]) -> str:
        n_kv_heads, group_size = _n_kv_heads_and_group_size(values)
        n_heads, d_head = values["mha"].n_heads, values["mha"].d_head
        return words.format(
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            group_size=group_size,
            last=group_size - 1,
            d_head=d_head,
            stride=", ".join(str(head) for head in range(0, n_heads, n_kv_heads)),
            rows=group_size * d_head - 1,
        )

    return text


def _copied_law(name: str, what: str) -> Law:
    def broken(values: Mapping[str, Any], result: Any) -> str | None:
        if not isinstance(result, dict) or f"{name}.weight" not in result:
            return None
        wanted = getattr(values["mha"].build(), name).weight.detach().numpy()
        if np.allclose(result[f"{name}.weight"].array, wanted, atol=1e-5):
            return None
        return f"`{name}.weight` of the new layer is not that of the original. {what}"

    return Law(f"{name}_not_copied", broken, CONVERT)


_POOLED = "keys and values averaged, the rest copied"
_RUNS = "the new layer runs with them"
_APART = "a layer of its own, ready to be trained"
_INDIVISIBLE = "heads that cannot be shared out"

_mha_to_gqa = Exercise(
    id="mha_to_gqa",
    points=4,
    section=CONVERT,
    reference=mha_to_gqa,
    families={_POOLED: 0.5, "MHA and MQA": 0.1, _RUNS: 0.1, _APART: 0.2, _INDIVISIBLE: 0.1},
    cases=(
        _mha_case("4 heads of one number to 2", _POOLED, (4, 4), 2),
        _mha_case("6 heads of 2 to 2", _POOLED, (12, 6), 2),
        _mha_case("6 heads of 2 to 3", _POOLED, (12, 6), 3),
        _mha_case("8 heads of 3 to 2", _POOLED, (24, 8), 2),
        _mha_case("3 heads to 3", "MHA and MQA", (6, 3), 3),
        _mha_case("4 heads to one", "MHA and MQA", (12, 4), 1),
        _mha_case("6 heads to 2, a causal mask", _RUNS, (12, 6), 2, _converted_and_run, 4, _causal(4, 4)),
        _mha_case("3 heads to 3: the same as before", _RUNS, (6, 3), 3, _converted_and_run, 3),
        _mha_case("4 heads to 2", _APART, (8, 4), 2, _original_after, 3),
        _mha_case("3 heads to 3", _APART, (6, 3), 3, _original_after, 3),
        _mha_case("4 heads to 3", _INDIVISIBLE, (8, 4), 3, _converted_or_refused, 2),
        _mha_case("6 heads to 4", _INDIVISIBLE, (12, 6), 4, _converted_or_refused, 2),
        _mha_case("2 heads to 4", _INDIVISIBLE, (8, 2), 4, _converted_or_refused, 2),
    ),
    laws=(
        _copied_law("w_q", "Every query head asks as before: copy it."),
        _copied_law("w_o", "What the heads write is mixed as before: copy it."),
    ),
    misconceptions=(
        Misconception(
            "sum_for_mean",
            _pooled(_pooling(lambda groups: groups.sum(1))),
            _pool_text(
                "You add the heads of a group up. Their mean is asked for: keys that are {group_size} times too long "
                "make scores {group_size} times too large."
            ),
            CONVERT,
        ),
        Misconception(
            "first_head_only",
            _pooled(_pooling(lambda groups: groups[:, 0])),
            _pool_text(
                "You keep the first head of each group and forget the others. Take the mean of all {group_size}."
            ),
            CONVERT,
        ),
        Misconception(
            "last_head_only",
            _pooled(_pooling(lambda groups: groups[:, -1])),
            _pool_text(
                "You keep the last head of each group and forget the others. Take the mean of all {group_size}."
            ),
            CONVERT,
        ),
        Misconception(
            "first_heads_only",
            _pooled(_first_heads),
            _pool_text(
                "You keep the first {n_kv_heads} heads and drop the rest. Each group of {group_size} neighbours "
                "becomes one head: their mean."
            ),
            CONVERT,
        ),
        Misconception(
            "strided_heads",
            _pooled(_strided),
            _pool_text(
                "You average heads {stride}. A group are neighbours, heads 0 to {last}: those whose queries will read "
                "the new head 0. Cut the heads into ({n_kv_heads}, {group_size}), in this order."
            ),
            CONVERT,
        ),
        Misconception(
            "group_size_swapped",
            _pooled(_swapped_pool),
            _pool_text(
                "You average groups of {n_kv_heads} heads. There are {n_kv_heads} groups, each of {group_size} heads: "
                "size and number have changed places."
            ),
            CONVERT,
        ),
        Misconception(
            "group_size_swapped",
            _swapped_whole,
            _pool_text(
                "Your layer has {group_size} key/value heads, the size of a group. It should have n_kv_heads = "
                "{n_kv_heads}: size and number have changed places."
            ),
            CONVERT,
        ),
        Misconception(
            "mean_over_all_heads",
            _pooled(_all_heads),
            _pool_text("Each of your heads is the mean of all {n_heads}. A group has {group_size} of its own."),
            CONVERT,
        ),
        Misconception(
            "divided_by_groups",
            _pooled(_divided_by_groups),
            _pool_text(
                "You divide the sum of a group by {n_kv_heads}, the number of groups. A group has {group_size} "
                "members: divide by that."
            ),
            CONVERT,
        ),
        Misconception(
            "divided_by_root",
            _pooled(_pooling(lambda groups: groups.sum(1) / groups.shape[1] ** 0.5)),
            _pool_text("You divide the sum by the root of {group_size}. The mean divides by {group_size} itself."),
            CONVERT,
        ),
        *(
            Misconception(
                "rows_mixed",
                _pooled(pool),
                _pool_text(
                    "You average rows that lie next to each other within a head. Head h owns the {d_head} rows from h "
                    "* {d_head} on; average row i of one head with row i of the others: cut the rows into "
                    "(n_kv_heads, group_size, d_head)."
                ),
                CONVERT,
            )
            for pool in (_rows_cut_wrongly,)
        ),
        *(
            Misconception(
                "columns_pooled",
                _pooled(pool),
                _pool_text(
                    "You average columns. In `w_k.weight`, (n_heads * d_head, d_model), the heads are rows "
                    "(`nn.Linear` keeps its matrix transposed): group 0 are rows 0 to {rows}."
                ),
                CONVERT,
            )
            for pool in (_columns_pooled, _columns_pooled_without_turning)
        ),
        *(
            Misconception(
                "keys_pooled_values_not",
                lambda mha, n_kv_heads, values=values: _into(mha, n_kv_heads, values=values),
                "Your keys are averaged, and your values are not. Both are shared, so both become means: w_k and w_v.",
                CONVERT,
            )
            for values in (None, _first_heads, _pooling(lambda groups: groups[:, 0]))
        ),
        *(
            Misconception(
                "values_pooled_keys_not",
                lambda mha, n_kv_heads, keys=keys: _into(mha, n_kv_heads, keys=keys),
                "Your values are averaged, and your keys are not. Both are shared, so both become means: w_k and w_v.",
                CONVERT,
            )
            for keys in (None, _first_heads, _pooling(lambda groups: groups[:, 0]))
        ),
        Misconception(
            "values_from_keys",
            lambda mha, n_kv_heads: _into(mha, n_kv_heads, values=lambda m, n, weight: _mean_pool(m, n, m.w_k.weight)),
            "Your new w_v is made from the original's w_k. Keys come from w_k and values from w_v.",
            CONVERT,
        ),
        Misconception(
            "nothing_pooled",
            lambda mha, n_kv_heads: _into(mha, n_kv_heads, None, None),
            "The new layer's w_k and w_v are still the random ones it was built with. Write the means into them.",
            CONVERT,
        ),
        Misconception(
            "nothing_pooled",
            lambda mha, n_kv_heads: _into(mha, n_kv_heads, None, None, ()),
            "The new layer still has the random weights it was built with. Copy w_q and w_o, and write means into w_k "
            "and w_v.",
            CONVERT,
        ),
        Misconception(
            "w_q_not_copied",
            lambda mha, n_kv_heads: _into(mha, n_kv_heads, copied=("w_o",)),
            "The new layer's w_q is still the random one it was built with. Every query head asks as before: copy it.",
            CONVERT,
        ),
        Misconception(
            "w_o_not_copied",
            lambda mha, n_kv_heads: _into(mha, n_kv_heads, copied=("w_q",)),
            "The new layer's w_o is still the random one it was built with. What the heads write is mixed as before: "
            "copy it.",
            CONVERT,
        ),
        Misconception(
            "w_q_not_copied",
            lambda mha, n_kv_heads: _into(mha, n_kv_heads, copied=()),
            "The new layer's w_q and w_o are still the random ones it was built with. The query heads ask and write "
            "as before: copy both.",
            CONVERT,
        ),
        Misconception(
            "queries_pooled",
            _queries_pooled,
            "You average the queries of a group as well. They stay apart: copy w_q as it is.",
            CONVERT,
        ),
        *(
            Misconception(
                "shares_weights",
                implementation,
                "The new layer shares weights with the original: when it is trained, the original changes as well. "
                "Copy the numbers, not the objects, for example with `copy_`.",
                CONVERT,
            )
            for implementation in (_sharing(_share_modules), _sharing(_share_data))
        ),
        *(
            Misconception(
                "original_changed",
                implementation,
                "The original layer is no longer what it was. Leave it alone, and write into the new one.",
                CONVERT,
            )
            for implementation in (_in_place, _original_averaged)
        ),
        *(
            Misconception(
                "cannot_be_trained",
                implementation,
                "The new layer's weights cannot be trained (`requires_grad` is False, or they hang on other tensors). "
                "Copy the numbers into its parameters inside `with torch.no_grad():`.",
                CONVERT,
            )
            for implementation in (_frozen, _frozen_whole)
        ),
        Misconception(
            "accepts_unequal_groups",
            _rest_not_pooled,
            lambda values: (
                f"{values['mha'].n_heads} heads cannot become {values['n_kv_heads']} groups of one size, and you "
                "return a layer. Let it end in a ValueError."
            ),
            CONVERT,
        ),
    ),
)


_QUIZZES = (
    Quiz(
        "quiz_06_1",
        answer="B",
        section=REPEAT,
        explanations={
            "A": "That is 13 % 8: the heads would take turns. Neighbours share, so it is 13 // 4.",
            "B": "Yes. Groups have 32 / 8 = 4 members, and 13 // 4 = 3: heads 12, 13, 14 and 15 read key/value head 3.",
            "C": "That is 13 // 8, size and number of the groups exchanged. There are 8 groups, and each has 4 "
            "members.",
            "D": "That would take 32 heads of keys and values, one for each query head. There are 8.",
        },
    ),
    Quiz(
        "quiz_06_2",
        answer="C",
        section=SAVES,
        explanations={
            "A": "The heads are right, but each needs two tensors: one of keys and one of values.",
            "B": "Queries are never cached: the new token is the only one that asks.",
            "C": "Yes: 2 x 32 = 64 against 2 x 8 = 16, a quarter. 75 % less.",
            "D": "Those are the numbers of W_K and W_V for all heads. The cache holds tensors of keys and values, "
            "two for each "
            "head.",
        },
    ),
    Quiz(
        "quiz_06_3",
        answer="A",
        section=GROUPS,
        explanations={
            "A": "Yes. Every query head still has a row of weights of its own, as many as before. What is read from "
            "memory is a "
            "quarter.",
            "B": "The cache does become four times smaller: it holds the keys and values of 8 heads.",
            "C": "W_K does become four times smaller: it makes 8 heads instead of 32.",
            "D": "What a new token reads is the cache, and that does become four times smaller.",
        },
    ),
)

EXERCISES = (
    _repeat_kv,
    _grouped_attention,
    _grouped_query_attention,
    _gqa_parameter_count,
    _kv_saving,
    _mha_to_gqa,
    *_QUIZZES,
)
