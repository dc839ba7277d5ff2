"""What is known of a class's work: scores from the gradebook, verdicts from graded notebooks, and `run`'s records."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbgrader.api import (
    Assignment,
    BaseCell,
    Grade,
    Gradebook,
    GradeCell,
    Notebook,
    SolutionCell,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
    TaskCell,
)
from sqlalchemy import create_engine, func, inspect, select
from sqlalchemy.engine import Row, make_url
from sqlalchemy.exc import SQLAlchemyError

from helpers.checks.registry import chapter as exercises_of
from helpers.grading import METADATA
from helpers.grading.course import Course, GradingError, Submission
from helpers.notebooks import CHECK

GRADED = "graded"
SET_ASIDE = "set aside"
NOT_GRADED = "not graded yet"
NOTHING = "nothing handed in"

# Of an exercise, when there is no verdict on it.
WAITS = "waits for a person"
BY_HAND = "graded by hand"
NOT_WRITTEN = "not written"
ONLY_SCORED = "graded, without details"
_VERDICTS = ("passed", "partly", "failed", "not written", "not judged")

NEEDED = "needed"
DONE = "done"

Key = tuple[str, str]  # student, chapter


@dataclass(frozen=True)
class Person:
    """A student. `words` are what must not appear where the class stays anonymous."""

    id: str
    name: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """Something that earns points: a checked exercise, a quiz, or an answer that a person reads."""

    chapter: str
    cell: str
    points: float
    by_hand: bool

    @property
    def id(self) -> str:
        return self.cell.removesuffix(CHECK)


@dataclass(frozen=True)
class Result:
    """How one student did in one exercise. `score` is None while nobody has given one."""

    state: str
    score: float | None
    manual: str = ""
    misconceptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Work:
    """One student's work on one chapter. `results` is empty until it is graded; `sandbox` None when not known.

    `outdated` means that another version was handed in after this one was graded or set aside.
    """

    student: str
    chapter: str
    state: str = NOTHING
    reason: str = ""
    sandbox: bool | None = None
    notes: tuple[str, ...] = ()
    results: dict[str, Result] = field(default_factory=dict)
    has_verdicts: bool = False
    outdated: bool = False
    seconds_late: float = 0.0
    penalty: float = 0.0

    @property
    def score(self) -> float:
        """Its points after the late penalty, as nbgrader exports them."""
        return max(0.0, sum(result.score or 0.0 for result in self.results.values()) - self.penalty)

    @property
    def manual(self) -> list[str]:
        """The exercises that a person has to look at."""
        return [exercise for exercise, result in self.results.items() if result.manual == NEEDED]


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, so that something is missing here."""

    student: str
    chapter: str
    text: str


@dataclass
class ClassResults:
    """A class: its exercises by chapter, its people by id, and everybody's work on every chapter."""

    exercises: dict[str, list[Exercise]]
    people: dict[str, Person]
    works: dict[Key, Work]
    problems: list[Problem]

    def of_chapter(self, chapter: str) -> list[Work]:
        return [work for work in self.works.values() if work.chapter == chapter]

    def with_submissions(self) -> ClassResults:
        """The same without chapters for which nobody handed in anything."""
        chapters = {work.chapter for work in self.works.values() if work.state != NOTHING}
        return ClassResults(
            exercises={chapter: found for chapter, found in self.exercises.items() if chapter in chapters},
            people=self.people,
            works={key: work for key, work in self.works.items() if work.chapter in chapters},
            problems=[problem for problem in self.problems if problem.chapter in chapters],
        )


def read_results(course: Course, chapters: list[str]) -> ClassResults:
    """Everything known about these chapters. Files that cannot be read are told in `problems`, and nothing else fails.

    GradingError when the gradebook cannot be read.
    """
    book = _read_gradebook(course, chapters)
    handed_in = {(submission.student, submission.chapter) for submission in course.submissions(chapters)}
    recorded = {
        (path.stem, chapter)
        for chapter in chapters
        for path in (course.records / "records" / chapter).glob("*.json")
        if not path.name.startswith(".")
    }
    students = {student for student, _ in handed_in | recorded | set(book.marks)} | set(book.people)
    results = ClassResults(
        exercises=book.exercises,
        people={student: book.people.get(student, Person(student)) for student in sorted(students)},
        works={},
        problems=[],
    )
    for chapter in chapters:
        for student in results.people:
            key = (student, chapter)
            work = Work(student, chapter)
            if key in handed_in or key in recorded or key in book.marks:
                work = _read_work(Submission(course, student, chapter), key in handed_in, book, results.problems)
            results.works[key] = work
    return results


# The gradebook


@dataclass
class _Book:
    exercises: dict[str, list[Exercise]]
    people: dict[str, Person]
    marks: dict[Key, dict[str, Row[Any]]]
    late: dict[Key, tuple[float, float]]


def _read_gradebook(course: Course, chapters: list[str]) -> _Book:
    directory = course.directory
    try:
        if not _is_gradebook(directory.db_url):
            raise GradingError(
                "There is no gradebook yet. `run` makes one, and so does `nbgrader generate_assignment`; "
                "a gradebook elsewhere is named with --db."
            )
        with Gradebook(directory.db_url, directory.course_id) as gradebook:
            return _Book(
                exercises=_exercises(gradebook, chapters),
                people={student.id: _person(student) for student in gradebook.db.scalars(select(Student))},
                marks=_marks(gradebook, chapters),
                late=_late(gradebook, chapters),
            )
    except (SQLAlchemyError, ImportError) as error:  # ImportError: the database's driver is missing
        raise GradingError(f"The gradebook cannot be read ({error}). Is --db right? See GRADING.md.") from error


def _is_gradebook(db_url: str) -> bool:
    """Whether nbgrader's tables are there. Opening a gradebook would make them."""
    url = make_url(db_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        return False
    engine = create_engine(url)
    try:
        return inspect(engine).has_table(Grade.__tablename__)
    finally:
        engine.dispose()


def _person(student: Student) -> Person:
    parts = (student.first_name, student.last_name, student.email, student.lms_user_id)
    name = " ".join(part.strip() for part in parts[:2] if part and part.strip())
    return Person(student.id, name, tuple(part.strip() for part in (student.id, *parts) if part and part.strip()))


def _exercises(gradebook: Gradebook, chapters: list[str]) -> dict[str, list[Exercise]]:
    """What earns points by chapter: first what is checked, in the chapter's order, then what a person reads."""
    by_hand = set(gradebook.db.execute(select(SolutionCell.notebook_id, SolutionCell.name)).all())
    found: dict[str, list[Exercise]] = {chapter: [] for chapter in chapters}
    for kind in (GradeCell, TaskCell):
        rows = select(Assignment.name, kind.notebook_id, kind.name, kind.max_score)
        rows = rows.join(Notebook, kind.notebook_id == Notebook.id)
        rows = rows.join(Assignment, Notebook.assignment_id == Assignment.id).where(Assignment.name.in_(chapters))
        for chapter, notebook, cell, points in gradebook.db.execute(rows):
            hand = kind is TaskCell or (notebook, cell) in by_hand
            found[chapter].append(Exercise(chapter, cell, float(points), hand))
    return {chapter: _in_order(chapter, exercises) for chapter, exercises in found.items()}


def _in_order(chapter: str, exercises: Iterable[Exercise]) -> list[Exercise]:
    order = [exercise.id for exercise in exercises_of(chapter)]

    def place(exercise: Exercise) -> tuple[int, str]:
        return (order.index(exercise.id) if exercise.id in order else len(order), exercise.cell)

    return sorted(exercises, key=place)


def _marks(gradebook: Gradebook, chapters: list[str]) -> dict[Key, dict[str, Row[Any]]]:
    """By student and chapter, then by cell, what the gradebook says; nbgrader makes rows before it grades."""
    rows = (
        select(
            SubmittedAssignment.student_id,
            Assignment.name.label("chapter"),
            BaseCell.name.label("cell"),
            Grade.auto_score,
            Grade.manual_score,
            Grade.score,
            Grade.needs_manual_grade,
        )
        .select_from(Grade)
        .join(BaseCell, Grade.cell_id == BaseCell.id)
        .join(SubmittedNotebook, Grade.notebook_id == SubmittedNotebook.id)
        .join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        .where(Assignment.name.in_(chapters))
    )
    marks: dict[Key, dict[str, Row[Any]]] = {}
    for row in gradebook.db.execute(rows):
        marks.setdefault((row.student_id, row.chapter), {})[row.cell] = row
    return marks


def _late(gradebook: Gradebook, chapters: list[str]) -> dict[Key, tuple[float, float]]:
    """Seconds after the due date, extensions counted, and the penalty, of what came late."""
    penalty = (
        select(func.coalesce(func.sum(SubmittedNotebook.late_submission_penalty), 0.0))
        .where(SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        .correlate(SubmittedAssignment)
        .scalar_subquery()
    )
    rows = (
        select(
            SubmittedAssignment.student_id,
            Assignment.name,
            SubmittedAssignment.timestamp,
            Assignment.duedate,
            SubmittedAssignment.extension,
            penalty,
        )
        .join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        .where(Assignment.name.in_(chapters))
    )
    late = {}
    for student, chapter, came, due, extension, points in gradebook.db.execute(rows):
        seconds = (came - due - (extension or datetime.timedelta())).total_seconds() if came and due else 0.0
        if seconds > 0 or points:
            late[student, chapter] = (max(0.0, seconds), float(points))
    return late


# One submission


def _read_work(submission: Submission, handed_in: bool, book: _Book, problems: list[Problem]) -> Work:
    key = student, chapter = submission.student, submission.chapter
    marks = book.marks.get(key, {})
    scored = any(mark.auto_score is not None or mark.manual_score is not None for mark in marks.values())
    record = _read(_read_record, submission.record, "The record of how it was graded", key, problems)
    notebook = _read(
        _read_notebook, submission.autograded, "The graded notebook, with the named mistakes,", key, problems
    )
    digest = _digest(submission) if handed_in else None
    said = [source for source in (notebook, record) if source]
    graded_from = next((source.submission for source in said if source.submission), None)
    work = Work(
        student,
        chapter,
        sandbox=next((source.sandbox for source in said if source.sandbox is not None), None),
        notes=tuple(dict.fromkeys(note for source in said for note in source.notes)),
        outdated=None not in (digest, graded_from) and digest != graded_from,
    )
    work.seconds_late, work.penalty = book.late.get(key, (0.0, 0.0))
    # What was set aside may have been graded since, with nbgrader's own commands: they write no record.
    graded_since = notebook is not None and notebook.reports is not None and notebook.submission == digest
    if record and record.state == SET_ASIDE and not graded_since:
        work.state, work.reason = SET_ASIDE, record.reason
    elif scored:
        work.state = GRADED
    elif handed_in or said:
        work.state = NOT_GRADED
    if record and record.state == GRADED and not scored:
        problems.append(Problem(student, chapter, "It was graded, but the gradebook has no scores of it."))
    if scored:
        work.has_verdicts = notebook is not None and notebook.reports is not None
        reports = notebook.reports or {} if notebook else {}
        for exercise in book.exercises[chapter]:
            if exercise.cell in marks:
                work.results[exercise.id] = _result(exercise, marks[exercise.cell], reports.get(exercise.id))
    return work


def _read(
    reader: Callable[[Path], _Said | None], path: Path, what: str, key: Key, problems: list[Problem]
) -> _Said | None:
    """What grading wrote into a file; None if there is none, or if it cannot be read, which is told in `problems`."""
    try:
        return reader(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(*key, f"{what} cannot be read: {_why(error)}."))
        return None


def _result(exercise: Exercise, mark: Row[Any], verdict: Mapping[str, Any] | None) -> Result:
    given = mark.auto_score is not None or mark.manual_score is not None
    manual = NEEDED if mark.needs_manual_grade else DONE if mark.manual_score is not None else ""
    if verdict:
        state = verdict["state"]
    elif exercise.by_hand:
        state = WAITS if manual == NEEDED else BY_HAND if manual == DONE else NOT_WRITTEN
    else:
        state = ONLY_SCORED
    return Result(
        state=state,
        score=float(mark.score) if given else None,
        manual=manual,
        misconceptions=tuple(verdict["misconceptions"]) if verdict else (),
        notes=tuple(verdict["notes"]) if verdict else (),
    )


@dataclass(frozen=True)
class _Said:
    """What grading wrote down about a submission: `run` in a record, and judging in the graded notebook's metadata.

    `submission` is the digest of what was graded. Only a notebook has `reports`, None where none were written.
    """

    sandbox: bool | None
    submission: str | None
    notes: tuple[str, ...]
    state: str = ""
    reason: str = ""
    reports: dict[str, dict[str, Any]] | None = None


def _read_record(path: Path) -> _Said:
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict) or data.get("state") not in (GRADED, SET_ASIDE):
        raise ValueError("it says neither that it was graded nor that it was set aside")
    return _Said(
        sandbox=_flag(data.get("sandbox")),
        submission=_text(data.get("submission")),
        notes=_texts(data.get("notes")),
        state=data["state"],
        reason=_text(data.get("reason")) or "",
    )


def _read_notebook(path: Path) -> _Said:
    """As plain JSON: to validate the notebooks of a large class would take minutes."""
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict) or not isinstance(data.get("metadata"), dict):
        raise ValueError("it is no notebook")
    kept = data["metadata"].get(METADATA)
    kept = kept if isinstance(kept, dict) else {}
    notes = kept.get("notes")
    reports = kept.get("reports")
    return _Said(
        sandbox=_flag(kept.get("sandbox")),
        submission=_text(kept.get("submission")),
        notes=_texts([note.get("text") for note in notes if isinstance(note, dict)] if isinstance(notes, list) else []),
        reports={name: _verdict(report) for name, report in reports.items()} if isinstance(reports, dict) else None,
    )


def _verdict(report: Any) -> dict[str, Any]:
    if not isinstance(report, dict) or report.get("state") not in _VERDICTS:
        raise ValueError("what it says about its exercises is not what judging writes")
    return {
        "state": report["state"],
        "misconceptions": _texts(report.get("misconceptions")),
        "notes": _texts(report.get("notes")),
    }


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _digest(submission: Submission) -> str | None:
    try:
        return submission.digest()
    except OSError:
        return None


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "it is not JSON"
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
