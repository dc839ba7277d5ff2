"""A real browser and a real JupyterLab for tests: open a notebook, run it, watch what the page does.

The fixtures `chromium` and `lab` are in conftest.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

#: With this variable set (continuous integration sets it) a missing browser is a failure and not a reason to skip.
REQUIRED = "REQUIRE_ALL_TESTS"
ROOT = Path(__file__).resolve().parents[1]
LAPTOP = {"width": 1366, "height": 768}
SECONDS = 90  # to open a page or to run a notebook, on a machine that does other things as well
NOTEBOOK = ".jp-NotebookPanel-notebook"


@contextmanager
def chromium_browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright. Skips, or fails if `REQUIRED` is set, where one of them is missing."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    if program is None:
        _missing("there is no chromium on this machine")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


def _missing(reason: str) -> None:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} is set")
    pytest.skip(reason)


class Lab:
    """JupyterLab on a free port of this machine, with settings, workspaces and kernels of its own."""

    def __init__(self, folder: Path) -> None:
        self.root, self._home = folder / "course", folder / "home"
        self.root.mkdir()
        self._home.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "jupyterlab.log").open("w")
        self._server = subprocess.Popen(self._command(), env=self._environment(), stdout=self._log, stderr=self._log)
        self._set("notification", {"fetchNews": "false"})

    def wait_until_ready(self) -> None:
        """Wait for the first answer; AssertionError with the log if none comes."""
        give_up = time.monotonic() + SECONDS
        while time.monotonic() < give_up and self._server.poll() is None:
            try:
                self.ask("status")
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError(f"JupyterLab did not start:\n{Path(self._log.name).read_text()}")

    def stop(self) -> None:
        """End the server and its kernels."""
        kernels = psutil.Process(self._server.pid).children(recursive=True) if self._server.poll() is None else []
        self._server.terminate()
        self._server.wait(20)
        for process in psutil.wait_procs(kernels, timeout=5)[1]:
            process.kill()
        self._log.close()

    def ask(self, path: str) -> Any:
        """The server's answer to a question about its state, such as "kernels"."""
        with urllib.request.urlopen(f"{self.url}/api/{path}", timeout=10) as answer:
            return json.load(answer)

    def use_theme(self, theme: str) -> None:
        """ "light" or "dark", for pages that are opened from now on."""
        self._set("themes", {"theme": f"JupyterLab {theme.title()}"})

    def kernel_of(self, notebook: str) -> Kernel:
        """The running kernel of a notebook, by its path below the root."""
        (kernel_id,) = (s["kernel"]["id"] for s in self.ask("sessions") if s["path"] == notebook)
        return Kernel(self, kernel_id)

    def _set(self, plugin: str, values: dict[str, str]) -> None:
        file = self._home / f"settings/@jupyterlab/apputils-extension/{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))

    def _command(self) -> list[str]:
        options = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ServerApp.root_dir": self.root,
            "ServerApp.allow_root": True,
            "IdentityProvider.token": "",
            "LabApp.extension_manager": "readonly",
            "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        }
        return [sys.executable, "-m", "jupyterlab", "--no-browser", *(f"--{k}={v}" for k, v in options.items())]

    def _environment(self) -> dict[str, str]:
        folders = {
            "HOME": "",
            "IPYTHONDIR": "ipython",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        }
        return (
            os.environ
            | {name: str(self._home / folder) for name, folder in folders.items()}
            | {"PYTHONPATH": str(ROOT), "JUPYTER_PREFER_ENV_PATH": "1"}
        )


class Kernel:
    """A kernel that a test can freeze."""

    def __init__(self, lab: Lab, kernel_id: str) -> None:
        self._lab, self._id = lab, kernel_id

    @property
    def is_idle(self) -> bool:
        return self._lab.ask(f"kernels/{self._id}")["execution_state"] == "idle"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The kernel's process does nothing in here."""
        process = self._process()
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def _process(self) -> psutil.Process:
        server = psutil.Process(self._lab._server.pid)
        (process,) = (p for p in server.children(recursive=True) if self._id in " ".join(p.cmdline()))
        return process


class Page:
    """A browser's page that remembers what went wrong in it and whom it asked for something."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(viewport=LAPTOP, **options)
        self.tab = self.context.new_page()
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.tab.on("console", self._remember_message)
        self.tab.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))
        self.tab.on("request", lambda request: self._remember_host(request.url))
        self.tab.on("websocket", lambda socket: self._remember_host(socket.url))

    def _remember_message(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _remember_host(self, url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob"):
            self.hosts.add(urlsplit(url).hostname or "")

    def open_in(self, lab: Lab, notebook: str, application: str = "doc/tree") -> None:
        """Open a notebook, by its path below JupyterLab's root, and wait until it can be used.

        `application` is JupyterLab, showing this notebook only, or "notebooks" for Notebook 7.
        """
        self.tab.goto(f"{lab.url}/{application}/{notebook}", timeout=1000 * SECONDS)
        self.tab.locator(f"{NOTEBOOK} .jp-Cell").first.wait_for(timeout=1000 * SECONDS)
        _wait_until(lambda: any(s["path"] == notebook for s in lab.ask("sessions")), self.tab)

    def run_all(self, lab: Lab, notebook: str) -> None:
        """Run all cells and wait until the kernel has nothing left to do."""
        kernel = lab.kernel_of(notebook)
        _wait_until(lambda: kernel.is_idle, self.tab)
        self.tab.get_by_role("menuitem", name="Run", exact=True).click()
        self.tab.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        prompts = self.tab.locator(f"{NOTEBOOK} .jp-CodeCell .jp-InputPrompt")
        _wait_until(lambda: all(_has_run(text) for text in prompts.all_text_contents()), self.tab)
        _wait_until(lambda: kernel.is_idle, self.tab)


def _has_run(prompt: str) -> bool:
    return any(letter.isdigit() for letter in prompt)


def _wait_until(condition: Any, tab: Any) -> None:
    give_up = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < give_up, "this took too long"
        tab.wait_for_timeout(200)
