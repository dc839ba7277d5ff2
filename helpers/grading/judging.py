"""Judges what a submission's test cells observed: here, in the grader's process, where no student code runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import NbGraderPreprocessor

from helpers import notebooks
from helpers.checks import OBSERVATIONS, Report
from helpers.checks.card import card_html
from helpers.checks.judging import judge, not_judged
from helpers.checks.observing import digest_of_cases
from helpers.checks.registry import find
from helpers.grading import METADATA
from helpers.grading.cells import exercise_of

# Observations larger than this, in characters of JSON, are judged but not kept for a later judgement.
_MAX_KEPT = 2_000_000


class JudgeObservations(NbGraderPreprocessor):
    """Gives every test cell its points and its report card, in place of whatever it had put out.

    The seed comes from `ExecuteSubmission`, or from the notebook when it was executed earlier: observations stay in
    the cell's output, so that they can be judged again. The verdicts go into the notebook's metadata as well, for
    programs to read; what stood there before is replaced. Never raises; what cannot be judged earns 0.
    """

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Judge all test cells of an executed notebook."""
        kept = nb.metadata.get(METADATA)
        kept = dict(kept) if isinstance(kept, Mapping) else {}
        seed = (resources.get(METADATA) or kept).get("seed")
        owner = resources.get("nbgrader", {}).get("student", "?")
        verdicts = {}
        earlier_verdicts = kept.get("reports") if isinstance(kept.get("reports"), Mapping) else {}
        for cell in nb.cells:
            exercise_id = exercise_of(cell)
            earlier = earlier_verdicts.get(exercise_id, {})
            if exercise_id and earlier.get("state") == "not judged" and not _bundles(cell):
                verdicts[exercise_id] = earlier  # there is nothing new to say, and its card says why
            elif exercise_id:
                notes = _notes_on(_grade_id(cell), kept.get("notes"))
                report, cell.outputs = self._judged(nb, cell, exercise_id, seed, owner, notes)
                verdicts[exercise_id] = _verdict(report, notes)
            elif cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if OBSERVATIONS not in output.get("data", {})]
        nb.metadata[METADATA] = nbformat.from_dict(kept | {"reports": verdicts})
        return nb, resources

    def _judged(
        self, nb: NotebookNode, cell: NotebookNode, exercise_id: str, seed: Any, owner: str, notes: list[str]
    ) -> tuple[Report, list[NotebookNode]]:
        """The verdict on a test cell, and the cell's new outputs. `notes` stand on the card as well."""
        points = float(cell.metadata.nbgrader["points"])
        try:
            exercise, bundles = replace(find(exercise_id), points=points), _bundles(cell)
            problem = _problem(cell, bundles) if seed is not None else "no seed was drawn for this submission"
            if problem:
                report = not_judged(exercise, problem)
            else:
                report = judge(exercise, bundles[0], seed, *notebooks.of(nb).answer_and_context(exercise_id))
            return report, _outputs(cell, replace(report, notes=(*report.notes, *notes)), bundles)
        except Exception:  # whatever a forged observation, or a test cell without an exercise, leads to
            self.log.exception("The test cell %s of %s could not be judged.", _grade_id(cell), owner)
            sorry = "Not judged: what this check handed over cannot be used."
            report = Report(exercise_id, "not judged", points, notes=(sorry,))
            return report, _outputs(cell, report, [])


def _notes_on(grade_id: str, notes: Any) -> list[str]:
    """What was put right about one cell. Notes that grading has not written itself may be anything."""
    return [
        note["text"]
        for note in (notes if isinstance(notes, list) else [])
        if isinstance(note, Mapping) and note.get("cell") == grade_id and isinstance(note.get("text"), str)
    ]


def cases_of(exercise_id: str) -> str:
    """A digest of an exercise's cases. Observations that were made with others cannot be judged again."""
    return digest_of_cases(getattr(find(exercise_id), "cases", ()))


def _verdict(report: Report, notes: list[str]) -> dict[str, Any]:
    """A report as the notebook's metadata keeps it. A card's hints and remarks are for the learner, and stay there."""
    why = [finding.text for finding in report.findings] + list(report.notes) if report.state == "not judged" else []
    return {
        "state": report.state,
        "earned": _earned(report),
        "points": float(report.points),
        "misconceptions": list(report.misconceptions),
        "notes": [*notes, *why],
        **({} if report.state == "not judged" else {"cases": cases_of(report.exercise)}),
    }


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
    points = {"text/plain": repr(_earned(report))}
    return [
        new_output("display_data", data=data),
        new_output("execute_result", data=points, execution_count=cell.execution_count),
    ]


def _earned(report: Report) -> float:
    return float(report.earned) if math.isfinite(report.earned) else 0.0


def _grade_id(cell: NotebookNode) -> str:
    return cell.metadata.nbgrader["grade_id"]
