"""What an exercise consists of: its cases, its oracle, and the mistakes it can name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Implementation = Callable[..., Any]

#: The family that pays for leaving arguments as they were. An exercise that lists it loses only this share when an
#: argument was changed in place; in any other exercise the case itself fails.
INPUTS_UNCHANGED = "the inputs are left unchanged"


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, in the order and with the keywords in which they are passed."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def given(*args: Any, **kwargs: Any) -> Arguments:
    """Arguments written the way they are passed: `given(scores, axis=0)`."""
    return Arguments(args, kwargs)


def call_directly(implementation: Implementation, *args: Any, **kwargs: Any) -> Any:
    """The usual call: the learner's function with the case's arguments."""
    return implementation(*args, **kwargs)


@dataclass(frozen=True)
class Case:
    """One question put to an implementation.

    `arguments(rng)` makes the inputs, the same ones for the same seed. `call(implementation, *args, **kwargs)` runs
    the learner's code on them; exercises on classes give their own, for example "build it, copy weights in, run it".
    A case whose contract is an error needs nothing more: the oracle raises that error.
    """

    title: str
    family: str
    arguments: Callable[[np.random.Generator], Arguments]
    call: Callable[..., Any] = call_directly

    def arguments_for(self, index: int, seed: int) -> Arguments:
        """Its arguments as case number `index`, the same ones for the same seed."""
        return self.arguments(np.random.default_rng((seed, index)))


@dataclass(frozen=True)
class Misconception:
    """A wrong implementation with a name. It is named only where its result equals the learner's.

    `explanation` is said to the learner: a sentence, or a function that makes one from the failing case's arguments
    by name. `section` is the heading in the chapter's notebook that explains it.
    """

    id: str
    implementation: Implementation
    explanation: str | Callable[[Mapping[str, Any]], str]
    section: str


@dataclass(frozen=True)
class Law:
    """Something that holds for every right result, for failures that no misconception explains.

    `broken(inputs, value)` gets the case's arguments by name and the learner's result (right in type and shape) and
    returns a sentence if the law does not hold, else None.
    """

    id: str
    broken: Callable[[Mapping[str, Any], Any], str | None]
    section: str


@dataclass(frozen=True)
class Exercise:
    """A function or class that learners write.

    `reference` is the oracle: the industrial library or a slow, obvious loop, never the course's own solution.
    `families` says which share of the points each kind of case is worth; the first is the core, without which
    nothing else counts. `forbidden` lists library calls that would answer the exercise instead of the learner
    (".softmax" means a method of that name). `returns` names the parts of a tuple result.
    """

    id: str
    points: float
    section: str
    reference: Implementation
    families: Mapping[str, float]
    cases: tuple[Case, ...]
    misconceptions: tuple[Misconception, ...] = ()
    laws: tuple[Law, ...] = ()
    forbidden: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    exact_zeros: bool = False

    def __post_init__(self) -> None:
        if abs(sum(self.families.values()) - 1.0) > 1e-9:
            raise ValueError(f"{self.id}: the shares of its families sum to {sum(self.families.values())}, not 1")
        used = {case.family for case in self.cases} | ({INPUTS_UNCHANGED} & set(self.families))
        if used != set(self.families):
            raise ValueError(f"{self.id}: families {set(self.families) ^ used} have no cases or no share")

    @property
    def core(self) -> str:
        """The family that must pass before any other counts."""
        return next(iter(self.families))

    def named_arguments(self, index: int, seed: int) -> dict[str, Any]:
        """The same by name, as a card shows them."""
        arguments = self.cases[index].arguments_for(index, seed)
        call = self.cases[index].call
        signature = _signature(self.reference if call is call_directly else call)
        bound = (
            signature.bind(*arguments.args, **arguments.kwargs)
            if call is call_directly
            else signature.bind(None, *arguments.args, **arguments.kwargs)
        )
        named = dict(bound.arguments)
        if call is not call_directly:
            named.pop(next(iter(signature.parameters)))
        return named


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


@dataclass(frozen=True)
class Quiz:
    """A question answered by a letter in an ordinary code cell, with something to say about every choice."""

    id: str
    answer: str
    explanations: Mapping[str, str]
    points: float = 1.0
    section: str = "Quiz"

    def __post_init__(self) -> None:
        if self.answer not in self.explanations:
            raise ValueError(f"{self.id}: the answer {self.answer!r} is not among {sorted(self.explanations)}")
