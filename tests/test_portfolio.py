"""The portfolio hands a learner's earlier answer on, or a stand-in with one line; reading notebooks never hangs."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers import notebooks, portfolio
from helpers.checks import isolation, observing
from helpers.checks.__main__ import main
from helpers.checks.chapter_01_softmax import softmax as stand_in

ROOT = Path(__file__).parents[1]
RIGHT = """
def softmax(scores, axis=-1):
    exps = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return exps / total(exps, axis)
"""
TOTAL = "def total(exps, axis):\n    return exps.sum(axis=axis, keepdims=True)"
WRONG = "def softmax(scores, axis=-1):\n    return scores"
FRAGILE = RIGHT.replace(" - np.max(scores, axis=axis, keepdims=True)", "")
LIBRARY = "import torch\ndef softmax(s, axis=-1):\n    return torch.softmax(torch.tensor(s), axis).numpy()"
STUB = "def softmax(scores, axis=-1):\n    raise NotImplementedError"


def solution(source, grade_id="softmax"):
    mark = {"grade": False, "grade_id": grade_id, "locked": False, "schema_version": 3, "solution": True, "task": False}
    return new_code_cell(source, metadata={"nbgrader": mark})


def check(grade_id="softmax"):
    mark = {"grade": True, "grade_id": f"{grade_id}_check", "locked": True, "points": 4, "solution": False}
    return new_code_cell(f'grade("{grade_id}")', metadata={"nbgrader": mark})


def setup():
    return new_code_cell("%matplotlib inline\nimport numpy as np\nprint('set up')\nraise SystemExit")


def helper():
    return new_code_cell(TOTAL)


@pytest.fixture
def learner(tmp_path, monkeypatch):
    """A learner in chapter 2 whose chapter 1 holds the given cells."""
    here = tmp_path / "02_single_head"
    here.mkdir()
    monkeypatch.chdir(here)

    def with_cells(*cells):
        path = tmp_path / "01_softmax" / "01_softmax.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(new_notebook(cells=list(cells)), path)
        return path

    return with_cells


def test_the_learners_own_answer_is_used(learner, capsys):
    learner(new_markdown_cell("# Chapter 1"), setup(), helper(), solution(RIGHT), check())
    own = portfolio.load("01_softmax", "softmax")
    assert own is not stand_in
    assert own(np.array([0.0, 0.0])).tolist() == [0.5, 0.5]
    assert capsys.readouterr().out.splitlines() == ["softmax: your own, from chapter 01_softmax."]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ((setup(), solution(WRONG)), "is not right yet"),
        ((setup(), solution(STUB)), "is not written yet"),
        ((setup(), solution(RIGHT)), "is not right yet"),  # its helper is missing
        ((setup(),), "is not defined"),
        ((setup(), solution("def softmax(:")), "is not defined"),
        (
            (setup(), solution("import torch\ndef softmax(s, axis=-1):\n    return torch.softmax(s, axis)")),
            "is not right",
        ),
    ],
    ids=["wrong", "stub", "incomplete", "missing", "syntax error", "library call"],
)
def test_anything_else_gives_the_stand_in_and_one_line(learner, capsys, cells, reason):
    learner(*cells)
    assert portfolio.load("01_softmax", "softmax") is stand_in
    (line,) = capsys.readouterr().out.splitlines()
    assert "stand-in" in line
    assert reason in line


def test_a_missing_notebook_gives_the_stand_in(learner, capsys):
    assert portfolio.load("01_softmax", "softmax") is stand_in
    assert "there is no 01_softmax/01_softmax.ipynb" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}', "\xff\xfe"])
def test_a_broken_notebook_gives_the_stand_in(learner, capsys, content):
    learner(setup()).write_text(content, encoding="latin-1")
    assert portfolio.load("01_softmax", "softmax") is stand_in
    assert "cannot be read" in capsys.readouterr().out


def test_an_edit_counts_at_once(learner):
    learner(setup(), helper(), solution(STUB))
    assert portfolio.load("01_softmax", "softmax") is stand_in
    learner(setup(), helper(), solution(RIGHT))
    assert portfolio.load("01_softmax", "softmax") is not stand_in


def test_a_name_that_is_not_taught(learner):
    with pytest.raises(ValueError, match="no exercise 'sofmax'"):
        portfolio.load("01_softmax", "sofmax")


def test_bare_calls_and_other_cells_do_not_run(learner):
    path = learner(new_code_cell("ran = print('x')"), solution("print('also')\nDONE = 1\n" + WRONG))
    names = notebooks.define(notebooks.read(path)).names
    assert "ran" not in names
    assert names["DONE"] == 1


@pytest.mark.parametrize("shortcut", ["exp = np.exp", "exp = lambda x: np.exp(x)", "from numpy import exp"])
def test_another_name_in_a_cell_of_the_learners_own_is_seen(learner, capsys, shortcut):
    learner(setup(), new_code_cell(shortcut), helper(), solution(RIGHT.replace("np.exp", "exp")))
    assert portfolio.load("01_softmax", "softmax") is not stand_in
    assert "your own" in capsys.readouterr().out


@pytest.mark.skipif(not isolation.CAN_FORK, reason="only a forked child survives this")
@pytest.mark.parametrize("end", ["import os\nos._exit(3)", "import os\nx = os.kill(os.getpid(), 9)"])
def test_code_that_ends_the_process_gives_the_stand_in(learner, capsys, end):
    learner(setup(), helper(), solution(f"{RIGHT}\n{end.replace('os._exit(3)', 'x = os._exit(3)')}"))
    assert portfolio.load("01_softmax", "softmax") is stand_in
    assert "the code of 01_softmax.ipynb" in capsys.readouterr().out


def test_a_definition_that_never_ends_is_stopped(learner, monkeypatch):
    monkeypatch.setattr(notebooks, "TIME_LIMIT", 0.3)
    path = learner(solution("while True:\n    pass"))
    assert "TimeoutError" in notebooks.define(notebooks.read(path)).problems[0]


@pytest.mark.parametrize(
    ("source", "ready"),
    [
        (STUB, False),
        ("def softmax(scores):\n    '''Doc.'''\n    # YOUR CODE HERE\n    raise NotImplementedError()", False),
        (WRONG, False),
        ("def softmax(scores, axis=-1):\n    while True:\n        pass", False),
        ("class softmax:\n    def forward(self):\n        raise NotImplementedError", False),
        (f"import numpy as np\n{TOTAL}\n{FRAGILE}", True),
        (f"import numpy as np\n{TOTAL}\n{RIGHT}", True),
        ("", False),
    ],
)
def test_written_tells_what_can_be_shown_from_what_cannot(capsys, monkeypatch, source, ready):
    monkeypatch.setattr(observing, "TIME_LIMIT", 0.5)
    names = {"written": notebooks.written}
    exec(f"{source}\nready = written('softmax')", names)
    assert names["ready"] is ready
    assert ("this cell will show it" in capsys.readouterr().out) is not ready


def test_from_a_shell_all_right_exits_with_0(capsys):
    assert main([str(ROOT / "solutions" / "01_softmax" / "01_softmax.ipynb")]) == 0
    assert "14 of 14" in capsys.readouterr().out


def test_from_a_shell_a_missing_test_cell_hides_nothing(learner, capsys):
    path = learner(setup(), helper(), solution(RIGHT), check())
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "4 of 4" in out
    assert "masked_softmax" in out


@pytest.mark.skipif(not isolation.CAN_FORK, reason="only a forked child survives this")
def test_from_a_shell_code_that_ends_the_process_fails(learner, capsys):
    assert main([str(learner(setup(), solution("import os\nx = os._exit(0)"), check()))]) == 1
    assert "exit code 0" in capsys.readouterr().out


def test_from_a_shell_a_mistake_is_named_and_exits_with_1(learner, capsys):
    path = learner(setup(), solution(RIGHT.replace("total(exps, axis)", "exps.sum()")), check(), check("quiz_01_1"))
    assert main([str(path), "--seed", "1"]) == 1
    out = capsys.readouterr().out
    assert "over_everything" in out
    assert "quiz_01_1" in out


@pytest.mark.parametrize("content", [None, "no notebook"])
def test_from_a_shell_an_unreadable_file_exits_with_2(learner, capsys, content):
    path = learner(setup())
    path.unlink() if content is None else path.write_text(content)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_from_a_shell_a_notebook_without_exercises_exits_with_1(learner, capsys):
    assert main([str(learner(setup()))]) == 1
    assert "no exercises" in capsys.readouterr().out


def test_written_judges_again_only_what_was_defined_anew(monkeypatch):
    judged = []
    real = notebooks.judge_implementation
    monkeypatch.setattr(notebooks, "judge_implementation", lambda *a, **k: judged.append(a[0]) or real(*a, **k))
    monkeypatch.setattr(notebooks, "_verdicts", {})
    names = {"__name__": "__main__", "np": np, "written": notebooks.written}
    exec(f"{TOTAL}\n{RIGHT}\nwritten('softmax')\nwritten('softmax')", names)
    assert judged == ["softmax"]
    exec("def masked_softmax(scores, keep): ...\nassert written('softmax')", names)
    assert judged == ["softmax"], "an answer that has nothing to do with it"
    exec("def total(exps, axis):\n    return exps.max(axis, keepdims=True)\nassert not written('softmax')", names)
    assert judged == ["softmax", "softmax"], "what it calls has changed"
