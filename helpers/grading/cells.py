"""Small questions about one cell of a submission."""

from __future__ import annotations

from nbformat.notebooknode import NotebookNode
from nbgrader import utils

from helpers.notebooks import CHECK


def exercise_of(cell: NotebookNode) -> str | None:
    """The id of the exercise that this test cell checks; None for any other cell."""
    if cell.cell_type != "code" or not utils.is_grade(cell) or utils.is_solution(cell):
        return None
    grade_id = cell.metadata.nbgrader["grade_id"]
    return grade_id.removesuffix(CHECK) if grade_id.endswith(CHECK) else None
