"""What learners find where the solution was."""

from __future__ import annotations

from nbformat.notebooknode import NotebookNode
from nbgrader.preprocessors import ClearSolutions


class ClearAnswers(ClearSolutions):
    """Puts nbgrader's stub into functions, and nothing at a cell's top level.

    A quiz is answered by changing a line that stays; a stub below it would raise in everybody's notebook.
    """

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        replaced = super()._replace_solution_region(cell, language)
        if replaced and cell.cell_type == "code":
            stub = self.code_stub[language].split("\n")
            lines = [line for line in cell.source.split("\n") if line not in stub]
            cell.source = "\n".join(lines).strip("\n")
        return replaced
