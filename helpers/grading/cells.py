"""Small questions about one cell of a submission."""

from __future__ import annotations

import ast
import re

from IPython.core.inputtransformer2 import TransformerManager
from nbformat.notebooknode import NotebookNode
from nbgrader import utils

CHECK = "_check"


def exercise_of(cell: NotebookNode) -> str | None:
    """The id of the exercise that this test cell checks; None for any other cell."""
    if cell.cell_type != "code" or not utils.is_grade(cell) or utils.is_solution(cell):
        return None
    grade_id = cell.metadata.nbgrader["grade_id"]
    return grade_id.removesuffix(CHECK) if grade_id.endswith(CHECK) else None


def defines(source: str, name: str) -> bool:
    """Whether a cell's text gives `name` a value at its top level, judged line by line, so that broken code counts."""
    name = re.escape(name)
    patterns = (
        rf"(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b",
        rf"{name}[ \t]*(?::[^=\n]+)?=(?!=)",
        rf"(?:from[ \t]+\S+[ \t]+)?import\b[^#\n]*\b{name}[ \t]*(?:,|$|#)",
    )
    return re.search(rf"^(?:{'|'.join(patterns)})", source, re.MULTILINE) is not None


def as_python(source: str) -> str | None:
    """A cell's text as Python, IPython's magics turned into calls; None if it cannot run at all."""
    if source.lstrip().startswith("%%"):
        source = source.lstrip().partition("\n")[2]  # %%time and the like run the rest of the cell
    try:
        text = TransformerManager().transform_cell(source)
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return text
