"""`run`: it can be stopped at any moment and run again; nothing is lost, nothing is executed twice."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from nbgrader.api import Gradebook
from submissions import SUBMISSIONS
from submissions.chapter import ALL, CHAPTER
from submissions.course import Course, environment, need_sandbox, nothing_left_running

from helpers.grading import METADATA
from helpers.grading.course import Submission, open_course
from helpers.grading.records import is_graded

NAMES = ("deleted_test", "everything_right", "kernel_killed", "nothing_written", "without_the_maximum")
KILLS = 20

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A tiny class that nobody has graded."""
    need_sandbox()
    course = Course.released(tmp_path_factory.mktemp("running") / "course")
    return course.hand_in([*NAMES, "empty"])


@pytest.fixture(scope="module")
def undisturbed(handed_in: Course) -> Course:
    """The same, graded in peace, and not to be changed."""
    course = handed_in.copy("undisturbed")
    course.grading("run", "--workers", "2", code=1)
    return course


@pytest.fixture
def course(undisturbed: Course, request: pytest.FixtureRequest) -> Iterator[Course]:
    """The graded class, to do with as one likes."""
    copy = undisturbed.copy(request.node.name)
    yield copy
    shutil.rmtree(copy.path)


def seeds(course: Course) -> dict[str, int]:
    """Every execution draws a new one."""
    return {name: course.autograded(name).metadata[METADATA]["seed"] for name in NAMES}


def records(course: Course) -> dict[str, dict[str, Any]]:
    """What `run` wrote down, without what tells when and how long."""
    found = {}
    for path in sorted((course.path / "grading" / "records" / CHAPTER).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[path.stem] = {
            name: value for name, value in record.items() if name not in ("finished", "executing", "saving")
        }
    return found


def assert_as_undisturbed(course: Course, undisturbed: Course) -> None:
    assert course.gradebook() == undisturbed.gradebook()
    assert records(course) == records(undisturbed)
    left = [path.name for path in (course.path / "grading").rglob("*") if path.name.endswith(".unfinished")]
    assert left == []
    for name in NAMES:
        verdicts = course.autograded(name).metadata[METADATA]["reports"]
        assert verdicts == undisturbed.autograded(name).metadata[METADATA]["reports"]


# What is done again, and what is not


def test_the_gradebook_holds_what_was_earned(undisturbed: Course) -> None:
    assert {name: undisturbed.outcome(name) for name in NAMES} == {name: SUBMISSIONS[name].outcome for name in NAMES}


def test_what_was_graded_is_not_executed_again(course: Course) -> None:
    before = seeds(course)
    assert "Nothing to grade" not in course.grading("run", code=1)  # what was set aside is looked at again
    assert seeds(course) == before


def test_nothing_to_grade_is_said(course: Course) -> None:
    shutil.rmtree(course.path / "submitted" / "empty")
    assert "Nothing to grade: no submission is new or changed." in course.grading("run")


def test_what_was_changed_is_executed_again_and_nothing_else(course: Course) -> None:
    before = seeds(course)
    shutil.copy(course.submitted("everything_right"), course.submitted("nothing_written"))
    shutil.copy(course.submitted("everything_right"), course.submitted("empty"))
    (course.submitted("deleted_test").parent / "data.txt").write_text("a file beside it counts", encoding="utf-8")
    course.grading("run")
    changed = {name for name, seed in seeds(course).items() if seed != before[name]}
    assert changed == {"nothing_written", "deleted_test"}
    assert course.outcome("nothing_written") == course.outcome("empty") == ALL


def test_again_executes_everything(course: Course, undisturbed: Course) -> None:
    before = seeds(course)
    course.grading("run", "--again", code=1)
    after = seeds(course)
    assert [name for name in NAMES if after[name] == before[name]] == []
    assert_as_undisturbed(course, undisturbed)


@pytest.mark.parametrize("damage", ["removed", "empty", "half"])
def test_a_graded_notebook_that_was_not_written_to_its_end_does_not_count(course: Course, damage: str) -> None:
    submission = Submission(open_course(course.path), "everything_right", CHAPTER)
    assert is_graded(submission)
    submission.record.unlink()
    assert is_graded(submission)
    if damage == "removed":
        submission.autograded.unlink()
    else:
        content = submission.autograded.read_bytes()
        submission.autograded.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    assert not is_graded(submission)


def test_a_submission_graded_by_nbgrader_itself_is_not_graded_again(handed_in: Course) -> None:
    course = handed_in.copy("stock")
    course.nbgrader("autograde", CHAPTER, code=1)
    before = seeds(course)
    course.grading("run", code=1)
    assert seeds(course) == before


def test_two_runs_do_not_get_into_each_others_way(course: Course) -> None:
    with open(course.path / "grading" / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = course.grading("run", code=2)
    assert "Another run is grading in this folder. Wait for it, or stop it." in said


# Judging again


def regrade(course: Course) -> str:
    """`run --regrade` after the quiz's check was mended: A is right, not B."""
    mended = (
        "import sys\nfrom helpers.checks.registry import find\n"
        "object.__setattr__(find('quiz_01_1'), 'answer', 'A')\n"
        "from helpers.grading.__main__ import main\nsys.exit(main(['run', '--regrade']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", mended], cwd=course.path, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_regrading_lists_whose_grade_changed_and_executes_nothing(course: Course) -> None:
    before, executed = course.gradebook(), seeds(course)
    said = regrade(course)
    assert "5 judged again, 4 grades changed:" in said
    for name in ("everything_right", "deleted_test", "kernel_killed"):
        assert f"{name}, {CHAPTER}: quiz_01_1_check 1 -> 0" in said
        assert course.gradebook()[name]["quiz_01_1_check"]["auto_score"] == 0
    assert f"without_the_maximum, {CHAPTER}: quiz_01_1_check 0 -> 1" in said
    assert seeds(course) == executed
    for name, grades in course.gradebook().items():
        assert {cell: grade for cell, grade in grades.items() if cell != "quiz_01_1_check"} == {
            cell: grade for cell, grade in before[name].items() if cell != "quiz_01_1_check"
        }


def test_regrading_keeps_what_a_person_has_given(course: Course) -> None:
    url = f"sqlite:///{course.path / 'gradebook.db'}"
    with Gradebook(url) as gradebook:
        written = gradebook.find_grade("explain_max_subtraction", CHAPTER, CHAPTER, "everything_right")
        written.manual_score, written.needs_manual_grade = 1.5, False
        quiz = gradebook.find_grade("quiz_01_1_check", CHAPTER, CHAPTER, "everything_right")
        quiz.manual_score, quiz.needs_manual_grade = 1.0, False
        softmax = gradebook.find_grade("softmax_check", CHAPTER, CHAPTER, "without_the_maximum")
        softmax.extra_credit = 0.5
        comment = gradebook.find_comment("explain_max_subtraction", CHAPTER, CHAPTER, "everything_right")
        comment.manual_comment = "Say what the largest float is."
        gradebook.db.commit()
    said = regrade(course)
    assert "quiz_01_1_check 1 -> 0 (the manual score 1 stays)" in said
    grades = course.gradebook()["everything_right"]
    assert (grades["explain_max_subtraction"]["manual_score"], grades["quiz_01_1_check"]["manual_score"]) == (1.5, 1.0)
    assert not grades["explain_max_subtraction"]["needs_manual_grade"]
    assert grades["explain_max_subtraction"]["comment"] == [(None, "Say what the largest float is.")]
    with Gradebook(url) as gradebook:
        assert gradebook.find_grade("softmax_check", CHAPTER, CHAPTER, "without_the_maximum").extra_credit == 0.5
        assert gradebook.find_submission(CHAPTER, "everything_right").score == 8.5


def test_regrading_leaves_alone_what_was_handed_in_anew(course: Course) -> None:
    shutil.copy(course.submitted("nothing_written"), course.submitted("everything_right"))
    said = regrade(course)
    assert "2 are new or changed: `run` without --regrade grades them." in said
    assert course.outcome("everything_right") == ALL


def test_regrading_with_nothing_mended_changes_nothing(course: Course, undisturbed: Course) -> None:
    assert "5 judged again, 0 grades changed." in course.grading("run", "--regrade")
    assert_as_undisturbed(course, undisturbed)


# Stopped on the way


def marked(course: Course) -> dict[str, str]:
    """An environment by which the processes of one run can be told from all others."""
    folder = course.path.with_name(f"{course.path.name}-tmp")  # not much longer: the path of a socket has 107 bytes
    folder.mkdir(exist_ok=True)
    return {"TMPDIR": str(folder)}


def started(course: Course) -> subprocess.Popen[str]:
    return course.start("helpers.grading", "run", "--workers", "2", env=marked(course), start_new_session=True)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 60) -> bool:
    """Wait until something is so, while the process lives."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_goes_on_where_it_was(handed_in: Course, undisturbed: Course, seed: int) -> None:
    """Killed at random moments, with all its processes or alone, until it is through; and so again and again."""
    chance, kills, rounds = random.Random(seed), 0, 0
    while kills < KILLS // 2:
        rounds += 1
        course = handed_in.copy(f"killed-{seed}-{rounds}")
        while kills < KILLS // 2:
            run = started(course)
            wait_for((course.path / "grading" / "run.lock").exists, run)
            # From the first moment to some time after the last: importing takes two seconds, each submission a half.
            wait_for(lambda: False, run, seconds=chance.uniform(0.0, 7.0))
            if run.poll() is not None:
                break
            if chance.random() < 0.5:
                os.killpg(run.pid, signal.SIGKILL)
            else:
                run.kill()
            run.communicate()
            kills += 1
            assert nothing_left_running(marked(course)["TMPDIR"]) == []
        said = course.grading("run", "--workers", "2", code=1)
        assert "set aside" in said
        assert_as_undisturbed(course, undisturbed)


@pytest.mark.parametrize("moment", ["grading/logs", "autograded/everything_right"])
def test_a_run_that_is_killed_while_it_saves_goes_on_where_it_was(
    handed_in: Course, undisturbed: Course, moment: str
) -> None:
    course = handed_in.copy(f"at-{moment[:7]}")
    run = started(course)
    assert wait_for((course.path / moment).exists, run)
    run.kill()
    run.communicate()
    course.grading("run", code=1)
    assert_as_undisturbed(course, undisturbed)


@pytest.mark.parametrize("way", ["terminated", "ctrl-c"])
def test_a_run_can_be_stopped(handed_in: Course, undisturbed: Course, way: str) -> None:
    course = handed_in.copy(way)
    run = started(course)
    assert wait_for(lambda: list(course.path.glob("grading/records/*/*.json")), run)
    if way == "terminated":
        run.terminate()
    else:  # a terminal sends it to the whole group
        os.killpg(run.pid, signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "Stopped. What was graded is saved; run it again to go on." in said
    assert "Traceback" not in said
    assert nothing_left_running(marked(course)["TMPDIR"]) == []
    course.grading("run", code=1)
    assert_as_undisturbed(course, undisturbed)


@pytest.mark.parametrize("whom", ["workers", "template", "bwrap"])
def test_processes_that_are_killed_take_no_others_along(handed_in: Course, undisturbed: Course, whom: str) -> None:
    """As the system does when memory runs out."""
    course = handed_in.copy(f"without-{whom}")
    run = started(course)

    def victims() -> list[psutil.Process]:
        found = []
        for process in family(run):
            with contextlib.suppress(psutil.Error):
                command, own = process.cmdline(), process.ppid() == run.pid
                is_worker = own and command == psutil.Process(run.pid).cmdline()
                is_template = own and "helpers.grading.template" in command
                if {"workers": is_worker, "template": is_template, "bwrap": process.name() == "bwrap"}[whom]:
                    found.append(process)
        return found

    assert wait_for(lambda: is_executing(run) and victims(), run)
    for process in victims():
        process.kill()
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 1, said
    grades, expected = course.gradebook(), undisturbed.gradebook()
    if whom != "workers":  # a kernel that is killed looks like one that its own code has stopped
        changed = [name for name in expected if grades[name] != expected[name]]
        assert len(changed) <= 2
    else:
        assert grades == expected
    assert nothing_left_running(marked(course)["TMPDIR"]) == []


def is_executing(run: subprocess.Popen[str]) -> bool:
    """Whether a sandbox for a submission stands."""
    with contextlib.suppress(psutil.Error):
        return any("/shared" in " ".join(process.cmdline()) for process in family(run) if process.name() == "bwrap")
    return False


# Elsewhere


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dask scheduler with two workers, each a process of its own, that talk over TCP."""
    pytest.importorskip("distributed")
    need_sandbox()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("cluster")
    place, port = address.removeprefix("tcp://").split(":")
    commands = [["scheduler", "--host", place, "--port", port, "--no-dashboard"]]
    commands += [["worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]] * 2
    with open(folder / "log", "w") as log:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "dask", *command], cwd=folder, env=environment(), stderr=log, stdout=log
            )
            for command in commands
        ]
    try:
        until = time.monotonic() + 90
        while (folder / "log").read_text().count("Registered to:") < 2:
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


def test_a_cluster_gives_the_same_grades(handed_in: Course, undisturbed: Course, scheduler: str) -> None:
    course = handed_in.copy("cluster")
    course.grading("run", "--scheduler", scheduler, code=1)
    assert_as_undisturbed(course, undisturbed)


# What is asked of it


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["99"], 'There is no chapter "99"'),
        (["--workers", "0"], "--workers must be 1 or more"),
        (["2"], "Nothing to grade"),
        (["--db", "nonsense://somewhere"], "The gradebook cannot be opened"),
    ],
)
def test_a_tired_persons_mistakes_are_said(course: Course, arguments: list[str], sentence: str) -> None:
    said = course.grading("run", *arguments, code=0 if sentence.startswith("Nothing") else 2)
    assert sentence in said
    assert "Traceback" not in said
