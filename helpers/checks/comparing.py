"""What a learner's code did on a case, and how that differs from what it should have done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.checks.encoding import Opaque, Tensor, decode

# Room for another order of operations and for float32 on the way (NumPy makes float64 of it again), so that the
# verdict does not hang on the seed; far below any difference between two formulas.
_TOLERANCE = {
    "float64": (2e-5, 5e-6),
    "float32": (1e-4, 1e-5),
    "bfloat16": (3e-2, 3e-2),
    "float16": (3e-3, 3e-3),
}


@dataclass(frozen=True)
class Outcome:
    """How one case ended: "returned" with a value, "raised" with an error, or another word for what happened."""

    kind: str
    value: Any = None
    error: Mapping[str, Any] | None = None
    changed: tuple[Any, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_observation(cls, data: Any) -> Outcome:
        """Read one case of an observation. ValueError for anything that `observe` does not write."""
        try:
            kind = data["outcome"]
            changed, warnings = tuple(data["changed"]), tuple(str(text) for text in data["warnings"])
            if kind == "returned":
                return cls(kind, decode(data["value"]), None, changed, warnings)
            if kind == "raised":
                error = data["error"]
                known = {key: str(error[key]) for key in ("type", "message")}
                known |= {"bases": [str(base) for base in error["bases"]], "where": error["where"]}
                return cls(kind, None, known, changed, warnings)
            if kind == "asked for input":
                return cls(kind, None, None, changed, warnings)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not an observed case") from error
        raise ValueError("not an observed case")

    @property
    def error_type(self) -> str:
        return self.error["type"] if self.error else ""


@dataclass(frozen=True)
class Difference:
    """A difference between two outcomes: `kind` for programs, `text` for people, and the part and place it is at."""

    kind: str
    text: str
    part: str = ""
    index: tuple[int, ...] | None = None


def difference(
    expected: Outcome,
    got: Outcome,
    *,
    returns: tuple[str, ...] = (),
    exact_zeros: bool = False,
    loose: bool = False,
) -> Difference | None:
    """The first difference between two outcomes, or None. `loose` compares values, not their dtypes."""
    if expected.kind == "raised" and got.kind == "raised":
        return _error_difference(expected, got, loose)
    if expected.kind == "raised":
        wanted = f"a {expected.error_type} was asked for"
        return Difference("no_error", f"{wanted}, but the call {_ended(got)}")
    if got.kind != "returned":
        return Difference(got.kind.replace(" ", "_"), f"the call {_ended(got)}")
    return _Comparison(returns, exact_zeros, loose).values(expected.value, got.value, "")


def _ended(outcome: Outcome) -> str:
    if outcome.kind == "raised":
        return f"raised {outcome.error_type}: {outcome.error['message']}" if outcome.error else "raised an error"
    if isinstance(outcome.value, Opaque):
        return f"returned {outcome.value.description}"
    return {"returned": "returned a value", "asked for input": "asked for input"}.get(outcome.kind, outcome.kind)


def _error_difference(expected: Outcome, got: Outcome, loose: bool) -> Difference | None:
    assert expected.error and got.error
    if loose:
        same = expected.error_type == got.error_type and _gist(expected) == _gist(got)
        return None if same else Difference("raised", f"the call {_ended(got)}")
    if expected.error_type in got.error["bases"]:
        return None
    kind = "asserted" if got.error_type == "AssertionError" else "wrong_error"
    return Difference(kind, f"a {expected.error_type} was asked for, but the call {_ended(got)}")


def _gist(outcome: Outcome) -> str:
    """How a message begins, and its numbers: "size 3 is different from 4" says which product did not fit."""
    message = outcome.error["message"].lower() if outcome.error else ""
    return re.sub(r"[^a-z ]", "", message)[:40] + ", ".join(re.findall(r"\d+", message))


@dataclass(frozen=True)
class _Comparison:
    returns: tuple[str, ...]
    exact_zeros: bool
    loose: bool

    def values(self, expected: Any, got: Any, part: str) -> Difference | None:
        if isinstance(expected, dict):
            return self._dicts(expected, got, part)
        if isinstance(expected, tuple | list):
            return self._sequences(expected, got, part)
        if isinstance(expected, bool | np.bool_ | str) or expected is None:
            plain = got.item() if isinstance(got, np.bool_) or _is_flag(got) else got
            if type(plain) is type(expected) and plain == expected:
                return None
            if type(plain) is type(expected):
                return Difference("wrong_values", f"expected {expected!r}, got {plain!r}", part)
            return self._wrong_type(expected, got, part)
        if isinstance(expected, int | float | np.generic) or getattr(expected, "shape", None) == ():
            return self._numbers(expected, got, part)
        return self._arrays(expected, got, part)

    def _dicts(self, expected: dict[str, Any], got: Any, part: str) -> Difference | None:
        if not isinstance(got, dict):
            return self._wrong_type(expected, got, part)
        if set(expected) != set(got):
            return Difference("wrong_type", f"expected the entries {sorted(expected)}, got {sorted(got)}", part)
        found = (self.values(value, got[name], name) for name, value in expected.items())
        return next((d for d in found if d), None)

    def _sequences(self, expected: tuple | list, got: Any, part: str) -> Difference | None:
        if not isinstance(got, tuple | list):
            return self._wrong_type(expected, got, part)
        if len(expected) != len(got):
            return Difference("wrong_type", f"expected {len(expected)} values, got {len(got)}", part)
        names = self.returns if len(self.returns) == len(expected) and not part else ()
        for number, (wanted, value) in enumerate(zip(expected, got, strict=True)):
            name = names[number] if names else f"{part}[{number}]"
            found = self.values(wanted, value, name)
            if found:
                return found
        return None

    def _numbers(self, expected: Any, got: Any, part: str) -> Difference | None:
        wanted = expected.array if isinstance(expected, Tensor) else expected
        array = got.array if isinstance(got, Tensor) else got
        wants_tensor = isinstance(expected, Tensor)
        is_number = isinstance(array, int | float | np.generic | np.ndarray) and not isinstance(array, bool | np.bool_)
        if not is_number or (not self.loose and wants_tensor != isinstance(got, Tensor)):
            return self._wrong_type(expected, got, part)
        if np.shape(array) != ():
            return Difference("wrong_shape", f"expected one number, got shape {np.shape(array)}", part)
        if not self.loose and wants_tensor and got.dtype != expected.dtype:
            return Difference("wrong_dtype", f"expected dtype {expected.dtype}, got {got.dtype}", part)
        if isinstance(wanted, int) and isinstance(array, int):
            same = wanted == array
        else:
            name = getattr(expected, "dtype", "float64")
            rtol, atol = _TOLERANCE.get(str(name), _TOLERANCE["float64"])
            same = bool(np.isclose(float(wanted), float(array), rtol=rtol, atol=atol, equal_nan=True))
        return None if same else Difference("wrong_values", f"expected {wanted}, got {array}", part)

    def _arrays(self, expected: Any, got: Any, part: str) -> Difference | None:
        if type(expected) is not type(got):
            return self._wrong_type(expected, got, part)
        wanted, array = (expected.array, got.array) if isinstance(expected, Tensor) else (expected, got)
        if wanted.shape != array.shape:
            return Difference("wrong_shape", f"expected shape {wanted.shape}, got {array.shape}", part)
        wrong_dtype = self._dtypes(expected, got, part)
        if wrong_dtype:
            return wrong_dtype
        if wanted.dtype.kind == array.dtype.kind == "b":
            wrong = wanted != array
        else:
            wrong = ~self._close(wanted, array, str(getattr(expected, "dtype", "")), str(getattr(got, "dtype", "")))
        if not wrong.any():
            return None
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        kind = "not_finite" if not np.isfinite(array).all() and np.isfinite(wanted).all() else "wrong_values"
        return Difference(kind, f"{int(wrong.sum())} of {wrong.size} entries differ", part, index)

    def _dtypes(self, expected: Any, got: Any, part: str) -> Difference | None:
        if self.loose:
            return None
        exact = isinstance(expected, Tensor)
        same = expected.dtype == got.dtype if exact else expected.dtype.kind == got.dtype.kind
        return None if same else Difference("wrong_dtype", f"expected dtype {expected.dtype}, got {got.dtype}", part)

    def _close(self, wanted: np.ndarray, array: np.ndarray, wanted_dtype: str, got_dtype: str) -> np.ndarray:
        tolerances = [_TOLERANCE.get(name, _TOLERANCE["float64"]) for name in (wanted_dtype, got_dtype)]
        # A NumPy answer in float16 has thrown digits away that the contract keeps.
        rtol, atol = max(tolerances) if wanted_dtype != "float64" or got_dtype == "float32" else tolerances[0]
        wanted, array = wanted.astype(np.float64), array.astype(np.float64)
        with np.errstate(all="ignore"):
            close = np.isclose(array, wanted, rtol=rtol, atol=atol, equal_nan=True)
        if self.exact_zeros and not self.loose:
            close &= (wanted != 0) | (array == 0)
        return close

    def _wrong_type(self, expected: Any, got: Any, part: str) -> Difference:
        kind = "returned_none" if got is None else "wrong_type"
        return Difference(kind, f"expected {describe(expected)}, got {describe(got)}", part)


def _is_flag(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == bool and value.shape == ()


def describe(value: Any) -> str:
    """What kind of thing a value is: "an array of shape (2, 3)", "a list of 4 values", "None"."""
    if value is None:
        return "None (is a `return` missing?)"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of shape {value.shape}"
    if isinstance(value, Tensor):
        return f"a torch tensor of shape {value.array.shape}"
    if isinstance(value, Opaque):
        return value.description
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} values"
    if isinstance(value, list):
        return f"a list of {len(value)} values"
    if isinstance(value, dict):
        return "a dict"
    if isinstance(value, float | np.floating):
        return f"the number {float(value):.6g}"
    return f"{value!r} (type {type(value).__name__})"
