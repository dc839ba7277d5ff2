"""One head against many at equal size: accuracies for several seeds, the stored table of chapter 4.

`python benchmarks/one_head_against_many.py`: two minutes on one core. It prints the lines that the notebook holds,
the last two being controls for one head: four times the steps, and a query that asks one thing only.
"""

from __future__ import annotations

import contextlib
import io
from functools import partial

import torch

from helpers.checks.chapter_03_multi_head import MultiHeadAttention
from helpers.models import clues, training

SEEDS = range(5)
TEST = clues.draw(torch.Generator().manual_seed(99), size=2000)


def main() -> None:
    for n_heads in (1, 2, 3, 4, 8):
        print_row(f"{n_heads} head{'s' if n_heads > 1 else ''}", n_heads)
    print_row("1 head, 4 times the steps", 1, steps=2000)
    print_row("1 head, asked one thing", 1, questions=1)


def print_row(name: str, n_heads: int, steps: int = 500, questions: int = clues.QUESTIONS) -> None:
    """Print one line of the table: the accuracies of all seeds."""
    accuracies = [round(accuracy(n_heads, seed, steps, questions), 3) for seed in SEEDS]
    print(f'    "{name}": {accuracies},', flush=True)


def accuracy(n_heads: int, seed: int, steps: int, questions: int) -> float:
    """The accuracy on unseen sequences of a model with `n_heads`, trained from `seed`."""
    model = clues.CluesModel(partial(MultiHeadAttention, n_heads=n_heads), seed, questions)
    with contextlib.redirect_stdout(io.StringIO()):
        training.train(model, clues.draw, clues.loss, steps=steps, learning_rate=3e-3, seed=seed)
    return clues.accuracy(model, TEST)


if __name__ == "__main__":
    main()
