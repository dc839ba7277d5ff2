"""Set-up from a fresh clone: the pins, the Makefile, and what Binder would build."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from helpers.checks.judging import judge
from helpers.checks.observing import observe

ROOT = Path(__file__).resolve().parents[1]
START = "notebooks/00_start_here/00_start_here.ipynb"
#: The same package under the name that it has on conda-forge.
CONDA_NAMES = {"torch": "pytorch-cpu"}

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins() -> dict[str, Requirement]:
    lines = [line for line in read("requirements.txt").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def project() -> dict[str, Any]:
    return tomllib.loads(read("pyproject.toml"))["project"]


def pinned_version(pin: Requirement) -> Version:
    (specifier,) = pin.specifier
    return Version(specifier.version)


# ---- The pins


def test_every_pin_is_one_exact_version_that_any_build_satisfies():
    for pin in pins().values():
        assert [one.operator for one in pin.specifier] == ["=="], pin
        assert pinned_version(pin).local is None, f"{pin}: a suffix such as +cpu exists on one index only"


@pytest.mark.parametrize("group", ["dependencies", "grading", "dev"])
def test_the_pins_hold_what_pyproject_asks_for(group: str):
    asked = project()["dependencies"] if group == "dependencies" else project()["optional-dependencies"][group]
    for requirement in map(Requirement, asked):
        pin = pins()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned_version(pin)), (requirement, pin)


PLATFORMS = [
    {"sys_platform": sys_platform, "platform_system": system, "os_name": os_name, "python_version": python}
    for sys_platform, system, os_name in [
        ("linux", "Linux", "posix"),
        ("darwin", "Darwin", "posix"),
        ("win32", "Windows", "nt"),
    ]
    for python in ["3.11", "3.14"]
]


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda one: f"{one['platform_system']}-{one['python_version']}")
def test_nothing_that_a_pinned_package_needs_is_left_unpinned(platform: dict[str, str]):
    environment = {**default_environment(), **platform, "extra": ""}
    applying = {name: pin for name, pin in pins().items() if pin.marker is None or pin.marker.evaluate(environment)}
    missing = [
        f"{name} needs {needed}"
        for name in applying
        for needed in _needs(name, environment)
        if canonicalize_name(needed.name) not in applying
    ]
    assert missing == []


def _needs(name: str, environment: Mapping[str, str]) -> Iterator[Requirement]:
    if name == "torch":
        return  # which CUDA packages a build of torch brings differs from build to build
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return  # one of another platform
    for needed in map(Requirement, texts):
        if needed.marker is None or needed.marker.evaluate(environment):
            yield needed


def test_conda_asks_for_the_same_as_pyproject():
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    conda = {one.name: str(one.specifier) for one in map(Requirement, filter(_is_package, entries))}
    for requirement in map(Requirement, project()["dependencies"]):
        name = CONDA_NAMES.get(requirement.name, requirement.name)
        assert conda[name] == str(requirement.specifier), name


def _is_package(entry: str | dict[str, list[str]]) -> bool:
    return isinstance(entry, str) and not entry.startswith("python=")


def test_conda_takes_all_from_conda_forge_and_a_python_that_the_course_allows():
    wanted = yaml.safe_load(read("environment.yml"))
    assert wanted["channels"] == ["conda-forge", "nodefaults"]
    (python,) = [one for one in wanted["dependencies"] if str(one).startswith("python=")]
    assert Requirement(f"python{project()['requires-python']}").specifier.contains(python.split("=")[1])


# ---- The Makefile


def copy_of_the_course(folder: Path) -> Path:
    """What `make setup` and `make lab` need, with nothing in the notebook."""
    folder.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "helpers", folder / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / START).parent.mkdir(parents=True)
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / START).write_text(json.dumps(notebook))
    return folder


def make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@needs_make
@pytest.mark.slow
def test_setup_works_in_a_folder_with_a_space_and_an_accent_and_after_a_move(tmp_path: Path):
    course = copy_of_the_course(tmp_path / "Kurs über Köpfe")
    # Beside these packages pip has nothing to fetch, and still does all that it does on a new machine.
    installed = {"PYTHONPATH": os.path.dirname(os.path.dirname(pytest.__file__)), "PYTHON": sys.executable}

    first = make(course, "setup", **installed)
    assert first.returncode == 0, first.stderr
    assert _imports_helpers_from(course)
    assert "Nothing to be done" in make(course, "setup", **installed).stdout

    # The pins change, as after a pull.
    later = (course / ".venv" / "ready").stat().st_mtime + 5
    os.utime(course / "requirements.txt", (later, later))
    assert "pip install" in make(course, "setup", "--dry-run", **installed).stdout
    os.utime(course / "requirements.txt", (0, 0))

    # The folder is renamed.
    course = course.rename(tmp_path / "elsewhere")
    assert "--clear" in make(course, "setup", "--dry-run", **installed).stdout
    again = make(course, "setup", **installed)
    assert again.returncode == 0, again.stderr
    assert _imports_helpers_from(course)


def _imports_helpers_from(course: Path) -> bool:
    shown = subprocess.run(
        [course / ".venv" / "bin" / "python", "-c", "import helpers; print(ascii(helpers.__file__))"],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    return shown.stdout.strip() == ascii(str(course / "helpers" / "__init__.py"))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@needs_make
def test_without_python_setup_says_what_to_install(tmp_path: Path):
    run = make(copy_of_the_course(tmp_path / "course"), "setup", PYTHON="no-such-python")
    assert run.returncode != 0
    assert 'There is no "no-such-python" here' in run.stderr
    assert "3.11" in run.stderr


@needs_make
@pytest.mark.parametrize("version", ["(3, 9, 6)", "(3, 99, 0)"])
def test_with_a_python_that_is_too_old_or_too_new_setup_says_which_it_needs(tmp_path: Path, version: str):
    pretend = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    python = script(tmp_path / "python", f'shift; exec "{sys.executable}" -c "{pretend}" "$@"')
    course = copy_of_the_course(tmp_path / "course")
    run = make(course, "setup", PYTHON=python)
    assert run.returncode != 0
    assert "This is Python " + ".".join(re.findall(r"\d+", version)[:2]) in run.stderr
    assert "Traceback" not in run.stderr
    assert not (course / ".venv").exists()


@needs_make
def test_without_ensurepip_setup_says_what_to_install(tmp_path: Path):
    python = script(tmp_path / "python", f'case "$2" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"')
    run = make(copy_of_the_course(tmp_path / "course"), "setup", PYTHON=python)
    assert run.returncode != 0
    assert "python3-venv" in run.stderr


@needs_make
@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sys.prefix) / "pyvenv.cfg").exists(), reason="the tests run outside a virtual environment"
)
def test_make_lab_opens_the_first_notebook_with_the_whole_course_in_sight(tmp_path: Path):
    course = copy_of_the_course(tmp_path / "Kurs über Köpfe")
    (course / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        (course / ".venv" / part.name).symlink_to(part)
    (course / ".venv" / "ready").unlink(missing_ok=True)
    (course / ".venv" / "ready").write_text(f"{course}\n")

    # A user's own kernel of the same name must not take the place of the course's.
    home = tmp_path / "home"
    kernel = home / ".local" / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "another"}))
    configuration = home / ".jupyter"
    configuration.mkdir()
    port = _free_port()
    (configuration / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"allow_root": True, "port": port}})
    )
    # What a browser is given is a small file that leads on to the server.
    browser = script(tmp_path / "browser", f'cat "${{1#file://}}" > "{tmp_path}/opened"')

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "JUPYTER"))}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            ["make", "lab"],
            cwd=course,
            env={**environment, "HOME": str(home), "BROWSER": f"{browser} %s"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        page = _eventually(lambda: (tmp_path / "opened").read_text().strip(), tmp_path / "log")
        address = urllib.parse.urlsplit(re.search(r'href="([^"]+)"', page)[1])
        assert address.path == f"/lab/tree/{START}"

        def ask(path: str) -> Any:
            url = f"http://localhost:{port}/api/{path}?{address.query}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)

        assert ask(f"contents/{START}")["type"] == "notebook"
        assert "Makefile" in {one["name"] for one in ask("contents")["content"]}
        assert ask("kernelspecs")["kernelspecs"]["python3"]["spec"]["display_name"] != "another"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _eventually(read_it: Any, log: Path, seconds: float = 60) -> str:
    """What `read_it` returns once it is something; the log tells why not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if text := read_it():
                return text
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"nothing was opened:\n{log.read_text()[-3000:]}")


# ---- Binder


@pytest.fixture(scope="module")
def dockerfile() -> str:
    """What a Binder would build from this repository."""
    if importlib.util.find_spec("repo2docker") is None:
        pytest.skip("jupyter-repo2docker is not installed")
    who = ["--user-id", "1000", "--user-name", "jovyan"]
    run = subprocess.run(
        [sys.executable, "-m", "repo2docker", "--no-build", "--debug", *who, str(ROOT)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_binder_builds_a_conda_environment_of_the_python_asked_for(dockerfile: str):
    assert "Building conda environment for python=3.11" in dockerfile


def test_binder_installs_helpers_once_the_repository_is_there(dockerfile: str):
    copied = dockerfile.index("COPY --chown=1000:1000 src/ ${REPO_DIR}/")
    installed = dockerfile.index('env update -p ${NB_PYTHON_PREFIX} --file "environment.yml"')
    assert copied < installed
    (pip,) = [one for one in yaml.safe_load(read("environment.yml"))["dependencies"] if isinstance(one, dict)]
    assert "-e ." in pip["pip"]


def test_binder_runs_post_build_after_all_is_installed(dockerfile: str):
    assert dockerfile.index("env update") < dockerfile.index("RUN ./postBuild")


def test_post_build_finds_everything_in_an_environment_that_is_complete():
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        [ROOT / "postBuild"], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


# ---- What the README promises


def test_the_binder_link_opens_a_notebook_that_exists():
    (link,) = set(re.findall(r"https://mybinder\.org/v2/gh/[^/\s]+/[^/\s]+/HEAD\?[^\s)]+", read("README.md")))
    (path,) = urllib.parse.parse_qs(urllib.parse.urlsplit(link).query)["urlpath"]
    assert path.startswith("lab/tree/")
    assert (ROOT / path.removeprefix("lab/tree/")).is_file()


def test_the_commands_without_make_are_those_of_the_makefile():
    commands = re.findall(r"^\t@?\.venv/bin/python (-m (?:pip|jupyterlab).*)$", read("Makefile"), re.MULTILINE)
    assert len(commands) == 3
    shown = read("README.md").replace("\\", "/")
    for command in commands:
        assert f"python {command}" in shown


@pytest.mark.parametrize("name", [".ci/run", "postBuild"])
def test_scripts_can_be_executed_and_stop_at_the_first_failure(name: str):
    assert os.access(ROOT / name, os.X_OK)
    assert "set -euo pipefail" in read(name)
    assert subprocess.run(["bash", "-n", ROOT / name]).returncode == 0


def test_the_exercise_in_contributing_works_as_written():
    (example,) = re.findall(r"```python\n(.*?)```", read("CONTRIBUTING.md"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    (exercise,) = names["EXERCISES"]
    (mistake,) = exercise.misconceptions
    assert judge(exercise, observe(exercise, names["average_heads"], 1), 1).passed
    report = judge(exercise, observe(exercise, mistake.implementation, 1), 1)
    assert not report.passed
    assert report.misconceptions == (mistake.id,)
