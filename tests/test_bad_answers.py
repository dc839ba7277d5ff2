"""Answers that do anything but answer: each gets a card that names it, no points, and the process goes on."""

import contextlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from answers.chapter_01 import good_softmax

from helpers.checks import isolation, judge_implementation, observing, pristine
from helpers.checks.card import card_html
from helpers.checks.judging import judge
from helpers.checks.observing import MISSING, observe
from helpers.checks.registry import find
from helpers.checks.source import library_calls

needs_fork = pytest.mark.skipif(not isolation.CAN_FORK, reason="only a forked child survives this")


@pytest.fixture(params=[pytest.param(True, marks=needs_fork), False], ids=["in a child", "in this process"])
def both_ways(request, monkeypatch):
    """Checks run in a forked child on Linux and in the process itself elsewhere; both must give the same cards."""
    monkeypatch.setattr(isolation, "CAN_FORK", request.param)


def reject(implementation, named):
    report = judge_implementation("softmax", implementation, seed=3)
    assert report.earned == 0.0
    assert named in report.misconceptions, report.message
    assert "Traceback" not in report.message
    return report


def raises(scores, axis=-1):
    return scores / 0 if scores is None else 1 / 0


def exits(scores, axis=-1):
    sys.exit(0)


def asks(scores, axis=-1):
    return float(input("score? "))


def too_much_memory(scores, axis=-1):
    return np.ones(10**11)


@pytest.mark.parametrize(
    ("implementation", "named"),
    [(raises, "raises"), (exits, "exits"), (asks, "asked_for_input"), (lambda scores, axis=-1: None, "returned_none")],
    ids=["raises", "exits", "asks for input", "returns None"],
)
@pytest.mark.usefixtures("both_ways")
def test_it_is_named(implementation, named):
    reject(implementation, named)


def test_the_line_that_raised_is_shown():
    assert "1 / 0" in reject(raises, "raises").message


@needs_fork
def test_too_much_memory_is_named():
    reject(too_much_memory, "out_of_memory")


@needs_fork
@pytest.mark.parametrize("kill", [lambda: os._exit(0), lambda: os.kill(os.getpid(), 9)], ids=["os._exit", "kill"])
def test_a_crash_costs_only_this_check(kill):
    reject(lambda scores, axis=-1: kill(), "crashed")


@pytest.mark.usefixtures("both_ways")
def test_an_endless_loop_is_stopped(monkeypatch):
    monkeypatch.setattr(observing, "TIME_LIMIT", 0.3)

    def loops(scores, axis=-1):
        while True:
            pass

    reject(loops, "endless_loop")


@needs_fork
def test_a_loop_that_swallows_interrupts_is_stopped(monkeypatch):
    monkeypatch.setattr(observing, "TIME_LIMIT", 0.3)

    def clings(scores, axis=-1):
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1)

    reject(clings, "endless_loop")


@needs_fork
def test_what_came_before_the_loop_still_shows(monkeypatch):
    monkeypatch.setattr(observing, "TIME_LIMIT", 0.5)

    def loops_on_large_scores(scores, axis=-1):
        while np.max(scores) > 500:
            pass
        return good_softmax(scores, axis)

    report = judge_implementation("softmax", loops_on_large_scores, seed=3)
    assert report.families[0].passed
    assert report.earned > 0
    assert "endless_loop" in report.misconceptions


@pytest.mark.usefixtures("both_ways")
def test_printing_costs_nothing_and_is_mentioned(capfd):
    def prints(scores, axis=-1):
        print("some megabytes" * 100_000)
        os.write(2, b"past sys.stderr")
        return good_softmax(scores, axis)

    report = judge_implementation("softmax", prints, seed=3)
    assert report.passed, report.message
    assert "MB" in report.message
    assert "some megabytes" in report.message
    assert len(report.message) < 3000
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("both_ways")
def test_warnings_cost_nothing_and_are_mentioned(recwarn):
    def warns(scores, axis=-1):
        np.log(np.zeros(1))
        return good_softmax(scores, axis)

    report = judge_implementation("softmax", warns, seed=3)
    assert report.passed
    assert "divide by zero" in report.message
    assert not recwarn.list


@pytest.mark.usefixtures("both_ways")
def test_a_changed_input_is_named():
    def in_place(scores, axis=-1):
        scores -= scores.max(axis=axis, keepdims=True)
        return good_softmax(scores, axis)

    report = judge_implementation("softmax", in_place, seed=3)
    assert "changes_input" in report.misconceptions
    assert "`scores`" in report.message
    assert not report.passed


@pytest.mark.parametrize("value", [None, 3, "softmax", np.ones(3), [good_softmax]])
def test_a_name_used_for_something_else(value):
    reject(value, "wrong_kind")


def test_a_class_where_a_function_is_asked_for():
    reject(type("softmax", (), {}), "wrong_kind")


def test_a_name_that_is_not_defined():
    report = reject(MISSING, "not_defined")
    assert "`softmax`" in report.message


def test_a_stub_is_not_written_yet():
    def stub(scores, axis=-1):
        raise NotImplementedError

    report = judge_implementation("softmax", stub, seed=3)
    assert report.state == "not written"
    assert report.earned == 0.0


def test_only_raising_the_asked_error_earns_nothing():
    def always(scores, temperature, axis=-1):
        raise ValueError

    assert judge_implementation("softmax_with_temperature", always, seed=3).earned == 0.0


@pytest.fixture
def patched_numpy():
    original = np.allclose
    np.allclose = lambda *args, **kwargs: True
    yield
    np.allclose = original


@pytest.mark.usefixtures("patched_numpy")
def test_a_patched_numpy_is_named_and_put_back():
    report = judge_implementation("softmax", good_softmax, seed=3)
    assert report.misconceptions == ("replaced_library",)
    assert "numpy.allclose" in report.message
    assert pristine.replaced() == []
    assert judge_implementation("softmax", good_softmax, seed=3).passed


@needs_fork
def test_numpy_patched_during_the_check_is_named():
    def patches(scores, axis=-1):
        np.exp = lambda values: values
        return good_softmax(scores, axis)

    reject(patches, "replaced_library")
    assert np.exp(0.0) == 1.0


class Evil:
    """An object that fights whoever looks at it."""

    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __len__ = __eq__ = __iter__ = __array__ = __repr__
    __hash__ = None


@pytest.mark.parametrize(
    "value",
    [
        Evil(),
        {1: 2},
        "0.5",
        b"0.5",
        1 + 2j,
        np.array(["a"]),
        np.ma.masked_array([1.0]),
        np.matrix([[1.0]]),
        open,
        [[]] * 5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_wrong_type_is_named(value):
    reject(lambda scores, axis=-1: value, "wrong_type")


def test_an_error_that_cannot_be_printed():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    def silent(scores, axis=-1):
        raise Silent

    reject(silent, "raises")


@pytest.mark.parametrize(
    "change",
    [
        lambda o: None,
        lambda o: {},
        lambda o: [],
        lambda o: {**o, "seed": 4},
        lambda o: {**o, "exercise": "masked_softmax"},
        lambda o: {**o, "format": 99},
        lambda o: {**o, "cases": "all right"},
        lambda o: {**o, "cases": o["cases"] * 2},
        lambda o: {**o, "defined": "yes"},
        lambda o: {**o, "replaced": None},
    ],
)
def test_observations_that_observe_did_not_write_earn_nothing(change):
    exercise = find("softmax")
    report = judge(exercise, change(observe(exercise, good_softmax, 3)), 3)
    assert report.earned == 0.0
    assert report.state == "not judged"


@pytest.mark.parametrize(
    "case",
    [
        None,
        {"outcome": "returned"},
        {"outcome": "returned", "value": {"kind": "array", "dtype": "O", "shape": [3], "data": ""}},
        {"outcome": "returned", "value": {"kind": "array", "dtype": "<f8", "shape": [10**9], "data": "AAAA"}},
        {"outcome": "passed", "value": None, "changed": [], "warnings": []},
        {"outcome": "raised", "error": {}, "changed": [], "warnings": []},
    ],
)
def test_a_forged_case_fails_and_the_judge_goes_on(case):
    exercise = find("softmax")
    observations = observe(exercise, good_softmax, 3)
    observations["cases"][0] = case
    assert judge(exercise, observations, 3).earned == 0.0


def test_observations_are_data():
    exercise = find("softmax")
    observations = observe(exercise, good_softmax, 3)
    assert judge(exercise, json.loads(json.dumps(observations)), 3).passed


def test_cards_escape_what_students_write():
    def hostile(scores, axis=-1):
        raise RuntimeError("<script>alert(1)</script>")

    html = card_html(judge_implementation("softmax", hostile, seed=3))
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


@needs_fork
def test_nothing_is_left_running(monkeypatch):
    monkeypatch.setattr(observing, "TIME_LIMIT", 0.3)
    mark = f"sleep {os.getpid()}.25"

    def leaves_a_process(scores, axis=-1):
        subprocess.Popen(mark.split())
        time.sleep(5)

    judge_implementation("softmax", leaves_a_process, seed=3)
    time.sleep(0.2)
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("exercise_id", "implementation", "named"),
    [
        ("softmax", lambda scores, axis=-1: 0.9 * good_softmax(scores, axis), "rows_do_not_sum_to_1"),
        ("softmax", lambda scores, axis=-1: np.roll(good_softmax(scores, axis), 1, axis), "order_not_kept"),
        (
            "masked_softmax",
            lambda scores, keep, axis=-1: good_softmax(np.where(keep, scores, -7.3), axis),
            "hidden_gets_weight",
        ),
        ("effective_choices", lambda weights, axis=-1: 9.5 + weights.sum(axis=axis), "choices_out_of_range"),
    ],
)
def test_a_mistake_nobody_listed_still_gets_a_sentence(exercise_id, implementation, named):
    assert named in judge_implementation(exercise_id, implementation, seed=3).misconceptions


IMPORTS = "import torch\nfrom helpers import portfolio"
CONTEXT = f"{IMPORTS}\nclass Tools:\n    @staticmethod\n    def softmax(scores, axis):\n        return scores"


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ("def softmax(s, axis=-1):\n    return Tools.softmax(s, axis)", False),
        ("def softmax(s, axis=-1):\n    return s\nassert softmax(x) == torch.softmax(x, 0)", False),
        ("def softmax(s, axis=-1):\n    return s\nfrom helpers.checks import check\ncheck('softmax')", False),
        ("from scipy.special import softmax", True),
        ("from helpers.checks.chapter_01_softmax import softmax", True),
        ("from helpers import portfolio\nsoftmax = portfolio.load('01_softmax', 'softmax')", True),
        ("softmax = portfolio.load('01_softmax', 'softmax')", True),
        (f"def softmax(s, axis=-1):\n    return s\nx{'.a' * 500}", False),
        ("def softmax(s, axis=-1):\n    return torch.tensor(s).softmax(axis).numpy()", True),
    ],
)
def test_library_calls_are_told_from_ones_own(answer, calls):
    assert bool(library_calls(answer, find("softmax").forbidden, CONTEXT)) is calls
