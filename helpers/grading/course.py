"""The course folder as nbgrader sees it: where everything is, and who handed in what."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from helpers.checks.registry import CHAPTERS


class GradingError(Exception):
    """Something that a person has to put right; its text says what and how. Subcommands end with exit code 2 on it."""


@dataclass(frozen=True)
class Course:
    """A course folder: nbgrader's directories, its configuration, and grading/, in which our own records lie."""

    root: Path
    config: Config

    @property
    def directory(self) -> CourseDirectory:
        return CourseDirectory(config=self.config)

    @property
    def db_url(self) -> str:
        return self.directory.db_url

    @property
    def submitted(self) -> Path:
        return self._place(self.directory.submitted_directory)

    @property
    def autograded(self) -> Path:
        return self._place(self.directory.autograded_directory)

    @property
    def feedback(self) -> Path:
        return self._place(self.directory.feedback_directory)

    def source(self, chapter: str) -> Path:
        """The folder with a chapter's source."""
        return self._place(self.directory.source_directory) / chapter

    @property
    def records(self) -> Path:
        """grading/: what `collect`, `run` and `report` write beside nbgrader's own folders."""
        return self.root / "grading"

    def submissions(self, chapters: list[str] | None = None) -> Iterator[Submission]:
        """Everything in submitted/ by chapter and student; hidden folders and loose files are no submissions."""
        for chapter in CHAPTERS if chapters is None else chapters:
            for folder in sorted(self.submitted.glob(f"*/{chapter}")):
                if folder.is_dir() and not folder.parent.name.startswith("."):
                    yield Submission(self, folder.parent.name, chapter)

    def _place(self, name: str) -> Path:
        return self.root / name


@dataclass(frozen=True)
class Submission:
    """What one student handed in for one chapter."""

    course: Course
    student: str
    chapter: str

    @property
    def folder(self) -> Path:
        return self.course.submitted / self.student / self.chapter

    @property
    def notebook(self) -> Path:
        return self.folder / f"{self.chapter}.ipynb"

    def digest(self) -> str:
        """What says whether it was changed since it was graded."""
        return digest_of(self.folder)

    @property
    def has_usable_name(self) -> bool:
        """Whether nbgrader can take the student's id: it reads * ? [ ] in one as a pattern for many."""
        return not set("*?[]") & set(self.student)

    @property
    def autograded(self) -> Path:
        """The executed and judged notebook; it is there only when the submission was graded."""
        return self.course.autograded / self.student / self.chapter / f"{self.chapter}.ipynb"

    @property
    def record(self) -> Path:
        """The JSON file in which `run` keeps how it went; see `running.Record`."""
        return self.course.records / "records" / self.chapter / f"{self.student}.json"

    @property
    def log(self) -> Path:
        return self.course.records / "logs" / self.chapter / f"{self.student}.log"


def digest_of(folder: Path) -> str:
    """The SHA-256 of a submission: of all files in its folder, their names and contents. Links are not followed."""
    digest = hashlib.sha256()
    for path in plain_files(folder):
        if ".ipynb_checkpoints" not in path.parts:
            digest.update(os.fsencode(path.relative_to(folder)) + f"\0{path.stat().st_size}\0".encode())
            with contextlib.suppress(OSError):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def plain_files(folder: Path) -> list[Path]:
    """All ordinary files in a folder and below it, in order; no links, no pipes, nothing that cannot be reached."""
    return sorted(Path(entry) for entry in _entries(folder) if entry.is_file(follow_symlinks=False))


def other_entries(folder: Path) -> list[Path]:
    """What is in a folder and below it that is neither an ordinary file nor a folder: links, pipes and the like."""
    return sorted(
        Path(entry)
        for entry in _entries(folder)
        if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False)
    )


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError):  # unreadable, or nested deeper than a path can be long
            for entry in os.scandir(waiting.pop()):
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def printable(text: str) -> str:
    """Text from a submission in one line, without what would move a cursor or cannot be written."""
    return "".join(character if character.isprintable() else "?" for character in text)


def add_course_arguments(parser: argparse.ArgumentParser) -> None:
    """The two options that every subcommand has."""
    parser.add_argument(
        "--course",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the course folder, with nbgrader_config.py in it (default: the current folder)",
    )
    parser.add_argument(
        "--db",
        metavar="URL",
        help="the gradebook, for example postgresql://user:password@host/grades where several people grade "
        "(default: what nbgrader_config.py says, else gradebook.db in the course folder)",
    )


def open_course(folder: Path, db: str | None = None) -> Course:
    """The course in a folder, with nbgrader_config.py read. GradingError when it is no course."""
    root = folder.resolve()
    if not (root / "nbgrader_config.py").is_file():
        raise GradingError(f"{root} has no nbgrader_config.py. Go into the course folder, or name it with --course.")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    config.CourseDirectory.root = str(root)
    if db:
        config.CourseDirectory.db_url = db
    return Course(root, config)


def check_chapters(names: list[str]) -> list[str]:
    """Full chapter names for what a person typed: "01", "1" or "01_softmax"; all when nothing is named."""
    if not names:
        return list(CHAPTERS)
    return [_chapter(name) for name in names]


def _chapter(name: str) -> str:
    fitting = [chapter for chapter in CHAPTERS if chapter == name or chapter.split("_")[0] == name.zfill(2)]
    if not fitting:
        raise GradingError(f'There is no chapter "{name}". Chapters are: {", ".join(CHAPTERS)}.')
    return fitting[0]
