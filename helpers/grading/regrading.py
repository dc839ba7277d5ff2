"""`run --regrade`: judges stored observations again, after a check was mended. Nothing is executed."""

from __future__ import annotations

import nbformat
from nbformat.notebooknode import NotebookNode
from tqdm import tqdm

from helpers.checks import OBSERVATIONS
from helpers.grading import METADATA
from helpers.grading.cells import exercise_of
from helpers.grading.converting import log_into, save
from helpers.grading.course import Course, Submission
from helpers.grading.gradebooks import keep_reviews, marks_of
from helpers.grading.judging import cases_of
from helpers.grading.records import now, read_record, was_executed, write_log, write_record


def regrade(course: Course, chapters: list[str]) -> int:
    """Judge again what was executed, say whose grade changed; returns the exit code."""
    submissions = list(course.submissions(chapters))
    executed = [submission for submission in submissions if was_executed(submission)]
    changes: list[str] = []
    left: list[str] = []
    for submission in tqdm(executed, unit="notebook", desc="Judging again"):
        notebook = nbformat.read(submission.autograded, as_version=4)
        missing = _without_observations(notebook)
        if missing:
            left.append(f"{submission.student}, {submission.chapter}: {', '.join(missing)}")
        else:
            changes += _judged_again(submission, notebook)
    print(f"{len(executed) - len(left)} judged again, {len(changes)} grades changed" + (":" if changes else "."))
    for line in changes:
        print(f"  {line}")
    if len(submissions) > len(executed):
        print(f"{len(submissions) - len(executed)} are new or changed: `run` without --regrade grades them.")
    if left:
        print("Left as they were, since what these tests observed was too large to be kept, or belongs to other cases")
        print("than the checks have now. `run --again` executes them anew:")
        for line in left:
            print(f"  {line}")
    return 1 if left else 0


def _without_observations(notebook: NotebookNode) -> list[str]:
    """The exercises that were judged by what is no longer there, or by other cases."""
    reports = notebook.metadata[METADATA].get("reports", {})
    left = []
    for cell in notebook.cells:
        exercise = exercise_of(cell)
        report = reports.get(exercise, {})
        if not exercise or report.get("state") == "not judged":
            continue
        observed = any(OBSERVATIONS in output.get("data", {}) for output in cell.outputs)
        if not observed or (report and report.get("cases") != cases_of(exercise)):
            left.append(exercise)
    return left


def _judged_again(submission: Submission, notebook: NotebookNode) -> list[str]:
    """Judge and save a notebook that was executed earlier; returns a line if its score changed."""
    unfinished = nbformat.from_dict(notebook)
    kept = {name: value for name, value in notebook.metadata[METADATA].items() if name != "reports"}
    unfinished.metadata[METADATA] = kept  # until it is saved, it does not count as graded
    messages: list[str] = []
    before, record = marks_of(submission), read_record(submission)
    submission.record.unlink(missing_ok=True)
    with log_into(messages):
        save(submission, unfinished, notebook)
    after = keep_reviews(submission, before)
    if record:
        record.finished = now()
        write_record(submission, record)
    moved = [
        f"{name} {_number(before[name].auto_score)} -> {_number(mark.auto_score)}"
        + (f" (the manual score {_number(mark.manual_score)} stays)" if mark.manual_score is not None else "")
        for name, mark in after.items()
        if name in before and mark.auto_score != before[name].auto_score
    ]
    said = f"{now()} judged again: {'; '.join(moved) or 'no change'}"
    write_log(submission, [said, *messages], after_what_is_there=True)
    return [f"{submission.student}, {submission.chapter}: {'; '.join(moved)}"] if moved else []


def _number(score: float | None) -> str:
    return "none" if score is None else f"{score:g}"
