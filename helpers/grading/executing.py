"""Runs a submission in a sandbox, and goes on where its code does not want to.

`nbgrader autograde` and the formgrader start one kernel after the other. `run` executes many submissions at a time by
the pure function `execute`, in processes here or on other machines, and hands the result to `ExecuteSubmission`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat.notebooknode import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from traitlets import Bool, Enum, Integer
from traitlets.config import Config

from helpers import WITHOUT_PICTURES
from helpers.checks import OBSERVATIONS, SEED_VARIABLE
from helpers.grading import METADATA
from helpers.grading.cells import exercise_of
from helpers.grading.course import plain_files, printable
from helpers.grading.kernels import SandboxedKernelManager
from helpers.grading.sandbox import Limits, SandboxError, sandbox, unavailable
from helpers.grading.template import TemplateProcess, answers

# What may be left in the notebook, in characters: output of one cell, of all, and what all test cells observed.
_MAX_OUTPUT = 1_000_000
_MAX_ALL_OUTPUT = 10_000_000
_MAX_OBSERVATIONS = 30_000_000
# What may lie beside a submitted notebook, in files and bytes; the rest is not there when it runs.
_MAX_FILES = 100
_MAX_FILE_BYTES = 50_000_000
_ARGUMENTS = (
    "--InteractiveShellApp.ignore_cwd=True",  # with PYTHONSAFEPATH: a submitted numpy.py is not imported
    "--IPKernelApp.log_level=ERROR",
    "--HistoryManager.hist_file=:memory:",
)


@dataclass(frozen=True)
class Job:
    """A repaired notebook that is to be executed, with the files beside it. Holds all that `execute` needs."""

    owner: str
    name: str
    notebook: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    note: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""  # the address of one that somebody else looks after

    @property
    def uses_torch(self) -> bool:
        return re.search(rb"\b(?:import|from) torch\b", self.notebook) is not None


def execute(job: Job) -> bytes:
    """The executed notebook of a job, from nothing but the job: the same function here and on other machines.

    Keeps a process from which kernels are forked, one for each process that calls it. SandboxError where there is
    no sandbox and the settings ask for one.
    """
    settings = Config(job.settings)
    executing = ExecuteSubmission(config=settings)
    if executing.sandbox:
        executing.template = _template(job)
    notebook = nbformat.reads(job.notebook.decode(), as_version=4)
    resources = ResourcesDict(nbgrader={"student": job.owner, "notebook": job.name})
    began = time.monotonic()
    executing.run(notebook, resources, job.files, job.note)
    notebook.metadata[METADATA].seconds = round(time.monotonic() - began, 2)
    return nbformat.writes(notebook).encode()


class ExecuteSubmission(Execute):
    """Executes a submission with a seed of its own, which student code cannot know before it runs.

    A cell that stops its kernel is left out, and the notebook is run again without it and without the test cells that
    were through. So such a cell costs its own exercise and no other, and an endless loop its time limit once.
    """

    sandbox = Bool(True, help="Whether student code runs in a sandbox; without one it runs with your rights.").tag(
        config=True
    )
    pictures = Bool(True, help="Whether the notebooks' pictures are drawn; their words are there in any case.").tag(
        config=True
    )
    submission_timeout = Integer(600, help="Seconds that a whole submission may take.").tag(config=True)
    max_restarts = Integer(10, help="How often a submission may stop its kernel.").tag(config=True)
    store_widget_state = Bool(False).tag(config=True)
    record_timing = Bool(False).tag(config=True)
    shutdown_kernel = Enum(["graceful", "immediate"], default_value="immediate").tag(config=True)
    template: str | None = None  # the address of one, see `kernels`

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Run the notebook; its seed and what happened go into its metadata."""
        files, note = files_beside(Path(resources["metadata"]["path"]))
        self.run(nb, resources, files, note)
        return nb, resources

    def run(self, nb: NotebookNode, resources: ResourcesDict, files: Mapping[str, bytes], note: str = "") -> None:
        """Run the notebook among these files. SandboxError if there is no sandbox but ought to be."""
        if self.sandbox and unavailable():
            raise SandboxError(
                f"{unavailable()} To grade without a sandbox all the same: --no-sandbox, "
                "or --ExecuteSubmission.sandbox=False for nbgrader autograde. Student code then has your rights."
            )
        seed = secrets.randbelow(2**32)
        kept = nb.metadata.setdefault(METADATA, NotebookNode())
        notes = [*kept.get("notes", []), *([{"cell": "", "text": note}] if note else [])]
        kept.update(seed=seed, sandbox=self.sandbox, notes=notes)
        self.nb, self.resources = nb, resources
        self._owner = resources.get("nbgrader", {}).get("student", "?")
        self._deadline = time.monotonic() + self.submission_timeout
        self._environment = {SEED_VARIABLE: str(seed), "PYTHONSAFEPATH": "1", "NBGRADER_EXECUTION": "autograde"}
        if not self.pictures:
            self._environment[WITHOUT_PICTURES] = "1"
        self._all_observations = 0
        done: set[int] = set()
        for _ in range(self.max_restarts + 1):
            if self._run_rest(done, files):
                return
        for index, cell in enumerate(nb.cells):
            if exercise_of(cell) and index not in done:
                self._say(cell, "NotRun", f"the submission had stopped its kernel {self.max_restarts + 1} times")

    def _run_rest(self, done: set[int], files: Mapping[str, bytes]) -> bool:
        """Run the cells that are not `done` in a new kernel; False if one of them stopped it."""
        self.reset_execution_trackers()
        self._sizes: dict[int, int] = {}
        self._bundles: dict[int, int] = {}
        self._all_output = 0
        self.extra_arguments = list(dict.fromkeys([*self.extra_arguments, *_ARGUMENTS]))
        with self._kernel(files):
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
                if self._timed_out:
                    self._note(cell, f"was stopped after {self.timeout} seconds")
                if problem:
                    self._say(cell, "KernelStopped", problem)
                    return False
        return True

    @contextlib.contextmanager
    def _kernel(self, files: Mapping[str, bytes]) -> Iterator[None]:
        """A kernel in a folder with these files, which lasts no longer than it."""
        name = self.resources["nbgrader"]["notebook"]
        self._room = None
        if self.sandbox:
            with sandbox(files, name, Limits(cpu_time=self.submission_timeout), self._environment) as room:
                self._room = room
                self.km = SandboxedKernelManager(room, self.template, config=self.config)
                with contextlib.closing(self.km), self.setup_kernel():
                    yield
        else:
            with (
                tempfile.TemporaryDirectory(prefix="submission-", ignore_cleanup_errors=True) as place,
                self.setup_kernel(env={**os.environ, **self._environment}, cwd=_unpacked(Path(place) / name, files)),
            ):
                yield

    def _run_cell(self, cell: NotebookNode, index: int) -> str:
        """Run one cell; returns what is wrong with the kernel afterwards, or ""."""
        self._reply: dict[str, Any] = {}
        try:
            self.execute_cell(cell, index, store_history=True)
        except Exception as error:  # the kernel died, does not answer, or answers what the client cannot read
            excess = self._room.excess if self._room else ""
            return f"this cell stopped the notebook, which was run again without it ({excess or type(error).__name__})"
        payload = self._reply.get("payload") or []
        if any(isinstance(item, dict) and item.get("source") == "ask_exit" for item in payload):
            return "this cell told the notebook to exit, which was run again without it"
        return ""

    @property
    def _timed_out(self) -> bool:
        return self._reply.get("ename") == self.error_on_timeout["ename"]

    def _say(self, cell: NotebookNode, name: str, text: str) -> None:
        self._note(cell, text)
        cell.outputs.append(new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"]))

    def _note(self, cell: NotebookNode, text: str) -> None:
        """Keep a sentence for the log and the report."""
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        where = f"`{grade_id}`" if grade_id else f"the cell that begins {cell.source.strip()[:40]!r}"
        self.log.warning("%s of %s: %s: %s", self.resources["nbgrader"]["notebook"], self._owner, where, text)
        self.nb.metadata[METADATA].notes.append({"cell": "", "text": f"{where}: {text}"})

    def handle_comm_msg(self, outs: list[NotebookNode], msg: dict[str, Any], cell_index: int) -> None:
        """Take nothing from widgets: their state is not kept, and student code could write it."""

    def on_cell_executed(self, **kwargs: Any) -> None:
        super().on_cell_executed(**kwargs)
        self._reply = kwargs["execute_reply"]["content"]

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Take an output into the cell, up to a limit for the cell and one for the notebook."""
        content = msg["content"]
        if OBSERVATIONS in content.get("data", {}):
            if not self._takes_observations(cell_index, len(repr(content))):
                return None
        elif not self._takes_output(outs, cell_index, len(repr(content))):
            return None
        return super().output(outs, msg, display_id, cell_index)

    def _takes_observations(self, cell_index: int, size: int) -> bool:
        self._bundles[cell_index] = self._bundles.get(cell_index, 0) + 1
        self._all_observations += size
        return (
            exercise_of(self.nb.cells[cell_index]) is not None
            and self._bundles[cell_index] <= 2  # a second one is not judged, but said
            and self._all_observations <= _MAX_OBSERVATIONS
        )

    def _takes_output(self, outs: list[NotebookNode], cell_index: int, size: int) -> bool:
        used = self._sizes.get(cell_index, 0)
        if used > _MAX_OUTPUT:
            return False
        self._sizes[cell_index] = used + size
        self._all_output += size
        if self._sizes[cell_index] > _MAX_OUTPUT or self._all_output > _MAX_ALL_OUTPUT:
            self._sizes[cell_index] = _MAX_OUTPUT + 1
            outs.append(new_output("stream", name="stdout", text="\n... more than a cell may print\n"))
            return False
        return True

    def _update_display_id(self, display_id: str, msg: dict[str, Any]) -> None:
        """Leave outputs as they were shown first: one small message could change hundreds of them."""


def files_beside(*folders: Path) -> tuple[dict[str, bytes], str]:
    """The files in these folders but for notebooks and links, by relative path; those of later folders count.

    They come with a sentence if some were left out because there are too many.
    """
    files, size = {}, 0
    for folder in folders:
        for path in plain_files(folder):
            if path.suffix == ".ipynb":
                continue
            size += path.stat().st_size
            if size > _MAX_FILE_BYTES or len(files) == _MAX_FILES:
                return files, "Some of the files beside the notebook were left out: they are too many or too large."
            files[printable(str(path.relative_to(folder)))] = path.read_bytes()
    return files, ""


def _unpacked(folder: Path, files: Mapping[str, bytes]) -> str:
    folder.mkdir()
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return str(folder)


_lock = threading.Lock()
_own_templates: dict[bool, TemplateProcess] = {}


def _template(job: Job) -> str:
    """The address of a template: the job's, else one of this process's own, started when it is needed first."""
    if job.template and answers(job.template):
        return job.template
    with _lock:
        own = _own_templates.get(job.uses_torch)
        if own is None or not own.is_alive:
            own = _own_templates[job.uses_torch] = TemplateProcess(job.uses_torch)
            atexit.register(own.close)
        return own.address
