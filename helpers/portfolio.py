"""The learner's own earlier answers, read from their notebooks, so that each chapter runs on what they built."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from helpers import notebooks
from helpers.checks import MISSING, isolation, judge_answer
from helpers.checks.registry import chapter as exercises_of

TRIAL_LIMIT = 60.0  # seconds for all that a notebook defines; a single statement has less
_on_trial = False


def load(chapter: str, name: str) -> Any:
    """The learner's `name` from an earlier chapter, if it passes its check; else a stand-in. Says which in one line.

    The notebook is looked for beside the one that is running: `load("01_softmax", "softmax")` in
    `notebooks/02_single_head/` reads `notebooks/01_softmax/01_softmax.ipynb`. Nobody is held up: a missing,
    unfinished or wrong answer gives the course's stand-in. ValueError for a name that the chapter does not teach.
    """
    exercise = next((e for e in exercises_of(chapter) if e.id == name and hasattr(e, "reference")), None)
    if exercise is None:
        raise ValueError(f"Chapter {chapter} has no exercise {name!r}.")
    path = _find(chapter)
    if path is None:
        return _stand_in(exercise, f"there is no {chapter}/{chapter}.ipynb beside this notebook")
    try:
        answer, reason = _answer(str(path), path.stat().st_mtime_ns, name)
    except ValueError as error:
        return _stand_in(exercise, str(error).rstrip("."))
    if reason:
        return _stand_in(exercise, reason)
    print(f"{name}: your own, from chapter {chapter}.")
    return answer


def _stand_in(exercise: Any, reason: str) -> Any:
    print(f"{exercise.id}: the course's stand-in, as {reason}.")
    return exercise.reference


def _find(chapter: str) -> Path | None:
    here = Path.cwd()
    places = (folder / chapter / f"{chapter}.ipynb" for folder in (here.parent, here / "notebooks", here))
    return next((place for place in places if place.is_file()), None)


@lru_cache(maxsize=64)
def _answer(path: str, changed: int, name: str) -> tuple[Any, str]:
    """The learner's object and "", or None and the reason why it can't be used. `changed` makes edits count."""
    notebook, names = _defined(path, changed)
    if name not in names:
        return None, f"yours in {Path(path).name} is not defined"
    report = judge_answer(name, names.get(name, MISSING), notebook)
    if report.passed:
        return names[name], ""
    state = {"not written": "is not written yet", "partly": "is only partly right"}.get(
        report.state, "is not right yet"
    )
    return None, f"yours in {Path(path).name} {state}"


@lru_cache(maxsize=16)
def _defined(path: str, changed: int) -> tuple[notebooks.Notebook, dict[str, Any]]:
    notebook = notebooks.read(path)
    if not _on_trial:
        end = isolation.run(lambda send: _try_out(notebook), TRIAL_LIMIT).end
        if end != "done":
            raise ValueError(f"the code of {notebook.path.name} {'takes too long' if end == 'timeout' else end}")
    return notebook, dict(notebooks.define(notebook).names)


def _try_out(notebook: notebooks.Notebook) -> None:
    """In a child process: see whether the definitions leave the process alive, whatever they load themselves."""
    global _on_trial
    _on_trial = True
    notebooks.define(notebook)
