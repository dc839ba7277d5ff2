"""What an answer's text shows without running it: library calls that would do the exercise for the learner."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import textwrap
from types import FunctionType
from typing import Any

# Names under which notebooks use these modules even where the import is in a cell that isn't at hand.
_USUAL_ALIASES = {
    "np": "numpy",
    "torch": "torch",
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "scipy": "scipy",
}

_LONGEST_NAME = 20  # parts between dots
_CALLS_OF_NOTEBOOKS = {"helpers.checks.check", "helpers.checks.grade"}


def library_calls(source: str, forbidden: tuple[str, ...], context: str = "") -> list[str]:
    """Full names of the `forbidden` functions that `source` uses, and what of `helpers` knows answers.

    A forbidden name that begins with a dot, such as ".softmax", is a method of whatever object it is called on.
    Text that is not Python has no calls: it cannot run either.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    own = _imports(source)
    aliases = _USUAL_ALIASES | _imports(context) | own
    # What stands in a cell to try the answer out is no part of it.
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Expr | ast.Assert)]
    found = {name: None for name in own.values() if name in forbidden or _hands_out_answers(name)}
    classes = _classes(source) | _classes(context)
    for node in ast.walk(tree):
        name = _dotted_name(node, aliases)
        root, _ = _chain(node)
        if isinstance(root, ast.Name) and root.id in classes:
            continue
        if name and (name in forbidden or _hands_out_answers(name)):
            found[name] = None
        elif isinstance(node, ast.Attribute) and f".{node.attr}" in forbidden and _is_method_of_a_value(node, aliases):
            found[f"the method .{node.attr}"] = None
    return list(found)


def _hands_out_answers(name: str) -> bool:
    """Whether a name is of a part of `helpers` that has answers to give: its checks know them, the portfolio loads "
    "them."""
    return name.startswith(("helpers.checks.", "helpers.portfolio")) and name not in _CALLS_OF_NOTEBOOKS


def source_of(implementation: Any) -> str | None:
    """The text of a function or class: its whole cell in a notebook, its definition elsewhere; None if unknown."""
    functions = [implementation]
    if inspect.isclass(implementation):
        functions = list(vars(implementation).values())
    function = next((value for value in functions if isinstance(value, FunctionType)), None)
    if function is None:
        return None
    if not os.path.exists(function.__code__.co_filename):
        return "".join(linecache.getlines(function.__code__.co_filename)) or None
    try:
        return textwrap.dedent(inspect.getsource(implementation))
    except (OSError, TypeError, ValueError, SyntaxError):
        return None


def _classes(source: str) -> set[str]:
    try:
        return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}
    except SyntaxError:
        return set()


def _imports(source: str) -> dict[str, str]:
    """Local name -> full name for every import in `source`, as far as it can be parsed."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                names[item.asname or item.name.split(".")[0]] = item.name if item.asname else item.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                names[item.asname or item.name] = f"{node.module}.{item.name}"
    return names


def _dotted_name(node: ast.AST, aliases: dict[str, str]) -> str | None:
    root, parts = _chain(node)
    if not isinstance(root, ast.Name) or root.id not in aliases:
        return None
    return ".".join([aliases[root.id], *reversed(parts)])


def _chain(node: ast.AST) -> tuple[ast.AST, list[str]]:
    """What stands before the dots of `a.b.c`, and the names behind them, last first. No library's name is longer."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _LONGEST_NAME:
        parts.append(node.attr)
        node = node.value
    return node, parts


def _is_method_of_a_value(node: ast.Attribute, aliases: dict[str, str]) -> bool:
    return _dotted_name(node, aliases) is None and not (
        isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    )
