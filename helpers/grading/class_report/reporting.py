"""`python -m helpers.grading report`: a page and a table that say how the class did."""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import io
import os
from pathlib import Path

from helpers.grading.class_report.page import page, several, tidy
from helpers.grading.class_report.pseudonyms import OwnNames, Pseudonyms, read_key
from helpers.grading.course import GradingError, check_chapters, open_course
from helpers.grading.results import GRADED, NOT_GRADED, NOTHING, SET_ASIDE, ClassResults, Result, Work, read_results

HELP = """\
say how the class did: grading/report.html and grading/report.csv

The page is one file without scripts that needs no network: what waits for a person, scores and named mistakes by
exercise, all students by all exercises, who was set aside and why, who was late, who handed in nothing.

The table has a row for each student and exercise. Its columns:
  state            of the exercise: passed, partly, failed, not written, not judged; waits for a person or graded by
                   hand; "graded, without details" when its notebook has none. Of the whole submission when it has no
                   scores: set aside, not graded yet, nothing handed in
  score, max_score from the gradebook, with manual scores and extra credit; late penalties are taken off a chapter,
                   not off an exercise, and stand on the page
  manual           needed: a person has to grade it; done: a person has
  misconceptions   ids of the mistakes that were named, with ; between them
  notes            what happened to the exercise and to the submission
A text that a spreadsheet would take for a formula has a ' in front.

With --anonymous both have pseudonyms instead of ids and names, the same ones in every report of this course
(grading/pseudonyms.key makes them; keep it to yourself), and are called report_anonymous.html and .csv.

Exit codes: 0 written, whatever waits for a person; 1 written, but something could not be read, and the page says what;
2 not written.
"""

_COLUMNS = ("student", "chapter", "exercise", "state", "score", "max_score", "manual", "misconceptions", "notes")
_OUTDATED = "Another version was handed in since; this is about the one before."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "chapters", nargs="*", metavar="CHAPTER", help="for example 01 or 01_softmax (default: all with submissions)"
    )
    parser.add_argument("--anonymous", action="store_true", help="write pseudonyms instead of ids and names")


def main(args: argparse.Namespace) -> int:
    """Write both files, and say in a few lines what is in them."""
    course = open_course(args.course, args.db)
    results = read_results(course, check_chapters(args.chapters))
    if not args.chapters:
        results = results.with_submissions()
        if not results.exercises:
            raise GradingError(f"Nobody has handed in anything yet: there is no submission in {course.submitted}.")
    people = results.people.values()
    names = Pseudonyms(people, read_key(course.records / "pseudonyms.key")) if args.anonymous else OwnNames(people)
    path = course.records / ("report_anonymous.html" if args.anonymous else "report.html")
    _write(path, page(results, names, datetime.datetime.now(datetime.UTC)))
    _write(path.with_suffix(".csv"), table(results, names))
    print(f"Wrote {path} and {path.with_suffix('.csv').name}.")
    print(_summary(results))
    return 1 if results.problems else 0


def table(results: ClassResults, names: OwnNames | Pseudonyms) -> str:
    """All results as CSV, ordered by chapter, student and exercise."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for chapter, exercises in results.exercises.items():
        for work in sorted(results.of_chapter(chapter), key=lambda work: names.label(work.student)):
            for exercise in exercises:
                result = work.results.get(exercise.id, Result(work.state, None))
                row = [
                    names.label(work.student),
                    chapter,
                    exercise.id,
                    result.state,
                    "" if result.score is None else f"{result.score:g}",
                    f"{exercise.points:g}",
                    result.manual,
                    ";".join(result.misconceptions),
                    " ".join(tidy(names.text(note)) for note in _notes(work, result)),
                ]
                writer.writerow([_no_formula(value) for value in row])
    return text.getvalue()


def _notes(work: Work, result: Result) -> list[str]:
    about_all = [work.reason, *work.notes, _OUTDATED if work.outdated else ""]
    return list(dict.fromkeys(filter(None, [*result.notes, *about_all])))


def _no_formula(value: str) -> str:
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(value) else value


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _summary(results: ClassResults) -> str:
    works = list(results.works.values())
    answers = sum(len(work.manual) for work in works)
    parts = [
        f"{several(_count(works, GRADED), 'submission')} graded",
        f"{_count(works, SET_ASIDE)} set aside",
        f"{_count(works, NOT_GRADED)} not graded yet",
        f"{_count(works, NOTHING)} not handed in",
        f"{several(answers, 'answer waits', 'answers wait')} for a person",
    ]
    lines = [
        f"{several(len(results.people), 'student')}, {several(len(results.exercises), 'chapter')}: {', '.join(parts)}."
    ]
    unsafe = [work for work in works if work.sandbox is False]
    if unsafe:
        lines.append(f"Run without a sandbox: {several(len(unsafe), 'submission')}.")
    if results.problems:
        lines.append(
            f"{several(len(results.problems), 'file')} could not be read, or do not fit together; the page says which."
        )
    return "\n".join(lines)


def _count(works: list[Work], state: str) -> int:
    return sum(work.state == state for work in works)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(text.encode("utf-8", errors="replace"))
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
