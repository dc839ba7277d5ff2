"""`export`: grades and feedback for Canvas, Moodle or anybody, from nbgrader's gradebook into grading/export/.

  canvas.csv                          for Canvas: Grades, Import
  moodle_CHAPTER.csv                  for Moodle: the assignment's "Upload grading worksheet"
  grades.csv                          for anybody
  PLATFORM_feedback_CHAPTER.zip       Canvas: the assignment's "Upload Submissions"; Moodle: "Upload multiple feedback
                                      files in a zip"; plain: STUDENT/CHAPTER.html

Canvas matches a feedback file by the user's and the attachment's number in its name, and only as long as that
attachment belongs to the student's latest attempt (canvas-lms: app/models/abstract_assignment.rb). A blank cell would
take away a grade that is there (lib/gradebook_importer.rb). Moodle matches a feedback file by the participant's number
in the folder's name, and a grade by the column Identifier; it passes over blank cells (moodle: in mod/assign/feedback/
file/importziplib.php, offline/importgradeslib.php and offline/locallib.php).
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbgrader.converters.generate_feedback import GenerateFeedback
from sqlalchemy.engine import make_url
from traitlets.config import Config

from helpers.grading.course import Course, GradingError, Submission, check_chapters, open_course
from helpers.grading.lms.collecting import chapter_in
from helpers.grading.lms.placing import load_record, record_path, write_atomically
from helpers.grading.lms.platforms import (
    CANVAS,
    FOLDERS,
    MOODLE,
    Person,
    Roster,
    Sender,
    canvas_file,
    moodle_path,
    read_roster,
)
from helpers.grading.results import GRADED, NOTHING, SET_ASIDE, ClassResults, Work, read_results

PLAIN = "plain"
_ALLOWED = "with points by hand still missing, exported without them"
_UPLOAD = {
    CANVAS: 'the assignment\'s page, "Upload Submissions"',
    MOODLE: 'the assignment\'s submissions, "Upload multiple feedback files in a zip"',
}

HELP = """\
write grades and feedback for Canvas, Moodle or anybody into grading/export/

  python -m helpers.grading export --to canvas --roster gradebook.csv --feedback
  python -m helpers.grading export --to moodle --roster worksheet.csv --chapter 01 --feedback
  python -m helpers.grading export --to plain

For Canvas, --roster is the gradebook's export (Grades, Export, "Export Entire Gradebook"). Its column for a chapter is
the one with the chapter's name in its title; another one is named with --column, such as --column "01=Homework 1".
For Moodle, --roster is the assignment's grading worksheet, freshly downloaded, in English; one chapter at a time.

Scores are nbgrader's, after late penalties. Who has no final score keeps on the platform what is there now: points by
hand are missing (but see --allow-ungraded), not graded yet, set aside, nothing handed in. They are counted and named.
Names and everything else from the roster come back exactly as they were.

With --feedback, each chapter's feedback pages go into one zip, in the layout that the platform's bulk upload takes;
pages that are missing or older than the grades are made. Only what `collect` took from that platform can be sent back.
Canvas shows a page under the name of the notebook that was handed in: tell students to save it with .html at its end.
"""


@dataclass
class Export:
    """One run of `export`: what it works on, and what a person has to know."""

    course: Course
    results: ClassResults
    roster: Roster | None
    allow_ungraded: bool
    problems: list[str]
    notes: list[str]

    @property
    def folder(self) -> Path:
        return self.course.records / "export"

    def score(self, work: Work) -> float | None:
        """What counts, None while that is not certain."""
        settled = work.state == GRADED and not work.outdated and (self.allow_ungraded or not work.manual)
        return work.score if settled else None

    def most(self, chapter: str) -> float:
        """The points that can be had in a chapter."""
        return sum(exercise.points for exercise in self.results.exercises[chapter])

    def sender(self, work: Work, platform: str) -> Sender | None:
        """Who the student is on a platform, if it was there that the work was handed in."""
        record = load_record(record_path(Submission(self.course, work.student, work.chapter)))
        return record.sender if record and record.sender.platform == platform else None

    def people(self, works: Iterable[Work], platform: str) -> dict[int, dict[str, Work]]:
        """The works by row of the roster and by chapter. Who cannot be found there is told."""
        rows: dict[int, dict[str, Work]] = {}
        for work in works:
            if work.state == NOTHING:
                continue
            person = self.person(work, platform)
            if person is None:
                self.problems.append(f"{work.student} is not in {self.roster.path.name}: {work.chapter} is left out.")
                continue
            of_person = rows.setdefault(person.row, {})
            if (other := of_person.setdefault(work.chapter, work)) is not work:
                self.problems.append(
                    f"{other.student} and {work.student} are one person in {self.roster.path.name}: "
                    f"{work.chapter} of {work.student} is left out."
                )
        return rows

    def person(self, work: Work, platform: str) -> Person | None:
        """The student's row in the roster."""
        sender = self.sender(work, platform)
        found = self.roster.find(sender) if sender else None
        return found or self.roster.by_id(work.student) or self.roster.find(Sender(FOLDERS, work.student))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, choices=[CANVAS, MOODLE, PLAIN], help="whom it is for")
    parser.add_argument("--chapter", action="append", default=[], help='such as "01"; may be given more than once')
    parser.add_argument("--roster", type=Path, metavar="FILE", help="the platform's own list of the class, see above")
    parser.add_argument("--column", action="append", default=[], metavar="CHAPTER=TITLE", help="Canvas's column")
    parser.add_argument("--feedback", action="store_true", help="the feedback pages too, in a zip per chapter")
    parser.add_argument(
        "--allow-ungraded", action="store_true", help="also scores to which points by hand will be added later"
    )


def main(args: argparse.Namespace) -> int:
    """Write the files and say what is in them, and what is not. 1 when something needs a person."""
    course = open_course(args.course, args.db)
    chapters = check_chapters(args.chapter)
    if args.to != PLAIN and not args.roster and not args.feedback:
        raise GradingError(f"{args.to.title()} needs its own list of the class: --roster FILE. See export --help.")
    if args.to == MOODLE and args.roster and len(args.chapter) != 1:
        raise GradingError("A grading worksheet belongs to one assignment: say which with one --chapter.")
    columns = _columns(args.column)
    roster = read_roster(args.roster) if args.roster else None
    results = read_results(course, chapters)
    results = results if args.chapter else results.with_submissions()
    if not any(work.state != NOTHING for work in results.works.values()):
        raise GradingError(f"Nothing was handed in for {', '.join(chapters)}, as far as the gradebook knows.")
    export = Export(course, results, roster, args.allow_ungraded, [], [])
    if args.to == PLAIN:
        _plain(export)
    elif args.to == CANVAS and roster:
        _canvas(export, columns)
    elif roster:
        _moodle(export, check_chapters(args.chapter)[0])
    if args.feedback:
        for chapter in results.exercises:
            _feedback(export, chapter, args.to)
    _tell_unfinished(export)
    print("\n".join(export.notes + [""] * bool(export.problems) + export.problems))
    return int(bool(export.problems))


def _columns(pairs: list[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    if any(not title for _, _, title in split):
        raise GradingError('--column is written as CHAPTER=TITLE, such as --column "01=Homework 1".')
    return {check_chapters([chapter])[0]: title for chapter, _, title in split}


def _tell_unfinished(export: Export) -> None:
    why: dict[tuple[str, str], list[str]] = {}
    for work in export.results.works.values():
        reason = _unfinished(work, export.allow_ungraded)
        if reason:
            why.setdefault((work.chapter, reason), []).append(work.student)
    for (chapter, reason), students in why.items():
        names = ", ".join(students[:8]) + (f" and {len(students) - 8} more" if len(students) > 8 else "")
        told = export.notes if reason == _ALLOWED else export.problems
        told.append(f"{chapter}: {len(students)} {reason}: {names}.")


def _unfinished(work: Work, allow_ungraded: bool) -> str:
    if work.state == SET_ASIDE:
        return "set aside by `run`, without a score"
    if work.state == GRADED and work.outdated:
        return "handed in a newer version that is not graded yet, without a score"
    if work.state == GRADED and work.manual:
        return "with points by hand still missing, " + (
            "exported without them" if allow_ungraded else "without a score"
        )
    return "" if work.state in (GRADED, NOTHING) else "not graded yet, without a score"


def _number(value: float) -> str:
    return f"{round(value, 4):.4f}".rstrip("0").rstrip(".")


def _write_csv(export: Export, name: str, rows: list[list[str]]) -> None:
    output = io.StringIO(newline="")
    csv.writer(output).writerows(rows)
    write_atomically(export.folder / name, output.getvalue().encode())


# Grades


def _plain(export: Export) -> None:
    header = ["student", "name", "chapter", "state", "score", "max_score", "needs_manual_grading", "late_seconds"]
    rows = [[*header, "late_penalty"]]
    for work in export.results.works.values():
        score = export.score(work)
        rows.append(
            [
                work.student,
                export.results.people[work.student].name,
                work.chapter,
                "outdated" if work.outdated else work.state,
                "" if score is None else _number(score),
                _number(export.most(work.chapter)),
                "yes" if work.manual else "no",
                _number(work.seconds_late),
                _number(work.penalty),
            ]
        )
    _write_csv(export, "grades.csv", rows)
    export.notes.append(f"grading/export/grades.csv: {_counted(export, export.results.works.values())}.")
    formulas = sum(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row[:2])
    if formulas:
        export.notes.append(
            f"{formulas} names begin with = + - or @, which a spreadsheet would calculate: import them as text."
        )


def _counted(export: Export, works: Iterable[Work]) -> str:
    counts = Counter(work.chapter for work in works if export.score(work) is not None)
    each = ", ".join(f"{count} of {chapter}" for chapter, count in sorted(counts.items()))
    return f"{counts.total()} scores ({each})" if counts else "no scores"


def _canvas(export: Export, columns: dict[str, str]) -> None:
    roster = export.roster
    if roster.header[0] not in ("Student", "LastName") or "ID" not in roster.header or "Section" not in roster.header:
        raise GradingError(f"{roster.path} is no export of Canvas's gradebook: it needs Student, ID and Section.")
    identity = roster.header.index("Section") + 1
    titles = {
        chapter: title
        for chapter in export.results.exercises
        if (title := _title(roster.header[identity:], chapter, columns.get(chapter, ""), export))
    }
    if not titles:
        raise GradingError("\n".join(export.problems))
    works = [work for work in export.results.works.values() if work.chapter in titles]
    of_row = export.people(works, CANVAS)
    table = [roster.header[:identity] + list(titles.values())]
    written = []
    for place, row in enumerate(roster.rows):
        cells = []
        for chapter, title in titles.items():
            cell = row[roster.header.index(title)] if title in roster.header else ""
            work = of_row.get(place, {}).get(chapter)
            score = export.score(work) if work else None
            if row[0].strip() == "Points Possible":
                cell = _points_possible(export, chapter, title, cell)
            elif score is not None and cell.strip().upper() in ("EX", "N/A"):
                export.problems.append(f'{work.student} has "{cell}" for {title} in Canvas, which is left as it is.')
            elif score is not None:
                cell = _number(score)
                written.append(work)
            cells.append(cell)
        table.append(row[:identity] + cells)
    _write_csv(export, "canvas.csv", table)
    export.notes.append(f"grading/export/canvas.csv: {_counted(export, written)}. In Canvas: Grades, Import.")


def _title(header: list[str], chapter: str, wanted: str, export: Export) -> str:
    """The title of the chapter's column, "" when there is none."""
    if wanted:
        known = [title for title in header if title == wanted or title.rpartition(" (")[0] == wanted]
        if not known:
            export.notes.append(f'Canvas will ask whether to make a new assignment "{wanted}" for {chapter}.')
        return known[0] if len(known) == 1 else wanted
    found = [title for title in header if chapter_in(title) == chapter]
    if len(found) != 1:
        several = "several columns" if found else "no column"
        export.problems.append(
            f'The gradebook has {several} with {chapter} in the title: name one with --column "{chapter}=TITLE".'
        )
    return found[0] if len(found) == 1 else ""


def _points_possible(export: Export, chapter: str, title: str, cell: str) -> str:
    most = export.most(chapter)
    if cell and cell != _number(most) and _as_number(cell) != most:
        export.problems.append(
            f"{title} has {cell} points in Canvas, {chapter} has {_number(most)}: change the assignment's points there."
        )
    return cell or _number(most)


def _moodle(export: Export, chapter: str) -> None:
    roster = export.roster
    missing = {"Identifier", "Grade", "Last modified (grade)"} - set(roster.header)
    if missing:
        raise GradingError(
            f"{roster.path} has no column {' and no column '.join(sorted(missing))}. It has to be the assignment's "
            "grading worksheet, downloaded while Moodle's language is English."
        )
    of_row = export.people(export.results.of_chapter(chapter), MOODLE)
    grade = roster.header.index("Grade")
    table, written = [roster.header], []
    for place, row in enumerate(roster.rows):
        work = of_row.get(place, {}).get(chapter)
        score = export.score(work) if work else None
        if score is not None:
            if refusal := _moodle_refuses(roster.header, row, score):
                export.problems.append(f"Moodle will leave out {work.student}'s {_number(score)} points: {refusal}.")
            row = [*row[:grade], _number(score), *row[grade + 1 :]]
            written.append(work)
        table.append(row)
    _compare_maximum(export, chapter)
    name = f"moodle_{chapter}.csv"
    _write_csv(export, name, table)
    export.notes.append(f"grading/export/{name}: {_counted(export, written)}. In Moodle: Upload grading worksheet.")


def _compare_maximum(export: Export, chapter: str) -> None:
    """Say so if Moodle counts the assignment out of other points."""
    column = next((place for place, name in enumerate(export.roster.header) if name == "Maximum Grade"), None)
    if column is None:
        return
    for text in {row[column] for row in export.roster.rows}:
        maximum = _as_number(text)
        if maximum is not None and maximum != export.most(chapter):
            export.problems.append(
                f"The maximum grade in Moodle is {_number(maximum)}, {chapter} has {_number(export.most(chapter))} "
                "points: change the maximum grade there, and download the worksheet anew."
            )


def _moodle_refuses(header: list[str], row: list[str], score: float) -> str:
    """Why Moodle would pass over a grade without a word; "" if it would not."""
    cells = {name.lower(): cell.strip() for name, cell in zip(header, row, strict=True)}
    most = _as_number(cells.get("maximum grade", ""))
    if most is not None and score > most:
        return f"the assignment's maximum grade there is {_number(most)}"
    return "the grade is locked there" if cells.get("grade can be changed", "").lower() == "no" else ""


def _as_number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


# Feedback


def _feedback(export: Export, chapter: str, to: str) -> None:
    """One zip with the chapter's feedback pages, named as the platform wants them back."""
    content = io.BytesIO()
    unknown, count = [], 0
    made = _PagesMade(export.course)
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for work in export.results.of_chapter(chapter):
            if export.score(work) is None:
                continue
            name = _name_in_zip(export, work, to)
            if not name:
                unknown.append(work.student)
            elif page := made.page(work, export.problems):
                archive.writestr(name, page)
                count += 1
    if unknown:
        export.problems.append(
            f"{chapter}: {len(unknown)} pages cannot be sent through {to.title()}, since the work was not collected "
            f"from there: {', '.join(unknown)}. The pages are in feedback/."
        )
    if count:
        path = export.folder / f"{to}_feedback_{chapter}.zip"
        write_atomically(path, content.getvalue())
        where = f" In {to.title()}: {_UPLOAD[to]}." if to in _UPLOAD else ""
        export.notes.append(f"grading/export/{path.name}: {count} pages.{where}")


def _name_in_zip(export: Export, work: Work, to: str) -> str:
    """What the platform knows the student's page by; "" when it cannot know it."""
    if to == PLAIN:
        return f"{work.student}/{work.chapter}.html"
    page = f"{work.chapter}.html"
    sender = export.sender(work, to)
    if sender and to == CANVAS:
        _, own = canvas_file(sender.original)
        return sender.original.removesuffix(own) + page
    if sender:
        _, own = moodle_path((sender.original,))
        return sender.original.removesuffix(own[0]) + page if own else f"{sender.original}/{page}"
    person = export.person(work, to) if to == MOODLE and export.roster else None
    if person and person.number.isdigit():
        return f"{work.student.replace('_', ' ')}_{person.number}_assignsubmission_file_/{page}"
    return ""


class _PagesMade:
    """Feedback pages, made by nbgrader where they are missing or older than what they tell."""

    def __init__(self, course: Course) -> None:
        self.course = course
        url = make_url(course.db_url)
        database = Path(url.database or "")
        self.changed = database.stat().st_mtime if url.get_backend_name() == "sqlite" else float("inf")

    def page(self, work: Work, problems: list[str]) -> bytes | None:
        """A page's content. None, with the problem told, when it cannot be made."""
        path = self.course.feedback / work.student / work.chapter / f"{work.chapter}.html"
        graded = Submission(self.course, work.student, work.chapter).autograded
        try:
            if not path.is_file() or path.stat().st_mtime <= max(self.changed, graded.stat().st_mtime):
                self._make(work)
            return path.read_bytes()
        except Exception as error:  # nbgrader's converters raise whatever a notebook leads them to
            problems.append(
                f"There is no feedback for {work.student}, {work.chapter}: {error or type(error).__name__}."
            )
            return None

    def _make(self, work: Work) -> None:
        directory = self.course.directory
        directory.assignment_id, directory.student_id = work.chapter, work.student
        converter = GenerateFeedback(coursedir=directory, config=self.course.config)
        converter.update_config(Config({"HTMLExporter": {"template_name": "feedback"}}))
        converter.force = True
        logger = logging.getLogger("traitlets")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            converter.start()
        finally:
            logger.setLevel(level)
