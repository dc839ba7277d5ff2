"""A filter of system calls: what would outlive a sandbox, or grow where nobody looks.

Keyrings are a user's, not a sandbox's; anonymous files and System V memory are in no process's account; and another
user would be counted anew when processes are counted.
"""

from __future__ import annotations

import ctypes
import platform
import struct

# Numbers of the Linux kernel: linux/audit.h, linux/seccomp.h, linux/filter.h, linux/prctl.h, asm/unistd.h
_CALLS = ("add_key", "request_key", "keyctl", "memfd_create", "shmget", "setuid", "setreuid", "setresuid")
_ARCHITECTURES = {
    "x86_64": (0xC000003E, dict(zip(_CALLS, (248, 249, 250, 319, 29, 105, 113, 117), strict=True))),
    "aarch64": (0xC00000B7, dict(zip(_CALLS, (217, 218, 219, 279, 194, 146, 145, 147), strict=True))),
}
_ALLOW, _KILL, _NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER_OR_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_OTHER_NUMBERING = 0x40000000  # x32 calls on x86_64
_PR_SET_SECCOMP, _FILTER = 22, 2


def program() -> bytes:
    """The filter, as the kernel takes it; b"" on a processor that it was not written for."""
    if platform.machine() not in _ARCHITECTURES:
        return b""
    architecture, calls = _ARCHITECTURES[platform.machine()]
    checks = [(_JUMP_IF_EQUAL, number) for number in calls.values()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_IF_GREATER_OR_EQUAL, len(checks) + 1, 0, _OTHER_NUMBERING),
        *((jump, len(checks) - place, 0, number) for place, (jump, number) in enumerate(checks)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOT_PERMITTED),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def apply() -> None:
    """Put this process, and all it will start, under the filter. It must have set no_new_privs."""
    filter_bytes = program()
    if not filter_bytes:
        return
    steps = ctypes.create_string_buffer(filter_bytes, len(filter_bytes))
    described = struct.pack("HxxxxxxP", len(filter_bytes) // 8, ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(described), 0, 0):
        raise OSError(ctypes.get_errno(), "prctl: no filter of system calls")
