"""The environment check of notebook 00: it names what is wrong, says how to mend it, and never raises."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from helpers import environment
from helpers.environment import EnvironmentReport, Finding, check_environment

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def a_usual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit, not Binder, one thread: each test then breaks one thing."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(environment, "CGROUP_LIMITS", ())
    for name in (*environment.BINDER_VARIABLES, "MEM_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def finding(subject: str) -> Finding:
    found = {one.subject: one for one in check_environment().findings}
    return found[subject]


def pretend_version(monkeypatch: pytest.MonkeyPatch, package: str, version: str | None) -> None:
    real = importlib.metadata.version

    def fake(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", fake)


def pretend_repository(folder: Path) -> Path:
    """A folder that looks like a copy of the course, with a notebook's folder in it."""
    (folder / "helpers").mkdir(parents=True)
    (folder / "helpers" / "environment.py").touch()
    chapter = folder / "notebooks" / "00_start_here"
    chapter.mkdir(parents=True)
    return chapter


def test_an_environment_as_the_pins_make_it_has_no_problem():
    report = check_environment()
    assert report.problems == ()
    assert report.summary == "Everything the course needs is here."


def test_every_dependency_of_the_course_is_looked_at():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {text.split(">")[0] for text in project["dependencies"]}
    assert names <= {one.subject for one in check_environment().findings}


def test_the_check_and_pyproject_ask_for_the_same_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, environment.MINIMUM_PYTHON))


def test_looking_does_not_import_torch():
    code = (
        "import sys; from helpers.environment import check_environment; check_environment();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_an_old_python_is_the_only_thing_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 6, "final", 0))
    problems = check_environment().problems
    assert [one.subject for one in problems] == ["Python"]
    assert "3.9.6" in problems[0].found
    assert "3.11 or newer" in problems[0].advice


def test_a_missing_package_is_named_with_what_to_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    pretend_version(monkeypatch, "torch", None)
    assert finding("torch").state == "problem"
    assert "make setup" in finding("torch").advice


def test_in_a_conda_environment_the_advice_is_condas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(environment, "_wrong_kernel", lambda: "")
    pretend_version(monkeypatch, "numpy", None)
    assert "conda env update" in finding("numpy").advice


def test_a_package_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    pretend_version(monkeypatch, "torch", "2.1.0")
    assert finding("torch").state == "problem"
    assert "2.12" in finding("torch").advice


def test_a_package_that_is_newer_than_tested_is_only_noted(monkeypatch: pytest.MonkeyPatch):
    pretend_version(monkeypatch, "torch", "2.99.0")
    assert finding("torch").state == "note"


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0.post1"])
def test_every_build_of_the_right_torch_is_welcome(monkeypatch: pytest.MonkeyPatch, version: str):
    pretend_version(monkeypatch, "torch", version)
    assert finding("torch").state == "ok"


def test_a_package_whose_files_are_gone_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    assert "damaged" in finding("torch").found
    assert finding("torch").state == "problem"


def test_a_kernel_beside_the_courses_own_environment_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    pretend_version(monkeypatch, "nbgrader", None)
    assert sys.executable in finding("nbgrader").advice
    assert "make lab" in finding("nbgrader").advice


def test_helpers_of_another_copy_of_the_course_are_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(pretend_repository(tmp_path / "second copy"))
    assert finding("helpers").state == "problem"
    assert str(tmp_path / "second copy") in finding("helpers").advice


def test_helpers_of_the_same_copy_are_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(pretend_repository(tmp_path))
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    assert finding("helpers").state == "ok"


def test_a_notebook_outside_the_course_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert finding("helpers").state == "note"


@pytest.mark.parametrize(("limit", "state"), [(1_000_000_000, "ok"), (2**30, "ok"), (512 * 2**20, "problem")])
def test_a_sessions_memory_limit_counts_more_than_the_machines_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, state: str
):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(environment, "CGROUP_LIMITS", (tmp_path / "memory.max",))
    assert finding("memory").state == state
    assert "limit" in finding("memory").found


def test_the_limit_that_a_hub_sets_counts_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEM_LIMIT", str(512 * 2**20))
    assert finding("memory").state == "problem"


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n", ""])
def test_no_limit_in_a_container_is_no_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str):
    (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr(environment, "CGROUP_LIMITS", (tmp_path / "memory.max",))
    assert "free of" in finding("memory").found


def test_a_machine_with_little_memory_left_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    memory = types.SimpleNamespace(available=2e8, total=8e9)
    monkeypatch.setitem(sys.modules, "psutil", types.SimpleNamespace(virtual_memory=lambda: memory))
    assert finding("memory").state == "problem"
    assert "0.2 GB free of 8.0 GB" in finding("memory").found


def test_torch_that_came_before_helpers_is_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(get_num_threads=lambda: 8))
    assert finding("threads").state == "note"
    assert "estart the kernel" in finding("threads").advice


def test_binder_is_recognised_and_says_to_save(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BINDER_SERVICE_HOST", "10.0.0.1")
    assert finding("place").state == "note"
    assert "Save" in finding("place").advice


def test_a_folder_that_cannot_be_written_to_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment.os, "access", lambda *_: False)
    assert finding("place").state == "problem"


@pytest.mark.parametrize("part", ["_python", "_helpers", "_packages", "_memory", "_threads", "_place"])
def test_what_cannot_be_read_is_said_and_the_rest_still_shown(monkeypatch: pytest.MonkeyPatch, part: str):
    usual = len(check_environment().findings)

    def broken():
        raise OSError("no such luck")

    monkeypatch.setattr(environment, part, broken)
    report = check_environment()
    assert "no such luck" in repr(report)
    assert len(report.findings) > (1 if part == "_packages" else usual - 1)


BAD = EnvironmentReport((Finding("torch", "<b>2.1</b>", "problem", "Run & see."), Finding("numpy", "2.4.6")))


def test_the_plain_report_says_state_finding_and_advice_in_words():
    assert repr(BAD).splitlines()[:3] == [
        "problem  torch  <b>2.1</b>",
        "                -> Run & see.",
        "ok       numpy  2.4.6",
    ]
    assert "1 problem was found" in repr(BAD)


def test_the_html_report_says_the_same_in_words_and_escapes_what_it_shows():
    shown = BAD._repr_html_()
    assert ">problem<" in shown and ">ok<" in shown
    assert "&lt;b&gt;2.1" in shown and "Run &amp; see." in shown
    assert BAD.summary in shown


@pytest.mark.parametrize(("limit", "code"), [("2000000000", 0), ("1000000", 1)])
def test_from_a_shell_the_exit_code_tells(limit: str, code: int):
    run = subprocess.run(
        [sys.executable, "-m", "helpers.environment"],
        cwd=ROOT,
        env={**os.environ, "MEM_LIMIT": limit},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == code
    assert "torch" in run.stdout
