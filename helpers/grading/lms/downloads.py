"""Reads what students uploaded, in zips and folders, and trusts none of it.

Nothing is unpacked: entries are read into memory one at a time, and what they hold is counted, not believed.
"""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from helpers.grading.course import GradingError
from helpers.grading.lms.platforms import printable

_MB = 1024 * 1024
MAX_FILE = 50 * _MB  # one notebook, or one zip that a student uploaded
MAX_NESTED = 200 * _MB  # all that is in one such zip
MAX_NESTED_FILES = 2000
MAX_DOWNLOAD = 8 * 1024 * _MB
_CHUNK = 256 * 1024
_DEPTH = 12  # folders in folders
_DIRECTORY_ENTRY = b"PK\x01\x02"
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


class Refused(ValueError):
    """Why one file is not taken."""


@dataclass(frozen=True)
class Entry:
    """A file in a download. `label` names it for people; `problem` says why it cannot be taken, and is "" if it can."""

    label: str
    parts: tuple[str, ...]
    time: datetime | None
    read: Callable[[], bytes]
    problem: str = ""

    @property
    def name(self) -> str:
        return self.parts[-1]


class Budget:
    """How much may still be unpacked."""

    def __init__(self, size: int, what: str) -> None:
        self.left = size
        self.what = what

    def read(self, file: IO[bytes]) -> bytes:
        """All that a file holds. Refused when it is too large, by what comes out and not by what its header says."""
        content = io.BytesIO()
        while chunk := file.read(_CHUNK):
            self.left -= len(chunk)
            if content.tell() + len(chunk) > MAX_FILE:
                raise Refused(f"it holds more than {MAX_FILE // _MB} MB")
            if self.left < 0:
                raise Refused(f"{self.what} holds too much to be unpacked")
            content.write(chunk)
        return content.getvalue()


@contextmanager
def opened(path: Path) -> Iterator[list[Entry]]:
    """Every file in a zip, in a folder, or the one file itself. GradingError when there is nothing to be read."""
    budget = Budget(MAX_DOWNLOAD, "the download")
    label = printable(path.resolve().name)
    try:
        if path.is_dir():
            yield list(_in_folder(path, (), label, budget))
        elif not path.exists():
            raise GradingError(f"There is no file or folder {path}.")
        elif path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield list(_in_zip(lambda: archive, archive.infolist(), label, (), budget))
        else:
            yield [_on_disk(path, (path.name,), label, budget)]
    except zipfile.BadZipFile as error:
        raise GradingError(
            f"{path} is not a whole zip file ({error}). The download may have been cut off: fetch it again."
        ) from None
    except OSError as error:
        raise GradingError(f"{path} cannot be read ({error.strerror or error}).") from None


def in_nested_zip(entry: Entry) -> list[Entry]:
    """What is in a zip that a student uploaded. Refused when it cannot be opened."""
    budget = Budget(MAX_NESTED, "the zip")
    try:
        infos = _nested_archive(entry).infolist()
    except _DAMAGED as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"the zip cannot be opened ({_short(error)})") from None
    return list(_in_zip(lambda: _nested_archive(entry), infos, entry.label, entry.parts[:-1], budget))


@functools.lru_cache(maxsize=1)  # all files of one zip are looked at in a row; a class's zips would fill the memory
def _nested_archive(entry: Entry) -> zipfile.ZipFile:
    content = entry.read()
    if content.count(_DIRECTORY_ENTRY) > MAX_NESTED_FILES:  # before a list of them all is made
        raise Refused(f"the zip holds more than {MAX_NESTED_FILES} files")
    return zipfile.ZipFile(io.BytesIO(content))


def _in_zip(
    archive: Callable[[], zipfile.ZipFile],
    infos: list[zipfile.ZipInfo],
    label: str,
    above: tuple[str, ...],
    budget: Budget,
) -> Iterator[Entry]:
    seen: Counter[str] = Counter()
    for info in infos:
        name = _name(info)
        if name.endswith("/") or stat.S_ISDIR(info.external_attr >> 16):
            continue
        parts = tuple(part for part in re.split(r"[/\\]", name) if part not in ("", "."))
        seen[name] += 1
        again = f" [{seen[name]}]" if seen[name] > 1 else ""  # a zip can hold several files of one name
        yield Entry(
            f"{label}/{printable(name)}{again}",
            above + (parts or ("?",)),
            _zip_time(info),
            lambda info=info: _member(archive(), info, budget),
            _problem(info, name, parts),
        )


def _name(info: zipfile.ZipInfo) -> str:
    """The entry's name: many programs write UTF-8 without saying so."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _problem(info: zipfile.ZipInfo, name: str, parts: tuple[str, ...]) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if ".." in parts or name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        return "its path leads out of the zip"
    if kind == stat.S_IFLNK:
        return "it is a symbolic link"
    if kind not in (0, stat.S_IFREG):
        return "it is no ordinary file"
    if info.flag_bits & 1:
        return "it is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "it is packed by an unusual method"
    return ""


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> bytes:
    try:
        with archive.open(info) as file:
            return budget.read(file)
    except Refused:
        raise
    except _DAMAGED as error:
        raise Refused(f"it cannot be unpacked ({_short(error)})") from None


def _zip_time(info: zipfile.ZipInfo) -> datetime | None:
    """When the entry was written, in this machine's time zone: zips do not say in which."""
    try:
        time = datetime(*info.date_time)
    except ValueError:
        return None
    return time.astimezone(UTC) if time.year > 1980 else None


def _in_folder(folder: Path, parts: tuple[str, ...], label: str, budget: Budget) -> Iterator[Entry]:
    try:
        items = sorted(os.scandir(folder), key=lambda item: item.name)
    except OSError as error:
        if not parts:
            raise
        yield Entry("/".join((label, *map(printable, parts))), parts, None, bytes, f"it is a folder: {error.strerror}")
        return
    for item in items:
        inner = (*parts, item.name)
        if item.is_dir(follow_symlinks=False) and len(inner) < _DEPTH:
            yield from _in_folder(Path(item.path), inner, label, budget)
        else:
            yield _on_disk(Path(item.path), inner, "/".join((label, *map(printable, inner))), budget)


def _on_disk(path: Path, parts: tuple[str, ...], label: str, budget: Budget) -> Entry:
    status = path.lstat()
    problem = ""
    if stat.S_ISLNK(status.st_mode):
        problem = "it is a symbolic link"
    elif stat.S_ISDIR(status.st_mode):
        problem = "it lies too deep"
    elif not stat.S_ISREG(status.st_mode):
        problem = "it is no ordinary file"
    time = datetime.fromtimestamp(status.st_mtime, UTC)
    return Entry(label, parts, time, lambda: _from_disk(path, budget), problem)


def _from_disk(path: Path, budget: Budget) -> bytes:
    try:
        # neither through a link nor waiting for a pipe, should the file have become one since it was listed
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            return budget.read(file)
    except OSError as error:
        raise Refused(f"it cannot be read ({error.strerror})") from None


def _short(error: Exception) -> str:
    return printable(str(error))[:100] or type(error).__name__
