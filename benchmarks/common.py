"""What the benchmarks share: the answers of the solution notebooks, and times that compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from helpers import notebooks

SOLUTIONS = Path(__file__).resolve().parents[1] / "solutions"
SECONDS = 2.0


def answers_of(chapter: str) -> Mapping[str, Any]:
    """What a chapter's solution notebook defines."""
    return notebooks.define(notebooks.read(SOLUTIONS / chapter / f"{chapter}.ipynb")).names


def best_times(*runs: Callable[[], Any]) -> list[float]:
    """The best time of each, in seconds, of turns in which all are run."""
    best = [math.inf] * len(runs)
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
    return best
