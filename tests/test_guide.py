"""What the instructor's guide and the README tell people to type and to open is there."""

from __future__ import annotations

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbgrader.plugins import LateSubmissionPlugin

from helpers.checks import registry
from helpers.grading.__main__ import command_line
from helpers.grading.course import check_chapters

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "GRADING.md").read_text(encoding="utf-8")
PAGES = {"GRADING.md": GUIDE, "README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
CODE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "helpers" / "grading").rglob("*.py"))

# What is not in the repository: what platforms and people bring, what lies elsewhere, and what nbgrader makes.
BROUGHT = ["submissions.zip", "gradebook.csv", "Course-Assignment.zip", "worksheet.csv", "nb (3).ipynb", "students.csv"]
BROUGHT += ["../attention.zip", "~/*", "/etc/*", "/usr/*", "*.pem", "timestamp.txt", "STUDENT/*"]
NBGRADERS = ["submitted/", "autograded/", "feedback/", "gradebook.db"]
SHORT = ["01_softmax.ipynb", "canvas.csv", "grades.csv"]  # a notebook's and two exports' names without their folders

EXTENSION = re.compile(r"[^:]*[\w.](/|\.(py|md|html|csv|ipynb|json|key|log|db|txt|zip|lock|yaml|pem|pgpass))")


def commands(page: str) -> list[str]:
    """Every line of a page that is typed in a shell and begins with this command."""
    lines = re.findall(r"^ {4}(?:\.venv/bin/)?python -m helpers\.grading (.+)$", PAGES[page], re.MULTILINE)
    inline = re.findall(r"`(?:python -m helpers\.grading )?((?:collect|run|report|export) [^`]+)`", PAGES[page])
    return lines + inline


def places() -> list[tuple[str, str]]:
    """Everything between backticks that is a file or a folder, by the page that names it."""
    named = [(page, name) for page, text in PAGES.items() for name in re.findall(r"`([^`\n]+)`", text)]
    return sorted({(page, name) for page, name in named if EXTENSION.fullmatch(name) and "--" not in name})


@pytest.mark.parametrize(("page", "command"), [(page, command) for page in PAGES for command in commands(page)])
def test_the_command_can_be_typed(page: str, command: str) -> None:
    chosen = vars(command_line().parse_args(shlex.split(command, comments=True)))
    chapter = chosen.get("chapter") or []
    assert check_chapters([*chosen.get("chapters", []), *([chapter] if isinstance(chapter, str) else chapter)])


def test_both_pages_have_commands_and_places() -> None:
    assert all(commands(page) for page in PAGES)
    assert len(commands("GRADING.md")) > 12 and len(places()) > 20


@pytest.mark.parametrize(("page", "name"), places())
def test_the_place_exists_or_is_made(page: str, name: str) -> None:
    if name.startswith("grading/") or re.match(r"(canvas|moodle|plain)_", name):
        last = name.rstrip("/").rpartition("/")[2].replace("01_softmax", "{chapter}")
        assert re.sub(r"^[a-z]+_feedback", "{to}_feedback", last).replace("STUDENT.log", "{self.student}.log") in CODE
    elif not any(fnmatch(name, known) for known in [*BROUGHT, *NBGRADERS, *SHORT]):
        assert (ROOT / name).exists()


def test_git_ignores_what_must_not_become_public() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/submitted/", "/autograded/", "/feedback/", "/gradebook.db*", "/grading/"} <= set(ignored)


def test_links_inside_the_pages_lead_somewhere() -> None:
    for text in PAGES.values():
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            file, _, heading = target.partition("#")
            assert not file or (ROOT / file).is_file()
            titles = [re.sub(r"[^\w -]", "", line).lower() for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
            assert not heading or heading in [title.replace(" ", "-") for title in titles]


def test_the_chapters_have_the_points_that_assignments_are_to_have() -> None:
    told = dict(re.findall(r"\b(\d\d): (\d+)[,.]", GUIDE))
    assert told == {chapter[:2]: str(points_of(chapter)) for chapter in registry.CHAPTERS}


def points_of(chapter: str) -> int:
    source = json.loads((ROOT / "solutions" / chapter / f"{chapter}.ipynb").read_text(encoding="utf-8"))
    return sum(cell["metadata"].get("nbgrader", {}).get("points", 0) for cell in source["cells"])


def test_the_rule_for_late_work_can_be_pasted_into_the_configuration() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    config = SimpleNamespace(AssignLatePenalties=SimpleNamespace())
    exec(example, {"c": config})
    rule = config.AssignLatePenalties.plugin_class
    assert issubclass(rule, LateSubmissionPlugin)
    penalties = [rule().late_submission_penalty("ada", 20.0, seconds) for seconds in (1, 86_400, 86_401, 10_000_000)]
    assert penalties == [2.0, 2.0, 4.0, 20.0]
