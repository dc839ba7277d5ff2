"""Brings a mangled submission back in step with the cells that the gradebook knows.

People copy cells, split and merge them, delete them, turn them into Markdown, edit tests and move them about, and
some editors drop nbgrader's marks. Left like that, one notebook stops a whole batch or loses a score. Here every cell
that the gradebook knows is found again or put back, and gets its marks from the gradebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from helpers.grading import METADATA
from helpers.grading.course import digest_of, other_entries, printable
from helpers.grading.reading import made_valid
from helpers.notebooks import CHECK, defines

_NO_ANSWER_CELL = (
    "No cell of this notebook carries nbgrader's marks any more. If this question was answered, the answer is in one "
    "of the text cells above."
)


@dataclass(frozen=True)
class Expected:
    """A cell as the gradebook knows it: what nbgrader wrote down when the assignment was released."""

    name: str
    cell_type: str
    source: str
    checksum: str | None
    locked: bool = False
    grade: bool = False
    solution: bool = False
    task: bool = False
    points: float = 0.0

    @property
    def exercise(self) -> str | None:
        """The exercise that this test cell checks; None if it is no test cell."""
        return self.name.removesuffix(CHECK) if self.is_test and self.name.endswith(CHECK) else None

    @property
    def is_test(self) -> bool:
        return self.grade and self.locked and self.cell_type == "code"

    @property
    def must_be_there(self) -> bool:
        """Whether it is put back when it is missing. The cell of an answer that a test checks need not be."""
        return self.locked or self.grade or self.task

    @property
    def role(self) -> str:
        kind = "test cell" if self.is_test else "answer cell" if self.solution else "cell"
        return f"the {kind} `{self.name}`"

    def is_text_of(self, cell: NotebookNode) -> bool:
        """Whether the cell still holds the released text."""
        return cell.source.strip() == self.source.strip()

    def marks(self) -> dict[str, Any]:
        """nbgrader's metadata for this cell."""
        marks = {
            "schema_version": 3,
            "grade_id": self.name,
            "grade": self.grade,
            "solution": self.solution,
            "locked": self.locked,
            "task": self.task,
            "cell_type": self.cell_type,
            "checksum": self.checksum,
        }
        return marks | ({"points": self.points} if self.grade or self.task else {})


class RepairSubmission(NbGraderPreprocessor):
    """The first thing that happens to a submission. Never raises: a notebook that it fails on goes on as it came."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Repair the notebook; what was done goes into the log, the notebook's metadata and a cell at the top."""
        about = resources["nbgrader"]
        folder = Path(resources["metadata"]["path"])
        links = self._without_links(folder, about)
        try:
            expected = expected_cells(about["db_url"], about["notebook"], about["assignment"])
            nb = made_valid(nb)
            repaired = repair(nb.cells, expected)
        except Exception:
            self.log.exception("The notebook %s of %s could not be repaired.", about["notebook"], about["student"])
            nb.metadata = NotebookNode({METADATA: {"notes": links, "submission": digest_of(folder)}})
            return nb, resources
        repaired.notes += links
        for note in repaired.notes:
            self.log.warning("%s of %s: %s", about["notebook"], about["student"], note["text"])
        nb.cells = _with_notes_on_top(repaired)
        kernel = nb.metadata.get("kernelspec")
        nb.metadata = NotebookNode({METADATA: {"notes": repaired.notes, "submission": digest_of(folder)}})
        if kernel:
            nb.metadata.kernelspec = kernel
        return nb, resources

    def _without_links(self, folder: Path, about: Mapping[str, str]) -> list[dict[str, str]]:
        """Remove what nbgrader copied by way of links, such as the gradebook; returns a note for each."""
        notes = []
        for link in other_entries(folder):
            name = link.relative_to(folder)
            if self.parent and self.parent.parent:
                place = self.parent.parent._format_dest(about["assignment"], about["student"])
                Path(place, name).unlink(missing_ok=True)
            kind = "a link to another file" if link.is_symlink() else "no ordinary file"
            text = f"The file `{printable(str(name))}` is {kind}; it was left out."
            notes.append({"cell": "", "text": text})
        return notes


def expected_cells(db_url: str, notebook: str, assignment: str) -> dict[str, Expected]:
    """The gradebook's cells of a notebook by grade_id, in their order."""
    with Gradebook(db_url) as gradebook:
        known = gradebook.find_notebook(notebook, assignment)
        graded = {cell.name: cell.max_score for cell in known.grade_cells}
        tasks = {cell.name: cell.max_score for cell in known.task_cells}
        solutions = {cell.name for cell in known.solution_cells}
        return {
            cell.name: Expected(
                name=cell.name,
                cell_type=cell.cell_type,
                source=cell.source or "",
                checksum=cell.checksum,
                locked=cell.locked,
                grade=cell.name in graded,
                solution=cell.name in solutions,
                task=cell.name in tasks,
                points=(graded | tasks).get(cell.name, 0.0),
            )
            for cell in known.source_cells
        }


@dataclass
class Repaired:
    """A notebook's cells under repair. `names` says which of the gradebook's cells a cell stands for, by its id."""

    cells: list[NotebookNode]
    expected: Mapping[str, Expected]
    names: dict[str, str] = field(default_factory=dict)
    notes: list[dict[str, str]] = field(default_factory=list)

    def standing_for(self, name: str) -> list[NotebookNode]:
        return [cell for cell in self.cells if self.names.get(cell.id) == name]

    def place_of(self, name: str) -> int | None:
        """The position of the cell that stands for `name`."""
        return next((place for place, cell in enumerate(self.cells) if self.names.get(cell.id) == name), None)

    def places_defining(self, name: str) -> list[int]:
        """Positions of the code cells that define `name`, test cells left out."""
        return [
            place
            for place, cell in enumerate(self.cells)
            if cell.cell_type == "code" and not self._is_locked(cell) and defines(cell.source, name)
        ]

    def note(self, name: str, text: str) -> None:
        self.notes.append({"cell": name, "text": printable(text[0].upper() + text[1:])})

    def insert(self, place: int, cell: NotebookNode) -> None:
        cell.id = _unused_id(cell.id, {other.id for other in self.cells})
        self.cells.insert(place, cell)

    def replace(self, old: NotebookNode, new: NotebookNode) -> None:
        self.cells[_position(self.cells, old)] = new

    def _is_locked(self, cell: NotebookNode) -> bool:
        name = self.names.get(cell.id)
        return name is not None and self.expected[name].locked


def repair(cells: list[NotebookNode], expected: Mapping[str, Expected]) -> Repaired:
    """The submitted cells in step with the expected ones: each there once, of its type, with its marks.

    Text that people wrote is never thrown away; copies of untouched cells are.
    """
    work = Repaired([_plain(cell) for cell in cells], expected)
    for cell, old in zip(work.cells, cells, strict=True):
        _recognise(work, cell, old)
    marks_are_gone = not any(_claimed(cell, expected) for cell in cells)
    for name in expected:
        _keep_one(work, name)
        _restore(work, name)
    _cut_out_merged_tests(work)
    _prefer_definitions_elsewhere(work)
    for name, wanted in expected.items():
        if wanted.must_be_there and work.place_of(name) is None:
            _put_back(work, name, marks_are_gone)
    for name in expected:
        _put_behind_its_answer(work, name)
    for cell in work.cells:
        if cell.id in work.names:
            cell.metadata = NotebookNode(nbgrader=NotebookNode(expected[work.names[cell.id]].marks()))
    return work


def _claimed(cell: NotebookNode, expected: Mapping[str, Expected]) -> str | None:
    """The expected cell that this one is by its own marks."""
    marks = cell.metadata.get("nbgrader")
    name = marks.get("grade_id") if isinstance(marks, Mapping) else None
    return name if isinstance(name, str) and name in expected else None


def _recognise(work: Repaired, cell: NotebookNode, old: NotebookNode) -> None:
    """Find out which expected cell this one stands for, by its marks or, for tests, by its text."""
    name = _claimed(old, work.expected)
    same = [other.name for other in work.expected.values() if other.is_test and other.is_text_of(cell)]
    if name or same:
        work.names[cell.id] = name or same[0]
        return
    marks = old.metadata.get("nbgrader")
    if isinstance(marks, Mapping) and any(marks.get(flag) for flag in ("grade", "solution", "locked", "task")):
        shown = str(marks.get("grade_id"))[:60].replace("`", "")
        work.note(shown, f"the assignment has no cell `{shown}`; the one of that name was taken as an ordinary cell.")


def _cut_out_merged_tests(work: Repaired) -> None:
    """Take a test's lines out of cells that they were merged into; the test gets a cell of its own again."""
    for wanted in work.expected.values():
        for cell in work.cells if wanted.is_test else ():
            text = _without(cell.source, wanted.source)
            if cell.cell_type == "code" and text != cell.source and work.names.get(cell.id) != wanted.name:
                cell.source = text
                work.note(wanted.name, f"{wanted.role} had been merged with another cell; it was taken out of it.")


def _without(source: str, text: str) -> str:
    return source.replace(text.strip(), "").strip("\n") if text.strip() in source else source


def _keep_one(work: Repaired, name: str) -> None:
    """Of several copies keep one: of an answer the last that was edited, of anything else the last."""
    wanted = work.expected[name]
    copies = work.standing_for(name)
    if len(copies) < 2:
        return
    edited = [cell for cell in copies if cell.source.strip() and not wanted.is_text_of(cell)]
    kept = edited[-1] if edited and not wanted.locked else copies[-1]
    for cell in copies:
        if cell is not kept:
            del work.names[cell.id]
            if wanted.is_text_of(cell) or not cell.source.strip():
                del work.cells[_position(work.cells, cell)]
    which = "the last one that was edited" if edited and not wanted.locked else "the last one"
    work.note(name, f"{wanted.role} was there {len(copies)} times; {which} counts.")


def _restore(work: Repaired, name: str) -> None:
    """Give a cell its type back, and a locked one its text; what was written into a locked cell gets its own cell."""
    wanted = work.expected[name]
    for cell in work.standing_for(name):
        if cell.cell_type != wanted.cell_type:
            work.note(name, f"{wanted.role} had been turned into a {cell.cell_type} cell; it was turned back.")
        if wanted.locked and not wanted.is_text_of(cell):
            kept = _of_type(cell.cell_type, _without(cell.source, wanted.source))
            work.insert(_position(work.cells, cell), kept)
            work.note(name, f"{wanted.role} had been edited; it was restored, and what it held stands above it.")
        restored = _of_type(wanted.cell_type, wanted.source if wanted.locked else cell.source)
        if wanted.cell_type == "markdown" and "attachments" in cell:
            restored.attachments = cell.attachments
        restored.id = cell.id
        work.replace(cell, restored)


def _prefer_definitions_elsewhere(work: Repaired) -> None:
    """Drop the empty cell of an answer that was written in another cell, so that it does not undo that one."""
    for name, wanted in work.expected.items():
        place = work.place_of(name)
        if place is None or not wanted.solution or wanted.grade or not wanted.is_text_of(work.cells[place]):
            continue
        if any(other != place for other in work.places_defining(name)):
            del work.names[work.cells.pop(place).id]
            work.note(name, f"{wanted.role} was left as it was handed out; the definition in another cell counts.")


def _put_back(work: Repaired, name: str, marks_are_gone: bool) -> None:
    wanted = work.expected[name]
    by_hand = wanted.grade and wanted.solution
    source = _NO_ANSWER_CELL if by_hand and marks_are_gone else wanted.source
    cell = _of_type(wanted.cell_type, source)
    work.insert(_place_for(work, wanted), cell)
    work.names[cell.id] = name
    work.note(name, f"{wanted.role} was missing; it was put back{' empty' if wanted.solution else ''}.")


def _place_for(work: Repaired, wanted: Expected) -> int:
    """Where a missing cell belongs: behind the answer that it checks, else behind the expected cell before it."""
    if wanted.exercise:
        answer = work.place_of(wanted.exercise)
        places = work.places_defining(wanted.exercise) if answer is None else [answer]
        if places:
            return places[-1] + 1
    order = list(work.expected)
    here = order.index(wanted.name)
    before = [place for name in order[:here] if (place := work.place_of(name)) is not None]
    if before:
        return before[-1] + 1
    behind = [place for name in order[here + 1 :] if (place := work.place_of(name)) is not None]
    return behind[0] if behind else len(work.cells)


def _put_behind_its_answer(work: Repaired, name: str) -> None:
    """Move a test cell that stands before everything it could check."""
    wanted = work.expected[name]
    place = work.place_of(name)
    if not wanted.exercise or place is None:
        return
    answer = work.place_of(wanted.exercise)
    answers = work.places_defining(wanted.exercise) if answer is None else [answer]
    if answers and min(answers) > place:
        cell = work.cells[place]
        work.cells.insert(answers[-1] + 1, cell)
        del work.cells[place]
        work.note(name, f"{wanted.role} stood before the answer; it was moved behind it.")


def _plain(cell: NotebookNode) -> NotebookNode:
    """The cell without outputs and metadata: tags such as "skip-execution" are not for a submission to set."""
    plain = NotebookNode(id=cell.id, cell_type=cell.cell_type, metadata=NotebookNode(), source=cell.source)
    if cell.cell_type == "code":
        plain.outputs, plain.execution_count = [], None
    elif "attachments" in cell:
        plain.attachments = cell.attachments
    return plain


def _of_type(cell_type: str, source: str) -> NotebookNode:
    make = new_code_cell if cell_type == "code" else new_markdown_cell
    return make(source, id="cell")


def _unused_id(wanted: str, used: set[str]) -> str:
    number = 1
    while f"{wanted}-{number}" in used:
        number += 1
    return f"{wanted}-{number}"


def _position(cells: list[NotebookNode], cell: NotebookNode) -> int:
    return next(place for place, other in enumerate(cells) if other is cell)


def _with_notes_on_top(repaired: Repaired) -> list[NotebookNode]:
    if not repaired.notes:
        return repaired.cells
    lines = "\n".join(f"- {note['text']}" for note in repaired.notes)
    text = f"**Put right before grading.** This notebook was not quite as it was handed out:\n\n{lines}"
    note = new_markdown_cell(text, id=_unused_id("grading-notes", {cell.id for cell in repaired.cells}))
    return [note, *repaired.cells]
