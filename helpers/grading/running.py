"""`run`: grades what is new or changed. Workers execute; this one process judges and writes the gradebook."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.converters.base import NbGraderException
from tqdm import tqdm

from helpers.grading import METADATA
from helpers.grading.converting import log_into, repaired, save
from helpers.grading.course import Course, GradingError, Submission, check_chapters, open_course, printable
from helpers.grading.executing import ExecuteSubmission, Job, files_beside
from helpers.grading.gradebooks import enter_assignments, keep_reviews, known_submissions, marks_of, one_engine
from helpers.grading.records import AGAIN, GRADED, SET_ASIDE, Record, is_graded, now, write_log, write_record
from helpers.grading.regrading import regrade
from helpers.grading.release import scripts_on_path
from helpers.grading.sandbox import sweep, unavailable
from helpers.grading.workers import Cluster, Local, usual_number

HELP = """\
grade what is new or changed since it was graded

Executes the submissions in submitted/, judges them and saves their scores in the gradebook, as `nbgrader autograde`
does, but many at a time. Formgrader, manual grading, feedback and export work on the result.

It can be stopped at any moment (Ctrl-C) and run again: it goes on where it was. What happened to each submission stands
in grading/logs/CHAPTER/STUDENT.log, and in the report. Exit code 1: some submissions were set aside, see there.
"""


@dataclass
class _Task:
    """A submission on its way."""

    submission: Submission
    sanitized: NotebookNode | Exception
    messages: list[str]
    seconds: float
    digest: str


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
    with _only_run(course), scripts_on_path(), one_engine():
        try:
            return regrade(course, chapters) if options.regrade else _grade(course, chapters, options)
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
    submissions = list(course.submissions(chapters))
    if not submissions:
        print("Nothing to grade: there are no submissions. `collect` puts them into submitted/.")
        return 0
    needs_sandbox = ExecuteSubmission(config=course.config).sandbox
    if needs_sandbox and not options.scheduler and unavailable():
        raise GradingError(f"{unavailable()} Or, for people you trust: --no-sandbox. Their code then has your rights.")
    if not needs_sandbox:
        print("Without a sandbox: what students wrote runs with your rights.")
    sweep()
    waiting = _waiting(course, submissions, options.again)
    if not waiting:
        print("Nothing to grade: no submission is new or changed.")
        return 0
    enter_assignments(course, sorted({submission.chapter for submission in waiting}))
    workers = (
        Cluster(options.scheduler, needs_sandbox)
        if options.scheduler
        else Local(options.workers or usual_number(), needs_sandbox)
    )
    began = time.monotonic()
    with contextlib.closing(workers):
        records = list(_graded(waiting, workers))
    return _conclusion(records, time.monotonic() - began)


def _waiting(course: Course, submissions: list[Submission], again: bool) -> list[Submission]:
    """What is to be graded. Asked for `again`, everything, and that is kept in mind if this run is stopped."""
    if again:
        for submission in submissions:
            record = Record(submission.student, submission.chapter, AGAIN, submission=submission.digest())
            write_record(submission, record)
        return submissions
    known = known_submissions(course)
    return [
        submission
        for submission in submissions
        if (submission.student, submission.chapter) not in known or not is_graded(submission)
    ]


def _conclusion(records: list[Record], seconds: float) -> int:
    """Say how it went; returns the exit code."""
    aside = [record for record in records if record.state != GRADED]
    if len(records) > len(aside):
        print(
            f"{len(records) - len(aside)} graded in {seconds:.1f} s: "
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
    tqdm.monitor_interval = 0  # its thread would be in the way of forking workers
    with tqdm(total=len(waiting), unit="notebook", desc="Grading") as bar:
        while True:
            while len(running) < workers.ahead and not suspects and (submission := next(left, None)):
                if not submission.has_usable_name:
                    yield _unusable(submission)
                    bar.update()
                    continue
                task = _begun(submission)
                if isinstance(task.sanitized, Exception):
                    yield _saved(task, None, "")
                    bar.update()
                else:
                    _submit(task, workers, running, suspects)
            if not running and not suspects:
                return
            done = wait(running, timeout=_patience(waiting[0]), return_when=FIRST_COMPLETED).done
            if not done:  # no submission may take so long: something hangs
                suspects += running.values()
                running.clear()
            for future in done:
                task = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append(task)
                else:
                    yield _finished(task, future)
                    bar.update()
            if suspects and not running:
                workers.renew()
                for task in suspects:  # one of them made its worker die or hang: alone it cannot take others along
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
    try:
        broken = isinstance(future.exception(timeout=_patience(task.submission)), BrokenProcessPool)
    except TimeoutError:
        broken = True
    if not broken:
        return _finished(task, future)
    workers.renew()
    return _saved(task, None, "the process that executed it was killed or hung, twice; perhaps for want of memory")


def _patience(submission: Submission) -> float:
    """Seconds within which a worker is through with any submission."""
    return 2 * ExecuteSubmission(config=submission.course.config).submission_timeout + 300


def _begun(submission: Submission) -> _Task:
    messages: list[str] = []
    began = time.monotonic()
    digest = submission.digest()  # before it is read: what is handed in meanwhile is graded by the next run
    with log_into(messages):
        try:
            sanitized = repaired(submission) if submission.notebook.exists() else _missing(submission)
        except Exception as error:  # a notebook that nothing can be made of
            sanitized = error
    return _Task(submission, sanitized, messages, time.monotonic() - began, digest)


def _missing(submission: Submission) -> NotebookNode:
    found = sorted(printable(path.name) for path in submission.folder.iterdir())
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
        executed, problem = None, f"it could not be executed: {printable(str(error))}"
    return _saved(task, executed, problem)


def _saved(task: _Task, executed: NotebookNode | None, problem: str) -> Record:
    """Let nbgrader judge and save it; write the record and the log."""
    submission, began = task.submission, time.monotonic()
    failure = RuntimeError(problem) if problem else None
    if isinstance(task.sanitized, Exception):
        failure, problem = task.sanitized, _in_words(task.sanitized)
    before = marks_of(submission)
    submission.record.unlink(missing_ok=True)
    messages: list[str] = []
    with log_into(messages):
        try:
            save(submission, failure or task.sanitized, executed)
            keep_reviews(submission, before)
        except Exception as error:  # NbGraderException, or whatever odd files beside the notebook lead it to
            if not isinstance(error, NbGraderException):
                messages.append(f"{type(error).__name__}: {error}")
            problem = problem or "nbgrader could not save it; see its log"
    about = executed.metadata.get(METADATA, {}) if executed else {}
    record = Record(
        student=submission.student,
        chapter=submission.chapter,
        state=SET_ASIDE if problem else GRADED,
        reason=problem,
        sandbox=about.get("sandbox", True),
        executing=about.get("seconds", 0.0),
        saving=round(task.seconds + time.monotonic() - began, 2),
        notes=[note["text"] for note in about.get("notes", [])],
        submission=task.digest,
        finished=now(),
    )
    said = [] if failure else messages  # of a failure that it was handed nbgrader only repeats the words
    write_log(submission, [_summary(record), *record.notes, *task.messages, *said])
    write_record(submission, record)
    return record


def _unusable(submission: Submission) -> Record:
    """The record of a student whose id nbgrader would take for a pattern of ids."""
    reason = "nbgrader cannot take an id with one of * ? [ ] in it; rename the folder"
    record = Record(submission.student, submission.chapter, SET_ASIDE, reason, finished=now())
    write_log(submission, [_summary(record)])
    write_record(submission, record)
    return record


def _in_words(error: Exception) -> str:
    return printable(str(error).removeprefix("Set aside: ")) or type(error).__name__


def _summary(record: Record) -> str:
    outcome = f"{record.state}: {record.reason}" if record.reason else record.state
    where = "in the sandbox" if record.sandbox else "WITHOUT a sandbox"
    return f"{record.finished} {record.chapter} of {record.student}: {outcome} ({where}, {record.executing} s)"
