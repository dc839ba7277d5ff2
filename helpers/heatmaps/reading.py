"""Reading what a picture is given: arrays, refused in words that say what is wrong, and labels."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

ROUNDING = 0.01  # how far over 100 % a row may come: bfloat16 weights do


def read_weights(values: Any, ranks: tuple[int, ...], wanted: str) -> np.ndarray:
    """Weights between 0 and 1 with one of the numbers of axes `ranks`, which `wanted` says in words."""
    weights = _array(values, "weights")
    if weights.dtype == bool:
        raise ValueError("weights are True and False, which is a mask: draw it with mask_map")
    if weights.dtype.kind not in "iuf":
        raise ValueError(f"weights must be real numbers, got {weights.dtype}")
    if weights.ndim not in ranks:
        raise ValueError(f"weights must be {wanted}; got shape {weights.shape}")
    if weights.size == 0:
        raise ValueError(f"weights of shape {weights.shape} have no entries, so there is nothing to draw")
    weights = weights.astype(float)
    _refuse(weights, np.isnan(weights), "NaN: did a softmax get a row of only -inf?")
    _refuse(weights, weights < 0, "which is negative: are these scores? Softmax them first")
    _refuse(weights, weights > 1 + ROUNDING, "which is more than 1: are these scores? Softmax them first")
    return weights


def refuse_overspent(shares: np.ndarray) -> None:
    totals = shares.sum(axis=1)
    if totals.max() > 1 + ROUNDING:
        row = int(totals.argmax())
        raise ValueError(
            f"row {row} sums to {totals[row]:.4g}, more than the budget of 1: was the softmax taken along another axis?"
        )


def read_mask(values: Any) -> np.ndarray:
    mask = _array(values, "keep")
    if mask.dtype != bool:
        raise ValueError(f"keep must be boolean, True = may attend, got {mask.dtype}: write for example keep == 1")
    if mask.ndim != 2:
        raise ValueError(f"keep must be (T_q, T_k), for example keep[0]; got shape {mask.shape}")
    if mask.size == 0:
        raise ValueError(f"keep of shape {mask.shape} has no entries, so there is nothing to draw")
    return mask


def read_tensor(values: Any) -> np.ndarray:
    tensor = _array(values, "entries")
    if tensor.ndim not in (2, 3):
        raise ValueError(f"entries must be (rows, columns) or (panels, rows, columns), got shape {tensor.shape}")
    if not 0 < tensor.size <= 600:
        raise ValueError(f"entries must be 1 to 600 to be read, got {tensor.size} in shape {tensor.shape}")
    return tensor


def read_highlight(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    marked = np.zeros(shape, bool) if values is None else _array(values, "highlight")
    if marked.dtype != bool or marked.shape != shape:
        raise ValueError(f"highlight must be boolean of shape {shape}, got {marked.dtype} of shape {marked.shape}")
    return marked


def read_view(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The memory cell of each index of a view."""
    if len(shape) not in (2, 3) or len(strides) != len(shape):
        raise ValueError(f"shape and strides must have 2 or 3 numbers each, got {shape} and {strides}")
    if min(shape) < 1 or min(strides) < 0:
        raise ValueError(f"sizes must be at least 1 and strides at least 0, got {shape} and {strides}")
    steps = [np.arange(size) * stride for size, stride in zip(shape, strides, strict=True)]
    cells = 1 + sum(int(step[-1]) for step in steps)
    if max(cells, math.prod(shape)) > 128:
        raise ValueError(
            f"shape {shape} with strides {strides} needs {cells} memory cells for {math.prod(shape)} entries, "
            "a picture shows at most 128; NumPy's strides count bytes: divide them by itemsize"
        )
    return functools.reduce(np.add.outer, steps)


def _array(values: Any, what: str) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} must be a regular array, all rows of one length") from error


def _refuse(weights: np.ndarray, bad: np.ndarray, why: str) -> None:
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        head = f"head {index[0]}, " if weights.ndim == 3 else ""
        row = f"row {index[-2]}, " if weights.ndim > 1 else ""
        value = "" if np.isnan(weights[index]) else f"{weights[index]:.4g}, "
        raise ValueError(f"weights at {head}{row}column {index[-1]} are {value}{why}")


# Labels


class Labels(NamedTuple):
    shown: list[str]  # in the picture
    spoken: list[str]  # in the alternative text: quoted, and with the position where a token occurs twice


def read_query_and_key_labels(
    shape: Sequence[int], tokens: Sequence[str] | None, key_tokens: Sequence[str] | None
) -> tuple[Labels, Labels]:
    n_queries, n_keys = shape
    kinds = ("token", "token") if n_queries == n_keys else ("query", "key")
    queries = read_labels(tokens, n_queries, kinds[0], "queries")
    if key_tokens is None and tokens is not None and n_queries != n_keys:
        raise ValueError(f"{n_queries} tokens cannot label {n_keys} keys: pass key_tokens as well")
    return queries, read_labels(tokens if key_tokens is None else key_tokens, n_keys, kinds[1], "keys")


def read_labels(tokens: Sequence[str] | None, length: int, kind: str, counted: str) -> Labels:
    shown = read_names(tokens, length, "tokens", counted, [str(i) for i in range(length)], longest=18)
    if tokens is None:
        return Labels(shown, [f"{kind} {i}" for i in range(length)])
    repeated = {token for token in shown if shown.count(token) > 1}
    spoken = [f"'{token}'" + (f" at {i}" if token in repeated else "") for i, token in enumerate(shown)]
    return Labels(shown, spoken)


def read_names(
    names: Sequence[str] | None, length: int, what: str, counted: str, default: list[str], longest: int = 40
) -> list[str]:
    if names is None:
        return default
    if isinstance(names, str):
        raise ValueError(
            f"{what} must be a list of strings, got the string {names!r}: write for example sentence.split()"
        )
    names = [visible(str(name), longest) for name in names]
    if len(names) != length:
        raise ValueError(f"{len(names)} {what} do not match {length} {counted}: pass one for each")
    return names


def visible(text: str, longest: int) -> str:
    """A label that can be seen and fits: blanks and line breaks spelled out, long ones shortened."""
    if not text.strip() or not text.isprintable():
        text = repr(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
