"""A course folder as an instructor has one, and its commands as from a shell."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat.notebooknode import NotebookNode
from nbgrader.api import Gradebook

from helpers.grading.sandbox import unavailable
from submissions import SUBMISSIONS
from submissions.chapter import CHAPTER, EXERCISES, source_notebook
from submissions.escapes import SECRET

ROOT = Path(__file__).parents[2]
#: Seconds for a cell here; a check stops an endless loop after 10 by itself.
IN_TIME = 14


def our_config() -> str:
    return (ROOT / "nbgrader_config.py").read_text(encoding="utf-8") + (
        f"\nc.Execute.timeout = {IN_TIME}\nc.ExecuteSubmission.max_restarts = 3\n"
    )


def environment() -> dict[str, str]:
    """What commands run with: this Python's programs, this course's `helpers`, and a secret."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "SECRET_OF_THE_GRADER": SECRET,
    }


@dataclass(frozen=True)
class Course:
    """A course folder with its own gradebook."""

    path: Path

    @classmethod
    def released(cls, path: Path) -> Course:
        """A new one, with the small chapter released and nothing handed in yet."""
        folder = path / "solutions" / CHAPTER
        folder.mkdir(parents=True)
        nbformat.write(source_notebook(), folder / f"{CHAPTER}.ipynb")
        (path / "nbgrader_config.py").write_text(our_config(), encoding="utf-8")
        course = cls(path)
        course.nbgrader("generate_assignment", CHAPTER)
        return course

    def copy(self, name: str) -> Course:
        """The same beside it."""
        return Course(shutil.copytree(self.path, self.path.with_name(name), symlinks=True))

    def hand_in(self, names: Iterable[str]) -> Course:
        for name in names:
            path = self.submitted(name)
            path.parent.mkdir(parents=True)
            SUBMISSIONS[name].hand_in(self.released_notebook(), path)
        return self

    # Its commands

    def start(self, module: str, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a command here; both its streams come in one."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.path,
            env=environment() | settings.pop("env", {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **settings,
        )

    def command(self, module: str, *arguments: str, code: int = 0, **settings: Any) -> str:
        """Run a command here to its end, which has to have this exit code; returns all it printed."""
        process = self.start(module, *arguments, **settings)
        said, _ = process.communicate(timeout=900)
        assert process.returncode == code, said
        return said

    def nbgrader(self, *arguments: str, code: int = 0, **settings: Any) -> str:
        return self.command("nbgrader", *arguments, code=code, **settings)

    def grading(self, *arguments: str, code: int = 0, **settings: Any) -> str:
        return self.command("helpers.grading", *arguments, code=code, **settings)

    # What is in it

    def released_notebook(self) -> NotebookNode:
        return nbformat.read(self.path / "notebooks" / CHAPTER / f"{CHAPTER}.ipynb", as_version=4)

    def submitted(self, student: str) -> Path:
        return self.path / "submitted" / student / CHAPTER / f"{CHAPTER}.ipynb"

    def autograded(self, student: str) -> NotebookNode:
        return nbformat.read(self.path / "autograded" / student / CHAPTER / f"{CHAPTER}.ipynb", as_version=4)

    def feedback(self, student: str) -> str:
        return (self.path / "feedback" / student / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")

    def grades(self, student: str) -> dict[str, Any]:
        """By grade_id what the gradebook holds: the automatic score, None where a person has to read; {} for nobody."""
        return {
            name: None if grade["needs_manual_grade"] else grade["auto_score"]
            for name, grade in self.gradebook().get(student, {}).items()
        }

    def outcome(self, student: str) -> tuple[Any, ...]:
        grades = self.grades(student)
        return tuple(grades.get(f"{name}_check") for name in EXERCISES)

    def gradebook(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What the gradebook holds by student and grade_id, without what only tells when and in which order."""
        with Gradebook(f"sqlite:///{self.path / 'gradebook.db'}") as gradebook:
            return {
                submission.student_id: {
                    grade.name: {
                        "auto_score": grade.auto_score,
                        "manual_score": grade.manual_score,
                        "max_score": grade.max_score,
                        "needs_manual_grade": grade.needs_manual_grade,
                        "failed_tests": grade.failed_tests,
                        "comment": [
                            (comment.auto_comment, comment.manual_comment)
                            for comment in notebook.comments
                            if comment.name == grade.name
                        ],
                    }
                    for notebook in submission.notebooks
                    for grade in notebook.grades
                }
                for submission in gradebook.assignment_submissions(CHAPTER)
            }

    def report(self) -> dict[str, str]:
        """By student what the report's table says, all of it as one text."""
        text = (self.path / "grading" / "report.csv").read_text(encoding="utf-8")
        said: dict[str, str] = {}
        for row in csv.DictReader(io.StringIO(text)):
            said[row["student"]] = said.get(row["student"], "") + " ".join(row.values()) + "\n"
        return said


def need_sandbox() -> None:
    """Skip the test that asks where there is no sandbox; fail it where all tests have to run."""
    if unavailable():
        (pytest.fail if os.environ.get("REQUIRE_ALL_TESTS") else pytest.skip)(unavailable())


def left_running(mark: str) -> list[str]:
    """Processes that have a text in their command line or environment, this one and its like left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), *process.environ().values()]
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and any(mark in text for text in told):
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
    return found


def nothing_left_running(mark: str, seconds: float = 10) -> list[str]:
    """Wait until no process has this mark; returns those that stay."""
    until = time.monotonic() + seconds
    while (found := left_running(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return found
