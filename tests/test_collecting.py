"""What students handed in reaches submitted/, and nothing else does."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helpers.grading.course import Course, GradingError, Submission, open_course
from helpers.grading.lms import collecting, downloads
from helpers.grading.lms.placing import load_record, record_path
from helpers.grading.lms.platforms import Sender, canvas_file, moodle_path, read_roster, safe_id

SOFTMAX, HEAD = "01_softmax", "02_single_head"
MORNING, NOON, EVENING = (2024, 3, 1, 8, 0, 0), (2024, 3, 1, 12, 0, 0), (2024, 3, 1, 20, 0, 0)
ADA = "lovelaceada_11_501_"
ADA_MOODLE = "Ada Lovelace_901_assignsubmission_file_"
GRADEBOOK = '''\
Student,ID,SIS User ID,SIS Login ID,Section,01_softmax (77)
    Points Possible,,,,,10
"Lovelace, Ada",11,s-11,ada,A,
"O'Neil, ""Tip""",12,s-12,tip,A,
"Müller, Jürgen",13,s-13,jürgen,A,
'''
WORKSHEET = """\
Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,\
Last modified (submission),Last modified (grade)
Participant 901,Ada Lovelace,ada@example.org,Submitted for grading,,10,Yes,"Friday, 1 March 2024, 11:30 AM",-
Participant 902,Jürgen Müller,jm@example.org,Submitted for grading,,10,Yes,"Friday, 1 March 2024, 9:05 PM",-
Participant 903,Tip O'Neil,tip@example.org,No submission,,10,Yes,-,-
"""


def notebook(*ids: str, text: str = "") -> bytes:
    """A notebook whose cells bear these marks."""
    cells = [
        {
            "cell_type": "code",
            "metadata": {"nbgrader": {"grade_id": name, "solution": True}},
            "source": "pass",
            "outputs": [],
            "execution_count": None,
        }
        for name in ids
    ]
    cells.append({"cell_type": "markdown", "metadata": {}, "source": text})
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}).encode()


FIRST = notebook("softmax", "softmax_check", text="first")
SECOND = notebook("softmax", "softmax_check", text="second")
OTHER = notebook("attention", "attention_check", "causal_mask")


@dataclass
class Class:
    """A course folder to collect into, and what the last run said."""

    folder: Path
    rows: list[collecting.Row]
    code: int = 0

    @property
    def course(self) -> Course:
        return open_course(self.folder)

    def zip(
        self, files: dict[str, bytes] | Iterable[tuple[str, bytes]], name: str = "submissions.zip", time=NOON
    ) -> Path:
        path = self.folder.parent / name
        path.write_bytes(zipped(files, time))
        return path

    def collect(self, *words: object) -> list[collecting.Row]:
        parser = argparse.ArgumentParser()
        collecting.add_arguments(parser)
        args = parser.parse_args([str(word) for word in words])
        args.course, args.db = self.folder, None
        seen: list[collecting.Row] = []
        table, collecting.table = collecting.table, lambda rows: seen.extend(rows) or table(rows)
        try:
            self.code = collecting.main(args)
        finally:
            collecting.table = table
        self.rows = seen
        return seen

    def row(self, end: str) -> collecting.Row:
        [row] = [row for row in self.rows if row.file.endswith(end)]
        return row

    def action(self, end: str) -> str:
        return self.row(end).action

    def submitted(self) -> dict[str, bytes]:
        files = (self.folder / "submitted").rglob("*")
        return {str(path.relative_to(self.folder / "submitted")): path.read_bytes() for path in files if path.is_file()}

    def text(self, student: str, chapter: str = SOFTMAX) -> str:
        content = json.loads((self.folder / "submitted" / student / chapter / f"{chapter}.ipynb").read_bytes())
        return content["cells"][-1]["source"]

    def stamp(self, student: str) -> datetime | None:
        place = self.folder / "submitted" / student / SOFTMAX
        return self.course.directory.get_existing_timestamp(str(place))

    def roster(self, text: str = GRADEBOOK, name: str = "gradebook.csv") -> Path:
        path = self.folder.parent / name
        path.write_text(text, encoding="utf-8")
        return path


def zipped(files: dict[str, bytes] | Iterable[tuple[str, bytes]], time: tuple[int, ...] = NOON) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items() if isinstance(files, dict) else files:
            info = zipfile.ZipInfo(name, time)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


@pytest.fixture
def group(tmp_path: Path) -> Class:
    folder = tmp_path / "course"
    folder.mkdir()
    (folder / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "attention"\n')
    return Class(folder, [])


def write(folder: Path, files: dict[str, bytes], time: tuple[int, ...] = NOON) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        seconds = datetime(*time, tzinfo=UTC).timestamp()
        os.utime(path, (seconds, seconds))
    return folder


# Names


@pytest.mark.parametrize(
    ("name", "sender", "file"),
    [
        ("lovelaceada_11_501_nb.ipynb", ("lovelaceada", "11", 501, False), "nb.ipynb"),
        ("lovelaceada_LATE_11_501_nb-1.ipynb", ("lovelaceada", "11", 501, True), "nb-1.ipynb"),
        ("müllerjürgen_13_9_01_2_x.ipynb", ("müllerjürgen", "13", 9, False), "01_2_x.ipynb"),
        ("de_la_cruz_13_9_01_softmax.ipynb", ("de_la_cruz", "13", 9, False), "01_softmax.ipynb"),
        ("anon_Zx81q_9_nb.ipynb", ("", "anon_Zx81q", 9, False), "nb.ipynb"),
        ("LATE_anon_Zx81q_9_nb.ipynb", ("", "anon_Zx81q", 9, True), "nb.ipynb"),
    ],
)
def test_canvas_names_say_who_and_which_file(name: str, sender: tuple, file: str) -> None:
    assert canvas_file(name) == (Sender("canvas", *sender, original=name), file)


@pytest.mark.parametrize("name", ["nb.ipynb", "01_softmax.ipynb", "lovelaceada_11_text.html", "a_1_b.ipynb"])
def test_other_names_are_not_taken_for_canvas(name: str) -> None:
    assert canvas_file(name) is None


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ("Ada Lovelace_901_assignsubmission_file_/nb.ipynb", "nb.ipynb"),
        ("Ada Lovelace_901_assignsubmission_file/nb.ipynb", "nb.ipynb"),
        ("Ada Lovelace_901_assignsubmission_file_/deep/nb.ipynb", "deep/nb.ipynb"),
        ("Ada Lovelace_901_assignsubmission_file_01_softmax.ipynb", "01_softmax.ipynb"),
        ("all/Ada Lovelace_901_assignsubmission_file_/nb.ipynb", "nb.ipynb"),
    ],
)
def test_moodle_paths_say_who_and_which_file(path: str, rest: str) -> None:
    sender, inner = moodle_path(tuple(path.split("/")))
    assert (sender.name, sender.number, "/".join(inner)) == ("Ada Lovelace", "901", rest)


@pytest.mark.parametrize(
    "name",
    ['=Smith, "Jr"', "../../etc", "a/b\\c", ".hidden", "-rf", "x" * 300, "line\nbreak", "\u202eevil", "CON ", "a*[b]?"],
)
def test_ids_are_safe_folder_names(name: str) -> None:
    identity = safe_id(name)
    assert identity and safe_id(identity) == identity and len(identity) <= 100
    assert identity[0].isalnum() and not set(identity) & set('/\\*?[]{}" \n\u202e,')


@pytest.mark.parametrize("name", ["ada", "ada@example.org", "s-11", "jürgen", "李明", "a.b+c"])
def test_usual_ids_stay_as_they_are(name: str) -> None:
    assert safe_id(name) == name


# Platforms


def test_a_canvas_download_with_the_gradebook_as_roster(group: Class) -> None:
    download = group.zip(
        {
            f"{ADA}01_softmax.ipynb": FIRST,
            "oneiltip_LATE_12_502_01_softmax-1.ipynb": FIRST,
            "müllerjürgen_13_503_Copy of 01_softmax (2).ipynb": FIRST,
        }
    )
    group.collect(download, "--chapter", "01", "--roster", group.roster())
    assert set(group.submitted()) == {f"{name}/{SOFTMAX}/{SOFTMAX}.ipynb" for name in ("ada", "tip", "jürgen")}
    assert {row.action for row in group.rows} == {"collected"} and group.code == 0
    assert "late, says Canvas" in group.row("softmax-1.ipynb").reason


def test_a_canvas_download_without_a_roster(group: Class) -> None:
    group.collect(group.zip({f"{ADA}nb.ipynb": FIRST}))
    assert set(group.submitted()) == {f"lovelaceada_11/{SOFTMAX}/{SOFTMAX}.ipynb"}


def test_entry_times_of_a_download_are_no_hand_in_times(group: Class) -> None:
    group.collect(group.zip({f"{ADA}nb.ipynb": FIRST}))
    assert group.stamp("lovelaceada_11") is None
    with pytest.raises(GradingError, match="time of the download"):
        group.collect(group.zip({f"{ADA}nb.ipynb": FIRST}), "--file-times")


@pytest.mark.parametrize("path", [f"{ADA_MOODLE}/{{}}", f"{ADA_MOODLE[:-1]}/{{}}", f"{ADA_MOODLE}{{}}"])
def test_a_moodle_download_gets_its_times_from_the_worksheet(group: Class, path: str) -> None:
    download = group.zip({path.format("01_softmax.ipynb"): FIRST})
    group.collect(download, "--roster", group.roster(WORKSHEET), "--timezone", "Europe/Berlin")
    assert group.text("ada@example.org") == "first"
    assert group.stamp("ada@example.org") == datetime(2024, 3, 1, 10, 30)


def test_text_typed_into_moodle_is_not_a_submission(group: Class) -> None:
    text = "Ada Lovelace_901_assignsubmission_onlinetext_/onlinetext.html"
    group.collect(group.zip({text: b"hello", f"{ADA_MOODLE}/01_softmax.ipynb": FIRST}))
    assert group.action("onlinetext.html") == "ignored"


def test_the_worksheet_of_another_assignment_still_knows_names_but_no_times(group: Class) -> None:
    download = group.zip({"Ada Lovelace_555_assignsubmission_file_/01_softmax.ipynb": FIRST})
    group.collect(download, "--roster", group.roster(WORKSHEET))
    assert group.stamp("ada@example.org") is None and group.text("ada@example.org") == "first"


def test_folders_of_students(group: Class) -> None:
    files = {
        f"ada/{SOFTMAX}.ipynb": FIRST,
        f"bob/{SOFTMAX}/nb (1).ipynb": FIRST,
        f"bob/{SOFTMAX}/timestamp.txt": b"2024-03-01 09:00:00 UTC",
        "cem/NB.IPYNB": FIRST,
    }
    group.collect(write(group.folder.parent / "handed_in", files))
    assert {row.student for row in group.rows if row.action == "collected"} == {"ada", "bob", "cem"}
    assert (group.stamp("ada"), group.stamp("bob")) == (None, datetime(2024, 3, 1, 9))


def test_file_times_are_hand_in_times_when_a_person_says_so(group: Class) -> None:
    group.collect(write(group.folder.parent / "handed_in", {f"ada/{SOFTMAX}.ipynb": FIRST}), "--file-times")
    assert group.stamp("ada") == datetime(*NOON)


def test_a_zip_of_a_folder_of_students(group: Class) -> None:
    group.collect(group.zip({f"class/ada/{SOFTMAX}.ipynb": FIRST, f"class/bob/{SOFTMAX}.ipynb": SECOND}))
    assert (group.text("ada"), group.text("bob")) == ("first", "second")


def test_one_notebook_by_hand(group: Class) -> None:
    path = write(group.folder.parent, {"nb (3).ipynb": FIRST}) / "nb (3).ipynb"
    assert group.collect(path)[0].action == "set aside"
    group.collect(path, "--student", "ada", "--chapter", "1")
    assert group.text("ada") == "first"


def test_a_missing_exchange_is_named(group: Class) -> None:
    with open(group.folder / "nbgrader_config.py", "a") as file:
        file.write(f'c.Exchange.root = "{group.folder.parent / "nowhere"}"\n')
    with pytest.raises(GradingError, match=r"exchange \(.*nowhere.*\) is not there"):
        group.collect("--from", "exchange")


def test_the_exchange(group: Class) -> None:
    root = group.folder.parent / "exchange"
    inbound = root / "attention" / "inbound"
    with open(group.folder / "nbgrader_config.py", "a") as file:
        file.write(f'c.Exchange.root = "{root}"\nc.ExchangeCollect.check_owner = False\n')
    for hour, content in ((9, FIRST), (10, SECOND)):
        handed_in = f"ada+{SOFTMAX}+2024-03-01 {hour:02}:00:00.000000 UTC"
        stamp = f"2024-03-01 {hour:02}:00:00.000000 UTC".encode()
        files = {f"{SOFTMAX}.ipynb": content, "timestamp.txt": stamp, "submission_secret.txt": stamp, "numpy.py": b""}
        write(inbound / handed_in, files)
    root.chmod(0o777)
    group.collect("--from", "exchange", "--chapter", "01")
    assert (group.text("ada"), group.stamp("ada")) == ("second", datetime(2024, 3, 1, 10))
    assert not any("numpy" in name for name in group.submitted())
    assert sorted(row.file.rpartition("/")[2] for row in group.rows) == [f"{SOFTMAX}.ipynb", "numpy.py"]


def test_nbgrader_can_send_feedback_back_through_the_exchange(group: Class) -> None:
    root = group.folder.parent / "exchange"
    with open(group.folder / "nbgrader_config.py", "a") as file:
        file.write(f'c.Exchange.root = "{root}"\nc.ExchangeCollect.check_owner = False\n')
    handed_in = root / "attention" / "inbound" / f"ada+{SOFTMAX}+2024-03-01 09:00:00.000000 UTC"
    stamp = b"2024-03-01 09:00:00.000000 UTC"
    write(handed_in, {f"{SOFTMAX}.ipynb": FIRST, "timestamp.txt": stamp, "submission_secret.txt": b"of this one"})
    root.chmod(0o777)
    group.collect("--from", "exchange", "--chapter", "01")
    assert group.submitted()[f"ada/{SOFTMAX}/submission_secret.txt"] == b"of this one"


# Which chapter


@pytest.mark.parametrize(
    "name",
    [
        "01_softmax (1).ipynb",
        "01_softmax-2.ipynb",
        "Copy of 01_softmax.ipynb",
        "01_softmax.ipynb.txt",
        "01_softmax.json",
        "01_softmax.ipynb.json",
        "01_SOFTMAX.IPYNB",
        "01-softmax final.ipynb",
        "nb.txt",
        "01_softmax.ipynb (1)",
        "whatever.ipynb",
    ],
)
def test_whatever_the_browser_made_of_the_name(group: Class, name: str) -> None:
    group.collect(write(group.folder.parent / "class", {f"ada/{name}": FIRST}))
    assert group.submitted() == {f"ada/{SOFTMAX}/{SOFTMAX}.ipynb": FIRST}


@pytest.mark.parametrize(
    ("wanted", "named", "marked", "chapter"),
    [
        ("", SOFTMAX, "", SOFTMAX),
        ("", "", SOFTMAX, SOFTMAX),
        ("", SOFTMAX, HEAD, None),
        ("", "", "", None),
        (SOFTMAX, HEAD, SOFTMAX, SOFTMAX),
        (SOFTMAX, "", "", SOFTMAX),
        (SOFTMAX, HEAD, "", None),
        (SOFTMAX, SOFTMAX, HEAD, None),
    ],
)
def test_contradictions_about_the_chapter_are_for_a_person(wanted, named, marked, chapter) -> None:
    if chapter:
        assert collecting.which_chapter(wanted, named, marked)[0] == chapter
    else:
        with pytest.raises(collecting._WrongChapter):
            collecting.which_chapter(wanted, named, marked)


def test_a_wrong_chapter_is_set_aside_with_the_reason(group: Class) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": OTHER}), "--chapter", "01")
    assert group.submitted() == {} and group.code == 1
    assert f"its cells belong to {HEAD}" in group.row(".ipynb").reason


def test_a_cell_copied_from_another_chapter_changes_nothing(group: Class) -> None:
    mixed = notebook("attention", "attention_check", "causal_mask", "causal_mask_check", "softmax")
    group.collect(write(group.folder.parent / "class", {"ada/nb.ipynb": mixed}))
    assert group.row("nb.ipynb").chapter == HEAD


def test_who_hands_in_the_whole_course_makes_no_work(group: Class) -> None:
    files = {"01_softmax/01_softmax.ipynb": FIRST, "02_single_head/02_single_head.ipynb": OTHER, "picture.png": b"x"}
    group.collect(group.zip({f"{ADA}work.zip": zipped(files)}), "--chapter", "01")
    assert (group.code, group.text("lovelaceada_11")) == (0, "first")
    assert group.action("02_single_head.ipynb") == group.action("picture.png") == "ignored"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00\xd8", b"\x89PNG", b'{"a": 1}'])
def test_an_unreadable_notebook_does_not_vanish(group: Class, content: bytes) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": content}))
    assert list(group.submitted().values()) == [content]
    assert "cannot be read" in group.row(".ipynb").reason and group.code == 1


def test_no_notebook_at_all_is_for_a_person(group: Class) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.pdf": b"%PDF", "oneiltip_12_502_01_softmax.ipynb": FIRST}))
    [row] = [row for row in group.rows if row.needs_person]
    assert (row.student, row.reason, group.code) == ("lovelaceada_11", "no notebook was handed in", 1)
    assert len({row.file for row in group.rows}) == len(group.rows) == 3


def test_who_has_handed_in_nothing_is_told(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    group.collect(group.zip({f"{ADA}nb.ipynb": FIRST}), "--roster", group.roster(), "--chapter", "01")
    assert "2 of 3 in gradebook.csv have no 01_softmax yet: tip, jürgen." in capsys.readouterr().out


# Who


def test_two_students_of_one_name_are_never_one(group: Class) -> None:
    files = {f"Ada Lovelace_{number}_assignsubmission_file_/01_softmax.ipynb": FIRST for number in (901, 999)}
    group.collect(group.zip(files))
    assert group.submitted() == {} and [row.action for row in group.rows] == ["set aside"] * 2
    group.collect(group.zip(files), "--roster", group.roster(WORKSHEET))
    assert group.submitted() == {}, "999 could be anybody"


def test_two_students_of_one_name_in_two_downloads(group: Class) -> None:
    for number, content, time in ((901, FIRST, MORNING), (999, SECOND, EVENING)):
        path = f"Ada Lovelace_{number}_assignsubmission_file_/01_softmax.ipynb"
        group.collect(group.zip({path: content}, f"{number}.zip", time))
    assert group.text("Ada_Lovelace") == "first" and group.rows[0].action == "set aside"


def test_a_name_that_imitates_a_canvas_number_gets_nowhere(group: Class) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": FIRST}), "--roster", group.roster())
    forged = group.zip({"evil_11_999_888_01_softmax.ipynb": SECOND}, "two.zip", EVENING)
    group.collect(forged, "--roster", group.roster())
    assert (group.text("ada"), group.rows[0].action) == ("first", "set aside")
    group.collect(forged)
    assert group.text("ada") == "first"


def test_who_was_collected_before_is_known_without_the_roster(group: Class) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": FIRST}), "--roster", group.roster())
    group.collect(group.zip({"lovelaceada_11_600_01_softmax-1.ipynb": SECOND}, "two.zip", EVENING))
    assert group.text("ada") == "second"


def test_a_roster_that_renames_somebody_is_for_a_person(group: Class) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": FIRST}))
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": FIRST}), "--roster", group.roster())
    assert "rename submitted/lovelaceada_11" in group.rows[0].reason and group.code == 1


def test_whoever_is_not_in_the_roster_is_for_a_person(group: Class) -> None:
    group.collect(group.zip({"turingalan_99_1_01_softmax.ipynb": FIRST}), "--roster", group.roster())
    assert group.submitted() == {} and "nobody, or more than one" in group.rows[0].reason


def test_folders_that_some_machines_take_for_one(group: Class) -> None:
    group.collect(group.zip({f"Ada/{SOFTMAX}.ipynb": FIRST, f"bob/{SOFTMAX}.ipynb": FIRST}))
    group.collect(group.zip({f"ada/{SOFTMAX}.ipynb": SECOND, f"bob/{SOFTMAX}.ipynb": FIRST}))
    assert group.text("Ada") == "first" and "same folder on some machines" in group.row(f"ada/{SOFTMAX}.ipynb").reason


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("student_id,name", 'ada,"Lovelace, Ada"'),
        ("student_id;First name;Last name", "ada;Ada;Lovelace"),
        ("id,first_name,last_name,email", "ada,Ada,Lovelace,a@b"),
        ("Username,Full name", "ada,Ada Lovelace"),
        ("STUDENT_ID\tFull Name", "ada\tAda Lovelace"),
        ("LastName,FirstName,ID,SIS Login ID,Section", "Lovelace,Ada,11,ada,A"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_rosters_of_many_kinds(group: Class, header: str, row: str, encoding: str) -> None:
    path = group.folder.parent / "roster.csv"
    path.write_text(f"{header}\r\n{row}\r\n", encoding=encoding, newline="")
    roster = read_roster(path)
    assert roster.find(Sender("canvas", "lovelaceada", "11")).id == "ada"
    assert roster.find(Sender("moodle", "Ada Lovelace", "5")).id == "ada"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "No student was found"),
        ("student_id,name\nada,x\nADA,y\n", "rows 2 and 3 would both be"),
        ("name\nMüller\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_rosters_that_cannot_be_used_say_why(group: Class, text: str | bytes, sentence: str) -> None:
    path = group.folder.parent / "roster.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GradingError, match=sentence):
        read_roster(path)


# Which of several


def test_of_several_canvas_uploads_the_last_counts(group: Class) -> None:
    group.collect(
        group.zip(
            {
                "lovelaceada_11_502_01_softmax-1.ipynb": SECOND,
                "lovelaceada_11_501_01_softmax.ipynb": FIRST,
            }
        )
    )
    assert (group.text("lovelaceada_11"), group.code, group.action("softmax.ipynb")) == ("second", 0, "older")


def test_of_several_elsewhere_one_is_taken_and_a_person_asked(group: Class) -> None:
    group.collect(
        group.zip(
            {
                f"{ADA_MOODLE}/01_softmax.ipynb": FIRST,
                f"{ADA_MOODLE}/01_softmax (1).ipynb": SECOND,
            }
        )
    )
    assert (group.text("Ada_Lovelace"), group.code) == ("second", 1)
    assert "is this the right one?" in group.row("(1).ipynb").reason


def test_a_newer_one_replaces_and_the_earlier_is_kept(group: Class) -> None:
    morning = group.zip({f"ada/{SOFTMAX}.ipynb": FIRST}, "morning.zip", MORNING)
    evening = group.zip({f"ada/{SOFTMAX}.ipynb": SECOND}, "evening.zip", EVENING)
    for download, action, text in [
        (morning, "collected", "first"),
        (morning, "already there", "first"),
        (evening, "replaced", "second"),
        (morning, "older", "second"),
        (evening, "already there", "second"),
    ]:
        group.collect(download)
        assert (group.rows[0].action, group.text("ada")) == (action, text)
    [kept] = (group.folder / "grading" / "earlier" / SOFTMAX / "ada").glob(f"*/{SOFTMAX}.ipynb")
    assert kept.read_bytes() == FIRST


@pytest.mark.parametrize("backwards", [False, True])
def test_several_downloads_at_once_in_any_order(group: Class, backwards: bool) -> None:
    downloads = [
        group.zip({f"ada/{SOFTMAX}.ipynb": FIRST}, "morning.zip", MORNING),
        group.zip({f"ada/{SOFTMAX}.ipynb": SECOND}, "evening.zip", EVENING),
    ]
    group.collect(*(reversed(downloads) if backwards else downloads))
    assert group.text("ada") == "second"


def test_canvas_numbers_count_more_than_the_time_of_the_download(group: Class) -> None:
    group.collect(group.zip({"lovelaceada_11_502_01_softmax.ipynb": SECOND}, "a.zip", MORNING))
    group.collect(group.zip({"lovelaceada_11_501_01_softmax.ipynb": FIRST}, "b.zip", EVENING))
    assert (group.text("lovelaceada_11"), group.rows[0].action) == ("second", "older")


def test_the_time_of_a_replaced_submission_does_not_stay(group: Class) -> None:
    stamp = {f"ada/{SOFTMAX}/timestamp.txt": b"2024-03-01 07:00:00 UTC"}
    group.collect(group.zip({f"ada/{SOFTMAX}/nb.ipynb": FIRST, **stamp}, "a.zip", MORNING))
    assert group.stamp("ada") == datetime(2024, 3, 1, 7)
    group.collect(group.zip({f"ada/{SOFTMAX}/nb.ipynb": SECOND}, "b.zip", EVENING))
    assert (group.text("ada"), group.stamp("ada")) == ("second", None)


def test_a_time_that_becomes_known_later_is_added(group: Class) -> None:
    download = group.zip({f"{ADA_MOODLE}/01_softmax.ipynb": FIRST})
    without = "student_id,Identifier,Full name\nada,Participant 901,Ada Lovelace\n"
    with_time = without.replace("Full name\n", "Full name,Last modified (submission)\n").replace(
        "Lovelace\n", 'Lovelace,"Friday, 1 March 2024, 11:30 AM"\n'
    )
    for roster in (without, with_time, without):
        group.collect(download, "--roster", group.roster(roster), "--timezone", "UTC")
    assert (group.rows[0].action, group.stamp("ada")) == ("already there", datetime(2024, 3, 1, 11, 30))


def test_nothing_tells_which_is_newer(group: Class) -> None:
    group.collect(group.zip({f"ada/{SOFTMAX}.ipynb": FIRST}, "a.zip"))
    group.collect(group.zip({f"ada/{SOFTMAX}.ipynb": SECOND}, "b.zip"))
    assert (group.text("ada"), group.rows[0].action) == ("first", "set aside")


def test_what_a_person_put_there_is_not_overwritten_by_something_older(group: Class) -> None:
    write(group.folder / "submitted", {f"ada/{SOFTMAX}/{SOFTMAX}.ipynb": SECOND}, EVENING)
    group.collect(group.zip({f"ada/{SOFTMAX}.ipynb": FIRST}, time=MORNING))
    assert (group.text("ada"), group.rows[0].action) == ("second", "older")


@pytest.mark.parametrize("steps", range(12))
def test_stopped_at_any_moment_and_run_again_ends_the_same(
    group: Class, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The disk operations are counted; the run dies at one of them, and is then repeated."""
    stamp = {f"{name}/{SOFTMAX}/timestamp.txt": b"2024-03-01 07:00:00 UTC" for name in ("ada", "bob")}
    morning = {f"{name}/{SOFTMAX}/nb.ipynb": FIRST for name in ("ada", "bob")}
    evening = {f"{name}/{SOFTMAX}/nb.ipynb": SECOND for name in ("ada", "bob")}
    group.collect(group.zip(morning | stamp, "a.zip", MORNING))
    later = group.zip(evening, "b.zip", EVENING)
    left = [steps]

    def counting(operation: Callable) -> Callable:
        def counted(*args, **kwargs):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return operation(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (Path, "unlink"), (Path, "write_bytes"), (Path, "rename")):
            patch.setattr(owner, name, counting(getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            group.collect(later)
    group.collect(later)
    visible = {name: content for name, content in group.submitted().items() if not name.endswith(".half")}
    assert visible == {f"{name}/{SOFTMAX}/{SOFTMAX}.ipynb": SECOND for name in ("ada", "bob")}
    for name in ("ada", "bob"):
        [kept] = (group.folder / "grading" / "earlier" / SOFTMAX / name).glob(f"[!.]*/{SOFTMAX}.ipynb")
        assert kept.read_bytes() == FIRST and (kept.parent / "timestamp.txt").is_file()


# Every file is accounted for


def test_every_file_is_in_the_table_and_in_the_csv_file(group: Class, capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"ada/{SOFTMAX}.ipynb": FIRST, "ada/.DS_Store": b"", 'ada/=a,"b"\n.png': b"x", "bob/nothing.txt": b"x"}
    group.collect(group.zip(files))
    printed = capsys.readouterr().out
    with open(group.folder / "grading" / "collected.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(group.rows) == 5  # the files, and that bob handed in no notebook
    assert "1 collected" in printed and "needs a person" in printed
    for name in ("ada/01_softmax.ipynb", "ada/.DS_Store", 'ada/=a,"b"\N{REPLACEMENT CHARACTER}.png'):
        assert f"submissions.zip/{name}" in printed
        assert f"submissions.zip/{name}" in {line["file"] for line in lines}


def test_the_csv_file_remembers_earlier_downloads(group: Class) -> None:
    group.collect(group.zip({f"ada/{SOFTMAX}.ipynb": FIRST}, "a.zip"))
    group.collect(group.zip({f"bob/{SOFTMAX}.ipynb": FIRST}, "b.zip"))
    group.collect(group.zip({f"bob/{SOFTMAX}.ipynb": FIRST}, "b.zip"))
    with open(group.folder / "grading" / "collected.csv", encoding="utf-8", newline="") as file:
        actions = [(line["student"], line["action"]) for line in csv.DictReader(file)]
    assert actions == [("ada", "collected"), ("bob", "already there")]


def test_where_a_submission_came_from_is_remembered(group: Class) -> None:
    group.collect(group.zip({f"{ADA}01_softmax.ipynb": FIRST}), "--roster", group.roster())
    record = load_record(record_path(Submission(group.course, "ada", SOFTMAX)))
    assert record.sender == Sender("canvas", "lovelaceada", "11", 501, False, f"{ADA}01_softmax.ipynb")


# Hostile and damaged


def everything(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


HOSTILE_NAMES = ["../../evil.ipynb", "/tmp/evil.ipynb", "C:\\evil.ipynb", "..\\..\\evil.ipynb", "ada/../../evil.ipynb"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("nested", [False, True])
def test_paths_that_lead_out_are_not_followed(group: Class, name: str, nested: bool) -> None:
    files = {f"bob/{SOFTMAX}.ipynb": FIRST, name: FIRST}
    download = group.zip({f"{ADA}work.zip": zipped({name: FIRST})} if nested else files)
    before = everything(group.folder.parent)
    group.collect(download)
    assert group.code == 1 and any("leads out of the zip" in row.reason for row in group.rows)
    new = everything(group.folder.parent) - before
    assert all(path.is_relative_to(group.folder) and "evil" not in str(path) for path in new)
    assert len(group.submitted()) == (0 if nested else 1), "the others are collected all the same"


@pytest.mark.parametrize(("mode", "sentence"), [(stat.S_IFLNK, "a symbolic link"), (stat.S_IFIFO, "no ordinary file")])
def test_links_and_pipes_in_a_zip(group: Class, mode: int, sentence: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo(f"ada/{SOFTMAX}.ipynb", NOON)
        info.external_attr = (mode | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
        archive.writestr(f"bob/{SOFTMAX}.ipynb", FIRST)
    path = group.folder.parent / "links.zip"
    path.write_bytes(buffer.getvalue())
    group.collect(path)
    assert set(group.submitted()) == {f"bob/{SOFTMAX}/{SOFTMAX}.ipynb"}
    assert sentence in group.row(f"ada/{SOFTMAX}.ipynb").reason


def test_links_and_pipes_in_a_folder(group: Class) -> None:
    outside = write(group.folder.parent / "outside", {f"{SOFTMAX}.ipynb": FIRST})
    folder = write(group.folder.parent / "class", {f"bob/{SOFTMAX}.ipynb": FIRST})
    (folder / "ada").symlink_to(outside)
    (folder / "cem").mkdir()
    (folder / "cem" / f"{SOFTMAX}.ipynb").symlink_to(outside / f"{SOFTMAX}.ipynb")
    (folder / "dee").mkdir()
    os.mkfifo(folder / "dee" / f"{SOFTMAX}.ipynb")
    group.collect(folder)
    assert set(group.submitted()) == {f"bob/{SOFTMAX}/{SOFTMAX}.ipynb"}
    assert [row.action for row in group.rows].count("set aside") == 3


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_stops_nobody(group: Class) -> None:
    folder = write(group.folder.parent / "class", {f"ada/{SOFTMAX}.ipynb": FIRST, f"bob/{SOFTMAX}.ipynb": FIRST})
    (folder / "ada").chmod(0)
    group.collect(folder)
    (folder / "ada").chmod(0o700)
    assert set(group.submitted()) == {f"bob/{SOFTMAX}/{SOFTMAX}.ipynb"} and group.code == 1


def test_a_file_name_that_is_no_unicode(group: Class) -> None:
    folder = write(group.folder.parent / "class", {f"bob/{SOFTMAX}.ipynb": FIRST})
    name = os.path.join(os.fsencode(folder), b"m\xfcller")
    os.mkdir(name)
    with open(os.path.join(name, b"01_softmax \xe9.ipynb"), "wb") as file:
        file.write(SECOND)
    group.collect(folder)
    assert group.text("m_ller") == "second"


@pytest.mark.parametrize("encoding", ["utf-8", "cp437"])
def test_zip_names_that_do_not_say_how_they_are_encoded(group: Class, encoding: str) -> None:
    content = zipped({f"Xrgen/{SOFTMAX}.ipynb".replace("X", "?" * len("ü".encode(encoding))): FIRST})
    marks = ("?" * len("ü".encode(encoding))).encode()
    (path := group.folder.parent / "old.zip").write_bytes(content.replace(marks + b"rgen", "ürgen".encode(encoding)))
    group.collect(path)
    assert group.text("ürgen") == "first"


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MAX_FILE", 100_000)
    monkeypatch.setattr(downloads, "MAX_NESTED", 250_000)
    monkeypatch.setattr(downloads, "MAX_NESTED_FILES", 20)
    monkeypatch.setattr(downloads, "_CHUNK", 1000)


@pytest.mark.usefixtures("small_limits")
def test_a_zip_bomb_costs_no_more_than_its_limit(group: Class) -> None:
    bombs = {
        "a_1_1_01_softmax.ipynb": b"0" * 1_000_000,
        "b_2_2_many.zip": zipped({f"{i}.ipynb": b"0" * 90_000 for i in range(9)}),
        "c_3_3_crowd.zip": zipped({f"{i}.ipynb": b"" for i in range(99)}),
        f"{ADA}01_softmax.ipynb": FIRST,
    }
    group.collect(group.zip(bombs))
    assert "more than 0 MB" in group.row("a_1_1_01_softmax.ipynb").reason
    assert any("too much" in row.reason for row in group.rows)
    assert "more than 20 files" in group.row("crowd.zip").reason
    assert group.text("lovelaceada_11") == "first"


@pytest.mark.usefixtures("small_limits")
def test_sizes_are_counted_and_not_believed(group: Class) -> None:
    content = zipped({f"{ADA}01_softmax.ipynb": b"0" * 1_000_000, "b_2_2_01_softmax.ipynb": FIRST})
    size = struct.pack("<I", 1_000_000)
    group.zip({}, "liar.zip").write_bytes(content.replace(size, struct.pack("<I", 10)))
    group.collect(group.folder.parent / "liar.zip")
    assert group.action(f"{ADA}01_softmax.ipynb") == "set aside"
    assert group.text("b_2") == "first"


def test_an_encrypted_entry_is_named(group: Class) -> None:
    content = bytearray(zipped({f"{ADA}01_softmax.ipynb": FIRST, "b_2_2_01_softmax.ipynb": FIRST}))
    content[6] |= 1  # in the first file's header, and in its entry of the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    group.zip({}, "locked.zip").write_bytes(content)
    group.collect(group.folder.parent / "locked.zip")
    assert "encrypted" in group.row(f"{ADA}01_softmax.ipynb").reason and group.text("b_2") == "first"


def test_a_truncated_download_is_named(group: Class) -> None:
    path = group.zip({f"{ADA}01_softmax.ipynb": FIRST})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(GradingError, match="may have been cut off"):
        group.collect(path)


def test_damage_in_one_students_file_costs_only_that(group: Class) -> None:
    content = bytearray(zipped({f"{ADA}01_softmax.ipynb": FIRST, "b_2_2_01_softmax.ipynb": FIRST}))
    content[70:90] = bytes(20)
    group.zip({}, "damaged.zip").write_bytes(content)
    group.collect(group.folder.parent / "damaged.zip")
    assert "cannot be unpacked" in group.row(f"{ADA}01_softmax.ipynb").reason and group.text("b_2") == "first"


@pytest.mark.parametrize("inner", [b"no zip", b"", zipped({"x.zip": zipped({"01_softmax.ipynb": FIRST})})])
def test_a_students_zip_that_cannot_be_used(group: Class, inner: bytes) -> None:
    group.collect(group.zip({f"{ADA}work.zip": inner, "b_2_2_01_softmax.ipynb": FIRST}))
    assert group.code == 1 and set(group.submitted()) == {f"b_2/{SOFTMAX}/{SOFTMAX}.ipynb"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Name what to collect"),
        (["nowhere.zip"], "There is no file or folder"),
        (["x.zip", "--chapter", "99"], "There is no chapter"),
        (["x.zip", "--student", "a/b"], "cannot be a student's name"),
        (["x.zip", "--roster", "nowhere.csv"], "cannot be read"),
    ],
)
def test_mistakes_on_the_command_line_are_answered(group: Class, words: list[str], sentence: str) -> None:
    with pytest.raises(GradingError, match=sentence):
        group.collect(*words)
    assert not (group.folder / "submitted").exists()
