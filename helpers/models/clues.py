"""One token that asks three things at once: the task on which one head is compared with many.

A sequence is a first token, eight items and a query. An item is its name plus three attributes, each one of eight
values. The query names three different items, and the model must say the first attribute of the first of them, the
second attribute of the second and the third of the third. Positions play no part, so `attention(x)` is all that is
needed of a layer. The model has one layer, and the same number of parameters whatever the number of heads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

ITEMS, VALUES, QUESTIONS = 8, 8, 3
D_MODEL = 48
BATCH = 128


class Batch(NamedTuple):
    """Sequences in numbers: `attributes` (B, ITEMS, QUESTIONS), and the items that are `asked` about (B, QUESTIONS)."""

    attributes: Tensor
    asked: Tensor

    @property
    def answers(self) -> Tensor:
        """(B, QUESTIONS): attribute number s of the item that question s is about."""
        return self.attributes.gather(1, self.asked[:, None])[:, 0]


def draw(generator: torch.Generator, size: int = BATCH) -> Batch:
    """`size` random sequences; the same ones for a generator with the same seed."""
    attributes = torch.randint(VALUES, (size, ITEMS, QUESTIONS), generator=generator)
    asked = torch.rand(size, ITEMS, generator=generator).argsort(1)[:, :QUESTIONS]
    return Batch(attributes, asked)


class CluesModel(nn.Module):
    """Embeddings, one attention layer with a residual connection, and a linear readout at the query token.

    `attention(d_model)` makes the layer: anything with `w_q w_k w_v w_o` and `forward(x) -> (output, weights)`,
    such as `functools.partial(MultiHeadAttention, n_heads=3)`. All weights are drawn from `seed`, those of the layer
    too, at the scale at which scores have a variance of about 1. With `questions=1` only the first one is asked.
    """

    def __init__(self, attention: Callable[[int], nn.Module], seed: int = 0, questions: int = QUESTIONS) -> None:
        super().__init__()
        self.questions = questions
        with torch.random.fork_rng(devices=[]):
            self.attention = attention(D_MODEL)
            torch.manual_seed(seed)  # only now: a layer may draw as many random numbers as it likes
            self.first = nn.Parameter(torch.randn(D_MODEL))
            self.names = nn.Embedding(ITEMS, D_MODEL)
            self.attributes = nn.ModuleList(nn.Embedding(VALUES, D_MODEL) for _ in range(QUESTIONS))
            self.slots = nn.ModuleList(nn.Embedding(ITEMS, D_MODEL) for _ in range(questions))
            self.norm = nn.LayerNorm(D_MODEL)
            self.readout = nn.Linear(D_MODEL, questions * VALUES)
            for name in ("w_q", "w_k", "w_v", "w_o"):
                weight = getattr(self.attention, name).weight
                nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))

    def embed(self, batch: Batch) -> Tensor:
        """(B, 1 + ITEMS + 1, D_MODEL): the first token, the items, and the query at the end."""
        items = self.names.weight + sum(table(batch.attributes[..., s]) for s, table in enumerate(self.attributes))
        query = sum(table(batch.asked[:, s]) for s, table in enumerate(self.slots))
        first = self.first.expand(len(items), 1, -1)
        return torch.cat([first, items, query[:, None]], 1)

    def forward(self, batch: Batch) -> Tensor:
        """(B, questions, VALUES): a score for every value that may be the answer."""
        x = self.embed(batch)
        output, _ = self.attention(self.norm(x))
        return self.readout((x + output)[:, -1]).unflatten(-1, (self.questions, VALUES))

    def weights(self, batch: Batch) -> Tensor:
        """(B, n_heads, 1 + ITEMS + 1): where each head looks from the query token."""
        return self.attention(self.norm(self.embed(batch)))[1][:, :, -1].detach()


def loss(model: CluesModel, batch: Batch) -> Tensor:
    """Cross-entropy, the mean over questions: ln 8 = 2.08 for guessing."""
    answers = batch.answers[:, : model.questions]
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), answers.flatten())


@torch.no_grad()
def accuracy(model: CluesModel, batch: Batch) -> float:
    """The share of questions that get the right answer: 1/8 for guessing."""
    answers = batch.answers[:, : model.questions]
    return float((model(batch).argmax(-1) == answers).float().mean())


def with_attention(model: CluesModel, attention: nn.Module) -> CluesModel:
    """A copy of the model around another attention layer, to see how the rest gets on with it."""
    changed = copy.deepcopy(model)
    changed.attention = attention
    return changed
