"""Notice when NumPy, torch or a builtin was replaced, and put the original back.

A patched `numpy.allclose` would otherwise make every later check in the same notebook meaningless.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

_MODULES = ("numpy", "numpy.linalg", "math", "torch", "torch.nn", "torch.nn.functional")
# Notebooks replace these themselves.
_REPLACED_BY_NOTEBOOKS = {
    "input",
    "open",
    "exit",
    "quit",
    "display",
    "print",
    "get_ipython",
    "copyright",
    "credits",
}
# torch._dynamo wraps this one when the first optimizer imports it.
_REPLACED_BY_TORCH = {"manual_seed"}
_originals: dict[tuple[str, str], tuple[Any, Any]] = {}


def remember() -> None:
    """Remember the public functions and classes of the watched modules loaded by now; known ones stay as they are."""
    owners = {name: sys.modules[name] for name in _MODULES if name in sys.modules}
    if "torch" in owners:
        owners["torch.Tensor"] = owners["torch"].Tensor
    owners["builtins"] = builtins
    for owner_name, owner in owners.items():
        if any(known == owner_name for known, _ in _originals):
            continue
        for name, value in vars(owner).items():
            if callable(value) and not name.startswith("_") and name not in _REPLACED_BY_NOTEBOOKS | _REPLACED_BY_TORCH:
                _originals[owner_name, name] = owner, value


def replaced() -> list[str]:
    """Names such as "numpy.allclose" that no longer are what they were."""
    return [
        f"{owner_name}.{name}"
        for (owner_name, name), (owner, value) in _originals.items()
        if vars(owner).get(name) is not value
    ]


def restore() -> list[str]:
    """Put every replaced function back; returns their names."""
    names = replaced()
    for (owner_name, name), (owner, value) in _originals.items():
        if f"{owner_name}.{name}" in names:
            setattr(owner, name, value)
    return names
