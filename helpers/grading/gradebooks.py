"""The gradebook as `run` looks at it beside nbgrader: what it knows, and what people decided in it."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from unittest import mock

import nbgrader.api
from nbgrader.api import Gradebook, MissingEntry
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from helpers.grading.course import Course, GradingError, Submission
from helpers.grading.release import ReleaseError, released_files


@dataclass(frozen=True)
class Mark:
    """What the gradebook holds for one graded cell, and the text that a person graded, if it is an answer."""

    auto_score: float | None
    manual_score: float | None
    needs_manual_grade: bool
    answer: str = ""


@contextlib.contextmanager
def one_engine() -> Iterator[None]:
    """Let all gradebooks that nbgrader's steps open share an engine, which remembers the statements it has compiled."""
    with mock.patch.object(nbgrader.api, "create_engine", functools.cache(nbgrader.api.create_engine)):
        yield


@contextlib.contextmanager
def opened(course: Course) -> Iterator[Gradebook]:
    """The course's gradebook. GradingError if it cannot be opened."""
    try:
        gradebook = Gradebook(course.db_url, course.directory.course_id)
    except OperationalError as error:
        if "locked" in str(error):
            raise GradingError("Another program is using the gradebook. Wait for it, then run again.") from None
        raise GradingError(f"The gradebook cannot be opened ({error}). Is --db right? See GRADING.md.") from None
    except (SQLAlchemyError, ImportError, ValueError) as error:  # ImportError: the database's driver is missing
        raise GradingError(f"The gradebook cannot be opened ({error}). Is --db right? See GRADING.md.") from None
    with gradebook:
        yield gradebook


def known_submissions(course: Course) -> set[tuple[str, str]]:
    """Student and chapter of everything that the gradebook has seen."""
    with opened(course) as gradebook:
        return {
            (submission.student_id, assignment.name)
            for assignment in gradebook.assignments
            for submission in assignment.submissions
        }


def enter_assignments(course: Course, chapters: Iterable[str]) -> None:
    """Put the chapters that the gradebook does not know into it, as `nbgrader generate_assignment` does."""
    with opened(course) as gradebook:
        missing = [chapter for chapter in chapters if not _knows(gradebook, chapter)]
    lost = [chapter for chapter in missing if not (course.source(chapter) / f"{chapter}.ipynb").is_file()]
    if lost:
        raise GradingError(
            f"The gradebook does not know {', '.join(lost)}, and {course.source(lost[0]).parent} has no "
            "notebook of it. Put the chapter's source there, or name the gradebook with --db."
        )
    if missing:
        print(f"Entering {', '.join(missing)} in the gradebook.")
        try:
            released_files(course.root, missing, course.db_url)
        except ReleaseError as error:
            raise GradingError(str(error)) from None


def _knows(gradebook: Gradebook, chapter: str) -> bool:
    try:
        return any(notebook.source_cells for notebook in gradebook.find_assignment(chapter).notebooks)
    except MissingEntry:
        return False


def marks_of(submission: Submission) -> dict[str, Mark]:
    """By grade_id what the gradebook holds for a submission; {} if it has not seen it."""
    answers = _answers(submission)
    with opened(submission.course) as gradebook:
        try:
            found = gradebook.find_submission_notebook(submission.chapter, submission.chapter, submission.student)
        except MissingEntry:
            return {}
        return {
            grade.name: Mark(
                grade.auto_score, grade.manual_score, grade.needs_manual_grade, answers.get(grade.name, "")
            )
            for grade in found.grades
        }


def keep_reviews(submission: Submission, before: dict[str, Mark]) -> dict[str, Mark]:
    """Take back nbgrader's demand to look again at what a person graded, where nothing about it has changed.

    Returns what the gradebook holds now.
    """
    after = marks_of(submission)
    unchanged = {
        name: before[name].needs_manual_grade
        for name, mark in after.items()
        if name in before
        and mark.manual_score is not None
        and (mark.auto_score, mark.answer) == (before[name].auto_score, before[name].answer)
    }
    if unchanged:
        with opened(submission.course) as gradebook:
            for name, needs_manual_grade in unchanged.items():
                grade = gradebook.find_grade(name, submission.chapter, submission.chapter, submission.student)
                grade.needs_manual_grade = needs_manual_grade
            gradebook.db.commit()
    return after


def _answers(submission: Submission) -> dict[str, str]:
    """By grade_id the texts of the graded notebook's answers that a person grades."""
    try:
        cells = json.loads(submission.autograded.read_bytes())["cells"]
        marked = [(cell.get("metadata", {}).get("nbgrader", {}), cell) for cell in cells]
        return {
            marks["grade_id"]: "".join(cell["source"])
            for marks, cell in marked
            if marks.get("grade") and marks.get("solution")
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
