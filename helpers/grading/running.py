"""`run`: grades what is new or changed. Workers execute; this one process judges and writes the gradebook.

A submission counts as graded when its notebook in autograded/ says which submission it was made from. nbgrader writes
that file last, so a run that is stopped anywhere leaves a submission either graded or to be graded again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters.base import NbGraderException
from tqdm import tqdm

from helpers.checks import OBSERVATIONS
from helpers.grading import METADATA
from helpers.grading.cells import exercise_of
from helpers.grading.converting import LOG, repaired, save
from helpers.grading.course import Course, GradingError, Submission, check_chapters, open_course
from helpers.grading.executing import ExecuteSubmission, Job, files_beside
from helpers.grading.release import ReleaseError, released_files, scripts_on_path
from helpers.grading.sandbox import unavailable
from helpers.grading.workers import Cluster, Local, usual_number

HELP = """\
grade what is new or changed since it was graded

Executes the submissions in submitted/, judges them and saves their scores in the gradebook, as `nbgrader autograde`
does, but many at a time. Formgrader, manual grading, feedback and export work on the result.

It can be stopped at any moment (Ctrl-C) and run again: it goes on where it was. What happened to each submission stands
in grading/logs/CHAPTER/STUDENT.log, and in the report. Exit code 1: some submissions were set aside, see there.
"""


@dataclass
class Record:
    """How one submission fared; `report` reads these, grading/records/CHAPTER/STUDENT.json."""

    student: str
    chapter: str
    state: str  # "graded" or "set aside"
    reason: str = ""
    sandbox: bool = True
    executing: float = 0.0  # seconds
    saving: float = 0.0
    notes: list[str] = field(default_factory=list)
    submission: str = ""
    finished: str = ""


@dataclass
class _Task:
    """A submission on its way."""

    submission: Submission
    sanitized: NotebookNode | Exception
    messages: list[str]
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="such as 01_softmax or 1 (default: all)")
    parser.add_argument(
        "--regrade",
        action="store_true",
        help="judge again what was observed when the submissions ran, after a check was mended; nothing is executed, "
        "manual scores stay, and everybody whose grade changed is listed",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="execute and grade everything anew, also what has not changed: after a change of limits or of the sandbox",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that execute notebooks (default: one per processor)"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="execute on the workers of this dask scheduler, tcp://host:8786"
    )
    parser.add_argument(
        "--no-sandbox", action="store_true", help="run student code with your rights; only for people you trust"
    )
    parser.add_argument(
        "--pictures",
        action="store_true",
        help="draw the notebooks' pictures for the feedback; takes twice as long",
    )


def main(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    course = open_course(options.course, options.db)
    chapters = check_chapters(options.chapters)
    if options.workers is not None and options.workers < 1:
        raise GradingError(f"--workers must be 1 or more, not {options.workers}.")
    if options.no_sandbox:
        course.config.ExecuteSubmission.sandbox = False
    course.config.ExecuteSubmission.pictures = options.pictures
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both mean: stop, and leave all in order
    with _only_run(course), scripts_on_path():
        try:
            return _regrade(course, chapters) if options.regrade else _grade(course, chapters, options)
        except KeyboardInterrupt:
            print("\nStopped. What was graded is saved; run it again to go on.")
            return 130


@contextlib.contextmanager
def _only_run(course: Course) -> Iterator[None]:
    """Two runs at a time in one folder would get into each other's way. The lock ends with the process."""
    course.records.mkdir(exist_ok=True)
    with open(course.records / "run.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise GradingError("Another run is grading in this folder. Wait for it, or stop it.") from None
        yield


def _grade(course: Course, chapters: list[str], options: argparse.Namespace) -> int:
    submissions = course.submissions(chapters)
    waiting = [submission for submission in submissions if options.again or not is_graded(submission)]
    if not waiting:
        print("Nothing to grade: no submission is new or changed.")
        return 0
    needs_sandbox = ExecuteSubmission(config=course.config).sandbox
    if needs_sandbox and not options.scheduler and unavailable():
        raise GradingError(f"{unavailable()} Or, for people you trust: --no-sandbox. Their code then has your rights.")
    if not needs_sandbox:
        print("Without a sandbox: what students wrote runs with your rights.")
    enter_assignments(course, sorted({submission.chapter for submission in waiting}))
    workers = (
        Cluster(options.scheduler, needs_sandbox)
        if options.scheduler
        else Local(options.workers or usual_number(), needs_sandbox)
    )
    began = time.monotonic()
    with contextlib.closing(workers):
        records = list(_graded(waiting, workers))
    aside = [record for record in records if record.state != "graded"]
    print(
        f"{len(records) - len(aside)} graded in {time.monotonic() - began:.1f} s: "
        f"{sum(record.executing for record in records):.1f} s of execution in the workers, "
        f"{sum(record.saving for record in records):.1f} s of repairing, judging and saving here."
    )
    if aside:
        print(f"{len(aside)} set aside:")
    for record in aside:
        print(f"  {record.student}, {record.chapter}: {record.reason}")
    return 1 if aside else 0


def _graded(waiting: list[Submission], workers: Local | Cluster) -> Iterator[Record]:
    """Grade these submissions; yields each one's record when it is saved."""
    left = iter(waiting)
    running: dict[Future[bytes], _Task] = {}
    suspects: list[_Task] = []
    with tqdm(total=len(waiting), unit="notebook", desc="Grading") as bar:
        while True:
            while len(running) < workers.ahead and not suspects and (submission := next(left, None)):
                task = _begun(submission)
                if isinstance(task.sanitized, Exception):
                    yield _saved(task, None, "")
                    bar.update()
                else:
                    _submit(task, workers, running, suspects)
            if not running and not suspects:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append(task)
                else:
                    yield _finished(task, future)
                    bar.update()
            if suspects and not running:
                workers.renew()
                for task in suspects:  # one of them had its worker killed: alone it cannot take others along
                    yield _alone(task, workers)
                    bar.update()
                suspects.clear()


def _submit(task: _Task, workers: Local | Cluster, running: dict[Future[bytes], _Task], suspects: list[_Task]) -> None:
    try:
        running[workers.submit(_job(task))] = task
    except BrokenProcessPool:
        suspects.append(task)


def _alone(task: _Task, workers: Local | Cluster) -> Record:
    future = workers.submit(_job(task))
    if isinstance(future.exception(), BrokenProcessPool):
        workers.renew()
        return _saved(task, None, "the process that executed it was killed twice, perhaps for want of memory")
    return _finished(task, future)


def _begun(submission: Submission) -> _Task:
    messages: list[str] = []
    began = time.monotonic()
    with _log_into(messages):
        try:
            sanitized = repaired(submission) if submission.notebook.exists() else _missing(submission)
        except Exception as error:  # a notebook that nothing can be made of
            sanitized = error
    return _Task(submission, sanitized, messages, time.monotonic() - began)


def _missing(submission: Submission) -> NotebookNode:
    found = sorted(path.name for path in submission.folder.iterdir())
    raise FileNotFoundError(
        f"there is no {submission.notebook.name} in its folder"
        + (f", only {', '.join(found[:5])}" if found else ", which is empty")
    )


def _job(task: _Task) -> Job:
    submission, config = task.submission, task.submission.course.config
    files, note = files_beside(submission.folder, submission.course.source(submission.chapter))
    return Job(
        owner=submission.student,
        name=submission.chapter,
        notebook=nbformat.writes(task.sanitized).encode(),
        files=files,
        note=note,
        settings={name: dict(config[name]) for name in ExecuteSubmission.section_names() if name in config},
    )


def _finished(task: _Task, future: Future[bytes]) -> Record:
    try:
        executed, problem = nbformat.reads(future.result().decode(), as_version=4), ""
    except Exception as error:  # of the sandbox, or of the cluster
        executed, problem = None, f"it could not be executed: {error}"
    return _saved(task, executed, problem)


def _saved(task: _Task, executed: NotebookNode | None, problem: str) -> Record:
    """Let nbgrader judge and save it; write the record and the log."""
    submission, began = task.submission, time.monotonic()
    if isinstance(task.sanitized, Exception):
        problem = _in_words(task.sanitized)
    failure = task.sanitized if isinstance(task.sanitized, Exception) else RuntimeError(problem) if problem else None
    submission.record.unlink(missing_ok=True)
    with _log_into(task.messages):
        try:
            save(submission, failure or task.sanitized, executed)
        except NbGraderException:
            problem = problem or "nbgrader could not save it; see its log"
    about = executed.metadata.get(METADATA, {}) if executed else {}
    record = Record(
        student=submission.student,
        chapter=submission.chapter,
        state="set aside" if problem else "graded",
        reason=problem,
        sandbox=about.get("sandbox", True),
        executing=about.get("seconds", 0.0),
        saving=round(task.seconds + time.monotonic() - began, 2),
        notes=[note["text"] for note in about.get("notes", [])],
        submission=submission.digest(),
        finished=_now(),
    )
    _write(submission.log, "".join(f"{line}\n" for line in [*_summary(record), *task.messages]))
    _write(submission.record, json.dumps(asdict(record), ensure_ascii=False, indent=1))
    return record


def _in_words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _summary(record: Record) -> list[str]:
    outcome = f"{record.state}: {record.reason}" if record.reason else record.state
    where = "in the sandbox" if record.sandbox else "WITHOUT a sandbox"
    return [f"{record.finished} {record.chapter} of {record.student}: {outcome} ({where}, {record.executing} s)"]


def is_graded(submission: Submission) -> bool:
    """Whether its graded notebook was made from what now lies in submitted/."""
    if _record(submission).get("submission") == submission.digest():  # quicker to read than the notebook
        return _record(submission).get("state") == "graded" and submission.autograded.exists()
    about = _about(submission)
    return "reports" in about and about.get("submission") == submission.digest()


def _record(submission: Submission) -> dict[str, Any]:
    try:
        return dict(json.loads(submission.record.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _about(submission: Submission) -> dict[str, Any]:
    """What grading wrote into the graded notebook; {} if it is missing or half written."""
    try:
        content = json.loads(submission.autograded.read_bytes())
        return dict(content["metadata"][METADATA])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def enter_assignments(course: Course, chapters: Iterable[str]) -> None:
    """Put the chapters that the gradebook does not know into it, as `nbgrader generate_assignment` does."""
    with _gradebook(course) as gradebook:
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


@contextlib.contextmanager
def _gradebook(course: Course) -> Iterator[Gradebook]:
    try:
        gradebook = Gradebook(course.db_url, course.directory.course_id)
    except Exception as error:  # of the database's driver, which may itself be missing
        raise GradingError(f"The gradebook cannot be opened: {error}") from None
    with gradebook:
        yield gradebook


def _regrade(course: Course, chapters: list[str]) -> int:
    """Judge stored observations again."""
    known = list(course.submissions(chapters))
    executed = [submission for submission in known if _was_executed(submission)]
    changes: list[str] = []
    lost: list[str] = []
    for submission in tqdm(executed, unit="notebook", desc="Judging again"):
        notebook = nbformat.read(submission.autograded, as_version=4)
        missing = _without_observations(notebook)
        if missing:
            lost.append(f"{submission.student}, {submission.chapter}: {', '.join(missing)}")
        else:
            changes += _judged_again(submission, notebook)
    print(f"{len(executed) - len(lost)} judged again, {len(changes)} grades changed" + (":" if changes else "."))
    for line in changes:
        print(f"  {line}")
    if len(known) > len(executed):
        print(f"{len(known) - len(executed)} are new or changed; `run` without --regrade grades them.")
    if lost:
        print("Not judged again, since what these tests observed was too large to be kept. Remove their folders in")
        print(f"{course.autograded.relative_to(course.root)}/ and `run` to execute them anew:")
        print("".join(f"  {line}\n" for line in lost), end="")
    return 1 if lost else 0


def _was_executed(submission: Submission) -> bool:
    about = _about(submission)
    return "seed" in about and about.get("submission") == submission.digest()


def _without_observations(notebook: NotebookNode) -> list[str]:
    """Test cells that were judged by what is no longer there."""
    reports = notebook.metadata[METADATA].get("reports", {})
    return [
        exercise
        for cell in notebook.cells
        if (exercise := exercise_of(cell))
        and reports.get(exercise, {}).get("state") != "not judged"
        and not any(OBSERVATIONS in output.get("data", {}) for output in cell.outputs)
    ]


def _judged_again(submission: Submission, notebook: NotebookNode) -> list[str]:
    """Judge and save a notebook that was executed earlier; returns a line if its score changed."""
    unfinished = nbformat.from_dict(notebook)
    unfinished.metadata[METADATA] = {name: value for name, value in notebook.metadata[METADATA].items()}
    unfinished.metadata[METADATA].pop("reports", None)  # until it is saved, it does not count as graded
    messages: list[str] = []
    with _gradebook(submission.course) as gradebook:
        before = _grades(gradebook, submission)
    record = _record(submission)
    submission.record.unlink(missing_ok=True)
    with _log_into(messages):
        save(submission, unfinished, notebook)
    _write(submission.record, json.dumps(record | {"finished": _now()}, ensure_ascii=False, indent=1))
    with _gradebook(submission.course) as gradebook:
        after = _grades(gradebook, submission)
        for name, grade in after.items():
            old = before.get(name)
            if old and grade.manual_score is not None and grade.auto_score == old.auto_score:
                submitted = gradebook.find_grade(name, submission.chapter, submission.chapter, submission.student)
                submitted.needs_manual_grade = old.needs_manual_grade  # a person has seen it already
        gradebook.db.commit()
    moved = [
        f"{name} {_number(before[name].auto_score)} -> {_number(grade.auto_score)}"
        + (f" (the manual score {_number(grade.manual_score)} stays)" if grade.manual_score is not None else "")
        for name, grade in after.items()
        if name in before and grade.auto_score != before[name].auto_score
    ]
    line = f"{submission.student}, {submission.chapter}: {'; '.join(moved)}"
    earlier = submission.log.read_text(encoding="utf-8") if submission.log.exists() else ""
    said = [f"{_now()} judged again: {'; '.join(moved) or 'no change'}", *messages]
    _write(submission.log, earlier + "".join(f"{text}\n" for text in said))
    return [line] if moved else []


@dataclass(frozen=True)
class _Grade:
    auto_score: float | None
    manual_score: float | None
    needs_manual_grade: bool


def _grades(gradebook: Gradebook, submission: Submission) -> dict[str, _Grade]:
    try:
        found = gradebook.find_submission_notebook(submission.chapter, submission.chapter, submission.student)
    except MissingEntry:
        return {}
    return {
        grade.name: _Grade(grade.auto_score, grade.manual_score, grade.needs_manual_grade) for grade in found.grades
    }


def _number(score: float | None) -> str:
    return "none" if score is None else f"{score:g}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _log_into(messages: list[str]) -> Iterator[None]:
    """Take what nbgrader has to say about one submission."""
    handler = _Collect(messages)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)


class _Collect(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(self.format(record))


def _write(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
