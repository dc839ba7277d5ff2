"""observe: run an implementation on an exercise's cases and write down what it did, as data."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import linecache
import os
import traceback
import warnings
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from helpers.checks import isolation, pristine
from helpers.checks.encoding import encode, fingerprint
from helpers.checks.exercise import Arguments, Case, Exercise, Quiz

#: Seconds that one check may take, all its cases together.
TIME_LIMIT = 10.0
FORMAT = 1
_MAX_MESSAGE = 500
_LIBRARIES = ("numpy", "torch", "scipy", "jax")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _Missing:
    """Stands for a name that the notebook does not define."""


MISSING = _Missing()


def observe(exercise: Exercise | Quiz, implementation: Any, seed: int) -> dict[str, Any]:
    """Run `implementation` on the cases that `seed` makes; returns observations, plain data that JSON can hold.

    Nothing that the implementation does reaches the caller: not its output, exceptions, exits, endless loops
    (10 s for all cases) or, where the system can fork, crashes and memory.
    """
    observations: dict[str, Any] = {"format": FORMAT, "exercise": exercise.id, "seed": seed}
    observations["replaced"] = pristine.restore()
    if isinstance(implementation, _Missing):
        return observations | {"defined": False}
    if isinstance(exercise, Quiz):
        return observations | {"defined": True, "answer": encode(implementation)}
    observations["defined"] = True
    if isinstance(implementation, FunctionType | BuiltinFunctionType | np.ufunc):
        module = str(getattr(implementation, "__module__", None))
        if module.split(".")[0] in _LIBRARIES:
            return observations | {"library": f"{module}.{implementation.__name__}"}
    if not callable(implementation) or inspect.isclass(implementation) != inspect.isclass(exercise.reference):
        return observations | {"found": _describe(implementation)}

    def work(send: isolation.Send) -> None:
        for index in range(len(exercise.cases)):
            send(observe_case(exercise, index, implementation, seed))
        send({"replaced": pristine.replaced()})

    run = isolation.run(work, TIME_LIMIT)
    observations["replaced"] += pristine.restore()  # where the answer ran in this process
    cases = [message for message in run.messages if "outcome" in message]
    late = [name for message in run.messages if "outcome" not in message for name in message.get("replaced", [])]
    return observations | {
        "replaced": sorted({*observations["replaced"], *late}),
        "cases": cases,
        "end": run.end,
        "printed": run.printed,
        "printed_bytes": run.printed_bytes,
    }


def observe_case(exercise: Exercise, index: int, implementation: Callable[..., Any], seed: int) -> dict[str, Any]:
    """What `implementation` does on one case: the value or exception, arguments it changed, warnings it raised."""
    arguments = exercise.cases[index].arguments_for(index, seed)
    inputs = {**dict(enumerate(arguments.args)), **arguments.kwargs}
    before = {name: fingerprint(value) for name, value in inputs.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = call_case(exercise.cases[index], implementation, arguments)
    changed = [name for name, value in inputs.items() if fingerprint(value) != before[name]]
    messages = [f"{w.category.__name__}: {str(w.message)[:_MAX_MESSAGE]}" for w in caught]
    return outcome | {"changed": changed, "warnings": list(dict.fromkeys(messages))[:3]}


@functools.cache
def digest_of_cases(cases: tuple[Case, ...]) -> str:
    """What tells one set of cases from another: observations of one cannot be judged by another."""
    digest = hashlib.sha256()
    for index, case in enumerate(cases):
        arguments = case.arguments_for(index, seed=0)
        given = [fingerprint(value) for value in (*arguments.args, *arguments.kwargs.values())]
        digest.update(json.dumps([case.title, list(arguments.kwargs), given, inspect.getsource(case.call)]).encode())
    return digest.hexdigest()


def call_case(case: Case, implementation: Callable[..., Any], arguments: Arguments) -> dict[str, Any]:
    """The value or the exception of one call, as data."""
    try:
        value = case.call(implementation, *arguments.args, **arguments.kwargs)
        return {"outcome": "returned", "value": encode(value)}
    except isolation.InputAsked:
        return {"outcome": "asked for input"}
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not isolation.CAN_FORK:
            raise  # there, this is how the time limit and the learner's own stop button arrive
        return {"outcome": "raised", "error": _describe_error(error)}


def _describe(value: Any) -> str:
    if inspect.isclass(value):
        return "a class"
    return "a function" if callable(value) else f"a value of type {type(value).__name__}"


def _describe_error(error: BaseException) -> Mapping[str, Any]:
    try:
        message = str(error)[:_MAX_MESSAGE]
    except BaseException:
        message = ""
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": message,
        "where": _last_line_of_the_answer(error),
    }


def _last_line_of_the_answer(error: BaseException) -> dict[str, Any] | None:
    """The line in the learner's own code where the error came up; None when it never entered that code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = os.path.abspath(frame.filename)
        if not path.startswith(_PACKAGE) and "site-packages" not in path and not frame.filename.startswith("<frozen"):
            text = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return {"line": frame.lineno, "text": text[:200], "function": frame.name}
    return None
