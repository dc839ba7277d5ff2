"""`python -m helpers.checks NOTEBOOK...`: check notebooks without Jupyter.

Runs the definitions of each notebook, prints a table of exercises, points and misconceptions and the card of
everything that is not right, and exits with 0 only if all exercises of all notebooks pass (2 if one can't be read).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from helpers import notebooks
from helpers.checks import MISSING, isolation, judge_answer
from helpers.checks.registry import CHAPTERS, chapter
from helpers.checks.report import Report

#: Seconds that one notebook may take: its definitions, and 10 s for each check.
TIME_LIMIT = 200.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m helpers.checks", description="Check the exercises in notebooks.")
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="an .ipynb file of the course")
    parser.add_argument("--seed", type=int, default=None, help="make the same cases each time (default: fresh ones)")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # students' texts may hold what a terminal cannot show
    return max(_check_file(path, options.seed) for path in options.notebooks)


def _check_file(path: str, seed: int | None) -> int:
    try:
        notebook = notebooks.read(path)
    except ValueError as error:
        print(f"{error} Give the path of one of the course's .ipynb files.", file=sys.stderr)
        return 2
    names = _exercises_of(notebook)
    if not names:
        print(f"{path}\nThere are no exercises in it. Is it one of the course's notebooks, with its test cells?")
        return 1
    # In a child: code at the top level of a cell may end the process, and must not end it as if all were well.
    run = isolation.run(lambda send: send(_verdict(path, notebook, names, seed)), TIME_LIMIT)
    if run.end != "done" or len(run.messages) != 1:
        print(
            f"{path}\nThe code of its cells {run.end}, so nothing could be checked. See what stands outside functions."
        )
        return 1
    print(run.messages[0]["text"])
    return 0 if run.messages[0]["passed"] else 1


def _exercises_of(notebook: notebooks.Notebook) -> list[str]:
    """All exercises of the chapters that the notebook answers or checks, whether their test cells are there or not."""
    seen = {*notebook.checks, *(cell.answers for cell in notebook.cells)}
    chapters = [name for name in CHAPTERS if any(exercise.id in seen for exercise in chapter(name))]
    return [exercise.id for name in chapters for exercise in chapter(name)]


def _verdict(path: str, notebook: notebooks.Notebook, names: list[str], seed: int | None) -> dict[str, Any]:
    """The text to print, and whether everything passed."""
    defined = notebooks.define(notebook)
    reports = [judge_answer(name, defined.names.get(name, MISSING), notebook, seed) for name in names]
    parts = [*_table(path, reports), *(f"While running the cells: {problem}" for problem in defined.problems)]
    parts += [f"\n{report.message}" for report in reports if not report.passed]
    return {"text": "\n".join(parts), "passed": all(report.passed for report in reports)}


def _table(title: str, reports: list[Report]) -> list[str]:
    width = max(len(report.exercise) for report in reports)
    lines = [title]
    for report in reports:
        points = f"{report.earned:g} of {report.points:g}"
        mistakes = " ".join(report.misconceptions)
        lines.append(f"  {report.exercise:<{width}}  {points:>10}  {report.state:<12} {mistakes}".rstrip())
    total = f"{sum(report.earned for report in reports):g} of {sum(report.points for report in reports):g}"
    return [*lines, f"  {'total':<{width}}  {total:>10}"]


if __name__ == "__main__":
    sys.exit(main())
