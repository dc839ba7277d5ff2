"""What a teacher reads about a class: the verdicts that grading writes down, and the page and table made of them."""

from __future__ import annotations

import argparse
import csv
import datetime
import functools
import itertools
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bs4 import BeautifulSoup, Tag
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbgrader.api import Gradebook

from helpers import theme
from helpers.checks import OBSERVATIONS
from helpers.checks.observing import observe
from helpers.checks.registry import CHAPTERS, find
from helpers.checks.registry import chapter as exercises_of
from helpers.grading import METADATA
from helpers.grading.class_report import reporting
from helpers.grading.class_report.mistakes import explanation
from helpers.grading.class_report.page import _scale, tidy
from helpers.grading.course import GradingError, add_course_arguments
from helpers.grading.judging import JudgeObservations

FIRST, SECOND = "01_softmax", "02_single_head"
SEED = 7
QUOTED = "o'neil\"<b>&amp;"
SCRIPT = "<script>alert(1)</script>"


# nbgrader's own use of its database
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")


# A class that somebody graded


class ClassOf:
    """A course folder whose gradebook, graded notebooks and records are written directly."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def enrol(self, people: dict[str, tuple[str, str]]) -> ClassOf:
        """Make the course's folder and its gradebook."""
        root = self.root
        (root / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "attention"\n')
        with self.gradebook() as book:
            for student, (first, last) in people.items():
                email = f"{first}@example.org" if first else None
                book.add_student(student, first_name=first, last_name=last, email=email)
            for chapter in (FIRST, SECOND):
                book.add_assignment(chapter, duedate="2026-03-01 12:00:00")
                book.add_notebook(chapter, chapter)
                for exercise in exercises_of(chapter):
                    cell = f"{exercise.id}_check"
                    book.add_grade_cell(cell, chapter, chapter, max_score=exercise.points, cell_type="code")
                    book.add_solution_cell(exercise.id, chapter, chapter)
            book.add_grade_cell("explain", FIRST, FIRST, max_score=2, cell_type="markdown")
            book.add_solution_cell("explain", FIRST, FIRST)
        return self

    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.root / 'gradebook.db'}", "attention")

    def hand_in(self, student: str, chapter: str) -> None:
        folder = self.root / "submitted" / student / chapter
        folder.mkdir(parents=True)
        (folder / f"{chapter}.ipynb").write_text("{}")

    def grade(
        self,
        student: str,
        chapter: str,
        verdicts: dict[str, dict[str, Any]] | None = None,
        explained: dict[str, Any] | None = None,
        notes: tuple[str, ...] = (),
        **about: Any,
    ) -> None:
        """Full marks, but for what `verdicts` say by exercise; `about` goes into the submission's row."""
        self.hand_in(student, chapter)
        penalty = about.pop("late_submission_penalty", 0)
        reports = {}
        with self.gradebook() as book:
            (notebook,) = book.add_submission(chapter, student, **about).notebooks
            notebook.late_submission_penalty = penalty
            for grade in notebook.grades:
                exercise_id, points = grade.name.removesuffix("_check"), grade.cell.max_score
                if exercise_id == "explain":
                    scores = {"needs_manual_grade": True} | (explained or {})
                else:
                    report = verdict(**(verdicts or {}).get(exercise_id, {"state": "passed"}))
                    report["points"], report["earned"] = points, report["earned"] * points
                    reports[exercise_id] = report
                    scores = {"auto_score": report["earned"], "needs_manual_grade": False}
                for name, value in scores.items():
                    setattr(grade, name, value)
            book.db.commit()
        self.write_notebook(student, chapter, {"reports": reports, "notes": [{"cell": "", "text": n} for n in notes]})
        self.write_record(student, chapter)

    def set_aside(self, student: str, chapter: str, reason: str) -> None:
        """As nbgrader leaves it: with rows in the gradebook that have no scores and want a person."""
        self.hand_in(student, chapter)
        with self.gradebook() as book:
            book.add_submission(chapter, student)
        self.write_record(student, chapter, state="set aside", reason=reason)

    def write_notebook(self, student: str, chapter: str, metadata: dict[str, Any] | bytes) -> None:
        path = self.root / "autograded" / student / chapter / f"{chapter}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"cells": [], "metadata": {METADATA: metadata}, "nbformat": 4, "nbformat_minor": 5}
        path.write_bytes(metadata if isinstance(metadata, bytes) else json.dumps(whole).encode())

    def record(self, student: str, chapter: str) -> Path:
        return self.root / "grading" / "records" / chapter / f"{student}.json"

    def write_record(self, student: str, chapter: str, **changes: Any) -> None:
        path = self.record(student, chapter)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "student": student,
            "chapter": chapter,
            "state": "graded",
            "reason": "",
            "sandbox": True,
            "notes": [],
        }
        path.write_text(json.dumps(content | changes))

    def report(self, *arguments: str) -> int:
        parser = argparse.ArgumentParser()
        add_course_arguments(parser)
        reporting.add_arguments(parser)
        return reporting.main(parser.parse_args(["--course", str(self.root), *arguments]))

    def text(self, name: str = "report.html") -> str:
        return (self.root / "grading" / name).read_text(encoding="utf-8")

    def page(self, name: str = "report.html") -> BeautifulSoup:
        return parsed(self.text(name))

    def rows(self, name: str = "report.csv") -> list[dict[str, str]]:
        with open(self.root / "grading" / name, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def row(self, student: str, exercise: str) -> dict[str, str]:
        return next(row for row in self.rows() if (row["student"], row["exercise"]) == (student, exercise))


@functools.lru_cache(maxsize=2)
def parsed(page: str) -> BeautifulSoup:
    return BeautifulSoup(page, "html.parser")


def verdict(state: str = "failed", earned: float | None = None, misconceptions: tuple[str, ...] = (), **more: Any):
    """A verdict as judging writes it, with `earned` as a share of the points."""
    earned = float(state == "passed") if earned is None else earned
    return {"state": state, "earned": earned, "misconceptions": list(misconceptions), "notes": [], **more}


PEOPLE = {
    "lovelace": ("Augusta", "Lovelace"),
    "babbage": ("Charles", "Babbage"),
    "shannon": ("Claude", "Shannon"),
    "hopper": ("Grace", "Hopper"),
    "chatelet": ("Émilie", "Châtelet"),
    "noether": ("Emmy", "Noether"),
    QUOTED: (SCRIPT, "O'Neil"),
    "=2+3": ("", ""),
}


@pytest.fixture(autouse=True, scope="module")
def nbgrader_finds_its_tools() -> Iterator[None]:
    """A new gradebook starts alembic by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        yield


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> ClassOf:
    """Eight people, the first chapter in every state that there is."""
    course = ClassOf(tmp_path_factory.mktemp("course")).enrol(PEOPLE)
    no_maximum = {"softmax": {"state": "partly", "earned": 0.4, "misconceptions": ("no_max_subtracted",)}}
    course.grade("lovelace", FIRST, no_maximum, notes=("The test cell `softmax_check` was missing; it was put back.",))
    course.grade("babbage", FIRST, no_maximum | {"quiz_01_1": {"misconceptions": ("chose_A",)}}, {"auto_score": 0.0})
    course.grade("shannon", FIRST, no_maximum, {"manual_score": 1.5, "extra_credit": 1.0, "needs_manual_grade": False})
    not_judged = {"softmax": {"state": "not judged", "misconceptions": ("not_judged",), "notes": ["Not judged: gone."]}}
    course.grade("hopper", FIRST, not_judged | {"masked_softmax": {"state": "not written"}})
    loop = {"softmax": {"misconceptions": ("global_max", "endless_loop")}}
    course.grade(
        QUOTED,
        FIRST,
        loop,
        timestamp=datetime.datetime(2026, 3, 2, 15),
        extension=datetime.timedelta(days=1),
        late_submission_penalty=2.0,
    )
    course.set_aside(
        "chatelet", FIRST, "The notebook 01_softmax of chatelet cannot be read, since Émilie's file is empty."
    )
    course.hand_in("noether", FIRST)
    course.grade("=2+3", SECOND, notes=("@home, with=EQUALS",))
    assert course.report() == 0
    return course


def section(page: BeautifulSoup, name: str) -> Tag:
    return page.find("section", attrs={"aria-labelledby": name})


def texts(row: Tag) -> list[str]:
    return [cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])]


def table_rows(where: Tag) -> list[list[str]]:
    return [texts(row) for row in where.select("tbody tr")]


def exercise(page: BeautifulSoup, name: str) -> Tag:
    return page.find(id=f"e-{FIRST}-{name}")


def cell_of(page: BeautifulSoup, student: str, name: str) -> Tag:
    """The cell of the table of students by exercises."""
    heat = section(page, "students").find("table")
    place = [heading.get_text() for heading in heat.select("thead tr:last-child th")].index(name)
    row = next(row for row in heat.select("tbody tr") if row.bdi.get_text() == student)
    return row.find_all(["th", "td"])[place]


# The page says what is so


def test_a_mistake_that_three_made_counts_three(course: ClassOf) -> None:
    mistakes = {row[1].split(" Your")[0]: row for row in table_rows(exercise(course.page(), "softmax"))}
    assert mistakes["no max subtracted"][2] == "3"
    assert mistakes["global max"][2] == "1"
    first = section(course.page(), "mistakes").select_one("tbody tr")
    assert (first.b.get_text(), texts(first)[2]) == ("no max subtracted", "3 of 5")


def test_a_mistake_is_explained_as_learners_are_told(course: ClassOf) -> None:
    assert "does not subtract the maximum of each row" in exercise(course.page(), "softmax").get_text()
    assert explanation(FIRST, "quiz_01_1", "chose_A") in exercise(course.page(), "quiz_01_1").get_text()


def test_scores_are_counted_by_share_of_the_points(course: ClassOf) -> None:
    label = exercise(course.page(), "softmax").find("svg", class_="histogram")["aria-label"]
    assert label.endswith("0 %: 2, 1–25 %: 0, 26–50 %: 3, 51–75 %: 0, 76–99 %: 0, 100 %: 0")
    numbers = [text.get_text() for text in exercise(course.page(), "softmax").select("svg text:not(.axis)")]
    assert numbers == ["2", "0", "3", "0", "0", "0"]
    assert "Mean 0.96; all points: 0 of 5" in exercise(course.page(), "softmax").get_text()


@pytest.mark.parametrize(
    ("student", "name", "text", "kind"),
    [
        ("lovelace", "softmax", "1.6a", "s4"),
        ("lovelace", "masked_softmax", "3", "s10"),
        ("lovelace", "explain", "?", "unread"),
        ("babbage", "quiz_01_1", "0A", "s0"),
        ("babbage", "explain", "0", "s0"),
        ("shannon", "explain", "2.5", "s10"),
        ("hopper", "softmax", "!d", "unjudged"),
        ("hopper", "masked_softmax", "–", "unwritten"),
        (QUOTED, "softmax", "0c b", "s0"),
        ("chatelet", "softmax", "×", "aside"),
        ("noether", "softmax", "…", "waiting"),
        ("=2+3", "softmax", "", "nothing"),
    ],
)
def test_every_student_and_exercise_has_its_cell(
    course: ClassOf, student: str, name: str, text: str, kind: str
) -> None:
    cell = cell_of(course.page(), student, name)
    assert (cell.get_text(), cell["class"]) == (text, [kind])


def test_the_letters_in_a_cell_are_those_of_its_exercise(course: ClassOf) -> None:
    letters = {row[0]: row[1] for row in table_rows(exercise(course.page(), "softmax"))}
    assert letters["a"].startswith("no max subtracted")
    assert letters["c"].startswith("global max")
    assert cell_of(course.page(), QUOTED, "softmax")["title"].endswith("failed; global max, endless loop")


def test_points_are_those_of_the_gradebook_after_penalties(course: ClassOf) -> None:
    points = sum(found.points for found in exercises_of(FIRST))
    shown = {student: cell_of(course.page(), student, "Points").get_text() for student in PEOPLE}
    assert shown["shannon"] == f"{points - 2.4 + 2.5:g}"
    assert shown[QUOTED] == f"{points - 4 - 2:g}"
    assert shown["chatelet"] == shown["noether"] == ""


def test_answers_to_read_are_listed_by_cell(course: ClassOf) -> None:
    rows = table_rows(section(course.page(), "waits").find("table"))
    (waiting,) = [row for row in rows if row[0] == FIRST]
    assert waiting[1] == "explain"
    assert waiting[3] == "4"
    for student in ("lovelace", "babbage", "hopper", QUOTED):
        assert student in waiting[4]


def test_what_was_set_aside_says_why_and_waits_for_nobody(course: ClassOf) -> None:
    page = course.page()
    (row,) = [row for row in table_rows(section(page, "waits")) if row[0].startswith("chatelet")]
    assert row[1:] == [FIRST, "The notebook 01_softmax of chatelet cannot be read, since Émilie's file is empty."]


def test_what_is_not_graded_yet_is_named(course: ClassOf) -> None:
    (line,) = [line for line in section(course.page(), "waits").find_all("li") if "noether" in line.get_text()]
    assert FIRST in line.get_text()


def test_who_handed_in_nothing_is_named_by_chapter(course: ClassOf) -> None:
    lines = {line.code.get_text(): line.get_text() for line in section(course.page(), "late").find_all("li")}
    assert "=2+3" in lines[FIRST] and "lovelace" not in lines[FIRST]
    assert all(student in lines[SECOND] for student in PEOPLE if student != "=2+3")


def test_lateness_counts_extensions(course: ClassOf) -> None:
    (row,) = table_rows(section(course.page(), "late"))
    assert row == [f"{QUOTED} {SCRIPT} O'Neil", FIRST, "3 h 0 min", "2"]


def test_what_happened_is_told_by_submission(course: ClassOf) -> None:
    told = {row[0].split()[0]: row[2] for row in table_rows(section(course.page(), "happened"))}
    assert told["lovelace"] == "The test cell softmax_check was missing; it was put back."
    assert told["hopper"] == "softmax : Not judged: gone."
    assert "softmax : It ran into the time limit of the check." in told[QUOTED]
    assert "babbage" not in told


def test_chapters_are_summed_up(course: ClassOf) -> None:
    first, second = table_rows(section(course.page(), "chapters"))
    assert first[:8] == [FIRST, "7", "5", "1", "1", "1", "1", "4"]
    assert second[:8] == [SECOND, "1", "1", "0", "0", "0", "7", "0"]


def test_in_a_sandbox_nothing_is_said_about_it(course: ClassOf) -> None:
    assert "sandbox" not in course.text()


# What a class in disorder looks like


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> ClassOf:
    """Two people, of whom one handed in the first chapter."""
    course = ClassOf(tmp_path_factory.mktemp("two")).enrol({name: PEOPLE[name] for name in ("lovelace", "babbage")})
    course.grade("lovelace", FIRST, {"softmax": {"misconceptions": ("argmax",)}})
    return course


@pytest.fixture
def small(two: ClassOf, tmp_path: Path) -> ClassOf:
    """The same in a folder of its own, to bring into disorder."""
    shutil.copytree(two.root, tmp_path, dirs_exist_ok=True)
    return ClassOf(tmp_path)


def test_work_outside_a_sandbox_is_told_at_the_top(small: ClassOf) -> None:
    small.write_record("lovelace", FIRST, sandbox=False)
    assert small.report() == 0
    banner = small.page().select_one("header .alarm").get_text()
    assert "1 submission ran without a sandbox" in banner and "lovelace" in banner


def test_the_graded_notebook_also_says_whether_there_was_a_sandbox(small: ClassOf) -> None:
    small.record("lovelace", FIRST).unlink()
    assert small.report() == 0
    assert "is not known here" in small.page().select_one("header .remark").get_text()
    small.write_notebook("lovelace", FIRST, {"reports": {}, "sandbox": False})
    assert small.report() == 0
    assert "without a sandbox" in small.page().select_one("header .alarm").get_text()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b"[]", b'{"state": "lost"}', b"[" * 100_000])
def test_a_damaged_record_is_told_and_hides_nothing(small: ClassOf, content: bytes) -> None:
    small.record("lovelace", FIRST).write_bytes(content)
    assert small.report() == 1
    assert "The record of how it was graded cannot be read" in small.page().select_one("header .alarm").get_text()
    assert small.row("lovelace", "softmax")["misconceptions"] == "argmax"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"metadata": []}',
        b'{"metadata": {"attention_course": {"reports": {"softmax": 3}}}}',
        b'{"metadata": {"attention_course": {"reports": {"softmax": {"state": "brilliant"}}}}}',
    ],
)
def test_of_a_damaged_notebook_the_scores_are_shown(small: ClassOf, content: bytes) -> None:
    small.write_notebook("lovelace", FIRST, content)
    assert small.report() == 1
    assert "The graded notebook" in small.page().select_one("header .alarm").get_text()
    assert small.row("lovelace", "softmax") | {"notes": ""} == {
        "student": "lovelace",
        "chapter": FIRST,
        "exercise": "softmax",
        "state": "graded, without details",
        "score": "0",
        "max_score": "4",
        "manual": "",
        "misconceptions": "",
        "notes": "",
    }


@pytest.mark.parametrize("metadata", [{}, {"notes": "none", "reports": None, "sandbox": "yes", "submission": 3}, []])
def test_a_submission_without_verdicts_shows_its_scores_and_says_so(small: ClassOf, metadata: Any) -> None:
    small.write_notebook("lovelace", FIRST, metadata)
    assert small.report() == 0
    assert "1 graded submission has scores but no details" in small.page().select_one("header .remark").get_text()
    assert cell_of(small.page(), "lovelace", "softmax").get_text() == "0"


def test_another_version_since_is_told(small: ClassOf) -> None:
    small.write_record("lovelace", FIRST, submission="0" * 64)
    assert small.report() == 0
    assert "another version since" in section(small.page(), "waits").get_text()
    assert "Another version was handed in since" in small.row("lovelace", "softmax")["notes"]


def test_what_was_set_aside_and_then_graded_by_nbgrader_is_graded(small: ClassOf) -> None:
    small.write_record("lovelace", FIRST, state="set aside", reason="It was empty.")
    assert small.report() == 0
    assert small.row("lovelace", "softmax")["notes"] == "It was empty."
    submission = next(iter(reporting.open_course(small.root).submissions([FIRST])))
    small.write_notebook("lovelace", FIRST, {"reports": {}, "submission": submission.digest()})
    assert small.report() == 0
    assert small.row("lovelace", "softmax")["notes"] == ""


def test_chapters_may_be_named(small: ClassOf) -> None:
    small.grade("babbage", SECOND)
    assert small.report("2") == 0
    assert {row["chapter"] for row in small.rows()} == {SECOND}


def test_without_submissions_there_is_no_report(small: ClassOf) -> None:
    for folder in ("submitted", "autograded", "grading"):
        shutil.rmtree(small.root / folder)
    with small.gradebook() as book:
        book.remove_submission(FIRST, "lovelace")
    with pytest.raises(GradingError, match="Nobody has handed in anything"):
        small.report()


def test_without_a_gradebook_there_is_no_report_and_none_is_made(tmp_path: Path) -> None:
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\n")
    with pytest.raises(GradingError, match="no gradebook yet"):
        ClassOf(tmp_path).report()
    assert not (tmp_path / "gradebook.db").exists()


def test_a_database_that_cannot_be_read_is_no_report(small: ClassOf) -> None:
    (small.root / "gradebook.db").write_bytes(b"no database" * 1000)
    with pytest.raises(GradingError, match="cannot be read"):
        small.report()


def test_a_report_that_cannot_be_written_leaves_the_last_one(small: ClassOf, monkeypatch: pytest.MonkeyPatch) -> None:
    small.report()
    before = small.text()

    def fail(*arguments: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        small.report()
    assert small.text() == before
    assert {path.name for path in (small.root / "grading").iterdir()} == {"records", "report.html", "report.csv"}


# The table


def test_the_table_has_a_row_for_every_student_and_exercise(course: ClassOf) -> None:
    rows = course.rows()
    cells = {chapter: len(exercises_of(chapter)) for chapter in (FIRST, SECOND)}
    assert len(rows) == len(PEOPLE) * (cells[FIRST] + 1 + cells[SECOND])
    assert list(rows[0]) == list(reporting._COLUMNS)


def test_the_table_says_state_scores_and_what_a_person_did(course: ClassOf) -> None:
    assert course.row("lovelace", "softmax") == {
        "student": "lovelace",
        "chapter": FIRST,
        "exercise": "softmax",
        "state": "partly",
        "score": "1.6",
        "max_score": "4",
        "manual": "",
        "misconceptions": "no_max_subtracted",
        "notes": "The test cell `softmax_check` was missing; it was put back.",
    }
    assert course.row(QUOTED, "softmax")["misconceptions"] == "global_max;endless_loop"
    explained = {student: course.row(student, "explain") for student in ("lovelace", "shannon", "chatelet")}
    assert [(row["state"], row["score"], row["manual"]) for row in explained.values()] == [
        ("waits for a person", "", "needed"),
        ("graded by hand", "2.5", "done"),
        ("set aside", "", ""),
    ]


def test_no_text_in_the_table_is_a_formula(course: ClassOf) -> None:
    for row in course.rows():
        assert not any(value.startswith(("=", "+", "-", "@")) for value in row.values())
    assert course.row("'=2+3", "causal_mask")["notes"] == "'@home, with=EQUALS"


# Nobody is given away


def test_an_anonymous_report_names_nobody(course: ClassOf) -> None:
    assert course.report("--anonymous") == 0
    for name in ("report_anonymous.html", "report_anonymous.csv"):
        whole = course.text(name)
        read = course.page(name).get_text() if name.endswith("html") else whole
        for student, (first, last) in PEOPLE.items():
            for word in filter(None, (student, first, last)):
                assert word.lower() not in whole.lower(), (name, word)
                assert word.lower() not in read.lower(), (name, word)


def test_pseudonyms_stay_the_same_and_are_the_same_on_page_and_table(course: ClassOf) -> None:
    seen = []
    for chapters in ([], [], ["2"]):
        course.report("--anonymous", *chapters)
        rows = course.rows("report_anonymous.csv")
        shown = {
            row.bdi.get_text() for row in section(course.page("report_anonymous.html"), "students").select("tbody tr")
        }
        assert shown == {row["student"] for row in rows}
        seen.append(shown)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == len(PEOPLE)


def test_without_the_key_pseudonyms_say_nothing(small: ClassOf) -> None:
    small.report("--anonymous")
    key = small.root / "grading" / "pseudonyms.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = {row["student"] for row in small.rows("report_anonymous.csv")}
    key.unlink()
    small.report("--anonymous")
    assert before.isdisjoint(row["student"] for row in small.rows("report_anonymous.csv"))
    key.write_bytes(b"short")
    with pytest.raises(GradingError, match="damaged"):
        small.report("--anonymous")


# The page is well made


VOID = {"meta", "br", "rect", "path", "link", "img", "input", "hr"}


class Balanced(HTMLParser):
    """Fails on an end tag that closes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_is_balanced_html(course: ClassOf) -> None:
    parser = Balanced()
    parser.feed(course.text())
    parser.close()
    assert parser.open == []
    assert course.text().lstrip().startswith("<!DOCTYPE html>")


def test_names_are_text_and_nothing_else(course: ClassOf) -> None:
    page = course.page()
    assert page.find_all("script") == []
    assert {bold.get_text() for bold in page.find_all("b")}.isdisjoint({"", "&amp;"})
    row = next(row for row in section(page, "students").select("tbody tr") if "neil" in row.bdi.get_text())
    assert texts(row)[0] == f"{QUOTED} {SCRIPT} O'Neil"


def test_the_page_needs_nothing_from_elsewhere(course: ClassOf) -> None:
    page = course.page()
    assert page.find_all(["script", "link", "img", "iframe", "object"]) == []
    assert not any(element.get("src") or element.get("onclick") for element in page.find_all())
    assert "url(" not in course.text() and "@import" not in course.text()
    assert "default-src 'none'" in page.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    ids = [element["id"] for element in page.find_all(id=True)]
    assert len(ids) == len(set(ids))
    assert {link["href"].removeprefix("#") for link in page.find_all("a")} <= set(ids)


def test_the_page_can_be_read_by_ear(course: ClassOf) -> None:
    page = course.page()
    assert page.html["lang"] == "en"
    levels = [int(heading.name[1]) for heading in page.find_all(["h1", "h2", "h3", "h4"])]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for table in page.find_all("table"):
        assert table.caption.get_text(strip=True)
        assert all(heading.get("scope") for heading in table.find_all("th"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.find_all("svg"))
    scroller = page.select_one(".scroll")
    assert (scroller["tabindex"], scroller["role"]) == ("0", "region")


def test_every_step_of_the_scale_can_be_read_and_told_from_the_next() -> None:
    scale = _scale()
    assert all(theme.contrast(text, colour) >= 4.5 for colour, text in scale)
    darkness = [theme.contrast(colour, theme.PAPER) for colour, _ in scale]
    assert darkness == sorted(darkness, reverse=True)


def test_text_from_submissions_is_tidied() -> None:
    assert tidy("a\x00b\u202ec\n\td  e\ud800") == "abc d e"
    assert len(tidy("x" * 10_000)) < 500


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_mistake_is_explained(chapter: str) -> None:
    for found in exercises_of(chapter):
        for mistake in getattr(found, "misconceptions", ()):
            assert explanation(chapter, found.id, mistake.id)


@pytest.mark.slow
def test_in_a_browser_headings_stay_in_view_without_scripts(course: ClassOf, chromium: Any) -> None:
    context = chromium.new_context(viewport={"width": 700, "height": 380}, java_script_enabled=False)
    asked: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((course.root / "grading" / "report.html").as_uri())
    table = page.get_by_role("region", name="The table, which scrolls")
    table.scroll_into_view_if_needed()
    table.hover()
    cell = page.locator(".heat tbody tr").last.locator("td").last
    before = cell.bounding_box()
    page.mouse.wheel(300, 80)
    page.wait_for_timeout(300)
    assert cell.bounding_box()["x"] < before["x"]
    frame = table.bounding_box()
    student = page.locator(".heat tbody th").last.bounding_box()
    exercise = page.locator(".heat thead th.v").last.bounding_box()
    assert abs(student["x"] - frame["x"]) < 3
    assert frame["y"] <= exercise["y"] < frame["y"] + 60
    assert [url.split(":")[0] for url in asked] == ["file"]
    context.close()


# What grading writes down


def softmax(scores, axis=-1):
    powers = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def without_maximum(scores, axis=-1):
    powers = np.exp(scores)
    return powers / powers.sum(axis=axis, keepdims=True)


def observed(implementation: Any, **metadata: Any) -> NotebookNode:
    """A notebook with one test cell that has run, and what grading has kept so far."""
    marks = {"grade_id": "softmax_check", "grade": True, "locked": True, "solution": False, "task": False, "points": 4}
    data = {OBSERVATIONS: observe(find("softmax"), implementation, SEED)}
    cell = new_code_cell(
        'from helpers.checks import grade\n\ngrade("softmax")',
        metadata={"nbgrader": marks | {"schema_version": 3, "cell_type": "code"}},
        outputs=[new_output("display_data", data=json.loads(json.dumps(data)))],
    )
    return new_notebook(cells=[cell], metadata=metadata)


def judged(notebook: NotebookNode, resources: dict[str, Any] | None = None) -> NotebookNode:
    return JudgeObservations().preprocess(notebook, {METADATA: {"seed": SEED}} if resources is None else resources)[0]


def test_a_verdict_is_kept_beside_the_card() -> None:
    notebook = judged(observed(without_maximum))
    report = notebook.metadata[METADATA].reports.softmax
    assert report.state == "partly"
    assert (str(report.earned), report.points) == (notebook.cells[0].outputs[1].data["text/plain"], 4.0)
    assert report.misconceptions == ["no_max_subtracted"]
    assert report.notes == []
    json.dumps(notebook)


def test_what_happened_to_the_test_cell_is_kept_with_its_verdict() -> None:
    notes = [
        {"cell": "softmax_check", "text": "The test cell was missing; it was put back."},
        {"cell": "quiz_01_1", "text": "Something else."},
    ]
    report = judged(observed(softmax, **{METADATA: {"notes": notes, "seed": SEED}})).metadata[METADATA].reports.softmax
    assert (report.state, report.earned) == ("passed", 4.0)
    assert report.notes == [notes[0]["text"]]


def test_a_check_that_was_not_judged_says_why() -> None:
    notebook = observed(softmax)
    notebook.cells[0].outputs = [new_output("error", ename="KernelStopped", evalue="it ended", traceback=[])]
    report = judged(notebook).metadata[METADATA].reports.softmax
    assert (report.state, report.earned) == ("not judged", 0.0)
    assert report.notes == ["Not judged: this check ended with KernelStopped: it ended."]


def test_verdicts_that_a_submission_brings_along_are_replaced() -> None:
    forged = {"state": "passed", "earned": 400.0, "points": 4.0, "misconceptions": [], "notes": []}
    brought = {METADATA: {"reports": {"softmax": forged, "quiz_01_1": forged}, "seed": SEED}}
    reports = judged(observed(without_maximum, **brought)).metadata[METADATA].reports
    assert list(reports) == ["softmax"]
    assert reports.softmax.earned < 4


@pytest.mark.parametrize(
    "kept",
    [None, 3, "text", [1], {"notes": 3}, {"notes": [3, {"text": "x"}, {"cell": "softmax_check"}]}, {"reports": []}],
)
def test_whatever_a_submission_brings_along_it_is_judged(kept: Any) -> None:
    report = judged(observed(softmax, **{METADATA: kept})).metadata[METADATA].reports.softmax
    assert (report.state, report.notes) == ("passed", [])


def test_judging_again_writes_the_same_verdicts() -> None:
    once = judged(observed(without_maximum, **{METADATA: {"notes": [], "seed": SEED}}))
    before = json.loads(json.dumps(once))
    assert json.loads(json.dumps(judged(once, {}))) == before
