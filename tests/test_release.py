"""Writing notebooks/ from solutions/: what learners get, and that nobody's answers are lost by it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers.grading import release

ROOT = Path(__file__).parents[1]
CHAPTER = "01_softmax"
NOTEBOOK = Path("notebooks") / CHAPTER / f"{CHAPTER}.ipynb"
OTHER = Path("notebooks") / "02_other" / "02_other.ipynb"

pytestmark = pytest.mark.slow


def marks(grade_id: str, **more: object) -> dict[str, object]:
    flags = {"grade": False, "locked": False, "solution": False, "task": False, "schema_version": 3}
    return {"nbgrader": {"grade_id": grade_id, **flags, **more}}


def write_source(course: Path, chapter: str) -> None:
    """A chapter with everything that nbgrader takes out or marks."""
    function = "def double(x):\n    ### BEGIN SOLUTION\n    return x + x\n    ### END SOLUTION"
    quiz = 'quiz = None  # "A" or "B"\n### BEGIN SOLUTION\nquiz = "B"\n### END SOLUTION'
    hidden = "assert double(2) == 4\n### BEGIN HIDDEN TESTS\nassert double(3) == 6\n### END HIDDEN TESTS"
    task = "Draw it.\n\n=== BEGIN MARK SCHEME ===\nTwo points for a legend.\n=== END MARK SCHEME ==="
    shown = new_code_cell("1 + 1", id="shown", execution_count=1)
    shown.outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    cells = [
        new_markdown_cell("# Doubling", id="title"),
        shown,
        new_code_cell(function, id="double", metadata=marks("double", solution=True)),
        new_code_cell(hidden, id="double-test", metadata=marks("double_test", grade=True, locked=True, points=1)),
        new_code_cell(quiz, id="quiz", metadata=marks("quiz", solution=True)),
        new_markdown_cell("It grows.", id="why", metadata=marks("why", grade=True, solution=True, points=2)),
        new_markdown_cell(task, id="draw", metadata=marks("draw", task=True, locked=True, points=2)),
    ]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    folder = course / "solutions" / chapter
    folder.mkdir(parents=True)
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / f"{chapter}.ipynb")
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("bowl\n")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / f"{chapter}-checkpoint.ipynb").write_text("{}")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of two chapters, released by the command, in a folder with a space and an accent in its name."""
    course = tmp_path_factory.mktemp("course") / "d\u00e9j\u00e0 vu"
    for chapter in (CHAPTER, "02_other"):
        write_source(course, chapter)
    shutil.copy(ROOT / "nbgrader_config.py", course)
    run_from_a_shell(course)
    return course


@pytest.fixture
def course(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "course"))


def run(course: Path, *arguments: str, code: int = 0) -> str:
    """Run the command in this process; returns what it printed."""
    printed = io.StringIO()
    with contextlib.chdir(course), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        ended = release.main(list(arguments))
    assert ended == code, printed.getvalue()
    return printed.getvalue()


def run_from_a_shell(course: Path) -> None:
    """Run the command as `make notebooks` does, without an activated environment."""
    environment = os.environ | {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "helpers.grading.release"]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def sources(path: Path) -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}


def edit(path: Path, cell_id: str, source: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    next(cell for cell in notebook.cells if cell.id == cell_id).source = source
    nbformat.write(notebook, path)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_released_notebooks_are_in_step_with_their_sources() -> None:
    assert release.out_of_step(ROOT) == []


def test_a_function_raises_until_it_is_written(released: Path) -> None:
    namespace: dict[str, object] = {}
    exec(sources(released / NOTEBOOK)["double"], namespace)
    with pytest.raises(NotImplementedError, match="Write this function"):
        namespace["double"](1)


def test_a_quiz_keeps_its_line_and_runs(released: Path) -> None:
    assert sources(released / NOTEBOOK)["quiz"] == 'quiz = None  # "A" or "B"'


def test_a_written_answer_becomes_a_placeholder(released: Path) -> None:
    assert sources(released / NOTEBOOK)["why"] == "YOUR ANSWER HERE"


def test_solutions_hidden_tests_and_mark_schemes_are_gone(released: Path) -> None:
    text = (released / NOTEBOOK).read_text(encoding="utf-8")
    for secret in ("SOLUTION", "x + x", "It grows", "HIDDEN", "double(3)", "MARK SCHEME", "legend"):
        assert secret not in text


def test_ids_and_kernel_stay_and_outputs_go(released: Path) -> None:
    source = nbformat.read(released / "solutions" / CHAPTER / f"{CHAPTER}.ipynb", as_version=4)
    notebook = nbformat.read(released / NOTEBOOK, as_version=4)
    assert [cell.id for cell in notebook.cells] == [cell.id for cell in source.cells]
    assert notebook.metadata == source.metadata
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def test_other_files_of_a_chapter_come_along(released: Path) -> None:
    folder = (released / NOTEBOOK).parent
    assert set(contents(folder)) == {Path(f"{CHAPTER}.ipynb"), Path("data") / "words.txt"}


def test_nothing_is_left_in_the_course_folder(released: Path) -> None:
    assert {path.name for path in released.iterdir()} == {"solutions", "notebooks", "nbgrader_config.py"}


def test_the_same_sources_give_the_same_bytes(course: Path) -> None:
    before = contents(course)
    assert "wrote" not in run(course)
    assert contents(course) == before


def test_only_the_named_chapter_is_written(course: Path) -> None:
    shutil.rmtree(course / "notebooks")
    run(course, CHAPTER)
    assert (course / NOTEBOOK).exists() and not (course / OTHER).exists()


def test_an_unknown_chapter_is_named(course: Path) -> None:
    assert "There is no source for 01_sofmax; there are 01_softmax, 02_other." in run(course, "01_sofmax", code=2)


@pytest.mark.parametrize(("cell", "answer"), [("double", "def double(x):\n    return 2 * x"), ("why", "It doubles.")])
def test_answers_are_not_overwritten(course: Path, cell: str, answer: str) -> None:
    edit(course / OTHER, cell, answer)
    edit(course / "solutions" / CHAPTER / f"{CHAPTER}.ipynb", "title", "# New")
    before = contents(course)
    assert f"{OTHER}: {cell}" in run(course, code=2)
    assert contents(course) == before


def test_answers_are_overwritten_on_request(course: Path) -> None:
    before = contents(course)
    edit(course / NOTEBOOK, "double", "def double(x):\n    return 2 * x")
    run(course, "--overwrite")
    assert contents(course) == before


def test_a_broken_released_notebook_is_named(course: Path) -> None:
    (course / NOTEBOOK).write_text("{")
    assert f"{NOTEBOOK} cannot be read as a notebook" in run(course, code=2)


def test_the_check_passes_when_all_is_in_step(course: Path) -> None:
    assert run(course, "--check") == ""


def test_the_check_names_the_chapters_that_are_out_of_step(course: Path) -> None:
    edit(course / "solutions" / CHAPTER / f"{CHAPTER}.ipynb", "title", "# New")
    shutil.copytree(course / "notebooks" / CHAPTER, course / "notebooks" / "03_orphan")
    before = contents(course)
    printed = run(course, "--check", code=1)
    assert "01_softmax is out of step" in printed and "03_orphan is out of step" in printed
    assert "02_other" not in printed and contents(course) == before


def test_a_source_that_nbgrader_refuses_is_named(course: Path) -> None:
    path = course / "solutions" / CHAPTER / f"{CHAPTER}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    del notebook["cells"][2]["metadata"]["nbgrader"]["schema_version"]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert "nbgrader could not release 01_softmax" in run(course, code=2)
