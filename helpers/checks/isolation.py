"""Run somebody's code beside the notebook: in a forked child with limits, or (no safe fork) in this process.

The child sends JSON messages while it runs, so what came before an endless loop or a crash is kept. Everything
it prints, even with `os.write`, goes into a pipe that is emptied here and mostly thrown away.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import json
import os
import selectors
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

Send = Callable[[Any], None]

#: Memory that a check may take beyond what the process already has, in bytes.
MEMORY_LIMIT = 2_000_000_000
MAX_PRINTED = 2_000
MAX_RECEIVED = 100_000_000
# Accelerate (NumPy on macOS) does not survive a fork, and Windows has none.
CAN_FORK = sys.platform.startswith("linux")


class InputAsked(BaseException):
    """The code asked for input; a check has nobody to answer."""


@dataclass
class Run:
    """What came out: messages in order, how it ended ("done", "timeout", or what killed it), what it printed."""

    messages: list[Any] = field(default_factory=list)
    end: str = "done"
    printed: str = ""
    printed_bytes: int = 0

    def note_printed(self, chunk: bytes) -> None:
        self.printed_bytes += len(chunk)
        if len(self.printed) < MAX_PRINTED:
            self.printed = (self.printed + chunk.decode("utf-8", "replace"))[:MAX_PRINTED]


def run(work: Callable[[Send], None], seconds: float) -> Run:
    """Run `work(send)` for at most `seconds`; whatever it does, this process goes on."""
    return _run_in_child(work, seconds) if CAN_FORK else _run_here(work, seconds)


def _run_in_child(work: Callable[[Send], None], seconds: float) -> Run:
    message_out, message_in = os.pipe()
    print_out, print_in = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: the child touches none of them
        pid = os.fork()
    if pid == 0:
        _be_child(work, message_in, print_in)
    os.close(message_in)
    os.close(print_in)
    try:
        return _listen(pid, message_out, print_out, seconds)
    finally:
        os.close(message_out)
        os.close(print_out)


def _be_child(work: Callable[[Send], None], message_fd: int, print_fd: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(print_fd, 1)
        os.dup2(print_fd, 2)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (
            os.fdopen(fd, "w", encoding="utf-8", errors="replace", closefd=False) for fd in (1, 2)
        )
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _limit_memory()
        _silence_notebook()
        builtins.input = _no_input
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        work(lambda message: _write_line(message_fd, message))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _write_line(message_fd, "done")
        code = 0
    finally:
        os._exit(code)


def _listen(pid: int, message_fd: int, print_fd: int, seconds: float) -> Run:
    result, received, deadline = Run(end=""), bytearray(), time.monotonic() + seconds
    reaped = False
    with selectors.DefaultSelector() as selector:
        selector.register(message_fd, selectors.EVENT_READ)
        selector.register(print_fd, selectors.EVENT_READ)
        try:
            while not result.end:
                quiet = True
                for key, _ in selector.select(min(0.02, max(0.0, deadline - time.monotonic()))):
                    chunk = os.read(key.fd, 1 << 16)
                    quiet = quiet and not chunk
                    if not chunk:
                        selector.unregister(key.fd)
                    elif key.fd == print_fd:
                        result.note_printed(chunk)
                    else:
                        received += chunk
                        _take_lines(received, result)
                if quiet and not result.end:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        reaped, result.end = True, _how_it_ended(status)
                if not result.end and time.monotonic() >= deadline:
                    result.end = "timeout"
            for key, _ in selector.select(0):
                if key.fd == print_fd:
                    result.note_printed(os.read(key.fd, 1 << 16))
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if not reaped:
                os.waitpid(pid, 0)
    return result


def _take_lines(received: bytearray, result: Run) -> None:
    """Move whole lines from `received` into the result, and say so when they end the run."""
    *lines, rest = received.split(b"\n")
    received[:] = rest
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if message == "done":
            result.end = "done"
        elif isinstance(message, dict):
            result.messages.append(message)
        else:
            result.end = "sent something that is not an observation"
        if result.end:
            return
    if len(received) > MAX_RECEIVED:
        result.end = "sent more than a check can hold"


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended the process with exit code {os.WEXITSTATUS(status)}"


def _write_line(fd: int, message: Any) -> None:
    data = memoryview(json.dumps(message).encode("utf-8") + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def _limit_memory() -> None:
    import resource

    with open("/proc/self/statm") as statm:
        present = int(statm.read().split()[0]) * resource.getpagesize()
    for limit, value in ((resource.RLIMIT_AS, present + MEMORY_LIMIT), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(limit)
        if hard == resource.RLIM_INFINITY or value <= hard:
            resource.setrlimit(limit, (value, hard))


def _silence_notebook() -> None:
    """A forked copy of a kernel must not show anything in the notebook of the real one."""
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None:
            shell.display_pub.publish = lambda *args, **kwargs: None


def _no_input(prompt: object = "") -> str:
    raise InputAsked(str(prompt))


def _run_here(work: Callable[[Send], None], seconds: float) -> Run:
    """The same without a child: an interrupt instead of a kill, so a loop inside compiled code is not stopped."""
    result = Run()
    over = threading.Event()

    def interrupt() -> None:
        if not over.is_set():
            result.end = "timeout"
            _thread.interrupt_main()

    timer = threading.Timer(seconds, interrupt)
    with _printing_into(result), _replaced(builtins, "input", _no_input), _interrupts_arrive():
        timer.start()
        try:
            work(lambda message: result.messages.append(json.loads(json.dumps(message))))
        except KeyboardInterrupt:
            if result.end != "timeout":
                raise
        finally:
            over.set()
            timer.cancel()
    return result


@contextlib.contextmanager
def _interrupts_arrive() -> Iterator[None]:
    """A process that was started in the background may ignore interrupts; here they must reach Python."""
    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT)
    if not is_main or callable(previous):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _printing_into(result: Run) -> Iterator[None]:
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
        text = stack.enter_context(open(os.dup(file.fileno()), "w", encoding="utf-8", errors="replace"))
        saved = [(fd, os.dup(fd)) for fd in (1, 2)]
        stack.enter_context(contextlib.redirect_stdout(text))
        stack.enter_context(contextlib.redirect_stderr(text))
        try:
            for fd, _ in saved:
                os.dup2(file.fileno(), fd)
            yield
        finally:
            for fd, copy in saved:
                os.dup2(copy, fd)
                os.close(copy)
            text.flush()
            file.seek(0)
            result.note_printed(file.read(MAX_PRINTED))
            result.printed_bytes = os.fstat(file.fileno()).st_size
