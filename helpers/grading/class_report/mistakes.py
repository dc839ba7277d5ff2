"""What the ids of named mistakes mean, in words for a person who teaches."""

from __future__ import annotations

from helpers.checks.comparing import difference
from helpers.checks.exercise import Exercise, Misconception, Quiz
from helpers.checks.judging import reference_outcome
from helpers.checks.registry import chapter as exercises_of

# Explanations with numbers are made for an example, with this seed.
_SEED = 0

#: Failures that belong to no exercise in particular.
GENERAL = {
    "asked_for_input": "It calls `input()`, and nobody answers in a check.",
    "asserted": "It uses `assert` where an error was to be raised.",
    "changes_input": "It writes into its arguments.",
    "crashed": "It ended the process that ran it.",
    "endless_loop": "It ran into the time limit of the check.",
    "exits": "It calls `exit()` or interrupts the program.",
    "library_call": "A library function does the work of the exercise.",
    "missing_attribute": "An attribute that the exercise names is missing.",
    "nearly_right": "Its numbers are a little off: something is rounded, or a small number is added.",
    "no_error": "It accepts an argument for which it should raise an error.",
    "not_a_choice": "The answer to the quiz is none of the letters.",
    "not_defined": "Nothing of that name was there when the check ran.",
    "not_finite": "It returns NaN or infinity where ordinary numbers were expected.",
    "not_judged": "The check could not be judged; the notes say why.",
    "out_of_memory": "It asked for more memory than a check may use.",
    "raises": "It ends with an error.",
    "replaced_library": "It replaces parts of a library. They were put back.",
    "returned_none": "It returns None.",
    "wrong_dtype": "It returns numbers of the wrong dtype.",
    "wrong_error": "It raises another error than the one asked for.",
    "wrong_kind": "The name stands for something that is neither a function nor a class.",
    "wrong_shape": "It returns the wrong shape.",
    "wrong_signature": "It has other parameters than the exercise.",
    "wrong_type": "It returns the wrong type.",
}
#: Those that end a check before its time.
STOPPED = ("crashed", "endless_loop", "exits", "out_of_memory")


def short_name(mistake: str) -> str:
    """An id as words: "no_max_subtracted" becomes "no max subtracted"."""
    return mistake.replace("_", " ")


def explanation(chapter: str, exercise_id: str, mistake: str) -> str:
    """What learners are told about a mistake, by way of an example where that depends on numbers; "" if not known."""
    exercise = next((exercise for exercise in exercises_of(chapter) if exercise.id == exercise_id), None)
    if isinstance(exercise, Quiz):
        return exercise.explanations.get(mistake.removeprefix("chose_"), GENERAL.get(mistake, ""))
    for misconception in exercise.misconceptions if exercise else ():
        if misconception.id == mistake:
            return _told(exercise, misconception)
    return GENERAL.get(mistake, "")


def _told(exercise: Exercise, misconception: Misconception) -> str:
    if isinstance(misconception.explanation, str):
        return misconception.explanation
    return misconception.explanation(exercise.named_arguments(_telling_case(exercise, misconception), _SEED))


def _telling_case(exercise: Exercise, misconception: Misconception) -> int:
    """A case in which the mistake shows: numbers from any other might be the right ones."""
    for index, case in enumerate(exercise.cases):
        right = reference_outcome(case, index, exercise.reference, _SEED)
        if difference(right, reference_outcome(case, index, misconception.implementation, _SEED)):
            return index
    return 0
