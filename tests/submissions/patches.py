"""Wrong answers that try to get points all the same: by patching what judges them, or by forging what is judged."""

from __future__ import annotations

from nbformat.notebooknode import NotebookNode

from helpers.checks import OBSERVATIONS
from submissions import submission
from submissions.chapter import ALL, NONE, WITHOUT_SOFTMAX, add_cell, answer_softmax, answer_wrongly, place_of


def patched(notebook: NotebookNode, patch: str) -> None:
    """Wrong answers, and a cell before them."""
    answer_wrongly(notebook)
    add_cell(notebook, patch, place_of(notebook, "softmax"))


# Patches


@submission(NONE, "replaced_library")
def numpy_patched(notebook, folder):
    patched(notebook, "import numpy as np\nnp.allclose = np.array_equal = np.isclose = lambda *a, **k: True")


@submission(NONE, "replaced_library")
def torch_patched(notebook, folder):
    patched(
        notebook,
        "import torch\ntorch.allclose = torch.equal = lambda *a, **k: True\n"
        "torch.softmax = torch.nn.functional.softmax = lambda x, dim=None, **k: x\n"
        "torch.Tensor.softmax = torch.Tensor.__eq__ = lambda *a, **k: True",
    )


@submission(NONE)
def answers_equal_to_everything(notebook, folder):
    patched(notebook, "pass")
    answer = "class Equal(float):\n    __eq__ = __le__ = __ge__ = lambda *a: True\n    __hash__ = float.__hash__\n"
    answer += "class Shares(np.ndarray):\n    __eq__ = __sub__ = lambda *a: np.array(True)\n"
    answer_softmax(notebook, answer + "def softmax(scores, axis=-1):\n    return scores.view(Shares)")


@submission(NONE, "replaced_library")
def builtins_patched(notebook, folder):
    patch = """
import builtins
builtins.abs = builtins.round = lambda *a, **k: 0
builtins.AssertionError = builtins.ArithmeticError = Exception
"""
    patched(notebook, patch)


@submission(NONE)
def assert_made_empty(notebook, folder):
    patch = """
import ast, sys
class NoMore(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.Pass()
    def visit_Raise(self, node): return ast.Pass()
get_ipython().ast_transformers.append(NoMore())
sys.excepthook = lambda *a: None
"""
    patched(notebook, patch)


@submission(NONE)
def grade_returns_numbers(notebook, folder):
    values = "{'softmax': 4.0, 'softmax_with_temperature': np.float64(1.0), 'quiz_01_1': 1e6}"
    patched(notebook, f"import helpers.checks\nhelpers.checks.grade = {values}.get")


@submission(NONE, "handed over no result")
def grade_returns_no_numbers(notebook, folder):
    values = "{'softmax': 'full marks', 'softmax_with_temperature': float('nan'), 'quiz_01_1': None}"
    patched(notebook, f"import helpers.checks\nhelpers.checks.grade = {values}.get")


@submission(NONE)
def helpers_patched_all_over(notebook, folder):
    patch = """
import helpers.checks.comparing, helpers.checks.judging, helpers.checks.observing, helpers.checks.registry
from helpers.checks.report import Report
passed = lambda exercise, *a, **k: Report(exercise.id, "passed", exercise.points, score=1.0)
helpers.checks.judge = helpers.checks.judging.judge = passed
helpers.checks.comparing.difference = helpers.checks.judging.difference = lambda *a: None
helpers.checks.registry.find("quiz_01_1").__dict__["answer"] = "C"
for case in helpers.checks.registry.find("softmax").cases:
    case.__dict__["call"] = lambda function, scores, axis=-1: scores
"""
    patched(notebook, patch)


@submission(NONE)
def grading_mode_hidden(notebook, folder):
    patched(notebook, "import os\nos.environ['NBGRADER_EXECUTION'] = 'validate'")


@submission(NONE)
def source_transformed(notebook, folder):
    patch = """
def full_marks(lines):
    return ["4.0\\n"] if any("grade(" in line for line in lines) else lines
get_ipython().input_transformers_cleanup.append(full_marks)
get_ipython().input_transformers_post.append(full_marks)
"""
    patched(notebook, patch)


@submission(NONE)
def display_machinery_patched(notebook, folder):
    patch = f"""
import sys
shell = get_ipython()
show = {{"text/plain": "4.0", {OBSERVATIONS!r}: {{"earned": 4.0}}}}
sys.displayhook.write_format_data = lambda *a, **k: shell.display_pub.publish(data=show)
sys.displayhook.compute_format_data = lambda value: (show, {{}})
true_publish = shell.display_pub.publish
shell.display_pub.publish = lambda data=None, **k: true_publish(data={{"text/plain": "4.0"}})
shell.showtraceback = shell.showsyntaxerror = lambda *a, **k: true_publish(data={{"text/plain": "4.0"}})
shell.set_custom_exc((BaseException,), lambda *a, **k: None)
"""
    patched(notebook, patch)


@submission(NONE)
def kernel_patched(notebook, folder):
    patch = f"""
kernel = get_ipython().kernel
true_send = kernel.session.send
def send(stream, name, content=None, *others, **more):
    if name == "display_data":
        content["data"] = {{"text/plain": "4.0", {OBSERVATIONS!r}: {{"seed": 0}}}}
    if name == "execute_reply" and isinstance(content, dict):
        content |= {{"status": "ok", "payload": [], "execution_count": 1}}
    return true_send(stream, name, content, *others, **more)
kernel.session.send = send
"""
    patched(notebook, patch)


@submission(NONE)
def grading_patched_where_it_does_not_run(notebook, folder):
    patch = """
import helpers.grading.judging as judging
judging.JudgeObservations.preprocess = lambda self, nb, resources: (nb, resources)
judging.judge = lambda *a: 4.0
from nbgrader import utils
utils.determine_grade = lambda cell, log=None: (4.0, 4.0)
"""
    patched(notebook, patch)


# Forgeries


FORGERY = f"""
from IPython.display import display
import os
import helpers.checks
from helpers.checks.observing import observe
from helpers.checks.registry import find
seed = int(os.environ["ATTENTION_COURSE_SEED"])
def hand_over(content, **more): return display({{{OBSERVATIONS!r}: content, "text/plain": "4.0"}}, raw=True, **more)
true_grade = helpers.checks.grade
"""


def forged(notebook: NotebookNode, forgery: str) -> None:
    patched(notebook, FORGERY + forgery)


@submission(NONE, "left no result that can be used")
def observations_forged_with_another_seed(notebook, folder):
    forgery = """
def grade(exercise):
    hand_over(observe(find(exercise), "B" if "quiz" in exercise else find(exercise).reference, 7))
helpers.checks.grade = grade"""
    forged(notebook, forgery)


@submission(NONE)
def observations_of_another_exercise(notebook, folder):
    forged(notebook, 'helpers.checks.grade = lambda exercise: hand_over(observe(find("quiz_01_2"), "C", seed))')


@submission(NONE, "handed over more than one result")
def observations_handed_over_twice(notebook, folder):
    forged(notebook, "helpers.checks.grade = lambda exercise: [true_grade(exercise), hand_over({})]")


@submission(NONE)
def observations_handed_over_by_another_cell(notebook, folder):
    forgery = """
for exercise in ("softmax", "softmax_with_temperature", "quiz_01_1"):
    hand_over(observe(find(exercise), "B" if "quiz" in exercise else find(exercise).reference, seed))
helpers.checks.grade = lambda exercise: None"""
    forged(notebook, forgery)


@submission(NONE)
def observations_changed_afterwards(notebook, folder):
    forged(notebook, "helpers.checks.grade = lambda exercise: hand_over({}, display_id=exercise)")
    again = """
from IPython.display import update_display
for exercise in ("softmax", "softmax_with_temperature", "quiz_01_1"):
    update_display({%r: {"earned": 4.0}, "text/plain": "4.0"}, display_id=exercise, raw=True)"""
    add_cell(notebook, again % OBSERVATIONS, len(notebook.cells))


@submission(NONE)
def observations_are_rubbish(notebook, folder):
    rubbish = """
def grade(exercise):
    odd = {"outcome": "returned", "value": {"kind": "array", "dtype": "O", "shape": [-1], "data": 3}}
    hand_over({"format": 1, "exercise": exercise, "seed": seed, "defined": True, "replaced": [{}],
               "cases": [odd, 1, None], "answer": {"kind": "list"}, "end": [], "printed_bytes": "many", "printed": 3})
helpers.checks.grade = grade"""
    forged(notebook, rubbish)


@submission(NONE)
def observations_are_deep_and_odd(notebook, folder):
    deep = """
def grade(exercise):
    nested = {"kind": "plain", "value": 1}
    for _ in range(400): nested = {"kind": "list", "items": [nested]}
    broad = {"kind": "array", "dtype": "<f8", "shape": [2**62, 2**62, 0], "data": ""}
    cases = [{"outcome": "returned", "value": value, "changed": [nested], "warnings": [7]} for value in (nested, broad)]
    hand_over({"format": 1, "exercise": exercise, "seed": seed, "defined": True, "replaced": [], "cases": cases,
               "answer": nested, "end": "done", "printed_bytes": 10**400, "printed": "<script>alert(1)</script>"})
helpers.checks.grade = grade"""
    forged(notebook, deep)


@submission(NONE)
def observations_are_huge(notebook, folder):
    huge = """
def grade(exercise):
    size = 15_000_000 if exercise == "softmax" else 30_000_000
    hand_over({"format": 1, "exercise": exercise, "seed": seed, "defined": True, "replaced": [],
               "cases": [], "answer": {"kind": "plain", "value": "B" * size}, "end": "done"})
helpers.checks.grade = grade"""
    forged(notebook, huge)


@submission(NONE)
def messages_are_odd(notebook, folder):
    odd = """
kernel = get_ipython().kernel
def grade(exercise):
    parent = kernel.get_parent()
    for name, content in [
        ("stream", {"name": "stdout", "text": 3}), ("stream", {}), ("stream", [1, 2]), ("display_data", {}),
        ("display_data", {"data": None, "metadata": None}), ("display_data", {"data": ["a"], "metadata": 3}),
        ("execute_result", {"data": {"text/plain": "4.0"}, "execution_count": "4"}), ("error", {}),
        ("update_display_data", {"transient": 3}), ("clear_output", {}), ("comm_open", {}), ("nonsense", {"x": 1}),
    ]:
        kernel.session.send(kernel.iopub_socket, name, content, parent=parent)
helpers.checks.grade = grade"""
    forged(notebook, odd)


@submission(WITHOUT_SOFTMAX, "library_call")
def answer_of_the_course_itself(notebook, folder):
    add_cell(notebook, "from helpers.checks.registry import find")
    answer_softmax(
        notebook, "import helpers.checks.registry\nsoftmax = helpers.checks.registry.find('softmax').reference"
    )


@submission(WITHOUT_SOFTMAX)
def stand_in_of_the_portfolio(notebook, folder):
    add_cell(notebook, "from helpers import portfolio")
    answer_softmax(notebook, "softmax = portfolio.load('01_softmax', 'softmax')")


@submission(ALL)
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
    add_cell(notebook, noise)
