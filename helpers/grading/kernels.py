"""Kernels in a sandbox: what `ExecuteSubmission` starts in place of an ordinary one.

Each joins a sandbox that bubblewrap has made. A cold kernel is a new process; a warm one is forked from a `template`,
which has everything imported already: the same walls, in a tenth of the time.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from helpers.grading.entering import start_module
from helpers.grading.sandbox import Sandbox
from helpers.grading.template import WarmKernel, start_kernel

# What may wait to be read from a kernel: bytes of one message, and messages.
_MAX_MESSAGE = 25_000_000
_MAX_MESSAGES = 100


class SandboxedKernelManager(AsyncKernelManager):
    """Starts its kernel in `sandbox`; from the template at an address, if there is one. Both must outlive the kernel.

    Kernel and client talk through sockets in the folder that they share; interrupts are messages, since a signal would
    reach bubblewrap and not the kernel.
    """

    def __init__(self, sandbox: Sandbox, template: str | None = None, **settings: Any) -> None:
        folder = sandbox.folder
        address = {"transport": "ipc", "ip": str(folder / "s"), "connection_file": str(folder / "c.json")}
        super().__init__(context=_bounded_context(), **address, **settings)
        self.kernel_spec.interrupt_mode = "message"
        self.provisioner = _SandboxProvisioner(kernel_spec=self.kernel_spec, parent=self)
        self.provisioner.sandbox = sandbox
        self.provisioner.template = template

    def client(self, **settings: Any) -> AsyncKernelClient:
        return super().client(context=self.context, **settings)

    def close(self) -> None:
        """Close all sockets, when kernel and client are through."""
        self.context.destroy(linger=0)


def _bounded_context() -> zmq.asyncio.Context:
    """For sockets that hold a bounded amount of what the kernel sends; a message that is too large is lost.

    They never wait for a kernel to take what it was sent: it may be dead.
    """
    context = zmq.asyncio.Context()
    for option, value in ((zmq.MAXMSGSIZE, _MAX_MESSAGE), (zmq.RCVHWM, _MAX_MESSAGES), (zmq.LINGER, 0)):
        context.setsockopt(option, value)
    return context


class _SandboxProvisioner(LocalProvisioner):
    sandbox: Sandbox
    template: str | None
    process: subprocess.Popen[bytes] | WarmKernel | None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        module = cmd.index("-m") + 1
        if self.template:
            self.process = start_kernel(self.template, self.sandbox, cmd[module + 1 :])
        else:
            self.process = start_module(self.sandbox, cmd[module], cmd[module + 1 :])
        self.pid = self.process.pid
        self.cwd = os.getcwd()
        self.sandbox.watch(self.pid, self.process.kill)
        return self.connection_info
