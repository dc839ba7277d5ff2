"""Reads submitted notebooks as far as they can be read."""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat.notebooknode import NotebookNode
from nbformat.v4.rwbase import rejoin_lines

_MAX_BYTES = 40_000_000
_MAX_OLD_BYTES = 4_000_000
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class UnreadableNotebook(ValueError):
    """A file that no notebook can be made of. nbgrader sets its submission aside and goes on with the next."""


def read_notebook(content: bytes) -> NotebookNode:
    """The notebook in a file's content, valid as format 4.5: any version, with or without a byte order mark.

    What is not valid Unicode is replaced. UnreadableNotebook, with the reason, when nothing can be made of it.
    """
    try:
        text = _decode(content)
        data = json.loads(text)
        if "\\ud" in text.lower():  # perhaps half of a character, which could be read but not written
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise UnreadableNotebook(_why_not_json(content, error)) from None
    if isinstance(data, dict) and data.get("nbformat") in (1, 2, 3) and len(content) > _MAX_OLD_BYTES:
        raise UnreadableNotebook(f"it is in an old format and has more than {_MAX_OLD_BYTES // 1_000_000} MB")
    if not isinstance(data, dict) or not isinstance(data.get("nbformat"), int):
        raise UnreadableNotebook("it is a JSON file, but not a notebook")
    try:
        notebook = nbformat.from_dict(_without_ballast(data)) if data["nbformat"] >= 4 else _converted(data)
    except Exception as error:  # conversion raises whatever the odd content leads it to
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise UnreadableNotebook(f"its version of the format cannot be converted ({reason})") from None
    if not isinstance(notebook.get("cells"), list):
        raise UnreadableNotebook("it has no cells")
    return made_valid(notebook)


def made_valid(notebook: NotebookNode) -> NotebookNode:
    """The notebook itself if it is valid as format 4.5, else what can be kept of it: texts and nbgrader's marks."""
    return rejoin_lines(notebook) if _is_valid(notebook) else _rebuilt(notebook)


class SubmissionExporter(NotebookExporter):
    """Takes a submission through nbgrader's preprocessors, read by `read_notebook`."""

    def from_filename(
        self, filename: str, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Convert a file. UnreadableNotebook if it is a link, or no file, or very large: it is not opened then."""
        problem = _why_not_opened(Path(filename))
        if problem:
            raise _set_aside(problem, resources)
        return super().from_filename(filename, resources=resources, **kw)

    def from_file(
        self, file_stream: TextIO, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Convert an opened file. UnreadableNotebook names the student and says why."""
        if not getattr(self.parent, "_sanitizing", True):  # nbgrader's second step: what the first one wrote
            return super().from_file(file_stream, resources=resources, **kw)
        try:
            notebook = read_notebook(file_stream.buffer.read())
        except UnreadableNotebook as error:
            raise _set_aside(str(error), resources) from None
        return self.from_notebook_node(notebook, resources=resources, **kw)


def _why_not_opened(path: Path) -> str:
    if path.is_symlink() or path.parent.is_symlink():
        return "it is a link to another file"
    if not path.is_file():
        return "it is not an ordinary file"
    if path.stat().st_size > _MAX_BYTES:
        return f"it has more than {_MAX_BYTES // 1_000_000} MB"
    return ""


def _set_aside(reason: str, resources: dict[str, Any] | None) -> UnreadableNotebook:
    about = (resources or {}).get("nbgrader", {})
    owner, name = about.get("student", "?"), about.get("notebook", "?")
    return UnreadableNotebook(
        f"Set aside: the notebook {name} of {owner} cannot be read, since {reason}. Ask for it again."
    )


def _decode(content: bytes) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return content.decode(encoding)
    return content.decode("utf-8", errors="replace")


def _why_not_json(content: bytes, error: Exception) -> str:
    if not content.strip():
        return "the file is empty"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error.msg} in line {error.lineno} of {len(error.doc.splitlines())})"
    return f"it cannot be decoded ({type(error).__name__})"


def _without_ballast(data: dict[str, Any]) -> dict[str, Any]:
    """The notebook without outputs and without metadata but nbgrader's and the kernel's: nothing else is graded.

    Before it becomes a notebook: a megabyte of metadata can hold a million objects.
    """
    metadata, cells = data.get("metadata"), data.get("cells")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    slim = {**data, "metadata": {"kernelspec": kernel} if isinstance(kernel, dict) else {}}
    if isinstance(cells, list):
        slim["cells"] = [_slim_cell(cell) if isinstance(cell, dict) else cell for cell in cells]
    return {name: slim[name] for name in ("nbformat", "nbformat_minor", "metadata", "cells") if name in slim}


def _slim_cell(cell: dict[str, Any]) -> dict[str, Any]:
    metadata = cell.get("metadata")
    marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    slim = {name: cell[name] for name in ("id", "cell_type", "source", "attachments") if name in cell}
    if isinstance(marks, dict):
        marks = {name: value for name, value in marks.items() if not isinstance(value, dict | list)}
    slim["metadata"] = {} if marks is None else {"nbgrader": marks}
    return slim | ({"outputs": [], "execution_count": None} if cell.get("cell_type") == "code" else {})


def _converted(data: dict[str, Any]) -> NotebookNode:
    log = logging.getLogger("traitlets")
    level = log.level
    log.setLevel(logging.CRITICAL)  # conversion would print all that is invalid about it
    try:
        return nbformat.convert(nbformat.reader.reads(json.dumps(data)), 4)
    finally:
        log.setLevel(level)


def _is_valid(notebook: NotebookNode) -> bool:
    if (notebook.nbformat, notebook.get("nbformat_minor")) != (4, 5):
        return False
    ids = [cell.get("id") if isinstance(cell, Mapping) else None for cell in notebook.cells]
    if not all(isinstance(identity, str) for identity in ids) or len(set(ids)) < len(ids):
        return False
    try:
        nbformat.validate(notebook)
    except Exception:  # ValidationError, or what the validator makes of content that it cannot even look at
        return False
    return True


def _rebuilt(notebook: NotebookNode) -> NotebookNode:
    used: set[str] = set()
    cells = [_rebuilt_cell(cell, used) for cell in notebook.cells if isinstance(cell, Mapping)]
    metadata = notebook.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, Mapping) else None
    kept = {}
    if isinstance(kernel, Mapping) and all(isinstance(kernel.get(key), str) for key in ("name", "display_name")):
        kept["kernelspec"] = {"name": kernel["name"], "display_name": kernel["display_name"]}
    return nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": kept, "cells": cells})


def _rebuilt_cell(cell: Mapping[str, Any], used: set[str]) -> dict[str, Any]:
    kind = cell.get("cell_type") if cell.get("cell_type") in ("code", "markdown", "raw") else "markdown"
    metadata = cell.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, Mapping) else None
    rebuilt: dict[str, Any] = {
        "cell_type": kind,
        "id": _new_id(cell.get("id"), used),
        "metadata": {"nbgrader": mark} if isinstance(mark, Mapping) else {},
        "source": _text(cell.get("source")),
    }
    if kind == "code":
        rebuilt |= {"outputs": [], "execution_count": None}
    elif _are_attachments(cell.get("attachments")):
        rebuilt["attachments"] = cell["attachments"]
    return rebuilt


def _new_id(wanted: Any, used: set[str]) -> str:
    usable = isinstance(wanted, str) and re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wanted) and wanted not in used
    identity = wanted if usable else f"cell-{len(used)}"
    while identity in used:
        identity += "-"
    used.add(identity)
    return identity


def _text(source: Any) -> str:
    if isinstance(source, list):
        return "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _are_attachments(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(bundle, Mapping) and all(isinstance(data, str) for data in bundle.values())
        for bundle in value.values()
    )
