"""Chapter 5: a cache for keys and values, the mask that goes with it, generation, and what both save and cost."""

from __future__ import annotations

import contextlib
import copy
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from helpers.checks.exercise import Arguments, Case, Exercise, Misconception, Quiz, given

# Headings of the notebook that cards point to.
SAME = "What stays the same"
CACHE = "A cache that grows"
MASK = "A mask that is wider than tall"
ATTEND = "Attend to what was kept"
GENERATE = "Prefill, then decode"
SAVES = "What it saves"
COSTS = "What it costs"


# Oracles: torch's own attention, joined tensors, plain sums.


class KVCache:
    """Keys and values of all tokens so far, joined anew at every append."""

    def __init__(
        self, batch: int, n_kv_heads: int, max_tokens: int, d_head: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self._sizes = (batch, n_kv_heads, d_head)
        self._max_tokens, self._dtype = max_tokens, dtype
        self.reset()

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H_kv, n, d) twice -> all keys and values so far. ValueError for a wrong shape, or if there is no room."""
        _refuse_wrong_shape(self._sizes, k, v)
        _refuse_overflow(len(self), k.shape[2], self._max_tokens)
        self._k = torch.cat([self._k, k.to(self._dtype)], dim=2)
        self._v = torch.cat([self._v, v.to(self._dtype)], dim=2)
        return self._k, self._v

    def __len__(self) -> int:
        return self._k.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values stored so far."""
        return self._k.nbytes + self._v.nbytes

    def reset(self) -> None:
        """Forget all tokens."""
        batch, n_kv_heads, d_head = self._sizes
        self._k = torch.empty(batch, n_kv_heads, 0, d_head, dtype=self._dtype)
        self._v = self._k.clone()


def _refuse_wrong_shape(sizes: tuple[int, int, int], k: Tensor, v: Tensor) -> None:
    for name, given_ in (("k", k), ("v", v)):
        if given_.ndim != 4 or (given_.shape[0], given_.shape[1], given_.shape[3]) != sizes:
            batch, heads, d_head = sizes
            raise ValueError(f"{name} must have shape ({batch}, {heads}, n, {d_head}), got {tuple(given_.shape)}")
    if k.shape != v.shape:
        raise ValueError(f"k has {k.shape[2]} tokens and v {v.shape[2]}")


def _refuse_overflow(n_tokens: int, n_new: int, max_tokens: int) -> None:
    if n_tokens + n_new > max_tokens:
        raise ValueError(f"{n_tokens} tokens and {n_new} more do not fit into a cache for {max_tokens}")


def cached_causal_mask(n_new: int, n_total: int) -> Tensor:
    """(n_new, n_total): the new tokens are the last ones, and each sees itself and the past."""
    positions = torch.arange(n_total)
    return positions <= positions[n_total - n_new :, None]


def attend_with_cache(mha: nn.Module, x_new: Tensor, cache: Any) -> Tensor:
    """(B, n_new, d_model) -> the same shape: torch's own attention over everything in the cache."""
    q, k, v = (_split(mha, project(x_new)) for project in (mha.w_q, mha.w_k, mha.w_v))
    k_all, v_all = cache.append(k, v)
    keep = cached_causal_mask(q.shape[2], k_all.shape[2])
    return mha.w_o(_merge(scaled_dot_product_attention(q, k_all, v_all, attn_mask=keep)))


def _split(mha: nn.Module, x: Tensor) -> Tensor:
    return x.unflatten(-1, (mha.n_heads, mha.d_head)).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


@torch.no_grad()
def generate(model: Any, prompt: Tensor, n_new: int, use_cache: bool = True) -> Tensor:
    """(B, T) ids -> (B, T + n_new), the likeliest token each time. ValueError: an empty prompt, a negative n_new."""
    if prompt.shape[1] == 0:
        raise ValueError(f"the prompt is empty: its shape is {tuple(prompt.shape)}")
    if n_new < 0:
        raise ValueError(f"n_new must not be negative, got {n_new}")
    ids = prompt
    caches = model.new_caches(len(prompt), prompt.shape[1] + n_new) if use_cache else None
    for step in range(n_new):
        fed = ids[:, -1:] if use_cache and step else ids
        ids = torch.cat([ids, model(fed, caches)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


def tokens_projected(n_tokens: int, use_cache: bool) -> int:
    """How many token vectors go through the projections when n tokens are made one by one."""
    return sum(1 if use_cache else step for step in range(1, n_tokens + 1))


def kv_cache_bytes(
    n_layers: int, n_kv_heads: int, d_head: int, n_tokens: int, batch: int = 1, bytes_per_value: int = 2
) -> int:
    """Bytes of all keys and values in all layers."""
    return math.prod((2, n_layers, n_kv_heads, d_head, n_tokens, batch, bytes_per_value))


# What cases are made of.


@contextlib.contextmanager
def _as_if_new(implementation: Any) -> Iterator[None]:
    """Afterwards put back what a class or function keeps to itself: attributes and default values.

    So each case meets them as they were defined, and what two objects share shows where two objects are made.
    """
    owners = [
        o for o in getattr(implementation, "__mro__", ()) if o.__module__.split(".")[0] not in ("builtins", "torch")
    ]
    functions = [value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType)]
    functions += [implementation] if isinstance(implementation, FunctionType) else []
    functions += [f.__wrapped__ for f in functions if isinstance(getattr(f, "__wrapped__", None), FunctionType)]
    attributes = [(owner, _copies(_data(owner))) for owner in owners]
    defaults = [(f, _copies(dict(enumerate(f.__defaults__)))) for f in functions if f.__defaults__]
    named_defaults = [(f, _copies(f.__kwdefaults__)) for f in functions if f.__kwdefaults__]
    own = [(f, _copies(vars(f))) for f in functions]
    try:
        yield
    finally:
        for owner, kept in attributes:
            for name in _data(owner):
                delattr(owner, name)
            for name, value in kept.items():
                setattr(owner, name, value)
        for function, values in defaults:
            function.__defaults__ = tuple(values.values())
        for function, values in named_defaults:
            function.__kwdefaults__ = values
        for function, values in own:
            vars(function).clear()
            vars(function).update(values)


def _data(owner: type) -> dict[str, Any]:
    plain = int | float | str | list | dict | set | tuple | Tensor | None
    return {name: value for name, value in vars(owner).items() if isinstance(value, plain) and name[:2] != "__"}


def _copies(values: Mapping[Any, Any]) -> dict[Any, Any]:
    changeable = (list, dict, set, Tensor)
    return {key: copy.deepcopy(value) if isinstance(value, changeable) else value for key, value in values.items()}


def _numbers(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


# KVCache


def _new(implementation: Any, keys: Tensor, max_tokens: int, dtype: torch.dtype | None) -> Any:
    batch, heads, _, d_head = keys.shape
    return implementation(batch, heads, max_tokens, d_head, **({} if dtype is None else {"dtype": dtype}))


def _pair(result: Any, when: str, copied: bool = True) -> dict[str, Any]:
    """What `append` returned as named parts; anything but a pair stands for both."""
    parts = tuple(result) if isinstance(result, tuple | list) and len(result) == 2 else (result, result)
    if copied:
        parts = tuple(part.clone() if isinstance(part, Tensor) else part for part in parts)
    return {f"keys {when}": parts[0], f"values {when}": parts[1]}


def _append(cache: Any, k: Tensor, v: Tensor) -> Any:
    """Append what fits. An answer that refuses it does so in its own words; here all say the same."""
    with _in_one_voice("append refused tokens that fit into the cache"):
        return cache.append(k, v)


@contextlib.contextmanager
def _in_one_voice(message: str) -> Iterator[None]:
    """A ValueError that the answer raises itself gets this message: only then can a mistake be recognised."""
    try:
        yield
    except ValueError as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line or "raise"
        if line.startswith("raise") and not hasattr(error, "of_the_model"):
            error.args = (message,)
        raise


def _append_in_chunks(
    implementation: Any,
    keys: Tensor,
    values: Tensor,
    chunks: Sequence[int],
    max_tokens: int,
    dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, dtype)
        parts: dict[str, Any] = {}
        for number, (k, v) in enumerate(_chunks(chunks, keys, values), 1):
            parts |= _pair(_append(cache, k, v), f"after append {number}")
        return parts


def _look_again(
    implementation: Any, keys: Tensor, values: Tensor, chunks: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, None)
        parts: dict[str, Any] = {}
        for number, (k, v) in enumerate(_chunks(chunks, keys, values), 1):
            parts |= _pair(_append(cache, k, v), f"of append {number}, looked at again at the end", copied=False)
        return parts


def _count_tokens(
    implementation: Any, keys: Tensor, values: Tensor, chunks: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, None)
        parts = {"len of a new cache": len(cache)}
        for number, (k, v) in enumerate(_chunks(chunks, keys, values), 1):
            _append(cache, k, v)
            parts[f"len after append {number}"] = len(cache)
        return parts


def _count_bytes(
    implementation: Any,
    keys: Tensor,
    values: Tensor,
    chunks: Sequence[int],
    max_tokens: int,
    dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, dtype)
        parts = {"nbytes of a new cache": _nbytes(cache)}
        for number, (k, v) in enumerate(_chunks(chunks, keys, values), 1):
            _append(cache, k, v)
            parts[f"nbytes after append {number}"] = _nbytes(cache)
        return parts


def _nbytes(cache: Any) -> Any:
    return "a method" if callable(cache.nbytes) else cache.nbytes


def _chunks(sizes: Sequence[int], *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.split(list(sizes), dim=2) for tensor in tensors), strict=True)


def _use_two_caches(
    implementation: Any, keys: Tensor, values: Tensor, other_keys: Tensor, other_values: Tensor, chunks: Sequence[int]
) -> dict[str, Any]:
    with _as_if_new(implementation):
        one = _new(implementation, keys, keys.shape[2], None)
        other = _new(implementation, other_keys, other_keys.shape[2], None)
        parts: dict[str, Any] = {}
        both = zip(_chunks(chunks, keys, values), _chunks(chunks, other_keys, other_values), strict=True)
        for number, (first, second) in enumerate(both, 1):
            parts |= _pair(_append(one, *first), f"of the first cache after append {number}")
            parts |= _pair(_append(other, *second), f"of the second cache after append {number}")
        return parts


def _make_another_later(
    implementation: Any, keys: Tensor, values: Tensor, other_keys: Tensor, other_values: Tensor
) -> dict[str, Any]:
    with _as_if_new(implementation):
        _append(_new(implementation, keys, keys.shape[2] + other_keys.shape[2], None), keys, values)
        other = _new(implementation, other_keys, keys.shape[2] + other_keys.shape[2], None)
        return _pair(_append(other, other_keys, other_values), "of a second cache, made later")


def _append_after_reset(
    implementation: Any, keys: Tensor, values: Tensor, chunks: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    """The last chunk comes after a reset."""
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, None)
        *before, after = _chunks(chunks, keys, values)
        for k, v in before:
            _append(cache, k, v)
        cache.reset()
        return _pair(_append(cache, *after), "after reset and one append")


def _count_after_reset(
    implementation: Any, keys: Tensor, values: Tensor, chunks: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    """The last chunk comes after a reset."""
    return _look_after_reset(implementation, keys, values, chunks, max_tokens, "len", len)


def _count_bytes_after_reset(
    implementation: Any, keys: Tensor, values: Tensor, chunks: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    """The last chunk comes after a reset."""
    return _look_after_reset(implementation, keys, values, chunks, max_tokens, "nbytes", _nbytes)


def _look_after_reset(
    implementation: Any,
    keys: Tensor,
    values: Tensor,
    chunks: Sequence[int],
    max_tokens: int,
    name: str,
    look: Callable[[Any], Any],
) -> dict[str, Any]:
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, None)
        *before, after = _chunks(chunks, keys, values)
        for k, v in before:
            _append(cache, k, v)
        cache.reset()
        parts = {f"{name} after reset": look(cache)}
        _append(cache, *after)
        return parts | {f"{name} after one more append": look(cache)}


def _append_last(
    implementation: Any, keys: Tensor, values: Tensor, bad_keys: Tensor, bad_values: Tensor, max_tokens: int
) -> dict[str, Any]:
    """`keys` and `values` fit, the ones that come after them do not."""
    with _as_if_new(implementation):
        cache = _new(implementation, keys, max_tokens, None)
        if keys.shape[2]:
            _append(cache, keys, values)
        return _pair(cache.append(bad_keys, bad_values), "after an append that should be refused")


def _append_after_refusal(
    implementation: Any,
    keys: Tensor,
    values: Tensor,
    bad_keys: Tensor,
    bad_values: Tensor,
    chunks: Sequence[int],
    max_tokens: int,
) -> dict[str, Any]:
    """All chunks of `keys` and `values` fit; the bad ones come before the last chunk."""
    with _as_if_new(implementation):
        *before, after = _chunks(chunks, keys, values)
        cache = _after_refusal(implementation, before, keys, bad_keys, bad_values, max_tokens)
        return _pair(_append(cache, *after), "after a refused append and a good one")


def _count_after_refusal(
    implementation: Any, keys: Tensor, values: Tensor, bad_keys: Tensor, bad_values: Tensor, max_tokens: int
) -> dict[str, Any]:
    with _as_if_new(implementation):
        cache = _after_refusal(implementation, [(keys, values)], keys, bad_keys, bad_values, max_tokens)
        return {"len after a refused append": len(cache)}


def _after_refusal(
    implementation: Any, good: Sequence[Sequence[Tensor]], keys: Tensor, bad_keys: Tensor, bad_values: Tensor, room: int
) -> Any:
    """A cache that has refused something. One that took it is made anew: that is for other cases to find."""
    for with_bad in (True, False):
        cache = _new(implementation, keys, room, None)
        for k, v in good:
            _append(cache, k, v)
        try:
            if with_bad:
                cache.append(bad_keys, bad_values)
        except Exception:
            break
    return cache


class _Slots:
    """Room for all tokens made once, slots filled one after another: the mistakes below change one line of it."""

    def __init__(
        self, batch: int, n_kv_heads: int, max_tokens: int, d_head: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.sizes, self.max_tokens = (batch, n_kv_heads, d_head), max_tokens
        self.k = torch.zeros(batch, n_kv_heads, max_tokens, d_head, dtype=dtype)
        self.v = torch.zeros_like(self.k)
        self.n = 0

    def check(self, k: Tensor, v: Tensor) -> None:
        _refuse_wrong_shape(self.sizes, k, v)
        _refuse_overflow(self.n, k.shape[2], self.max_tokens)

    def append(self, k: Tensor, v: Tensor) -> Any:
        self.check(k, v)
        return self.store(k, v)

    def store(self, k: Tensor, v: Tensor) -> Any:
        end = self.n + k.shape[2]
        self.k[:, :, self.n : end] = k
        self.v[:, :, self.n : end] = v
        self.n = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def __len__(self) -> int:
        return self.n

    @property
    def nbytes(self) -> Any:
        return 2 * self.k[:, :, : self.n].nbytes

    def reset(self) -> None:
        self.n = 0


class _Joined(_Slots):
    """The same with tensors that are joined."""

    def __init__(
        self, batch: int, n_kv_heads: int, max_tokens: int, d_head: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(batch, n_kv_heads, max_tokens, d_head, dtype)
        self.dtype = dtype
        self.k = self.v = None

    def store(self, k: Tensor, v: Tensor) -> Any:
        self.k, self.v = (self.join(old, new.to(self.dtype)) for old, new in ((self.k, k), (self.v, v)))
        self.n += k.shape[2]
        return self.k, self.v

    def join(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else torch.cat([old, new], dim=2)

    @property
    def nbytes(self) -> Any:
        return 0 if self.k is None else self.k.nbytes + self.v.nbytes

    def reset(self) -> None:
        self.k = self.v = None
        self.n = 0


def _like(base: type, **methods: Any) -> type:
    """A class with some methods of `base` replaced, under the name that errors of a learner's own class show."""
    return type("KVCache", (base,), methods)


def _joined_along(axis: int) -> type:
    return _like(_Joined, join=lambda self, old, new: new if old is None else torch.cat([old, new], dim=axis))


def _written_at_start(self: Any, k: Tensor, v: Tensor) -> Any:
    n = k.shape[2]
    self.k[:, :, :n], self.v[:, :, :n] = k, v
    self.n += n
    return self.k[:, :, : self.n], self.v[:, :, : self.n]


def _only_the_new(self: Any, k: Tensor, v: Tensor) -> Any:
    _Slots.store(self, k, v)
    return k.to(self.k.dtype), v.to(self.k.dtype)


def _only_the_old(self: Any, k: Tensor, v: Tensor) -> Any:
    before = self.n
    k_all, v_all = _Slots.store(self, k, v)
    return k_all[:, :, :before], v_all[:, :, :before]


def _first_token_lost(self: Any, k: Tensor, v: Tensor) -> Any:
    """Slot 0 is never used."""
    start, end = self.n + 1, self.n + 1 + k.shape[2]
    self.k[:, :, start:end] = k[:, :, : max(0, self.max_tokens - start)]
    self.v[:, :, start:end] = v[:, :, : max(0, self.max_tokens - start)]
    self.n += k.shape[2]
    return self.k[:, :, : self.n], self.v[:, :, : self.n]


def _first_append_lost(self: Any, k: Tensor, v: Tensor) -> Any:
    """The first call only makes the tensors."""
    if self.k is None:
        self.k, self.v = (torch.empty(*new.shape[:2], 0, new.shape[3], dtype=self.dtype) for new in (k, v))
        return k.to(self.dtype), v.to(self.dtype)
    return _Joined.store(self, k, v)


def _one_slot_ahead(self: Any, k: Tensor, v: Tensor) -> Any:
    """Advances by one per append, not by the number of tokens."""
    end = self.n + k.shape[2]
    self.k[:, :, self.n : end], self.v[:, :, self.n : end] = k, v
    self.n += 1
    return self.k[:, :, :end], self.v[:, :, :end]


def _one_slot_shown(self: Any, k: Tensor, v: Tensor) -> Any:
    _one_slot_ahead(self, k, v)
    return self.k[:, :, : self.n], self.v[:, :, : self.n]


def _values_further_on(self: Any, k: Tensor, v: Tensor) -> Any:
    """The position moves after the keys and again after the values."""
    n = k.shape[2]
    self.k[:, :, self.n : self.n + n] = k
    self.n += n
    room = self.v[:, :, self.n : self.n + n]
    room[:] = v[:, :, : room.shape[2]]
    self.n += n
    return self.k[:, :, : self.n], self.v[:, :, : self.n]


def _twice(self: Any, k: Tensor, v: Tensor) -> Any:
    _Joined.store(self, k, v)
    return _Joined.store(self, k, v)


def _keys_for_both(self: Any, k: Tensor, v: Tensor) -> Any:
    return _Slots.store(self, k, k)


def _values_for_both(self: Any, k: Tensor, v: Tensor) -> Any:
    return _Slots.store(self, v, v)


def _exchanged(self: Any, k: Tensor, v: Tensor) -> Any:
    return _Slots.store(self, v, k)


def _last_of_chunk(self: Any, k: Tensor, v: Tensor) -> Any:
    return _Joined.store(self, k[:, :, -1:], v[:, :, -1:])


def _first_sequence_only(self: Any, k: Tensor, v: Tensor) -> Any:
    end = self.n + k.shape[2]
    self.k[0, :, self.n : end], self.v[0, :, self.n : end] = k[0], v[0]
    self.n = end
    return self.k[:, :, :end], self.v[:, :, :end]


def _all_slots(self: Any, k: Tensor, v: Tensor) -> Any:
    _Slots.store(self, k, v)
    return self.k, self.v


def _moved_up(self: Any, k: Tensor, v: Tensor) -> Any:
    """The newest tokens always at the end: everything older is moved, in views handed out before as well."""
    n = k.shape[2]
    for store, new in ((self.k, k), (self.v, v)):
        store[:, :, :-n] = store[:, :, n:].clone()
        store[:, :, -n:] = new
    self.n += n
    start = self.max_tokens - self.n
    return self.k[:, :, start:], self.v[:, :, start:]


def _slots_of_class(self: Any, *sizes: int, dtype: torch.dtype = torch.float32) -> None:
    """Tensors that belong to the class."""
    _Slots.__init__(self, *sizes, dtype=dtype)
    cls = type(self)
    if getattr(cls, "k", None) is None or cls.k.shape != self.k.shape:
        cls.k, cls.v = self.k, self.v
    del self.k, self.v


class _SharedList(_Joined):
    """Chunks in one list for all objects: an attribute of the class, or the default value of a parameter."""

    kept: list[tuple[Tensor, Tensor]] = []

    def store(self, k: Tensor, v: Tensor) -> Any:
        self.kept.append((k.to(self.dtype), v.to(self.dtype)))
        self.n = sum(chunk[0].shape[2] for chunk in self.kept)
        return tuple(torch.cat([chunk[i] for chunk in self.kept], dim=2) for i in (0, 1))

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self.kept)

    def reset(self) -> None:
        self.kept.clear()
        self.n = 0


def _count_of_class(self: Any, k: Tensor, v: Tensor) -> Any:
    """The number of tokens belongs to the class."""
    cls = type(self)
    start = getattr(cls, "count", 0)
    end = start + k.shape[2]
    _refuse_wrong_shape(self.sizes, k, v)
    _refuse_overflow(start, k.shape[2], self.max_tokens)
    self.k[:, :, start:end], self.v[:, :, start:end] = k, v
    cls.count = self.n = end
    return self.k[:, :, :end], self.v[:, :, :end]


def _count_of_class_reset(self: Any) -> None:
    type(self).count = self.n = 0


def _values_not_reset(self: Any) -> None:
    """Only the keys are forgotten; the values keep growing."""
    self.k, self.n = None, 0


def _number_not_reset(self: Any) -> None:
    self.k = self.v = None


def _fill_with_zeros(self: Any) -> None:
    self.k.zero_()
    self.v.zero_()


def _nothing_checked(self: Any, k: Tensor, v: Tensor) -> None:
    pass


def _only_overflow_checked(self: Any, k: Tensor, v: Tensor) -> None:
    _refuse_overflow(self.n, k.shape[2], self.max_tokens)


def _only_shape_checked(self: Any, k: Tensor, v: Tensor) -> None:
    _refuse_wrong_shape(self.sizes, k, v)


def _only_keys_checked(self: Any, k: Tensor, v: Tensor) -> None:
    _refuse_wrong_shape(self.sizes, k, k)
    _refuse_overflow(self.n, k.shape[2], self.max_tokens)


def _checked_but(axis: int) -> Callable[..., None]:
    """The size of one axis is not looked at."""

    def check(self: Any, k: Tensor, v: Tensor) -> None:
        sizes = list(self.sizes)
        if k.ndim == 4:
            sizes[min(axis, 2)] = k.shape[axis]
        _refuse_wrong_shape(tuple(sizes), k, v)
        _refuse_overflow(self.n, k.shape[2], self.max_tokens)

    return check


def _full_refused(self: Any, k: Tensor, v: Tensor) -> None:
    _refuse_wrong_shape(self.sizes, k, v)
    _refuse_overflow(self.n, k.shape[2], self.max_tokens - 1)


def _counted_first(self: Any, k: Tensor, v: Tensor) -> Any:
    """The position moves on before anything is refused."""
    _refuse_wrong_shape(self.sizes, k, v)
    start, self.n = self.n, self.n + k.shape[2]
    _refuse_overflow(self.n, 0, self.max_tokens)
    self.n = start
    return self.store(k, v)


def _keys_stored_first(self: Any, k: Tensor, v: Tensor) -> Any:
    """The keys are joined before the values are looked at."""
    _only_keys_checked(self, k, v)
    self.k = self.join(self.k, k.to(self.dtype))
    _refuse_wrong_shape(self.sizes, k, v)
    self.v = self.join(self.v, v.to(self.dtype))
    self.n += k.shape[2]
    return self.k, self.v


def _joined_then_refused(self: Any, k: Tensor, v: Tensor) -> Any:
    """The room is looked at when the tokens are in already."""
    _refuse_wrong_shape(self.sizes, k, v)
    self.store(k, v)
    _refuse_overflow(self.n, 0, self.max_tokens)
    return self.k, self.v


def _copied_in(self: Any, k: Tensor, v: Tensor) -> Any:
    end = self.n + k.shape[2]
    self.k[:, :, self.n : end].copy_(k)
    self.v[:, :, self.n : end].copy_(v)
    self.n = end
    return self.k[:, :, :end], self.v[:, :, :end]


def _whole_shape_checked(self: Any, k: Tensor, v: Tensor) -> None:
    """The shape is compared with that of all slots, so that the number of tokens has to be the same too."""
    if k.shape != self.k.shape or v.shape != self.v.shape:
        raise ValueError


def _always_refused(self: Any, k: Tensor, v: Tensor) -> None:
    raise ValueError


def _one_sequence_expected(self: Any, k: Tensor, v: Tensor) -> None:
    _refuse_wrong_shape((1, *self.sizes[1:]), k, v)
    _refuse_overflow(self.n, k.shape[2], self.max_tokens)


def _oldest_dropped(self: Any, k: Tensor, v: Tensor) -> Any:
    _Joined.store(self, k, v)
    self.k, self.v = self.k[:, :, -self.max_tokens :], self.v[:, :, -self.max_tokens :]
    self.n = self.k.shape[2]
    return self.k, self.v


def _joined_uncast(self: Any, k: Tensor, v: Tensor) -> Any:
    self.k, self.v = self.join(self.k, k), self.join(self.v, v)
    self.n += k.shape[2]
    return self.k, self.v


def _always(fixed: torch.dtype) -> type:
    def make(self: Any, *sizes: int, dtype: torch.dtype = torch.float32) -> None:
        _Slots.__init__(self, *sizes, dtype=fixed)

    return _like(_Slots, __init__=make)


def _counting_appends(self: Any, k: Tensor, v: Tensor) -> Any:
    self.appends = getattr(self, "appends", 0) + 1
    return _Slots.store(self, k, v)


def _appends_reset(self: Any) -> None:
    self.n = self.appends = 0


def _pair_of(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return _numbers(rng, *shape, dtype=dtype), _numbers(rng, *shape, dtype=dtype)


def _in_chunks(
    *shape: int, chunks: tuple[int, ...], max_tokens: int, of: torch.dtype = torch.float32, **options: Any
) -> Callable[[np.random.Generator], Arguments]:
    """Keys and values of one shape (B, H_kv, T, d), handed over in chunks of these sizes."""
    return lambda rng: given(*_pair_of(rng, *shape, dtype=of), chunks, max_tokens, **options)


def _two_pairs(
    shape: tuple[int, ...], other: tuple[int, ...], **options: Any
) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: given(*_pair_of(rng, *shape), *_pair_of(rng, *other), **options)


def _bad(
    shape: tuple[int, ...],
    keys: tuple[int, ...],
    values: tuple[int, ...] | None = None,
    max_tokens: int = 6,
    **options: Any,
) -> Callable[[np.random.Generator], Arguments]:
    """Keys and values of `shape` fit; then come keys and values that do not."""
    return lambda rng: given(
        *_pair_of(rng, *shape), _numbers(rng, *keys), _numbers(rng, *(values or keys)), max_tokens=max_tokens, **options
    )


def _two_counted_tokens(rng: np.random.Generator) -> Arguments:
    keys = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    return given(keys, 10 * keys, (1, 1), 4)


_EVERYTHING = "append returns everything so far"
_EARLIER = "what append returned earlier stays valid"
_LEN = "len counts tokens"
_NBYTES = "nbytes counts what is stored"
_DTYPE = "the cache's dtype"
_OWN = "caches share nothing"
_RESET = "a cache is empty after reset"
_FULL = "no room: ValueError, and nothing changes"
_SHAPES = "wrong shapes: ValueError, and nothing changes"


def _total(values: Mapping[str, Any]) -> int:
    return sum(values["chunks"]) if "chunks" in values else values["keys"].shape[2]


def _wrong_axis_text(values: Mapping[str, Any]) -> str:
    batch, heads, _, d_head = values["keys"].shape
    return (
        "New keys and values are joined to the old ones along the wrong axis. Keys have the shape (batch, heads, "
        "tokens, "
        f"d_head), here ({batch}, {heads}, n, {d_head}), and tokens are added along axis 2 (or -2)."
    )


def _overwritten_text(values: Mapping[str, Any]) -> str:
    return (
        "What was appended before is gone: new tokens take the place of the old ones. "
        f"After chunks of {_listed(values.get('chunks', ()))} tokens the keys of all {_total(values)} are wanted. "
        f"Write "
        "behind the tokens that are there already, or join the new ones to the old."
    )


def _only_new_text(values: Mapping[str, Any]) -> str:
    return (
        "`append` returns only the tokens that were just handed in (or they have replaced the old ones). "
        f"After chunks of {_listed(values.get('chunks', ()))} tokens the keys and values of all {_total(values)} are "
        f"wanted."
    )


def _listed(sizes: Sequence[int]) -> str:
    texts = [str(size) for size in sizes]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts) or "some"


def _capacity_text(values: Mapping[str, Any]) -> str:
    batch, heads, tokens, d_head = values["keys"].shape
    size = torch.empty(0, dtype=values.get("dtype") or torch.float32).element_size()
    one = 2 * batch * heads * d_head * size
    return (
        f"`nbytes` counts the whole room, {values['max_tokens']} tokens of {one} bytes. Count the tokens stored so "
        f"far: "
        f"after all {tokens} that is {tokens} x {one} = {tokens * one}, and 0 for a new cache."
    )


_SHARED_TEXT = (
    "Two caches share what they keep: tokens appended to one turn up in the other. An attribute in the body of the "
    "class, or a default such as `store=[]`, exists once for all objects. Make what a cache keeps in `__init__`, on "
    "`self`."
)
_STALE_TEXT = (
    "After `reset()` there is still something left from before. A cache that was reset is like a new one: no keys, no "
    "values, length 0."
)
_FIRST_TEXT = (
    "The very first token is not kept: later tokens will never see it. The first append writes to position 0, and "
    "later "
    "ones begin at the number of tokens stored."
)
_SHAPE_TEXT = (
    "The shape is not checked. `k` and `v` must both be (batch, n_kv_heads, n, d_head) with the numbers the cache was "
    "made for, and have equally many tokens. torch does not complain about everything: a size of 1 is silently "
    "repeated. "
    "Compare the shapes yourself and raise a ValueError before anything is stored."
)


def _room_text(values: Mapping[str, Any]) -> str:
    n, new, room = _total(values), values["bad_keys"].shape[2], values["max_tokens"]
    return (
        f"There is room for {room} tokens, and {n} + {new} = {n + new} are more. That must be a ValueError. torch does "
        "not always notice: a slice beyond the end is cut short, and a single token written into an empty slice is "
        "silently lost. Compare the numbers yourself, before anything is stored."
    )


def _cache_mistake(name: str, implementation: type, explanation: Any) -> Misconception:
    return Misconception(name, implementation, explanation, CACHE)


_CACHE_MISTAKES = (
    *(_cache_mistake("wrong_axis", _joined_along(axis), _wrong_axis_text) for axis in (1, 3, 0)),
    _cache_mistake("overwritten", _like(_Slots, store=_only_the_new), _only_new_text),
    _cache_mistake("overwritten", _like(_Slots, store=_written_at_start), _overwritten_text),
    _cache_mistake(
        "new_first",
        _like(_Joined, join=lambda self, old, new: new if old is None else torch.cat([new, old], dim=2)),
        "New tokens come before the old ones. The order is that of the text: old tokens first, new ones behind them. "
        "The mask relies on it.",
    ),
    _cache_mistake(
        "values_as_keys",
        _like(_Slots, store=_values_for_both),
        "The values are kept in the place of the keys: both results hold `v`.",
    ),
    _cache_mistake(
        "values_as_keys",
        _like(_Slots, store=_keys_for_both),
        "The keys are kept in the place of the values: both results hold `k`.",
    ),
    _cache_mistake(
        "values_as_keys",
        _like(_Slots, store=_exchanged),
        "Keys and values are exchanged: the keys come first, `append(k, v)` returns all keys, then all values.",
    ),
    _cache_mistake("first_token_lost", _like(_Joined, store=_first_append_lost), _FIRST_TEXT),
    _cache_mistake("first_token_lost", _like(_Slots, store=_first_token_lost), _FIRST_TEXT),
    _cache_mistake(
        "first_token_lost",
        _like(_Slots, store=lambda self, k, v: tuple(x[:, :, 1:] for x in _Slots.store(self, k, v))),
        _FIRST_TEXT,
    ),
    *(
        _cache_mistake(
            "advances_by_one",
            _like(_Slots, store=store),
            "The position moves on by 1 at each append, whatever the number of tokens in it. A prompt comes as one "
            "chunk "
            "of many tokens: move on by `k.shape[2]`.",
        )
        for store in (_one_slot_ahead, _one_slot_shown)
    ),
    _cache_mistake(
        "counted_twice",
        _like(_Slots, store=_values_further_on),
        "The position moves on twice at each append, once for the keys and once for the values. Both of a token "
        "belong in the same slot: move on once, after both are stored.",
    ),
    _cache_mistake(
        "appended_twice",
        _like(_Joined, store=_twice),
        "Every chunk is stored twice. One call of `append` adds its tokens once.",
    ),
    _cache_mistake(
        "last_token_only",
        _like(_Joined, store=_last_of_chunk),
        "Only the last token of each chunk is kept. A chunk may hold any number of tokens, and all of them count.",
    ),
    _cache_mistake(
        "first_sequence_only",
        _like(_Slots, store=_first_sequence_only),
        "Only the first sequence of the batch is kept; the others stay 0. Leave the batch axis whole: `[:, :, "
        "start:end]`.",
    ),
    _cache_mistake(
        "whole_room_returned",
        _like(_Slots, store=_all_slots),
        lambda values: (
            f"`append` returns all {values['max_tokens']} slots, empty ones too. A score with an empty slot is 0, an "
            "ordinary score, and takes a share of the budget. Return the slots filled so far."
        ),
    ),
    _cache_mistake(
        "new_tokens_missing",
        _like(_Slots, store=_only_the_old),
        "What `append` returns ends before the tokens that were just handed in. A token attends to itself too: return "
        "everything so far, the new tokens included.",
    ),
    _cache_mistake(
        "earlier_results_overwritten",
        _like(_Slots, store=_moved_up),
        "Keys that an earlier `append` returned have changed afterwards: they are a view of memory that was written "
        "again. "
        "Write each token to a slot of its own, or return copies.",
    ),
    _cache_mistake("shared_state", _like(_Slots, __init__=_slots_of_class), _SHARED_TEXT),
    _cache_mistake("shared_state", _SharedList, _SHARED_TEXT),
    _cache_mistake("shared_state", _like(_Slots, append=_count_of_class, reset=_count_of_class_reset), _SHARED_TEXT),
    _cache_mistake("stale_after_reset", _like(_Slots, reset=lambda self: None), _STALE_TEXT),
    _cache_mistake(
        "stale_after_reset",
        _like(_Slots, reset=_fill_with_zeros),
        "`reset()` fills the slots with 0 but keeps their number, so that the zeros count as tokens. Set the number of "
        "tokens back to 0; what lies in unused slots does not matter.",
    ),
    _cache_mistake("stale_after_reset", _like(_Joined, reset=_values_not_reset), _STALE_TEXT),
    _cache_mistake(
        "stale_after_reset",
        _like(_Joined, reset=_number_not_reset),
        _STALE_TEXT,
    ),
    _cache_mistake(
        "dtype_ignored",
        _always(torch.float32),
        "The cache's dtype is always float32. Make its tensors with the `dtype` that `__init__` is given.",
    ),
    _cache_mistake(
        "dtype_of_input",
        _like(_Joined, store=_joined_uncast),
        "The tokens are kept in the dtype in which they come. Cast them to the cache's own: `k.to(self.dtype)`. A "
        "cache in "
        "float16 takes half the memory only if what is in it is float16.",
    ),
    _cache_mistake(
        "len_is_room",
        _like(_Slots, __len__=lambda self: self.max_tokens),
        "`len(cache)` gives the number of slots. It should give the number of tokens stored so far, 0 at first.",
    ),
    _cache_mistake(
        "len_is_batch",
        _like(_Slots, __len__=lambda self: len(self.k)),
        "`len(cache)` gives the batch size: `len` of a tensor is the size of its first axis. Tokens are on axis 2.",
    ),
    _cache_mistake(
        "len_is_batch",
        _like(_Joined, __len__=lambda self: 0 if self.k is None else len(self.k)),
        "`len(cache)` gives the batch size: `len` of a tensor is the size of its first axis. Tokens are on axis 2.",
    ),
    _cache_mistake(
        "len_counts_appends",
        _like(
            _Slots,
            store=_counting_appends,
            reset=_appends_reset,
            __len__=lambda self: getattr(self, "appends", 0),
        ),
        "`len(cache)` counts the calls of `append`. A chunk may hold many tokens: count those.",
    ),
    _cache_mistake(
        "len_counts_both",
        _like(_Slots, __len__=lambda self: 2 * self.n),
        "`len(cache)` counts keys and values. It is the number of tokens: each has one key and one value.",
    ),
    _cache_mistake(
        "len_counts_both",
        _like(_Slots, __len__=lambda self: self.n * self.k.shape[0]),
        "`len(cache)` counts the tokens of all sequences of the batch. It is the number of tokens in one of them.",
    ),
    _cache_mistake(
        "nbytes_of_room", _like(_Slots, nbytes=property(lambda self: self.k.nbytes + self.v.nbytes)), _capacity_text
    ),
    _cache_mistake(
        "nbytes_keys_only",
        _like(_Slots, nbytes=property(lambda self: self.k[:, :, : self.n].nbytes)),
        "`nbytes` counts the keys alone. The values take as much again.",
    ),
    _cache_mistake(
        "nbytes_keys_only",
        _like(_Slots, nbytes=property(lambda self: self.k.nbytes)),
        "`nbytes` counts the keys alone, and the whole room for them. The values take as much again, and only tokens "
        "stored so far count.",
    ),
    _cache_mistake(
        "nbytes_counts_numbers",
        _like(_Slots, nbytes=property(lambda self: 2 * self.k[:, :, : self.n].numel())),
        "`nbytes` counts numbers, not bytes. A float32 takes 4 bytes, a float16 takes 2: `tensor.element_size()` "
        "says it.",
    ),
    *(
        _cache_mistake(
            "nbytes_fixed_size",
            _like(
                _Slots,
                nbytes=property(lambda self, size=size: 2 * size * self.k[:, :, : self.n].numel()),
            ),
            f"`nbytes` takes every number for {size} bytes. That depends on the cache's dtype: `tensor.element_size()` "
            "says it.",
        )
        for size in (4, 2)
    ),
    _cache_mistake(
        "nbytes_one_sequence",
        _like(_Slots, nbytes=property(lambda self: 2 * self.k[0, :, : self.n].nbytes)),
        "`nbytes` counts one sequence of the batch. All of them are stored.",
    ),
    _cache_mistake(
        "nbytes_one_head",
        _like(_Slots, nbytes=property(lambda self: 2 * self.k[:, 0, : self.n].nbytes)),
        "`nbytes` counts one head. All of them are stored.",
    ),
    _cache_mistake(
        "nbytes_is_method",
        _like(_Slots, nbytes=lambda self: 2 * self.k[:, :, : self.n].nbytes),
        "`nbytes` is a method, so that `cache.nbytes` is no number. Put `@property` above its `def`.",
    ),
    *(
        _cache_mistake(
            "refuses_everything",
            _like(_Slots, check=check),
            "`append` refuses tokens that fit: the check of the shapes is too strict, or the wrong way round. The "
            "number of "
            "tokens in a chunk may be any; only batch, heads and d_head must be those the cache was made for.",
        )
        for check in (_whole_shape_checked, _always_refused)
    ),
    _cache_mistake(
        "one_sequence_only",
        _like(_Slots, check=_one_sequence_expected),
        "The cache works for a batch of one only. It is made for `batch` sequences: use that number.",
    ),
    _cache_mistake(
        "full_too_early",
        _like(_Slots, check=_full_refused),
        lambda values: (
            f"The cache refuses the token that fills it: {values['max_tokens']} tokens fit into a cache for "
            f"{values['max_tokens']}. Is a `>=` where a `>` belongs?"
        ),
    ),
    *(
        _cache_mistake("no_room_unnoticed", _like(base, check=_only_shape_checked), _room_text)
        for base in (_Slots, _Joined)
    ),
    _cache_mistake("no_room_unnoticed", _like(_Slots, check=_only_shape_checked, store=_copied_in), _room_text),
    _cache_mistake(
        "oldest_dropped",
        _like(_Joined, check=_only_shape_checked, store=_oldest_dropped),
        "When there is no room, the oldest tokens are dropped. They would be missing from every later answer, and "
        "nobody "
        "would know: raise a ValueError.",
    ),
    *(
        _cache_mistake("shape_unchecked", _like(base, check=_only_overflow_checked), _SHAPE_TEXT)
        for base in (_Slots, _Joined)
    ),
    _cache_mistake("shape_unchecked", _like(_Slots, check=_only_overflow_checked, store=_copied_in), _SHAPE_TEXT),
    *(
        _cache_mistake("shape_unchecked", _like(base, check=_nothing_checked), _SHAPE_TEXT)
        for base in (_Slots, _Joined)
    ),
    *(
        _cache_mistake(
            "values_unchecked",
            _like(base, check=_only_keys_checked),
            "The shape of `k` is checked, that of `v` is not. Both must fit, and have equally many tokens.",
        )
        for base in (_Slots, _Joined)
    ),
    *(
        _cache_mistake(
            "shape_partly_checked",
            _like(base, check=_checked_but(axis)),
            f"{name} is not checked. A size of 1 there is silently repeated by torch, and one sequence or head would "
            "pass for all. Compare all of them with the numbers the cache was made for.",
        )
        for base in (_Slots, _Joined)
        for axis, name in ((0, "The batch size"), (1, "The number of heads"), (3, "The size of a head"))
    ),
    *(
        _cache_mistake(
            "changed_by_refusal",
            _like(base, append=_counted_first),
            "A refused append has changed the cache: it counts tokens that it did not take. Check first, then count "
            "and "
            "store.",
        )
        for base in (_Slots, _Joined)
    ),
    _cache_mistake(
        "changed_by_refusal",
        _like(_Joined, append=_joined_then_refused),
        "A refused append has changed the cache: the tokens were stored before the room was looked at. Check first, "
        "then "
        "store.",
    ),
    _cache_mistake(
        "changed_by_refusal",
        _like(_Joined, append=_keys_stored_first),
        "A refused append has changed the cache: the keys were stored before the values were looked at, and now "
        "there is "
        "a key without a value. Check both first, then store.",
    ),
)

_kv_cache = Exercise(
    id="KVCache",
    points=5,
    section=CACHE,
    reference=KVCache,
    families={
        _EVERYTHING: 0.35,
        _EARLIER: 0.05,
        _LEN: 0.05,
        _NBYTES: 0.1,
        _DTYPE: 0.1,
        _OWN: 0.1,
        _RESET: 0.1,
        _FULL: 0.075,
        _SHAPES: 0.075,
    },
    cases=(
        Case("one token, then another", _EVERYTHING, _two_counted_tokens, _append_in_chunks),
        Case("two and two", _EVERYTHING, _in_chunks(2, 3, 4, 5, chunks=(2, 2), max_tokens=9), _append_in_chunks),
        Case("3, 1 and 2", _EVERYTHING, _in_chunks(2, 3, 6, 4, chunks=(3, 1, 2), max_tokens=9), _append_in_chunks),
        Case(
            "filled to the last slot",
            _EVERYTHING,
            _in_chunks(2, 2, 5, 3, chunks=(1, 4), max_tokens=5),
            _append_in_chunks,
        ),
        Case(
            "one sequence, one head",
            _EVERYTHING,
            _in_chunks(1, 1, 3, 20, chunks=(1, 2), max_tokens=7),
            _append_in_chunks,
        ),
        Case("room for one token", _EVERYTHING, _in_chunks(3, 2, 1, 10, chunks=(1,), max_tokens=1), _append_in_chunks),
        Case("2, 3 and 1", _EARLIER, _in_chunks(2, 3, 6, 2, chunks=(2, 3, 1), max_tokens=8), _look_again),
        Case("3 and 1", _LEN, _in_chunks(1, 2, 4, 8, chunks=(3, 1), max_tokens=9), _count_tokens),
        Case("three sequences", _LEN, _in_chunks(3, 2, 6, 2, chunks=(1, 3, 2), max_tokens=8), _count_tokens),
        Case("float32", _NBYTES, _in_chunks(2, 3, 4, 5, chunks=(3, 1), max_tokens=9), _count_bytes),
        Case(
            "float16",
            _NBYTES,
            _in_chunks(3, 2, 5, 4, chunks=(2, 3), max_tokens=7, dtype=torch.float16),
            _count_bytes,
        ),
        Case(
            "float32 into float16",
            _DTYPE,
            _in_chunks(2, 3, 3, 4, chunks=(2, 1), max_tokens=5, dtype=torch.float16),
            _append_in_chunks,
        ),
        Case(
            "float64 into bfloat16",
            _DTYPE,
            _in_chunks(1, 2, 4, 7, chunks=(1, 3), max_tokens=5, of=torch.float64, dtype=torch.bfloat16),
            _append_in_chunks,
        ),
        Case(
            "float64 into the usual float32",
            _DTYPE,
            _in_chunks(2, 1, 3, 10, chunks=(2, 1), max_tokens=4, of=torch.float64),
            _append_in_chunks,
        ),
        Case(
            "float64 into float64",
            _DTYPE,
            _in_chunks(1, 3, 2, 10, chunks=(1, 1), max_tokens=4, of=torch.float64, dtype=torch.float64),
            _append_in_chunks,
        ),
        Case("two in turn", _OWN, _two_pairs((2, 3, 3, 4), (2, 3, 3, 4), chunks=(2, 1)), _use_two_caches),
        Case("two of different sizes", _OWN, _two_pairs((2, 1, 4, 8), (1, 2, 4, 7), chunks=(1, 3)), _use_two_caches),
        Case("a new one after a used one", _OWN, _two_pairs((1, 2, 3, 15), (1, 2, 2, 15)), _make_another_later),
        Case("3 and 1, reset, 2", _RESET, _in_chunks(2, 3, 6, 2, chunks=(3, 1, 2), max_tokens=8), _append_after_reset),
        Case("filled, reset, filled", _RESET, _in_chunks(1, 2, 8, 5, chunks=(4, 4), max_tokens=4), _append_after_reset),
        Case("len", _RESET, _in_chunks(2, 1, 5, 6, chunks=(3, 2), max_tokens=6), _count_after_reset),
        Case("nbytes", _RESET, _in_chunks(1, 2, 5, 6, chunks=(2, 3), max_tokens=6), _count_bytes_after_reset),
        Case("two more than there is room for", _FULL, _bad((2, 3, 4, 3), (2, 3, 4, 3)), _append_last),
        Case("one token more", _FULL, _bad((1, 2, 3, 30), (1, 2, 1, 30), max_tokens=3), _append_last),
        Case("too large a first chunk", _FULL, _bad((1, 2, 0, 6), (1, 2, 5, 6), max_tokens=4), _append_last),
        Case(
            "a good one after it",
            _FULL,
            _bad((2, 2, 5, 4), (2, 2, 4, 4), chunks=(3, 2)),
            _append_after_refusal,
        ),
        Case("len after it", _FULL, _bad((2, 3, 4, 3), (2, 3, 4, 3)), _count_after_refusal),
        Case("one sequence instead of two", _SHAPES, _bad((2, 3, 2, 9), (1, 3, 2, 9)), _append_last),
        Case("one head instead of three", _SHAPES, _bad((2, 3, 2, 16), (2, 1, 2, 16)), _append_last),
        Case("heads of 1 instead of 4", _SHAPES, _bad((2, 3, 5, 4), (2, 3, 9, 1), max_tokens=20), _append_last),
        Case("heads of 5 instead of 4", _SHAPES, _bad((2, 3, 3, 4), (2, 3, 2, 5)), _append_last),
        Case("tokens and heads exchanged", _SHAPES, _bad((2, 3, 2, 5), (2, 2, 3, 5)), _append_last),
        Case("no batch axis", _SHAPES, _bad((2, 3, 2, 9), (3, 2, 9)), _append_last),
        Case("two keys, one value", _SHAPES, _bad((2, 3, 2, 9), (2, 3, 2, 9), (2, 3, 1, 9)), _append_last),
        Case(
            "values of another size",
            _SHAPES,
            _bad((2, 3, 5, 4), (2, 3, 9, 4), (2, 3, 9, 1), max_tokens=20),
            _append_last,
        ),
        Case(
            "a good one after it",
            _SHAPES,
            _bad((2, 3, 3, 5), (2, 3, 2, 5), (2, 3, 2, 6), max_tokens=9, chunks=(2, 1)),
            _append_after_refusal,
        ),
    ),
    misconceptions=_CACHE_MISTAKES,
)


# cached_causal_mask


def _triangle(rows: int, columns: int, diagonal: int) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril(diagonal)


def _shifted_mask(shift: int) -> Callable[[int, int], Tensor]:
    """The right mask moved by some keys: 0 is right."""
    return lambda n_new, n_total: _triangle(n_new, n_total, n_total - n_new + shift)


def _sees_text(n_seen: Callable[[int, int], int]) -> Callable[[Mapping[str, Any]], str]:
    """How many keys the first new token sees, and how many it should."""

    def text(values: Mapping[str, Any]) -> str:
        n_new, n_total = values["n_new"], values["n_total"]
        past = n_total - n_new
        return (
            f"Here {past} tokens are in the cache and {n_new} are new. The first new one is token {past} of the text "
            f"(counted from 0) and sees the keys 0 to {past}, which are {past + 1}. In your mask it sees "
            f"{n_seen(n_new, n_total)}."
        )

    return text


def _with(ending: str, begin: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda values: f"{begin(values)} {ending}"


_TOP_LEFT = "Your mask is aligned to the top left, as if the new tokens were the first of the text. They are the last."

_cached_causal_mask = Exercise(
    id="cached_causal_mask",
    points=2,
    section=MASK,
    reference=cached_causal_mask,
    forbidden=("torch.nn.attention.bias.causal_lower_right", "torch.nn.attention.bias.causal_upper_left"),
    families={"new tokens after cached ones": 0.6, "nothing in the cache": 0.2, "a single new token": 0.2},
    cases=(
        Case("2 new tokens after 3", "new tokens after cached ones", lambda rng: given(2, 5)),
        Case("3 new tokens after 1", "new tokens after cached ones", lambda rng: given(3, 4)),
        Case("5 new tokens after 2", "new tokens after cached ones", lambda rng: given(5, 7)),
        Case(
            "some after some",
            "new tokens after cached ones",
            lambda rng: given(n_new := int(rng.integers(3, 7)), n_new + int(rng.integers(7, 12))),
        ),
        Case("3 tokens, all new", "nothing in the cache", lambda rng: given(3, 3)),
        Case("6 tokens, all new", "nothing in the cache", lambda rng: given(6, 6)),
        Case("1 new token after 4", "a single new token", lambda rng: given(1, 5)),
        Case("1 new token after 1", "a single new token", lambda rng: given(1, 2)),
        Case("the very first token", "a single new token", lambda rng: given(1, 1)),
    ),
    misconceptions=(
        Misconception(
            "top_left",
            lambda n_new, n_total: _triangle(n_new, n_total, 0),
            _with(_TOP_LEFT, _sees_text(lambda n_new, n_total: 1)),
            MASK,
        ),
        Misconception(
            "inverted_mask",
            lambda n_new, n_total: ~cached_causal_mask(n_new, n_total),
            "True and False are exchanged: True means that a key may be attended to.",
            MASK,
        ),
        Misconception(
            "diagonal_excluded",
            _shifted_mask(-1),
            _with("A token sees itself too.", _sees_text(lambda n_new, n_total: n_total - n_new)),
            MASK,
        ),
        Misconception(
            "sees_the_next",
            _shifted_mask(1),
            _with(
                "It looks one token into the future.",
                _sees_text(lambda n_new, n_total: min(n_total, n_total - n_new + 2)),
            ),
            MASK,
        ),
        Misconception(
            "no_causality",
            lambda n_new, n_total: torch.ones(n_new, n_total, dtype=torch.bool),
            _with(
                "Tokens of one chunk are in order as well: an earlier one must not see a later one.",
                _sees_text(lambda n_new, n_total: n_total),
            ),
            MASK,
        ),
        Misconception(
            "only_the_cache",
            lambda n_new, n_total: torch.arange(n_total).expand(n_new, -1) <= n_total - n_new,
            "Every new token sees the cached ones and the first new one. Each sees one key more than the one before "
            "it.",
            MASK,
        ),
        Misconception(
            "only_the_cache",
            lambda n_new, n_total: torch.arange(n_total).expand(n_new, -1) < n_total - n_new,
            "The new tokens see the cached ones only. Each sees itself and the new ones before it as well.",
            MASK,
        ),
        Misconception(
            "past_hidden",
            lambda n_new, n_total: _shifted_mask(0)(n_new, n_total) & ~_shifted_mask(-n_new)(n_new, n_total),
            "The mask lets a token see only a few keys before it. Causal means all of the past.",
            MASK,
        ),
        Misconception(
            "past_hidden",
            lambda n_new, n_total: _shifted_mask(0)(n_new, n_total) & (torch.arange(n_total) >= n_total - n_new),
            "The new tokens see one another, but none of the cached ones. What is in the cache is their past.",
            MASK,
        ),
        Misconception(
            "future_only",
            lambda n_new, n_total: torch.ones(n_new, n_total, dtype=torch.bool).triu(n_total - n_new),
            "The mask is the upper triangle: each token sees itself and the future, and not the past.",
            MASK,
        ),
        Misconception(
            "future_only",
            lambda n_new, n_total: torch.ones(n_new, n_total, dtype=torch.bool).triu(0),
            "The mask is the upper triangle: each token sees the future, and not the past.",
            MASK,
        ),
        Misconception(
            "square_mask",
            lambda n_new, n_total: _triangle(n_total, n_total, 0),
            lambda values: (
                f"The mask has a row for every token so far, {values['n_total']} x {values['n_total']}. Only new "
                f"tokens "
                f"ask: there are {values['n_new']} rows, one for each of them."
            ),
            MASK,
        ),
        Misconception(
            "square_mask",
            lambda n_new, n_total: _triangle(n_new, n_new, 0),
            lambda values: (
                f"The mask has a column for every new token, {values['n_new']} x {values['n_new']}. Keys of the cached "
                f"tokens answer too: there are {values['n_total']} columns, the new tokens last."
            ),
            MASK,
        ),
        Misconception(
            "transposed",
            lambda n_new, n_total: cached_causal_mask(n_new, n_total).T,
            "Rows and columns are exchanged: a row for each new token that asks, a column for each key.",
            MASK,
        ),
        Misconception(
            "not_boolean",
            lambda n_new, n_total: cached_causal_mask(n_new, n_total).float(),
            "The mask holds the numbers 0 and 1. In this course a mask is boolean: with numbers, `~keep` and "
            "`masked_fill` do something else, or fail. Give `torch.ones` the `dtype=torch.bool`, or compare positions.",
            MASK,
        ),
        Misconception(
            "not_boolean",
            lambda n_new, n_total: torch.zeros(n_new, n_total).masked_fill(
                ~cached_causal_mask(n_new, n_total), -torch.inf
            ),
            "The mask holds 0 and minus infinity, to be added to the scores. Here a boolean one is asked for: True "
            "where a "
            "key may be attended to.",
            MASK,
        ),
    ),
)


# attend_with_cache


class Attention(nn.Module):
    """What the contract says about a MultiHeadAttention, and nothing more."""

    def __init__(self, weights: Mapping[str, Tensor], n_heads: int) -> None:
        super().__init__()
        for name, weight in weights.items():
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
            linear.weight = nn.Parameter(weight.clone())
            setattr(self, name, linear)
        inner, self.d_model = weights["w_q"].shape
        self.n_heads, self.d_head = n_heads, inner // n_heads

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = (_split(self, w(x)) for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
        scores = q @ k.mT / math.sqrt(self.d_head)
        weights = (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1)
        return self.w_o(_merge(weights @ v)), weights


class Cache:
    """What the contract says about a KVCache, and nothing more. What it returns are views, as of a cache with slots."""

    def __init__(self, *sizes: int, dtype: torch.dtype) -> None:
        self._slots = _Slots(*sizes, dtype=dtype)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._slots.append(k, v)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes

    def reset(self) -> None:
        self._slots.reset()


def _new_cache(mha: Attention, x: Tensor) -> Cache:
    return Cache(len(x), mha.n_heads, x.shape[1], mha.d_head, dtype=x.dtype)


def _feed_in_chunks(
    implementation: Any,
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
    chunks: Sequence[int],
) -> dict[str, Any]:
    with _as_if_new(implementation):
        mha = Attention({"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}, n_heads)
        cache = _new_cache(mha, x)
        outputs = [_output(implementation(mha, x_new, cache)) for x_new in x.split(list(chunks), dim=1)]
        return {f"output of chunk {number}": output for number, output in enumerate(outputs, 1)}


def _output(result: Any) -> Any:
    return "a tuple" if isinstance(result, tuple) else result


def _feed_and_count(
    implementation: Any,
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
    chunks: Sequence[int],
) -> dict[str, Any]:
    with _as_if_new(implementation):
        mha = Attention({"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}, n_heads)
        cache = Cache(len(x), n_heads, 4 * x.shape[1], mha.d_head, dtype=x.dtype)
        parts = {}
        for number, x_new in enumerate(x.split(list(chunks), dim=1), 1):
            implementation(mha, x_new, cache)
            parts[f"len(cache) after chunk {number}"] = len(cache)
        return parts


def _feed_two_in_turn(
    implementation: Any,
    x: Tensor,
    other_x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    n_heads: int,
    chunks: Sequence[int],
) -> dict[str, Any]:
    with _as_if_new(implementation):
        mha = Attention({"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}, n_heads)
        caches = {"first": (_new_cache(mha, x), x), "second": (_new_cache(mha, other_x), other_x)}
        return {
            f"output of chunk {number + 1} of the {name} text": _output(
                implementation(mha, text.split(list(chunks), dim=1)[number], cache)
            )
            for number in range(len(chunks))
            for name, (cache, text) in caches.items()
        }


def _attention(
    *,
    project: Sequence[str] = ("w_q", "w_k", "w_v"),
    split: Callable[..., Tensor] = _split,
    stored: Callable[..., tuple[Tensor, Tensor]] = lambda cache, k, v: cache.append(k, v),
    scale: Callable[..., float] = lambda mha, n_total: 1 / math.sqrt(mha.d_head),
    mask: Callable[[int, int], Tensor | None] = cached_causal_mask,
    share: Callable[..., Tensor] | None = None,
    merge: Callable[[Tensor], Tensor] = _merge,
    finish: Callable[..., Any] = lambda mha, merged: mha.w_o(merged),
) -> Callable[..., Any]:
    """attend_with_cache with some of its steps replaced by others."""

    def implementation(mha: Any, x_new: Tensor, cache: Any) -> Any:
        q, k, v = (split(mha, getattr(mha, name)(x_new)) for name in project)
        k_all, v_all = stored(cache, k, v)
        scores = q @ k_all.mT * scale(mha, k_all.shape[2])
        keep = mask(q.shape[2], k_all.shape[2])
        if share is not None:
            weights = share(scores, keep)
        else:
            weights = (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1)
        return finish(mha, merge(weights @ v_all))

    return implementation


def _view_only(mha: Any, x: Tensor) -> Tensor:
    return x.reshape(len(x), mha.n_heads, x.shape[1], mha.d_head)


def _interleaved(mha: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (mha.d_head, mha.n_heads)).movedim(-1, 1)


def _tokens_first(mha: Any, x: Tensor) -> Tensor:
    return x.unflatten(-1, (mha.n_heads, mha.d_head))


def _append_twice(cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(k, v)[0], cache.append(k, v)[1]


def _append_after_attending(cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    n_before = len(cache)
    k_all, v_all = cache.append(k, v)
    return k_all[:, :, :n_before], v_all[:, :, :n_before]


def _reset_first(cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    cache.reset()
    return cache.append(k, v)


def _new_beside_cache(cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Old and new joined by hand, though `append` has done so."""
    k_all, v_all = cache.append(k, v)
    return torch.cat([k_all, k], dim=2), torch.cat([v_all, v], dim=2)


def _only_new(cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    cache.append(k, v)
    return k, v


def _new_columns_only(n_new: int, n_total: int) -> Tensor:
    return nn.functional.pad(_triangle(n_new, n_new, 0), (n_total - n_new, 0))


def _softmax_over(axis: int) -> Callable[[Tensor, Tensor], Tensor]:
    def share(scores: Tensor, keep: Tensor) -> Tensor:
        weights = scores.masked_fill(~keep, -torch.inf).softmax(axis)
        return weights.nan_to_num()

    return share


def _softmax_over_raw(axis: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, keep: scores.masked_fill(~keep, -torch.inf).softmax(axis)


def _filled(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, keep: scores.masked_fill(~keep, fill).softmax(-1)


def _whole_layer(keep: Callable[[int, int], Tensor | None]) -> Callable[..., Any]:
    """The layer's own forward on the new tokens alone."""

    def implementation(mha: Any, x_new: Tensor, cache: Any) -> Any:
        return mha(x_new, keep=keep(x_new.shape[1], x_new.shape[1]))[0]

    return implementation


def _projected_twice(mha: Any, x_new: Tensor, cache: Any) -> Any:
    """The cached keys and values are handed to the layer, which projects them once more."""
    k_all, v_all = cache.append(_split(mha, mha.w_k(x_new)), _split(mha, mha.w_v(x_new)))
    keep = cached_causal_mask(x_new.shape[1], k_all.shape[2])
    return mha(x_new, _merge(k_all), _merge(v_all), keep=keep)[0]


def _merge_by_width(mha: Any, heads: Tensor) -> Any:
    """Takes for granted that the heads together are as wide as the model."""
    return mha.w_o(heads.transpose(1, 2).reshape(len(heads), heads.shape[2], mha.d_model))


def _split_by_width(mha: Any, x: Tensor) -> Tensor:
    return x.reshape(len(x), x.shape[1], mha.n_heads, mha.d_model // mha.n_heads).transpose(1, 2)


_FULL_PASS = "the same as the full pass, chunk by chunk"
_ONCE = "every token is in the cache once"
_TURN = "two texts in turn, each with its cache"
_ONES = "one token, one head, one text"
_NARROW = "heads that are not d_model / n_heads wide"


def _layer(
    d_model: int,
    n_heads: int,
    x: tuple[int, ...],
    *others: tuple[int, ...],
    d_head: int | None = None,
    dtype: torch.dtype = torch.float32,
    chunks: tuple[int, ...],
) -> Callable[[np.random.Generator], Arguments]:
    """A layer whose scores have a variance of about 1, and token vectors (B, T) for it."""
    inner = n_heads * (d_head or d_model // n_heads)

    def arguments(rng: np.random.Generator) -> Arguments:
        texts = [_numbers(rng, *size, d_model, dtype=dtype) for size in (x, *others)]
        inward = [_numbers(rng, inner, d_model, dtype=dtype) / math.sqrt(d_model) for _ in range(3)]
        # Queries and keys are a little larger, so that no softmax is nearly flat and hides what it is taken over.
        inward[0] *= 1.5
        outward = _numbers(rng, d_model, inner, dtype=dtype) / math.sqrt(inner)
        return given(*texts, *inward, outward, n_heads, chunks)

    return arguments


def _heads_text(values: Mapping[str, Any]) -> tuple[int, int, int]:
    inner, d_model = values["w_q"].shape
    return d_model, values["n_heads"], inner // values["n_heads"]


def _scale_text(what: str) -> Callable[[Mapping[str, Any]], str]:
    def text(values: Mapping[str, Any]) -> str:
        d_model, n_heads, d_head = _heads_text(values)
        numbers = {
            "no": "are not divided at all",
            "d_model": f"are divided by sqrt(d_model) = {math.sqrt(d_model):.3g}",
            "d_head": f"are divided by d_head = {d_head}, without the root (or by the root twice)",
            "multiplied": f"are multiplied by sqrt(d_head) = {math.sqrt(d_head):.3g}",
        }
        return f"The scores {numbers[what]}. Divide them by sqrt(d_head) = {math.sqrt(d_head):.3g}, as in chapter 3."

    return text


def _first_new(values: Mapping[str, Any]) -> str:
    chunk = next((size for size in values["chunks"] if size > 1), values["chunks"][0])
    return f"a chunk of {chunk} tokens"


def _attend_mistake(
    name: str, explanation: Any, implementation: Any = None, section: str = ATTEND, **steps: Any
) -> Any:
    return Misconception(name, implementation or _attention(**steps), explanation, section)


_TOP_LEFT_TEXT = (
    "The mask is aligned to the top left, as if the new tokens were the first of the text. With a cache they are the "
    "last "
    "ones: the first new token sees everything in the cache, and itself."
)
_SQUARE_TEXT = (
    "The mask is square, for the new tokens alone, while the scores have a column for every token so far. Make it with "
    "`cached_causal_mask(n_new, n_total)`, where n_total counts the cached tokens too."
)
_IGNORED_TEXT = (
    "The new tokens attend to one another only, not to the tokens before them. `append` returns all keys and values so "
    "far: those are the ones to attend to."
)

_attend_with_cache = Exercise(
    id="attend_with_cache",
    points=5,
    section=ATTEND,
    reference=attend_with_cache,
    forbidden=(
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.functional.multi_head_attention_forward",
        "torch.nn.MultiheadAttention",
        "torch.nn.attention.flex_attention.flex_attention",
    ),
    families={_FULL_PASS: 0.5, _ONCE: 0.1, _TURN: 0.15, _ONES: 0.15, _NARROW: 0.1},
    cases=(
        Case("3 tokens, then 1, then 2", _FULL_PASS, _layer(12, 3, (2, 6), chunks=(3, 1, 2)), _feed_in_chunks),
        Case("2 tokens, then 4", _FULL_PASS, _layer(8, 2, (3, 6), chunks=(2, 4)), _feed_in_chunks),
        Case("all 5 at once", _FULL_PASS, _layer(15, 3, (2, 5), chunks=(5,)), _feed_in_chunks),
        Case(
            "one by one after a prompt of 3, in float64",
            _FULL_PASS,
            _layer(12, 2, (3, 5), dtype=torch.float64, chunks=(3, 1, 1)),
            _feed_in_chunks,
        ),
        Case("as many texts as heads", _FULL_PASS, _layer(12, 3, (3, 5), chunks=(2, 3)), _feed_in_chunks),
        Case("3, 1 and 2 tokens", _ONCE, _layer(12, 3, (2, 6), chunks=(3, 1, 2)), _feed_and_count),
        Case("two texts", _TURN, _layer(12, 3, (2, 5), (2, 5), chunks=(2, 3)), _feed_two_in_turn),
        Case("one text and three", _TURN, _layer(8, 2, (1, 4), (3, 4), chunks=(3, 1)), _feed_two_in_turn),
        Case("the first token alone", _ONES, _layer(8, 2, (2, 1), chunks=(1,)), _feed_in_chunks),
        Case("one head", _ONES, _layer(6, 1, (2, 5), chunks=(2, 3)), _feed_in_chunks),
        Case("one text", _ONES, _layer(12, 3, (1, 5), chunks=(3, 2)), _feed_in_chunks),
        Case(
            "2 heads of 3 in a model of 8",
            _NARROW,
            _layer(8, 2, (3, 5), d_head=3, chunks=(2, 3)),
            _feed_in_chunks,
        ),
    ),
    misconceptions=(
        _attend_mistake(
            "no_causality",
            lambda values: (
                f"There is no mask: in {_first_new(values)} an earlier token sees the later ones of the same chunk. A "
                f"single new "
                "token needs no mask, a chunk does."
            ),
            mask=lambda n_new, n_total: None,
            section=MASK,
        ),
        _attend_mistake(
            "no_causality",
            "There is a mask only where the cache is empty. A later chunk of several tokens needs one as well: an "
            "earlier "
            "token of it must not see the later ones.",
            mask=lambda n_new, n_total: _triangle(n_new, n_new, 0) if n_new == n_total else None,
            section=MASK,
        ),
        _attend_mistake(
            "top_left", _TOP_LEFT_TEXT, mask=lambda n_new, n_total: _triangle(n_new, n_total, 0), section=MASK
        ),
        _attend_mistake(
            "top_left",
            _TOP_LEFT_TEXT,
            mask=lambda n_new, n_total: _triangle(n_new, n_total, 0) if n_new > 1 else None,
            section=MASK,
        ),
        _attend_mistake(
            "square_mask",
            _SQUARE_TEXT,
            mask=lambda n_new, n_total: _triangle(n_new, n_new, 0) if n_new > 1 else None,
            section=MASK,
        ),
        _attend_mistake(
            "square_mask", _SQUARE_TEXT, mask=lambda n_new, n_total: _triangle(n_new, n_new, 0), section=MASK
        ),
        _attend_mistake(
            "square_mask", _SQUARE_TEXT, mask=lambda n_new, n_total: _triangle(n_total, n_total, 0), section=MASK
        ),
        _attend_mistake("cache_ignored", _IGNORED_TEXT, mask=_new_columns_only),
        _attend_mistake("cache_ignored", _IGNORED_TEXT, stored=_only_new),
        _attend_mistake("cache_ignored", _IGNORED_TEXT, stored=_only_new, mask=lambda n_new, n_total: None),
        _attend_mistake(
            "cache_ignored",
            "The layer's own `forward` knows nothing of the cache: it sees the new tokens alone. Use its four "
            "projections, "
            "and take keys and values from the cache.",
            _whole_layer(lambda n_new, n_total: None),
        ),
        _attend_mistake(
            "cache_ignored",
            "The layer's own `forward` knows nothing of the cache: it sees the new tokens alone. Use its four "
            "projections, "
            "and take keys and values from the cache.",
            _whole_layer(cached_causal_mask),
        ),
        _attend_mistake(
            "cache_reset",
            "The cache is reset on every call, so that the new tokens have no past. Whoever made the cache decides "
            "when a "
            "new text begins.",
            stored=_reset_first,
        ),
        _attend_mistake(
            "appended_twice",
            "The new tokens are in the cache twice: `append` is called twice, perhaps once for the keys and once for "
            "the "
            "values. One call returns both: `k_all, v_all = cache.append(k, v)`.",
            stored=_append_twice,
        ),
        _attend_mistake(
            "new_tokens_twice",
            "The new keys and values are joined to what `append` returns. They are in it already.",
            stored=_new_beside_cache,
        ),
        _attend_mistake(
            "new_tokens_missing",
            "The new tokens see the cached ones, but neither themselves nor one another. Append first, then attend to "
            "everything that `append` returns.",
            stored=_append_after_attending,
            mask=lambda n_new, n_total: None,
        ),
        _attend_mistake("no_scale", _scale_text("no"), scale=lambda mha, n: 1.0),
        _attend_mistake("scaled_by_d_model", _scale_text("d_model"), scale=lambda mha, n: mha.d_model**-0.5),
        _attend_mistake("scaled_by_d_head", _scale_text("d_head"), scale=lambda mha, n: 1 / mha.d_head),
        _attend_mistake("multiplied_by_root", _scale_text("multiplied"), scale=lambda mha, n: mha.d_head**0.5),
        _attend_mistake(
            "scaled_by_n_heads",
            "The scores are divided by the root of the number of heads. Divide them by sqrt(d_head).",
            scale=lambda mha, n: mha.n_heads**-0.5,
        ),
        _attend_mistake(
            "scaled_by_tokens",
            "The scores are divided by the root of the number of tokens. Divide them by sqrt(d_head).",
            scale=lambda mha, n: n**-0.5,
        ),
        _attend_mistake(
            "view_without_transpose",
            "The projections are reshaped to (B, H, n, d_head) in one go, which mixes tokens and heads. First "
            "(B, n, H, d_head), then exchange axes 1 and 2, as in chapter 3.",
            split=_view_only,
        ),
        _attend_mistake(
            "heads_not_split",
            "The projections are not split into heads. The cache keeps (B, n_heads, n, d_head): reshape to "
            "(B, n, n_heads, d_head), then exchange axes 1 and 2.",
            split=lambda mha, x: x,
        ),
        _attend_mistake(
            "tokens_before_heads",
            "Tokens come before heads in what you append. The cache keeps (B, n_heads, n, d_head): after the reshape "
            "to "
            "(B, n, n_heads, d_head) exchange axes 1 and 2.",
            split=_tokens_first,
        ),
        _attend_mistake(
            "heads_interleaved",
            "Each head takes every n_heads-th number of a token. A head is a block of d_head neighbours: (H, "
            "d_head), not "
            "(d_head, H).",
            split=_interleaved,
        ),
        _attend_mistake(
            "merge_without_transpose",
            "The heads are reshaped back without exchanging axes 1 and 2 first: tokens and heads are mixed up. "
            "`transpose(1, 2)` before the `reshape`.",
            merge=lambda heads: heads.reshape(len(heads), heads.shape[2], -1),
        ),
        _attend_mistake(
            "heads_averaged",
            "The heads are averaged where they belong next to each other.",
            merge=lambda heads: heads.mean(1).repeat(1, 1, heads.shape[1]),
        ),
        _attend_mistake("no_w_o", "The output has not gone through `mha.w_o`.", finish=lambda mha, merged: merged),
        _attend_mistake(
            "w_o_transposed",
            "`w_o` is used the wrong way round. `mha.w_o(...)` does it right; with its weight, that is `@ weight.T`.",
            finish=lambda mha, merged: merged @ mha.w_o.weight,
        ),
        _attend_mistake(
            "over_queries",
            "The softmax runs over the queries (axis -2). Every new token has a budget of its own to spend on the "
            "keys: "
            "axis -1.",
            share=_softmax_over(-2),
        ),
        _attend_mistake(
            "over_queries",
            "The softmax runs over the queries (axis -2). Every new token has a budget of its own to spend on the "
            "keys: "
            "axis -1.",
            share=_softmax_over_raw(-2),
        ),
        *(
            _attend_mistake(
                "over_heads" if axis else "over_the_batch",
                f"The softmax runs over {'the heads (axis 1)' if axis else 'the batch (axis 0)'}. It belongs on the "
                f"last "
                "axis, the keys.",
                share=share(axis),
            )
            for axis in (1, 0)
            for share in (_softmax_over, _softmax_over_raw)
        ),
        _attend_mistake(
            "mask_after_softmax",
            "The mask comes after the softmax: hidden tokens have spent a part of the budget already, and the rows no "
            "longer sum to 1.",
            share=lambda scores, keep: scores.softmax(-1) * keep,
        ),
        _attend_mistake(
            "mask_added",
            "The mask is added to the scores as 0 and 1. Hidden scores must become minus infinity.",
            share=lambda scores, keep: (scores + keep).softmax(-1),
        ),
        *(
            _attend_mistake(
                "hidden_score_zero",
                f"Hidden scores are set to {fill:g}, and exp of that is 1. They must become minus infinity.",
                share=_filled(fill),
            )
            for fill in (0.0,)
        ),
        *(
            _attend_mistake(
                "inverted_mask", "The mask works the other way round: True means may be attended to.", share=share
            )
            for share in (
                lambda scores, keep: scores.masked_fill(keep, -torch.inf).softmax(-1),
                lambda scores, keep: scores.masked_fill(keep, -torch.inf).softmax(-1).nan_to_num(),
                lambda scores, keep: scores.masked_fill(keep, -1e9).softmax(-1),
            )
        ),
        _attend_mistake(
            "diagonal_excluded",
            "The mask hides each new token from itself. A token sees itself and the past.",
            mask=_shifted_mask(-1),
            section=MASK,
        ),
        _attend_mistake(
            "sees_the_next",
            "The mask lets each new token see the one after it. A token sees itself and the past.",
            mask=_shifted_mask(1),
            section=MASK,
        ),
        _attend_mistake(
            "values_as_keys",
            "Keys and values are exchanged: `cache.append(k, v)` takes the keys first and returns all keys first.",
            stored=lambda cache, k, v: cache.append(v, k),
        ),
        _attend_mistake(
            "values_as_keys",
            "The values are used for keys and values alike.",
            project=("w_q", "w_v", "w_v"),
        ),
        _attend_mistake(
            "values_as_keys",
            "The weights are applied to the keys. They mix the values.",
            stored=lambda cache, k, v: (cache.append(k, v)[0],) * 2,
        ),
        _attend_mistake(
            "one_projection",
            "One projection is used more than once: queries come from `w_q`, keys from `w_k`, values from `w_v`.",
            project=("w_q", "w_q", "w_v"),
        ),
        _attend_mistake(
            "one_projection",
            "One projection is used more than once: queries come from `w_q`, keys from `w_k`, values from `w_v`.",
            project=("w_q", "w_q", "w_q"),
        ),
        _attend_mistake(
            "one_projection",
            "One projection is used more than once: queries come from `w_q`, keys from `w_k`, values from `w_v`.",
            project=("w_k", "w_k", "w_v"),
        ),
        _attend_mistake(
            "projected_twice",
            "Keys and values are projected twice: those in the cache have gone through `w_k` and `w_v` already, and "
            "the "
            "layer's `forward` does it again. Compute the scores from the cached keys yourself.",
            _projected_twice,
        ),
        _attend_mistake(
            "returns_pair",
            "`attend_with_cache` returns a pair. Only the output is asked for.",
            lambda mha, x_new, cache: (attend_with_cache(mha, x_new, cache),) * 2,
        ),
        _attend_mistake(
            "last_token_only",
            lambda values: (
                f"Only the last token's output is returned. A chunk of {max(values['chunks'])} tokens has "
                f"{max(values['chunks'])} outputs, one for each."
            ),
            lambda mha, x_new, cache: attend_with_cache(mha, x_new, cache)[:, -1:],
        ),
        *(
            _attend_mistake(
                "width_taken_for_granted",
                lambda values: (
                    "Heads need not be d_model / n_heads wide: here {1} heads of {2} run in a model of {0}. The "
                    "layer says "
                    "it in `mha.d_head`. Chapter 4's pruned layers are of this kind too."
                ).format(*_heads_text(values)),
                **steps,
            )
            for steps in (
                {"merge": lambda heads: heads, "finish": _merge_by_width},
                {"split": _split_by_width},
                {"split": _split_by_width, "merge": lambda heads: heads, "finish": _merge_by_width},
            )
        ),
    ),
)


# generate


class CountingModel(nn.Module):
    """What the contract says about a model, with one clear answer to every text. It counts the tokens it is fed."""

    vocabulary = 13

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.n_fed, self.used_caches, self.keeps_gradients = 0, False, False

    def new_caches(self, batch: int, max_tokens: int) -> list[Cache]:
        return [Cache(batch, 1, max_tokens, 1, dtype=torch.float64) for _ in range(2)]

    def forward(self, tokens: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        try:
            return self._logits(tokens, caches)
        except ValueError as error:
            error.of_the_model = True
            raise

    def _logits(self, tokens: Tensor, caches: Sequence[Cache] | None) -> Tensor:
        numbers = self.weight * tokens[:, None, :, None]
        if caches is not None:
            self._look_for_room(tokens.shape[1], caches)
            for cache in caches:
                so_far, _ = cache.append(numbers, numbers)
            numbers, self.used_caches = so_far, True
            self.keeps_gradients |= numbers.requires_grad
        n_new, places = tokens.shape[1], torch.arange(1, numbers.shape[2] + 1)
        self.n_fed += n_new
        # The answer depends on every token so far and on its place.
        sums = (numbers[:, 0, :, 0] * places).cumsum(1)[:, numbers.shape[2] - n_new :]
        answers = (sums.detach().long() + 2 * tokens + 1) % self.vocabulary
        apart = (torch.arange(self.vocabulary) - answers[..., None]).abs()
        return self.weight * (4.0 - apart)

    def _look_for_room(self, n_new: int, caches: Sequence[Cache]) -> None:
        """A ValueError with words of its own for each way of asking too much of the caches."""
        room = caches[0]._slots.max_tokens - len(caches[0])
        if n_new > room:
            what = "the first chunk" if not len(caches[0]) else "one more token" if n_new == 1 else "another chunk"
            raise ValueError(
                f"{what} does not fit into the caches: {n_new} tokens, with room for {room} of "
                f"{caches[0]._slots.max_tokens}"
            )


def _continue(implementation: Any, prompt: Tensor, n_new: int, use_cache: bool | None = None) -> Any:
    with _as_if_new(implementation):
        return _run(implementation, CountingModel(), prompt, n_new, use_cache)


def _run(implementation: Any, model: CountingModel, prompt: Tensor, n_new: int, use_cache: bool | None = None) -> Any:
    fine = prompt.shape[1] and n_new >= 0
    with _in_one_voice("generate refused a prompt and a number that are fine") if fine else contextlib.nullcontext():
        return implementation(model, prompt, n_new, **({} if use_cache is None else {"use_cache": use_cache}))


def _continue_and_count(implementation: Any, prompt: Tensor, n_new: int) -> dict[str, Any]:
    with _as_if_new(implementation):
        model = CountingModel()
        _run(implementation, model, prompt, n_new)
        # The last token need not be fed: nobody asks what comes after it.
        again = max(0, model.n_fed - (prompt.shape[1] + n_new))
        return {"caches were used": model.used_caches, "tokens fed a second time": again}


def _continue_without(implementation: Any, prompt: Tensor, n_new: int) -> dict[str, Any]:
    with _as_if_new(implementation):
        model = CountingModel()
        _run(implementation, model, prompt, n_new, use_cache=False)
        return {"caches were used": model.used_caches}


def _look_for_gradients(implementation: Any, prompt: Tensor, n_new: int) -> dict[str, Any]:
    with _as_if_new(implementation):
        model = CountingModel()
        _run(implementation, model, prompt, n_new)
        return {"cached keys keep gradients": model.keeps_gradients}


def _continue_twice(implementation: Any, prompt: Tensor, other_prompt: Tensor, n_new: int) -> dict[str, Any]:
    with _as_if_new(implementation):
        model = CountingModel()
        texts = {"first": prompt, "second": other_prompt}
        return {f"ids of the {name} call": _run(implementation, model, text, n_new) for name, text in texts.items()}


def _generation(
    *,
    make: Callable[..., Any] = lambda model, ids, n_new: model.new_caches(len(ids), ids.shape[1] + n_new),
    first: Callable[[Tensor], Tensor] = lambda ids: ids,
    later: Callable[[Tensor], Tensor] = lambda ids: ids[:, -1:],
    uncached: Callable[[Tensor, Tensor], Tensor] = lambda ids, prompt: ids,
    choose: Callable[[Tensor], Tensor] = lambda logits: logits[:, -1].argmax(-1, keepdim=True),
    join: Callable[[Tensor, Tensor], Tensor] = lambda ids, new: torch.cat([ids, new], dim=1),
    steps: Callable[[int], int] = lambda n_new: n_new,
    refuse: Callable[[Tensor, int], bool] = lambda prompt, n_new: prompt.shape[1] == 0 or n_new < 0,
    finish: Callable[[Tensor, int], Any] = lambda ids, n_prompt: ids,
    flag: Callable[[bool], bool] = lambda use_cache: use_cache,
    each_step: Callable[[Any, list[Any], Tensor, int], list[Any]] = lambda model, caches, ids, n_new: caches,
    gradients: bool = False,
) -> Callable[..., Any]:
    """generate with some of its steps replaced by others."""

    def implementation(model: Any, prompt: Tensor, n_new: int, use_cache: bool = True) -> Any:
        with torch.set_grad_enabled(gradients):
            if refuse(prompt, n_new):
                raise ValueError
            ids, cached = prompt, flag(use_cache)
            caches = make(model, prompt, n_new) if cached else None
            for step in range(steps(n_new)):
                if cached:
                    caches = each_step(model, caches, ids, n_new)
                    logits = model(later(ids) if step else first(ids), caches)
                else:
                    logits = model(uncached(ids, prompt))
                ids = join(ids, choose(logits))
            return finish(ids, prompt.shape[1])

    return implementation


def _keep_on_model(model: Any, prompt: Tensor, n_new: int) -> list[Any]:
    """Caches made at the first call and used ever after, with room to spare."""
    if not hasattr(model, "kept"):
        model.kept = model.new_caches(len(prompt), 10 * (prompt.shape[1] + n_new))
    return model.kept


def _last_prompt_token_again(model: Any, prompt: Tensor, n_new: int, use_cache: bool = True) -> Tensor:
    """The prompt goes through the model, then its last token once more."""
    if not use_cache or n_new <= 0 or not prompt.shape[1]:
        return generate(model, prompt, n_new, use_cache)
    with torch.no_grad():
        caches = model.new_caches(len(prompt), prompt.shape[1] + n_new + 1)
        model(prompt, caches)
        ids = prompt
        for _ in range(n_new):
            ids = torch.cat([ids, model(ids[:, -1:], caches)[:, -1].argmax(-1, keepdim=True)], dim=1)
        return ids


def _fresh(model: Any, caches: list[Any], ids: Tensor, n_new: int) -> list[Any]:
    return model.new_caches(len(ids), ids.shape[1] + n_new)


def _emptied(model: Any, caches: list[Any], ids: Tensor, n_new: int) -> list[Any]:
    for cache in caches:
        cache.reset()
    return caches


def _all(ids: Tensor) -> Tensor:
    return ids


def _at_least_one(n_new: int) -> int:
    return n_new if n_new < 0 else max(1, n_new)


def _room(factor: int) -> Callable[..., Any]:
    return lambda model, ids, n_new: model.new_caches(len(ids), factor * (ids.shape[1] + n_new))


def _prompt(*rows: Sequence[int]) -> Tensor:
    return torch.tensor(rows)


def _random_prompt(batch: int, n_tokens: int, n_new: int, **options: Any) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: given(
        torch.from_numpy(rng.integers(0, CountingModel.vocabulary, (batch, n_tokens))), n_new, **options
    )


def _fed_text(values: Mapping[str, Any]) -> str:
    n_prompt, n_new = values["prompt"].shape[1], values["n_new"]
    fed = sum(n_prompt + step for step in range(n_new))
    return (
        f"With a cache, only tokens that are not in it yet go into the model: first the prompt of {n_prompt}, then "
        f"one new "
        f"token at a time, at most {n_prompt + n_new} in all. You feed the whole text at every step, {fed} tokens."
    )


def _refused_text(values: Mapping[str, Any]) -> str:
    return (
        "The caches are too small. The prompt goes into them as well as the new tokens: ask `new_caches` for room for "
        f"{values['prompt'].shape[1]} + {values['n_new']} tokens."
    )


def _generate_mistake(name: str, explanation: Any, implementation: Any = None, **steps: Any) -> Misconception:
    return Misconception(name, implementation or _generation(**steps), explanation, GENERATE)


_ROWS_TEXT = (
    "All texts of the batch get the same new token. Each row has an answer of its own: take `argmax` along the last "
    "axis, "
    "`logits[:, -1].argmax(dim=-1)`."
)
_SHARED_CACHES_TEXT = (
    "The second call still finds the first call's tokens in the caches. Every call begins a new text: ask the model "
    "for "
    "new caches inside the function."
)

_GREEDY = "the likeliest token each time, with and without a cache"
_FED = "with a cache, every token is fed once"
_WITHOUT = "without a cache, no cache is used"
_NO_GRAD = "no gradients are kept"
_CALLS = "every call has caches of its own"
_NONE = "n_new = 0 gives the prompt back"
_ARGUMENTS = "an empty prompt or a negative n_new: ValueError"

_generate = Exercise(
    id="generate",
    points=4,
    section=GENERATE,
    reference=generate,
    families={_GREEDY: 0.4, _FED: 0.2, _WITHOUT: 0.05, _NO_GRAD: 0.1, _CALLS: 0.1, _NONE: 0.05, _ARGUMENTS: 0.1},
    cases=(
        Case("3 tokens and 4 more", _GREEDY, lambda rng: given(_prompt([1, 2, 3]), 4), _continue),
        Case("the same without a cache", _GREEDY, lambda rng: given(_prompt([1, 2, 3]), 4, use_cache=False), _continue),
        Case("two texts", _GREEDY, _random_prompt(2, 4, 5), _continue),
        Case("two texts without a cache", _GREEDY, _random_prompt(2, 4, 5, use_cache=False), _continue),
        Case("three texts, a prompt of one token", _GREEDY, _random_prompt(3, 1, 4, use_cache=True), _continue),
        Case("one new token", _GREEDY, _random_prompt(2, 3, 1), _continue),
        Case("a prompt of 5 and 4 more", _FED, _random_prompt(1, 5, 4), _continue_and_count),
        Case("two texts of 3 and 6 more", _FED, _random_prompt(2, 3, 6), _continue_and_count),
        Case("a prompt of 3 and 4 more", _WITHOUT, _random_prompt(2, 3, 4), _continue_without),
        Case("a prompt of 2 and 3 more", _NO_GRAD, _random_prompt(2, 2, 3), _look_for_gradients),
        Case(
            "one text after another",
            _CALLS,
            lambda rng: given(*(torch.from_numpy(rng.integers(0, 13, (2, n_tokens))) for n_tokens in (3, 4)), 3),
            _continue_twice,
        ),
        Case("with a cache", _NONE, _random_prompt(2, 3, 0), _continue),
        Case("without a cache", _NONE, _random_prompt(1, 4, 0, use_cache=False), _continue),
        Case("an empty prompt", _ARGUMENTS, lambda rng: given(torch.zeros(2, 0, dtype=torch.int64), 3), _continue),
        Case(
            "an empty prompt, without a cache",
            _ARGUMENTS,
            lambda rng: given(torch.zeros(1, 0, dtype=torch.int64), 2, use_cache=False),
            _continue,
        ),
        Case(
            "an empty prompt and nothing to add",
            _ARGUMENTS,
            lambda rng: given(torch.zeros(1, 0, dtype=torch.int64), 0),
            _continue,
        ),
        Case("minus one new token", _ARGUMENTS, _random_prompt(1, 3, -1), _continue),
        Case("minus four, without a cache", _ARGUMENTS, _random_prompt(2, 3, -4, use_cache=False), _continue),
    ),
    misconceptions=(
        _generate_mistake("whole_text_fed", _fed_text, later=_all, each_step=_fresh),
        _generate_mistake("whole_text_fed", _fed_text, later=_all, each_step=_emptied),
        _generate_mistake(
            "whole_text_fed",
            lambda values: _fed_text(values) + " The caches then hold the old tokens twice and more.",
            later=_all,
        ),
        _generate_mistake(
            "whole_text_fed",
            lambda values: _fed_text(values) + " The caches then hold the old tokens twice and more.",
            later=_all,
            make=_room(20),
        ),
        _generate_mistake(
            "cache_never_used",
            lambda values: (
                "`use_cache=True` changes nothing: the model gets no caches and is fed the whole text at every step. "
                "Make "
                "them with `model.new_caches(batch, max_tokens)`, hand them to every call, and feed only new tokens."
            ),
            flag=lambda use_cache: False,
        ),
        _generate_mistake(
            "flag_ignored",
            "`use_cache=False` changes nothing: caches are used all the same. Without a cache the model gets the "
            "whole text at "
            "every step and no caches.",
            flag=lambda use_cache: True,
        ),
        _generate_mistake(
            "flag_inverted",
            "`use_cache` works the other way round.",
            flag=lambda use_cache: not use_cache,
        ),
        _generate_mistake(
            "prompt_not_fed",
            "Only the last token of the prompt goes into the model, so that the caches never see the others. Feed "
            "the whole "
            "prompt first (prefill), then one token at a time (decode).",
            first=lambda ids: ids[:, -1:],
        ),
        _generate_mistake(
            "last_prompt_token_twice",
            "The last token of the prompt is fed twice: with the prompt, and again as the first step of the loop. The "
            "prompt's own logits already say which token comes next.",
            _last_prompt_token_again,
        ),
        _generate_mistake(
            "first_position_read",
            "The next token is read from the logits of the first position. The last position, `logits[:, -1]`, says "
            "what "
            "comes next.",
            choose=lambda logits: logits[:, 0].argmax(-1, keepdim=True),
        ),
        _generate_mistake(
            "same_for_all_texts",
            _ROWS_TEXT,
            choose=lambda logits: logits[0, -1].argmax().expand(len(logits), 1),
        ),
        _generate_mistake(
            "same_for_all_texts", _ROWS_TEXT, choose=lambda logits: logits[-1, -1].argmax().expand(len(logits), 1)
        ),
        _generate_mistake(
            "one_text_only",
            "This works for a batch of one text only: `.item()` turns one number into a Python number, and several "
            "cannot be "
            "turned. Keep the tokens in a tensor of shape (B, 1).",
            choose=lambda logits: torch.tensor([[logits[:, -1].argmax(-1).item()]]),
        ),
        _generate_mistake(
            "least_likely",
            "The token with the smallest logit is taken. Greedy means the largest.",
            choose=lambda logits: logits[:, -1].argmin(-1, keepdim=True),
        ),
        _generate_mistake(
            "new_tokens_only",
            lambda values: (
                f"Only the new tokens come back. The prompt belongs to the result: {values['prompt'].shape[1]} + "
                f"{values['n_new']} tokens."
            ),
            finish=lambda ids, n_prompt: ids[:, n_prompt:],
        ),
        _generate_mistake(
            "prepended",
            "New tokens are put in front of the text. They belong behind it.",
            join=lambda ids, new: torch.cat([new, ids], dim=1),
        ),
        _generate_mistake(
            "prepended",
            "New tokens are put in front of the text. They belong behind it.",
            join=lambda ids, new: torch.cat([new, ids], dim=1),
            later=lambda ids: ids[:, :1],
        ),
        _generate_mistake(
            "one_too_many",
            "There is one token more than was asked for.",
            steps=lambda n_new: n_new + 1,
            make=_room(2),
        ),
        _generate_mistake(
            "one_too_few",
            "There is one token less than was asked for.",
            steps=lambda n_new: n_new - 1,
        ),
        _generate_mistake(
            "zero_gives_one",
            "With n_new = 0 there is a new token all the same: the prompt's logits are used whether or not one was "
            "asked for.",
            steps=_at_least_one,
            make=_room(2),
        ),
        _generate_mistake(
            "always_the_prompt",
            "The model is fed the prompt at every step, without the tokens that were added, and so it always gives "
            "the same "
            "answer. Feed the text as it has grown.",
            uncached=lambda ids, prompt: prompt,
        ),
        _generate_mistake(
            "caches_too_small", _refused_text, make=lambda model, ids, n_new: model.new_caches(len(ids), n_new)
        ),
        _generate_mistake(
            "caches_too_small", _refused_text, make=lambda model, ids, n_new: model.new_caches(len(ids), ids.shape[1])
        ),
        _generate_mistake(
            "caches_for_one_text",
            "The caches are made for one text. `new_caches` wants to know how many there are: `prompt.shape[0]`.",
            make=lambda model, ids, n_new: model.new_caches(1, ids.shape[1] + n_new),
        ),
        _generate_mistake("caches_shared", _SHARED_CACHES_TEXT, make=_keep_on_model),
        _generate_mistake(
            "gradients_kept",
            "What goes into the caches still carries gradients, so that torch keeps the whole calculation of every "
            "token in "
            "memory. Nobody is training here: put the work under `torch.no_grad()`.",
            gradients=True,
        ),
        _generate_mistake(
            "negative_accepted",
            lambda values: (
                f"n_new = {values['n_new']} is let through. A negative number of new tokens is a ValueError."
            ),
            refuse=lambda prompt, n_new: prompt.shape[1] == 0,
        ),
        _generate_mistake(
            "empty_prompt_accepted",
            "An empty prompt is let through. There is no last token to continue from: raise a ValueError.",
            refuse=lambda prompt, n_new: n_new < 0,
        ),
        _generate_mistake(
            "empty_prompt_accepted",
            "Neither an empty prompt nor a negative n_new is refused. Both are a ValueError.",
            refuse=lambda prompt, n_new: False,
        ),
        _generate_mistake(
            "zero_refused",
            "n_new = 0 is refused. Nothing to add is no error: the prompt comes back as it is.",
            refuse=lambda prompt, n_new: prompt.shape[1] == 0 or n_new <= 0,
        ),
        _generate_mistake(
            "short_prompt_refused",
            "A prompt of one token is refused. It is short, but something can follow it.",
            refuse=lambda prompt, n_new: prompt.shape[1] <= 1 or n_new < 0,
        ),
    ),
)


# tokens_projected, kv_cache_bytes


def _counted(cached: Callable[[int], float], uncached: Callable[[int], float]) -> Callable[[int, bool], float]:
    return lambda n_tokens, use_cache: cached(n_tokens) if use_cache else uncached(n_tokens)


def _once(n: int) -> int:
    return n


def _again(n: int) -> int:
    return n * (n + 1) // 2


def _steps_text(values: Mapping[str, Any]) -> str:
    n = values["n_tokens"]
    if values["use_cache"]:
        return f"With a cache each of the {n} tokens is projected once."
    sizes = " + ".join(str(step) for step in range(1, n + 1)) if n <= 5 else f"1 + 2 + ... + {n}"
    return f"Without a cache the first step projects 1 token, the next 2, and so on: {sizes} = {_again(n)}."


_tokens_projected = Exercise(
    id="tokens_projected",
    points=2,
    section=SAVES,
    reference=tokens_projected,
    families={"without a cache": 0.5, "with a cache": 0.4, "no tokens": 0.1},
    cases=(
        Case("4 tokens", "without a cache", lambda rng: given(4, False)),
        Case("10 tokens", "without a cache", lambda rng: given(10, use_cache=False)),
        Case("2048 tokens", "without a cache", lambda rng: given(2048, False)),
        Case("some tokens", "without a cache", lambda rng: given(int(rng.integers(20, 300)), False)),
        Case("one token", "without a cache", lambda rng: given(1, False)),
        Case("4 tokens", "with a cache", lambda rng: given(4, True)),
        Case("10 tokens", "with a cache", lambda rng: given(10, use_cache=True)),
        Case("some tokens", "with a cache", lambda rng: given(int(rng.integers(20, 300)), True)),
        Case("none, without a cache", "no tokens", lambda rng: given(0, False)),
        Case("none, with a cache", "no tokens", lambda rng: given(0, True)),
    ),
    misconceptions=tuple(
        Misconception(
            name,
            implementation,
            lambda values, text=text: f"{text} {_steps_text(values)}",
            SAVES,
        )
        for name, implementation, text in (
            ("squared", _counted(_once, lambda n: n * n), "n x n would be right if every step projected all n tokens."),
            (
                "own_token_left_out",
                _counted(_once, lambda n: n * (n - 1) // 2),
                "Your number is n (n - 1) / 2: it leaves the newest token of every step out, or one whole step.",
            ),
            ("not_halved", _counted(_once, lambda n: n * (n + 1)), "Your number is n (n + 1), twice too large."),
            ("half_square", _counted(_once, lambda n: n * n // 2), "Your number is n x n / 2, a little too small."),
            ("half_square", _counted(_once, lambda n: n * n / 2), "Your number is n x n / 2, a little too small."),
            ("flag_inverted", _counted(_again, _once), "The two are exchanged."),
            ("flag_ignored", _counted(_once, _once), "The number is the same with and without a cache."),
            ("flag_ignored", _counted(_again, _again), "The number is the same with and without a cache."),
            (
                "one_step_only",
                _counted(lambda n: 1, _once),
                "Your number is that of the last step alone. All n steps count together.",
            ),
            (
                "one_step_only",
                _counted(lambda n: min(n, 1), _once),
                "Your number is that of the last step alone. All n steps count together.",
            ),
            (
                "one_step_only",
                _counted(lambda n: 1, _again),
                "With a cache one step projects 1 token, and there are n steps.",
            ),
            (
                "three_projections",
                _counted(lambda n: 3 * n, lambda n: 3 * _again(n)),
                "You count queries, keys and values one by one. Count token vectors: one token projected counts 1.",
            ),
            (
                "three_projections",
                _counted(lambda n: 2 * n, lambda n: 2 * _again(n)),
                "You count keys and values one by one. Count token vectors: one token projected counts 1.",
            ),
        )
    ),
)


def _size_text(values: Mapping[str, Any]) -> str:
    named = {"batch": 1, "bytes_per_value": 2} | dict(values)
    total = kv_cache_bytes(**named)
    return (
        "Keys and values (2), in each of {n_layers} layers and {n_kv_heads} heads, {d_head} numbers for each of "
        "{n_tokens} "
        "tokens, in {batch} text(s), {bytes_per_value} byte(s) each: "
    ).format(**named) + f"the product of all seven is {total:,}."


def _times(factor: Callable[[Mapping[str, int]], float]) -> Callable[..., float]:
    """The right number of bytes times a factor that depends on the arguments."""

    def implementation(
        n_layers: int, n_kv_heads: int, d_head: int, n_tokens: int, batch: int = 1, bytes_per_value: int = 2
    ) -> float:
        named = {
            "n_layers": n_layers,
            "n_kv_heads": n_kv_heads,
            "d_head": d_head,
            "n_tokens": n_tokens,
            "batch": batch,
            "bytes_per_value": bytes_per_value,
        }
        return kv_cache_bytes(**named) * factor(named)

    return implementation


def _defaults(batch: int, bytes_per_value: int) -> Callable[..., int]:
    return lambda n_layers, n_kv_heads, d_head, n_tokens, batch=batch, bytes_per_value=bytes_per_value: kv_cache_bytes(
        n_layers, n_kv_heads, d_head, n_tokens, batch, bytes_per_value
    )


_kv_cache_bytes = Exercise(
    id="kv_cache_bytes",
    points=2,
    section=COSTS,
    reference=kv_cache_bytes,
    families={"one text, 2 bytes a number": 0.5, "more texts": 0.2, "other sizes of a number": 0.2, "no tokens": 0.1},
    cases=(
        Case("a tiny model", "one text, 2 bytes a number", lambda rng: given(3, 2, 4, 5)),
        Case("Llama-2-7B with 4096 tokens", "one text, 2 bytes a number", lambda rng: given(32, 32, 128, 4096)),
        Case("Llama-3-8B with 8192 tokens", "one text, 2 bytes a number", lambda rng: given(32, 8, 128, 8192)),
        Case(
            "some model",
            "one text, 2 bytes a number",
            lambda rng: given(*(int(rng.integers(*span)) for span in ((3, 9), (10, 20), (21, 40), (41, 99)))),
        ),
        Case("3 texts", "more texts", lambda rng: given(4, 2, 8, 5, batch=3)),
        Case("7 texts, by position", "more texts", lambda rng: given(5, 3, 4, 11, 7)),
        Case("float32", "other sizes of a number", lambda rng: given(3, 2, 4, 5, bytes_per_value=4)),
        Case("1 byte, 6 texts", "other sizes of a number", lambda rng: given(4, 3, 8, 7, batch=6, bytes_per_value=1)),
        Case("no tokens yet", "no tokens", lambda rng: given(3, 2, 4, 0)),
    ),
    misconceptions=(
        *(
            Misconception(name, implementation, lambda values, text=text: f"{text} {_size_text(values)}", COSTS)
            for name, implementation, text in (
                (
                    "keys_only",
                    _times(lambda named: 1 / 2),
                    "Your number is half of it: values are kept as well as keys.",
                ),
                (
                    "twice_too_much",
                    _times(lambda named: 2),
                    "Your number is twice too large: is the 2 for keys and values in it twice?",
                ),
                (
                    "batch_ignored",
                    _times(lambda named: 1 / named["batch"]),
                    "`batch` is not used: every text has a cache of its own.",
                ),
                (
                    "size_ignored",
                    _times(lambda named: 2 / named["bytes_per_value"]),
                    "`bytes_per_value` is not used: you count 2 bytes for every number.",
                ),
                (
                    "size_ignored",
                    _times(lambda named: 4 / named["bytes_per_value"]),
                    "`bytes_per_value` is not used: you count 4 bytes for every number.",
                ),
                (
                    "numbers_not_bytes",
                    _times(lambda named: 1 / named["bytes_per_value"]),
                    "You count numbers. Each takes `bytes_per_value` bytes.",
                ),
                ("other_default", _defaults(1, 4), "Without a word about it a number takes 2 bytes, not 4."),
                ("other_default", _defaults(1, 1), "Without a word about it a number takes 2 bytes, not 1."),
                (
                    "layers_forgotten",
                    _times(lambda named: 1 / named["n_layers"]),
                    "That is one layer. Each has a cache of its own.",
                ),
                (
                    "heads_forgotten",
                    _times(lambda named: 1 / named["n_kv_heads"]),
                    "That is one head. Each has keys and values of its own.",
                ),
                (
                    "d_head_forgotten",
                    _times(lambda named: 1 / named["d_head"]),
                    "A key is not one number but `d_head` of them.",
                ),
                (
                    "tokens_forgotten",
                    lambda a, b, c, d, batch=1, bytes_per_value=2: kv_cache_bytes(a, b, c, 1, batch, bytes_per_value),
                    "That is one token.",
                ),
                (
                    "tokens_squared",
                    _times(lambda named: named["n_tokens"]),
                    "The number of tokens enters squared. Keys and values grow with it, only a table of scores with "
                    "its square.",
                ),
                ("bits", _times(lambda named: 8), "That is in bits."),
                *(
                    (
                        "other_unit",
                        _times(lambda named, unit=unit: 1 / unit),
                        f"You divide by {unit:,}. Bytes are asked for.",
                    )
                    for unit in (1e3, 1e6, 1e9, 2.0**10, 2.0**20, 2.0**30)
                ),
            )
        ),
    ),
)


_QUIZZES = (
    Quiz(
        "quiz_05_1",
        answer="C",
        section=SAME,
        explanations={
            "A": "Queries are as large as keys. Nothing is saved by leaving them out for that.",
            "B": "The query of an old token is as fixed as its key. It could be kept. Nobody would read it.",
            "C": "Yes. A query is used in its own token's row, and that row is finished. A key and a value are used "
            "again by every token that comes later.",
            "D": "They are not. The cache holds two tensors for each layer, keys and values.",
        },
    ),
    Quiz(
        "quiz_05_2",
        answer="B",
        section=MASK,
        explanations={
            "A": "That mask is aligned to the top left: the first new token would see token 0 of the text and not "
            "itself.",
            "B": "Yes. Three tokens ask, seven answer. The first of the new ones is token 4 of the text and sees the "
            "keys 0 to 4.",
            "C": "Only new tokens ask. The outputs of the four old ones have been computed before.",
            "D": "The four cached tokens answer as well: their keys are columns of the mask.",
        },
    ),
    Quiz(
        "quiz_05_3",
        answer="D",
        section=SAVES,
        explanations={
            "A": "The new token must still be compared with every key in the cache, and there are more of them each "
            "time.",
            "B": "With a cache one token is projected at each step, however long the text is.",
            "C": "W_O takes the new token's output alone. It is one vector at each step.",
            "D": "Yes. The new query meets every cached key, and the weights mix every cached value. That is a small "
            "part "
            "of the work while texts are short. In very long ones it is most of it.",
        },
    ),
)

EXERCISES = (
    _kv_cache,
    _cached_causal_mask,
    _attend_with_cache,
    _generate,
    _tokens_projected,
    _kv_cache_bytes,
    *_QUIZZES,
)
