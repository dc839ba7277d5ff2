"""Notebooks as they ought to come: right, partly right, unwritten, and with a good deal of noise."""

from __future__ import annotations

from submissions import submission
from submissions.chapter import (
    NONE,
    SOFTMAX,
    STUB,
    TEMPERATURE,
    WITHOUT_SOFTMAX,
    add_cell,
    answer_softmax,
    begin_softmax_with,
    set_source,
)

#: Points of a softmax that overflows: it is right at the core.
PART = 3.2
WITHOUT_MAXIMUM = """\
def softmax(scores, axis=-1):
    powers = np.exp(scores)
    return powers / powers.sum(axis=axis, keepdims=True)"""


@submission()
def everything_right(notebook, folder):
    pass


@submission(NONE, "not written")
def nothing_written(notebook, folder):
    answer_softmax(notebook, STUB)
    set_source(notebook, "softmax_with_temperature", TEMPERATURE.splitlines()[0] + "\n    raise NotImplementedError")
    set_source(notebook, "quiz_01_1", 'quiz_01_1 = None  # "A", "B", "C" or "D"')
    set_source(notebook, "explain_max_subtraction", "YOUR ANSWER HERE")


@submission((PART, 2.0, 0.0), "partly", "no_max_subtracted")
def without_the_maximum(notebook, folder):
    answer_softmax(notebook, WITHOUT_MAXIMUM)
    set_source(notebook, "quiz_01_1", 'quiz_01_1 = "A"')


@submission()
def warnings_and_errors_printed(notebook, folder):
    noise = "\nimport os, sys, warnings\nwarnings.warn('careful')\nprint('oops', file=sys.stderr)\nos.write(2, b'raw')"
    inside = SOFTMAX.replace(
        "    powers", "    os.write(2, b'raw'); warnings.warn('again'); np.log(0.0)\n    powers", 1
    )
    answer_softmax(notebook, "import os, warnings\n" + inside + noise)


@submission()
def megabytes_printed(notebook, folder):
    begin_softmax_with(notebook, "print('x' * 2_000_000)")
    add_cell(notebook, "for _ in range(400): print('y' * 50_000)")


@submission(WITHOUT_SOFTMAX, "library_call")
def library_used(notebook, folder):
    text = "%matplotlib inline\nimport torch\ndef softmax(scores, axis=-1):\n    return torch.softmax(scores, axis)"
    answer_softmax(notebook, text)


@submission()
def picture_drawn(notebook, folder):
    add_cell(notebook, "from helpers import heatmaps\nheatmaps.attention_map(np.eye(3), tokens=['a', 'b', 'c'])", 2)


@submission()
def file_of_its_own_read(notebook, folder):
    (folder / "data").mkdir()
    (folder / "data" / "scale.txt").write_text("1.0", encoding="utf-8")
    begin_softmax_with(notebook, "scores = scores * float(open('data/scale.txt').read())")
