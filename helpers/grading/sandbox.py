"""Walls around student code: bubblewrap's namespaces, limits, and a watch that ends what grows over them.

Inside there is a read-only system, Python with the course's `helpers`, and a small private folder that is gone
afterwards. There is no network, no environment, no home, nobody else's process, and no other file of the course.
Linux only; `unavailable` says why there is none.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

import helpers

#: The private folder in the sandbox, and in it the submission's own.
HOME = "/home/learner"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = ("alternatives", "fonts", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd")
_MEGABYTE = 1_000_000
_LOOK_EVERY = 0.2  # seconds
_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Limits:
    """What one submission may use at a time. Memory and files in bytes, CPU time in seconds for one process."""

    memory: int = 1500 * _MEGABYTE
    address_space: int = 16_000 * _MEGABYTE
    processes: int = 40
    threads: int = 500
    cpu_time: int = 600
    file_size: int = 50 * _MEGABYTE
    files: int = 200 * _MEGABYTE


class SandboxError(Exception):
    """The sandbox could not be set up; the text says what to do."""


@functools.cache
def unavailable() -> str:
    """Why there is no sandbox on this machine and what to do about it; "" if there is one."""
    if sys.platform != "linux":
        return "Student code runs in a sandbox only on Linux. Grade on Linux, or in a container or virtual machine."
    if not shutil.which("bwrap"):
        return "bubblewrap is missing. On Debian and Ubuntu: sudo apt-get install bubblewrap."
    exposed = _exposed()
    if exposed:
        return f"The course lies in {exposed}, which programs in the sandbox can read. Move it, for example to a home."
    done = subprocess.run(
        [*_walls(), "--", "/usr/bin/env", "true"], capture_output=True, text=True, timeout=60, env=clean_environment({})
    )
    if done.returncode:
        return (
            f"bubblewrap cannot make a sandbox here: {done.stderr.strip()[:300]}. "
            "The system may forbid user namespaces: see GRADING.md."
        )
    return ""


@contextlib.contextmanager
def sandbox(files: Mapping[str, bytes], name: str, limits: Limits, environment: Mapping[str, str]) -> Iterator[Sandbox]:
    """A sandbox with these files (relative paths) in its working folder `name`; all in it is killed at the end."""
    place = tempfile.mkdtemp(prefix="grading-", dir=short_folder())
    try:
        room = Sandbox(Path(place), files, name, limits, environment)
        try:
            yield room
        finally:
            room.close()
    finally:  # rm, since student code may have nested folders deeper than Python can follow
        subprocess.run(["rm", "-rf", "--", place], check=False, stderr=subprocess.DEVNULL)


class Sandbox:
    """Namespaces that stand until `close`, and what runs in them. `folder` is the one place both sides see."""

    def __init__(
        self, place: Path, files: Mapping[str, bytes], name: str, limits: Limits, environment: Mapping[str, str]
    ) -> None:
        self.folder = place / "shared"
        self.folder.mkdir()
        self.limits = limits
        self.working_folder = f"{HOME}/{name}"
        self.environment = clean_environment(environment)
        self._inputs = _written(place / "inputs", files)
        self._watch: threading.Thread | None = None
        self._closed = threading.Event()
        self._holder: subprocess.Popen[bytes] | None = None
        self.excess = ""

    def hold(self) -> int:
        """Set the sandbox up with nothing in it; returns the process whose namespaces another one may join."""
        here, there = os.pipe()
        shared = str(self.folder)
        walls = [*_walls(), *_open_to_all(), "--dir", self.working_folder]
        for path, descriptor in self._inputs.items():
            walls += ["--file", str(descriptor), f"{self.working_folder}/{path}"]
        walls += ["--bind", shared, shared, "--remount-ro", "/", "--info-fd", str(there)]
        self._holder = subprocess.Popen(
            [*walls, "--", "/usr/bin/env", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[*self._inputs.values(), there],
            env=self.environment,
        )
        os.close(there)
        with open(here, "rb") as reader:
            described = reader.read()
        try:
            self._holder.stdin.write(b"\n")
            self._holder.stdin.flush()
            ready = self._holder.stdout.read(1)
        except OSError:
            ready = b""
        if not ready or not described:
            raise SandboxError(f"bubblewrap failed: {self._holder.stderr.read().decode(errors='replace')[:300]}")
        return json.loads(described)["child-pid"]

    def watch(self, process: int, stop: Callable[[], None]) -> None:
        """Look after a process and all it starts; `stop` is called, and `excess` says why, when they use too much."""
        self._watch = threading.Thread(target=self._keep_watch, args=(process, stop), daemon=True)
        self._watch.start()

    def _keep_watch(self, process: int, stop: Callable[[], None]) -> None:
        roots = [process, self._holder.pid]
        while not self._closed.wait(_LOOK_EVERY):
            try:
                self.excess = _excess(roots, self.folder, self.limits)
            except Exception as error:  # what cannot be watched must not run
                self.excess = f"it could not be watched ({type(error).__name__})"
            if self.excess:
                self._end_holder()
                stop()
                return

    def _end_holder(self) -> None:
        if self._holder:
            self._holder.kill()

    def close(self) -> None:
        self._closed.set()
        if self._watch:
            self._watch.join()
        if self._holder:
            self._end_holder()
            self._holder.communicate()
        for descriptor in self._inputs.values():
            os.close(descriptor)


def short_folder() -> str:
    """A folder for temporary files whose path leaves room for a socket's, which may have 107 bytes."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < 60 else "/tmp"


def sweep() -> None:
    """Remove what runs that were killed have left behind among the temporary files, once it is a day old."""
    for pattern in ("grading-*", "template-*"):
        for folder in Path(short_folder()).glob(pattern):
            with contextlib.suppress(OSError):
                state = folder.lstat()
                if state.st_uid == os.getuid() and time.time() - state.st_mtime > _DAY and not folder.is_symlink():
                    subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def _excess(roots: list[int], folder: Path, limits: Limits) -> str:
    """What these processes and their descendants use too much of, in words, or ""."""
    found = {process.pid for root in roots for process in _family(root)}
    states = [state for process in found if (state := _state(process))]
    if len(states) > limits.processes or sum(state.get(b"Threads", 1) for state in states) > limits.threads:
        return f"it started more than {limits.processes} processes or {limits.threads} threads"
    kept = sum(state.get(name, 0) for state in states for name in (b"RssAnon", b"RssShmem", b"VmSwap"))
    if 1024 * kept > limits.memory and 1024 * sum(map(_share, found)) > limits.memory:
        return f"it used more than {limits.memory // _MEGABYTE} MB of memory"
    if _size(folder) > limits.file_size:
        return "it filled the folder of its connection"
    return ""


def _family(root: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(root)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _state(process: int) -> dict[bytes, int]:
    """The numbers in a process's status. It is bytes: the process chooses its own name, with any characters in it."""
    try:
        lines = Path(f"/proc/{process}/status").read_bytes().split(b"\n")
    except OSError:
        return {}
    pairs = (line.split(b":", 1) for line in lines if b":" in line)
    return {name: int(value.split()[0]) for name, value in pairs if value.split()[:1] and value.split()[0].isdigit()}


def _share(process: int) -> int:
    """kB that a process has of its own, with its share of what forked processes still have in common."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_bytes().split(b"\n")
        pairs = dict(line.split(b":", 1) for line in lines[1:] if b":" in line)
        return sum(int(pairs[name].split()[0]) for name in (b"Pss_Anon", b"Pss_Shmem", b"Swap"))
    except (OSError, KeyError):  # not allowed, or an older kernel: count it all
        state = _state(process)
        return sum(state.get(name, 0) for name in (b"RssAnon", b"RssShmem", b"VmSwap"))


def _size(folder: Path) -> int:
    size, folders = 0, [str(folder)]
    while folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folders.pop()):
                with contextlib.suppress(OSError):
                    size += 4096 + entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return size


def _written(folder: Path, files: Mapping[str, bytes]) -> dict[str, int]:
    """Each file's path with an open descriptor of its content."""
    folder.mkdir()
    descriptors = {}
    for number, (path, content) in enumerate(files.items()):
        copy = folder / str(number)
        copy.write_bytes(content)
        descriptors[path] = os.open(copy, os.O_RDONLY)
    return descriptors


def _walls() -> list[str]:
    """bubblewrap with everything that is the same for all submissions."""
    limits = Limits()
    walls = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "grading"]
    walls += ["--disable-userns"] if "--disable-userns" in _abilities() else []
    walls += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for path in _SYSTEM:
        if os.path.islink(path):
            walls += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            walls += ["--ro-bind", path, path]
    for name in _ETC:
        walls += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Whoever grades as root would otherwise let settings of the machine be changed in /proc/sys.
    walls += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    walls += ["--size", str(limits.file_size), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    for folder in ("/tmp", HOME):
        walls += ["--size", str(limits.files), *_open_to_all(), "--tmpfs", folder]
    for path in _python():
        walls += ["--ro-bind", path, path]
    for folder in (".cache", ".cache/matplotlib", ".config", ".config/matplotlib", ".ipython"):
        walls += [*_open_to_all(), "--dir", f"{HOME}/{folder}"]
    for fonts in font_lists():
        walls += ["--ro-bind", str(fonts), f"{HOME}/.cache/matplotlib/{fonts.name}"]
    return walls


def _open_to_all() -> list[str]:
    """Of the next folder. Programs that ask whether they may write ask for the user that they were started by."""
    return ["--perms", "0777"] if "--perms" in _abilities() else []


def _exposed() -> str:
    """The folder of the course, if it is inside one that the sandbox shows."""
    shown = [path for path in (*_SYSTEM, *_python()) if os.path.isdir(path)]
    for folder in (Path(helpers.__file__).resolve().parents[1], Path.cwd().resolve()):
        if (folder / "nbgrader_config.py").exists() and any(folder.is_relative_to(path) for path in shown):
            return str(folder)
    return ""


@functools.cache
def _abilities() -> str:
    return subprocess.run(["bwrap", "--help"], capture_output=True, text=True, timeout=60).stdout


def _python() -> list[str]:
    """The folders of this Python, its packages and the course's `helpers`, none inside another."""
    package = str(Path(helpers.__file__).parent)
    entries = [entry for entry in sys.path if entry.endswith("-packages") and os.path.isdir(entry)]
    wanted = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *entries, package}
    outside = [path for path in wanted if not path.startswith(_SYSTEM)]
    return sorted(path for path in outside if not any(path.startswith(f"{other}/") for other in outside))


@functools.cache
def font_lists() -> list[Path]:
    """matplotlib's list of fonts, which takes it seconds to make."""
    import matplotlib

    return sorted(Path(matplotlib.get_cachedir()).glob("fontlist-*.json"))


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """All that student code finds in its environment."""
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS") if name in os.environ}
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"])
    return {
        **kept,
        "PATH": path,
        "HOME": HOME,
        "TMPDIR": "/tmp",
        "PYTHONPATH": str(Path(helpers.__file__).parents[1]),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
