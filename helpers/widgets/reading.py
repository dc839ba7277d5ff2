"""Reading what an interactive picture is given; what it cannot show is refused in words that say what to do."""

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from helpers.heatmaps.reading import read_names

MOST_TOKENS = 20  # so many words have room side by side


def read_numbers(values: Any, what: str) -> np.ndarray:
    """Finite numbers as a float array of its own, from lists, arrays, and tensors of any dtype."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # NumPy has no bfloat16
    try:
        numbers = np.array(values).astype(float, casting="same_kind")
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a list of tensors that require grad
        raise ValueError(f"{what} must be a regular array or tensor of real numbers") from error
    if not np.isfinite(numbers).all():
        place = tuple(int(axis) for axis in np.argwhere(~np.isfinite(numbers))[0])
        at = f" at {', '.join(map(str, place))}" if place else ""
        raise ValueError(f"{what} must be finite numbers, got {numbers[place]:g}{at}")
    return numbers


def read_tokens(tokens: Sequence[str]) -> list[str]:
    """Tokens as they are shown: blanks spelled out, long ones shortened."""
    if not 0 < len(tokens) <= MOST_TOKENS:
        raise ValueError(f"tokens must be 1 to {MOST_TOKENS} to be read side by side, got {len(tokens)}")
    return read_names(tokens, len(tokens), "tokens", "tokens", [], longest=18)


def read_place(number: Any, length: int, what: str) -> int:
    """The place of one of `length`, counted from 0; a negative number counts from the end."""
    place = _whole(number)
    if place is None:
        raise ValueError(f"{what} must be a whole number, counted from 0; got {number!r}")
    if not -length <= place < length:
        raise ValueError(f"{what} {place} does not exist: there are {length}, counted from 0")
    return place % length


def refuse_sizes(**sizes: Any) -> None:
    """ValueError if one of the sizes is not a whole number of at least 1."""
    for name, size in sizes.items():
        if (_whole(size) or 0) < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")


def refuse_shape(name: str, array: np.ndarray, wanted: Sequence[int], axes: str) -> None:
    """ValueError if an array does not have the wanted shape, which `axes` names."""
    if array.shape != tuple(wanted):
        raise ValueError(f"{name} must be {axes} = {tuple(wanted)}, got shape {array.shape}")


def _whole(number: Any) -> int | None:
    try:
        return index(number)
    except TypeError:
        return None
