"""How a process goes into a sandbox, and gives up every right on the way.

bubblewrap makes the namespaces and stays in them; whoever is to run there joins them: forked from a `template`, or as a
new process, `python -m helpers.grading.entering`, that runs a module once it is inside.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import runpy
import signal
import subprocess
import sys
from typing import Any

import psutil

from helpers.grading import seccomp
from helpers.grading.sandbox import Limits, Sandbox

# Numbers of the Linux kernel: linux/sched.h, linux/prctl.h, linux/capability.h
_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # user mnt pid net ipc uts
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 38, 24
_CAPABILITIES_3 = 0x20080522
_NOBODY = 65534
_COUNTS_BY_NAMESPACE = (5, 14)  # the Linux from which on processes are counted by user and namespace
_NICE = 15


def start_module(sandbox: Sandbox, module: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Run a module in a sandbox, in a new process, like `python -m`."""
    request = {
        "holder": sandbox.hold(),
        "folder": sandbox.working_folder,
        "limits": vars(sandbox.limits),
        "module": module,
        "arguments": arguments,
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "helpers.grading.entering"],
        env=sandbox.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with process.stdin as stdin:
        stdin.write(json.dumps(request).encode())
    return process


def enter(holder: int, limits: Limits, folder: str) -> None:
    """Go into the namespaces of `holder`, under limits and without rights; on from here in `folder`, in a child.

    The process that called waits for it and ends. It must have one thread, and ends with its own parent.
    """
    die_with_parent()
    if os.getuid() == 0:  # the kernel lets the first user start any number of processes
        os.setresuid(_NOBODY, 0, 0)
    handle = os.pidfd_open(holder)
    _call("setns", handle, _NAMESPACES)
    os.close(handle)
    child = os.fork()  # a process enters a namespace of processes only by its children
    if child:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.closerange(0, 256)
        os.waitpid(child, 0)
        os._exit(1)
    die_with_parent()
    _keep_no_files()
    _limit(limits)
    _give_up_rights()
    os.chdir(folder)


def die_with_parent() -> None:
    """End this process when its parent ends."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _keep_no_files() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _limit(limits: Limits) -> None:
    """Limits that cannot be lifted again. The watch is stricter; these hold while it does not look."""
    for which, value in (
        (resource.RLIMIT_AS, limits.address_space),
        (resource.RLIMIT_CPU, limits.cpu_time),
        (resource.RLIMIT_FSIZE, limits.file_size),
        (resource.RLIMIT_NPROC, limits.threads + _threads_elsewhere()),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(which)
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (allowed, allowed))
    os.nice(_NICE)  # whoever watches comes first


def _threads_elsewhere() -> int:
    """What counts as this user's beside what runs in the sandbox."""
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    if version >= _COUNTS_BY_NAMESPACE:
        return 0
    states = psutil.process_iter(["uids", "num_threads"])
    return sum(state.info["num_threads"] or 0 for state in states if state.info["uids"])


def _give_up_rights() -> None:
    """Drop what joining a namespace of users gives: every capability, now and for all programs run later."""
    for capability in range(64):
        if _libc().prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _call("capset", header, nothing)
    seccomp.apply()


def _call(function: str, *arguments: Any) -> None:
    if getattr(_libc(), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Enter, and run the module that is asked for at the standard input.

    It does not become another program: with two users, as `enter` leaves it, that would be one with secrets to keep,
    for which the system's loader looks in fewer places.
    """
    request = json.load(sys.stdin)
    os.setsid()
    enter(request["holder"], Limits(**request["limits"]), request["folder"])
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
