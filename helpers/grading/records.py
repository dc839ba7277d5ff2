"""What `run` remembers of each submission: how it fared, what was said about it, and whether it is graded.

A submission counts as graded when its notebook in autograded/ says which submission it was made from. nbgrader writes
that file last, so a run that is stopped anywhere leaves a submission either graded or to be graded again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.grading import METADATA
from helpers.grading.course import Submission, printable

GRADED, SET_ASIDE, AGAIN = "graded", "set aside", "to be graded again"


@dataclass
class Record:
    """How one submission fared, in grading/records/CHAPTER/STUDENT.json; `report` reads these."""

    student: str
    chapter: str
    state: str  # GRADED, SET_ASIDE or AGAIN
    reason: str = ""
    sandbox: bool = True
    executing: float = 0.0  # seconds
    saving: float = 0.0
    notes: list[str] = field(default_factory=list)
    submission: str = ""
    finished: str = ""


def write_record(submission: Submission, record: Record) -> None:
    write_whole(submission.record, json.dumps(asdict(record), ensure_ascii=False, indent=1))


def read_record(submission: Submission) -> Record | None:
    """The record of a submission; None if there is none that can be read."""
    try:
        return Record(**json.loads(submission.record.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_graded(submission: Submission) -> bool:
    """Whether its graded notebook was made from what now lies in submitted/."""
    record = read_record(submission)
    digest = submission.digest()
    if record and record.submission == digest:  # quicker to read than the notebook
        return record.state == GRADED and submission.autograded.exists()
    about = grading_of(submission)
    return "reports" in about and about.get("submission") == digest


def was_executed(submission: Submission) -> bool:
    """Whether there are observations of what now lies in submitted/, judged or not."""
    about = grading_of(submission)
    return "seed" in about and about.get("submission") == submission.digest()


def grading_of(submission: Submission) -> dict[str, Any]:
    """What grading wrote into the graded notebook; {} if it is missing or half written."""
    try:
        content = json.loads(submission.autograded.read_bytes())
        return dict(content["metadata"][METADATA])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_log(submission: Submission, lines: list[str], after_what_is_there: bool = False) -> None:
    earlier = ""
    if after_what_is_there and submission.log.exists():
        earlier = submission.log.read_text(encoding="utf-8")
    readable = (printable(part) for line in lines for part in line.splitlines() or [""])
    write_whole(submission.log, earlier + "".join(f"{line}\n" for line in readable))


def write_whole(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8", errors="replace")
    os.replace(unfinished, path)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
