"""Every notebook: its sources pass everything, what learners get runs to its end and holds no solution."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.checks.exercise import Exercise
from helpers.checks.registry import CHAPTERS, chapter, find

ROOT = Path(__file__).parents[1]
ALL = sorted(path.stem for path in (ROOT / "solutions").glob("*/*.ipynb"))
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}


def load(folder: str, name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)


def marked(notebook: nbformat.NotebookNode, **flags: bool) -> dict[str, nbformat.NotebookNode]:
    """The cells whose nbgrader marks have these values, by grade_id."""
    marks = ((cell.metadata.get("nbgrader"), cell) for cell in notebook.cells)
    return {m["grade_id"]: cell for m, cell in marks if m and all(m[flag] == value for flag, value in flags.items())}


def headings(notebook: nbformat.NotebookNode) -> set[str]:
    texts = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {title.strip() for text in texts for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def execute(folder: str, name: str) -> nbformat.NotebookNode:
    """The notebook after a run in a kernel of its own; an error in any cell raises."""
    notebook = load(folder, name)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / folder / name)}}).execute()
    return notebook


def points_of(cell: nbformat.NotebookNode) -> float:
    (value,) = (output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result")
    return float(value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_solution_notebook_passes_everything(name):
    tests = marked(execute("solutions", name), grade=True, solution=False)
    earned = {grade_id: points_of(cell) for grade_id, cell in tests.items()}
    assert earned == {grade_id: cell.metadata.nbgrader["points"] for grade_id, cell in tests.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_released_notebook_runs_to_its_end_and_earns_nothing(name):
    tests = marked(execute("notebooks", name), grade=True, solution=False)
    assert {grade_id: points_of(cell) for grade_id, cell in tests.items()} == dict.fromkeys(tests, 0.0)
    for grade_id, cell in tests.items():
        assert "not written yet" in str(cell.outputs), grade_id


@pytest.mark.parametrize("name", ALL)
def test_a_released_notebook_holds_no_solution(name):
    source, released = load("solutions", name), load("notebooks", name)
    for cell in released.cells:
        assert "BEGIN SOLUTION" not in cell.source
        assert "MARK SCHEME" not in cell.source
    text = "\n".join(cell.source for cell in released.cells)
    for grade_id, cell in marked(source, solution=True).items():
        for block in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL):
            lines = [line.strip() for line in block.splitlines() if len(line.strip()) > 25]
            leaked = [line for line in lines if line in text and line not in _without_solutions(source)]
            assert not leaked, f"{grade_id}: {leaked}"


def _without_solutions(notebook: nbformat.NotebookNode) -> str:
    """What the chapter says outside its solutions: a line taught there is no secret."""
    texts = (re.sub(r"### BEGIN SOLUTION\n.*?### END SOLUTION", "", c.source, flags=re.DOTALL) for c in notebook.cells)
    return "\n".join(texts)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("folder", ["solutions", "notebooks"])
def test_a_committed_notebook_is_clean(folder, name):
    notebook = load(folder, name)
    assert notebook.metadata.kernelspec == KERNEL
    assert "widgets" not in notebook.metadata
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    for cell in notebook.cells:
        assert not cell.get("outputs"), cell.id
        assert cell.get("execution_count") is None, cell.id
        assert not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]+)?", cell.id), f"{cell.id} is not an id that stays"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_grades_its_exercises_in_order_with_their_points(name):
    tests = marked(load("solutions", name), grade=True, solution=False, locked=True)
    wanted = {f"{exercise.id}_check": exercise.points for exercise in chapter(name)}
    assert list(tests) == list(wanted)
    assert {grade_id: cell.metadata.nbgrader["points"] for grade_id, cell in tests.items()} == wanted
    assert set(marked(load("solutions", name), grade=False, solution=True)) == {e.id for e in chapter(name)}


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_test_cell_is_a_thin_call(name):
    for grade_id, cell in marked(load("solutions", name), grade=True, solution=False).items():
        exercise_id = grade_id.removesuffix("_check")
        assert ast.unparse(ast.parse(cell.source)) == f"from helpers.checks import grade\ngrade('{exercise_id}')"


@pytest.mark.parametrize("name", CHAPTERS)
def test_cards_point_to_headings_that_exist(name):
    titles = headings(load("solutions", name))
    assert "Common mistakes" in titles
    for exercise in chapter(name):
        sections = {exercise.section}
        if isinstance(exercise, Exercise):
            sections |= {named.section for named in (*exercise.misconceptions, *exercise.laws)}
        assert sections <= titles | {""}, exercise.id


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_function_to_write_has_hints(name):
    cells = load("solutions", name).cells
    for exercise in chapter(name):
        if isinstance(exercise, Exercise):
            here = next(n for n, c in enumerate(cells) if c.metadata.get("nbgrader", {}).get("grade_id") == exercise.id)
            there = next(
                n
                for n, c in enumerate(cells)
                if c.metadata.get("nbgrader", {}).get("grade_id") == f"{exercise.id}_check"
            )
            text = "\n".join(cell.source for cell in cells[max(here - 2, 0) : there])
            assert text.count("<summary>Hint") >= 2, exercise.id


@pytest.mark.parametrize("name", CHAPTERS)
def test_ids_belong_to_one_chapter(name):
    number = name[:2]
    for exercise in chapter(name):
        assert find(exercise.id) is exercise
        if exercise.id.startswith("quiz"):
            assert re.fullmatch(rf"quiz_{number}_\d", exercise.id)
