"""Reading a learner's notebook: its solution cells, and what they define."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from helpers.checks import judge_implementation

#: A test cell's grade_id is its exercise's id with this behind it.
CHECK = "_check"
#: Seconds that one statement outside a function may take.
TIME_LIMIT = 10.0
_verdicts: dict[str, tuple[list[Any], bool]] = {}


@dataclass(frozen=True)
class Cell:
    """A code cell: its text, and the grade_id if it is the cell of an answer."""

    source: str
    answers: str | None

    @functools.cached_property
    def python(self) -> str | None:
        """The text as Python, IPython's magics turned into calls; None if it cannot run at all."""
        return _as_python(self.source)


@dataclass(frozen=True)
class Notebook:
    """A notebook's code cells without its test cells, and `checks`, the ids of the exercises that those check."""

    path: Path
    cells: tuple[Cell, ...]
    checks: tuple[str, ...]

    def answer_and_context(self, name: str) -> tuple[str, str]:
        """The text of the cells that answer an exercise or define its name, and that of all others."""
        answer, context = [], []
        for cell in self.cells:
            if cell.python is not None:
                is_answer = cell.answers == name or defines(cell.python, name)
                (answer if is_answer else context).append(cell.python)
        return "\n".join(answer), "\n".join(context)


@dataclass(frozen=True)
class Definitions:
    """What a notebook's definitions made: `names`, and a line for each statement that failed."""

    names: Mapping[str, Any]
    problems: tuple[str, ...] = field(default=())


def read(path: str | Path) -> Notebook:
    """Read a notebook file. ValueError, saying what is wrong, if it is missing or is not a notebook."""
    path = Path(path)
    try:
        return of(nbformat.read(path, as_version=4), path)
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except Exception as error:  # nbformat raises whatever the broken JSON leads it to
        raise ValueError(f"{path} cannot be read as a notebook ({type(error).__name__}: {str(error)[:200]}).") from None


def of(content: nbformat.NotebookNode, path: str | Path = "notebook.ipynb") -> Notebook:
    """The code of a notebook that has been read already."""
    cells, checks = [], []
    for cell in content.cells:
        if cell.cell_type != "code":
            continue
        marks = cell.metadata.get("nbgrader")
        marks = marks if isinstance(marks, Mapping) else {}
        grade_id = str(marks.get("grade_id", ""))
        if marks.get("grade") and not marks.get("solution") and grade_id.endswith(CHECK):
            checks.append(grade_id.removesuffix(CHECK))
        else:
            cells.append(Cell(cell.source or "", grade_id if marks.get("solution") else None))
    return Notebook(Path(path), tuple(cells), tuple(dict.fromkeys(checks)))


def defines(source: str, name: str) -> bool:
    """Whether a cell's text gives `name` a value at its top level, judged line by line, so that broken code counts."""
    name = re.escape(name)
    patterns = (
        rf"(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b",
        rf"{name}[ \t]*(?::[^=\n]+)?=(?!=)",
        rf"(?:from[ \t]+\S+[ \t]+)?import\b[^#\n]*\b{name}[ \t]*(?:,|$|#)",
    )
    return re.search(rf"^(?:{'|'.join(patterns)})", source, re.MULTILINE) is not None


def define(notebook: Notebook) -> Definitions:
    """Run what the notebook defines, and nothing else: solution cells without their bare calls; of other cells the
    imports, functions, classes, plain constants, other names for things, and what comes from the portfolio. It runs in
    the notebook's folder, and what it prints is not shown.
    """
    module = ModuleType(f"notebook_{notebook.path.stem}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    problems = []
    silence = contextlib.redirect_stdout(io.StringIO())
    with contextlib.chdir(notebook.path.parent), silence:
        for cell in notebook.cells:
            if cell.python is None:
                problems.append(f"a cell is not Python: {cell.source.strip().splitlines()[0][:60]}")
                continue
            for statement in ast.parse(cell.python).body:
                if not (_defines_in_solution(statement) if cell.answers else _defines(statement)):
                    continue
                try:
                    with _stop_after(TIME_LIMIT):
                        exec(_compile(statement, notebook.path), module.__dict__)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    problems.append(f"{ast.unparse(statement)[:60]!r} raised {type(error).__name__}: {error}")
    return Definitions(vars(module), tuple(problems))


def written(*names: str) -> bool:
    """Whether the answers of these names can be shown at work: written, and right at the core of their checks.

    Prints one line if one is not. So a cell that shows an answer neither hangs nor ends in a traceback.
    """
    namespace = sys._getframe(1).f_globals
    for name in names:
        if name not in namespace or _is_stub(namespace[name]):
            print(f"{name} is not written yet: this cell will show it once it is.")
            return False
        if not _starts_to_work(name, namespace):
            print(f"{name} does not pass the core of its check yet: this cell will show it once it does.")
            return False
    return True


def _starts_to_work(name: str, namespace: dict[str, Any]) -> bool:
    """Whether an exercise earns anything; judged again when anything that it is made of was defined anew."""
    parts = _parts(name, namespace)
    known, verdict = _verdicts.get(name, ([], False))
    if len(known) != len(parts) or any(old is not new for old, new in zip(known, parts, strict=True)):
        verdict = judge_implementation(name, namespace[name], seed=0).score > 0
        _verdicts[name] = parts, verdict
    return verdict


def _parts(name: str, namespace: Mapping[str, Any]) -> list[Any]:
    """The object of this name and, as far as code names them, all that it uses and that these use in turn."""
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        word = waiting.pop()
        if word in namespace and word not in found:
            found[word] = namespace[word]
            waiting += _names_used_by(namespace[word])
    return list(found.values())


def _names_used_by(value: Any) -> list[str]:
    if isinstance(value, CodeType):
        return [*value.co_names, *(name for constant in value.co_consts for name in _names_used_by(constant))]
    if inspect.isfunction(value):
        return _names_used_by(value.__code__)
    if inspect.isclass(value) and value.__module__ == "__main__":
        bases = [base.__name__ for base in value.__bases__]
        return bases + [name for member in vars(value).values() for name in _names_used_by(member)]
    if isinstance(value, property | staticmethod | classmethod):
        return _names_used_by(getattr(value, "fget", None) or getattr(value, "__func__", None))
    return []


def _is_stub(value: Any) -> bool:
    if inspect.isclass(value):
        members = (member.fget if isinstance(member, property) else member for member in vars(value).values())
        return any(_is_stub(member) for member in members if inspect.isfunction(member))
    code = getattr(value, "__code__", None)
    return isinstance(code, CodeType) and code.co_names == ("NotImplementedError",)


def _as_python(source: str) -> str | None:
    if source.lstrip().startswith("%%"):
        source = source.lstrip().partition("\n")[2]  # %%time and the like run the rest of the cell
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        ast.parse(source)
        return source
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        text = TransformerManager().transform_cell(source)
        ast.parse(text)
        return text
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
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return False
    value = statement.value
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("portfolio.load", "helpers.portfolio.load")
    if isinstance(value, ast.Lambda | ast.Name) or (isinstance(value, ast.Attribute) and _is_dotted(value)):
        return True  # another name for something, such as `exp = np.exp`
    with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        ast.literal_eval(value)
        return True
    return False


def _is_dotted(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) or (isinstance(value, ast.Attribute) and _is_dotted(value.value))


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
