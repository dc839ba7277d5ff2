"""Answers to the exercises of chapter 5."""

import functools
import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from answers import right, wrong


class GoodCache:
    """Slots made once: the way the chapter teaches."""

    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self.keys = torch.empty(batch, n_kv_heads, max_tokens, d_head, dtype=dtype)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def append(self, k, v):
        batch, n_kv_heads, max_tokens, d_head = self.keys.shape
        if k.shape != v.shape or k.dim() != 4 or k.shape != (batch, n_kv_heads, k.shape[2], d_head):
            raise ValueError(f"cannot store keys {tuple(k.shape)} and values {tuple(v.shape)} in {self.keys.shape}")
        end = self.length + k.shape[2]
        if end > max_tokens:
            raise ValueError(f"{end} tokens do not fit into {max_tokens}")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def __len__(self):
        return self.length

    @property
    def nbytes(self):
        return 2 * self.keys[:, :, : self.length].nbytes

    def reset(self):
        self.length = 0


# KVCache, right


right("KVCache")(GoodCache)


@right("KVCache")
class Concatenated:
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self.batch, self.heads, self.room, self.d_head, self.dtype = batch, n_kv_heads, max_tokens, d_head, dtype
        self.k = self.v = None

    def append(self, k, v):
        expected = (self.batch, self.heads, k.shape[-2], self.d_head)
        if tuple(k.shape) != expected or tuple(v.shape) != expected:
            raise ValueError(f"expected {expected}, got {tuple(k.shape)} and {tuple(v.shape)}")
        if len(self) + k.shape[2] > self.room:
            raise ValueError("full")
        k, v = k.to(self.dtype), v.to(self.dtype)
        self.k = k if self.k is None else torch.cat((self.k, k), dim=-2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=-2)
        return self.k, self.v

    def __len__(self):
        return 0 if self.k is None else self.k.size(2)

    @property
    def nbytes(self):
        if self.k is None:
            return 0
        return self.k.numel() * self.k.element_size() + self.v.numel() * self.v.element_size()

    def reset(self):
        self.k, self.v = None, None


@right("KVCache")
class ListOfChunks:
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self.shape, self.max_tokens, self.dtype = (batch, n_kv_heads, d_head), max_tokens, dtype
        self.chunks = []

    def append(self, k, v):
        for tensor in (k, v):
            if tensor.ndim != 4:
                raise ValueError("four axes, please")
            b, h, _, d = tensor.shape
            if (b, h, d) != self.shape:
                raise ValueError((b, h, d))
        if k.shape[2] != v.shape[2] or len(self) + k.shape[2] > self.max_tokens:
            raise ValueError(k.shape[2])
        self.chunks.append((k.to(self.dtype), v.to(self.dtype)))
        return tuple(torch.cat(parts, dim=2) for parts in zip(*self.chunks, strict=True))

    def __len__(self):
        return sum(k.shape[2] for k, _ in self.chunks)

    @property
    def nbytes(self):
        return sum(k.nbytes + v.nbytes for k, v in self.chunks)

    def reset(self):
        self.chunks.clear()


@right("KVCache")
class OneTensorForBoth:
    """Keys and values side by side; sequences first; a list is returned."""

    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self.both = torch.zeros((2, batch, n_kv_heads, max_tokens, d_head), dtype=dtype)
        self.n = 0

    def append(self, k, v):
        try:
            new = torch.stack([k, v])
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        n = new.shape[3] if new.ndim == 5 else 0
        room = self.both[:, :, :, self.n : self.n + n]
        if new.shape != room.shape:
            raise ValueError(f"{tuple(new.shape)} does not fit into {tuple(room.shape)}")
        room.copy_(new)
        self.n += n
        return list(self.both[:, :, :, : self.n])

    def __len__(self):
        return self.n

    @property
    def nbytes(self):
        return self.both[..., : self.n, :].numel() * self.both.element_size()

    def reset(self):
        self.both.zero_()
        self.n = 0


@right("KVCache")
class GrowsByDoubling:
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self._limit, self._used, self._args = max_tokens, 0, (batch, n_kv_heads, d_head, dtype)
        self._store = self._make(1)

    def _make(self, room):
        batch, heads, d_head, dtype = self._args
        return [torch.zeros(batch, heads, room, d_head, dtype=dtype) for _ in "kv"]

    def append(self, k, v):
        batch, heads, d_head, _ = self._args
        wanted = torch.Size((batch, heads, k.shape[2] if k.ndim > 2 else 0, d_head))
        if not (k.shape == wanted == v.shape):
            raise ValueError(f"want {wanted}")
        n = k.shape[2]
        if self._used + n > self._limit:
            raise ValueError(self._used + n)
        while self._used + n > self._store[0].shape[2]:
            larger = self._make(2 * self._store[0].shape[2])
            for new, old in zip(larger, self._store, strict=True):
                new[:, :, : self._used] = old[:, :, : self._used]
            self._store = larger
        for store, new in zip(self._store, (k, v), strict=True):
            store.narrow(2, self._used, n).copy_(new)
        self._used += n
        return tuple(store[:, :, : self._used] for store in self._store)

    def __len__(self):
        return self._used

    @property
    def nbytes(self):
        batch, heads, d_head, dtype = self._args
        return 2 * batch * heads * d_head * self._used * torch.finfo(dtype).bits // 8

    def reset(self):
        self._used = 0
        self._store = self._make(1)


@right("KVCache")
class AModule(nn.Module):
    """As a torch module with buffers, and clones handed out."""

    def __init__(self, batch: int, n_kv_heads: int, max_tokens: int, d_head: int, dtype=torch.float32) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(batch, n_kv_heads, max_tokens, d_head, dtype=dtype))
        self.register_buffer("v", torch.zeros(batch, n_kv_heads, max_tokens, d_head, dtype=dtype))
        self.position = 0

    def append(self, k, v):
        B, H, N, D = self.k.shape
        bad = any(t.ndim != 4 or t.shape[:2] != (B, H) or t.shape[3] != D for t in (k, v))
        if bad or k.shape[2] != v.shape[2]:
            raise ValueError("shape")
        if self.position + k.shape[2] > N:
            raise ValueError("full")
        for t in range(k.shape[2]):
            self.k[:, :, self.position] = k[:, :, t]
            self.v[:, :, self.position] = v[:, :, t]
            self.position += 1
        return self.k[:, :, : self.position].clone(), self.v[:, :, : self.position].clone()

    def __len__(self):
        return self.position

    @property
    def nbytes(self):
        return (self.k[:, :, : self.position].nbytes) + (self.v[:, :, : self.position].nbytes)

    def reset(self):
        self.position = 0


@right("KVCache")
@dataclass
class ADataclass:
    batch: int
    n_kv_heads: int
    max_tokens: int
    d_head: int
    dtype: torch.dtype = torch.float32
    kept: list = field(default_factory=list)

    def append(self, k, v):
        class DoesNotFit(ValueError):
            pass

        for x in (k, v):
            if list(x.shape) != [self.batch, self.n_kv_heads, k.shape[2] if k.ndim == 4 else -1, self.d_head]:
                raise DoesNotFit(x.shape)
        if k.shape[2] > self.max_tokens - len(self):
            raise DoesNotFit
        self.kept.extend(
            (k[:, :, i : i + 1].type(self.dtype), v[:, :, i : i + 1].type(self.dtype)) for i in range(k.shape[2])
        )
        keys, values = zip(*self.kept, strict=True)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def __len__(self):
        return len(self.kept)

    @property
    def nbytes(self):
        one = torch.empty(0, dtype=self.dtype).element_size()
        return math.prod([2, self.batch, self.n_kv_heads, self.d_head, len(self), one])

    def reset(self):
        self.kept = []


@right("KVCache")
class Inherits(Concatenated):
    """Says what it does."""

    def append(self, k, v):
        print("append", tuple(k.shape))
        return super().append(k, v)

    def __repr__(self):
        return f"KVCache with {len(self)} tokens"


# KVCache, wrong


@wrong("KVCache", "wrong_axis")
class AlongTheLastAxis(Concatenated):
    def append(self, k, v):
        Concatenated.append(GoodCacheOf(self), k, v)
        k, v = k.to(self.dtype), v.to(self.dtype)
        self.k = k if self.k is None else torch.cat((self.k, k), dim=-1)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=-1)
        return self.k, self.v


def GoodCacheOf(cache):
    """An empty cache of the same sizes, for its checks."""
    return Concatenated(cache.batch, cache.heads, cache.room, cache.d_head, cache.dtype)


@wrong("KVCache", "wrong_axis")
class AlongTheHeads(Concatenated):
    def append(self, k, v):
        k, v = k.to(self.dtype), v.to(self.dtype)
        self.k = torch.hstack([self.k, k]) if self.k is not None else k
        self.v = torch.hstack([self.v, v]) if self.v is not None else v
        return self.k, self.v


@wrong("KVCache", "wrong_axis")
class AlongTheBatch(ListOfChunks):
    def append(self, k, v):
        super().append(k, v)
        return tuple(torch.cat(parts) for parts in zip(*self.chunks, strict=True))


@wrong("KVCache", "overwritten")
class AssignsTheNew(Concatenated):
    def append(self, k, v):
        super().append(k, v)
        self.k, self.v = k.to(self.dtype), v.to(self.dtype)
        return self.k, self.v


@wrong("KVCache", "overwritten")
class ReturnsTheNew(GoodCache):
    def append(self, k, v):
        super().append(k, v)
        return self.keys[:, :, self.length - k.shape[2] : self.length], self.values[
            :, :, self.length - k.shape[2] : self.length
        ]


@wrong("KVCache", "overwritten")
class AlwaysFromTheStart(GoodCache):
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        super().__init__(batch, n_kv_heads, max_tokens, d_head, dtype)
        self.keys.zero_()
        self.values.zero_()

    def append(self, k, v):
        _, _ = super().append(k, v)
        self.keys[:, :, self.length - k.shape[2] : self.length] = 0
        self.values[:, :, self.length - k.shape[2] : self.length] = 0
        self.keys[:, :, : k.shape[2]] = k
        self.values[:, :, : k.shape[2]] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


@wrong("KVCache", "new_first")
class NewInFront(ListOfChunks):
    def append(self, k, v):
        super().append(k, v)
        return tuple(torch.cat(parts[::-1], dim=2) for parts in zip(*self.chunks, strict=True))


@wrong("KVCache", "values_as_keys")
class Copied(GoodCache):
    def append(self, k, v):
        super().append(k, v)
        self.values[:, :, self.length - k.shape[2] : self.length] = k
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


@wrong("KVCache", "values_as_keys")
class WrongWayRound(Concatenated):
    def append(self, k, v):
        keys, values = super().append(k, v)
        return values, keys


@wrong("KVCache", "first_token_lost")
class StartsAtOne(GoodCache):
    def append(self, k, v):
        keys, values = super().append(k, v)
        return keys[:, :, 1:], values[:, :, 1:]


@wrong("KVCache", "first_token_lost")
class FirstCallOnlySetsUp(Concatenated):
    def append(self, k, v):
        if self.k is None:
            super().append(k, v)
            self.k, self.v = self.k[:, :, :0], self.v[:, :, :0]
            return k.to(self.dtype), v.to(self.dtype)
        return super().append(k, v)


@wrong("KVCache", "whole_room_returned")
class ReturnsTheBuffer(GoodCache):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.keys.zero_(), self.values.zero_()

    def append(self, k, v):
        super().append(k, v)
        return self.keys, self.values


@wrong("KVCache", "advances_by_one")
class PlusOne(GoodCache):
    def append(self, k, v):
        start = self.length
        keys, values = super().append(k, v)
        self.length = start + 1
        return keys, values


@wrong("KVCache", "appended_twice")
class TwoAppends(Concatenated):
    def append(self, k, v):
        super().append(k, v)
        self.k = torch.cat([self.k, k.to(self.dtype)], dim=2)
        self.v = torch.cat([self.v, v.to(self.dtype)], dim=2)
        return self.k, self.v


@wrong("KVCache", "new_tokens_missing")
class ReturnsWhatWas(GoodCache):
    def append(self, k, v):
        before = self.length
        super().append(k, v)
        return self.keys[:, :, :before], self.values[:, :, :before]


@wrong("KVCache", "last_token_only")
class OneTokenOnly(Concatenated):
    def append(self, k, v):
        super().append(k, v)
        n = k.shape[2] - 1
        if n:
            self.k = torch.cat([self.k[:, :, : -n - 1], self.k[:, :, -1:]], 2)
            self.v = torch.cat([self.v[:, :, : -n - 1], self.v[:, :, -1:]], 2)
        return self.k, self.v


@wrong("KVCache", "shared_state")
class ClassAttributes(ListOfChunks):
    chunks = []

    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self.shape, self.max_tokens, self.dtype = (batch, n_kv_heads, d_head), max_tokens, dtype


@wrong("KVCache", "shared_state")
class MutableDefault(ListOfChunks):
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32, chunks=[]):  # noqa: B006
        self.shape, self.max_tokens, self.dtype, self.chunks = (batch, n_kv_heads, d_head), max_tokens, dtype, chunks


@wrong("KVCache", "shared_state")
class ClassLevelPosition:
    position = 0

    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        self.k = torch.zeros(batch, n_kv_heads, max_tokens, d_head, dtype=dtype)
        self.v = torch.zeros(batch, n_kv_heads, max_tokens, d_head, dtype=dtype)

    def append(self, k, v):
        B, H, N, D = self.k.shape
        if k.shape != v.shape or k.shape != (B, H, k.shape[2], D):
            raise ValueError("shape")
        start, end = ClassLevelPosition.position, ClassLevelPosition.position + k.shape[2]
        if end > N:
            raise ValueError("full")
        self.k[:, :, start:end], self.v[:, :, start:end] = k, v
        ClassLevelPosition.position = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def __len__(self):
        return ClassLevelPosition.position

    @property
    def nbytes(self):
        return 2 * self.k[:, :, : len(self)].nbytes

    def reset(self):
        ClassLevelPosition.position = 0


@wrong("KVCache", "stale_after_reset")
class ResetDoesNothing(GoodCache):
    def reset(self):
        pass


@wrong("KVCache", "stale_after_reset")
class ResetsALocal(Concatenated):
    def reset(self):
        k = v = None  # noqa: F841


@wrong("KVCache", "stale_after_reset")
class ResetsKeysOnly(Concatenated):
    def reset(self):
        self.k = None


@wrong("KVCache", "stale_after_reset")
class ResetZeroes(GoodCache):
    def reset(self):
        self.keys.zero_()
        self.values.zero_()


@wrong("KVCache", "stale_after_reset")
class ThreeMistakesAtOnce(GoodCache):
    """Nothing is checked, the whole room is counted, and `reset` keeps the number of tokens."""

    def append(self, k, v):
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    @property
    def nbytes(self):
        return self.keys.nbytes + self.values.nbytes

    def reset(self):
        self.keys.zero_()
        self.values.zero_()


@wrong("KVCache", "dtype_ignored")
class AlwaysFloat32(GoodCache):
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        super().__init__(batch, n_kv_heads, max_tokens, d_head)


@wrong("KVCache", "dtype_of_input")
class NeverCast(ListOfChunks):
    def append(self, k, v):
        super().append(k, v)
        self.chunks[-1] = (k, v)
        return tuple(torch.cat(parts, dim=2) for parts in zip(*self.chunks, strict=True))


@wrong("KVCache", "len_is_room")
class LenOfTheBuffer(GoodCache):
    def __len__(self):
        return self.keys.shape[2]


@wrong("KVCache", "len_is_batch")
class LenOfTheTensor(GoodCache):
    def __len__(self):
        return len(self.keys)


@wrong("KVCache", "len_counts_appends")
class LenOfTheList(ListOfChunks):
    def __len__(self):
        return len(self.chunks)

    def append(self, k, v):
        n = sum(chunk.shape[2] for chunk, _ in self.chunks)
        if n + k.shape[2] > self.max_tokens:
            raise ValueError("full")
        return super().append(k, v)


@wrong("KVCache", "nbytes_of_room")
class BytesOfTheBuffer(GoodCache):
    @property
    def nbytes(self):
        return self.keys.numel() * self.keys.element_size() * 2


@wrong("KVCache", "nbytes_keys_only")
class BytesOfKeys(Concatenated):
    @property
    def nbytes(self):
        return self.k.nbytes if self.k is not None else 0


@wrong("KVCache", "nbytes_counts_numbers")
class NumbersOnly(Concatenated):
    @property
    def nbytes(self):
        return 0 if self.k is None else self.k.numel() + self.v.numel()


@wrong("KVCache", "nbytes_fixed_size")
class FourBytes(Concatenated):
    @property
    def nbytes(self):
        return 0 if self.k is None else 4 * (self.k.numel() + self.v.numel())


@wrong("KVCache", "nbytes_is_method")
class NotAProperty(GoodCache):
    def nbytes(self):
        return 2 * self.keys[:, :, : self.length].nbytes


@wrong("KVCache", "no_room_unnoticed")
class NoLimit(Concatenated):
    def append(self, k, v):
        self.room += k.shape[2]
        return super().append(k, v)


@wrong("KVCache", "no_room_unnoticed")
class SlicesPastTheEnd(GoodCache):
    def append(self, k, v):
        B, H, _, D = self.keys.shape
        if k.shape != v.shape or k.dim() != 4 or k.shape != (B, H, k.shape[2], D):
            raise ValueError("shape")
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


@wrong("KVCache", "oldest_dropped")
class SlidingWindow(Concatenated):
    def append(self, k, v):
        window, self.room = self.room, 10**9
        try:
            super().append(k, v)
        finally:
            self.room = window
        self.k, self.v = self.k[:, :, -window:], self.v[:, :, -window:]
        return self.k, self.v


@wrong("KVCache", "full_too_early")
class OneSlotStaysFree(GoodCache):
    def append(self, k, v):
        if self.length + k.shape[2] >= self.keys.shape[2]:
            raise ValueError("full")
        return super().append(k, v)


@wrong("KVCache", "shape_unchecked")
class ChecksRoomOnly(GoodCache):
    def append(self, k, v):
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError("full")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


@wrong("KVCache", "values_unchecked")
class ChecksKeysOnly(ListOfChunks):
    def append(self, k, v):
        super().append(k, k)
        self.chunks[-1] = (self.chunks[-1][0], v.to(self.dtype))
        return tuple(torch.cat(parts, dim=2) for parts in zip(*self.chunks, strict=True))


@wrong("KVCache", "changed_by_refusal")
class CountsFirst(GoodCache):
    def append(self, k, v):
        B, H, N, D = self.keys.shape
        if k.shape != v.shape or k.dim() != 4 or k.shape != (B, H, k.shape[2], D):
            raise ValueError("shape")
        self.length += k.shape[2]
        if self.length > N:
            raise ValueError("full")
        self.keys[:, :, self.length - k.shape[2] : self.length] = k
        self.values[:, :, self.length - k.shape[2] : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


@wrong("KVCache", "changed_by_refusal")
class StoresThenLooks(Concatenated):
    def append(self, k, v):
        room, self.room = self.room, 10**9
        super().append(k, v)
        self.room = room
        if self.k.shape[2] > self.room:
            raise ValueError(f"{self.k.shape[2]} > {self.room}")
        return self.k, self.v


@wrong("KVCache", "asserted")
class Asserts(GoodCache):
    def append(self, k, v):
        B, H, N, D = self.keys.shape
        assert k.shape == v.shape and k.dim() == 4 and k.shape == (B, H, k.shape[2], D)
        assert self.length + k.shape[2] <= N
        return super().append(k, v)


@wrong("KVCache", "earlier_results_overwritten")
class RollingBuffer(GoodCache):
    """The newest tokens are always at the end of the buffer."""

    def append(self, k, v):
        batch, n_kv_heads, room, d_head = self.keys.shape
        old, n = self.length, k.shape[2]
        if k.shape != v.shape or k.shape != (batch, n_kv_heads, n, d_head) or old + n > room:
            raise ValueError("no")
        for store, new in ((self.keys, k), (self.values, v)):
            store[:, :, room - old - n : room - n] = store[:, :, room - old :].clone()
            store[:, :, room - n :] = new
        self.length = old + n
        return self.keys[:, :, -self.length :], self.values[:, :, -self.length :]


@wrong("KVCache", "returned_none")
class NoReturn(GoodCache):
    def append(self, k, v):
        super().append(k, v)


@wrong("KVCache", "wrong_type")
class AsNumpy(GoodCache):
    def append(self, k, v):
        return tuple(np.array(x.float()) for x in super().append(k, v))


@wrong("KVCache", "refuses_everything")
class RaisesAlways(GoodCache):
    def append(self, k, v):
        raise ValueError("no")


@wrong("KVCache", "one_sequence_only")
class RoomForOneSequence(GoodCache):
    def __init__(self, batch, n_kv_heads, max_tokens, d_head, dtype=torch.float32):
        super().__init__(1, n_kv_heads, max_tokens, d_head, dtype)


@wrong("KVCache", "refuses_everything")
class ComparesWithTheBuffer(GoodCache):
    def append(self, k, v):
        if k.shape != self.keys.shape or v.shape != self.values.shape:
            raise ValueError(f"want {self.keys.shape}")
        return super().append(k, v)


# cached_causal_mask


@right("cached_causal_mask")
def tril_with_diagonal(n_new, n_total):
    return torch.ones(n_new, n_total, dtype=torch.bool).tril(diagonal=n_total - n_new)


@right("cached_causal_mask")
def last_rows(n_new, n_total):
    return torch.tril(torch.ones(n_total, n_total)).bool()[-n_new:]


@right("cached_causal_mask")
def triu_the_other_way(n_new, n_total):
    return ~torch.triu(torch.ones(n_new, n_total, dtype=torch.bool), n_total - n_new + 1)


@right("cached_causal_mask")
def positions(n_new: int, n_total: int) -> torch.Tensor:
    queries = torch.arange(n_total - n_new, n_total).unsqueeze(1)
    return torch.arange(n_total).unsqueeze(0) <= queries


@right("cached_causal_mask")
def loops(n_new, n_total):
    keep = torch.zeros(n_new, n_total, dtype=torch.bool)
    for i in range(n_new):
        for j in range(n_total):
            if j <= n_total - n_new + i:
                keep[i, j] = True
    return keep


@right("cached_causal_mask")
def past_and_present(n_new, n_total):
    past = torch.ones(n_new, n_total - n_new, dtype=torch.bool)
    present = torch.tril(torch.ones(n_new, n_new, dtype=torch.bool))
    return torch.cat([past, present], dim=1)


@right("cached_causal_mask")
def from_numpy(n_new, n_total):
    return torch.from_numpy(np.tri(n_new, n_total, n_total - n_new, dtype=bool))


@right("cached_causal_mask")
def from_lists(n_new, n_total):
    return torch.tensor([[key < n_total - n_new + 1 + row for key in range(n_total)] for row in range(n_new)])


@wrong("cached_causal_mask", "top_left")
def plain_tril(n_new, n_total):
    return torch.tril(torch.ones(n_new, n_total, dtype=torch.bool))


@wrong("cached_causal_mask", "top_left")
def compares_from_zero(n_new, n_total):
    return torch.arange(n_total)[None] <= torch.arange(n_new)[:, None]


@wrong("cached_causal_mask", "inverted_mask")
def true_means_hidden(n_new, n_total):
    return torch.triu(torch.ones(n_new, n_total, dtype=torch.bool), diagonal=n_total - n_new + 1)


@wrong("cached_causal_mask", "diagonal_excluded")
def strictly_before(n_new, n_total):
    return torch.arange(n_total) < torch.arange(n_total - n_new, n_total)[:, None]


@wrong("cached_causal_mask", "sees_the_next")
def off_by_one(n_new, n_total):
    return torch.ones(n_new, n_total, dtype=torch.bool).tril(n_total - n_new + 1)


@wrong("cached_causal_mask", "no_causality")
def everything(n_new, n_total):
    return torch.full((n_new, n_total), True)


@wrong("cached_causal_mask", "square_mask")
def whole_square(n_new, n_total):
    return torch.tril(torch.ones(n_total, n_total)).bool()


@wrong("cached_causal_mask", "square_mask")
def new_square(n_new, n_total):
    return torch.tril(torch.ones(n_new, n_new)).bool()


@wrong("cached_causal_mask", "transposed")
def rows_and_columns(n_new, n_total):
    return tril_with_diagonal(n_new, n_total).mT


@wrong("cached_causal_mask", "not_boolean")
def ones_and_zeros(n_new, n_total):
    return torch.tril(torch.ones(n_new, n_total), diagonal=n_total - n_new)


@wrong("cached_causal_mask", "not_boolean")
def whole_numbers(n_new, n_total):
    return tril_with_diagonal(n_new, n_total).long()


@wrong("cached_causal_mask", "wrong_type")
def numpy_mask(n_new, n_total):
    return np.tri(n_new, n_total, n_total - n_new, dtype=bool)


@wrong("cached_causal_mask", "past_hidden")
def only_the_new(n_new, n_total):
    keep = torch.zeros(n_new, n_total, dtype=torch.bool)
    keep[:, -n_new:] = torch.tril(torch.ones(n_new, n_new)).bool()
    return keep


@wrong("cached_causal_mask", "wrong_shape")
def with_more_axes(n_new, n_total):
    return tril_with_diagonal(n_new, n_total)[None, None]


@wrong("cached_causal_mask", "library_call")
def from_torch(n_new, n_total):
    return torch.nn.attention.bias.causal_lower_right(n_new, n_total)._materialize()


@wrong("cached_causal_mask")
def only_one_token(n_new, n_total):
    return torch.ones(1, n_total, dtype=torch.bool)


# attend_with_cache


def heads_of(mha, x):
    B, n, _ = x.shape
    return x.view(B, n, mha.n_heads, mha.d_head).transpose(1, 2)


@right("attend_with_cache")
def step_by_step(mha, x_new, cache):
    q, k, v = heads_of(mha, mha.w_q(x_new)), heads_of(mha, mha.w_k(x_new)), heads_of(mha, mha.w_v(x_new))
    k_all, v_all = cache.append(k, v)
    scores = q @ k_all.transpose(-2, -1) / math.sqrt(mha.d_head)
    keep = tril_with_diagonal(q.shape[2], k_all.shape[2])
    weights = torch.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1)
    out = (weights @ v_all).transpose(1, 2).contiguous().view(x_new.shape[0], x_new.shape[1], -1)
    return mha.w_o(out)


@right("attend_with_cache")
def one_token_at_a_time(mha, x_new, cache):
    """No mask at all: the future is not there yet."""
    outputs = []
    for t in range(x_new.shape[1]):
        x = x_new[:, t : t + 1]
        keys, values = cache.append(heads_of(mha, mha.w_k(x)), heads_of(mha, mha.w_v(x)))
        scores = torch.einsum("bhqd,bhkd->bhqk", heads_of(mha, mha.w_q(x)), keys) * mha.d_head**-0.5
        mixed = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(dim=-1), values)
        outputs.append(mha.w_o(mixed.flatten(2)))
    return torch.cat(outputs, dim=1)


@right("attend_with_cache")
def einsum_and_large_fill(mha, x_new, cache):
    split = functools.partial(torch.unflatten, dim=-1, sizes=(mha.n_heads, mha.d_head))
    q, k, v = (split(layer(x_new)) for layer in (mha.w_q, mha.w_k, mha.w_v))  # (B, n, H, d)
    n_past = len(cache)
    keys, values = cache.append(k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3))
    scores = torch.einsum("bqhd,bhkd->bhqk", q, keys) / np.sqrt(mha.d_head)
    rows = torch.arange(x_new.size(1))[:, None] + n_past
    scores = torch.where(torch.arange(keys.size(2)) > rows, -1e30, scores)
    out = torch.einsum("bhqk,bhkd->bqhd", F.softmax(scores, dim=-1), values)
    return mha.w_o(out.reshape(*x_new.shape[:2], -1))


@right("attend_with_cache")
def heads_in_a_loop(mha, x_new, cache):
    B, n, _ = x_new.shape
    k = torch.stack(mha.w_k(x_new).split(mha.d_head, dim=-1), dim=1)
    v = torch.stack(mha.w_v(x_new).chunk(mha.n_heads, dim=-1), dim=1)
    k, v = cache.append(k, v)
    q = mha.w_q(x_new)
    heads = []
    for h in range(mha.n_heads):
        mine = q[..., h * mha.d_head : (h + 1) * mha.d_head]
        scores = torch.matmul(mine, k[:, h].transpose(1, 2)) / mha.d_head**0.5
        bias = torch.full((n, len(cache)), -math.inf).triu(len(cache) - n + 1)
        heads.append((scores + bias).softmax(-1) @ v[:, h])
    return mha.w_o(torch.cat(heads, dim=-1))


@right("attend_with_cache")
def raw_weights(mha, x_new, cache):
    """The weights themselves, a softmax by hand, and the query scaled instead of the scores."""
    B, n, d_model = x_new.shape
    H, d = mha.n_heads, mha.d_head
    q, k, v = ((x_new @ w.weight.T).reshape(B, n, H, d).movedim(2, 1) for w in (mha.w_q, mha.w_k, mha.w_v))
    keys, values = cache.append(k, v)
    scores = (q / math.sqrt(d)).matmul(keys.mT)
    total = keys.shape[-2]
    scores = scores.masked_fill(torch.ones(n, total).triu(total - n + 1).bool(), -torch.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (
        torch.matmul(powers / powers.sum(-1, keepdim=True), values).permute(0, 2, 1, 3).flatten(-2) @ mha.w_o.weight.mT
    )


@right("attend_with_cache")
def fused_projection(mha, x_new, cache):
    fused = torch.cat([mha.w_q.weight, mha.w_k.weight, mha.w_v.weight])
    q, k, v = F.linear(x_new, fused).unflatten(-1, (3, mha.n_heads, mha.d_head)).permute(2, 0, 3, 1, 4)
    k_all, v_all = cache.append(k, v)
    keep = last_rows(q.shape[-2], k_all.shape[-2])
    scores = (q @ k_all.mT).div(mha.d_head**0.5).where(keep, torch.tensor(-torch.inf, dtype=q.dtype))
    return mha.w_o((scores.softmax(-1) @ v_all).transpose(1, 2).flatten(2))


@right("attend_with_cache")
def no_gradients(mha, x_new, cache):
    with torch.no_grad():
        return step_by_step(mha, x_new, cache)


@wrong("attend_with_cache", "no_causality")
def no_mask(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    out = (q @ k.mT / mha.d_head**0.5).softmax(-1) @ v
    return mha.w_o(out.transpose(1, 2).flatten(2))


def attend_with(keep_of, mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    n_past = len(cache)
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~keep_of(q.shape[2], n_past, k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "no_causality")
def length_read_after_append(mha, x_new, cache):
    def keep_of(n_new, n_past, n_total):
        return torch.arange(n_total) <= torch.arange(n_new)[:, None] + len(cache)

    return attend_with(keep_of, mha, x_new, cache)


@wrong("attend_with_cache", "top_left")
def torch_top_left(mha, x_new, cache):
    return attend_with(lambda n_new, n_past, n_total: plain_tril(n_new, n_total), mha, x_new, cache)


@wrong("attend_with_cache", "no_causality")
def causal_only_at_first(mha, x_new, cache):
    def keep_of(n_new, n_past, n_total):
        return new_square(n_new, n_new) if n_past == 0 else torch.ones(n_new, n_total, dtype=torch.bool)

    return attend_with(keep_of, mha, x_new, cache)


@wrong("attend_with_cache", "tokens_before_heads")
def axes_not_exchanged(mha, x_new, cache):
    B, n, _ = x_new.shape
    q, k, v = (w(x_new).view(B, n, mha.n_heads, mha.d_head) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~last_rows(q.shape[2], k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "square_mask")
def square_of_new(mha, x_new, cache):
    return attend_with(lambda n_new, n_past, n_total: new_square(n_new, n_total), mha, x_new, cache)


@wrong("attend_with_cache", "square_mask")
def square_of_all(mha, x_new, cache):
    return attend_with(lambda n_new, n_past, n_total: whole_square(n_new, n_total), mha, x_new, cache)


@wrong("attend_with_cache", "cache_ignored")
def mask_for_the_new_only(mha, x_new, cache):
    return attend_with(lambda n_new, n_past, n_total: only_the_new(n_new, n_total), mha, x_new, cache)


@wrong("attend_with_cache", "cache_ignored")
def appends_and_forgets(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~new_square(q.shape[2], 0), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "cache_ignored")
def calls_the_layer(mha, x_new, cache):
    output, _ = mha.forward(x_new)
    return output


@wrong("attend_with_cache", "appended_twice")
def asks_twice(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    keys = cache.append(k, v)[0]
    values = cache.append(k, v)[1]
    scores = q @ keys.mT / mha.d_head**0.5
    scores = scores.masked_fill(~tril_with_diagonal(q.shape[2], keys.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "cache_reset")
def starts_again(mha, x_new, cache):
    cache.reset()
    return step_by_step(mha, x_new, cache)


@wrong("attend_with_cache", "no_scale")
def unscaled(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT).masked_fill(~last_rows(q.shape[2], k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "scaled_by_d_model")
def width_of_the_model(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / math.sqrt(x_new.shape[-1])).masked_fill(~last_rows(q.shape[2], k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "scaled_by_d_head")
def no_root(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head).masked_fill(~last_rows(q.shape[2], k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "no_w_o")
def without_the_desk(mha, x_new, cache):
    class Layer:
        w_q, w_k, w_v, n_heads, d_head = mha.w_q, mha.w_k, mha.w_v, mha.n_heads, mha.d_head

        @staticmethod
        def w_o(x):
            return x

    return step_by_step(Layer, x_new, cache)


@wrong("attend_with_cache", "returns_pair")
def output_and_weights(mha, x_new, cache):
    return step_by_step(mha, x_new, cache), None


@wrong("attend_with_cache", "last_token_only")
def only_the_last(mha, x_new, cache):
    return step_by_step(mha, x_new, cache)[:, [-1]]


@wrong("attend_with_cache", "view_without_transpose")
def in_one_go(mha, x_new, cache):
    B, n, _ = x_new.shape
    q, k, v = (w(x_new).view(B, mha.n_heads, n, mha.d_head) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~last_rows(n, k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "merge_without_transpose")
def merged_as_it_lies(mha, x_new, cache):
    B, n, _ = x_new.shape
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~last_rows(n, k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).reshape(B, n, mha.n_heads * mha.d_head))


@wrong("attend_with_cache", "over_queries")
def columns_sum_to_one(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~last_rows(q.shape[2], k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(dim=2) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "values_as_keys")
def keys_mixed(mha, x_new, cache):
    q, k = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k))
    k, v = cache.append(k, k)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~last_rows(q.shape[2], k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@wrong("attend_with_cache", "projected_twice")
def layer_on_cached_keys(mha, x_new, cache):
    k, v = cache.append(heads_of(mha, mha.w_k(x_new)), heads_of(mha, mha.w_v(x_new)))
    keep = last_rows(x_new.shape[1], k.shape[2])
    return mha(x_new, k.transpose(1, 2).flatten(2), v.transpose(1, 2).flatten(2), keep)[0]


@wrong("attend_with_cache", "width_taken_for_granted")
def reshaped_to_d_model(mha, x_new, cache):
    B, n, d_model = x_new.shape
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    scores = (q @ k.mT / mha.d_head**0.5).masked_fill(~last_rows(n, k.shape[2]), -torch.inf)
    return mha.w_o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, n, d_model))


@wrong("attend_with_cache", "library_call")
def by_torch(mha, x_new, cache):
    q, k, v = (heads_of(mha, w(x_new)) for w in (mha.w_q, mha.w_k, mha.w_v))
    k, v = cache.append(k, v)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=last_rows(q.shape[2], k.shape[2]))
    return mha.w_o(out.transpose(1, 2).flatten(2))


@wrong("attend_with_cache")
def caches_on_the_layer(mha, x_new, cache):
    """Keeps the tokens on the layer: two texts get mixed up."""
    mha.seen = torch.cat([mha.seen, x_new], dim=1) if hasattr(mha, "seen") else x_new
    n = mha.seen.shape[1]
    return mha(mha.seen, keep=last_rows(n, n))[0][:, -x_new.shape[1] :]


@wrong("attend_with_cache")
def in_half_precision(mha, x_new, cache):
    return step_by_step(mha, x_new, cache).half()


@wrong("attend_with_cache")
def reads_what_is_inside(mha, x_new, cache):
    step_by_step(mha, x_new, cache)
    return cache.keys[:, :, : cache.length]


# generate


@right("generate")
@torch.no_grad()
def good_generate(model, prompt, n_new, use_cache=True):
    if n_new < 0:
        raise ValueError(f"n_new must be 0 or more, got {n_new}")
    if prompt.shape[1] == 0:
        raise ValueError("the prompt is empty")
    caches = model.new_caches(prompt.shape[0], prompt.shape[1] + n_new) if use_cache else None
    ids, new = prompt, prompt
    for _ in range(n_new):
        logits = model(new if use_cache else ids, caches)
        new = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids


@right("generate")
def prefill_then_decode(model, prompt, n_new, use_cache=True):
    """The last token is fed as well, and one more slot than needed is made."""
    B, T = prompt.size()
    if T < 1 or n_new < 0:
        raise ValueError((T, n_new))
    with torch.inference_mode():
        out = torch.empty(B, T + n_new, dtype=prompt.dtype)
        out[:, :T] = prompt
        if not use_cache:
            for t in range(T, T + n_new):
                out[:, t] = torch.argmax(model(out[:, :t])[:, -1, :], dim=-1)
            return out
        caches = model.new_caches(batch=B, max_tokens=T + n_new + 1)
        logits = model(prompt, caches=caches)
        for t in range(T, T + n_new):
            out[:, t] = logits[:, -1].max(dim=-1).indices
            logits = model(out[:, t : t + 1], caches=caches)
        return out


@right("generate")
def fed_token_by_token(model, prompt, n_new, use_cache=True):
    if prompt.numel() == 0:
        raise ValueError("empty")
    if n_new < 0:
        raise ValueError("negative")
    was, _ = torch.is_grad_enabled(), torch.set_grad_enabled(False)
    try:
        columns = list(prompt.split(1, dim=1))
        caches = model.new_caches(len(prompt), len(columns) + n_new) if use_cache else None
        if use_cache:
            for column in columns[:-1]:
                model(column, caches)
        for _ in range(n_new):
            logits = model(columns[-1], caches) if use_cache else model(torch.cat(columns, 1))
            columns.append(torch.softmax(logits[:, -1:], -1).topk(1).indices[..., 0])
        return torch.cat(columns, dim=1)
    finally:
        torch.set_grad_enabled(was)


@right("generate")
def prefill_in_two(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[-1] == 0:
        raise ValueError
    if n_new == 0:
        return prompt.clone()
    with torch.no_grad():
        if not use_cache:
            nxt = model(prompt, caches=None)[:, -1].argmax(-1)
            return prefill_in_two(model, torch.column_stack([prompt, nxt]), n_new - 1, False)
        caches = model.new_caches(len(prompt), 2 * (prompt.shape[1] + n_new))
        half = prompt.shape[1] // 2
        if half:
            model(prompt[:, :half], caches)
        token, rows = prompt[:, half:], [row.tolist() for row in prompt]
        for _ in range(n_new):
            token = model(token, caches)[:, -1].argmax(-1)[:, None]
            for row, number in zip(rows, token[:, 0].tolist(), strict=True):
                row.append(number)
        return torch.tensor(rows)


@wrong("generate", "whole_text_fed")
@torch.no_grad()
def new_caches_each_time(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    ids = prompt
    for _ in range(n_new):
        caches = model.new_caches(len(ids), ids.shape[1]) if use_cache else None
        ids = torch.cat([ids, model(ids, caches)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@wrong("generate", "whole_text_fed")
@torch.no_grad()
def everything_into_the_same_caches(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    ids, caches = prompt, model.new_caches(len(prompt), 10_000) if use_cache else None
    for _ in range(n_new):
        ids = torch.cat([ids, model(ids, caches)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@wrong("generate", "cache_never_used")
def never_cached(model, prompt, n_new, use_cache=True):
    return good_generate(model, prompt, n_new, use_cache=False)


@wrong("generate", "flag_ignored")
def always_cached(model, prompt, n_new, use_cache=True):
    return good_generate(model, prompt, n_new)


@wrong("generate", "prompt_not_fed")
@torch.no_grad()
def last_token_only(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    if not use_cache:
        return good_generate(model, prompt, n_new, False)
    ids, caches = prompt, model.new_caches(len(prompt), prompt.shape[1] + n_new)
    for _ in range(n_new):
        ids = torch.cat([ids, model(ids[:, -1:], caches)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@wrong("generate", "last_prompt_token_twice")
@torch.no_grad()
def prefill_thrown_away(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    if not use_cache:
        return good_generate(model, prompt, n_new, False)
    ids, caches = prompt, model.new_caches(len(prompt), prompt.shape[1] + n_new + 5)
    _ = model(prompt, caches)
    for _ in range(n_new):
        ids = torch.cat([ids, model(ids[:, -1:], caches)[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


@wrong("generate", "new_tokens_only")
def without_the_prompt(model, prompt, n_new, use_cache=True):
    return good_generate(model, prompt, n_new, use_cache)[:, prompt.shape[1] :]


@wrong("generate", "gradients_kept")
def with_gradients(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    ids = new = prompt
    caches = model.new_caches(len(prompt), prompt.shape[1] + n_new) if use_cache else None
    for _ in range(n_new):
        logits = model(new if use_cache else ids, caches).detach()
        new = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids


@wrong("generate", "caches_shared")
@torch.no_grad()
def caches_as_default(model, prompt, n_new, use_cache=True, caches=[]):  # noqa: B006
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    if use_cache and not caches:
        caches.extend(model.new_caches(len(prompt), 1000))
    ids = new = prompt
    for _ in range(n_new):
        new = model(new if use_cache else ids, caches if use_cache else None)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids


@wrong("generate", "caches_shared")
@torch.no_grad()
def caches_on_the_function(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    if not hasattr(caches_on_the_function, "caches"):
        caches_on_the_function.caches = model.new_caches(len(prompt), 1000)
    ids = new = prompt
    for _ in range(n_new):
        caches = caches_on_the_function.caches if use_cache else None
        new = model(new if use_cache else ids, caches)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids


@wrong("generate", "caches_too_small")
@torch.no_grad()
def room_for_new_only(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    ids = new = prompt
    caches = model.new_caches(len(prompt), n_new) if use_cache else None
    for _ in range(n_new):
        new = model(new if use_cache else ids, caches)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids


@wrong("generate", "one_text_only")
@torch.no_grad()
def with_item(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    ids = new = prompt
    caches = model.new_caches(len(prompt), n_new + prompt.shape[1]) if use_cache else None
    for _ in range(n_new):
        number = model(new if use_cache else ids, caches)[:, -1].argmax(dim=-1).item()
        new = torch.tensor([[number]])
        ids = torch.cat([ids, new], dim=1)
    return ids


@wrong("generate", "same_for_all_texts")
@torch.no_grad()
def first_row_decides(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    ids = new = prompt
    caches = model.new_caches(len(prompt), n_new + prompt.shape[1]) if use_cache else None
    for _ in range(n_new):
        number = int(model(new if use_cache else ids, caches)[0, -1].argmax())
        new = torch.full((len(prompt), 1), number)
        ids = torch.cat([ids, new], dim=1)
    return ids


@wrong("generate", "zero_gives_one")
@torch.no_grad()
def at_least_one(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    return good_generate(model, prompt, max(n_new, 1), use_cache)


@wrong("generate", "empty_prompt_accepted")
def empty_is_fine(model, prompt, n_new, use_cache=True):
    if n_new < 0:
        raise ValueError
    if prompt.shape[1] == 0:
        with torch.no_grad():
            model(prompt)[:, -1]
    return good_generate(model, prompt, n_new, use_cache)


@wrong("generate", "negative_accepted")
def negative_is_zero(model, prompt, n_new, use_cache=True):
    return good_generate(model, prompt, max(n_new, 0), use_cache)


@wrong("generate", "asserted")
def asserts(model, prompt, n_new, use_cache=True):
    assert n_new >= 0 and prompt.shape[1] > 0
    return good_generate(model, prompt, n_new, use_cache)


@wrong("generate", "changes_input")
def writes_into_the_prompt(model, prompt, n_new, use_cache=True):
    ids = good_generate(model, prompt, n_new, use_cache)
    prompt[:, -1] = ids[:, -1]
    return ids


@wrong("generate")
def samples(model, prompt, n_new, use_cache=True):
    if n_new < 0 or prompt.shape[1] == 0:
        raise ValueError
    with torch.no_grad():
        ids = new = prompt
        caches = model.new_caches(len(prompt), n_new + prompt.shape[1]) if use_cache else None
        for _ in range(n_new):
            shares = (model(new if use_cache else ids, caches)[:, -1] / 10).softmax(-1)
            new = torch.multinomial(shares, 1)
            ids = torch.cat([ids, new], dim=1)
        return ids


@wrong("generate", "wrong_type")
def as_lists(model, prompt, n_new, use_cache=True):
    return good_generate(model, prompt, n_new, use_cache).tolist()


@wrong("generate", "wrong_dtype")
def as_float(model, prompt, n_new, use_cache=True):
    return good_generate(model, prompt, n_new, use_cache).float()


# tokens_projected


@right("tokens_projected")
def closed_form(n_tokens, use_cache):
    return n_tokens if use_cache else n_tokens * (n_tokens + 1) // 2


@right("tokens_projected")
def with_a_loop(n_tokens, use_cache):
    total = 0
    for step in range(n_tokens):
        total += 1 if use_cache else step + 1
    return total


@right("tokens_projected")
def as_a_float(n, use_cache):
    return n if use_cache else n * (n + 1) / 2


@right("tokens_projected")
def by_numpy(n_tokens, use_cache):
    return np.arange(n_tokens + 1).sum() if not use_cache else np.ones(n_tokens, dtype=int).sum()


@right("tokens_projected")
def by_comb(n_tokens: int, use_cache: bool) -> int:
    return math.comb(n_tokens + 1, 1 if use_cache else 2) - use_cache


@wrong("tokens_projected", "squared")
def square(n_tokens, use_cache):
    return n_tokens if use_cache else n_tokens**2


@wrong("tokens_projected", "own_token_left_out")
def sum_of_range(n_tokens, use_cache):
    return n_tokens if use_cache else sum(range(n_tokens))


@wrong("tokens_projected", "flag_inverted")
def exchanged(n_tokens, use_cache):
    return closed_form(n_tokens, not use_cache)


@wrong("tokens_projected", "one_step_only")
def one_step(n_tokens, use_cache):
    return 1 if use_cache else n_tokens


@wrong("tokens_projected", "three_projections")
def q_k_and_v(n_tokens, use_cache):
    return 3 * closed_form(n_tokens, use_cache)


@wrong("tokens_projected", "returned_none")
def forgot_to_return(n_tokens, use_cache):
    closed_form(n_tokens, use_cache)


@wrong("tokens_projected")
def powers(n_tokens, use_cache):
    return 2**n_tokens


# kv_cache_bytes


@right("kv_cache_bytes")
def product(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return 2 * n_layers * n_kv_heads * d_head * n_tokens * batch * bytes_per_value


@right("kv_cache_bytes")
def layer_by_layer(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    keys = batch * n_kv_heads * n_tokens * d_head * bytes_per_value
    return sum(keys + keys for _ in range(n_layers))


@right("kv_cache_bytes")
def other_names(layers: int, heads: int, d: int, n: int, batch: int = 1, bytes_per_value: int = 2) -> float:
    return float(np.prod([2.0, layers, heads, d, n, batch, bytes_per_value]))


@wrong("kv_cache_bytes", "keys_only")
def one_tensor(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return n_layers * n_kv_heads * d_head * n_tokens * batch * bytes_per_value


@wrong("kv_cache_bytes", "batch_ignored")
def one_text(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return product(n_layers, n_kv_heads, d_head, n_tokens, 1, bytes_per_value)


@wrong("kv_cache_bytes", "size_ignored")
def always_two_bytes(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return 4 * n_layers * n_kv_heads * d_head * n_tokens * batch


@wrong("kv_cache_bytes", "numbers_not_bytes")
def how_many_numbers(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return 2 * n_layers * n_kv_heads * d_head * n_tokens * batch


@wrong("kv_cache_bytes", "other_unit")
def in_gigabytes(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return product(n_layers, n_kv_heads, d_head, n_tokens, batch, bytes_per_value) / 10**9


@wrong("kv_cache_bytes", "other_unit")
def in_gibibytes(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return product(n_layers, n_kv_heads, d_head, n_tokens, batch, bytes_per_value) / 1024**3


@wrong("kv_cache_bytes", "layers_forgotten")
def one_layer(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=2):
    return product(1, n_kv_heads, d_head, n_tokens, batch, bytes_per_value)


@wrong("kv_cache_bytes", "other_default")
def four_by_default(n_layers, n_kv_heads, d_head, n_tokens, batch=1, bytes_per_value=4):
    return product(n_layers, n_kv_heads, d_head, n_tokens, batch, bytes_per_value)


@wrong("kv_cache_bytes", "wrong_signature")
def no_defaults(n_layers, n_kv_heads, d_head, n_tokens):
    return product(n_layers, n_kv_heads, d_head, n_tokens)
