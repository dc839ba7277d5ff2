"""A process that has imported everything, from which kernels are forked in a moment.

It runs no student code itself: a forked kernel first joins a sandbox, then gives up every privilege, and only then
reads what it is to run. The template sits outside of all sandboxes, where nothing in them can see or reach it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, NoReturn

from helpers.checks import registry
from helpers.grading.entering import die_with_parent, enter
from helpers.grading.sandbox import (
    Limits,
    Sandbox,
    SandboxError,
    clean_environment,
    font_lists,
    short_folder,
)

# In force before anything is imported
_SETTINGS = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
# What notebooks import, but nothing that needs a kernel to be there; and what those with PyTorch import beside
_MODULES = (
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "matplotlib.font_manager",
    "ipykernel.kernelapp",
    "ipykernel.zmqshell",
    "helpers.checks.chapter_01_softmax",
    "helpers.environment",
    "helpers.heatmaps",
    "helpers.portfolio",
    "helpers.widgets",
)
_TORCH_MODULES = (
    "torch",
    "torch._dynamo",  # torch imports it with the first optimizer
    "helpers.models.language",
    "helpers.models.training",
)
_ANSWER_WITHIN = 120  # seconds; importing torch takes its time on a slow disk


class TemplateProcess:
    """Starts the process, with nothing of this one's environment. It ends with `close`, or with this process.

    Without PyTorch it is small, and forking it and its kernels costs half as much.
    """

    def __init__(self, with_torch: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="template-", dir=short_folder())
        self.address = os.path.join(self._folder.name, "s")
        for fonts in font_lists():
            shutil.copy(fonts, self._folder.name)
        own = {"HOME": self._folder.name, "MPLCONFIGDIR": self._folder.name}
        with socket.socket(socket.AF_UNIX) as listener:  # there at once: whoever connects waits for the imports
            listener.bind(self.address)
            listener.listen(64)
            command = [sys.executable, "-P", "-m", "helpers.grading.template", str(listener.fileno()), str(os.getpid())]
            command += ["torch"] if with_torch else []
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=clean_environment(_SETTINGS | own),
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C is for this process alone
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def start_kernel(address: str, sandbox: Sandbox, arguments: list[str]) -> WarmKernel:
    """Fork a kernel from the template at an address into a sandbox. SandboxError if that fails.

    `arguments` are the kernel's. Waits while the template is still importing.
    """
    request = {
        "holder": sandbox.hold(),
        "arguments": arguments,
        "environment": sandbox.environment,
        "folder": sandbox.working_folder,
        "limits": vars(sandbox.limits),
    }
    try:
        with _connected(address) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("r", encoding="utf-8") as answers:
                pid = int(answers.readline())
    except (OSError, ValueError) as error:
        raise SandboxError(f"The process that kernels are forked from does not answer ({error}).") from error
    return WarmKernel(pid)


def answers(address: str) -> bool:
    """Whether there still is a template at an address."""
    try:
        _connected(address).close()
    except OSError:
        return False
    return True


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_WITHIN)
    connection.connect(address)
    return connection


class WarmKernel:
    """A kernel that somebody else forked, with the few methods of Popen that jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:  # it is gone already
            self._handle, self.returncode = -1, 1

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], 0)[0]:
            os.close(self._handle)
            self.returncode = 1
        return self.returncode

    def wait(self) -> int | None:
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    terminate = kill


def _serve(descriptor: int, parent: int, with_torch: bool) -> None:
    """The template's side: fork one kernel for every connection."""
    die_with_parent()
    if os.getppid() != parent:  # it has died already
        return
    with socket.socket(fileno=descriptor) as listener:
        _import_everything(with_torch)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for a kernel
        gc.collect()
        gc.freeze()  # keep the kernels' memory shared
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError, ValueError):
                connection.settimeout(_ANSWER_WITHIN)
                request = json.loads(connection.makefile("r", encoding="utf-8").readline())
                pid = os.fork()
                if pid == 0:
                    _become_kernel(request)
                connection.sendall(f"{pid}\n".encode())


def _import_everything(with_torch: bool) -> None:
    for module in (*_MODULES, *(_TORCH_MODULES if with_torch else ())):
        importlib.import_module(module)
    if with_torch:
        sys.modules["torch"].set_num_threads(1)
        for name in registry.CHAPTERS:
            registry.chapter(name)


def _become_kernel(request: dict[str, Any]) -> NoReturn:
    """In the forked process: be an IPython kernel in the sandbox."""
    try:
        os.setsid()
        enter(request["holder"], Limits(**request["limits"]), request["folder"])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["environment"])
        _run_kernel(request["arguments"])
    finally:
        os._exit(1)


def _run_kernel(arguments: list[str]) -> None:
    import numpy as np
    from ipykernel.kernelapp import IPKernelApp

    random.seed()
    np.random.seed()
    sys.argv = ["ipykernel_launcher", *arguments]
    IPKernelApp.launch_instance(arguments)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), with_torch="torch" in sys.argv[3:])
