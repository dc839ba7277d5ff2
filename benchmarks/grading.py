"""Grading a class with stock `nbgrader autograde`, with `run`, and with `run` on a dask cluster of two processes.

The class answers as the tests' collection of right and wrong answers does. Prints how many times faster `run` is, where
its time goes, what memory it takes, and whether all scores are the same. Takes some minutes:

    PYTHONPATH=tests python benchmarks/grading.py [CHAPTER] [--students N]
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FunctionType

import nbformat
import psutil
from answers import RIGHT, WRONG
from nbgrader.api import Gradebook

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "tcp://127.0.0.1:8799"


@dataclass
class Result:
    seconds: float
    scores: dict[tuple[str, str], float | None]
    memory: float
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapter", nargs="?", default="01_softmax")
    parser.add_argument("--students", type=int, default=48)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        hand_in(course, options.chapter, options.students)
        grade = ["-m", "helpers.grading", "run", options.chapter]
        results = {
            "stock": timed(course, options.chapter, ["-m", "nbgrader", "autograde", options.chapter]),
            "run": timed(course, options.chapter, grade),
            "run --pictures": timed(course, options.chapter, [*grade, "--pictures"]),
        }
        with cluster():
            results["run, dask"] = timed(course, options.chapter, [*grade, "--scheduler", ADDRESS])
    print(f"{options.students} submissions of {options.chapter}, {len(os.sched_getaffinity(0))} processors")
    for name, result in results.items():
        ratio = results["stock"].seconds / result.seconds
        same = "identical" if result.scores == results["stock"].scores else "DIFFERENT"
        print(
            f"{name:15} {result.seconds:6.1f} s, {ratio:5.1f} times stock's throughput, scores {same}, "
            f"most memory of a process with all it started: {result.memory / 1e6:.0f} MB"
        )
        print(f"{'':15} {result.said.strip().splitlines()[-1] if result.said.strip() else ''}")


def hand_in(course: Path, chapter: str, students: int) -> None:
    """A course folder with a class's submissions, and the chapter in its gradebook."""
    for name in ("nbgrader_config.py", f"solutions/{chapter}"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, _made(course / name))
    for number in range(students):
        notebook = nbformat.read(ROOT / "notebooks" / chapter / f"{chapter}.ipynb", as_version=4)
        for cell in notebook.cells:
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("solution") and cell.cell_type == "code":
                cell.source = answer_of(marks["grade_id"], Random(f"{number} {marks['grade_id']}")) or cell.source
        nbformat.write(notebook, _made(course / "submitted" / f"student{number:03}" / chapter / f"{chapter}.ipynb"))
    python(course, ["-m", "nbgrader", "generate_assignment", chapter])


def answer_of(exercise: str, chance: Random) -> str:
    """Somebody's answer to an exercise as text; "" leaves the cell as it was handed out."""
    if exercise.startswith("quiz"):
        return f'{exercise} = "{chance.choice("ABCD")}"'
    pool = chance.choice([RIGHT, RIGHT, WRONG])
    fitting = [answer.implementation for answer in pool if answer.exercise == exercise]
    functions = [
        function for function in fitting if isinstance(function, FunctionType) and function.__name__ != "<lambda>"
    ]
    if not functions:
        return ""
    function = chance.choice(functions)
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("@"))
    return re.sub(rf"def {function.__name__}\b", f"def {exercise}", text)


def timed(course: Path, chapter: str, command: list[str]) -> Result:
    """Grade the class from the beginning."""
    for folder in ("autograded", "grading"):
        shutil.rmtree(course / folder, ignore_errors=True)
    began = time.perf_counter()
    with watched() as memory:
        said = python(course, command)
    seconds = time.perf_counter() - began
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        scores = {
            (submission.student_id, grade.name): grade.auto_score
            for submission in gradebook.assignment_submissions(chapter)
            for notebook in submission.notebooks
            for grade in notebook.grades
        }
        for submission in gradebook.assignment_submissions(chapter):  # so that nothing is left for the next
            gradebook.remove_submission(chapter, submission.student_id)
    return Result(seconds, scores, max(memory), said)


@contextlib.contextmanager
def watched() -> Iterator[list[float]]:
    """The memory of each child of this process's child, with all that it started, looked at twice a second.

    Shared pages count once: it is the sum of what each process has of its own (PSS).
    """
    most, stop = [0.0], threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            for child in psutil.Process().children():
                for worker in child.children():
                    with contextlib.suppress(psutil.Error):
                        family = [worker, *worker.children(recursive=True)]
                        most.append(sum(process.memory_full_info().pss for process in family))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """A scheduler and two workers that talk over TCP."""
    port = ADDRESS.rsplit(":", 1)[1]
    commands = [["scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]]
    commands += [["worker", ADDRESS, "--nthreads", "1", "--no-dashboard"]] * 2
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "dask", *command], cwd=folder, env=environment(), stderr=subprocess.DEVNULL
            )
            for command in commands
        ]
        time.sleep(8)
        try:
            yield
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


def python(folder: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def environment() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    paths = {"PATH": os.pathsep.join([scripts, os.environ["PATH"]]), "PYTHONPATH": str(ROOT)}
    return os.environ | paths


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
