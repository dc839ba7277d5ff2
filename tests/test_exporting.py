"""Grades and feedback leave the gradebook in the platforms' own form, and nothing is made up."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import zipfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader.api import Gradebook

from helpers.grading.course import Course, GradingError, Submission, open_course
from helpers.grading.lms import exporting
from helpers.grading.lms.placing import Record, record_path, write_atomically
from helpers.grading.lms.platforms import Sender
from helpers.grading.release import scripts_on_path

SOFTMAX, HEAD = "01_softmax", "02_single_head"
NAMES = [
    "Lovelace, Ada",
    'O\'Neil, "Tip"',
    "Müller, Jürgen",
    "李, 明",
    '="=1+1"',
    "=HYPERLINK(1)",
    "two\nlines, x",
    "semi;colon, y",
    " leading space",
    "@at, +plus",
]
WORKSHEET = [
    "Identifier",
    "Full name",
    "Email address",
    "Status",
    "Grade",
    "Maximum Grade",
    "Grade can be changed",
    "Last modified (submission)",
    "Last modified (grade)",
    "Feedback comments",
]


@dataclass
class Class:
    """A course with a small gradebook: six points of checks and, in chapter 1, two points by hand."""

    folder: Path

    @property
    def course(self) -> Course:
        return open_course(self.folder)

    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}", "attention")

    def grade(
        self, student: str, score: float, chapter: str = SOFTMAX, by_hand: float | None = 2.0, **about: Any
    ) -> None:
        """What nbgrader writes when it has graded a submission, and a person what is to be graded by hand."""
        with self.gradebook() as gradebook:
            gradebook.update_or_create_student(student)
            submission = gradebook.add_submission(chapter, student, **about)
            notebook = submission.notebooks[0]
            for grade in notebook.grades:
                if grade.name == "softmax_check":
                    grade.auto_score, grade.needs_manual_grade = score, False
                else:
                    grade.manual_score, grade.needs_manual_grade = by_hand, by_hand is None
            gradebook.db.commit()
        path = Submission(self.course, student, chapter).autograded
        path.parent.mkdir(parents=True)
        nbformat.write(new_notebook(), path)

    def came_from(self, student: str, sender: Sender, chapter: str = SOFTMAX) -> None:
        record = Record("0", "submissions.zip", sender, None, None)
        write_atomically(record_path(Submission(self.course, student, chapter)), record.dump())

    def feedback(self, student: str, chapter: str = SOFTMAX) -> None:
        page = self.folder / "feedback" / student / chapter / f"{chapter}.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"for {student}")
        later = (self.folder / "gradebook.db").stat().st_mtime + 10
        os.utime(page, (later, later))

    def roster(self, rows: list[list[str]], name: str = "roster.csv") -> Path:
        path = self.folder.parent / name
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        return path

    def export(self, *words: object) -> int:
        parser = argparse.ArgumentParser()
        exporting.add_arguments(parser)
        args = parser.parse_args([str(word) for word in words])
        args.course, args.db = self.folder, None
        return exporting.main(args)

    def table(self, name: str) -> list[list[str]]:
        with open(self.folder / "grading" / "export" / name, encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def pages(self, name: str) -> dict[str, str]:
        with zipfile.ZipFile(self.folder / "grading" / "export" / name) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty") / "course"
    folder.mkdir()
    (folder / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "attention"\n')
    with scripts_on_path(), Class(folder).gradebook() as gradebook:
        for chapter in (SOFTMAX, HEAD):
            gradebook.add_assignment(chapter, duedate=datetime(2024, 3, 1, 12))
            gradebook.add_notebook(chapter, chapter)
            gradebook.add_grade_cell("softmax_check", chapter, chapter, max_score=6, cell_type="code")
        gradebook.add_grade_cell("explain", SOFTMAX, SOFTMAX, max_score=2, cell_type="markdown")
        gradebook.add_solution_cell("explain", SOFTMAX, SOFTMAX)
    return folder


@pytest.fixture
def group(empty: Path, tmp_path: Path) -> Class:
    return Class(shutil.copytree(empty, tmp_path / "course"))


def gradebook_export(people: list[tuple[str, str, str]], grade: str = "") -> list[list[str]]:
    """Canvas's gradebook, as it exports it, of people with name, number and login."""
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Notes"]
    header += [f"{SOFTMAX} (77)", "Other homework (78)", "Final Score"]
    manual = ["", "", "", "", "", "", "Manual Posting", "", ""]
    points = ["    Points Possible", "", "", "", "", "", "8.00", "10.00", "(read only)"]
    rows = [[name, number, "", login, "Tue & Thu", "note", grade, "3.00", "42.00"] for name, number, login in people]
    return [header, manual, points, *rows]


# Canvas


def test_scores_for_canvas_are_in_the_column_of_the_assignment(group: Class) -> None:
    group.grade("ada", 3.25)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada"), ("Nobody, Yet", "12", "nobody")]))
    assert group.export("--to", "canvas", "--roster", roster) == 0
    assert group.table("canvas.csv") == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", f"{SOFTMAX} (77)"],
        ["", "", "", "", "", "Manual Posting"],
        ["    Points Possible", "", "", "", "", "8.00"],
        ["Lovelace, Ada", "11", "", "ada", "Tue & Thu", "5.25"],
        ["Nobody, Yet", "12", "", "nobody", "Tue & Thu", ""],
    ]


def test_who_was_collected_without_a_roster_is_found_by_canvas_number(group: Class) -> None:
    group.grade("lovelaceada_11", 4)
    group.came_from("lovelaceada_11", Sender("canvas", "lovelaceada", "11", 501))
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "whatever"), ("Lovelace, Ada", "12", "other")]))
    assert group.export("--to", "canvas", "--roster", roster) == 0
    assert [row[-1] for row in group.table("canvas.csv")[3:]] == ["6", ""]


@pytest.mark.parametrize("score", [2.6666666666666665, 0.0, 6.0, 1 / 7])
def test_scores_are_plain_decimal_numbers(group: Class, score: float) -> None:
    group.grade("ada", score, by_hand=0)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")]))
    group.export("--to", "canvas", "--roster", roster)
    cell = group.table("canvas.csv")[-1][-1]
    assert float(cell) == pytest.approx(score, abs=1e-4) and "e" not in cell


def test_what_is_not_final_stays_as_it_is_in_canvas(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.grade("ada", 3, by_hand=None)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")], grade="7.00"))
    assert group.export("--to", "canvas", "--roster", roster) == 1
    assert group.table("canvas.csv")[-1][-1] == "7.00"
    assert "1 with points by hand still missing, without a score: ada." in capsys.readouterr().out
    assert group.export("--to", "canvas", "--roster", roster, "--allow-ungraded") == 0
    assert group.table("canvas.csv")[-1][-1] == "3"


@pytest.mark.parametrize("cell", ["EX", "N/A"])
def test_who_is_excused_in_canvas_stays_excused(group: Class, cell: str) -> None:
    group.grade("ada", 3)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")], grade=cell))
    assert group.export("--to", "canvas", "--roster", roster) == 1
    assert group.table("canvas.csv")[-1][-1] == cell


def test_columns_can_be_named(group: Class) -> None:
    group.grade("ada", 3)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")]))
    group.export("--to", "canvas", "--roster", roster, "--column", "01=Other homework")
    assert [row[-1] for row in group.table("canvas.csv")] == ["Other homework (78)", "", "10.00", "5"]
    group.export("--to", "canvas", "--roster", roster, "--column", "01=Quite new")
    assert [row[-1] for row in group.table("canvas.csv")] == ["Quite new", "", "8", "5"]


def test_a_chapter_without_a_column_is_told(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.grade("ada", 3)
    group.grade("ada", 3, HEAD)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")]))
    assert group.export("--to", "canvas", "--roster", roster) == 1
    assert f"no column with {HEAD} in the title" in capsys.readouterr().out
    with pytest.raises(GradingError, match="no column with"):
        group.export("--to", "canvas", "--roster", roster, "--chapter", "02")


def test_other_points_in_canvas_are_told(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.grade("ada", 3)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")]))
    assert group.export("--to", "canvas", "--roster", roster, "--column", "01=Other homework") == 1
    assert "has 10.00 points in Canvas, 01_softmax has 8" in capsys.readouterr().out


def test_who_is_not_in_the_roster_is_told(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.grade("ada", 3)
    group.grade("bob", 3)
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")]))
    assert group.export("--to", "canvas", "--roster", roster) == 1
    assert "bob is not in roster.csv" in capsys.readouterr().out


def test_two_students_who_are_one_person_in_the_roster_are_told(group: Class) -> None:
    group.grade("ada", 3)
    group.grade("lovelaceada_11", 1)
    group.came_from("lovelaceada_11", Sender("canvas", "lovelaceada", "11", 501))
    roster = group.roster(gradebook_export([("Lovelace, Ada", "11", "ada")]))
    assert group.export("--to", "canvas", "--roster", roster) == 1
    assert group.table("canvas.csv")[-1][-1] == "5"


# Moodle


def worksheet(people: list[tuple[str, str]], **cells: str) -> list[list[str]]:
    rows = []
    for name, number in people:
        row = dict.fromkeys(WORKSHEET, "") | {"Identifier": f"Participant {number}", "Full name": name}
        row |= {"Email address": f"{number}@example.org", "Status": "Submitted for grading", "Maximum Grade": "8.00"}
        row |= {"Grade can be changed": "Yes", "Last modified (grade)": "-"} | cells
        rows.append(list(row.values()))
    return [WORKSHEET, *rows]


def test_scores_for_moodle_fill_the_worksheet(group: Class) -> None:
    group.grade("Ada_Lovelace", 3.5)
    group.came_from(
        "Ada_Lovelace", Sender("moodle", "Ada Lovelace", "901", original="Ada Lovelace_901_assignsubmission_file")
    )
    group.grade("902@example.org", 1)
    table = worksheet([("Ada Lovelace", "901"), ("Jürgen Müller", "902"), ("Nobody", "903")])
    assert group.export("--to", "moodle", "--chapter", "01", "--roster", group.roster(table)) == 0
    written = group.table(f"moodle_{SOFTMAX}.csv")
    assert [row[4] for row in written] == ["Grade", "5.5", "3", ""]
    assert [row[:4] + row[5:] for row in written] == [row[:4] + row[5:] for row in table]


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ({"Maximum Grade": "4,00"}, "maximum grade there is 4"),
        ({"Grade can be changed": "No"}, "locked"),
        ({"Maximum Grade": "100.00"}, "maximum grade in Moodle is 100"),
    ],
)
def test_what_moodle_would_pass_over_or_count_wrongly_is_told(
    group: Class, capsys: pytest.CaptureFixture[str], cells: dict[str, str], sentence: str
) -> None:
    group.grade("901@example.org", 4)
    roster = group.roster(worksheet([("Ada", "901")], **cells))
    assert group.export("--to", "moodle", "--chapter", "01", "--roster", roster) == 1
    assert sentence in capsys.readouterr().out


def test_a_worksheet_in_another_language_is_refused(group: Class) -> None:
    group.grade("ada", 4)
    roster = group.roster(
        [["ID", "Vollständiger Name", "student_id", "Bewertung"], ["Teilnehmer/in901", "Ada", "ada", ""]]
    )
    with pytest.raises(GradingError, match="language is English"):
        group.export("--to", "moodle", "--chapter", "01", "--roster", roster)


# Plain


def test_plain_grades_say_everything(group: Class) -> None:
    group.grade("ada", 3, timestamp=datetime(2024, 3, 1, 13))
    group.grade("bob", 3, by_hand=None)
    with group.gradebook() as gradebook:
        gradebook.update_or_create_student("cem", first_name='C"em', last_name="Öz, Jr")
        gradebook.find_submission(SOFTMAX, "ada").notebooks[0].late_submission_penalty = 1.5
        gradebook.db.commit()
    assert group.export("--to", "plain") == 1
    header, *rows = group.table("grades.csv")
    lines = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert (lines["ada"]["score"], lines["ada"]["late_penalty"], lines["ada"]["late_seconds"]) == ("3.5", "1.5", "3600")
    assert (lines["bob"]["score"], lines["bob"]["needs_manual_grading"]) == ("", "yes")
    assert (lines["cem"]["name"], lines["cem"]["score"], lines["cem"]["state"]) == (
        'C"em Öz, Jr',
        "",
        "nothing handed in",
    )
    assert {line["max_score"] for line in lines.values()} == {"8"}


def test_a_penalty_above_the_score_leaves_zero(group: Class) -> None:
    group.grade("ada", 1, by_hand=0)
    with group.gradebook() as gradebook:
        gradebook.find_submission(SOFTMAX, "ada").notebooks[0].late_submission_penalty = 5
        gradebook.db.commit()
    group.export("--to", "plain")
    assert group.table("grades.csv")[1][4] == "0"


def test_what_was_handed_in_but_not_graded_has_no_score(group: Class) -> None:
    group.grade("ada", 3)
    path = group.folder / "submitted" / "bob" / SOFTMAX / f"{SOFTMAX}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with group.gradebook() as gradebook:
        gradebook.add_student("bob")
        gradebook.add_submission(SOFTMAX, "bob")
    assert group.export("--to", "plain") == 1
    assert [row[:5:2] for row in group.table("grades.csv")[1:]] == [["ada", SOFTMAX, "5"], ["bob", SOFTMAX, ""]]


# Names


@pytest.mark.parametrize("to", ["canvas", "moodle"])
@pytest.mark.parametrize("bom", [False, True])
def test_names_come_back_as_they_were(group: Class, to: str, bom: bool) -> None:
    people = [(name, str(100 + place), f"login{place}") for place, name in enumerate(NAMES)]
    table = gradebook_export(people) if to == "canvas" else worksheet([(name, number) for name, number, _ in people])
    for _, number, login in people:
        student = login if to == "canvas" else f"{number}@example.org"
        group.grade(student, int(number) % 7)
    roster = group.roster(table)
    if bom:
        roster.write_bytes(b"\xef\xbb\xbf" + roster.read_bytes())
    assert group.export("--to", to, "--chapter", "01", "--roster", roster) == 0
    written = group.table("canvas.csv" if to == "canvas" else f"moodle_{SOFTMAX}.csv")
    column = 0 if to == "canvas" else 1
    assert [row[column] for row in written] == [row[column] for row in table]
    grades = [float(row[-1 if to == "canvas" else 4]) for row in written[-len(NAMES) :]]
    assert grades == [int(number) % 7 + 2 for _, number, _ in people]


def test_names_that_a_spreadsheet_would_calculate_are_told(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.grade("ada", 3)
    with group.gradebook() as gradebook:
        gradebook.update_or_create_student("ada", first_name="=1+1")
    group.export("--to", "plain")
    assert group.table("grades.csv")[1][1] == "=1+1"
    assert "import them as text" in capsys.readouterr().out


# Feedback


def test_feedback_for_canvas_bears_the_names_of_the_download(group: Class) -> None:
    for student, original in {
        "ada": "lovelaceada_LATE_5011_501_01_softmax-1.ipynb",
        "jm": "müllerjürgen_13_502_work.zip",
        "x": "anon_Zx81q_503_nb.ipynb",
    }.items():
        group.grade(student, 3)
        sender, _ = exporting.canvas_file(original)
        group.came_from(student, sender)
    for student in ("ada", "jm", "x"):
        group.feedback(student)
    assert group.export("--to", "canvas", "--feedback") == 0
    assert group.pages(f"canvas_feedback_{SOFTMAX}.zip") == {
        "lovelaceada_LATE_5011_501_01_softmax.html": "for ada",
        "müllerjürgen_13_502_01_softmax.html": "for jm",
        "anon_Zx81q_503_01_softmax.html": "for x",
    }


@pytest.mark.parametrize(
    ("original", "page"),
    [
        ("Ada Lovelace_901_assignsubmission_file_", "Ada Lovelace_901_assignsubmission_file_/01_softmax.html"),
        ("Ada Lovelace_901_assignsubmission_file", "Ada Lovelace_901_assignsubmission_file/01_softmax.html"),
        ("Ada Lovelace_901_assignsubmission_file_nb.ipynb", "Ada Lovelace_901_assignsubmission_file_01_softmax.html"),
    ],
)
def test_feedback_for_moodle_lies_where_the_submission_lay(group: Class, original: str, page: str) -> None:
    group.grade("ada", 3)
    sender, _ = exporting.moodle_path((original,))
    group.came_from("ada", sender)
    group.feedback("ada")
    assert group.export("--to", "moodle", "--feedback") == 0
    assert group.pages(f"moodle_feedback_{SOFTMAX}.zip") == {page: "for ada"}


def test_the_worksheet_tells_moodles_number_of_who_handed_in_elsewhere(group: Class) -> None:
    group.grade("901@example.org", 3)
    group.feedback("901@example.org")
    roster = group.roster(worksheet([("Ada Lovelace", "901")]))
    assert group.export("--to", "moodle", "--feedback", "--roster", roster, "--chapter", "01") == 0
    [name] = group.pages(f"moodle_feedback_{SOFTMAX}.zip")
    assert name.split("_")[1:] == ["901", "assignsubmission", "file", "/01", "softmax.html"]


def test_feedback_that_cannot_be_sent_is_told(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.grade("ada", 3)
    group.feedback("ada")
    assert group.export("--to", "canvas", "--feedback") == 1
    assert "not collected from there: ada" in capsys.readouterr().out


def test_nobody_gets_feedback_before_all_points_are_given(group: Class) -> None:
    group.grade("ada", 3, by_hand=None)
    group.feedback("ada")
    assert group.export("--to", "plain", "--feedback") == 1
    assert not (group.folder / "grading" / "export" / f"plain_feedback_{SOFTMAX}.zip").exists()


def test_feedback_that_cannot_be_made_is_told_and_stops_nobody(
    group: Class, capsys: pytest.CaptureFixture[str]
) -> None:
    group.grade("ada", 3)
    group.grade("bob", 3)
    Submission(group.course, "ada", SOFTMAX).autograded.write_text("{")
    group.feedback("bob")
    assert group.export("--to", "plain", "--feedback") == 1
    assert group.pages(f"plain_feedback_{SOFTMAX}.zip") == {f"bob/{SOFTMAX}.html": "for bob"}
    assert "There is no feedback for ada" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "canvas"], "needs its own list of the class"),
        (["--to", "moodle", "--roster", "x.csv"], "belongs to one assignment"),
        (["--to", "plain", "--chapter", "99"], "There is no chapter"),
        (["--to", "plain"], "Nothing was handed in"),
        (["--to", "canvas", "--feedback", "--column", "01"], "CHAPTER=TITLE"),
    ],
)
def test_mistakes_on_the_command_line_are_answered(group: Class, words: list[str], sentence: str) -> None:
    with pytest.raises(GradingError, match=sentence):
        group.export(*words)
    assert not (group.folder / "grading").exists()


def test_another_list_than_canvas_own_is_refused(group: Class) -> None:
    group.grade("ada", 3)
    roster = group.roster([["student_id", "name"], ["ada", "Ada"]])
    with pytest.raises(GradingError, match="no export of Canvas's gradebook"):
        group.export("--to", "canvas", "--roster", roster)


# With nbgrader itself


@pytest.mark.slow
def test_feedback_is_made_when_missing_or_outdated(group: Class) -> None:
    group.grade("ada", 3)
    cell = new_code_cell(
        "softmax = 1",
        metadata={
            "nbgrader": {
                "grade_id": "softmax_check",
                "grade": True,
                "solution": False,
                "locked": True,
                "points": 6,
                "schema_version": 3,
                "task": False,
                "cell_type": "code",
            }
        },
    )
    graded = Submission(group.course, "ada", SOFTMAX).autograded
    nbformat.write(new_notebook(cells=[cell]), graded)
    assert group.export("--to", "plain", "--feedback") == 0
    page = group.pages(f"plain_feedback_{SOFTMAX}.zip")[f"ada/{SOFTMAX}.html"]
    assert "(Score: 5.0 / 8.0)" in page
    with group.gradebook() as gradebook:
        gradebook.find_grade("explain", SOFTMAX, SOFTMAX, "ada").manual_score = 1
        gradebook.db.commit()
    group.export("--to", "plain", "--feedback")
    assert "(Score: 4.0 / 8.0)" in group.pages(f"plain_feedback_{SOFTMAX}.zip")[f"ada/{SOFTMAX}.html"]
