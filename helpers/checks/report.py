"""The verdict on one exercise, and the plain text that says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.checks.comparing import Outcome
from helpers.checks.encoding import Opaque, Tensor

TO_DO = (
    "Write it in its cell, run that cell, then run this one again. If it is written, take out the line that raises "
    "NotImplementedError."
)
_SMALL = 48
_MAX_LINES = 12


@dataclass(frozen=True)
class Family:
    """How one kind of case went, and the share of the points it is worth."""

    title: str
    share: float
    cases: int
    passed_cases: int

    @property
    def passed(self) -> bool:
        return self.passed_cases == self.cases


@dataclass(frozen=True)
class Finding:
    """A mistake with a name: an id for programs, a text for the learner, the heading that explains it."""

    id: str
    text: str
    section: str


@dataclass(frozen=True)
class Example:
    """The smallest failing case: what went in, what was expected and what came out, as texts."""

    title: str
    inputs: tuple[tuple[str, str], ...]
    expected: str
    got: str


@dataclass(frozen=True)
class Report:
    """The verdict of `judge` on one exercise.

    `state` is "passed", "partly", "failed", "not written" or "not judged". `score` runs from 0 to 1 and `points` are
    the points of the exercise. `misconceptions` holds the ids of the named mistakes, `message` the whole card as text.
    """

    exercise: str
    state: str
    points: float
    score: float = 0.0
    families: tuple[Family, ...] = ()
    findings: tuple[Finding, ...] = ()
    example: Example | None = None
    notes: tuple[str, ...] = ()
    section: str = ""

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    @property
    def misconceptions(self) -> tuple[str, ...]:
        return tuple(finding.id for finding in self.findings)

    @property
    def earned(self) -> float:
        """Points earned: a plain finite float from 0 to `points`."""
        return min(max(round(float(self.score) * self.points, 2), 0.0), float(self.points))

    @property
    def headline(self) -> str:
        words = {
            "passed": "passed",
            "partly": "partly right",
            "failed": "not right yet",
            "not written": "not written yet",
        }
        return f"{self.exercise}: {words.get(self.state, self.state)}, {self.earned:g} of {self.points:g} points"

    @property
    def message(self) -> str:
        lines = [self.headline]
        for family in self.families:
            word = "passed" if family.passed else "failed"
            lines.append(f"  [{word}] {family.title} ({family.passed_cases} of {family.cases} cases)")
        for finding in self.findings:
            lines.append(finding.text)
            if finding.section:
                lines.append(f'  Read again: "{finding.section}"')
        if self.example:
            lines.append(f"Smallest failing case: {self.example.title}")
            for name, text in (
                *self.example.inputs,
                ("expected", self.example.expected),
                ("got", self.example.got),
            ):
                lines.append(f"  {name} = {text}" if "\n" not in text else f"  {name} =\n{_indent(text)}")
        lines.extend(f"Note: {note}" if self.families else note for note in self.notes)
        if self.state == "not written" and not self.notes:
            lines.append(TO_DO)
        return "\n".join(lines)


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def show(value: Any, index: tuple[int, ...] | None = None) -> str:
    """A value as a learner reads it: small arrays whole, of large ones the shape and the row at `index`."""
    if isinstance(value, Outcome):
        return _show_outcome(value, index)
    if isinstance(value, Tensor):
        return show(value.array, index)
    if isinstance(value, Opaque):
        return value.description
    if hasattr(value, "detach"):
        return show(value.detach().float().numpy() if value.is_floating_point() else value.detach().numpy(), index)
    if isinstance(value, np.ndarray):
        return _show_array(value, index)
    if isinstance(value, dict):
        return ", ".join(f"{name} {show(item)}" for name, item in value.items())
    if isinstance(value, tuple | list) and not all(isinstance(item, int | float | str) for item in value):
        return ", ".join(show(item) for item in value)
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}"
    if isinstance(value, bool | int | str) or value is None:
        return repr(value)
    return _clip(str(value)) if not callable(value) else getattr(value, "__name__", type(value).__name__)


def _show_outcome(outcome: Outcome, index: tuple[int, ...] | None) -> str:
    if outcome.kind == "returned":
        return show(outcome.value, index)
    if outcome.kind == "raised" and outcome.error:
        where = outcome.error["where"]
        place = f" (in `{str(where.get('text', ''))[:200]}`)" if isinstance(where, dict) and where.get("text") else ""
        return f"{outcome.error_type}: {outcome.error['message']}{place}"
    return outcome.kind


def _show_array(array: np.ndarray, index: tuple[int, ...] | None) -> str:
    if array.size <= _SMALL:
        return _clip(_numbers(array))
    if index is None or array.ndim < 2 or array.shape[-1] > _SMALL:
        return f"array of shape {array.shape}" + (f", at {list(index)}: {_numbers(array[index])}" if index else "")
    row = index[:-1]
    return f"array of shape {array.shape}, row {list(row)}: {_numbers(array[row])}"


def _numbers(array: np.ndarray) -> str:
    return np.array2string(np.asarray(array), precision=4, suppress_small=False, max_line_width=100, threshold=1000)


def _clip(text: str) -> str:
    lines = text.splitlines()
    return text if len(lines) <= _MAX_LINES else "\n".join([*lines[:_MAX_LINES], "..."])
