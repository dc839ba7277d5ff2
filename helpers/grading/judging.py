"""Judges what a submission's test cells observed: here, in the grader's process, where no student code runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor

from helpers import notebooks
from helpers.checks import OBSERVATIONS, Report
from helpers.checks.card import card_html
from helpers.checks.judging import judge, not_judged
from helpers.checks.registry import find
from helpers.grading import METADATA
from helpers.grading.cells import exercise_of

# Observations larger than this, in characters of JSON, are judged but not kept for a later judgement.
_MAX_KEPT = 2_000_000


class JudgeObservations(NbGraderPreprocessor):
    """Gives every test cell its points and its report card, in place of whatever it had put out.

    The seed comes from `ExecuteSubmission`, or from the notebook when it was executed earlier: observations stay in
    the cell's output, so that they can be judged again. Never raises; what cannot be judged earns 0.
    """

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Judge all test cells of an executed notebook."""
        kept = nb.metadata.get(METADATA, {})
        seed = (resources.get(METADATA) or kept).get("seed")
        owner = resources.get("nbgrader", {}).get("student", "?")
        for cell in nb.cells:
            exercise_id = exercise_of(cell)
            if exercise_id:
                notes = [note["text"] for note in kept.get("notes", []) if note["cell"] == _grade_id(cell)]
                cell.outputs = self._judged(nb, cell, exercise_id, seed, owner, notes)
            elif cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if OBSERVATIONS not in output.get("data", {})]
        return nb, resources

    def _judged(
        self, nb: NotebookNode, cell: NotebookNode, exercise_id: str, seed: Any, owner: str, notes: list[str]
    ) -> list[NotebookNode]:
        points = float(cell.metadata.nbgrader["points"])
        try:
            exercise, bundles = replace(find(exercise_id), points=points), _bundles(cell)
            problem = _problem(cell, bundles) if seed is not None else "no seed was drawn for this submission"
            if problem:
                report = not_judged(exercise, problem)
            else:
                report = judge(exercise, bundles[0], seed, *notebooks.of(nb).answer_and_context(exercise_id))
            return _outputs(cell, replace(report, notes=(*report.notes, *notes)), bundles)
        except Exception:  # whatever a forged observation, or a test cell without an exercise, leads to
            self.log.exception("The test cell %s of %s could not be judged.", _grade_id(cell), owner)
            sorry = "Not judged: what this check handed over cannot be used."
            return _outputs(cell, Report(exercise_id, "not judged", points, notes=(sorry,)), [])


def _bundles(cell: NotebookNode) -> list[Any]:
    """Everything in the cell's outputs that claims to be observations."""
    return [output.data[OBSERVATIONS] for output in cell.outputs if OBSERVATIONS in output.get("data", {})]


def _problem(cell: NotebookNode, bundles: list[Any]) -> str:
    """Why a test cell cannot be judged, or ""."""
    if len(bundles) == 1:
        return ""
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors and not bundles:
        return f"this check ended with {errors[0].ename}: {str(errors[0].evalue)[:200]}"
    count = "more than one result" if bundles else "no result"
    return f"this check handed over {count}. Leave `grade`, `display` and the notebook's machinery as they are"


def _outputs(cell: NotebookNode, report: Report, bundles: list[Any]) -> list[NotebookNode]:
    """The card with what it was made from, and the points, which nbgrader reads from the last output."""
    data = {"text/html": card_html(report), "text/plain": report.message}
    if report.state != "not judged" and len(json.dumps(bundles[0])) <= _MAX_KEPT:
        data[OBSERVATIONS] = bundles[0]
    earned = report.earned if math.isfinite(report.earned) else 0.0
    return [
        new_output("display_data", data=data),
        new_output("execute_result", data={"text/plain": repr(float(earned))}, execution_count=cell.execution_count),
    ]


def _grade_id(cell: NotebookNode) -> str:
    return cell.metadata.nbgrader["grade_id"]
