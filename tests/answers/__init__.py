"""Right and wrong implementations by exercise: written the way people write them, not the way the checks do.

A right one must pass. A wrong one must be rejected, and where `named` is given also named.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    exercise: str
    implementation: Any
    named: str | None = None

    def __str__(self) -> str:
        return f"{self.exercise}-{getattr(self.implementation, '__name__', 'object')}"


RIGHT: list[Answer] = []
WRONG: list[Answer] = []


def right(exercise: str) -> Callable[[Any], Any]:
    """Mark an implementation that must be accepted."""

    def mark(implementation: Any) -> Any:
        RIGHT.append(Answer(exercise, implementation))
        return implementation

    return mark


def wrong(exercise: str, named: str | None = None) -> Callable[[Any], Any]:
    """Mark an implementation that must be rejected and, if `named`, given that id."""

    def mark(implementation: Any) -> Any:
        WRONG.append(Answer(exercise, implementation, named))
        return implementation

    return mark


for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
