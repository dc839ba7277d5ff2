"""Values to JSON and back, without running anything: what leaves a student's process is data.

Arrays travel as dtype, shape and bytes; tensors the same, marked as tensors; anything else that isn't plain becomes
its type's name. Decoding accepts only what encoding makes and raises ValueError otherwise.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_BYTES = 4_000_000
MAX_TEXT = 2_000
MAX_ITEMS = 1_000
MAX_DEPTH = 8
_TENSOR_AS_FLOAT32 = ("bfloat16",)


@dataclass(frozen=True)
class Tensor:
    """A torch tensor's content as an array, and its own dtype's name ("bfloat16" has none in NumPy)."""

    array: np.ndarray
    dtype: str


@dataclass(frozen=True)
class Opaque:
    """A value of some other type: only what it was, never the thing itself."""

    description: str


def encode(value: Any, depth: int = 0) -> Any:
    """JSON-able form of `value`: numbers, text, arrays, tensors, and tuples, lists and dicts of them."""
    if value is None or isinstance(value, bool):
        return {"kind": "plain", "value": value}
    if type(value) is int:
        return {"kind": "int", "value": str(value)} if abs(value) < 10**300 else _opaque("an int of over 300 digits")
    if type(value) is float:
        return {"kind": "float", "value": repr(value)}
    if type(value) is str:
        return {"kind": "plain", "value": value[:MAX_TEXT]}
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        return _encode_array(value)
    if _is_tensor(value):
        return _encode_tensor(value)
    if depth < MAX_DEPTH and isinstance(value, tuple | list) and len(value) <= MAX_ITEMS:
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"kind": kind, "items": [encode(item, depth + 1) for item in value]}
    if depth < MAX_DEPTH and isinstance(value, dict) and len(value) <= MAX_ITEMS:
        return {"kind": "dict", "items": [[str(key), encode(item, depth + 1)] for key, item in value.items()]}
    if isinstance(value, BaseException):
        return _opaque(f"a {type(value).__name__} that was returned, not raised")
    return _opaque(f"a value of type {type(value).__name__}")


def decode(data: Any, depth: int = 0) -> Any:
    """The value that `encode` was given. ValueError for anything that `encode` does not make."""
    try:
        return _decode(data, depth)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("not an encoded value") from error


def _decode(data: Any, depth: int) -> Any:
    if not isinstance(data, Mapping) or depth > MAX_DEPTH + 1:
        raise ValueError("not an encoded value")
    kind = data.get("kind")
    if kind == "plain" and (data["value"] is None or isinstance(data["value"], bool | str)):
        return data["value"]
    if kind == "int" and isinstance(data["value"], str) and len(data["value"]) <= 302:
        return int(data["value"])
    if kind == "float" and isinstance(data["value"], str):
        return float(data["value"])
    if kind in ("array", "scalar", "tensor"):
        return _decode_array(data)
    if kind in ("tuple", "list") and isinstance(data["items"], list):
        items = [decode(item, depth + 1) for item in data["items"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict" and isinstance(data["items"], list):
        return {str(key): decode(item, depth + 1) for key, item in data["items"]}
    if kind == "opaque" and isinstance(data["description"], str):
        return Opaque(data["description"][:MAX_TEXT])
    raise ValueError(f"not an encoded value: kind {kind!r}")


def fingerprint(value: Any) -> Any:
    """Something to compare before and after a call, to see whether the call changed `value`."""
    if hasattr(value, "state_dict"):
        value = dict(value.state_dict())
    return encode(value)


def _opaque(description: str) -> dict[str, Any]:
    return {"kind": "opaque", "description": description}


def _encode_array(value: np.ndarray | np.generic) -> dict[str, Any]:
    array = np.asarray(value)
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        return _opaque(f"an array of dtype {array.dtype}")
    if array.nbytes > MAX_BYTES:
        return _opaque(f"an array of shape {array.shape}, too large to be right")
    return {"kind": kind, **_bytes_of(array), "type": array.dtype.name}


def _encode_tensor(value: Any) -> dict[str, Any]:
    dtype = str(value.dtype).removeprefix("torch.")
    if value.numel() * value.element_size() > MAX_BYTES:
        return _opaque(f"a tensor of shape {tuple(value.shape)}, too large to be right")
    if value.device.type != "cpu" or value.layout is not sys.modules["torch"].strided:
        return _opaque(f"a tensor on {value.device.type} with layout {value.layout}")
    tensor = value.detach()
    array = (tensor.float() if dtype in _TENSOR_AS_FLOAT32 else tensor).resolve_conj().numpy()
    if array.dtype.kind not in "biuf":
        return _opaque(f"a tensor of dtype {dtype}")
    return {"kind": "tensor", **_bytes_of(array), "type": dtype}


def _bytes_of(array: np.ndarray) -> dict[str, Any]:
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return {
        "dtype": little.dtype.str,
        "shape": list(array.shape),
        "data": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def _decode_array(data: Mapping[str, Any]) -> Any:
    try:
        dtype = np.dtype(str(data["dtype"]))
        shape = tuple(int(size) for size in data["shape"])
        raw = base64.b64decode(data["data"], validate=True)
    except ValueError as error:
        raise ValueError("not an encoded array") from error
    fits = len(shape) <= 32 and all(size >= 0 for size in shape) and len(raw) <= MAX_BYTES
    if dtype.kind not in "biuf" or not fits or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError("not an encoded array")
    array = np.frombuffer(raw, dtype).reshape(shape)
    if data["kind"] == "scalar":
        return array[()]
    return Tensor(array, str(data["type"])) if data["kind"] == "tensor" else array


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
