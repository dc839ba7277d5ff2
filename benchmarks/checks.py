"""How long checks and notebooks take: `python benchmarks/checks.py [CHAPTER ...]`, on one core if you can.

Per exercise: seconds for a right answer, and for the slowest of its misconceptions (which must be compared with all
others to be named). Per solution notebook: seconds from starting the kernel to its end, and the kernel's peak memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from helpers.checks import judge_implementation
from helpers.checks.exercise import Exercise
from helpers.checks.registry import CHAPTERS, chapter

SOLUTIONS = Path(__file__).resolve().parents[1] / "solutions"
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", default=list(CHAPTERS), metavar="CHAPTER")
    for name in parser.parse_args().chapters:
        print(name)
        for exercise in chapter(name):
            if isinstance(exercise, Exercise):
                time_exercise(exercise)
        time_notebook(SOLUTIONS / name / f"{name}.ipynb")


def time_exercise(exercise: Exercise) -> None:
    """Print the seconds of one exercise's check."""
    right = seconds(exercise.id, exercise.reference)
    wrong = [(seconds(exercise.id, mistake.implementation), mistake.id) for mistake in exercise.misconceptions]
    slowest, name = max(wrong, default=(0.0, "none"))
    print(
        f"  {exercise.id:<28} right {right:5.2f} s   slowest of {len(wrong):2} misconceptions {slowest:5.2f} s ({name})"
    )


def seconds(exercise_id: str, implementation: object) -> float:
    start = time.perf_counter()
    judge_implementation(exercise_id, implementation, seed=0)
    return time.perf_counter() - start


def time_notebook(path: Path) -> None:
    """Run a notebook in a kernel of its own and print its seconds and peak memory (Linux)."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PEAK))
    start = time.perf_counter()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    peak = int(notebook.cells[-1].outputs[0].text) / 1024
    print(f"  {path.name:<28} {time.perf_counter() - start:5.1f} s, peak {peak:.0f} MB")


if __name__ == "__main__":
    main()
