"""Finds an exercise by its id. One module per chapter; a module is imported only when its chapter is needed."""

from __future__ import annotations

import difflib
import importlib
from types import ModuleType

from helpers.checks import pristine
from helpers.checks.exercise import Exercise, Quiz

#: Chapter -> module of its exercises, in the order of the course. Each has EXERCISES, a tuple.
CHAPTERS = {
    "01_softmax": "chapter_01_softmax",
    "02_single_head": "chapter_02_single_head",
    "03_multi_head": "chapter_03_multi_head",
    "04_output_mixing": "chapter_04_output_mixing",
    "05_kv_cache": "chapter_05_kv_cache",
    "06_gqa": "chapter_06_gqa",
}


def chapter(name: str) -> tuple[Exercise | Quiz, ...]:
    """The exercises and quizzes of one chapter, such as "01_softmax", in order. ValueError if there is none."""
    if name not in CHAPTERS:
        raise ValueError(f"There is no chapter {name!r} with exercises; there are {', '.join(CHAPTERS)}.")
    return _module(name).EXERCISES


def find(exercise_id: str) -> Exercise | Quiz:
    """The exercise or quiz with this id. ValueError, with the nearest names, if there is none."""
    known = []
    for name in CHAPTERS:  # in order, so that the first chapters never wait for torch
        for exercise in chapter(name):
            if exercise.id == exercise_id:
                return exercise
            known.append(exercise.id)
    near = difflib.get_close_matches(str(exercise_id), known, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"There is no exercise {exercise_id!r}.{hint}")


def chapter_of(exercise_id: str) -> str:
    """The chapter that an exercise belongs to. ValueError if there is none."""
    find(exercise_id)
    return next(name for name in CHAPTERS if any(exercise.id == exercise_id for exercise in chapter(name)))


def _module(name: str) -> ModuleType:
    module = importlib.import_module(f"helpers.checks.{CHAPTERS[name]}")
    pristine.remember()
    return module
