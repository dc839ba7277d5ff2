"""judge: compare observations with the oracle, name the misconception, and say what to change."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from helpers.checks import source as answer_source
from helpers.checks.comparing import Difference, Outcome, difference
from helpers.checks.encoding import decode
from helpers.checks.exercise import INPUTS_UNCHANGED, Case, Exercise, Implementation, Misconception, Quiz
from helpers.checks.observing import FORMAT, TIME_LIMIT, call_case
from helpers.checks.report import Example, Family, Finding, Report, show

TOO_LONG = f"ran for more than {TIME_LIMIT:g} seconds"
NOT_RUN = "was not run"
# A misconception that predicted this many wrong results, and none of the learner's, is not looked at further.
_ENOUGH = 6


def judge(
    exercise: Exercise | Quiz, observations: Any, seed: int, source: str | None = None, context: str = ""
) -> Report:
    """The verdict on what `observe` wrote down with the same `seed`.

    `source` is the text of the answer, `context` the rest of the notebook's code (for its imports); with them, an
    answer that calls the library function being taught is told so. Observations that `observe` could not have
    written earn nothing.
    """
    if not _is_observation_of(exercise, observations, seed):
        return not_judged(exercise, "this check left no result that can be used. Restart the kernel and run it again")
    if not observations["defined"]:
        name = exercise.id
        text = f"`{name}` is not defined. Run the cell that defines it, and keep its name as it was."
        return _failed(exercise, Finding("not_defined", text, ""))
    if isinstance(exercise, Quiz):
        return _judge_quiz(exercise, observations)
    if "library" in observations:
        text = f"`{exercise.id}` is {str(observations['library'])[:100]}, a library's own. Write it yourself."
        return _failed(exercise, Finding("library_call", text, exercise.section))
    if "found" in observations:
        wanted = "a class" if isinstance(exercise.reference, type) else "a function"
        found = str(observations["found"])[:100]
        text = f"`{exercise.id}` is {found}; {wanted} was asked for. Was its name used for something else?"
        return _failed(exercise, Finding("wrong_kind", text, exercise.section))
    calls = answer_source.library_calls(source, exercise.forbidden, context) if source else []
    if calls:
        text = f"Your cell uses {' and '.join(calls)}, which does the work of this exercise. Write it yourself."
        return _failed(exercise, Finding("library_call", text, exercise.section))
    if observations["replaced"]:
        names = ", ".join(observations["replaced"][:3])
        text = f"Your code replaced {names}. It was put back; take that line out, as checks cannot be trusted with it."
        return _failed(exercise, Finding("replaced_library", text, ""))
    return _Judgement(exercise, observations, seed).report()


def not_judged(exercise: Exercise | Quiz, reason: str) -> Report:
    """A report without points for a check that could not be judged at all."""
    return Report(
        exercise.id,
        "not judged",
        exercise.points,
        findings=(Finding("not_judged", f"Not judged: {reason}.", ""),),
    )


def _is_observation_of(exercise: Exercise | Quiz, data: Any, seed: int) -> bool:
    if not isinstance(data, Mapping) or not isinstance(data.get("defined"), bool):
        return False
    header = (data.get("format"), data.get("exercise"), data.get("seed"))
    replaced = data.get("replaced")
    if header != (FORMAT, exercise.id, seed) or not isinstance(replaced, list):
        return False
    if not all(isinstance(name, str) for name in replaced):
        return False
    if not data["defined"] or "found" in data or "library" in data:
        return True
    if isinstance(exercise, Quiz):
        return "answer" in data
    return isinstance(data.get("cases"), list) and len(data["cases"]) <= len(exercise.cases)


def _failed(exercise: Exercise | Quiz, finding: Finding) -> Report:
    return Report(exercise.id, "failed", exercise.points, findings=(finding,), section=exercise.section)


def _judge_quiz(quiz: Quiz, observations: Mapping[str, Any]) -> Report:
    try:
        answer = decode(observations["answer"])
    except ValueError:
        answer = observations
    choices = ", ".join(f'"{choice}"' for choice in sorted(quiz.explanations))
    if answer is None or answer is Ellipsis:
        note = f"Put one of {choices} in place of None, run that cell, then this one."
        return Report(quiz.id, "not written", quiz.points, notes=(note,))
    letter = answer.strip().upper() if isinstance(answer, str) else ""
    if letter not in quiz.explanations:
        text = f"`{quiz.id}` should be one of {choices}, a letter in quotes."
        return _failed(quiz, Finding("not_a_choice", text, ""))
    text = f"{letter}: {quiz.explanations[letter]}"
    if letter == quiz.answer:  # only now may the others be explained without giving it away
        others = (f"{choice}: {said}" for choice, said in sorted(quiz.explanations.items()) if choice != letter)
        return Report(quiz.id, "passed", quiz.points, score=1.0, notes=(text, *others))
    return _failed(quiz, Finding(f"chose_{letter}", text, quiz.section))


@functools.lru_cache(maxsize=8192)
def reference_outcome(case: Case, index: int, implementation: Implementation, seed: int) -> Outcome:
    """What an implementation of the course's own does on a case, through the same encoding as a learner's."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        outcome = call_case(case, implementation, case.arguments_for(index, seed))
        return Outcome.from_observation({**outcome, "changed": [], "warnings": []})


class _Judgement:
    """One judgement of one exercise: its outcomes, its differences, and what explains them."""

    def __init__(self, exercise: Exercise, observations: Mapping[str, Any], seed: int) -> None:
        self.exercise, self.observations, self.seed = exercise, observations, seed
        self.outcomes = self._read_outcomes()
        self.expected = [
            reference_outcome(case, index, exercise.reference, seed) for index, case in enumerate(exercise.cases)
        ]
        self.differences = {
            index: found
            for index, (expected, got) in enumerate(zip(self.expected, self.outcomes, strict=True))
            if (found := self._difference(expected, got))
        }
        self.changed = {index for index, outcome in enumerate(self.outcomes) if outcome.changed}

    def report(self) -> Report:
        if all(outcome.error_type == "NotImplementedError" for outcome in self.outcomes):
            return Report(
                self.exercise.id,
                "not written",
                self.exercise.points,
                notes=self._why_not_written(),
                section=self.exercise.section,
            )
        families = self._families()
        score = sum(family.share for family in families if family.passed) if families[0].passed else 0.0
        complete = all(family.passed for family in families)
        findings = () if complete else self._findings()
        return Report(
            self.exercise.id,
            "passed" if complete else "partly" if score else "failed",
            self.exercise.points,
            1.0 if complete else score,
            families,
            findings,
            None if complete else self._example(findings),
            self._notes(families),
            self.exercise.section,
        )

    def _why_not_written(self) -> tuple[str, ...]:
        where = next((outcome.error["where"] for outcome in self.outcomes if outcome.error), None)
        name = where.get("function") if isinstance(where, dict) else None
        if isinstance(self.exercise.reference, type) or name in (None, self.exercise.id):
            return ()
        return (f"It calls `{str(name)[:60]}`, which is not written yet. Write that one first.",)

    def _read_outcomes(self) -> list[Outcome]:
        outcomes = []
        for data in self.observations["cases"]:
            try:
                outcomes.append(Outcome.from_observation(data))
            except ValueError:
                outcomes.append(Outcome("left no usable result"))
        end = str(self.observations.get("end"))
        missing = len(self.exercise.cases) - len(outcomes)
        if missing:
            first = TOO_LONG if end == "timeout" else end
            outcomes += [Outcome(first), *[Outcome(NOT_RUN)] * (missing - 1)]
        return outcomes

    def _difference(self, expected: Outcome, got: Outcome, loose: bool = False) -> Difference | None:
        exercise = self.exercise
        return difference(
            expected,
            got,
            returns=exercise.returns,
            exact_zeros=exercise.exact_zeros and not loose,
            loose=loose,
        )

    def _failing(self) -> list[int]:
        """Failing cases, core first, then the smallest."""
        counted = self.changed if INPUTS_UNCHANGED not in self.exercise.families else set()

        def order(index: int) -> tuple[bool, bool, int, int]:
            named = self.exercise.named_arguments(index, self.seed)
            size = sum(int(np.prod(np.shape(value))) for value in named.values() if hasattr(value, "shape"))
            not_run = self.outcomes[index].kind == NOT_RUN
            return (not_run, self.exercise.cases[index].family != self.exercise.core, size, index)

        return sorted({*self.differences, *counted}, key=order)

    def _families(self) -> tuple[Family, ...]:
        failing = set(self._failing())
        families = []
        for title, share in self.exercise.families.items():
            if title == INPUTS_UNCHANGED:
                all_ran = all(outcome.kind in ("returned", "raised") for outcome in self.outcomes)
                families.append(Family(title, share, 1, int(all_ran and not self.changed)))
                continue
            members = [index for index, case in enumerate(self.exercise.cases) if case.family == title]
            families.append(Family(title, share, len(members), len([i for i in members if i not in failing])))
        return tuple(families)

    def _findings(self) -> tuple[Finding, ...]:
        findings, unexplained = self._named(self._failing())
        if self.changed:
            findings.append(self._changed_input(min(self.changed)))
        findings += self._broken_laws(unexplained)
        general = [found for index in unexplained if (found := self._general(index))]
        if any(index in self.differences and self.differences[index].kind == "wrong_values" for index in unexplained):
            general = [found for found in general if found.id != "not_finite"]
        # Beside another mistake, NaN is most likely one of its consequences.
        findings += [found for found in general if not findings or found.id != "not_finite"][:1]
        return tuple(findings)

    def _broken_laws(self, unexplained: list[int]) -> list[Finding]:
        """A law that the smallest case breaks whose wrong values nothing else explains."""
        wrong = (index for index in unexplained if index in self.differences)
        index = next((index for index in wrong if self.differences[index].kind == "wrong_values"), None)
        if index is None:
            return []
        inputs = self.exercise.named_arguments(index, self.seed)
        value = self.outcomes[index].value
        broken = ((law, law.broken(inputs, value)) for law in self.exercise.laws)
        findings = [Finding(law.id, text, law.section) for law, text in broken if text]
        return (findings or self._nearly_right(index))[:1]

    def _nearly_right(self, index: int) -> list[Finding]:
        part = self.differences[index].part
        wanted, got = (
            _numbers_of(_part_of(outcome.value, part, self.exercise.returns))
            for outcome in (self.expected[index], self.outcomes[index])
        )
        if wanted is None or got is None or wanted.shape != got.shape:
            return []
        off = float(np.max(np.abs(wanted - got)))
        if not 0 < off < 1e-3 * max(float(np.max(np.abs(wanted))), 1e-9):
            return []
        text = (
            f"Your result is off by {off:.1g}. Is something rounded, or is a small number added that need not be there?"
        )
        return [Finding("nearly_right", text, self.exercise.section)]

    def _named(self, failing: list[int]) -> tuple[list[Finding], list[int]]:
        """Misconceptions whose results equal the learner's, the one that explains most cases first."""
        mistakes = self.exercise.misconceptions
        matches = {
            number: matched
            for number, mistake in enumerate(mistakes)
            if (matched := self._explained_by(mistake, failing))
        }
        passing = [index for index in range(len(self.exercise.cases)) if index not in failing]
        contradicted = {
            number: sum(self._predicts_failure(mistakes[number].implementation, index) for index in passing)
            for number in matches
        }
        # One that would have failed much of what is right is not what happened, whatever it equals by chance.
        matches = {number: matched for number, matched in matches.items() if contradicted[number] <= 4 * len(matched)}
        named: dict[str, tuple[Finding, list[int]]] = {}
        unexplained = list(failing)
        while matches:
            best = max(
                matches,
                key=lambda number: (_common(matches[number], unexplained), -contradicted[number], -number),
            )
            matched = matches.pop(best)
            covered = [index for index in unexplained if index in matched]
            if not covered:
                break
            mistake = mistakes[best]
            inputs = self.exercise.named_arguments(covered[0], self.seed)
            text = mistake.explanation if isinstance(mistake.explanation, str) else mistake.explanation(inputs)
            named.setdefault(mistake.id, (Finding(mistake.id, text, mistake.section), covered))
            unexplained = [index for index in unexplained if index not in covered]
        if any(self.differences[index].kind == "wrong_values" for index in unexplained if index in self.differences):
            # NaN equals NaN whatever led to it: alone it names nothing in an answer that is wrong elsewhere, too.
            vague = [name for name, (_, covered) in named.items() if all(self._is_nan(index) for index in covered)]
            unexplained += [index for name in vague for index in named.pop(name)[1]]
        return [finding for finding, _ in named.values()], [index for index in failing if index in unexplained]

    def _is_nan(self, index: int) -> bool:
        return index in self.differences and self.differences[index].kind == "not_finite"

    def _explained_by(self, mistake: Misconception, failing: list[int]) -> list[int]:
        """The failing cases whose results equal the misconception's; none if it mostly predicts other results.

        Two results can be equal by coincidence where a case is small: softmax of two scores the wrong way round is
        that of their negatives. The core, which comes first, may decide alone: an answer that does not go on to the
        other parts yet fails there for reasons of its own.
        """
        matched, against = [], 0
        in_core: list[int] = []
        core_size = sum(self.exercise.cases[index].family == self.exercise.core for index in failing)
        for done, index in enumerate(failing, 1):
            if self._matches(mistake.implementation, index):
                matched.append(index)
            elif self._predicts_failure(mistake.implementation, index) and not self._equals(
                mistake.implementation, index
            ):
                against += 1
            if done == core_size and len(matched) >= max(2, against):
                in_core = list(matched)
            hopeless = against > len(matched) + len(failing) - done  # the rest cannot make up for it
            if hopeless or (not matched and against == _ENOUGH):
                return in_core
        return matched if len(matched) >= against else in_core

    def _predicts_failure(self, implementation: Implementation, index: int) -> bool:
        return self._difference(self.expected[index], self._wrong_outcome(implementation, index)) is not None

    def _wrong_outcome(self, implementation: Implementation, index: int) -> Outcome:
        return reference_outcome(self.exercise.cases[index], index, implementation, self.seed)

    def _equals(self, implementation: Implementation, index: int) -> bool:
        return self._difference(self._wrong_outcome(implementation, index), self.outcomes[index], loose=True) is None

    def _matches(self, implementation: Implementation, index: int) -> bool:
        if index not in self.differences or self.outcomes[index].kind not in ("returned", "raised"):
            return False
        if not self._equals(implementation, index) or not self._predicts_failure(implementation, index):
            return False
        return self.expected[index].kind != "raised" or self._is_about_errors(implementation)

    def _is_about_errors(self, implementation: Implementation) -> bool:
        """Whether a misconception is right wherever a value is asked for, so that a missing error is its own."""
        values = (index for index, expected in enumerate(self.expected) if expected.kind == "returned")
        return not any(self._predicts_failure(implementation, index) for index in values)

    def _changed_input(self, index: int) -> Finding:
        names = list(self.exercise.named_arguments(index, self.seed))
        changed = [
            names[key] if isinstance(key, int) and key < len(names) else str(key)
            for key in self.outcomes[index].changed
        ]
        text = (
            f"Your code changed its input `{'`, `'.join(changed)}`: the caller's array was different afterwards. "
            "Operators such as `-=` and assignments such as `x[mask] = ...` write into it; make a new array instead."
        )
        return Finding("changes_input", text, "Common mistakes")

    def _general(self, index: int) -> Finding | None:
        """A sentence for failures that need no misconception: errors, loops, wrong types and shapes."""
        if index not in self.differences:
            return None
        found, outcome, name = self.differences[index], self.outcomes[index], self.exercise.id
        part = f" for `{found.part}`" if found.part else ""
        texts = {
            "returned_none": f"`{name}` returned None{part}: {found.text}",
            "wrong_type": f"`{name}` returned the wrong type{part}: {found.text}.",
            "wrong_shape": f"`{name}` returned the wrong shape{part}: {found.text}.",
            "wrong_dtype": f"`{name}` returned the wrong dtype{part}: {found.text}.",
            "not_finite": f"`{name}` returned NaN or infinity{part} where ordinary numbers were expected.",
            "no_error": f"`{name}`: {found.text}. Check the argument and `raise` the error yourself.",
            "asserted": f"`{name}`: {found.text}. An `assert` vanishes under `python -O`: use `if ...: raise`.",
            "wrong_error": f"`{name}`: {found.text}.",
            "asked_for_input": f"`{name}` calls `input()`. Nobody answers in a check: take its arguments instead.",
        }
        if found.kind in texts:
            return Finding(found.kind, texts[found.kind], self.exercise.section)
        if outcome.kind == "raised":
            return self._raised(outcome)
        if outcome.kind == TOO_LONG:
            text = f"`{name}` {TOO_LONG} and was stopped. Is there a loop that never ends?"
            return Finding("endless_loop", text, self.exercise.section)
        if outcome.kind not in ("returned", NOT_RUN):
            return Finding(
                "crashed",
                f"`{name}` {outcome.kind}, so the rest of the check could not run.",
                self.exercise.section,
            )
        return None

    def _raised(self, outcome: Outcome) -> Finding:
        name, error_type = self.exercise.id, outcome.error_type
        text = f"`{name}` raised {show(outcome)}."
        if error_type in ("SystemExit", "KeyboardInterrupt"):
            return Finding(
                "exits",
                f"`{name}` raised {error_type}: `exit()` or `sys.exit()` ends a program; use `return`.",
                "",
            )
        if error_type == "MemoryError":
            return Finding(
                "out_of_memory",
                f"`{name}` asked for more memory than a check may use.",
                self.exercise.section,
            )
        if outcome.error and outcome.error["where"] is None and error_type == "AttributeError":
            return Finding(
                "missing_attribute",
                f"{text} The exercise names the attributes it must have.",
                self.exercise.section,
            )
        if outcome.error and outcome.error["where"] is None and error_type == "TypeError":
            return Finding(
                "wrong_signature",
                f"{text} Keep the parameters as they were in the exercise.",
                self.exercise.section,
            )
        if "could not be broadcast" in text:
            text += " Two shapes do not line up: is `keepdims=True` missing in a sum or maximum?"
        if "infinity to integer" in text:
            text += " An integer array cannot hold infinity: `np.where`, or a copy in float, can."
        if "boolean index did not match" in text:
            text += " Indexing wants a mask of the array's own shape; `np.where` lets a smaller one broadcast."
        return Finding("raises", text, self.exercise.section)

    def _example(self, findings: tuple[Finding, ...]) -> Example | None:
        failing = [index for index in self._failing() if index in self.differences]
        if not failing:
            return None
        index = failing[0]
        found = self.differences[index]
        inputs = self.exercise.named_arguments(index, self.seed)
        expected, got = self.expected[index], self.outcomes[index]
        if found.part and found.kind in ("wrong_values", "not_finite"):
            expected_text, got_text = (
                show(_part_of(outcome.value, found.part, self.exercise.returns), found.index)
                for outcome in (expected, got)
            )
            expected_text, got_text = f"{found.part} {expected_text}", f"{found.part} {got_text}"
        elif found.kind in ("wrong_shape", "wrong_type", "wrong_dtype", "returned_none"):
            part = f"{found.part}: " if found.part else ""
            wanted, _, came = found.text.removeprefix("expected ").partition(", got ")
            expected_text, got_text = part + wanted, part + came
        else:
            expected_text, got_text = show(expected, found.index), show(got, found.index)
        if expected_text == got_text:
            got_text += f" ({found.text}, in digits that are not shown)"
        return Example(
            self.exercise.cases[index].title,
            tuple((name, show(value)) for name, value in inputs.items()),
            expected_text,
            got_text,
        )

    def _notes(self, families: tuple[Family, ...]) -> tuple[str, ...]:
        notes = []
        if not families[0].passed and any(family.passed for family in families[1:]):
            notes.append(f'the other parts count once "{families[0].title}" passes.')
        heard = list(dict.fromkeys(text for outcome in self.outcomes for text in outcome.warnings))
        if heard:
            notes.append(f"your code raised a warning, which costs nothing: {heard[0]}")
        size = self.observations.get("printed_bytes")
        if isinstance(size, int) and size:
            text = str(self.observations.get("printed", ""))
            first = text.strip().splitlines()[0][:80] if text.strip() else ""
            amount = f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} characters"
            notes.append(
                f"your code printed {amount} while it was checked" + (f', beginning "{first}".' if first else ".")
            )
        return tuple(notes)


def _common(some: Iterable[int], others: Iterable[int]) -> int:
    return len(set(some) & set(others))


def _numbers_of(value: Any) -> np.ndarray | None:
    array = getattr(value, "array", value)
    if isinstance(array, bool) or not isinstance(array, int | float | np.generic | np.ndarray):
        return None
    array = np.asarray(array, dtype=float)
    return array if array.size and np.isfinite(array).all() else None


def _part_of(value: Any, part: str, returns: tuple[str, ...]) -> Any:
    """The part of a result that a difference names: "weights", "[1]", or "steps[0]"."""
    name, *places = part.replace("]", "").split("[")
    if name:
        value = value[name] if isinstance(value, dict) else value[returns.index(name)]
    for place in places:
        value = value[int(place)]
    return value
