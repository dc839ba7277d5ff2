"""`python -m helpers.checks NOTEBOOK...`: check notebooks without Jupyter.

Runs the definitions of each notebook, prints a table of exercises, points and misconceptions and the card of
everything that is not right, and exits with 0 only if all exercises of all notebooks pass (2 if one can't be read).
"""

from __future__ import annotations

import argparse
import sys

from helpers import notebooks
from helpers.checks import MISSING, judge_answer
from helpers.checks.report import Report


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m helpers.checks", description="Check the exercises in notebooks.")
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="an .ipynb file of the course")
    parser.add_argument("--seed", type=int, default=None, help="make the same cases each time (default: fresh ones)")
    options = parser.parse_args(arguments)
    worst = 0
    for path in options.notebooks:
        try:
            notebook = notebooks.read(path)
        except ValueError as error:
            print(f"{error} Give the path of one of the course's .ipynb files.", file=sys.stderr)
            worst = 2
            continue
        reports, problems = _check(notebook, options.seed)
        _print_table(str(path), reports)
        for problem in problems:
            print(f"While running the cells: {problem}")
        for report in reports:
            if not report.passed:
                print(f"\n{report.message}")
        if not reports:
            print("There are no exercises in it. Is it one of the course's notebooks, with its test cells?")
        if not reports or not all(report.passed for report in reports):
            worst = max(worst, 1)
    return worst


def _check(notebook: notebooks.Notebook, seed: int | None) -> tuple[list[Report], tuple[str, ...]]:
    defined = notebooks.define(notebook)
    reports = [judge_answer(name, defined.names.get(name, MISSING), notebook, seed) for name in notebook.checks]
    return reports, defined.problems


def _print_table(title: str, reports: list[Report]) -> None:
    print(title)
    width = max([len(report.exercise) for report in reports], default=0)
    for report in reports:
        points = f"{report.earned:g} of {report.points:g}"
        print(
            f"  {report.exercise:<{width}}  {points:>10}  {report.state:<12} {' '.join(report.misconceptions)}".rstrip()
        )
    if reports:
        total = f"{sum(report.earned for report in reports):g} of {sum(report.points for report in reports):g}"
        print(f"  {'total':<{width}}  {total:>10}")


if __name__ == "__main__":
    sys.exit(main())
