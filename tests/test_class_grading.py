"""A class of honest, mangled and hostile submissions, graded by nbgrader itself and by `run`: see `submissions`."""

from __future__ import annotations

import csv
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import ANY

import nbformat
import numpy as np
import pytest
from nbgrader.nbgraderformat import MetadataValidator
from submissions import SUBMISSIONS
from submissions.chapter import CHAPTER, EXPLANATION, NONE, cell_of, write_answers
from submissions.course import Course, need_sandbox, nothing_left_running, our_config
from submissions.escapes import MARK, SECRET, WORKED, lures
from submissions.honest import PART, WITHOUT_MAXIMUM

from helpers.checks import OBSERVATIONS, judge_implementation
from helpers.grading import METADATA
from helpers.grading.judging import JudgeObservations
from helpers.grading.reading import read_notebook
from helpers.grading.repairing import expected_cells, repair

HONEST = ("everything_right", "nothing_written", "without_the_maximum")
CLASS = [name for name, submission in SUBMISSIONS.items() if not submission.takes_long]
IMPATIENT = [*HONEST, *(name for name, submission in SUBMISSIONS.items() if submission.takes_long)]
SET_ASIDE = [name for name in CLASS if SUBMISSIONS[name].set_aside]
GRADED = [name for name in CLASS if not SUBMISSIONS[name].set_aside]
WAYS = ("stock", "run")
#: nbgrader's own command copies these, and fails, before anything of ours has a say.
LOST_BY_STOCK = {"links_to_nowhere", "pipe_beside_it"}

pytestmark = pytest.mark.slow


# The class, and how it is graded


@pytest.fixture(scope="module")
def released_course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A course with the small chapter, released, and nothing handed in yet."""
    need_sandbox()
    return Course.released(tmp_path_factory.mktemp("class") / "course")


@pytest.fixture(scope="module")
def graded(released_course: Course) -> dict[str, Course]:
    """The same class graded in both ways, at the same time: by stock nbgrader, and by `run`."""
    courses = {way: released_course.copy(way).hand_in(CLASS) for way in WAYS}
    before = {way: contents(course) for way, course in courses.items()}
    with ThreadPoolExecutor() as pool:
        run = pool.submit(
            courses["run"].grading, "run", CHAPTER, "--workers", "1", code=1, env=temporary(courses["run"])
        )
        stock = pool.submit(courses["stock"].nbgrader, "autograde", CHAPTER, code=1, env=temporary(courses["stock"]))
    said, log = run.result(), stock.result()  # both with exit code 1: some were set aside
    logs = {path.stem: path.read_text(encoding="utf-8") for path in courses["run"].path.glob("grading/logs/*/*")}
    (courses["run"].path / "log").write_text("\n".join([said, *logs.values()]), encoding="utf-8")
    (courses["stock"].path / "log").write_text(log, encoding="utf-8")
    (courses["run"].path / "before.json").write_text(json.dumps(before), encoding="utf-8")
    courses["run"].nbgrader("generate_feedback", CHAPTER)
    courses["run"].grading("report")
    return courses


@pytest.fixture(params=WAYS)
def course(graded: dict[str, Course], request: pytest.FixtureRequest) -> Course:
    """The class, graded in one way and the other."""
    return graded[request.param]


@pytest.fixture
def run_course(graded: dict[str, Course]) -> Course:
    """The class as `run` has graded it, with feedback and a report."""
    return graded["run"]


@pytest.fixture(scope="module")
def honest_course(released_course: Course) -> Course:
    """The same course with its honest students only."""
    course = released_course.copy("honest").hand_in(HONEST)
    course.grading("run")
    return course


@pytest.fixture(scope="module")
def impatient_course(released_course: Course) -> Course:
    """A class that takes all the time it gets, and gets little."""
    course = released_course.copy("impatient").hand_in(IMPATIENT)
    with open(course.path / "nbgrader_config.py", "a", encoding="utf-8") as config:
        config.write("c.Execute.timeout = 5\n")
    course.grading("run")
    course.grading("report")
    return course


def temporary(course: Course) -> dict[str, str]:
    """A folder for temporary files that is looked into afterwards."""
    folder = course.path.with_name(f"{course.path.name}-tmp")
    folder.mkdir()
    return {"TMPDIR": str(folder)}


def contents(course: Course) -> dict[str, int]:
    """The ordinary files that nobody but the instructor and the students may change, with their contents' hashes."""
    files = [course.path / "nbgrader_config.py"]
    for name in ("solutions", "submitted", "notebooks"):
        files += sorted((course.path / name).rglob("*"))
    return {
        ascii(str(path.relative_to(course.path))): hash(path.read_bytes())
        for path in files
        if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_size < 50_000_000
    }


# Everybody gets what they earned


@pytest.mark.parametrize("name", CLASS)
def test_every_submission_gets_the_points_it_earned(course: Course, name: str) -> None:
    if name in LOST_BY_STOCK and course.path.name == "stock":
        assert course.outcome(name) == (None, None, None)
        return
    assert course.outcome(name) == SUBMISSIONS[name].outcome


@pytest.mark.parametrize("name", IMPATIENT)
def test_an_endless_submission_loses_its_own_exercise_at_most(impatient_course: Course, name: str) -> None:
    assert impatient_course.outcome(name) == SUBMISSIONS[name].outcome


def test_both_ways_fill_the_gradebook_in_the_same_way(graded: dict[str, Course]) -> None:
    stock, run = (graded[way].gradebook() for way in WAYS)
    uncertain = {name for name in CLASS if ANY in SUBMISSIONS[name].outcome}
    assert set(stock) == set(run) - LOST_BY_STOCK
    certain = set(stock) - uncertain
    assert {name: stock[name] for name in certain} == {name: run[name] for name in certain}


@pytest.mark.parametrize("name", HONEST)
def test_nobody_elses_submission_changes_a_grade(course: Course, honest_course: Course, name: str) -> None:
    assert course.gradebook()[name] == honest_course.gradebook()[name]


def test_partial_credit_reaches_the_gradebook() -> None:
    namespace: dict[str, Any] = {"np": np}
    exec(WITHOUT_MAXIMUM, namespace)
    assert judge_implementation("softmax", namespace["softmax"]).earned == PART


def test_only_what_cannot_be_graded_is_set_aside(course: Course) -> None:
    graded_students = {path.parent.name for path in course.path.glob(f"autograded/*/{CHAPTER}")}
    assert graded_students == set(GRADED) - (LOST_BY_STOCK if course.path.name == "stock" else set())


def test_grades_can_be_exported(run_course: Course) -> None:
    run_course.nbgrader("export")
    with open(run_course.path / "grades.csv", encoding="utf-8", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    expected = {name: sum(SUBMISSIONS[name].outcome) for name in GRADED if ANY not in SUBMISSIONS[name].outcome}
    assert {name: scores[name] for name in expected} == {name: expected[name] for name in expected}


# Answers that a person reads


def test_a_written_answer_waits_for_a_person(course: Course) -> None:
    for name in ("everything_right", "written_answer_in_a_code_cell", "all_marks_lost"):
        assert course.grades(name)["explain_max_subtraction"] is None


def test_no_written_answer_earns_nothing_without_a_person(course: Course) -> None:
    for name in ("nothing_written", "written_answer_deleted"):
        assert course.grades(name)["explain_max_subtraction"] == 0


def test_a_written_answer_keeps_its_text_through_a_change_of_type(course: Course) -> None:
    cell = cell_of(course.autograded("written_answer_in_a_code_cell"), "explain_max_subtraction")
    assert (cell.cell_type, cell.source) == ("markdown", EXPLANATION)


# What happened is said


@pytest.mark.parametrize("name", [name for name in CLASS if SUBMISSIONS[name].said])
def test_the_report_says_what_happened(run_course: Course, name: str) -> None:
    said = run_course.report()[name]
    assert [sentence for sentence in SUBMISSIONS[name].said if sentence not in said] == []


@pytest.mark.parametrize("name", [name for name in IMPATIENT if SUBMISSIONS[name].said])
def test_the_report_says_what_ran_out_of_time(impatient_course: Course, name: str) -> None:
    said = impatient_course.report()[name]
    assert [sentence for sentence in SUBMISSIONS[name].said if sentence not in said] == []


@pytest.mark.parametrize("name", SET_ASIDE)
def test_the_report_sets_aside_what_could_not_be_graded(run_course: Course, name: str) -> None:
    assert "set aside" in run_course.report()[name]


@pytest.mark.parametrize("name", SET_ASIDE)
def test_the_log_names_who_was_set_aside(course: Course, name: str) -> None:
    log = (course.path / "log").read_text(encoding="utf-8")
    assert re.search(rf"(of {name} cannot be read|/{name}/{CHAPTER}|for student '{name}'|{name}, {CHAPTER}:)", log)


def test_repairs_are_told_in_the_log_the_notebook_and_the_feedback(run_course: Course) -> None:
    sentence = "The test cell `softmax_check` was missing; it was put back."
    assert f"{CHAPTER} of deleted_test: {sentence}" in (run_course.path / "log").read_text()
    assert sentence in [note["text"] for note in run_course.autograded("deleted_test").metadata[METADATA]["notes"]]
    assert sentence.replace("`softmax_check`", "<code>softmax_check</code>") in run_course.feedback("deleted_test")


def test_an_untouched_notebook_is_not_repaired(course: Course) -> None:
    assert course.autograded("everything_right").metadata[METADATA]["notes"] == []


def test_text_written_into_a_test_cell_is_kept(course: Course) -> None:
    sources = [cell.source for cell in course.autograded("helper_written_into_a_test").cells]
    assert any(source.startswith("def exponentials") for source in sources)


# Nothing got out, nothing stays


def tried(course: Course, name: str) -> str:
    """All that a submission printed."""
    cells = course.autograded(name).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


@pytest.mark.parametrize(
    "name",
    [
        "everything_read",
        "everything_written",
        "everything_called",
        "process_left_behind",
        "remains_of_others_looked_for",
        "modules_of_its_own",
    ],
)
def test_no_attempt_to_get_out_works(course: Course, name: str) -> None:
    said = tried(course, name)
    assert re.search(r"^[1-9]\d* attempts$", said, re.MULTILINE)
    assert WORKED not in said


def test_nobody_came_to_the_servers_outside(graded: dict[str, Course]) -> None:
    assert lures().came() == 0


def test_no_process_outlives_grading(graded: dict[str, Course]) -> None:
    assert nothing_left_running(MARK) == []
    assert nothing_left_running(str(graded["run"].path.parent)) == []


def test_no_file_is_left_behind(course: Course) -> None:
    assert os.listdir(course.path.with_name(f"{course.path.name}-tmp")) == []
    assert [path for path in course.path.rglob("*") if MARK in path.name] == []
    assert not any(Path(place, MARK).exists() for place in ("/", "/tmp", "/dev/shm", "/usr", str(Path.home())))


def test_nothing_changes_what_was_handed_in(graded: dict[str, Course]) -> None:
    before = json.loads((graded["run"].path / "before.json").read_text(encoding="utf-8"))
    assert {way: contents(course) for way, course in graded.items()} == before


def test_no_secret_gets_into_what_students_see(course: Course) -> None:
    """Neither by a link nor by an output: the gradebook, the solutions, and what lies in the grader's environment."""
    solution = (course.path / "solutions" / CHAPTER / f"{CHAPTER}.ipynb").read_bytes()
    for folder in ("autograded", "feedback"):
        for path in (course.path / folder).rglob("*"):
            if stat.S_ISREG(path.lstat().st_mode):
                content = path.read_bytes()
                assert not content.startswith(b"SQLite format"), path
                assert content != solution, path
                assert SECRET.encode() not in content and b"BEGIN SOLUTION" not in content, path
            else:
                assert path.is_dir() and not path.is_symlink(), path


def test_every_submission_has_a_seed_of_its_own(course: Course) -> None:
    graded_students = [path.parent.name for path in course.path.glob(f"autograded/*/{CHAPTER}")]
    seeds = [course.autograded(name).metadata[METADATA]["seed"] for name in graded_students]
    assert len(set(seeds)) == len(seeds)


# Cards and feedback


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
        ("kernel_killed", "this cell stopped the notebook"),
        ("kernel_asked_to_exit", "this cell told the notebook to exit"),
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
def test_feedback_says_why_points_are_missing(run_course: Course, name: str, sentence: str) -> None:
    assert sentence in run_course.feedback(name)


def test_everybody_who_was_graded_gets_feedback(run_course: Course) -> None:
    assert [name for name in GRADED if not run_course.feedback(name)] == []


def test_feedback_shows_no_test_code_and_no_solution(run_course: Course) -> None:
    """What students wrote themselves aside: the words of the solution, of the checks and of what they hand over."""
    page = run_course.feedback("nothing_written")
    for secret in ("powers", "Misconception", "SOLUTION", "observations", "dtype", EXPLANATION):
        assert secret not in page, secret


def test_feedback_runs_nothing_that_a_submission_wrote(run_course: Course) -> None:
    for name in ("observations_are_deep_and_odd", "widget_state_kept"):
        assert "<script>alert" not in run_course.feedback(name)


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
    answered = released_course.released_notebook()
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
    course = released_course.copy("plain").hand_in(["everything_right"])
    (course.path / "nbgrader_config.py").write_text(our_config().partition("c.Autograde.exporter_class")[0])
    course.nbgrader("autograde", CHAPTER)
    assert course.outcome("everything_right") == NONE


def test_validate_prints_the_card_of_what_is_wrong(released_course: Course) -> None:
    course = released_course.copy("validated").hand_in(HONEST)
    passed = course.nbgrader("validate", str(course.submitted("everything_right")))
    failed = course.nbgrader("validate", str(course.submitted("without_the_maximum")))
    assert "Success! Your notebook passes all the tests." in passed
    assert "softmax: partly right" in failed
    assert "does not subtract the maximum" in re.sub(r"\s+", " ", failed)
