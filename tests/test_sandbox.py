"""The walls around student code: nothing gets out, nothing stays, nothing grows, and without them nothing runs."""

from __future__ import annotations

import errno
import functools
import itertools
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert.exporters.exporter import ResourcesDict
from nbformat.v4 import new_code_cell, new_notebook
from submissions.chapter import ALL, CHAPTER
from submissions.course import Course, environment, need_sandbox, nothing_left_running
from submissions.escapes import (
    FINDING,
    LEAVING,
    MARK,
    SECRET,
    WORKED,
    attempts,
    lures,
    reaching,
    reading,
    writing,
)
from traitlets.config import Config

from helpers.grading import METADATA, seccomp
from helpers.grading import sandbox as sandboxes
from helpers.grading.entering import start_module
from helpers.grading.executing import ExecuteSubmission, Job, execute
from helpers.grading.sandbox import HOME, Limits, clean_environment, sandbox

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _sandbox() -> None:
    need_sandbox()


@dataclass(frozen=True)
class Ran:
    """What cells printed, and what was noted about them."""

    printed: str
    notes: str
    errors: str


def run(*cells: str, warm: bool, files: Mapping[str, bytes] | None = None, seconds: int = 20, **settings: Any) -> Ran:
    """Run cells in a sandbox of their own, in a kernel from the template or in one that begins from nothing."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel})
    config = {"Execute": {"timeout": seconds}, "ExecuteSubmission": settings}
    if warm:
        job = Job("somebody", CHAPTER, nbformat.writes(notebook).encode(), files=files or {}, settings=config)
        notebook = nbformat.reads(execute(job).decode(), as_version=4)
    else:
        resources = ResourcesDict(nbgrader={"student": "somebody", "notebook": CHAPTER})
        ExecuteSubmission(config=Config(config)).run(notebook, resources, files or {})
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    return Ran(
        "".join(output.text for output in outputs if output.output_type == "stream"),
        " ".join(note["text"] for note in notebook.metadata[METADATA].notes),
        " ".join(f"{output.ename}: {output.evalue}" for output in outputs if output.output_type == "error"),
    )


@pytest.fixture(params=["warm", "cold"])
def run_cells(request: pytest.FixtureRequest) -> Callable[..., Ran]:
    return functools.partial(run, warm=request.param == "warm")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A course folder worth breaking into."""
    return Course.released(tmp_path_factory.mktemp("sandbox") / "course").hand_in(["everything_right"])


# Nothing gets out


def test_nothing_that_is_forbidden_works(run_cells: Callable[..., Ran], course: Course, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_GRADER", SECRET)
    ran = run_cells(reading(course.path), writing(course.path), reaching(course.path))
    assert ran.printed.count(" attempts") == 3
    assert WORKED not in ran.printed
    assert (ran.errors, ran.notes) == ("", "")
    assert lures().came() == 0


def test_the_same_attempts_work_where_there_are_no_walls(course: Course) -> None:
    """Only those that change nothing."""
    harmless = reading(course.path) + "\n" + reaching(course.path)
    done = subprocess.run(
        [sys.executable, "-c", harmless],
        cwd=course.path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    worked = set(re.findall(rf"^{WORKED} (\w+)_ ", done.stdout, re.MULTILINE))
    assert worked >= {
        *("gradebook", "solution", "others", "by_link", "folder_of_the_course", "config", "the_courses_source"),
        *("temporary_files", "own_environment", "any_environment", "the_grader", "tcp"),
        *("abstract_socket", "socket_file", "signal_the_grader", "signal_others", "stop_the_parent"),
    }, done.stdout + done.stderr
    assert lures().came() == 5  # two by TCP, a datagram, an abstract socket and one in a file


def test_student_code_finds_an_environment_without_anything_of_the_grader(run_cells: Callable[..., Ran]) -> None:
    ran = run_cells("import os\nprint(*sorted(os.environ))")
    of_the_kernel = {"PYDEVD_USE_FRAME_EVAL", "TERM", "CLICOLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "PAGER", "GIT_PAGER"}
    of_the_kernel |= {"MPLBACKEND", "PWD"}
    ours = {"ATTENTION_COURSE_SEED", "NBGRADER_EXECUTION"}
    assert set(ran.printed.split()) - of_the_kernel == set(clean_environment({})) | ours


def test_what_was_handed_in_is_there_and_may_be_written(run_cells: Callable[..., Ran]) -> None:
    files = {"data/a.txt": b"one", "numpy.py": b"raise ImportError", "de\u0301ja\u0300 vu": b"two"}
    ran = run_cells(
        "import os, numpy\nprint(os.getcwd())",
        "print(sorted(os.path.join(place, name) for place, _, names in os.walk('.') for name in names))",
        "open('data/a.txt', 'a').write(' more')\nprint(open('data/a.txt').read())",
        files=files,
    )
    assert (ran.errors, ran.notes) == ("", "")
    assert ran.printed.splitlines() == [
        f"{HOME}/{CHAPTER}",
        str(sorted(f"./{name}" for name in files)),
        "one more",
    ]


# Nothing stays


def test_nothing_survives_into_the_next_submission(run_cells: Callable[..., Ran], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = run_cells(LEAVING)
    assert "1 attempts" in left.printed
    assert nothing_left_running(MARK, seconds=0) == []
    assert list(tmp_path.glob("grading-*")) == []
    found = run_cells(attempts(FINDING))
    assert " attempts" in found.printed
    assert WORKED not in found.printed


def test_a_folder_that_may_not_be_entered_does_not_stay(run_cells: Callable[..., Ran], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_cells(
        "import os\nfrom ipykernel import get_connection_file\n"
        "place = os.path.dirname(get_connection_file())\n"
        "os.makedirs(place + '/closed/deep')\nos.symlink('/', place + '/root')\nos.chmod(place + '/closed', 0)"
    )
    assert list(tmp_path.glob("grading-*")) == []


# Nothing grows


GREEDY = "it used more than 1500 MB of memory"
CROWDED = "it started more than 40 processes"
FILLED = "it filled the folder of its connection"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        pytest.param("kept = []\nwhile True: kept.append(bytearray(10_000_000))", GREEDY, id="memory"),
        pytest.param(
            "import mmap, time\nkept = mmap.mmap(-1, 4_000_000_000)\nkept.write(bytes(3_000_000_000))\ntime.sleep(5)",
            GREEDY,
            id="shared memory",
        ),
        pytest.param("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "it ", id="fork bomb"),
        pytest.param(
            "import subprocess, time\nfor _ in range(100): subprocess.Popen(['sleep', '60'])\ntime.sleep(5)",
            CROWDED,
            id="processes",
        ),
        pytest.param(
            "import os, time\nfrom ipykernel import get_connection_file\n"
            "place = os.path.dirname(get_connection_file()) + '/deep'\nos.mkdir(place)\n"
            "for number in range(3): open(f'{place}/{number}', 'wb').write(bytes(40_000_000))\ntime.sleep(5)",
            FILLED,
            id="connection",
        ),
    ],
)
def test_what_takes_too_much_is_stopped_and_the_rest_goes_on(
    run_cells: Callable[..., Ran], cell: str, reason: str
) -> None:
    ran = run_cells(cell, "print('went', 'on')")
    assert reason in ran.notes
    assert "this cell stopped the notebook, which was run again without it" in ran.notes
    assert "went on" in ran.printed


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param("kept = bytearray(50_000_000_000)", id="memory at once"),
        pytest.param("open('large', 'wb').write(bytes(60_000_000))", id="large file"),
        pytest.param("for n in range(9): open(f'{n}', 'wb').write(bytes(40_000_000))", id="home"),
        pytest.param("for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(40_000_000))", id="tmp"),
        pytest.param("for n in range(2): open(f'/dev/shm/{n}', 'wb').write(bytes(40_000_000))", id="shm"),
    ],
)
def test_what_would_take_too_much_raises(run_cells: Callable[..., Ran], cell: str) -> None:
    ran = run_cells(cell, "print('went', 'on')")
    assert ran.errors.startswith(("MemoryError", "OSError"))
    assert "went on" in ran.printed
    assert ran.notes == ""


def test_time_in_the_processor_is_limited() -> None:
    with sandbox({}, "work", Limits(cpu_time=1), {}) as room:
        program = start_module(room, "timeit", ["--number", "1", "while True: pass"])
        assert program.wait(timeout=60)


def test_processes_are_limited_also_while_nobody_looks(run_cells: Callable[..., Ran], monkeypatch) -> None:
    monkeypatch.setattr(sandboxes, "_excess", lambda *_: "")
    again = "import os, ctypes, time\nctypes.CDLL(None).setreuid(1000, 1000)"  # would be counted anew
    fork = "if os.fork() == 0:\n            time.sleep(8); os._exit(0)\n        started += 1"
    count = f"started = 0\ntry:\n    while started < 3000:\n        {fork}\nexcept OSError:\n    print('no more')"
    ran = run_cells(f"{again}\n{count}\nprint(started)")
    assert ran.printed.startswith("no more\n")
    assert int(ran.printed.split()[-1]) < Limits().threads


def test_nothing_is_written_where_only_the_sandbox_has_a_home(run_cells: Callable[..., Ran]) -> None:
    run_cells("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
    assert not Path(HOME).exists()


def test_output_is_limited(run_cells: Callable[..., Ran]) -> None:
    ran = run_cells("for _ in range(300): print('x' * 10_000)", "print('went', 'on')")
    assert len(ran.printed) < 1_100_000
    assert "more than a cell may print" in ran.printed
    assert "went on" in ran.printed


def test_a_whole_submission_has_a_time_limit(run_cells: Callable[..., Ran]) -> None:
    ran = run_cells(*["import time\ntime.sleep(1.5)"] * 4, submission_timeout=3)
    assert "NotRun: the submission had used up its 3 seconds" in ran.errors


def test_a_submission_cannot_do_without_the_sandbox(run_cells: Callable[..., Ran]) -> None:
    """Its own files and settings have no say."""
    settings = b'{"ExecuteSubmission": {"sandbox": false}}'
    ran = run_cells(
        "import os\nprint(os.getcwd())", files={"jupyter_config.json": settings, "nbgrader_config.py": b"1/0"}
    )
    assert ran.printed.strip() == f"{HOME}/{CHAPTER}"


# Where there is no sandbox


@pytest.fixture
def without_bubblewrap() -> dict[str, str]:
    return {"PATH": str(Path(sys.executable).parent)}


SENTENCE = "bubblewrap is missing. On Debian and Ubuntu: sudo apt-get install bubblewrap"


def test_run_refuses_without_bubblewrap(course: Course, without_bubblewrap: dict[str, str]) -> None:
    folder = course.copy("refused")
    said = folder.grading("run", code=2, env=without_bubblewrap)
    assert SENTENCE in said and "--no-sandbox" in said
    assert not (folder.path / "autograded").exists()


def test_nbgrader_refuses_without_bubblewrap(course: Course, without_bubblewrap: dict[str, str]) -> None:
    folder = course.copy("refused_too")
    said = folder.nbgrader("autograde", CHAPTER, code=1, env=without_bubblewrap)
    assert SENTENCE in said and "--ExecuteSubmission.sandbox=False" in said
    assert not list((folder.path / "autograded").rglob("*.ipynb"))
    assert folder.outcome("everything_right") == (None, None, None)


def test_without_a_sandbox_everybody_is_told(course: Course, without_bubblewrap: dict[str, str]) -> None:
    folder = course.copy("unsafe")
    said = folder.grading("run", "--no-sandbox", env=without_bubblewrap)
    assert "Without a sandbox: what students wrote runs with your rights." in said
    assert folder.outcome("everything_right") == ALL
    log = (folder.path / "grading" / "logs" / CHAPTER / "everything_right.log").read_text(encoding="utf-8")
    assert "WITHOUT a sandbox" in log
    assert "Run without a sandbox: 1 submission." in folder.grading("report")
    assert "without a sandbox" in (folder.path / "grading" / "report.html").read_text(encoding="utf-8").lower()


def test_nbgrader_grades_without_a_sandbox_when_it_is_told_to(
    course: Course, without_bubblewrap: dict[str, str]
) -> None:
    folder = course.copy("unsafe_too")
    folder.nbgrader("autograde", CHAPTER, "--ExecuteSubmission.sandbox=False", env=without_bubblewrap)
    assert folder.outcome("everything_right") == ALL
    assert "Run without a sandbox: 1 submission." in folder.grading("report")


# What others found


def test_what_would_outlive_a_sandbox_or_hide_in_it_is_refused(run_cells: Callable[..., Ran]) -> None:
    """Keys in a keyring, anonymous files and unattached memory: bubblewrap alone allows them all."""
    if not seccomp.program():
        pytest.skip("there is no filter of system calls for this processor")
    _, numbers = seccomp._ARCHITECTURES[platform.machine()]
    calls = {name: f"libc.syscall({number}, b'user', b'x', b'hello', 5, -4)" for name, number in numbers.items()}
    tries = "\n".join(f"print({name!r}, {call}, ctypes.get_errno())" for name, call in calls.items())
    ran = run_cells(f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n{tries}")
    assert ran.printed.split("\n")[:-1] == [f"{name} -1 {errno.EPERM}" for name in calls]


def test_a_process_with_an_odd_name_is_watched_like_any_other(run_cells: Callable[..., Ran]) -> None:
    rename = r"import ctypes; ctypes.CDLL(None).prctl(15, b'a\x0bThreads:\t1', 0, 0, 0)"
    grow = "block = bytearray(2_000_000_000)\nfor i in range(0, len(block), 4096): block[i] = 1\nprint('grown')"
    ran = run_cells(f"{rename}\n{grow}", "print('next')")
    assert "grown" not in ran.printed and "next" in ran.printed
    assert "more than 1500 MB of memory" in ran.notes


def test_memory_that_forked_processes_share_counts_once(run_cells: Callable[..., Ran]) -> None:
    fork = "import os\nblock = bytearray(300_000_000)\nfor i in range(0, len(block), 4096): block[i] = 1"
    wait = "children = []\nfor _ in range(7):\n    pid = os.fork()\n    if not pid:\n        time.sleep(3); os._exit(0)"
    end = "    children.append(pid)\nfor pid in children: os.waitpid(pid, 0)\nprint(1)"
    ran = run_cells(f"import time\n{fork}\n{wait}\n{end}")
    assert (ran.printed, ran.notes) == ("1\n", "")


def test_a_kernel_cannot_fill_a_notebook(run_cells: Callable[..., Ran]) -> None:
    many = ["print('x' * 900_000)"] * 15
    show = "from IPython.display import display\nfor _ in range(50): handle = display('a', display_id='one')"
    update = "handle = display('b' * 5_000_000, display_id='one', update=True)"
    ran = run_cells(*many, show, update)
    assert 9_000_000 < len(ran.printed) < 11_000_000


def test_what_cannot_be_watched_is_stopped(monkeypatch) -> None:
    looks = itertools.count()
    # Once it breaks, when the kernel has long been up; the kernel after that is watched again.
    monkeypatch.setattr(sandboxes, "_excess", lambda *_: "" if next(looks) != 75 else 1 / 0)
    ran = run("import time\ntime.sleep(60)\nprint('slept')", "print('next')", warm=False, seconds=50)
    assert ran.printed == "next\n"
    assert "could not be watched (ZeroDivisionError)" in ran.notes
