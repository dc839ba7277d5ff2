"""Runs a submission, and goes on where its code does not want to."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from traitlets import Bool, Enum, Integer

from helpers.checks import OBSERVATIONS, SEED_VARIABLE
from helpers.grading import METADATA
from helpers.grading.cells import exercise_of

# What one cell may leave in the notebook, in characters: ordinary output, and what a test cell observed.
_MAX_OUTPUT = 1_000_000
_MAX_OBSERVATIONS = 50_000_000
_ARGUMENTS = (
    "--InteractiveShellApp.ignore_cwd=True",  # with PYTHONSAFEPATH: a submitted numpy.py is not imported
    "--IPKernelApp.log_level=ERROR",
)


class ExecuteSubmission(Execute):
    """Executes a submission with a seed of its own, which student code cannot know before it runs.

    A cell that stops its kernel is left out, and the notebook is run again without it and without the test cells that
    were through. So such a cell costs its own exercise and no other, and an endless loop its time limit once.
    """

    submission_timeout = Integer(600, help="Seconds that a whole submission may take.").tag(config=True)
    max_restarts = Integer(10, help="How often a submission may stop its kernel.").tag(config=True)
    store_widget_state = Bool(False).tag(config=True)
    record_timing = Bool(False).tag(config=True)
    shutdown_kernel = Enum(["graceful", "immediate"], default_value="immediate").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Run the notebook; its seed goes into resources[METADATA]["seed"] and into the notebook's metadata."""
        seed = secrets.randbelow(2**32)
        resources[METADATA] = {"seed": seed}
        nb.metadata[METADATA] = {**nb.metadata.get(METADATA, {}), "seed": seed}
        self.nb, self.resources = nb, resources
        self._owner = resources.get("nbgrader", {}).get("student", "?")
        self._deadline = time.monotonic() + self.submission_timeout
        done: set[int] = set()
        for _ in range(self.max_restarts + 1):
            if self._run_rest(done, seed):
                return nb, resources
        for index, cell in enumerate(nb.cells):
            if exercise_of(cell) and index not in done:
                self._say(cell, "NotRun", f"the submission had stopped its kernel {self.max_restarts + 1} times")
        return nb, resources

    def _run_rest(self, done: set[int], seed: int) -> bool:
        """Run the cells that are not `done` in a new kernel; False if one of them stopped it."""
        self.reset_execution_trackers()
        self._sizes: dict[int, int] = {}
        self.extra_arguments = list(dict.fromkeys([*self.extra_arguments, *_ARGUMENTS]))
        environment = {**os.environ, SEED_VARIABLE: str(seed), "PYTHONSAFEPATH": "1"}
        with _copy_of(self.resources["metadata"]["path"]) as folder, self.setup_kernel(env=environment, cwd=folder):
            self.nb.metadata.language_info = self.wait_for_reply(self.kc.kernel_info())["content"]["language_info"]
            for index, cell in enumerate(self.nb.cells):
                if cell.cell_type != "code" or index in done:
                    continue
                if time.monotonic() > self._deadline:
                    self._say(cell, "NotRun", f"the submission had used up its {self.submission_timeout} seconds")
                    done.add(index)
                    continue
                problem = self._run_cell(cell, index)
                if problem or self._timed_out or exercise_of(cell):
                    done.add(index)
                if problem:
                    self._say(cell, "KernelStopped", problem)
                    return False
        return True

    def _run_cell(self, cell: NotebookNode, index: int) -> str:
        """Run one cell; returns what is wrong with the kernel afterwards, or ""."""
        self._reply: dict[str, Any] = {}
        try:
            self.execute_cell(cell, index, store_history=True)
        except Exception as error:  # the kernel died, does not answer, or answers what the client cannot read
            return f"this cell stopped the notebook, which was run again without it ({type(error).__name__})"
        payload = self._reply.get("payload") or []
        if any(isinstance(item, dict) and item.get("source") == "ask_exit" for item in payload):
            return "this cell told the notebook to exit, which was run again without it"
        return ""

    @property
    def _timed_out(self) -> bool:
        return self._reply.get("ename") == self.error_on_timeout["ename"]

    def _say(self, cell: NotebookNode, name: str, text: str) -> None:
        self.log.warning("%s of %s: %s", self.resources["nbgrader"]["notebook"], self._owner, text)
        cell.outputs.append(new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"]))

    def on_cell_executed(self, **kwargs: Any) -> None:
        super().on_cell_executed(**kwargs)
        self._reply = kwargs["execute_reply"]["content"]

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Take an output into the cell, up to a limit."""
        content = msg["content"]
        used = self._sizes.get(cell_index, 0)
        if used > _MAX_OUTPUT:
            return None
        if OBSERVATIONS in content.get("data", {}):
            if len(repr(content)) > _MAX_OBSERVATIONS:
                return None
        else:
            self._sizes[cell_index] = used + len(repr(content))
        if self._sizes.get(cell_index, 0) > _MAX_OUTPUT:
            outs.append(new_output("stream", name="stdout", text="\n... more than a cell may print\n"))
            return None
        return super().output(outs, msg, display_id, cell_index)


@contextlib.contextmanager
def _copy_of(folder: str) -> Iterator[str]:
    """A copy of a submission's folder that lasts as long as one kernel: what student code does to it has no effect."""
    with tempfile.TemporaryDirectory(prefix="submission-", ignore_cleanup_errors=True) as place:
        copy = os.path.join(place, os.path.basename(folder))
        shutil.copytree(folder, copy, symlinks=True)
        yield copy
