"""`collect`: from what students handed in, wherever that is, to submitted/STUDENT/CHAPTER/CHAPTER.ipynb.

Beside each submission's notebook lies timestamp.txt when it is known when it was handed in. Beside them, in grading/:

  collected.csv                       what became of every file: file, student, chapter, action, reason, time
  collected/CHAPTER/STUDENT.json      where a submission came from, which `export` needs to send feedback back
  earlier/CHAPTER/STUDENT/WHEN/       submissions that a newer one has replaced

Actions: "collected", "replaced" (an earlier one), "already there", "older" (than what is there), "ignored" (nothing to
be graded), "set aside" (a person has to decide).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import functools
import hashlib
import io
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import parse_utc

from helpers.checks import registry
from helpers.grading.class_report.page import several
from helpers.grading.course import Course, GradingError, Submission, check_chapters, open_course
from helpers.grading.lms.downloads import Entry, Refused, in_nested_zip, opened
from helpers.grading.lms.placing import (
    COLLECTED,
    IGNORED,
    OLDER,
    REPLACED,
    SET_ASIDE,
    THERE,
    Record,
    load_record,
    place,
    write_atomically,
)
from helpers.grading.lms.platforms import (
    CANVAS,
    EXCHANGE,
    FOLDERS,
    MOODLE,
    ROSTER_COLUMNS,
    Person,
    Roster,
    Sender,
    canvas_file,
    folded,
    is_moodle_text,
    moodle_path,
    printable,
    read_roster,
    safe_id,
)
from helpers.grading.reading import UnreadableNotebook, read_notebook
from helpers.grading.release import scripts_on_path

HELP = f"""\
put what students handed in into submitted/, from a Canvas or Moodle download, folders or the exchange

DOWNLOAD is what the platform gave you, as a zip or unpacked:
  Canvas   the assignment's "Download Submissions"; together with the gradebook's export as --roster
  Moodle   the assignment's "Download all submissions"; together with its grading worksheet as --roster
  folders  STUDENT/NOTEBOOK.ipynb or STUDENT/CHAPTER/NOTEBOOK.ipynb
  exchange nbgrader's own; no DOWNLOAD, but --from exchange
Which of them it is shows by itself. For example:

  python -m helpers.grading collect submissions.zip --chapter 01 --roster gradebook.csv
  python -m helpers.grading collect --from exchange
  python -m helpers.grading collect "Downloads/nb (3).ipynb" --chapter 01 --student ada

Notebooks get their right name whatever the browser made of it. Of several, the latest counts. An older one never
replaces a newer; a replaced one is kept in grading/earlier/. What became of every file is printed, and written to
grading/collected.csv. Run it again as often as you like, also after stopping it.

Which is the latest: by Moodle's hand-in time when the roster is that assignment's worksheet; by Canvas's numbers; else
by the files' times, which in a download are the time of the download. Hand-in times for late penalties come from
Moodle's worksheet, the exchange, a timestamp.txt beside the notebook, or --file-times. Canvas tells no time, only
"late"; Canvas's own late policy still applies when grades are imported there.

{ROSTER_COLUMNS}
"""


@dataclass(frozen=True)
class Row:
    """What became of one file. `look` is set when a person should have a look although it was collected."""

    file: str
    student: str
    chapter: str
    action: str
    reason: str = ""
    look: bool = False

    @property
    def needs_person(self) -> bool:
        return self.look or self.action == SET_ASIDE


@dataclass(frozen=True)
class Candidate:
    """A notebook that could become a student's submission for a chapter."""

    entry: Entry
    upload: tuple[int, tuple[str, str, str]]
    sender: Sender
    student: str
    chapter: str
    evidence: int
    sha256: str
    submitted: datetime | None
    secret: bytes
    notes: tuple[str, ...]
    same_person: bool

    @property
    def record(self) -> Record:
        return Record(self.sha256, self.entry.label, self.sender, self.entry.time, self.submitted)

    def row(self, action: str, *reasons: str, look: bool = False) -> Row:
        return Row(self.entry.label, self.student, self.chapter, action, "; ".join((*reasons, *self.notes)), look)


@dataclass(frozen=True)
class SentFile:
    """A file, who sent it, and the part of its path that the sender chose."""

    entry: Entry
    sender: Sender
    path: tuple[str, ...]


@dataclass
class Upload:
    """What one student handed in, in one download."""

    sender: Sender
    files: list[SentFile] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("downloads", nargs="*", type=Path, metavar="DOWNLOAD", help="zip, folder or one notebook")
    parser.add_argument(
        "--from", dest="kind", choices=[CANVAS, MOODLE, FOLDERS, EXCHANGE], help="what it is (default: look and see)"
    )
    parser.add_argument("--chapter", help='what the assignment was, such as "01"; notebooks of others are set aside')
    parser.add_argument("--roster", type=Path, metavar="FILE", help="CSV file of the class: who is who in nbgrader")
    parser.add_argument("--student", metavar="ID", help="nbgrader's name of the one student whose work this is")
    parser.add_argument(
        "--file-times", action="store_true", help="the files' times are when they were handed in (folders only)"
    )
    parser.add_argument("--timezone", metavar="NAME", help="of the times in Moodle's worksheet, such as Europe/Rome")


def main(args: argparse.Namespace) -> int:
    """Collect, print the table, write grading/collected.csv. 1 when something needs a person."""
    course = open_course(args.course, args.db)
    chapter = check_chapters([args.chapter])[0] if args.chapter else ""
    roster = read_roster(args.roster, _timezone(args.timezone)) if args.roster else None
    if bool(args.downloads) == (args.kind == EXCHANGE):
        raise GradingError("Name what to collect: a zip or folder, or --from exchange.")
    if args.student is not None and safe_id(args.student) != args.student:
        raise GradingError(f"{args.student!r} cannot be a student's name in nbgrader; {safe_id(args.student)!r} could.")
    rows: list[Row] = []
    collector = Collector(course, chapter, roster, args.student, args.file_times, rows)
    try:
        if args.kind == EXCHANGE:
            collector.collect_exchange()
        else:
            collector.collect(args.downloads, args.kind)
    finally:  # also when it is stopped
        if rows:
            _write_table(course, rows)
    print(table(rows))
    if chapter and roster:
        _tell_missing(course, chapter, roster)
    return int(any(row.needs_person for row in rows))


@dataclass
class Collector:
    """One run of `collect`; `rows` fills with what becomes of each file."""

    course: Course
    chapter: str
    roster: Roster | None
    student: str | None
    file_times: bool
    rows: list[Row]

    def collect(self, downloads: Iterable[Path], kind: str | None = None) -> None:
        with ExitStack() as stack:
            candidates = []
            for number, path in enumerate(downloads):
                entries = stack.enter_context(opened(path))
                candidates += self._candidates(number, entries, kind or _kind(entries))
            candidates.sort(key=lambda one: one.record.age)
            for candidate in candidates:
                self.rows.append(self._placed(candidate))

    def collect_exchange(self) -> None:
        """Let nbgrader fetch from its exchange into a folder of its own, and collect that."""
        with tempfile.TemporaryDirectory(prefix="exchange-") as folder:
            inbound = Path(folder, "exchange")
            inbound.mkdir()
            self.rows += _fetch(self.course, [self.chapter] if self.chapter else list(registry.CHAPTERS), inbound)
            self.collect([inbound], EXCHANGE)

    # What is in a download

    def _candidates(self, number: int, entries: list[Entry], kind: str) -> list[Candidate]:
        if self.file_times and kind in (CANVAS, MOODLE):
            raise GradingError(f"--file-times: files from {kind.title()} bear the time of the download.")
        uploads = self._uploads(entries, kind)
        if self.student is not None and len(uploads) > 1:
            raise GradingError(f"--student names one student, but this is from {len(uploads)}.")
        students = {key: self._who(upload.sender) for key, upload in uploads.items()}
        clashes = Counter(folded(student) for student, _, reason in students.values() if not reason)
        found = []
        for key, upload in uploads.items():
            student, person, reason = students[key]
            if not reason and clashes[folded(student)] > 1:
                reason = f"several students would be {student!r}: a roster has to tell them apart"
            if reason:
                self.rows += [Row(file.entry.label, "", "", SET_ASIDE, reason) for file in upload.files]
            else:
                found += self._of_upload((number, key), upload, student, person)
        return found

    def _uploads(self, entries: list[Entry], kind: str) -> dict[tuple[str, str, str], Upload]:
        """The files by sender. What is hidden, unsafe or out of place gets its row at once."""
        uploads: dict[tuple[str, str, str], Upload] = {}
        wrapped = kind in (FOLDERS, EXCHANGE) and _is_wrapped(entries)
        for entry in entries:
            parts = entry.parts[1:] if wrapped else entry.parts
            if _is_hidden(parts):
                self.rows.append(Row(entry.label, "", "", IGNORED, "hidden"))
            elif entry.problem:
                self.rows.append(Row(entry.label, "", "", SET_ASIDE, entry.problem))
            elif is_moodle_text(parts) and kind == MOODLE:
                self.rows.append(Row(entry.label, "", "", IGNORED, "typed into Moodle, not a file"))
            elif sent := _sender(parts, kind, self.student):
                sender, rest = sent
                uploads.setdefault(sender.key, Upload(sender)).files.append(SentFile(entry, sender, rest))
            elif _may_be_notebook(entry.name) or _is_zip(entry.name):
                self.rows.append(Row(entry.label, "", "", SET_ASIDE, _NOT_PLACED[kind]))
            else:
                self.rows.append(Row(entry.label, "", "", IGNORED, "not a notebook, and nobody's"))
        return uploads

    def _who(self, sender: Sender) -> tuple[str, Person | None, str]:
        """The student's name in nbgrader, the person in the roster, and if it cannot be told, why."""
        if self.student is not None:
            return self.student, self.roster and self.roster.by_id(self.student), ""
        person = self.roster.find(sender) if self.roster else None
        before = self._known.get(sender.key, "")
        if person and before and person.id != before and (self.course.submitted / before).exists():
            return (
                "",
                None,
                (
                    f"was collected as {before!r} until now, and the roster says {person.id!r}: "
                    f"rename submitted/{before}, or change the roster"
                ),
            )
        student = person.id if person else before
        if not student and self.roster:
            who = printable(" ".join(filter(None, (sender.name, sender.number))))
            return "", None, f"nobody, or more than one, in {self.roster.path.name} can be {who!r}"
        student = student or sender.default_id
        spelled = self._spellings.get(folded(student), student)
        if not student:
            return "", None, "its sender's name has no letters or digits: --student can say who it is"
        self._spellings[folded(student)] = spelled
        if spelled != student:
            return "", None, f"submitted/{spelled} is there already: {student!r} is the same folder on some machines"
        return student, person, ""

    @functools.cached_property
    def _known(self) -> dict[tuple[str, str, str], str]:
        """Who the platforms' people were when they were collected before."""
        known = {}
        for path in sorted(self.course.records.glob("collected/*/*.json")):
            if (record := load_record(path)) and record.sender.platform in (CANVAS, MOODLE):
                known[record.sender.key] = path.stem
        return known

    @functools.cached_property
    def _spellings(self) -> dict[str, str]:
        folder = self.course.submitted
        return {folded(name): name for name in os.listdir(folder)} if folder.is_dir() else {}

    # Which notebook of an upload is the submission

    def _of_upload(self, key: Any, upload: Upload, student: str, person: Person | None) -> list[Candidate]:
        found: list[Candidate] = []
        doubtful: list[Row] = []
        stamps, secrets = _stamps(upload), _secrets(upload)
        for file in self._unpacked(upload, student):
            label = file.entry.label
            if file.path[:-1] in (stamps if file.path[-1] == _STAMP else secrets if file.path[-1] == _SECRET else ()):
                continue  # it is no work of its own, but goes with the notebook
            try:
                found.append(self._candidate(key, file, student, person, stamps, secrets))
            except _NotANotebook:
                self.rows.append(Row(label, student, "", IGNORED, "not a notebook"))
            except _WrongChapter as error:
                doubtful.append(Row(label, student, "", SET_ASIDE, str(error)))
            except Refused as error:
                self.rows.append(Row(label, student, "", SET_ASIDE, str(error)))
        if found:  # students who upload the whole course make no work, as long as the notebook in question is there
            doubtful = [replace(row, action=IGNORED) for row in doubtful]
        elif not doubtful and not any(row.student == student and row.action == SET_ASIDE for row in self.rows):
            sender = upload.sender
            who = f"{sender.name}_{sender.number}" if sender.platform == CANVAS else sender.original or sender.name
            where = f"{upload.files[0].entry.label.split('/')[0]}/{who}"
            doubtful = [Row(printable(where), student, "", SET_ASIDE, "no notebook was handed in")]
        self.rows += doubtful
        return self._chosen(found)

    def _unpacked(self, upload: Upload, student: str) -> list[SentFile]:
        """The upload's files, with those in zips in place of the zips."""
        files = []
        for file in upload.files:
            if not _is_zip(file.entry.name):
                files.append(file)
                continue
            try:
                inner = in_nested_zip(file.entry)
            except Refused as error:
                self.rows.append(Row(file.entry.label, student, "", SET_ASIDE, str(error)))
                continue
            self.rows.append(Row(file.entry.label, student, "", IGNORED, f"a zip of {len(inner)} files, which follow"))
            for one in inner:
                path = one.parts[len(file.entry.parts) - 1 :]
                if _is_hidden(path):
                    self.rows.append(Row(one.label, student, "", IGNORED, "hidden"))
                elif one.problem or _is_zip(one.name):
                    reason = one.problem or "a zip in a zip is not opened"
                    self.rows.append(Row(one.label, student, "", SET_ASIDE, reason))
                else:
                    files.append(SentFile(one, file.sender, file.path[:-1] + path))
        return files

    def _candidate(
        self,
        upload: Any,
        file: SentFile,
        student: str,
        person: Person | None,
        stamps: dict[tuple[str, ...], datetime],
        secrets: dict[tuple[str, ...], bytes],
    ) -> Candidate:
        entry, sender, path = file.entry, file.sender, file.path
        if not _may_be_notebook(entry.name):
            raise _NotANotebook
        content = entry.read()
        ids, unreadable = _grade_ids(content)
        named = chapter_in(path[-1])
        if unreadable and not _is_notebook_name(path[-1], named):
            raise _NotANotebook
        folder = next(filter(None, map(chapter_in, reversed(path[:-1]))), "")
        chapter, evidence, note = which_chapter(self.chapter, named or folder, _chapter_of_ids(ids))
        notes = [f"{_UNREADABLE}: {unreadable}" if unreadable else note, "late, says Canvas" if sender.late else ""]
        if path[-1] != f"{chapter}.ipynb":
            notes.append("renamed")
        submitted = stamps.get(path[:-1])
        if person and sender.number and person.number == sender.number:  # the worksheet of this very assignment
            submitted = person.submitted
        if submitted is None and self.file_times:
            submitted = entry.time
        same = person is not None and (sender.platform == MOODLE or person.number == sender.number)
        sha256 = hashlib.sha256(content).hexdigest()
        return Candidate(
            entry=entry,
            upload=upload,
            sender=sender,
            student=student,
            chapter=chapter,
            evidence=evidence,
            sha256=sha256,
            submitted=submitted,
            secret=secrets.get(path[:-1], b""),
            notes=tuple(filter(None, notes)),
            same_person=same,
        )

    def _chosen(self, found: list[Candidate]) -> list[Candidate]:
        """One candidate per chapter. The others get their rows."""
        chapters: dict[str, list[Candidate]] = defaultdict(list)
        for candidate in found:
            chapters[candidate.chapter].append(candidate)
        return [self._best(candidates) for candidates in chapters.values()]

    def _best(self, candidates: list[Candidate]) -> Candidate:
        best, *others = sorted(candidates, key=_preference, reverse=True)
        doubt = ""
        for other in others:
            if other.sha256 == best.sha256:
                self.rows.append(other.row(IGNORED, f"the same as {best.entry.label}"))
            elif other.evidence < best.evidence:
                self.rows.append(other.row(IGNORED, f"{best.entry.label} is more surely the chapter's notebook"))
            elif (other.sender.attachment or 0) < (best.sender.attachment or 0):
                self.rows.append(other.row(OLDER, f"{best.entry.label} was uploaded after it"))
            else:
                self.rows.append(other.row(IGNORED, f"{best.entry.label} was taken"))
                doubt = _DOUBT
        return replace(best, notes=(doubt, *best.notes)) if doubt else best

    def _placed(self, new: Candidate) -> Row:
        look = any(note == _DOUBT or note.startswith(_UNREADABLE) for note in new.notes)
        submission = Submission(self.course, new.student, new.chapter)
        try:
            action, reason = place(submission, new.entry.read(), new.record, new.same_person)
            if new.secret and action in (COLLECTED, REPLACED, THERE):
                write_atomically(submission.folder / _SECRET, new.secret)
        except Refused as error:
            return new.row(SET_ASIDE, str(error))
        except OSError as error:
            return new.row(SET_ASIDE, f"it could not be written: {error}")
        return new.row(action, *filter(None, [reason]), look=look)


class _NotANotebook(Exception):
    pass


class _WrongChapter(Exception):
    pass


_STAMP = "timestamp.txt"
_SECRET = "submission_secret.txt"  # by it nbgrader's exchange knows whose feedback is whose
_UNREADABLE = "cannot be read"
_DOUBT = "there were several for this chapter in one upload: is this the right one?"
_NOT_PLACED = {
    CANVAS: "not named as Canvas names files",
    MOODLE: "not named as Moodle names files",
    FOLDERS: "not in STUDENT/ or STUDENT/CHAPTER/; one notebook alone needs --student",
    EXCHANGE: "not in the exchange's folders",
}


def _kind(entries: list[Entry]) -> str:
    """Where a download is from: what most of its files are named like."""
    visible = [entry for entry in entries if not _is_hidden(entry.parts)]
    if 2 * sum(moodle_path(entry.parts) is not None or is_moodle_text(entry.parts) for entry in visible) > len(visible):
        return MOODLE
    if 2 * sum(canvas_file(entry.name) is not None for entry in visible) > len(visible):
        return CANVAS
    return FOLDERS


def _is_wrapped(entries: list[Entry]) -> bool:
    """Whether all students' folders lie in one further folder, as they do in a zip of a folder of them."""
    tops = {entry.parts[0] for entry in entries}
    deep = all(len(entry.parts) > 2 for entry in entries)
    return len(tops) == 1 and deep and not any(chapter_in(entry.parts[1]) for entry in entries)


def _sender(parts: tuple[str, ...], kind: str, student: str | None) -> tuple[Sender, tuple[str, ...]] | None:
    """Who handed in a file, and the rest of its path. None when its name does not say."""
    if kind == CANVAS:
        canvas = canvas_file(parts[-1])
        return canvas and (canvas[0], (canvas[1],))
    if kind == MOODLE:
        moodle = moodle_path(parts)
        return moodle if moodle and moodle[1] else None
    if len(parts) == 1:
        return (Sender(kind, student), parts) if student else None
    if len(parts) > 3 or len(parts) == 3 and not chapter_in(parts[1]):
        return None
    return Sender(kind, os.fsencode(parts[0]).decode(errors="replace"), original=printable(parts[0])), parts[1:]


def _is_hidden(parts: tuple[str, ...]) -> bool:
    """Whether a path is what systems and editors leave behind: .DS_Store, __MACOSX/, .ipynb_checkpoints/, ~$lock."""
    return any(part.startswith((".", "~$")) and part != ".." or part == "__MACOSX" for part in parts)


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _may_be_notebook(name: str) -> bool:
    """Whether a file is worth reading; browsers and mail programs add .txt or .json, or leave only that."""
    return bool(re.search(r"\.ipynb[^.]*$|\.(json|txt)$", name.lower())) and name not in (_STAMP, _SECRET)


def _is_notebook_name(name: str, chapter: str) -> bool:
    """Whether a file was meant to be a notebook, going by its name."""
    return ".ipynb" in name.lower() or bool(chapter) and name.lower().endswith(".json")


def chapter_in(name: str) -> str:
    """The one chapter whose name a file's or folder's name contains, "" when there is none or several.

    >>> chapter_in("Copy of 01-Softmax (2).ipynb")
    '01_softmax'
    """
    words = re.sub(r"[\W_]+", "_", name.lower())
    found = [chapter for chapter in registry.CHAPTERS if re.search(rf"(?<![a-z0-9]){chapter}(?![a-z0-9])", words)]
    return found[0] if len(found) == 1 else ""


def which_chapter(wanted: str, named: str, marked: str) -> tuple[str, int, str]:
    """The chapter of a notebook, how sure that is (1 to 3), and what is to be said about it.

    From what is wanted (--chapter), the name, and the marks of its cells, each "" when it says nothing.
    """
    if wanted and marked not in ("", wanted):
        raise _WrongChapter(f"its cells belong to {marked}, not to {wanted}")
    if wanted and not marked and named not in ("", wanted):
        raise _WrongChapter(f"its name says {named}, not {wanted}")
    if not wanted and marked and named not in ("", marked):
        raise _WrongChapter(f"its name says {named}, its cells belong to {marked}: say with --chapter what it is")
    chapter = wanted or marked or named
    if not chapter:
        raise _WrongChapter("neither its name nor its cells belong to a graded chapter")
    note = f"named {named}, but its cells are this chapter's" if named not in ("", chapter) else ""
    if not marked:
        note = "none of its cells bears the chapter's marks"
    return chapter, 3 if marked else 2 if named else 1, note


def _grade_ids(content: bytes) -> tuple[list[str], str]:
    """nbgrader's ids of a notebook's cells; and if it cannot be read, why."""
    try:
        notebook = read_notebook(content)
    except UnreadableNotebook as error:
        return [], str(error)
    marks = [cell.metadata.get("nbgrader") for cell in notebook.cells]
    return [mark["grade_id"] for mark in marks if isinstance(mark, dict) and isinstance(mark.get("grade_id"), str)], ""


@functools.cache
def _chapters_of_exercises() -> dict[str, str]:
    return {exercise.id: chapter for chapter in registry.CHAPTERS for exercise in registry.chapter(chapter)}


def _chapter_of_ids(ids: Iterable[str]) -> str:
    """The chapter that most of the cells belong to; cells copied from another one bring their marks along."""
    chapters = _chapters_of_exercises()
    counts = Counter(chapters[name] for name in (one.removesuffix("_check") for one in ids) if name in chapters)
    (first, most), (_, second) = [*counts.most_common(2), ("", 0), ("", 0)][:2]
    return first if most > 2 * second else ""


def _stamps(upload: Upload) -> dict[tuple[str, ...], datetime]:
    """Hand-in times from nbgrader's timestamp.txt, by folder."""
    stamps = {}
    for file in upload.files:
        if file.path[-1] == _STAMP and file.sender.platform in (FOLDERS, EXCHANGE):
            with contextlib.suppress(Refused, ValueError, OverflowError):
                stamps[file.path[:-1]] = parse_utc(file.entry.read()[:100].decode().strip()).replace(tzinfo=UTC)
    return stamps


def _secrets(upload: Upload) -> dict[tuple[str, ...], bytes]:
    """What nbgrader's exchange put beside the notebooks, by folder."""
    secrets = {}
    for file in upload.files:
        if file.path[-1] == _SECRET and file.sender.platform == EXCHANGE:
            with contextlib.suppress(Refused):
                secrets[file.path[:-1]] = file.entry.read()[:1000]
    return secrets


def _preference(candidate: Candidate) -> tuple[Any, ...]:
    name = candidate.entry.name.lower()
    copy = re.search(r"\((\d+)\)|-(\d+)\.", name)
    number = -1 if re.search(r"copy|kopie|copie|copia", name) else int(next(filter(None, copy.groups()))) if copy else 0
    return candidate.evidence, candidate.sender.attachment or 0, number, name


def _fetch(course: Course, chapters: list[str], folder: Path) -> list[Row]:
    """`nbgrader collect`, for each chapter, into a folder. GradingError when there is no exchange."""
    config = copy.deepcopy(course.config)
    config.CourseDirectory.submitted_directory = str(folder)
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    inbound = Path(api.exchange_root, api.course_id, "inbound")
    if not api.exchange_is_functional or api.exchange_root and not inbound.is_dir():
        raise GradingError(
            f"nbgrader's exchange ({inbound}) is not there, or you may not use it. nbgrader_config.py says where it is "
            "(c.Exchange.root). Without an exchange, collect from folders or from a download."
        )
    with scripts_on_path():  # nbgrader looks into the gradebook, and the first time makes it
        return [row for chapter in chapters for row in _fetch_chapter(api, chapter, inbound)]


def _fetch_chapter(api: NbGraderAPI, chapter: str, inbound: Path) -> list[Row]:
    """Fetch everybody's; where nbgrader stops at somebody's, one student after the other."""
    result = api.collect(chapter, update=True)
    rows = _warnings(result, chapter)
    if result["success"]:
        return rows
    students = sorted({path.name.split(f"+{chapter}+")[0] for path in inbound.glob(f"*+{chapter}+*")})
    for student in students or ["*"]:
        api.coursedir.student_id = student
        result = api.collect(chapter, update=True)
        if not result["success"]:
            reason = f"nbgrader could not collect it: {_last_line(result)}"
            rows.append(Row(f"exchange/{printable(student)}/{chapter}", "", chapter, SET_ASIDE, reason))
    api.coursedir.student_id = "*"
    return rows


def _warnings(result: dict[str, Any], chapter: str) -> list[Row]:
    """What nbgrader says of submissions that somebody else seems to have made."""
    lines = [line for line in str(result.get("log", "")).splitlines() if "claims to be submitted by" in line]
    return [Row("exchange", "", chapter, SET_ASIDE, printable(line.strip())) for line in lines]


def _last_line(result: dict[str, Any]) -> str:
    text = str(result.get("error") or result.get("log") or "for no reason it tells").strip()
    return printable(text.splitlines()[-1])


def _timezone(name: str | None) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise GradingError(f'There is no time zone "{name}"; they are named like Europe/Rome.') from None


def table(rows: list[Row]) -> str:
    """What became of every file, those that need a person last, and how many there were of each."""
    ordered = sorted(rows, key=lambda row: row.needs_person)
    lines = []
    for row in ordered:
        file = row.file if len(row.file) <= 60 else "…" + row.file[-59:]
        what = row.action + ("?" if row.look else "")
        lines.append(f"{what:<14}{row.student or '-':<20} {row.chapter or '-':<17} {file}")
        if row.reason:
            lines.append(f"{'':14}{row.reason}")
    counts = Counter(row.action for row in rows)
    total = ", ".join(f"{number} {action}" for action, number in counts.most_common())
    people = sum(row.needs_person for row in rows)
    lines.append(f"\n{several(len(rows), 'file')}: {total}." if rows else "There was nothing to collect.")
    if people:
        who = f"{people} of them, the last ones above, need" if people > 1 else "One of them, the last one above, needs"
        lines.append(f"{who} a person. All are in grading/collected.csv.")
    return "\n".join(lines)


def _tell_missing(course: Course, chapter: str, roster: Roster) -> None:
    """Say who is in the roster, and has nothing in submitted/."""
    students = [one.id for one in roster.people if not Submission(course, one.id, chapter).notebook.is_file()]
    if students:
        names = ", ".join(students[:20]) + (f" and {len(students) - 20} more" if len(students) > 20 else "")
        print(f"{len(students)} of {len(roster.people)} in {roster.path.name} have no {chapter} yet: {names}.")


_COLUMNS = ["file", "student", "chapter", "action", "reason", "time"]


def _write_table(course: Course, rows: list[Row]) -> None:
    """Add to grading/collected.csv what became of these files, in place of what it said about them before."""
    path = course.records / "collected.csv"
    lines: dict[str, dict[str, str]] = {}
    if path.is_file():
        with open(path, encoding="utf-8", newline="") as file:
            lines = {line["file"]: line for line in csv.DictReader(file) if line.get("file")}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for row in rows:
        lines[row.file] = {name: getattr(row, name) for name in _COLUMNS[:-1]} | {"time": now}
    output = io.StringIO(newline="")
    writer = csv.DictWriter(output, _COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines.values())
    write_atomically(path, output.getvalue().encode())
