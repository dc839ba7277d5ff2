"""Reading a learner's notebook: its solution cells, and what they define."""

from __future__ import annotations

import ast
import contextlib
import inspect
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import nbformat

#: Seconds that the definitions of one notebook may take.
TIME_LIMIT = 20.0


@dataclass(frozen=True)
class Notebook:
    """A notebook's code: `solutions` by grade_id, `checks` (ids of exercises with a test cell), and all code cells."""

    path: Path
    solutions: Mapping[str, str]
    checks: tuple[str, ...]
    cells: tuple[tuple[str, bool], ...]

    @property
    def code(self) -> str:
        """All code that can be parsed, for looking up imports."""
        return "\n".join(text for text, _ in self.cells if _parse(text) is not None)


@dataclass(frozen=True)
class Definitions:
    """What a notebook's definitions made: `names`, and a line for each statement that failed."""

    names: Mapping[str, Any]
    problems: tuple[str, ...] = field(default=())


def read(path: str | Path) -> Notebook:
    """Read a notebook. ValueError, saying what is wrong, if the file is missing or is not a notebook."""
    path = Path(path)
    try:
        content = nbformat.read(path, as_version=4)
        cells = [cell for cell in content.cells if cell.cell_type == "code"]
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except Exception as error:  # nbformat raises whatever the broken JSON leads it to
        raise ValueError(f"{path} cannot be read as a notebook ({type(error).__name__}: {str(error)[:200]}).") from None
    solutions: dict[str, str] = {}
    checks: dict[str, None] = {}
    marked = []
    for cell in cells:
        mark = cell.metadata.get("nbgrader") or {}
        grade_id = str(mark.get("grade_id", ""))
        text = _as_python(cell.source)
        if mark.get("solution"):
            solutions[grade_id] = text
        elif mark.get("grade") and grade_id.endswith("_check"):
            checks[grade_id.removesuffix("_check")] = None
        marked.append((text, bool(mark.get("solution"))))
    return Notebook(path, solutions, tuple(checks), tuple(marked))


def define(notebook: Notebook) -> Definitions:
    """Run what the notebook defines, and nothing else: solution cells without their bare calls; of other cells the
    imports, functions, classes, plain constants and what comes from the portfolio. It runs in the notebook's folder.
    """
    module = ModuleType(f"notebook_{notebook.path.stem}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    problems = []
    with contextlib.chdir(notebook.path.parent), _stop_after(TIME_LIMIT):
        for text, is_solution in notebook.cells:
            tree = _parse(text)
            if tree is None:
                problems.append(f"a cell is not Python: {text.strip().splitlines()[0][:60]}")
                continue
            for statement in tree.body:
                if not (_defines_in_solution(statement) if is_solution else _defines(statement)):
                    continue
                try:
                    exec(_compile(statement, notebook.path), module.__dict__)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    problems.append(f"{ast.unparse(statement)[:60]!r} raised {type(error).__name__}: {error}")
                    if isinstance(error, TimeoutError):
                        return Definitions(vars(module), tuple(problems))
    return Definitions(vars(module), tuple(problems))


def written(*names: str) -> bool:
    """Whether the notebook's functions or classes of these names are written; prints one line if one is not."""
    namespace = sys._getframe(1).f_globals
    for name in names:
        if name not in namespace or _is_stub(namespace[name]):
            print(f"{name} is not written yet: this cell will show it once it is.")
            return False
    return True


def _is_stub(value: Any) -> bool:
    if inspect.isclass(value):
        return any(_is_stub(method) for method in vars(value).values() if inspect.isfunction(method))
    code = getattr(value, "__code__", None)
    return isinstance(code, CodeType) and code.co_names == ("NotImplementedError",)


def _as_python(source: str) -> str:
    """A cell's text without IPython's magics, which are no part of an answer."""
    if _parse(source) is not None:
        return source
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(source)


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _compile(statement: ast.stmt, path: Path) -> CodeType:
    return compile(ast.Module([statement], []), f"<{path.name}>", "exec")


def _defines_in_solution(statement: ast.stmt) -> bool:
    return not isinstance(statement, ast.Expr)


def _defines(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return True
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    value = statement.value
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("portfolio.load", "helpers.portfolio.load")
    with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        ast.literal_eval(value)
        return True
    return False


@contextlib.contextmanager
def _stop_after(seconds: float) -> Iterator[None]:
    """TimeoutError in the block after `seconds`, where the system can (Unix, main thread)."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"stopped after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
