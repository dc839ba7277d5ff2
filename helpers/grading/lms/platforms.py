"""What Canvas and Moodle call things: the files they hand out, and the lists of a class that they export.

Canvas, "Download Submissions": a flat zip of `NAME_USER_ATTACHMENT_FILE`, late ones `NAME_LATE_USER_ATTACHMENT_FILE`,
with anonymous grading `anon_CODE_ATTACHMENT_FILE`. NAME is the sortable name in small letters without spaces and
punctuation. FILE gets "-1", "-2" when a student uploads the same name again. Only the latest attempt is in it, and its
entries bear the time of the download. (canvas-lms: lib/content_zipper.rb; app/models/attachment.rb)

Moodle, "Download all submissions": a folder `NAME_NUMBER_assignsubmission_file` per student (before Moodle 4.1 with a
"_" at its end) or, without "Download submissions in folders", files `NAME_NUMBER_assignsubmission_file_FILE`. NUMBER
is the participant's number: another one in every assignment, the same as in the grading worksheet's column Identifier
("Participant NUMBER"). Entries bear the time of the download. (moodle: mod/assign/classes/downloader.php)
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import dateutil.parser

from helpers.grading.course import GradingError

CANVAS, MOODLE, FOLDERS, EXCHANGE = "canvas", "moodle", "folders", "exchange"

_CANVAS_FILE = re.compile(
    r"(?:(?P<name>.*?)_)??(?P<late>LATE_)?(?P<user>\d+|anon_[A-Za-z0-9]+)_(?P<attachment>\d+)_(?P<file>.+)", re.DOTALL
)
_MOODLE_PART = re.compile(
    r"(?P<name>[^_]*)_(?P<number>\d+)_assignsubmission_(?P<plugin>[a-z]+)(?:_(?P<file>.*))?", re.DOTALL
)
ROSTER_COLUMNS = """\
Columns that a roster may have (capitals do not matter; further columns are ignored):
  student_id                       the student's name in nbgrader; when it is missing, the first of these that is
                                   filled in: SIS Login ID, Username, Email address, SIS User ID, ID number
  ID, Identifier                   Canvas's user number; Moodle's "Participant 123456"
  Student, Full name, name, or First name and Last name
  Last modified (submission)       Moodle's hand-in time, taken for late penalties
So Canvas's gradebook export and Moodle's grading worksheet (in English) can be used as they are."""


@dataclass(frozen=True)
class Sender:
    """Who handed a file in, as the platform's names say. `original` is the file's or folder's name on the platform."""

    platform: str
    name: str
    number: str = ""
    attachment: int | None = None
    late: bool = False
    original: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Differs for different people within one download: those of the same name, and a name made up to look so."""
        return self.platform, self.number, folded(self.name)

    @property
    def default_id(self) -> str:
        """A name for nbgrader where no roster gives one. Canvas's number never changes; Moodle's does."""
        return safe_id(f"{self.name}_{self.number}".strip("_") if self.platform == CANVAS else self.name)


def canvas_file(name: str) -> tuple[Sender, str] | None:
    """The sender, and the student's own file name; None when Canvas names no file so.

    >>> canvas_file("lovelaceada_LATE_12_34_01_softmax-1.ipynb")[1]
    '01_softmax-1.ipynb'
    """
    match = _CANVAS_FILE.fullmatch(name)
    if match is None:
        return None
    sender = Sender(
        CANVAS,
        match["name"] or "",
        match["user"],
        int(match["attachment"]),
        bool(match["late"]),
        name,
    )
    return sender, match["file"]


def moodle_path(parts: tuple[str, ...]) -> tuple[Sender, tuple[str, ...]] | None:
    """The sender, and what comes after the part that names it; None when Moodle names no path so.

    >>> moodle_path(("Ada Lovelace_123_assignsubmission_file_", "01_softmax.ipynb"))[1]
    ('01_softmax.ipynb',)
    """
    for place, part in enumerate(parts):
        match = _MOODLE_PART.fullmatch(part)
        if match and match["plugin"] == "file":
            rest = (match["file"],) if match["file"] else ()
            return Sender(MOODLE, match["name"], match["number"], original=part), rest + parts[place + 1 :]
    return None


def is_moodle_text(parts: tuple[str, ...]) -> bool:
    """Whether a path is an answer typed into Moodle instead of a file."""
    return any((match := _MOODLE_PART.fullmatch(part)) and match["plugin"] != "file" for part in parts)


def safe_id(name: str) -> str:
    """A name that can be a folder and nbgrader's id for a student: letters, digits and `_ - . @ +`, at most 100.

    >>> safe_id('=Smith, "Jr"/../x')
    'Smith_Jr_.._x'
    """
    kept = re.sub(r"[^\w.@+-]+", "_", unicodedata.normalize("NFC", name))
    return re.sub(r"^[\W_]+", "", kept)[:100].rstrip("._")


def folded(name: str) -> str:
    """Equal for names that some file system takes for the same folder."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())


def printable(text: str) -> str:
    """Text from outside, with nothing in it that a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a CSV file, separated by commas, semicolons or tabs, every row as long as the header.

    GradingError when it cannot be read, or is not UTF-8 (Excel: "CSV UTF-8").
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        first = text.split("\n", 1)[0]
        delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(row)]
    except OSError as error:
        raise GradingError(f"{path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise GradingError(f'{path} is not UTF-8. Download it again, or save it as "CSV UTF-8".') from None
    except csv.Error as error:
        raise GradingError(f"{path} is not a CSV file ({error}).") from None
    if not rows:
        raise GradingError(f"{path} is empty.")
    header = rows[0]
    return header, [row[: len(header)] + [""] * (len(header) - len(row)) for row in rows[1:]]


@dataclass(frozen=True)
class Person:
    """One row of a roster."""

    id: str
    number: str
    names: frozenset[str]
    aliases: frozenset[str]
    submitted: datetime | None
    row: int


@dataclass
class Roster:
    """The list of a class: a file's header and rows, and what is known of each person."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    people: list[Person] = field(default_factory=list)

    def find(self, sender: Sender) -> Person | None:
        """The one person that this sender can be: by number, else by name. None when there is none, or several.

        A person whose Canvas number is known is never found by name: it would be somebody else of the same name. Nor
        is one found by Canvas's number under another name: names may end in numbers of the students' own making.
        """
        name = _letters(sender.name)
        if sender.number and (found := _only(person for person in self.people if person.number == sender.number)):
            made_up = sender.platform == CANVAS and name and found.names and name not in found.names
            return None if made_up else found
        alias = folded(sender.name)
        if sender.platform in (FOLDERS, EXCHANGE):
            found = _only(person for person in self.people if alias in person.aliases)
            if found:
                return found
        candidates = (person for person in self.people if sender.platform != CANVAS or not person.number)
        return _only(person for person in candidates if name in person.names)

    def by_id(self, student: str) -> Person | None:
        return _only(person for person in self.people if person.id == student)


def read_roster(path: Path, timezone: tzinfo | None = None) -> Roster:
    """A roster from a CSV file; Moodle's times are in `timezone` (None: this machine's). GradingError says why not."""
    header, rows = read_table(path)
    columns = {_letters(name): place for place, name in reversed(list(enumerate(header)))}
    roster = Roster(path, header, rows)
    canvas = "student" in columns or "lastname" in columns and "sisloginid" in columns

    def value(row: list[str], *names: str) -> str:
        return next(
            (row[columns[name]].strip() for name in names if name in columns and row[columns[name]].strip()), ""
        )

    for place, row in enumerate(rows):
        if is_no_student(row):
            continue
        number = value(row, "id") if canvas else _digits(value(row, "identifier", "platformid", "lmsuserid"))
        logins = [value(row, name) for name in ("sisloginid", "username", "emailaddress", "email")]
        logins += [value(row, name) for name in ("sisuserid", "idnumber")]
        given = value(row, "studentid", "nbgraderid") or ("" if canvas else value(row, "id"))
        full = _unquoted(value(row, "student", "fullname", "name"))
        first, last = value(row, "firstname"), value(row, "lastname", "surname")
        names = _spellings(full) | (_spellings(f"{last}, {first}") if first or last else set())
        named = full or f"{first} {last}".strip()
        identity = safe_id(given or next(filter(None, logins), "") or f"{named}_{number}".strip("_"))
        aliases = frozenset(folded(name) for name in (identity, given, number, *logins) if name)
        submitted = _time(value(row, "lastmodifiedsubmission"), timezone)
        if identity:
            roster.people.append(Person(identity, number, frozenset(names - {""}), aliases, submitted, place))
    _check(roster)
    return roster


def is_no_student(row: list[str]) -> bool:
    """Whether a row of Canvas's gradebook export is "Points Possible" or "Manual Posting"."""
    filled = [cell.strip() for cell in row if cell.strip()]
    return row[0].strip() == "Points Possible" or all(re.match(r"(?i)muted|manual posting", cell) for cell in filled)


def _check(roster: Roster) -> None:
    if not roster.people:
        raise GradingError(f"No student was found in {roster.path}. {ROSTER_COLUMNS}")
    seen: dict[str, Person] = {}
    for person in roster.people:
        other = seen.setdefault(folded(person.id), person)
        if other is not person:
            raise GradingError(
                f"{roster.path}: rows {other.row + 2} and {person.row + 2} would both be the student {person.id!r}. "
                "Give them a column student_id with different names."
            )


def _only(people: Iterable[Person]) -> Person | None:
    found = list(people)
    return found[0] if len(found) == 1 else None


def _letters(text: str) -> str:
    """A name as far as all platforms keep it: its letters and digits."""
    return "".join(character for character in folded(text) if character.isalnum())


def _spellings(name: str) -> set[str]:
    """ "Lovelace, Ada" and "Ada Lovelace", in letters only, either way round."""
    if "," in name:
        last, first = name.split(",", 1)
        return {_letters(name), _letters(first + last)}
    return {_letters(name)} | ({_letters("".join(reversed(name.rsplit(" ", 1))))} if " " in name else set())


def _digits(text: str) -> str:
    match = re.search(r"\d+$", text)
    return match.group() if match else text


def _unquoted(name: str) -> str:
    """Canvas writes a name that begins with "=" as ="=name", so that no spreadsheet calculates it."""
    return name[2:-1] if name.startswith('="') and name.endswith('"') else name


def _time(text: str, timezone: tzinfo | None) -> datetime | None:
    if not re.search(r"\d{4}", text):
        return None
    try:
        time = dateutil.parser.parse(text)
        return (time if time.tzinfo else time.replace(tzinfo=timezone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
