"""What a class hands in: honest, mangled and hostile submissions, and what has to become of each.

Every one is made out of a rightly answered notebook of the small chapter in `chapter`, by a function that changes it.
What a submission earned it must get, and what was done to it or with it must be said where an instructor reads.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbformat.notebooknode import NotebookNode

from submissions.chapter import ALL, Outcome, write_answers

#: Changes the notebook in place. It may write files into the submission's folder; return the file's content, to be
#: handed in instead; or put something else in the notebook's place itself.
Change = Callable[[NotebookNode, Path], bytes | None]


@dataclass(frozen=True)
class Submission:
    """`said` are parts of sentences that the instructor must read. `takes_long`: it costs a time limit or two."""

    change: Change
    outcome: Outcome
    said: tuple[str, ...] = ()
    set_aside: bool = False
    takes_long: bool = False
    has_notebook: bool = True

    @property
    def name(self) -> str:
        return self.change.__name__

    def hand_in(self, notebook: NotebookNode, path: Path) -> None:
        """Write it to `path`, from the released notebook."""
        write_answers(notebook)
        content = self.change(notebook, path.parent)
        if content is not None:
            path.write_bytes(content)
        elif self.has_notebook and not os.path.lexists(path):
            path.write_text(json.dumps(notebook), encoding="utf-8")


SUBMISSIONS: dict[str, Submission] = {}


def submission(outcome: Outcome = ALL, *said: str, takes_long: bool = False) -> Callable[[Change], Change]:
    """Mark a submission with what it earns."""

    def mark(change: Change) -> Change:
        SUBMISSIONS[change.__name__] = Submission(change, outcome, said, takes_long=takes_long)
        return change

    return mark


def set_aside(*said: str, has_notebook: bool = True) -> Callable[[Change], Change]:
    """Mark a submission that cannot be graded, for the reason that is said."""

    def mark(change: Change) -> Change:
        nothing = (None, None, None)
        SUBMISSIONS[change.__name__] = Submission(change, nothing, said, set_aside=True, has_notebook=has_notebook)
        return change

    return mark


for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
