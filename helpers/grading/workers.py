"""Where notebooks are executed: processes of this machine, or a dask cluster. Both run the same pure function."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import helpers
from helpers.grading.course import GradingError
from helpers.grading.executing import Job, execute
from helpers.grading.sandbox import unavailable
from helpers.grading.template import TemplateProcess


def usual_number() -> int:
    """As many workers as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Local:
    """Processes of this machine. They end with this process, however it ends."""

    def __init__(self, number: int, needs_sandbox: bool) -> None:
        self._needs_template = needs_sandbox
        self.ahead = number + 2  # how many jobs to keep there: each worker's own, and what comes next
        self._number = number
        self._way = "fork"  # while this process has one thread: what workers need is imported already
        self._pool: ProcessPoolExecutor | None = None
        self._templates: dict[bool, TemplateProcess] = {}

    def submit(self, job: Job) -> Future[bytes]:
        """Execute a job. BrokenProcessPool, of the future or at once, when a worker was killed: then `renew`."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._number, mp_context=multiprocessing.get_context(self._way), initializer=_begin_worker
            )
        return self._pool.submit(execute, replace(job, template=self._template_for(job)))

    def _template_for(self, job: Job) -> str:
        if not self._needs_template:
            return ""
        if job.uses_torch not in self._templates:
            self._templates[job.uses_torch] = TemplateProcess(job.uses_torch)
        return self._templates[job.uses_torch].address

    def renew(self) -> None:
        """End all workers; new ones start with the next job."""
        pool, self._pool, self._way = self._pool, None, "spawn"
        if pool:
            workers = list((pool._processes or {}).values())  # shutdown would wait for what they are doing
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
        while self._templates:
            self._templates.popitem()[1].close()

    close = renew


class Cluster:
    """The workers of a dask scheduler, such as tcp://host:8786. GradingError if they cannot do it."""

    def __init__(self, address: str, needs_sandbox: bool) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise GradingError(
                "--scheduler needs dask, here and on every worker: .venv/bin/python -m pip install distributed"
            ) from None
        try:
            self._client = Client(address, timeout=20, set_as_default=False)
        except Exception as error:  # dask raises OSError, ValueError, TypeError and more, whatever is wrong there
            raise GradingError(f"No dask scheduler answers at {address} ({error}). Start one: dask scheduler") from None
        self._check(address, needs_sandbox)
        self.ahead = 2 * sum(self._client.nthreads().values())

    def _check(self, address: str, needs_sandbox: bool) -> None:
        workers = self._client.run(_condition)
        if not workers:
            raise GradingError(f"The scheduler at {address} has no workers. Start some: dask worker {address}")
        for worker, (code, problem) in workers.items():
            if code != code_digest():
                raise GradingError(
                    f"The worker {worker} has another version of the course's helpers: give it this one."
                )
            if problem and needs_sandbox:
                raise GradingError(f"The worker {worker}: {problem}")

    def submit(self, job: Job) -> Future[bytes]:
        """Execute a job. dask itself starts workers that were killed again, and gives up a job that kills them."""
        return self._client.get_executor(pure=False).submit(execute, job)

    def renew(self) -> None:
        """Nothing: see `submit`."""

    def close(self) -> None:
        self._client.close()


def _condition() -> tuple[str, str]:
    return code_digest(), unavailable()


def code_digest() -> str:
    """What tells one version of `helpers` from another."""
    digest = hashlib.sha256()
    for path in sorted(Path(helpers.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _begin_worker() -> None:
    """In a new worker: leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
