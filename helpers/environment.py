"""What notebook 00 shows first: is everything here, and if not, how is it mended?

A notebook may run on any Python, also on one that is too old or has none of the packages. So this file keeps
to what Python 3.8 understands, imports only the standard library at its top, and reports instead of raising.
"""

from __future__ import annotations

import html
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MINIMUM_PYTHON = (3, 11)
GB = 1e9
#: What the heaviest chapter needs together with JupyterLab, and what should be left when a chapter begins.
MEMORY_NEEDED = 1.0 * GB
MEMORY_FREE_NEEDED = 0.5 * GB
#: Where a container's memory limit is written, in the two ways Linux has for it.
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
BINDER_VARIABLES = ("BINDER_SERVICE_HOST", "BINDER_LAUNCH_HOST", "BINDER_REPO_URL")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `state` is "ok", "note" (good to know) or "problem", and then `advice` says how to mend it.
    """

    subject: str
    found: str
    state: str = "ok"
    advice: str = ""


@dataclass(frozen=True)
class EnvironmentReport:
    """All findings: as a table in a notebook, as lines in a shell."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that must be mended before the course works."""
        return tuple(finding for finding in self.findings if finding.state == "problem")

    @property
    def summary(self) -> str:
        """One sentence for all of it."""
        if not self.problems:
            return "Everything the course needs is here."
        found = "1 problem was" if len(self.problems) == 1 else f"{len(self.problems)} problems were"
        return f"{found} found. Mend the first one first: the others may go with it."

    def __repr__(self) -> str:
        width = max((len(finding.subject) for finding in self.findings), default=0)
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.state:<8} {finding.subject:<{width}}  {finding.found}")
            if finding.advice:
                lines.append(f"{'':<8} {'':<{width}}  -> {finding.advice}")
        return "\n".join([*lines, "", self.summary])

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>"
            + f'<td style="{_STATE_STYLE[finding.state]}">{finding.state}</td>'
            + "".join(
                f'<td style="text-align: left">{html.escape(text)}</td>'
                for text in (finding.subject, finding.found, finding.advice)
            )
            + "</tr>"
            for finding in self.findings
        )
        heads = "".join(
            f'<th scope="col" style="text-align: left">{head}</th>' for head in ("state", "what", "found", "what to do")
        )
        return (
            f"<table><caption style='text-align: left'><b>{html.escape(self.summary)}</b></caption>"
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        )


#: The word is the signal; weight, slant and a line at the edge help the eye, in light and in dark themes.
_STATE_STYLE = {
    "ok": "text-align: left",
    "note": "text-align: left; font-style: italic",
    "problem": "text-align: left; font-weight: bold; border-left: 4px solid #c0392b",
}


def check_environment() -> EnvironmentReport:
    """Look at everything the course depends on, and say in one line each what is wrong and how to mend it."""
    looks = {
        "Python": _python,
        "helpers": _helpers,
        "packages": _packages,
        "memory": _memory,
        "threads": _threads,
        "place": _place,
    }
    if _python_is_too_old():
        looks = {"Python": _python, "place": _place}  # its packages are not the course's: one thing at a time
    findings: list[Finding] = []
    for subject, look in looks.items():
        try:
            findings.extend(look())
        except Exception as error:
            findings.append(Finding(subject, f"could not be read ({type(error).__name__}: {error})", "note"))
    return EnvironmentReport(tuple(findings))


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if _python_is_too_old():
        needed = ".".join(map(str, MINIMUM_PYTHON))
        advice = f"The course needs Python {needed} or newer. {_wrong_kernel() or 'Install one. ' + _set_up()}"
        yield Finding("Python", version, "problem", advice)
    else:
        yield Finding("Python", version)


def _python_is_too_old() -> bool:
    return tuple(sys.version_info[:2]) < MINIMUM_PYTHON


def _wrong_kernel() -> str:
    """What to do if the course has its own environment but this kernel is another one; otherwise ""."""
    environment = REPOSITORY / ".venv"
    if not environment.is_dir() or Path(sys.prefix).resolve() == environment.resolve():
        return ""
    return (
        f"This notebook runs on {sys.executable}, not on the course's own environment: "
        "close JupyterLab, open it again with `make lab`, and choose the kernel Python 3 (ipykernel)."
    )


def _set_up() -> str:
    """How this kind of environment is completed."""
    if (Path(sys.prefix) / "conda-meta").is_dir():
        return "Run `conda env update --file environment.yml` in the course's folder, then restart the kernel."
    return "Run `make setup` in the course's folder (README.md has the commands without make), then restart the kernel."


def _helpers() -> Iterator[Finding]:
    here = Path.cwd().resolve()
    clone = next((folder for folder in (here, *here.parents) if _is_course(folder)), None)
    if clone is None:
        advice = "This notebook lies outside the course's folder: chapters cannot find each other. Move it back."
        yield Finding("helpers", f"from {REPOSITORY}", "note", advice)
    elif clone != REPOSITORY:
        advice = f"This notebook lies in another copy of the course, {clone}. {_set_up()}"
        yield Finding("helpers", f"from {REPOSITORY}", "problem", advice)
    else:
        yield Finding("helpers", "from this copy of the course")


def _is_course(folder: Path) -> bool:
    return (folder / "helpers" / "environment.py").is_file()


def _packages() -> Iterator[Finding]:
    for name, versions in _requirements().items():
        yield _package(name, versions)


def _requirements() -> Mapping[str, str]:
    """The packages that pyproject.toml names, with the versions that the course is made for."""
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(re.fullmatch(r"([\w.-]+?)\s*([<>=!~].*)?", text).groups("") for text in project["dependencies"])


def _package(name: str, versions: str) -> Finding:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", "problem", _wrong_kernel() or _set_up())
    if importlib.util.find_spec(name) is None:
        advice = f"Delete the folder .venv. {_set_up()}"
        return Finding(name, f"{found}, but damaged: it cannot be imported", "problem", advice)
    if importlib.util.find_spec("packaging") is None:
        return Finding(name, found)  # nothing here to compare versions with, which its own line says

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    made_for = SpecifierSet(versions)
    if made_for.contains(found, prereleases=True):
        return Finding(name, found)
    lowest = min(Version(one.version) for one in made_for if one.operator == ">=")
    if Version(found) < lowest:
        advice = f"The course needs {lowest} or newer. {_wrong_kernel() or _set_up()}"
        return Finding(name, found, "problem", advice)
    return Finding(name, found, "note", f"The course was tested with {versions}. This may well do.")


def _memory() -> Iterator[Finding]:
    limit = _container_limit()
    if limit is not None:
        found = f"{limit / GB:.1f} GB, the limit of this session"
        # Services that promise 1 GB count it in different ways.
        state = "ok" if limit >= 0.9 * MEMORY_NEEDED else "problem"
        advice = "The course needs 1 GB. Ask for a larger session, or work on your own machine."
    else:
        import psutil

        memory = psutil.virtual_memory()
        found = f"{memory.available / GB:.1f} GB free of {memory.total / GB:.1f} GB"
        state = "ok" if memory.available >= MEMORY_FREE_NEEDED else "problem"
        advice = "Close other programs, and kernels you do not need (the second symbol at JupyterLab's left edge)."
    yield Finding("memory", found, state, "" if state == "ok" else advice)


def _container_limit() -> float | None:
    """The memory this session may use, in bytes, if something limits it below what the machine has."""
    limits = [_read_number(path.read_text) for path in CGROUP_LIMITS]
    limits.append(_read_number(lambda: os.environ["MEM_LIMIT"]))
    machine = _read_number(lambda: str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    known = [limit for limit in limits if limit is not None and (machine is None or limit < machine)]
    return min(known, default=None)


def _read_number(read: Callable[[], str]) -> float | None:
    """The number that `read` returns as text; None for "max" and where there is no such file or variable."""
    try:
        return float(read())
    except (OSError, KeyError, ValueError, AttributeError):
        return None


def _threads() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    used = str(torch.get_num_threads()) if torch is not None else asked or str(cores)
    found = f"{used} of {cores}"
    if used == "1":
        yield Finding("threads", found)
    elif asked == "1":
        advice = "torch was imported before helpers. Restart the kernel and run the set-up cell first."
        yield Finding("threads", found, "note", advice)
    else:
        advice = "The course is made for one thread; OMP_NUM_THREADS asks for another number here."
        yield Finding("threads", found, "note", advice)


def _place() -> Iterator[Finding]:
    machine = f"{platform.system()} on {platform.machine()}"
    if any(os.environ.get(name) for name in BINDER_VARIABLES):
        advice = (
            "This session ends after about ten minutes without use, and nothing in it is kept. "
            "Save often: the buttons above the notebook keep it in your browser or download it."
        )
        yield Finding("place", f"Binder, {machine}", "note", advice)
    elif not os.access(Path.cwd(), os.W_OK):
        advice = f"Nothing can be written to {Path.cwd()}: your work would be lost. Move the course elsewhere."
        yield Finding("place", machine, "problem", advice)
    else:
        yield Finding("place", machine)


if __name__ == "__main__":
    report = check_environment()
    print(report)
    sys.exit(bool(report.problems))
