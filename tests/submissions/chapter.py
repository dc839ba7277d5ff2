"""Chapter 1 in small, as an author writes it, and what changes a learner's copy of it."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import ANY

import nbformat
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

CHAPTER = "01_softmax"

SOFTMAX = """\
def softmax(scores, axis=-1):
    powers = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)"""
STUB = 'def softmax(scores, axis=-1):\n    raise NotImplementedError("Write this function.")  # YOUR CODE HERE'
WRONG = "def softmax(scores, axis=-1):\n    return scores"
TEMPERATURE = """\
def softmax_with_temperature(scores, temperature, axis=-1):
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    powers = np.exp(scores / temperature - np.max(scores / temperature, axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)"""
QUIZ = 'quiz_01_1 = "B"'
EXPLANATION = "Because exp of a large number is more than a float can hold."

#: Points for softmax, softmax_with_temperature and the quiz; None is what nbgrader has for what it could not grade.
Outcome = tuple[Any, Any, Any]
EXERCISES = ("softmax", "softmax_with_temperature", "quiz_01_1")
ALL: Outcome = (4.0, 2.0, 1.0)
NONE: Outcome = (0.0, 0.0, 0.0)
WITHOUT_SOFTMAX: Outcome = (0.0, 2.0, 1.0)
#: Where it depends on the machine's speed whether the cell got as far; the others must not suffer.
PERHAPS_SOFTMAX: Outcome = (ANY, 2.0, 1.0)


def marked(grade_id: str, source: str, **marks: Any) -> NotebookNode:
    """A code cell with nbgrader's marks."""
    all_marks = {"grade": False, "locked": False, "solution": False, "task": False, "schema_version": 3}
    metadata = {"nbgrader": {"grade_id": grade_id, **all_marks, **marks}}
    return new_code_cell(source, id=grade_id.replace("_", "-"), metadata=metadata)


def exercise_cells(exercise: str, solution: str, points: float) -> list[NotebookNode]:
    call = f'from helpers.checks import grade\n\ngrade("{exercise}")'
    return [
        marked(exercise, solution, solution=True),
        marked(f"{exercise}_check", call, grade=True, locked=True, points=points),
    ]


def with_markers(solution: str) -> str:
    head, _, body = solution.partition("\n")
    return f"{head}\n    ### BEGIN SOLUTION\n{body}\n    ### END SOLUTION"


def source_notebook() -> NotebookNode:
    """The source, with solutions."""
    quiz = f'quiz_01_1 = None  # "A", "B", "C" or "D"\n### BEGIN SOLUTION\n{QUIZ}\n### END SOLUTION'
    explanation = new_markdown_cell(EXPLANATION, id="explain")
    explanation.metadata = marked("explain_max_subtraction", "", grade=True, solution=True, points=2).metadata
    cells = [
        new_markdown_cell("# A budget of 100 %", id="title"),
        new_code_cell("import numpy as np\n\nfrom helpers.checks import check", id="setup"),
        *exercise_cells("softmax", with_markers(SOFTMAX), 4),
        explanation,
        *exercise_cells("softmax_with_temperature", with_markers(TEMPERATURE), 2),
        *exercise_cells("quiz_01_1", quiz, 1),
        new_code_cell('print("the end")', id="end"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


# What people do to their copy


def cell_of(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def place_of(notebook: NotebookNode, grade_id: str) -> int:
    return notebook.cells.index(cell_of(notebook, grade_id))


def copy_of(cell: NotebookNode, source: str | None = None) -> NotebookNode:
    copied = nbformat.from_dict(json.loads(json.dumps(cell)))
    copied.id = f"{cell.id}-copy"
    copied.source = cell.source if source is None else source
    return copied


def write_answers(notebook: NotebookNode) -> None:
    """Answer everything, and rightly."""
    answers = {"softmax": SOFTMAX, "softmax_with_temperature": TEMPERATURE, "quiz_01_1": QUIZ}
    for grade_id, text in (answers | {"explain_max_subtraction": EXPLANATION}).items():
        cell_of(notebook, grade_id).source = text


def set_source(notebook: NotebookNode, grade_id: str, text: str) -> None:
    cell_of(notebook, grade_id).source = text


def answer_softmax(notebook: NotebookNode, text: str) -> None:
    set_source(notebook, "softmax", text)


def begin_softmax_with(notebook: NotebookNode, statement: str) -> None:
    """Put something in front of a right function's work."""
    answer_softmax(notebook, SOFTMAX.replace("    powers", f"    {statement}\n    powers", 1))


def answer_wrongly(notebook: NotebookNode) -> None:
    answer_softmax(notebook, WRONG)
    wrong = WRONG.replace("softmax(scores", "softmax_with_temperature(scores, temperature")
    set_source(notebook, "softmax_with_temperature", wrong)
    set_source(notebook, "quiz_01_1", 'quiz_01_1 = "C"')


def add_cell(notebook: NotebookNode, text: str, place: int = 1) -> None:
    """A cell of one's own; in place 1 it runs before everything else."""
    notebook.cells.insert(place, new_code_cell(text, id=f"own-{len(notebook.cells)}"))


def retype(notebook: NotebookNode, grade_id: str, cell_type: str) -> None:
    """What an editor makes of a cell whose type is changed."""
    cell = cell_of(notebook, grade_id)
    cell.cell_type = cell_type
    for key in ("outputs", "execution_count", "attachments"):
        cell.pop(key, None)
    if cell_type == "code":
        cell.outputs, cell.execution_count = [], None
