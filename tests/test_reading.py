"""Submitted files are read as far as they can be, and never further than they may."""

import json
import os

import pytest
from nbformat.v4 import new_code_cell, new_notebook, writes

from helpers.grading import sandbox
from helpers.grading.course import digest_of, other_entries, plain_files, printable
from helpers.grading.reading import read_notebook
from helpers.grading.records import write_whole


def test_metadata_and_outputs_of_a_submission_never_become_objects_of_a_notebook():
    notebook = json.loads(writes(new_notebook(cells=[new_code_cell("x = 1")])))
    ballast = [{"a": [{}, {}]}] * 1000
    notebook["metadata"] |= {"widgets": ballast, "kernelspec": {"name": "python3", "display_name": "Python 3"}}
    cell = notebook["cells"][0]
    cell["metadata"] = {"nbgrader": {"grade_id": "softmax", "solution": True, "more": ballast}, "colab": ballast}
    cell["outputs"] = [{"output_type": "display_data", "data": {"application/json": ballast}, "metadata": {}}]
    read = read_notebook(json.dumps(notebook).encode())
    assert read.metadata == {"kernelspec": notebook["metadata"]["kernelspec"]}
    assert read.cells[0].metadata == {"nbgrader": {"grade_id": "softmax", "solution": True}}
    assert (read.cells[0].source, read.cells[0].outputs) == ("x = 1", [])


@pytest.mark.parametrize("name", [b"\xff.txt", b"line\nbreak.txt", b"esc\x1b[2J.txt"])
def test_any_file_name_can_be_digested_and_said(tmp_path, name):
    with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
        file.write("1")
    before = digest_of(tmp_path)
    (found,) = plain_files(tmp_path)
    said = printable(found.name)
    write_whole(tmp_path / "log", said)
    assert said.isprintable() and "\n" not in said
    assert digest_of(tmp_path) != before


def test_folders_nested_deeper_than_python_recurses_stop_nothing(tmp_path):
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    (tmp_path / "answer.txt").write_text("42")
    assert [path.name for path in plain_files(tmp_path)] == ["answer.txt"]
    assert len(digest_of(tmp_path)) == 64
    os.system(f"rm -rf '{tmp_path}/d'")  # deeper than pytest can clean up


def test_links_and_pipes_are_no_plain_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "file").write_text("1")
    assert [path.name for path in plain_files(tmp_path)] == ["file"]
    assert [path.name for path in other_entries(tmp_path)] == ["link", "pipe"]


def test_only_old_leavings_are_swept_away(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "short_folder", lambda: str(tmp_path))
    for name in ("grading-old", "grading-new", "template-old", "somebody-old"):
        (tmp_path / name).mkdir()
        if name.endswith("old"):
            os.utime(tmp_path / name, (1, 1))
    sandbox.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grading-new", "somebody-old"]
