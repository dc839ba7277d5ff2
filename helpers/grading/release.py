"""`python -m helpers.grading.release [CHAPTER ...]`: writes notebooks/ from solutions/, what `make notebooks` runs.

nbgrader's own generate_assignment does it, in a temporary course folder with a gradebook of its own: run in place, it
deletes answers that somebody typed into a released notebook.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
from nbgrader import utils
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

_CONFIG = "nbgrader_config.py"
_LEFT_BEHIND = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__", "*.pyc", ".DS_Store")


class ReleaseError(Exception):
    """Why nothing was released, in a sentence for whoever ran the command."""


def released_files(course: Path, chapters: Iterable[str], db_url: str = "") -> dict[Path, bytes]:
    """What nbgrader makes of these chapters' sources: paths relative to the course folder, and their contents.

    The same sources always give the same bytes. With the URL of a gradebook the assignments are entered there, too.
    ReleaseError, with nbgrader's log, when it fails.
    """
    config = _config(course)
    files = {}
    with tempfile.TemporaryDirectory() as folder, scripts_on_path():
        workshop = Path(folder)
        config.CourseDirectory.root = str(workshop)
        config.CourseDirectory.db_url = db_url or f"sqlite:///{workshop / 'gradebook.db'}"
        sources, released = _folder(config, "source"), _folder(config, "release")
        api = NbGraderAPI(config=config)
        for chapter in chapters:
            shutil.copytree(course / sources / chapter, workshop / sources / chapter, ignore=_LEFT_BEHIND)
            result = api.generate_assignment(chapter)
            if not result["success"]:
                raise ReleaseError(f"nbgrader could not release {chapter}:\n{result.get('log') or result['error']}")
            for path in sorted((workshop / released / chapter).rglob("*")):
                if path.is_file():
                    files[path.relative_to(workshop)] = path.read_bytes()
    return files


def out_of_step(course: Path, chapters: Iterable[str] | None = None) -> list[str]:
    """The chapters whose released files are not what their sources give, all chapters if none are named."""
    released = _folder(_config(course), "release")
    names = list(chapters or _chapters(course))
    wrong = {
        path.relative_to(released).parts[0]
        for path, content in released_files(course, names).items()
        if not (course / path).is_file() or (course / path).read_bytes() != content
    }
    if not chapters:
        wrong |= {folder.parent.name for folder in (course / released).glob("*/*.ipynb")} - set(names)
    return sorted(wrong)


def edited_cells(path: Path) -> list[str]:
    """Ids of the answer cells in a released notebook that no longer are as nbgrader wrote them.

    ReleaseError if the file is no notebook.
    """
    try:
        cells = nbformat.read(path, as_version=4).cells
        answers = [cell for cell in cells if utils.is_solution(cell)]
        return [
            str(cell.metadata.nbgrader.get("grade_id"))
            for cell in answers
            if cell.metadata.nbgrader.get("checksum") != utils.compute_checksum(cell)
        ]
    except Exception as error:  # nbformat raises whatever the broken file leads it to
        raise ReleaseError(f"{path} cannot be read as a notebook ({type(error).__name__}: {error}).") from None


def release(course: Path, chapters: Iterable[str], overwrite: bool = False) -> list[Path]:
    """Write the released files of these chapters; returns those that changed.

    ReleaseError, and nothing is written, if somebody worked in a released notebook and `overwrite` is False.
    """
    if not overwrite:
        _refuse_if_edited(course, chapters)
    files = released_files(course, chapters)
    changed = [path for path, content in files.items() if not _holds(course / path, content)]
    for path in changed:
        (course / path).parent.mkdir(parents=True, exist_ok=True)
        (course / path).write_bytes(files[path])
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.grading.release",
        description="Write notebooks/ from solutions/. Run it in the course folder.",
    )
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="such as 01_softmax (default: all)")
    parser.add_argument(
        "--check", action="store_true", help="only say which chapters are out of step; exit with 1 if any"
    )
    parser.add_argument("--overwrite", action="store_true", help="also replace notebooks in which somebody has worked")
    options = parser.parse_args(arguments)
    course = Path.cwd()
    try:
        chapters = _known(course, options.chapters)
        if options.check:
            return _check(course, options.chapters)
        changed = release(course, chapters, options.overwrite)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(f"wrote {path}")
    print(f"{len(chapters)} chapters are in step with their sources.")
    return 0


def _check(course: Path, chapters: list[str]) -> int:
    wrong = out_of_step(course, chapters)
    for chapter in wrong:
        print(f"{chapter} is out of step with its source. Run `make notebooks`.")
    return 1 if wrong else 0


def _known(course: Path, wanted: list[str]) -> list[str]:
    chapters = _chapters(course)
    if not chapters:
        raise ReleaseError(f"There are no source notebooks in {course / _folder(_config(course), 'source')}.")
    unknown = [chapter for chapter in wanted if chapter not in chapters]
    if unknown:
        raise ReleaseError(f"There is no source for {', '.join(unknown)}; there are {', '.join(chapters)}.")
    return wanted or chapters


def _chapters(course: Path) -> list[str]:
    sources = course / _folder(_config(course), "source")
    return sorted({path.parent.name for path in sources.glob("*/*.ipynb")})


def _config(course: Path) -> Config:
    if not (course / _CONFIG).is_file():
        raise ReleaseError(f"There is no {_CONFIG} in {course}. Run this in the course folder.")
    return PyFileConfigLoader(_CONFIG, path=str(course)).load_config()


def _folder(config: Config, step: str) -> str:
    return config.CourseDirectory[f"{step}_directory"]


def _refuse_if_edited(course: Path, chapters: Iterable[str]) -> None:
    config = _config(course)
    sources, released = _folder(config, "source"), _folder(config, "release")
    edited = []
    for chapter in chapters:
        for source in sorted((course / sources / chapter).glob("*.ipynb")):
            path = Path(released) / chapter / source.name
            if (course / path).exists():
                edited += [f"  {path}: {cell}" for cell in edited_cells(course / path)]
    if edited:
        lines = "\n".join(edited)
        raise ReleaseError(
            f"Somebody has worked in these cells, so nothing was written (--overwrite does it):\n{lines}"
        )


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


@contextlib.contextmanager
def scripts_on_path() -> Iterator[None]:
    """nbgrader's first gradebook starts `alembic` by its name, also where no environment is activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


if __name__ == "__main__":
    sys.exit(main())
