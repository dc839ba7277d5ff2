"""nbgrader's own conversion of one submission, in two halves: between them it is executed, anywhere."""

from __future__ import annotations

import contextlib
import glob
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat.notebooknode import NotebookNode
from nbgrader.converters import Autograde
from nbgrader.utils import rmtree
from sqlalchemy.exc import SAWarning
from traitlets.config import Config

from helpers.grading.course import Submission, other_entries

LOG = logging.getLogger("helpers.grading")
LOG.propagate = False  # what it says goes into each submission's log
LOG.addHandler(logging.NullHandler())
_EXECUTE = "helpers.grading.executing.ExecuteSubmission"


def repaired(submission: Submission) -> NotebookNode:
    """The submitted notebook as nbgrader's sanitizing leaves it; nothing is written.

    UnreadableNotebook, or whatever else a preprocessor raises, when there is none.
    """
    converter = _converter(submission)
    with contextlib.chdir(submission.course.root):
        converter.exporter = converter.exporter_class(parent=converter, config=converter.config)
        converter._init_preprocessors()
        path = str(submission.notebook)
        output, _ = converter.exporter.from_filename(path, converter.init_single_notebook_resources(path))
    return nbformat.reads(output, as_version=4)


def save(submission: Submission, sanitized: NotebookNode | Exception, executed: NotebookNode | None) -> None:
    """Judge an executed notebook, and save it and its scores, as `nbgrader autograde --force` does.

    An exception in place of the sanitized notebook is raised where nbgrader would have met it, so that the gradebook
    ends up as nbgrader leaves it then. NbGraderException if it failed.
    """
    converter = _converter(submission)
    if submission.autograded.parent.exists():
        rmtree(submission.autograded.parent)
    converter.coursedir.ignore = [*converter.coursedir.ignore, *_no_files(submission.folder)]
    converter.sanitize_preprocessors = [_in_place_of_the_notebook(sanitized)]
    converter.autograde_preprocessors = [
        _in_place_of_the_notebook(executed) if step == _EXECUTE else step for step in converter.autograde_preprocessors
    ]
    with contextlib.chdir(submission.course.root), warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # of nbgrader's way to create submissions
        converter.start()


@contextlib.contextmanager
def log_into(messages: list[str]) -> Iterator[None]:
    """Take the warnings that nbgrader has about one submission."""
    handler = _Collect(messages)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)


class _Collect(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(self.format(record))


def _no_files(folder: Path) -> list[str]:
    """Patterns for what nbgrader must not copy beside the notebook: links, such as to the gradebook, and pipes."""
    return [glob.escape(path.name) for path in other_entries(folder)]


def _in_place_of_the_notebook(result: NotebookNode | Exception | None) -> Any:
    """A preprocessor that hands on what was made elsewhere."""

    def hand_on(notebook: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        if isinstance(result, Exception):
            raise result
        return result, resources

    return hand_on


def _converter(submission: Submission) -> Autograde:
    config = Config(submission.course.config)
    config.Exporter.optimistic_validation = True  # once behind all preprocessors, not behind each
    directory = submission.course.directory
    directory.assignment_id, directory.student_id = submission.chapter, submission.student
    converter = Autograde(coursedir=directory, config=config)
    converter.log = LOG
    return converter
