"""Checks for the course's exercises.

In a notebook: `check("softmax")` shows a report card, `grade("softmax")` also returns the points; both find the
function by its name or take it as a second argument. In a program: `judge_implementation("softmax", softmax)`.
From a shell: `python -m helpers.checks NOTEBOOK...`.

Every check has two halves: `observing.observe` runs the learner's code and writes down what it did, `judging.judge`
compares that with the oracle. When a class is graded, only the first half runs beside student code.
"""

from __future__ import annotations

import os
import secrets
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from helpers.checks import pristine
from helpers.checks.card import Card
from helpers.checks.judging import judge
from helpers.checks.observing import MISSING, observe
from helpers.checks.registry import find
from helpers.checks.report import Report
from helpers.checks.source import source_of

if TYPE_CHECKING:
    from helpers.notebooks import Notebook

__all__ = [
    "OBSERVATIONS",
    "SEED_VARIABLE",
    "Report",
    "check",
    "grade",
    "judge_answer",
    "judge_implementation",
]

#: The type under which observations leave a kernel that grades a class.
OBSERVATIONS = "application/vnd.attention-course.observations+json"
#: Where such a kernel finds the seed of its cases.
SEED_VARIABLE = "ATTENTION_COURSE_SEED"

pristine.remember()


def judge_implementation(exercise_id: str, implementation: Any, seed: int | None = None) -> Report:
    """Check any function or class against an exercise. The same seed makes the same cases; None makes fresh ones.

    Raises ValueError for an unknown exercise, and nothing whatever the implementation does.
    """
    return _judge(exercise_id, implementation, seed, source_of(implementation))


def judge_answer(exercise_id: str, answer: Any, notebook: Notebook, seed: int | None = None) -> Report:
    """The same for what a notebook's definitions made, with the notebook's own text as the source of the answer."""
    return _judge(exercise_id, answer, seed, *notebook.answer_and_context(exercise_id))


def _judge(exercise_id: str, implementation: Any, seed: int | None, source: str | None, context: str = "") -> Report:
    exercise = find(exercise_id)
    seed = secrets.randbelow(2**32) if seed is None else seed
    return judge(exercise, observe(exercise, implementation, seed), seed, source, context)


def check(exercise_id: str, implementation: Any = MISSING) -> None:
    """Show the report card of an exercise; the function is found by its name unless it is given."""
    found = _named_like(exercise_id, sys._getframe(1).f_globals) if implementation is MISSING else implementation
    _show(_judge(exercise_id, found, 0, _source_in_notebook(found)))


def grade(exercise_id: str, implementation: Any = MISSING) -> float:
    """Show the report card of an exercise and return the points earned, a plain float.

    While nbgrader grades a class, the cell is worth 0.0 and hands over what it observed; helpers.grading judges that
    outside this process.
    """
    found = _named_like(exercise_id, sys._getframe(1).f_globals) if implementation is MISSING else implementation
    mode = os.environ.get("NBGRADER_EXECUTION")
    if mode == "autograde":
        _hand_over(observe(find(exercise_id), found, int(os.environ.get(SEED_VARIABLE, "0"))))
        return 0.0
    report = _judge(exercise_id, found, 0, _source_in_notebook(found))
    _show(report)
    if mode == "validate" and not report.passed:
        print(report.message, file=sys.stderr)  # else the Validate button says no more than "partial credit"
    return report.earned


def _source_in_notebook(found: Any) -> str | None:
    """The text of an answer; of something that was taken from the course itself, the import that took it."""
    if isinstance(found, FunctionType | type) and str(found.__module__).startswith("helpers.checks."):
        return f"from {found.__module__} import {found.__name__}"
    return source_of(found)


def _named_like(exercise_id: str, namespace: dict[str, Any]) -> Any:
    return namespace.get(exercise_id, MISSING)


def _show(report: Report) -> None:
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        sys.modules["IPython"].display.display(Card(report))
    else:
        print(report.message)


def _hand_over(observations: dict[str, Any]) -> None:
    from IPython.display import display

    text = "What this cell observed; helpers.grading judges it."
    display({OBSERVATIONS: observations, "text/plain": text}, raw=True)
