"""A small class, graded by nbgrader itself: honest, mangled and hostile submissions in one batch."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import nbformat
import numpy as np
import pytest
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from nbgrader.nbgraderformat import MetadataValidator

from helpers.checks import OBSERVATIONS, judge_implementation
from helpers.grading import METADATA
from helpers.grading.judging import JudgeObservations
from helpers.grading.reading import read_notebook
from helpers.grading.repairing import expected_cells, repair

ROOT = Path(__file__).parents[1]
CHAPTER = "01_softmax"
IN_TIME = 14  # seconds for a cell here; a check stops an endless loop after 10 by itself

SOFTMAX = """\
def softmax(scores, axis=-1):
    powers = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)"""
WITHOUT_MAXIMUM = """\
def softmax(scores, axis=-1):
    powers = np.exp(scores)
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

Outcome = tuple[float, float, float]
ALL: Outcome = (4.0, 2.0, 1.0)
NONE: Outcome = (0.0, 0.0, 0.0)
WITHOUT_SOFTMAX: Outcome = (0.0, 2.0, 1.0)


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
    """Chapter 1 in small, as an author writes it."""
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


@dataclass(frozen=True)
class Course:
    """A course folder with its own gradebook."""

    path: Path

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run nbgrader here as from a shell; returns all it printed."""
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert fails == bool(done.returncode), done.stdout + done.stderr
        return done.stdout + done.stderr

    def released(self) -> NotebookNode:
        return nbformat.read(self.path / "notebooks" / CHAPTER / f"{CHAPTER}.ipynb", as_version=4)

    def submitted(self, student: str) -> Path:
        folder = self.path / "submitted" / student / CHAPTER
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{CHAPTER}.ipynb"

    def autograded(self, student: str) -> NotebookNode:
        return nbformat.read(self.path / "autograded" / student / CHAPTER / f"{CHAPTER}.ipynb", as_version=4)

    def feedback(self, student: str) -> str:
        return (self.path / "feedback" / student / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")

    def grades(self, student: str) -> dict[str, Any]:
        """By grade_id what the gradebook holds: the automatic score, None where a person has to read."""
        with Gradebook(f"sqlite:///{self.path / 'gradebook.db'}") as gradebook:
            submission = gradebook.find_submission_notebook(CHAPTER, CHAPTER, student)
            return {grade.name: None if grade.needs_manual_grade else grade.auto_score for grade in submission.grades}

    def outcome(self, student: str) -> tuple[Any, ...]:
        grades = self.grades(student)
        return tuple(grades[f"{name}_check"] for name in ("softmax", "softmax_with_temperature", "quiz_01_1"))


def our_config() -> str:
    return (ROOT / "nbgrader_config.py").read_text(encoding="utf-8") + f"\nc.Execute.timeout = {IN_TIME}\n"


# What students hand in. Each function changes a fully and rightly answered notebook; it may also write other files
# into the folder, or return bytes to be handed in instead.

Change = Callable[[NotebookNode, Path], bytes | None]
CLASS: dict[str, Change] = {}
OUTCOMES: dict[str, Outcome] = {}
HONEST = ("everything_right", "nothing_written", "without_the_maximum")


def student(outcome: Outcome | None = ALL) -> Callable[[Change], Change]:
    """Mark a submission, and say what it is worth; None where a test of its own says it."""

    def mark(change: Change) -> Change:
        CLASS[change.__name__] = change
        if outcome is not None:
            OUTCOMES[change.__name__] = outcome
        return change

    return mark


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
    answers = {"softmax": SOFTMAX, "softmax_with_temperature": TEMPERATURE, "quiz_01_1": QUIZ}
    for grade_id, text in (answers | {"explain_max_subtraction": EXPLANATION}).items():
        cell_of(notebook, grade_id).source = text


def set_source(notebook: NotebookNode, grade_id: str, text: str) -> None:
    cell_of(notebook, grade_id).source = text


def answer_softmax(notebook: NotebookNode, text: str) -> None:
    set_source(notebook, "softmax", text)


def retype(notebook: NotebookNode, grade_id: str, cell_type: str) -> None:
    """What an editor makes of a cell whose type is changed."""
    cell = cell_of(notebook, grade_id)
    cell.cell_type = cell_type
    for key in ("outputs", "execution_count", "attachments"):
        cell.pop(key, None)
    if cell_type == "code":
        cell.outputs, cell.execution_count = [], None


# Honest


@student()
def everything_right(notebook, folder):
    pass


@student(NONE)
def nothing_written(notebook, folder):
    answer_softmax(notebook, STUB)
    set_source(notebook, "softmax_with_temperature", TEMPERATURE.splitlines()[0] + "\n    raise NotImplementedError")
    set_source(notebook, "quiz_01_1", 'quiz_01_1 = None  # "A", "B", "C" or "D"')
    set_source(notebook, "explain_max_subtraction", "YOUR ANSWER HERE")


@student(None)
def without_the_maximum(notebook, folder):
    answer_softmax(notebook, WITHOUT_MAXIMUM)
    set_source(notebook, "quiz_01_1", 'quiz_01_1 = "A"')


@student()
def warnings_and_errors_printed(notebook, folder):
    noise = "\nimport os, sys, warnings\nwarnings.warn('careful')\nprint('oops', file=sys.stderr)\nos.write(2, b'raw')"
    inside = SOFTMAX.replace(
        "    powers", "    os.write(2, b'raw'); warnings.warn('again'); np.log(0.0)\n    powers", 1
    )
    answer_softmax(notebook, "import os, warnings\n" + inside + noise)


@student()
def megabytes_printed(notebook, folder):
    answer_softmax(notebook, SOFTMAX.replace("    powers", "    print('x' * 2_000_000)\n    powers", 1))
    notebook.cells.insert(2, new_code_cell("for _ in range(400): print('y' * 50_000)", id="noise"))


@student(WITHOUT_SOFTMAX)
def library_used(notebook, folder):
    text = "%matplotlib inline\nimport torch\ndef softmax(scores, axis=-1):\n    return torch.softmax(scores, axis)"
    answer_softmax(notebook, text)


# Mangled


@student()
def copied_test(notebook, folder):
    place = place_of(notebook, "softmax_check")
    notebook.cells.insert(place, copy_of(notebook.cells[place]))


@student()
def untouched_answer_cell_copied_behind(notebook, folder):
    cell = cell_of(notebook, "softmax")
    notebook.cells.insert(place_of(notebook, "softmax") + 1, copy_of(cell, STUB))


@student()
def answer_copied_and_mended(notebook, folder):
    cell = cell_of(notebook, "softmax")
    notebook.cells.append(copy_of(cell))
    cell.source = WRONG


@student()
def deleted_test(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "softmax_check"))


@student()
def deleted_last_test(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "quiz_01_1_check"))


@student()
def answer_cell_deleted_and_written_elsewhere(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "softmax"))
    notebook.cells.insert(0, new_code_cell("import numpy as np\n" + SOFTMAX, id="own"))


@student()
def answer_written_above_its_untouched_cell(notebook, folder):
    notebook.cells.insert(2, new_code_cell(SOFTMAX, id="own"))
    answer_softmax(notebook, STUB)


@student(WITHOUT_SOFTMAX)
def answer_and_its_cell_deleted(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "softmax"))


@student()
def written_answer_deleted(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "explain_max_subtraction"))


@student()
def written_answer_in_a_code_cell(notebook, folder):
    retype(notebook, "explain_max_subtraction", "code")


@student()
def retyped_tests(notebook, folder):
    retype(notebook, "softmax_check", "markdown")
    cell_of(notebook, "softmax_check").attachments = {"picture.png": {"image/png": "AAAA"}}
    retype(notebook, "quiz_01_1_check", "raw")


@student()
def answers_in_markdown_and_raw(notebook, folder):
    retype(notebook, "softmax", "raw")
    retype(notebook, "quiz_01_1", "markdown")


@student()
def helper_written_into_a_test(notebook, folder):
    text = "def exponentials(x):\n    return np.exp(x - np.max(x, axis=-1, keepdims=True))\n1 / 0"
    set_source(notebook, "softmax_check", text)
    mended = TEMPERATURE.replace("powers = np.exp(", "_ = exponentials(scores)\n    powers = np.exp(")
    set_source(notebook, "softmax_with_temperature", mended)


@student(WITHOUT_SOFTMAX)
def full_marks_written_into_the_test(notebook, folder):
    answer_softmax(notebook, WRONG)
    set_source(notebook, "softmax_check", "4.0")


@student()
def split_test(notebook, folder):
    cell = cell_of(notebook, "softmax_check")
    first, _, second = cell.source.partition("\n\n")
    notebook.cells.insert(place_of(notebook, "softmax_check") + 1, copy_of(cell, second))
    cell.source = first


@student()
def answer_split(notebook, folder):
    cell = cell_of(notebook, "softmax")
    notebook.cells.insert(place_of(notebook, "softmax") + 1, copy_of(cell, "shares = softmax(np.ones(3))"))


@student()
def merged_test(notebook, folder):
    test = cell_of(notebook, "softmax_check")
    notebook.cells.remove(test)
    answer_softmax(notebook, f"{SOFTMAX}\n\n{test.source}")


@student(WITHOUT_SOFTMAX)
def marks_changed(notebook, folder):
    answer_softmax(notebook, WRONG)
    cell_of(notebook, "softmax_check").metadata.nbgrader.update(points=400, locked=False, solution=True)
    cell_of(notebook, "softmax_with_temperature_check").metadata.nbgrader.update(grade=False, points="many")
    cell_of(notebook, "quiz_01_1").metadata.nbgrader.update(grade=True, solution=False, locked=True, points=9)


@student()
def marks_renamed_and_incomplete(notebook, folder):
    cell_of(notebook, "softmax").metadata.nbgrader.grade_id = "my_softmax"
    del cell_of(notebook, "softmax_check").metadata.nbgrader["schema_version"]
    cell_of(notebook, "quiz_01_1_check").metadata.nbgrader = {"grade_id": "quiz_01_1_check"}
    cell_of(notebook, "quiz_01_1").metadata.nbgrader = "lost"
    notebook.cells.append(marked("bonus_check", "100.0", grade=True, locked=True, points=100))


@student()
def all_marks_lost(notebook, folder):
    for cell in notebook.cells:
        cell.metadata = {}


@student()
def early_tests(notebook, folder):
    tests = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("locked")]
    notebook.cells = tests + [cell for cell in notebook.cells if cell not in tests]


@student()
def skipped_tests(notebook, folder):
    for cell in notebook.cells:
        cell.metadata.tags = ["skip-execution", "raises-exception"]


@student()
def saved_by_another_editor(notebook, folder):
    content = json.loads(json.dumps(notebook))
    content["nbformat_minor"] = 0
    content["metadata"] = {"colab": {"provenance": []}, "widgets": {"application/vnd.jupyter.widget-state+json": {}}}
    for number, cell in enumerate(content["cells"]):
        cell["metadata"]["id"] = cell.pop("id") if number else 7
        cell["source"] = cell["source"].splitlines(keepends=True)
    content["cells"][0]["metadata"] = None
    content["cells"].append("no cell at all")
    return "\ufeff".encode() + json.dumps(content).encode()


@student()
def saved_in_latin_1(notebook, folder):
    answer_softmax(notebook, SOFTMAX + "  # d\u00e9j\u00e0 vu")
    return json.dumps(notebook, ensure_ascii=False).encode("latin-1")


@student()
def half_a_character_left(notebook, folder):
    set_source(notebook, "explain_max_subtraction", EXPLANATION + "\ud83d")


@student()
def saved_in_format_3(notebook, folder):
    return nbformat.writes(nbformat.convert(notebook, 3), version=3).encode()


UNREADABLE = ("breaks_off", "empty", "not_a_notebook")


@student(None)
def breaks_off(notebook, folder):
    return json.dumps(notebook).encode()[:-40]


@student(None)
def empty(notebook, folder):
    return b""


@student(None)
def not_a_notebook(notebook, folder):
    return b"[1, 2, 3]"


# Stopping, looping, hostile


@student(WITHOUT_SOFTMAX)
def kernel_killed(notebook, folder):
    answer_softmax(notebook, f"{SOFTMAX}\nimport os\nos._exit(1)")


@student(WITHOUT_SOFTMAX)
def kernel_asked_to_exit(notebook, folder):
    answer_softmax(notebook, f"{SOFTMAX}\nexit()")


@student()
def kernel_killed_by_the_last_cell(notebook, folder):
    notebook.cells.append(new_code_cell("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", id="kill"))


@student(WITHOUT_SOFTMAX)
def process_ended_by_the_function(notebook, folder):
    answer_softmax(notebook, SOFTMAX.replace("    powers", "    import os; os._exit(0)\n    powers", 1))


@student()
def endless_loop_at_the_top_level(notebook, folder):
    answer_softmax(notebook, f"{SOFTMAX}\nwhile True: pass")


@student(WITHOUT_SOFTMAX)
def endless_loop_that_cannot_be_interrupted(notebook, folder):
    answer_softmax(
        notebook, f"{SOFTMAX}\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    )


@student(WITHOUT_SOFTMAX)
def endless_loop_in_the_function(notebook, folder):
    answer_softmax(notebook, SOFTMAX.replace("    powers", "    while True: pass\n    powers", 1))


@student()
def input_at_the_top_level(notebook, folder):
    answer_softmax(notebook, f"{SOFTMAX}\nscale = float(input('scale? '))")


@student(WITHOUT_SOFTMAX)
def input_in_the_function(notebook, folder):
    answer_softmax(notebook, SOFTMAX.replace("    powers", "    input('scale? ')\n    powers", 1))


@student((0.0, 2.0, 1.0))
def system_exit(notebook, folder):
    answer_softmax(notebook, SOFTMAX.replace("    powers", "    raise SystemExit\n    powers", 1))
    set_source(notebook, "quiz_01_1", f"{QUIZ}\nimport sys\nsys.exit()")


@student()
def modules_of_its_own(notebook, folder):
    trap = "raise RuntimeError('a submitted module was imported')"
    for name in ("numpy.py", "helpers.py", "sitecustomize.py", "ipython_config.py", "json.py"):
        (folder / name).write_text(trap)
    (folder / "helpers" / "checks").mkdir(parents=True)
    (folder / "helpers" / "__init__.py").write_text(trap)
    (folder / "helpers" / "checks" / "__init__.py").write_text("def grade(exercise): return 4.0")


@student()
def own_folder_deleted(notebook, folder):
    answer_softmax(notebook, f"{SOFTMAX}\nimport os, shutil\nshutil.rmtree(os.getcwd())")


@student()
def noise_in_every_test(notebook, folder):
    noise = """
import sys, threading, time
from IPython import get_ipython
from IPython.display import display
def shout(*_): print("noise", file=sys.stderr); display(1000.0)
get_ipython().events.register("pre_run_cell", shout)
get_ipython().events.register("post_run_cell", shout)
def keep_shouting():
    while True: shout(); time.sleep(0.01)
threading.Thread(target=keep_shouting, daemon=True).start()
"""
    notebook.cells.insert(1, new_code_cell(noise, id="noise"))


def patched(notebook: NotebookNode, patch: str) -> None:
    """Wrong answers, and a cell before them that tries to get points all the same."""
    answer_softmax(notebook, WRONG)
    wrong = WRONG.replace("softmax(scores", "softmax_with_temperature(scores, temperature")
    set_source(notebook, "softmax_with_temperature", wrong)
    set_source(notebook, "quiz_01_1", 'quiz_01_1 = "C"')
    notebook.cells.insert(place_of(notebook, "softmax"), new_code_cell(patch, id="patch"))


@student(NONE)
def numpy_patched(notebook, folder):
    patched(notebook, "import numpy as np\nnp.allclose = np.array_equal = np.isclose = lambda *a, **k: True")


@student(NONE)
def grade_returns_numbers(notebook, folder):
    values = "{'softmax': 4.0, 'softmax_with_temperature': np.float64(1.0), 'quiz_01_1': 1e6}"
    patched(notebook, f"import helpers.checks\nhelpers.checks.grade = {values}.get")


@student(NONE)
def grade_returns_no_numbers(notebook, folder):
    values = "{'softmax': 'full marks', 'softmax_with_temperature': float('nan'), 'quiz_01_1': None}"
    patched(notebook, f"import helpers.checks\nhelpers.checks.grade = {values}.get")


FORGERY = f"""
from IPython.display import display
import helpers.checks
def hand_over(content): display({{{OBSERVATIONS!r}: content, "text/plain": "4.0"}}, raw=True)
true_grade = helpers.checks.grade
"""


@student(NONE)
def observations_forged_with_another_seed(notebook, folder):
    forged = """
from helpers.checks.chapter_01_softmax import softmax as oracle
def grade(exercise):
    from helpers.checks import find, observe
    hand_over(observe(find(exercise), "B" if "quiz" in exercise else oracle, 7))
helpers.checks.grade = grade"""
    patched(notebook, FORGERY + forged)


@student(NONE)
def observations_of_another_exercise(notebook, folder):
    forged = """
def grade(exercise):
    import os
    from helpers.checks import SEED_VARIABLE, find, observe
    hand_over(observe(find("quiz_01_2"), "C", int(os.environ[SEED_VARIABLE])))
helpers.checks.grade = grade"""
    patched(notebook, FORGERY + forged)


@student(NONE)
def observations_handed_over_twice(notebook, folder):
    patched(notebook, FORGERY + "helpers.checks.grade = lambda exercise: [true_grade(exercise), hand_over({})]")


@student(NONE)
def observations_are_rubbish(notebook, folder):
    rubbish = """
import os
seed = int(os.environ["ATTENTION_COURSE_SEED"])
def grade(exercise):
    odd = {"outcome": "returned", "value": {"kind": "array", "dtype": "O", "shape": [-1], "data": 3}}
    hand_over({"format": 1, "exercise": exercise, "seed": seed, "defined": True, "replaced": [{}],
               "cases": [odd, 1, None], "answer": {"kind": "list"}, "end": [], "printed_bytes": "many", "printed": 3})
helpers.checks.grade = grade"""
    patched(notebook, FORGERY + rubbish)


@student(NONE)
def grading_mode_hidden(notebook, folder):
    patched(notebook, "import os\nos.environ['NBGRADER_EXECUTION'] = 'validate'")


# The batch


@pytest.fixture(scope="module")
def released_course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A course with the small chapter, released, and nothing handed in yet."""
    path = tmp_path_factory.mktemp("released") / "course"
    folder = path / "solutions" / CHAPTER
    folder.mkdir(parents=True)
    nbformat.write(source_notebook(), folder / f"{CHAPTER}.ipynb")
    (path / "nbgrader_config.py").write_text(our_config(), encoding="utf-8")
    course = Course(path)
    course.run("generate_assignment", CHAPTER)
    return course


@pytest.fixture(scope="module")
def course(released_course: Course) -> Course:
    """The class, graded in one go, with feedback."""
    return graded(copy_of_course(released_course, "class"), CLASS, fails=True)


@pytest.fixture(scope="module")
def honest_course(released_course: Course) -> Course:
    """The same course with its honest students only."""
    return graded(copy_of_course(released_course, "honest"), HONEST)


def copy_of_course(course: Course, name: str) -> Course:
    return Course(shutil.copytree(course.path, course.path.with_name(name)))


def graded(course: Course, students: Iterable[str], fails: bool = False) -> Course:
    for name in students:
        hand_in(course, name)
    log = course.run("autograde", CHAPTER, fails=fails)
    (course.path / "log").write_text(log, encoding="utf-8")
    course.run("generate_feedback", CHAPTER)
    return course


def hand_in(course: Course, name: str) -> None:
    notebook, path = course.released(), course.submitted(name)
    write_answers(notebook)
    content = CLASS[name](notebook, path.parent)
    if content is None:
        content = json.dumps(notebook).encode()
    path.write_bytes(content)


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_submission_gets_the_points_it_earned(course: Course, name: str) -> None:
    assert course.outcome(name) == OUTCOMES[name]


def test_partial_credit_reaches_the_gradebook(course: Course) -> None:
    namespace: dict[str, Any] = {"np": np}
    exec(WITHOUT_MAXIMUM, namespace)
    report = judge_implementation("softmax", namespace["softmax"])
    assert 0 < report.earned < 4
    assert course.outcome("without_the_maximum") == (report.earned, 2.0, 0.0)


@pytest.mark.parametrize("name", HONEST)
def test_nobody_elses_submission_changes_a_grade(course: Course, honest_course: Course, name: str) -> None:
    assert course.grades(name) == honest_course.grades(name)


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_notebook_is_set_aside_by_name(course: Course, name: str) -> None:
    assert f"Set aside: the notebook {CHAPTER} of {name} cannot be read" in (course.path / "log").read_text()
    assert not (course.path / "autograded" / name / CHAPTER).exists()
    assert course.outcome(name) == (None, None, None)


def test_only_unreadable_notebooks_are_set_aside(course: Course) -> None:
    graded_students = {path.parent.name for path in course.path.glob(f"autograded/*/{CHAPTER}")}
    assert graded_students == set(CLASS) - set(UNREADABLE)


def test_a_written_answer_waits_for_a_person(course: Course) -> None:
    for name in ("everything_right", "written_answer_in_a_code_cell", "all_marks_lost"):
        assert course.grades(name)["explain_max_subtraction"] is None


def test_no_written_answer_earns_nothing_without_a_person(course: Course) -> None:
    for name in ("nothing_written", "written_answer_deleted"):
        assert course.grades(name)["explain_max_subtraction"] == 0


def test_a_written_answer_keeps_its_text_through_a_change_of_type(course: Course) -> None:
    cell = cell_of(course.autograded("written_answer_in_a_code_cell"), "explain_max_subtraction")
    assert (cell.cell_type, cell.source) == ("markdown", EXPLANATION)


def test_repairs_are_told_in_the_log_the_notebook_and_the_feedback(course: Course) -> None:
    sentence = "The test cell `softmax_check` was missing; it was put back."
    assert f"{CHAPTER} of deleted_test: {sentence}" in (course.path / "log").read_text()
    assert sentence in [note["text"] for note in course.autograded("deleted_test").metadata[METADATA]["notes"]]
    assert sentence.replace("`softmax_check`", "<code>softmax_check</code>") in course.feedback("deleted_test")


def test_an_untouched_notebook_is_not_repaired(course: Course) -> None:
    assert course.autograded("everything_right").metadata[METADATA]["notes"] == []


def test_text_written_into_a_test_cell_is_kept(course: Course) -> None:
    sources = [cell.source for cell in course.autograded("helper_written_into_a_test").cells]
    assert any(source.startswith("def exponentials") for source in sources)


def test_every_submission_has_a_seed_of_its_own(course: Course) -> None:
    seeds = [course.autograded(name).metadata[METADATA]["seed"] for name in OUTCOMES]
    assert len(set(seeds)) == len(seeds)


def test_a_test_cell_shows_its_card_and_its_points_and_nothing_else(course: Course) -> None:
    for name in ("everything_right", "noise_in_every_test", "megabytes_printed"):
        card, points = cell_of(course.autograded(name), "softmax_check").outputs
        assert set(card.data) == {"text/html", "text/plain", OBSERVATIONS}
        assert points.data == {"text/plain": "4.0"}


def test_observations_can_be_judged_again_without_running_anything(course: Course) -> None:
    notebook = course.autograded("without_the_maximum")
    before = json.loads(json.dumps(notebook))
    judged, _ = JudgeObservations().preprocess(notebook, {})
    assert judged == before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("without_the_maximum", "does not subtract the maximum"),
        ("nothing_written", "not written yet"),
        ("library_used", "torch.softmax"),
        ("answer_and_its_cell_deleted", "is not defined"),
        ("kernel_killed", "is not defined"),
        ("endless_loop_in_the_function", "ran for more than 10 seconds"),
        ("input_in_the_function", "calls <code"),
        ("process_ended_by_the_function", "ended the process"),
        ("system_exit", "SystemExit"),
        ("numpy_patched", "replaced numpy."),
        ("grade_returns_no_numbers", "handed over no result"),
        ("observations_handed_over_twice", "handed over more than one result"),
        ("observations_are_rubbish", "not judged"),
    ],
)
def test_feedback_says_why_points_are_missing(course: Course, name: str, sentence: str) -> None:
    assert sentence in course.feedback(name)


def test_feedback_shows_the_cell_that_stopped_the_notebook(course: Course) -> None:
    assert "this cell stopped the notebook" in course.feedback("kernel_killed")
    assert "this cell told the notebook to exit" in course.feedback("kernel_asked_to_exit")


def test_feedback_shows_no_test_code_and_no_solution(course: Course) -> None:
    """What students wrote themselves aside: the words of the solution, of the checks and of what they hand over."""
    page = course.feedback("nothing_written")
    for secret in ("powers", "Misconception", "SOLUTION", "observations", "dtype", EXPLANATION):
        assert secret not in page, secret


def test_grades_can_be_exported(course: Course) -> None:
    course.run("export")
    with open(course.path / "grades.csv", encoding="utf-8", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert {name: scores[name] for name in OUTCOMES} == {name: sum(outcome) for name, outcome in OUTCOMES.items()}


# Any mangled notebook


def have_an_accident(cells: list[dict[str, Any]], random: Random) -> None:
    """Copy, move, delete, retype, unmark, edit, split or damage one cell."""
    place = random.randrange(len(cells))
    cell, text = cells[place], str(cells[place].get("source", ""))
    match random.randrange(8):
        case 0:
            cells.insert(random.randint(0, len(cells)), json.loads(json.dumps(cell)))
        case 1:
            cells.insert(random.randrange(len(cells)), cells.pop(place))
        case 2 if len(cells) > 1:
            del cells[place]
        case 3:
            cell["cell_type"] = random.choice(["code", "markdown", "raw", "heading"])
        case 4:
            cell["metadata"] = random.choice([None, {}, {"nbgrader": 3}, {"nbgrader": {"grade_id": "x", "grade": 1}}])
        case 5:
            cell["source"] = random.choice([None, "", text + "\nx = 1", ["a\n", "b"]])
        case 6:
            cut = random.randint(0, len(text))
            cells.insert(place, json.loads(json.dumps(cell)) | {"source": text[:cut]})
            cell["source"] = text[cut:]
        case 7 if cell:
            del cell[random.choice(list(cell))]


def test_any_mangled_notebook_comes_back_in_step(released_course: Course) -> None:
    expected = expected_cells(f"sqlite:///{released_course.path / 'gradebook.db'}", CHAPTER, CHAPTER)
    answered = released_course.released()
    write_answers(answered)
    for seed in range(300):
        random = Random(seed)
        cells = json.loads(json.dumps(answered.cells))
        for _ in range(random.randint(1, 8)):
            have_an_accident(cells, random)
        notebook = read_notebook(json.dumps({**answered, "cells": cells}).encode())
        notebook.cells = repair(notebook.cells, expected).cells
        nbformat.validate(notebook)
        MetadataValidator().validate_nb(notebook)
        places = {
            cell.metadata.nbgrader["grade_id"]: place for place, cell in enumerate(notebook.cells) if cell.metadata
        }
        assert set(places) >= {name for name, cell in expected.items() if cell.must_be_there}
        for name in ("softmax", "softmax_with_temperature", "quiz_01_1"):
            assert places.get(name, -1) < places[f"{name}_check"]


# Without our preprocessors, and before handing in


def test_nbgrader_without_this_configuration_gives_no_points(released_course: Course) -> None:
    course = copy_of_course(released_course, "stock")
    (course.path / "nbgrader_config.py").write_text(our_config().partition("c.Autograde.exporter_class")[0])
    hand_in(course, "everything_right")
    course.run("autograde", CHAPTER)
    assert course.outcome("everything_right") == NONE


def test_validate_prints_the_card_of_what_is_wrong(course: Course) -> None:
    passed = course.run("validate", str(course.submitted("everything_right")))
    failed = course.run("validate", str(course.submitted("without_the_maximum")))
    assert "Success! Your notebook passes all the tests." in passed
    assert "softmax: partly right" in failed
    assert "does not subtract the maximum" in re.sub(r"\s+", " ", failed)
