"""Kernels in a sandbox: what `ExecuteSubmission` starts in place of an ordinary one.

A cold kernel is bubblewrap with ipykernel in it. A warm one is forked from a `template`, which has everything
imported already, and joins a sandbox that bubblewrap has made: the same walls, in a tenth of the time.
"""

from __future__ import annotations

import functools
import os
import subprocess
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.launcher import launch_kernel
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from helpers.grading.sandbox import Sandbox, limit_resources
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
        super().__init__(transport="ipc", ip=str(folder / "s"), connection_file=str(folder / "c.json"), **settings)
        self.kernel_spec.interrupt_mode = "message"
        self.provisioner = _SandboxProvisioner(kernel_spec=self.kernel_spec, parent=self)
        self.provisioner.sandbox = sandbox
        self.provisioner.template = template

    def client(self, **settings: Any) -> AsyncKernelClient:
        """A client that holds a bounded amount of what the kernel sends; a message that is too large is lost."""
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE)
        context.setsockopt(zmq.RCVHWM, _MAX_MESSAGES)
        return super().client(context=context, **settings)


class _SandboxProvisioner(LocalProvisioner):
    sandbox: Sandbox
    template: str | None
    process: subprocess.Popen[bytes] | WarmKernel | None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        if self.template:
            self.process = start_kernel(self.template, self.sandbox, cmd)
        else:
            self.process = launch_kernel(
                self.sandbox.command(cmd),
                env=self.sandbox.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=self.sandbox.descriptors,
                preexec_fn=functools.partial(limit_resources, self.sandbox.limits),
            )
        self.pid = self.process.pid
        self.cwd = os.getcwd()
        self.sandbox.watch(self.pid, self.process.kill)
        return self.connection_info
