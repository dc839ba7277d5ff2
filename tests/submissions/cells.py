"""Cells that were copied, deleted, split, merged, moved, retyped and edited, and marks that were lost."""

from __future__ import annotations

from submissions import submission
from submissions.chapter import (
    ALL,
    SOFTMAX,
    STUB,
    TEMPERATURE,
    WITHOUT_SOFTMAX,
    WRONG,
    add_cell,
    answer_softmax,
    cell_of,
    copy_of,
    marked,
    place_of,
    retype,
    set_source,
)


@submission(ALL, "`softmax_check` was there 2 times")
def copied_test(notebook, folder):
    place = place_of(notebook, "softmax_check")
    notebook.cells.insert(place, copy_of(notebook.cells[place]))


@submission(ALL, "`softmax` was there 2 times; the last one that was edited counts")
def untouched_answer_cell_copied_behind(notebook, folder):
    cell = cell_of(notebook, "softmax")
    notebook.cells.insert(place_of(notebook, "softmax") + 1, copy_of(cell, STUB))


@submission(ALL, "`softmax` was there 2 times")
def answer_copied_and_mended(notebook, folder):
    cell = cell_of(notebook, "softmax")
    notebook.cells.append(copy_of(cell))
    cell.source = WRONG


@submission(ALL, "The test cell `softmax_check` was missing; it was put back.")
def deleted_test(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "softmax_check"))


@submission(ALL, "The test cell `quiz_01_1_check` was missing")
def deleted_last_test(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "quiz_01_1_check"))


@submission()
def answer_cell_deleted_and_written_elsewhere(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "softmax"))
    add_cell(notebook, "import numpy as np\n" + SOFTMAX, 0)


@submission(ALL, "`softmax` was left as it was handed out; the definition in another cell counts")
def answer_written_above_its_untouched_cell(notebook, folder):
    add_cell(notebook, SOFTMAX, 2)
    answer_softmax(notebook, STUB)


@submission(WITHOUT_SOFTMAX, "not_defined")
def answer_and_its_cell_deleted(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "softmax"))


@submission(ALL, "`explain_max_subtraction` was missing; it was put back empty")
def written_answer_deleted(notebook, folder):
    notebook.cells.remove(cell_of(notebook, "explain_max_subtraction"))


@submission(ALL, "`explain_max_subtraction` had been turned into a code cell")
def written_answer_in_a_code_cell(notebook, folder):
    retype(notebook, "explain_max_subtraction", "code")


@submission(ALL, "`softmax_check` had been turned into a markdown cell", "turned into a raw cell")
def retyped_tests(notebook, folder):
    retype(notebook, "softmax_check", "markdown")
    cell_of(notebook, "softmax_check").attachments = {"picture.png": {"image/png": "AAAA"}}
    retype(notebook, "quiz_01_1_check", "raw")


@submission(ALL, "`softmax` had been turned into a raw cell", "turned into a markdown cell")
def answers_in_markdown_and_raw(notebook, folder):
    retype(notebook, "softmax", "raw")
    retype(notebook, "quiz_01_1", "markdown")


@submission(ALL, "`softmax_check` had been edited; it was restored")
def helper_written_into_a_test(notebook, folder):
    text = "def exponentials(x):\n    return np.exp(x - np.max(x, axis=-1, keepdims=True))\n1 / 0"
    set_source(notebook, "softmax_check", text)
    mended = TEMPERATURE.replace("powers = np.exp(", "_ = exponentials(scores)\n    powers = np.exp(")
    set_source(notebook, "softmax_with_temperature", mended)


@submission(WITHOUT_SOFTMAX, "`softmax_check` had been edited; it was restored")
def full_marks_written_into_the_test(notebook, folder):
    answer_softmax(notebook, WRONG)
    set_source(notebook, "softmax_check", "4.0")


@submission(ALL, "`softmax_check` was there 2 times")
def split_test(notebook, folder):
    cell = cell_of(notebook, "softmax_check")
    first, _, second = cell.source.partition("\n\n")
    notebook.cells.insert(place_of(notebook, "softmax_check") + 1, copy_of(cell, second))
    cell.source = first


@submission(ALL, "`softmax` was there 2 times")
def answer_split(notebook, folder):
    cell = cell_of(notebook, "softmax")
    notebook.cells.insert(place_of(notebook, "softmax") + 1, copy_of(cell, "shares = softmax(np.ones(3))"))


@submission(ALL, "`softmax_check` had been merged with another cell")
def merged_test(notebook, folder):
    test = cell_of(notebook, "softmax_check")
    notebook.cells.remove(test)
    answer_softmax(notebook, f"{SOFTMAX}\n\n{test.source}")


@submission(ALL, "had been merged with another cell")
def everything_merged_into_one_cell(notebook, folder):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type != "code"]
    add_cell(notebook, "\n\n".join(cell.source for cell in code), len(notebook.cells))


@submission(WITHOUT_SOFTMAX)
def marks_changed(notebook, folder):
    answer_softmax(notebook, WRONG)
    cell_of(notebook, "softmax_check").metadata.nbgrader.update(points=400, locked=False, solution=True)
    cell_of(notebook, "softmax_with_temperature_check").metadata.nbgrader.update(grade=False, points="many")
    cell_of(notebook, "quiz_01_1").metadata.nbgrader.update(grade=True, solution=False, locked=True, points=9)


@submission(ALL, "has no cell `my_softmax`", "has no cell `bonus_check`")
def marks_renamed_and_incomplete(notebook, folder):
    cell_of(notebook, "softmax").metadata.nbgrader.grade_id = "my_softmax"
    del cell_of(notebook, "softmax_check").metadata.nbgrader["schema_version"]
    cell_of(notebook, "quiz_01_1_check").metadata.nbgrader = {"grade_id": "quiz_01_1_check"}
    cell_of(notebook, "quiz_01_1").metadata.nbgrader = "lost"
    notebook.cells.append(marked("bonus_check", "100.0", grade=True, locked=True, points=100))


@submission(ALL, "`explain_max_subtraction` was missing")
def all_marks_lost(notebook, folder):
    for cell in notebook.cells:
        cell.metadata = {}


@submission(ALL, "`softmax_check` stood before the answer; it was moved behind it")
def early_tests(notebook, folder):
    tests = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("locked")]
    notebook.cells = tests + [cell for cell in notebook.cells if cell not in tests]


@submission((0.0, 0.0, 1.0))
def order_reversed(notebook, folder):
    """NumPy is imported last, so nothing that needs it works, as its author would see."""
    notebook.cells.reverse()


@submission()
def skipped_tests(notebook, folder):
    for cell in notebook.cells:
        cell.metadata.tags = ["skip-execution", "raises-exception"]


@submission(WITHOUT_SOFTMAX)
def no_python_at_all(notebook, folder):
    answer_softmax(notebook, "def softmax(scores, axis=-1)\n    return 'a bracket is missing'")
    add_cell(notebook, "# Notes\nthis should have been a text cell, shouldn't it?")
