"""Training the small models of the experiments: seeded, with a progress bar, and free to be interrupted."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

#: Steps of a run while nbgrader executes the notebook: enough to see that everything works.
SHORT_RUN = 20
WARM_UP = 30
SCHEDULES = ("cosine", "constant")

Model = TypeVar("Model", bound=nn.Module)
Batch = TypeVar("Batch")


def train(
    model: Model,
    draw: Callable[[torch.Generator], Batch],
    loss: Callable[[Model, Batch], Tensor],
    *,
    steps: int,
    learning_rate: float,
    schedule: str = "cosine",
    seed: int = 0,
    name: str = "training",
) -> list[float]:
    """Train `model` in place and return the loss of every step.

    `draw(generator)` makes a batch and `loss(model, batch)` a 0-d tensor; the generator is seeded with `seed`, so the
    same call on the same model trains the same way. AdamW with weight decay 0.01. The learning rate is "constant", or
    "cosine": it rises over 30 steps, then falls to a tenth along half a cosine. A progress bar is shown under `name`.

    Interrupting the kernel (the square button) ends the run: the model then stands where it got to and can be used, and
    the list is shorter. While nbgrader runs the notebook (NBGRADER_EXECUTION is set), at most 20 steps are taken.
    ValueError: a negative number of steps, an unknown schedule.
    """
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if os.environ.get("NBGRADER_EXECUTION") and steps > SHORT_RUN:
        steps, name = SHORT_RUN, f"{name}, shortened"
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    was_training = model.training
    model.train()
    losses: list[float] = []
    bar = _Bar(name, steps)
    try:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * _share_of_rate(schedule, step, steps)
            optimizer.zero_grad()
            value = loss(model, draw(generator))
            value.backward()
            optimizer.step()
            losses.append(value.item())
            bar.move(len(losses), losses[-1])
    except KeyboardInterrupt:
        bar.end(losses, "stopped by you, and the model can be used as it is")
    else:
        bar.end(losses, "")
    finally:
        optimizer.zero_grad()
        model.train(was_training)
    return losses


def _share_of_rate(schedule: str, step: int, steps: int) -> float:
    if schedule == "constant":
        return 1.0
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM_UP) / (steps - WARM_UP)))


class _Bar:
    """A bar that moves a few times a second in a notebook or a terminal, and a line of text when it ends."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps = name, steps
        self.begun = time.monotonic()
        self.shown = self.begun
        self.handle = _display(self._mime(0, "")) if _in_notebook() else None

    def move(self, done: int, loss: float) -> None:
        """Show that `done` steps are done, unless that was shown a moment ago."""
        now = time.monotonic()
        if now - self.shown < 0.25:
            return
        self.shown = now
        if self.handle:
            self.handle.update(self._mime(done, f"loss {loss:.3f}"), raw=True)
        elif sys.stdout.isatty():
            print(f"\r{self._text(done, f'loss {loss:.3f}')}", end="", flush=True)

    def end(self, losses: list[float], remark: str) -> None:
        """Leave one line: how far it got, the last loss and the time."""
        words = [f"loss {losses[-1]:.3f}"] if losses else []
        words += [f"{time.monotonic() - self.begun:.1f} s", *([remark] if remark else [])]
        text = self._text(len(losses), ", ".join(words))
        if self.handle:
            self.handle.update({"text/plain": text}, raw=True)
        else:
            print(("\r" if sys.stdout.isatty() else "") + text)

    def _text(self, done: int, words: str) -> str:
        return f"{self.name}: {done} of {self.steps} steps{', ' if words else ''}{words}"

    def _mime(self, done: int, words: str) -> dict[str, str]:
        text = self._text(done, words)
        bar = f'<progress value="{done}" max="{self.steps}" aria-label="training" style="width:16em"></progress>'
        return {"text/html": f"{bar} {text}", "text/plain": text}


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _display(data: dict[str, str]) -> Any:
    from IPython.display import display

    return display(data, raw=True, display_id=True)
