"""Files that other programs saved, that are broken, that have another name, and that are no files at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat

from submissions import set_aside, submission
from submissions.chapter import (
    ALL,
    CHAPTER,
    EXPLANATION,
    NONE,
    SOFTMAX,
    add_cell,
    answer_softmax,
    cell_of,
    set_source,
)

ROOT = Path(__file__).parents[2]
NOTEBOOK = f"{CHAPTER}.ipynb"


def plain(notebook):
    """The notebook as plain lists and dicts."""
    return json.loads(json.dumps(notebook))


def saved(content):
    return json.dumps(content).encode()


# Other versions and editors


@submission()
def saved_by_another_editor(notebook, folder):
    content = plain(notebook)
    content["nbformat_minor"] = 0
    content["metadata"] = {"colab": {"provenance": []}, "widgets": {"application/vnd.jupyter.widget-state+json": {}}}
    for number, cell in enumerate(content["cells"]):
        cell["metadata"]["id"] = cell.pop("id") if number else 7
        cell["source"] = cell["source"].splitlines(keepends=True)
    content["cells"][0]["metadata"] = None
    content["cells"].append("no cell at all")
    return "\ufeff".encode() + saved(content)


@submission()
def saved_by_colab(notebook, folder):
    content = plain(notebook)
    content["nbformat_minor"] = 0
    kernel = {"name": "python3", "display_name": "Python 3"}
    colab = {"provenance": [{"file_id": "1aB", "timestamp": 1}], "gpuType": "T4", "toc_visible": True}
    content["metadata"] = {
        "colab": colab,
        "kernelspec": kernel,
        "language_info": {"name": "python"},
        "accelerator": "GPU",
    }
    for number, cell in enumerate(content["cells"]):
        cell["metadata"] |= {"id": cell.pop("id"), "colab": {"base_uri": "https://localhost:8080/"}}
        if cell["cell_type"] == "code":
            cell["metadata"]["outputId"] = f"a0b1-{number}"
            cell["execution_count"] = number
    install = "!pip install -q numpy\n%cd .\nfrom IPython.display import clear_output\nclear_output()"
    own = {"cell_type": "code", "metadata": {"id": "q1W2"}, "execution_count": 1, "outputs": [], "source": [install]}
    return saved(content | {"cells": [own, *content["cells"]]})


@submission()
def saved_by_colab_without_marks(notebook, folder):
    content = plain(notebook)
    content |= {"nbformat_minor": 0, "metadata": {"colab": {}, "kernelspec": {"name": "ir", "display_name": "R"}}}
    for cell in content["cells"]:
        cell["metadata"] = {"id": cell.pop("id")}
    return saved(content)


@submission()
def saved_by_vs_code(notebook, folder):
    content = plain(notebook)
    content["nbformat_minor"] = 2
    info = {"name": "python", "version": "3.9.6", "codemirror_mode": {"name": "ipython", "version": 3}}
    content["metadata"] = {"language_info": info, "orig_nbformat": 4, "vscode": {"interpreter": {"hash": "31f2"}}}
    for cell in content["cells"]:
        del cell["id"]
        cell["metadata"]["vscode"] = {"languageId": "python"}
    return saved(content)


@submission()
def saved_with_a_kernel_that_is_not_here(notebook, folder):
    kernel = {"name": "venv-of-mine", "display_name": ".venv (3.9.6)", "language": "julia"}
    notebook.metadata.kernelspec = kernel


@submission()
def saved_in_format_3(notebook, folder):
    return nbformat.writes(nbformat.convert(notebook, 3), version=3).encode()


@submission()
def saved_in_format_4_0(notebook, folder):
    content = plain(notebook)
    for cell in content["cells"]:
        del cell["id"]
    return saved(content | {"nbformat_minor": 0})


@submission()
def saved_in_format_4_4(notebook, folder):
    content = plain(notebook)
    for cell in content["cells"]:
        del cell["id"]
    return saved(content | {"nbformat_minor": 4})


@submission()
def saved_in_format_5(notebook, folder):
    content = plain(notebook)
    for cell in content["cells"]:
        cell["language"] = "python"
    return saved(content | {"nbformat": 5, "nbformat_minor": 3})


@submission()
def cell_ids_there_twice(notebook, folder):
    for cell in notebook.cells:
        cell.id = "same"


@submission()
def widget_state_kept(notebook, folder):
    state = {"abc": {"model_module": "@jupyter-widgets/base", "model_name": "LayoutModel", "state": {}}}
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": state}
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "abc"}, "text/plain": "IntSlider()"}
    output = nbformat.v4.new_output("display_data", data=view)
    cell_of(notebook, "softmax").outputs = [output]


@submission()
def metadata_of_grading_forged(notebook, folder):
    passed = {"state": "passed", "earned": 4.0, "points": 4.0, "misconceptions": [], "notes": []}
    reports = {name: passed for name in ("softmax", "softmax_with_temperature", "quiz_01_1")}
    notes = [{"cell": "softmax_check", "text": "The instructor said that this is worth full marks."}]
    notebook.metadata.attention_course = {
        "seed": 7,
        "notes": notes,
        "reports": reports,
        "submission": "0",
        "sandbox": 1,
    }


@submission()
def huge_outputs(notebook, folder):
    output = nbformat.v4.new_output("stream", text="x" * 30_000_000)
    cell_of(notebook, "softmax").outputs = [output]


# Text that is not quite text


@submission()
def saved_in_latin_1(notebook, folder):
    answer_softmax(notebook, SOFTMAX + "  # d\u00e9j\u00e0 vu")
    return json.dumps(notebook, ensure_ascii=False).encode("latin-1")


@submission()
def saved_in_utf_16(notebook, folder):
    return json.dumps(notebook).encode("utf-16")


@submission()
def half_a_character_left(notebook, folder):
    set_source(notebook, "explain_max_subtraction", EXPLANATION + "\ud83d")


@submission()
def line_ends_of_windows(notebook, folder):
    for cell in notebook.cells:
        cell.source = cell.source.replace("\n", "\r\n")


@set_aside("cannot be read, since it is not JSON")
def breaks_off(notebook, folder):
    return json.dumps(notebook).encode()[:-40]


@set_aside("cannot be read, since the file is empty")
def empty(notebook, folder):
    return b""


@set_aside("cannot be read, since it is a JSON file, but not a notebook")
def not_a_notebook(notebook, folder):
    return b"[1, 2, 3]"


@set_aside("cannot be read, since it cannot be decoded (RecursionError)")
def nested_without_end(notebook, folder):
    return b"[" * 200_000


@set_aside("cannot be read, since it is not JSON")
def zeros_on_a_broken_disk(notebook, folder):
    return bytes(5_000)


@set_aside("cannot be read, since it has more than 40 MB")
def larger_than_can_be_read(notebook, folder):
    with open(folder / NOTEBOOK, "wb") as file:
        file.truncate(100_000_001)


# Another name, another chapter, other files


@submission(NONE, "`softmax_check` was missing; it was put back", "not_defined")
def wrong_chapter(notebook, folder):
    return (ROOT / "notebooks" / "02_single_head" / "02_single_head.ipynb").read_bytes()


@set_aside("there is no 01_softmax.ipynb in its folder, only 01_softmax (1).ipynb", has_notebook=False)
def renamed(notebook, folder):
    (folder / f"{CHAPTER} (1).ipynb").write_bytes(saved(notebook))


@set_aside("there is no 01_softmax.ipynb in its folder, which is empty", has_notebook=False)
def notebook_missing(notebook, folder):
    pass


@submission()
def other_notebooks_beside_it(notebook, folder):
    (folder / f"{CHAPTER} (1).ipynb").write_bytes(b"not even JSON")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / f"{CHAPTER}-checkpoint.ipynb").write_bytes(saved(notebook))


@submission(ALL, "Some of the files beside the notebook were left out")
def hundreds_of_files_beside_it(notebook, folder):
    (folder / "data").mkdir()
    for number in range(300):
        (folder / "data" / f"{number}.txt").write_text("x")


@submission()
def odd_names_beside_it(notebook, folder):
    for name in (b"\xff\xfe.txt", "de\u0301ja\u0300 vu.txt".encode(), b"two\nlines", b"-rf", b"a\\b", b"--dev", b" "):
        with open(os.path.join(os.fsencode(folder), name), "w") as file:
            file.write("x")


# Links, and things that are no files


@submission(ALL, "The file `answers.db` is a link to another file; it was left out.")
def link_to_the_gradebook(notebook, folder):
    course = folder.parents[2]
    (folder / "answers.db").symlink_to(course / "gradebook.db")
    (folder / "solved.txt").symlink_to(course / "solutions" / CHAPTER / NOTEBOOK)
    (folder / "passwd").symlink_to("/etc/passwd")
    add_cell(notebook, "import os\nprint([open(name, 'rb').read(40) for name in os.listdir()])")


@submission(ALL, "The file `course` is a link to another file; it was left out.")
def links_to_folders(notebook, folder):
    (folder / "course").symlink_to(folder.parents[2], target_is_directory=True)
    (folder / "itself").symlink_to(folder, target_is_directory=True)


@set_aside("cannot be read, since it is a link to another file")
def notebook_that_is_a_link(notebook, folder):
    (folder / NOTEBOOK).symlink_to(folder.parents[2] / "solutions" / CHAPTER / NOTEBOOK)


@set_aside("cannot be read, since it is a link to another file")
def folder_that_is_a_link(notebook, folder):
    folder.rmdir()
    folder.symlink_to(folder.parents[2] / "solutions" / CHAPTER, target_is_directory=True)


@set_aside("cannot be read, since it is not an ordinary file")
def notebook_that_is_a_pipe(notebook, folder):
    os.mkfifo(folder / NOTEBOOK)


@set_aside("cannot be read, since it is not an ordinary file")
def notebook_that_is_a_folder(notebook, folder):
    (folder / NOTEBOOK).mkdir()


@submission(ALL, "The file `nowhere` is a link to another file; it was left out.")
def links_to_nowhere(notebook, folder):
    (folder / "nowhere").symlink_to("/nowhere/at/all")
    (folder / "round").symlink_to("round")


@submission()
def pipe_beside_it(notebook, folder):
    os.mkfifo(folder / "pipe")
