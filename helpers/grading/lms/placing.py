"""Puts a notebook into submitted/ so that nothing is lost, and remembers where it came from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from nbgrader.utils import parse_utc

from helpers.grading.course import Submission
from helpers.grading.lms.platforms import CANVAS, FOLDERS, MOODLE, Sender

# What can become of a file
COLLECTED = "collected"
REPLACED = "replaced"
THERE = "already there"
OLDER = "older"
IGNORED = "ignored"
SET_ASIDE = "set aside"


@dataclass(frozen=True)
class Record:
    """Where the notebook in submitted/ came from; kept in grading/collected/CHAPTER/STUDENT.json.

    `time` is the file's own, `submitted` when it was handed in; both in UTC, None when not known.
    """

    sha256: str
    file: str
    sender: Sender
    time: datetime | None
    submitted: datetime | None

    @property
    def age(self) -> tuple[float, int, float]:
        """Sorts the latest last, as far as it is known."""
        seconds = self.time.timestamp() if self.time else 0
        return self.submitted.timestamp() if self.submitted else seconds, self.sender.attachment or 0, seconds

    def is_newer(self, other: Record) -> bool | None:
        """Whether this submission was made after another one; None when nothing tells."""
        pairs = (
            (self.submitted, other.submitted),
            (self.sender.attachment, other.sender.attachment),
            (self.time, other.time),
        )
        return next((one > two for one, two in pairs if one and two and one != two), None)

    def dump(self) -> bytes:
        data = {"format": 1} | asdict(self)
        for name in ("time", "submitted"):
            data[name] = data[name] and data[name].isoformat()
        return json.dumps(data, indent=1, ensure_ascii=False).encode()


def record_path(submission: Submission) -> Path:
    return submission.course.records / "collected" / submission.chapter / f"{submission.student}.json"


def load_record(path: Path) -> Record | None:
    """A record from its file; None when there is none that can be read."""
    try:
        data = json.loads(path.read_text("utf-8"))
        times = [data[name] and datetime.fromisoformat(data[name]) for name in ("time", "submitted")]
        return Record(data["sha256"], data["file"], Sender(**data["sender"]), *times)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def place(submission: Submission, content: bytes, new: Record, same_person: bool) -> tuple[str, str]:
    """Put a notebook into submitted/, unless what is there is newer; what was done, and why. OSError when it cannot be.

    `same_person`: the roster says that the sender is who handed in what is there, whatever the platform's number.
    It can be interrupted at any moment: done again, it ends the same.
    """
    if not submission.notebook.is_file():
        _put(submission, content, new)
        return COLLECTED, ""
    there = _existing(submission)
    if not same_person and _is_somebody_else(new.sender, there.sender):
        return SET_ASIDE, f"{submission.student!r} is somebody else in {new.sender.platform.title()}: {there.file}"
    newer = new.is_newer(there)
    if new.sha256 == there.sha256:
        if newer or new.submitted and not there.submitted or load_record(record_path(submission)) != there:
            _put(submission, None, replace(new, submitted=new.submitted or there.submitted))
        return THERE, ""
    if newer is None:
        return SET_ASIDE, f"nothing says whether it or {there.file} is newer: to take this one, remove that first"
    if not newer:
        return OLDER, f"{there.file} is newer"
    kept = _keep(submission, there)
    _put(submission, content, new)
    return REPLACED, f"the earlier one is in {kept.relative_to(submission.course.root)}"


def write_atomically(path: Path, content: bytes) -> None:
    """Whoever reads the file finds the old or the new content, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    try:
        half.write_bytes(content)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def _is_somebody_else(new: Sender, there: Sender) -> bool:
    return new.platform in (CANVAS, MOODLE) and there.platform == new.platform and there.key != new.key


def _existing(submission: Submission) -> Record:
    """Where what is in submitted/ came from; when it was put there by other means, as much as its folder says."""
    sha256 = hashlib.sha256(submission.notebook.read_bytes()).hexdigest()
    record = load_record(record_path(submission))
    if record and record.sha256 == sha256:
        return record
    time = datetime.fromtimestamp(submission.notebook.stat().st_mtime, UTC)
    file = "/".join(submission.notebook.parts[-4:])
    sender = record.sender if record else Sender(FOLDERS, submission.student)
    return Record(sha256, file, sender, time, _stamp(submission))


def _stamp(submission: Submission) -> datetime | None:
    try:
        return parse_utc((submission.folder / "timestamp.txt").read_text("utf-8").strip()).replace(tzinfo=UTC)
    except (OSError, ValueError, OverflowError):
        return None


def _put(submission: Submission, content: bytes | None, new: Record) -> None:
    """Write timestamp, notebook and record, in this order: stopped between two, the next run does all three again."""
    stamp = submission.folder / "timestamp.txt"
    if new.submitted:
        write_atomically(stamp, f"{new.submitted.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC".encode())
    elif content is not None:
        stamp.unlink(missing_ok=True)  # it was the replaced one's
    if content is not None:
        write_atomically(submission.notebook, content)
    write_atomically(record_path(submission), new.dump())


def _keep(submission: Submission, there: Record) -> Path:
    """Copy what is about to be replaced to grading/earlier/."""
    when = datetime.fromtimestamp(submission.notebook.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H%M%SZ")
    folder = submission.course.records / "earlier" / submission.chapter / submission.student
    kept = folder / f"{when}-{there.sha256[:8]}"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(prefix=".", dir=folder))
        for path in (submission.notebook, submission.folder / "timestamp.txt", record_path(submission)):
            if path.is_file():
                shutil.copy2(path, copy / path.name)
        copy.rename(kept)
    return kept
