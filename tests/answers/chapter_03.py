"""Answers to the exercises of chapter 3."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from answers import right, wrong

# What the notebook has from chapters 1 and 2.


def softmax(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis, keepdims=True)


def attention(Q, K, V, keep=None):
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    if keep is not None:
        keep = np.broadcast_to(keep, scores.shape)
        scores = np.where(keep, scores, -np.inf)
        scores = np.where(keep.any(-1, keepdims=True), scores, 0.0)
    weights = softmax(scores)
    if keep is not None:
        weights = np.where(keep, weights, 0.0)
    return weights @ V, weights


# split_heads


@right("split_heads")
def split_good(x, n_heads):
    *lead, n_tokens, d_model = x.shape
    if n_heads <= 0 or d_model % n_heads != 0:
        raise ValueError(f"{n_heads} heads do not divide {d_model}")
    return x.reshape(*lead, n_tokens, n_heads, d_model // n_heads).swapaxes(-3, -2)


@right("split_heads")
def split_and_stack(x, n_heads):
    if n_heads < 1 or x.shape[-1] / n_heads != x.shape[-1] // n_heads:
        raise ValueError
    return np.stack(np.split(x, n_heads, axis=-1), axis=-3)


@right("split_heads")
def split_into_preallocated(x, n_heads):
    if n_heads < 1:
        raise ValueError("at least one head")
    d_k, rest = divmod(x.shape[-1], n_heads)
    if rest:
        raise ValueError(f"{rest} numbers left over")
    out = np.empty(x.shape[:-2] + (n_heads, x.shape[-2], d_k))
    for h in range(n_heads):
        out[..., h, :, :] = x[..., h * d_k : (h + 1) * d_k]
    return out


@right("split_heads")
def split_moveaxis(x: np.ndarray, n_heads: int) -> np.ndarray:
    if not 0 < n_heads <= x.shape[-1]:
        raise ValueError("n_heads")
    return np.moveaxis(np.reshape(x, x.shape[:-1] + (n_heads, -1)), -2, -3)


@right("split_heads")
def split_by_fancy_index(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    sliders = np.arange(x.shape[-1]).reshape(n_heads, -1)
    return np.ascontiguousarray(np.moveaxis(x[..., sliders], -2, -3))


@right("split_heads")
def split_einsum(x, n_heads):
    if n_heads <= 0:
        raise ValueError
    cut = x.reshape(*x.shape[:-1], n_heads, -1)
    return np.einsum("...thd->...htd", cut)


@right("split_heads")
def split_flat_batch(x, n_heads):
    d_model = x.shape[-1]
    if n_heads <= 0 or d_model % n_heads:
        raise ValueError
    lead = x.shape[:-2]
    flat = x.reshape(-1, x.shape[-2], d_model)
    heads = flat.reshape(len(flat), x.shape[-2], n_heads, d_model // n_heads).transpose(0, 2, 1, 3)
    return heads.reshape(*lead, n_heads, x.shape[-2], d_model // n_heads)


@wrong("split_heads", "split_without_transpose")
def split_straight(x, n_heads):
    *lead, n_tokens, d_model = x.shape
    if n_heads <= 0 or d_model % n_heads:
        raise ValueError
    return np.reshape(x, (*lead, n_heads, n_tokens, d_model // n_heads))


@wrong("split_heads", "heads_after_tokens")
def split_no_swap(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    return np.stack(np.split(x, n_heads, -1), axis=-2)


@wrong("split_heads", "heads_interleaved")
def split_d_k_first(x, n_heads):
    *lead, n_tokens, d_model = x.shape
    if n_heads <= 0 or d_model % n_heads:
        raise ValueError
    cut = x.reshape(*lead, n_tokens, d_model // n_heads, n_heads)
    return np.swapaxes(np.swapaxes(cut, -1, -2), -2, -3)


@wrong("split_heads", "head_axis_first")
def split_stack_in_front(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    return np.array(np.split(x, n_heads, axis=-1))


@wrong("split_heads", "token_and_slider_swapped")
def split_for_keys(x, n_heads):
    return split_good(x, n_heads).swapaxes(-1, -2)


@wrong("split_heads", "splits_tokens")
def split_the_rows(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    *lead, n_tokens, d_model = x.shape
    return np.stack(np.array_split(x, n_heads, axis=len(lead)), axis=len(lead))


@wrong("split_heads", "whole_vector_for_each_head")
def split_copies(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    return np.repeat(x[..., None, :, :], n_heads, axis=-3)


@wrong("split_heads", "list_of_heads")
def split_list(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    d_k = x.shape[-1] // n_heads
    return [x[..., i : i + d_k] for i in range(0, x.shape[-1], d_k)]


@wrong("split_heads", "truncated_silently")
def split_unchecked(x, n_heads):
    size = int(x.shape[-1] / n_heads)
    return np.stack([x[..., h * size : h * size + size] for h in range(n_heads)], -3)


@wrong("split_heads", "zero_heads")
def split_remainder_only(x, n_heads):
    if x.shape[-1] % n_heads != 0:
        raise ValueError(f"{x.shape[-1]} is not divisible by {n_heads}")
    return x.reshape(*x.shape[:-1], n_heads, -1).swapaxes(-2, -3)


@wrong("split_heads", "fixed_rank")
def split_batch_only(x, n_heads):
    B, T, d_model = x.shape
    if n_heads <= 0 or d_model % n_heads:
        raise ValueError
    return x.reshape(B, T, n_heads, d_model // n_heads).transpose(0, 2, 1, 3)


@wrong("split_heads", "fixed_rank")
def split_no_batch(x, n_heads):
    T, d_model = x.shape
    if n_heads <= 0 or d_model % n_heads:
        raise ValueError
    return x.reshape(T, n_heads, d_model // n_heads).transpose(1, 0, 2)


@wrong("split_heads", "asserted")
def split_assert(x, n_heads):
    assert n_heads > 0 and x.shape[-1] % n_heads == 0
    return split_good(x, n_heads)


@wrong("split_heads", "changes_input")
def split_in_place(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    x *= 1.5
    return split_good(x / 1.5, n_heads)


@wrong("split_heads", "returned_none")
def split_no_return(x, n_heads):
    split_good(x, n_heads)


@wrong("split_heads")
def split_always_raises(x, n_heads):
    raise ValueError


@wrong("split_heads")
def split_last_head_doubled(x, n_heads):
    heads = split_good(x, n_heads).copy()
    if n_heads > 1:
        heads[..., -1, :, :] = heads[..., -2, :, :]
    return heads


# combine_heads


@right("combine_heads")
def combine_good(x):
    x = np.swapaxes(x, -3, -2)
    return x.reshape(*x.shape[:-2], -1)


@right("combine_heads")
def combine_concatenate(x):
    return np.concatenate(list(np.moveaxis(x, -3, 0)), axis=-1)


@right("combine_heads")
def combine_preallocated(x):
    *lead, n_heads, n_tokens, d_k = x.shape
    out = np.zeros((*lead, n_tokens, n_heads * d_k))
    for h in range(n_heads):
        out[..., h * d_k : (h + 1) * d_k] = x[..., h, :, :]
    return out


@right("combine_heads")
def combine_einsum(x):
    tokens_first = np.einsum("...htd->...thd", x)
    return np.ascontiguousarray(tokens_first).reshape(*tokens_first.shape[:-2], x.shape[-3] * x.shape[-1])


@right("combine_heads")
def combine_hstack(x):
    if x.ndim == 3:
        return np.hstack(x)
    return np.stack([combine_hstack(part) for part in x])


@wrong("combine_heads", "combine_without_transpose")
def combine_straight(x):
    *lead, H, T, d = x.shape
    return np.reshape(x, (*lead, T, H * d))


@wrong("combine_heads", "heads_interleaved")
def combine_stack_last(x):
    stacked = np.stack([x[..., h, :, :] for h in range(x.shape[-3])], axis=-1)
    return stacked.reshape(*stacked.shape[:-2], -1)


@wrong("combine_heads", "heads_averaged")
def combine_mean(x):
    return np.mean(x, axis=-3)


@wrong("combine_heads", "heads_summed")
def combine_sum(x):
    return np.einsum("...htd->...td", x)


@wrong("combine_heads", "joined_along_tokens")
def combine_below(x):
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


@wrong("combine_heads", "not_joined")
def combine_swap_only(x):
    return np.moveaxis(x, -3, -2)


@wrong("combine_heads", "tokens_flattened")
def combine_flat(x):
    x = x.swapaxes(-2, -3)
    return x.reshape(x.shape[:-3] + (-1,))


@wrong("combine_heads", "fixed_rank")
def combine_batch_only(x):
    B, H, T, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * d)


@wrong("combine_heads")
def combine_reversed(x):
    return combine_good(x[..., ::-1, :, :])


# MultiHeadAttentionNumPy


class NumPyBase:
    def __init__(self, d_model, n_heads, seed=0):
        if n_heads <= 0 or d_model % n_heads:
            raise ValueError(f"{d_model} / {n_heads}")
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        rng = np.random.default_rng(seed)
        self.W_Q, self.W_K, self.W_V, self.W_O = rng.standard_normal((4, d_model, d_model)) / np.sqrt(d_model)


@right("MultiHeadAttentionNumPy")
class NumPyGood(NumPyBase):
    def forward(self, X, keep=None):
        Q, K, V = (split_good(X @ W, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V))
        heads, weights = attention(Q, K, V, keep)
        return combine_good(heads) @ self.W_O, weights


@right("MultiHeadAttentionNumPy")
class NumPyLoops:
    def __init__(self, d_model, n_heads, seed=0):
        if n_heads < 1:
            raise ValueError("n_heads")
        if d_model % n_heads != 0:
            raise ValueError("divide")
        self.d_model, self.n_heads = d_model, n_heads
        self.d_k = d_model // n_heads
        np_random = np.random.RandomState(seed)
        self.W_Q = np_random.randn(d_model, d_model) * 0.1
        self.W_K = np_random.randn(d_model, d_model) * 0.1
        self.W_V = np_random.randn(d_model, d_model) * 0.1
        self.W_O = np_random.randn(d_model, d_model) * 0.1

    def forward(self, X, keep=None):
        outs, maps = [], []
        for h in range(self.n_heads):
            cols = slice(h * self.d_k, (h + 1) * self.d_k)
            mask = None
            if keep is not None:
                mask = keep[..., h if keep.shape[-3] > 1 else 0, :, :] if keep.ndim > 2 else keep
            out, w = attention(X @ self.W_Q[:, cols], X @ self.W_K[:, cols], X @ self.W_V[:, cols], mask)
            outs.append(out)
            maps.append(w)
        return np.concatenate(outs, axis=-1) @ self.W_O, np.stack(maps, axis=-3)


@right("MultiHeadAttentionNumPy")
class NumPyEinsum(NumPyBase):
    """Sums over each head's rows of W_O, no concatenation."""

    def forward(self, X, keep=None):
        d_model = X.shape[-1]
        parts = [W.reshape(d_model, self.n_heads, self.d_k) for W in (self.W_Q, self.W_K, self.W_V)]
        Q, K, V = (np.einsum("...td,dhk->...htk", X, part) for part in parts)
        scores = np.einsum("...htk,...hsk->...hts", Q, K) * self.d_k**-0.5
        if keep is not None:
            scores = np.where(keep, scores, -1e30)
        weights = softmax(scores)
        if keep is not None:
            weights = weights * keep
        W_O = self.W_O.reshape(self.n_heads, self.d_k, d_model)
        return np.einsum("...hts,...hsk,hkd->...td", weights, V, W_O), weights


@right("MultiHeadAttentionNumPy")
class NumPyFusedLive(NumPyBase):
    def forward(self, X, keep=None):
        fused = X @ np.concatenate([self.W_Q, self.W_K, self.W_V], axis=1)
        Q, K, V = np.split(fused, 3, axis=-1)
        heads, weights = attention(*(split_good(part, self.n_heads) for part in (Q, K, V)), keep=keep)
        return np.matmul(combine_good(heads), self.W_O), weights


def matrix(place):
    def write(self, value):
        self.all[place] = value

    return property(lambda self: self.all[place], write)


@right("MultiHeadAttentionNumPy")
class NumPyFusedProperties:
    """One array of all matrices; the names are properties that read and write it."""

    def __init__(self, d_model, n_heads, seed=0):
        if n_heads <= 0 or d_model % n_heads:
            raise ValueError
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        self.all = np.random.default_rng(seed).normal(size=(4, d_model, d_model)) / d_model**0.5

    W_Q, W_K, W_V, W_O = matrix(0), matrix(1), matrix(2), matrix(3)

    def forward(self, X, keep=None):
        Q, K, V = np.moveaxis(split_good(np.einsum("...td,wde->...wte", X, self.all[:3]), self.n_heads), -4, 0)
        heads, weights = attention(Q, K, V, keep)
        return combine_good(heads) @ self.all[3], weights

    __call__ = forward


@right("MultiHeadAttentionNumPy")
class NumPyNanToNum(NumPyBase):
    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        super().__init__(d_model, n_heads, seed)
        self.last_weights = None

    def forward(self, X: np.ndarray, keep: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        Q, K, V = [split_and_stack(X @ W, self.n_heads) for W in [self.W_Q, self.W_K, self.W_V]]
        scores = Q @ np.moveaxis(K, -1, -2) / math.sqrt(self.d_k)
        if keep is not None:
            scores = scores + np.where(keep, 0.0, -np.inf)
        with np.errstate(invalid="ignore"):
            self.last_weights = np.nan_to_num(softmax(scores))
        return combine_concatenate(self.last_weights @ V) @ self.W_O, self.last_weights


def numpy_variant(**steps):
    """NumPyGood with one step changed, for wrong answers."""

    class Variant(NumPyBase):
        def forward(self, X, keep=None):
            split = steps.get("split", split_good)
            Q, K, V = (split(X @ W, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V))
            heads, weights = steps.get("attend", attention)(Q, K, V, keep)
            return steps.get("combine", combine_good)(heads) @ self.W_O, weights

    return Variant


def wrong_numpy(name, named, **steps):
    variant = numpy_variant(**steps)
    variant.__name__ = name
    wrong("MultiHeadAttentionNumPy", named)(variant)


wrong_numpy("NumPySplitStraight", "split_without_transpose", split=split_straight)
wrong_numpy("NumPySplitInterleaved", "heads_interleaved", split=split_d_k_first)
wrong_numpy("NumPyCombineStraight", "combine_without_transpose", combine=combine_straight)
wrong_numpy("NumPyBothStraight", "split_without_transpose", split=split_straight, combine=combine_straight)
wrong_numpy("NumPyBothInterleaved", "heads_interleaved", split=split_d_k_first, combine=combine_stack_last)
wrong_numpy("NumPyNoSwap", "attends_over_heads", split=split_no_swap, combine=lambda x: x.reshape(*x.shape[:-2], -1))
wrong_numpy(
    "NumPyScaledTwice", "scaled_by_d_k", attend=lambda Q, K, V, keep: attention(Q / Q.shape[-1] ** 0.5, K, V, keep)
)
wrong_numpy("NumPyNoScale", "no_scale", attend=lambda Q, K, V, keep: attention(Q * Q.shape[-1] ** 0.5, K, V, keep))
wrong_numpy("NumPyQueryKeySwapped", "queries_and_keys_swapped", attend=lambda Q, K, V, keep: attention(K, Q, V, keep))
wrong_numpy("NumPyKeyValueSwapped", "keys_and_values_swapped", attend=lambda Q, K, V, keep: attention(Q, V, K, keep))
wrong_numpy("NumPyMaskForgotten", "ignores_mask", attend=lambda Q, K, V, keep: attention(Q, K, V))
wrong_numpy(
    "NumPyMaskTransposed",
    "mask_along_queries",
    attend=lambda Q, K, V, keep: attention(Q, K, V, keep if keep is None else np.swapaxes(keep, -1, -2)),
)
wrong_numpy(
    "NumPyMaskGetsAnAxis",
    "mask_axis_inserted",
    attend=lambda Q, K, V, keep: attention(Q, K, V, keep if keep is None else np.expand_dims(keep, -3)),
)


@wrong("MultiHeadAttentionNumPy", "scaled_by_d_model")
class NumPyScaleDModel(NumPyBase):
    def forward(self, X, keep=None):
        Q, K, V = (split_good(X @ W, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V))
        factor = np.sqrt(self.d_k / X.shape[-1])
        heads, weights = attention(Q * factor, K, V, keep)
        return combine_good(heads) @ self.W_O, weights


@wrong("MultiHeadAttentionNumPy", "w_o_missing")
class NumPyNoOutput(NumPyGood):
    def forward(self, X, keep=None):
        heads, weights = attention(
            split_good(X @ self.W_Q, self.n_heads),
            split_good(X @ self.W_K, self.n_heads),
            split_good(X @ self.W_V, self.n_heads),
            keep,
        )
        return combine_good(heads), weights


@wrong("MultiHeadAttentionNumPy", "w_o_transposed")
class NumPyOutputTransposed(NumPyGood):
    def forward(self, X, keep=None):
        heads, weights = attention(*(split_good(X @ W, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V)), keep)
        return np.einsum("...te,de->...td", combine_good(heads), self.W_O), weights


@wrong("MultiHeadAttentionNumPy", "weights_averaged")
class NumPyMeanWeights(NumPyGood):
    def forward(self, X, keep=None):
        output, weights = super().forward(X, keep)
        return output, np.mean(weights, axis=-3)


@wrong("MultiHeadAttentionNumPy", "returned_in_wrong_order")
class NumPySwappedPair(NumPyGood):
    def forward(self, X, keep=None):
        return super().forward(X, keep)[::-1]


@wrong("MultiHeadAttentionNumPy", "weights_missing")
class NumPyOutputOnly(NumPyGood):
    def forward(self, X, keep=None):
        return super().forward(X, keep)[0]


@wrong("MultiHeadAttentionNumPy", "heads_averaged")
class NumPyAverages(NumPyGood):
    def forward(self, X, keep=None):
        heads, weights = attention(*(split_good(X @ W, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V)), keep)
        return sum(heads[..., h, :, :] for h in range(self.n_heads)) / self.n_heads, weights


@wrong("MultiHeadAttentionNumPy", "heads_share_projection")
class NumPyOneProjection(NumPyBase):
    def forward(self, X, keep=None):
        Q, K, V = (X @ W[:, : self.d_k] for W in (self.W_Q, self.W_K, self.W_V))
        results = [attention(Q, K, V, keep if keep is None or keep.ndim < 3 else keep[..., 0, :, :])] * self.n_heads
        outs, maps = zip(*results, strict=True)
        return np.concatenate(outs, -1) @ self.W_O, np.stack(maps, -3)


@wrong("MultiHeadAttentionNumPy", "attends_over_batch")
class NumPyOverBatch(NumPyGood):
    def forward(self, X, keep=None):
        if X.ndim != 3:
            return super().forward(X, keep)
        output, weights = super().forward(np.swapaxes(X, 0, 1), keep)
        return np.swapaxes(output, 0, 1), weights


@wrong("MultiHeadAttentionNumPy", "values_not_projected")
class NumPyRawValues(NumPyBase):
    def forward(self, X, keep=None):
        heads, weights = attention(*(split_good(x, self.n_heads) for x in (X @ self.W_Q, X @ self.W_K, X)), keep)
        return combine_good(heads) @ self.W_O, weights


@wrong("MultiHeadAttentionNumPy", "weights_transposed")
class NumPyLikeLinear(NumPyBase):
    def forward(self, X, keep=None):
        heads, weights = attention(*(split_good(X @ W.T, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V)), keep)
        return combine_good(heads) @ self.W_O, weights


def inline(normalise):
    def attend(Q, K, V, keep):
        scores = Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1])
        weights = normalise(scores, keep)
        return weights @ V, weights

    return attend


wrong_numpy(
    "NumPyOverQueries",
    "over_queries",
    attend=inline(lambda s, keep: np.nan_to_num(softmax(s if keep is None else np.where(keep, s, -np.inf), axis=-2))),
)
wrong_numpy(
    "NumPyOverHeads",
    "softmax_over_heads",
    attend=inline(lambda s, keep: np.nan_to_num(softmax(s if keep is None else np.where(keep, s, -np.inf), axis=-3))),
)
wrong_numpy(
    "NumPyMaskLate", "mask_after_softmax", attend=inline(lambda s, keep: softmax(s) * (1 if keep is None else keep))
)
wrong_numpy(
    "NumPyNaNRows",
    "fully_masked_nan",
    attend=inline(lambda s, keep: softmax(s if keep is None else np.where(keep, s, -np.inf))),
)
wrong_numpy(
    "NumPyUniformRows",
    "fully_masked_uniform",
    attend=inline(lambda s, keep: softmax(s if keep is None else np.where(keep, s, -1e9))),
)
wrong_numpy(
    "NumPySmallFill",
    "finite_fill",
    attend=inline(lambda s, keep: softmax(s if keep is None else np.where(keep, s, -1e4))),
)
wrong_numpy(
    "NumPyInverted",
    "inverted_mask",
    attend=inline(lambda s, keep: np.nan_to_num(softmax(s if keep is None else np.where(keep, -np.inf, s)))),
)
wrong_numpy("NumPyMaskAdded", "mask_added", attend=inline(lambda s, keep: softmax(s if keep is None else s + keep)))
wrong_numpy(
    "NumPyTinyFill",
    "hidden_score_zero",
    attend=inline(lambda s, keep: softmax(s if keep is None else np.where(keep, s, 1e-9))),
)


@wrong("MultiHeadAttentionNumPy", "stale_weights")
class NumPyFusedOnce(NumPyBase):
    def __init__(self, d_model, n_heads, seed=0):
        super().__init__(d_model, n_heads, seed)
        self.W_QKV = np.hstack([self.W_Q, self.W_K, self.W_V])

    def forward(self, X, keep=None):
        Q, K, V = np.split(X @ self.W_QKV, 3, axis=-1)
        heads, weights = attention(*(split_good(x, self.n_heads) for x in (Q, K, V)), keep)
        return combine_good(heads) @ self.W_O, weights


@wrong("MultiHeadAttentionNumPy", "stale_weights")
class NumPyPerHeadMatrices(NumPyBase):
    def __init__(self, d_model, n_heads, seed=0):
        super().__init__(d_model, n_heads, seed)
        self.per_head = [np.split(W, n_heads, axis=1) for W in (self.W_Q, self.W_K, self.W_V)]

    def forward(self, X, keep=None):
        pairs = [attention(*(X @ W[h] for W in self.per_head)) for h in range(self.n_heads)]
        return np.concatenate([out for out, _ in pairs], -1) @ self.W_O, np.stack([w for _, w in pairs], -3)


@wrong("MultiHeadAttentionNumPy", "truncated_silently")
class NumPyUnchecked(NumPyGood):
    def __init__(self, d_model, n_heads, seed=0):
        super().__init__(d_model, 1, seed)
        self.n_heads, self.d_k = n_heads, int(d_model / n_heads)


@wrong("MultiHeadAttentionNumPy", "zero_or_negative_heads")
class NumPyRemainderOnly(NumPyGood):
    def __init__(self, d_model, n_heads, seed=0):
        if d_model % n_heads != 0:
            raise ValueError
        super().__init__(d_model, 1, seed)
        self.n_heads, self.d_k = n_heads, d_model // n_heads


@wrong("MultiHeadAttentionNumPy", "asserted")
class NumPyAsserts(NumPyGood):
    def __init__(self, d_model, n_heads, seed=0):
        assert n_heads > 0 and d_model % n_heads == 0
        super().__init__(d_model, n_heads, seed)


@wrong("MultiHeadAttentionNumPy", "seed_ignored")
class NumPyGlobalRandom(NumPyGood):
    def __init__(self, d_model, n_heads, seed=0):
        super().__init__(d_model, n_heads)
        self.W_Q, self.W_K, self.W_V, self.W_O = (np.random.randn(d_model, d_model) for _ in range(4))


@wrong("MultiHeadAttentionNumPy", "same_matrix_four_times")
class NumPyFourGenerators(NumPyGood):
    def __init__(self, d_model, n_heads, seed=0):
        super().__init__(d_model, n_heads)
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            setattr(self, name, np.random.default_rng(seed).normal(size=(d_model, d_model)))


@wrong("MultiHeadAttentionNumPy", "changes_input")
class NumPyInPlace(NumPyGood):
    def forward(self, X, keep=None):
        output, weights = super().forward(X, keep)
        X[...] = output
        return output, weights


@wrong("MultiHeadAttentionNumPy", "missing_attribute")
class NumPyOtherNames:
    def __init__(self, d_model, n_heads, seed=0):
        if n_heads <= 0 or d_model % n_heads:
            raise ValueError
        self.h, self.head_size = n_heads, d_model // n_heads

    def forward(self, X, keep=None):
        heads, weights = attention(*(split_good(X @ W, self.h) for W in (self.W_Q, self.W_K, self.W_V)), keep)
        return combine_good(heads) @ self.W_O, weights


@wrong("MultiHeadAttentionNumPy", "library_call")
class NumPyThroughTorch(NumPyBase):
    def forward(self, X, keep=None):
        q, k, v = (torch.as_tensor(split_good(X @ W, self.n_heads)) for W in (self.W_Q, self.W_K, self.W_V))
        mask = None if keep is None else torch.as_tensor(keep)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).numpy()
        weights = F.scaled_dot_product_attention(q, k, torch.eye(k.shape[-2]).to(k), attn_mask=mask).numpy()
        return combine_good(heads) @ self.W_O, weights


# parameter_count


@right("parameter_count")
def parameters_formula(d_model, n_heads):
    return 4 * d_model**2


@right("parameter_count")
def parameters_by_head(d_model, n_heads):
    d_k = d_model / n_heads
    return n_heads * (3 * d_model * d_k) + n_heads * d_k * d_model


@right("parameter_count")
def parameters_of_an_object(d_model, n_heads):
    if d_model % n_heads:
        raise ValueError
    return sum(np.empty((d_model, d_model)).size for _ in "QKVO")


@wrong("parameter_count", "times_heads")
def parameters_each_head(d_model, n_heads):
    return n_heads * 4 * d_model * d_model


@wrong("parameter_count", "w_o_forgotten")
def parameters_three(d_model, n_heads):
    return 3 * d_model * d_model


@wrong("parameter_count", "one_head_only")
def parameters_one_head(d_model, n_heads):
    d_k = d_model // n_heads
    return 4 * d_model * d_k


@wrong("parameter_count", "with_biases")
def parameters_and_biases(d_model, n_heads):
    return 4 * (d_model + 1) * d_model


@wrong("parameter_count", "not_squared")
def parameters_linear(d_model, n_heads):
    return d_model * 4


@wrong("parameter_count", "returned_none")
def parameters_printed(d_model, n_heads):
    print(4 * d_model**2)


@wrong("parameter_count", "wrong_type")
def parameters_text(d_model, n_heads):
    return f"{4 * d_model**2:,}"


# attention_macs


@right("attention_macs")
def macs_formula(n_tokens, d_model, n_heads):
    return 4 * n_tokens * d_model**2 + 2 * n_tokens**2 * d_model


@right("attention_macs")
def macs_factored(n_tokens, d_model, n_heads):
    return 2 * n_tokens * d_model * (2 * d_model + n_tokens)


@right("attention_macs")
def macs_step_by_step(n_tokens, d_model, n_heads):
    def product(rows, inner, columns):
        return rows * inner * columns

    d_k = d_model // n_heads
    projections = 3 * product(n_tokens, d_model, d_model)
    maps = n_heads * (product(n_tokens, d_k, n_tokens) + product(n_tokens, n_tokens, d_k))
    return projections + maps + product(n_tokens, d_model, d_model)


@wrong("attention_macs", "maps_times_heads")
def macs_whole_maps(n_tokens, d_model, n_heads):
    return 4 * n_tokens * d_model * d_model + n_heads * 2 * n_tokens * n_tokens * d_model


@wrong("attention_macs", "everything_times_heads")
def macs_all_heads(n_tokens, d_model, n_heads):
    return n_heads * macs_formula(n_tokens, d_model, 1)


@wrong("attention_macs", "one_map_product")
def macs_scores_only(n_tokens, d_model, n_heads):
    return 4 * n_tokens * d_model**2 + n_tokens**2 * d_model


@wrong("attention_macs", "w_o_forgotten")
def macs_three(n_tokens, d_model, n_heads):
    return 3 * n_tokens * d_model**2 + 2 * n_tokens**2 * d_model


@wrong("attention_macs", "one_head_only")
def macs_one_head(n_tokens, d_model, n_heads):
    return 4 * n_tokens * d_model**2 + 2 * n_tokens**2 * (d_model / n_heads)


@wrong("attention_macs", "multiplications_and_additions")
def macs_as_flops(n_tokens, d_model, n_heads):
    return 8 * n_tokens * d_model**2 + 4 * n_tokens**2 * d_model


@wrong("attention_macs", "projections_only")
def macs_projections(n_tokens, d_model, n_heads):
    return 4 * d_model * d_model * n_tokens


@wrong("attention_macs", "maps_only")
def macs_maps(n_tokens, d_model, n_heads):
    return 2 * n_tokens * n_tokens * d_model


@wrong("attention_macs")
def macs_with_softmax(n_tokens, d_model, n_heads):
    return macs_formula(n_tokens, d_model, n_heads) + n_heads * n_tokens**2


# MultiHeadAttention


class TorchBase(nn.Module):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__()
        if n_heads <= 0:
            raise ValueError(f"n_heads = {n_heads}")
        if d_head is None:
            if d_model % n_heads != 0:
                raise ValueError(f"{d_model} / {n_heads}")
            d_head = d_model // n_heads
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head
        self.w_q = nn.Linear(d_model, n_heads * d_head, bias=False)
        self.w_k = nn.Linear(d_model, n_heads * d_head, bias=False)
        self.w_v = nn.Linear(d_model, n_heads * d_head, bias=False)
        self.w_o = nn.Linear(n_heads * d_head, d_model, bias=False)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_heads, self.d_head).transpose(1, 2)


@right("MultiHeadAttention")
class TorchGood(TorchBase):
    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.heads(self.w_q(query)), self.heads(self.w_k(key)), self.heads(self.w_v(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        if keep is not None:
            scores = scores.masked_fill(~keep, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        if keep is not None:
            weights = weights.masked_fill(~keep, 0.0)
        out = (weights @ v).transpose(1, 2).contiguous().view(query.shape[0], query.shape[1], -1)
        return self.w_o(out), weights


@right("MultiHeadAttention")
class TorchUnflatten(TorchBase):
    def forward(self, query, key=None, value=None, keep=None):
        if key is None:
            key = query
        if value is None:
            value = key
        q = self.w_q(query).unflatten(-1, (self.n_heads, self.d_head)).movedim(2, 1)
        k = self.w_k(key).unflatten(-1, (self.n_heads, self.d_head)).permute(0, 2, 3, 1)
        v = self.w_v(value).unflatten(-1, (self.n_heads, self.d_head)).movedim(2, 1)
        scores = torch.matmul(q, k) * self.d_head**-0.5
        if keep is not None:
            scores = torch.where(keep, scores, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if keep is not None:
            weights = weights * keep
        return self.w_o((weights @ v).movedim(1, 2).flatten(2)), weights


@right("MultiHeadAttention")
class TorchHeadLoop(TorchBase):
    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = (
            torch.split(w(x), self.d_head, dim=-1) for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        )
        shape = (len(query), self.n_heads, query.shape[1], key.shape[1])
        keep = torch.ones(shape, dtype=torch.bool) if keep is None else keep.expand(shape)
        outs, maps = [], []
        for h in range(self.n_heads):
            scores = torch.bmm(q[h], k[h].mT) / self.d_head**0.5
            bias = torch.zeros_like(scores).masked_fill(keep[:, h].logical_not(), -torch.inf)
            weights = torch.nan_to_num(F.softmax(scores + bias, dim=-1))
            outs.append(weights @ v[h])
            maps.append(weights)
        return self.w_o(torch.cat(outs, dim=-1)), torch.stack(maps, dim=1)


@right("MultiHeadAttention")
class TorchEinsum(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__()
        if n_heads < 1 or (d_head is None and d_model % n_heads):
            raise ValueError("heads")
        self.d_model = d_model
        self.n_heads = n_heads
        self.d_head = d_head or d_model // n_heads
        for name in ("w_q", "w_k", "w_v"):
            setattr(self, name, nn.Linear(d_model, self.n_heads * self.d_head, bias=False))
        self.w_o = nn.Linear(self.n_heads * self.d_head, d_model, bias=False)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("scale", torch.tensor(self.d_head).rsqrt())

    def forward(self, query, key=None, value=None, keep=None):
        key = key if key is not None else query
        value = value if value is not None else key

        def per_head(layer):
            return layer.weight.view(self.n_heads, self.d_head, self.d_model)

        q = torch.einsum("btd,hkd->bhtk", query, per_head(self.w_q))
        k = torch.einsum("bsd,hkd->bhsk", key, per_head(self.w_k))
        v = torch.einsum("bsd,hkd->bhsk", value, per_head(self.w_v))
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) * self.scale
        if keep is not None:
            scores = scores.masked_fill(~keep, -1e30)
        scores = scores - scores.amax(-1, keepdim=True)
        exps = scores.exp() if keep is None else scores.exp() * keep
        weights = exps / exps.sum(-1, keepdim=True).clamp_min(1e-30)
        mixed = torch.einsum("bhts,bhsk->bthk", self.dropout(weights), v).flatten(-2)
        return torch.einsum("bte,de->btd", mixed, self.w_o.weight), weights


@right("MultiHeadAttention")
class TorchFusedLive(TorchBase):
    """One product for self-attention, with the named weights joined at every call."""

    def forward(self, query, key=None, value=None, keep=None):
        if key is None and value is None:
            weight = torch.cat([self.w_q.weight, self.w_k.weight, self.w_v.weight])
            q, k, v = F.linear(query, weight).chunk(3, dim=-1)
        else:
            key = query if key is None else key
            q, k, v = self.w_q(query), self.w_k(key), self.w_v(key if value is None else value)
        q, k, v = (x.reshape(*x.shape[:2], self.n_heads, -1).permute(0, 2, 1, 3) for x in (q, k, v))
        scores = q @ k.mT / self.d_head**0.5
        weights = (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1)
        weights = weights if keep is None else weights.nan_to_num()
        return self.w_o((weights @ v).permute(0, 2, 1, 3).reshape(*query.shape[:2], -1)), weights


class _Slice:
    """A part of a fused layer under a name of its own."""

    def __init__(self, fused, rows):
        self.fused, self.rows = fused, rows

    @property
    def weight(self):
        return self.fused.weight[self.rows]

    def __call__(self, x):
        return x @ self.weight.T


@right("MultiHeadAttention")
class TorchFusedViews(nn.Module):
    """One fused parameter; w_q, w_k and w_v are live views of it."""

    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__()
        if n_heads <= 0 or (d_head is None and d_model % n_heads):
            raise ValueError
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head or d_model // n_heads
        self.width = self.n_heads * self.d_head
        self.w_qkv = nn.Linear(d_model, 3 * self.width, bias=False)
        self.w_o = nn.Linear(self.width, d_model, bias=False)

    w_q = property(lambda self: _Slice(self.w_qkv, slice(0, self.width)))
    w_k = property(lambda self: _Slice(self.w_qkv, slice(self.width, 2 * self.width)))
    w_v = property(lambda self: _Slice(self.w_qkv, slice(2 * self.width, None)))

    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = (
            w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        )
        scores = q @ k.transpose(2, 3) / self.d_head**0.5
        if keep is not None:
            scores = scores.masked_fill(~keep, -torch.inf)
        weights = torch.nan_to_num(scores.softmax(3))
        return self.w_o((weights @ v).transpose(1, 2).flatten(2)), weights


@right("MultiHeadAttention")
class TorchWithNumPyHelpers(TorchBase):
    """split_heads and combine_heads, written for arrays with methods that tensors have as well."""

    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q = split_good(self.w_q(query), self.n_heads)
        k = split_good(self.w_k(key), self.n_heads)
        v = split_good(self.w_v(value), self.n_heads)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(self.d_head)
        if keep is not None:
            scores = scores.masked_fill(~keep, float("-inf"))
        weights = torch.nan_to_num(torch.softmax(scores, dim=-1))
        return self.w_o(combine_good(weights @ v)), weights


@right("MultiHeadAttention")
class TorchFlatBatch(TorchBase):
    """Heads laid into the batch for bmm, the mask laid out to match."""

    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        B, T_q, T_k, H = len(query), query.size(1), key.size(1), self.n_heads
        q, k, v = (
            w(x).reshape(B, -1, H, self.d_head).transpose(1, 2).reshape(B * H, -1, self.d_head)
            for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        )
        scores = torch.baddbmm(torch.zeros(1, dtype=q.dtype), q, k.transpose(1, 2), alpha=self.d_head**-0.5)
        if keep is not None:
            hide = ~keep.expand(B, H, T_q, T_k).reshape(B * H, T_q, T_k)
            weights = torch.where(hide, 0.0, torch.softmax(scores.masked_fill(hide, -torch.inf), -1))
        else:
            weights = torch.softmax(scores, -1)
        out = torch.bmm(weights, v).view(B, H, T_q, self.d_head).transpose(1, 2).reshape(B, T_q, H * self.d_head)
        return self.w_o(out), weights.view(B, H, T_q, T_k)


def torch_variant(name, named, **steps):
    """TorchGood with one step changed."""

    class Variant(TorchBase):
        def forward(self, query, key=None, value=None, keep=None):
            key = query if key is None else key
            value = key if value is None else value
            split = steps.get("split", lambda x, h: x.unflatten(-1, (h, -1)).transpose(1, 2))
            q, k, v = (split(w(x), self.n_heads) for w, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
            scores = steps.get("scores", lambda q, k, d: q @ k.mT / d**0.5)(q, k, self.d_head)
            weights = steps.get("weigh", good_weights)(scores, keep)
            joined = steps.get("combine", lambda x: x.transpose(1, 2).flatten(2))(weights @ v)
            return steps.get("write", lambda w, x: w(x))(self.w_o, joined), steps.get("give", lambda w: w)(weights)

    Variant.__name__ = name
    wrong("MultiHeadAttention", named)(Variant)


def good_weights(scores, keep):
    if keep is None:
        return scores.softmax(-1)
    return scores.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num()


torch_variant("TorchSplitStraight", "split_without_transpose", split=lambda x, h: x.view(len(x), h, x.shape[1], -1))
torch_variant(
    "TorchBothStraight",
    "split_without_transpose",
    split=lambda x, h: x.view(len(x), h, x.shape[1], -1),
    combine=lambda x: x.view(len(x), x.shape[2], -1),
)
torch_variant("TorchMergeStraight", "combine_without_transpose", combine=lambda x: x.reshape(len(x), x.shape[2], -1))
torch_variant(
    "TorchContiguousTooEarly",
    "combine_without_transpose",
    combine=lambda x: x.contiguous().view(x.shape[0], x.shape[2], x.shape[1] * x.shape[3]),
)
torch_variant(
    "TorchInterleaved", "heads_interleaved", split=lambda x, h: x.view(*x.shape[:2], -1, h).permute(0, 3, 1, 2)
)
torch_variant(
    "TorchNoTranspose",
    "attends_over_heads",
    split=lambda x, h: x.view(*x.shape[:2], h, -1),
    combine=lambda x: x.reshape(*x.shape[:2], -1),
)
torch_variant(
    "TorchViewAfterTranspose",
    "view_after_transpose",
    combine=lambda x: x.transpose(1, 2).view(x.shape[0], x.shape[2], -1),
)
torch_variant("TorchNoScale", "no_scale", scores=lambda q, k, d: q @ k.mT)
torch_variant("TorchNoRoot", "scaled_by_d_k", scores=lambda q, k, d: torch.einsum("bhtd,bhsd->bhts", q, k) / d)
torch_variant(
    "TorchScaleDModel", "scaled_by_d_model", scores=lambda q, k, d: q @ k.mT / math.sqrt(q.shape[1] * q.shape[3])
)
torch_variant("TorchTimesScale", "multiplied_by_scale", scores=lambda q, k, d: q @ k.mT * d**0.5)
torch_variant("TorchNoOutput", "w_o_missing", write=lambda w, x: x)
torch_variant(
    "TorchOutputTransposed",
    "w_o_transposed",
    write=lambda w, x: x @ w.weight if w.weight.shape[0] == w.weight.shape[1] else w(x),
)
torch_variant("TorchActivation", "activation_added", write=lambda w, x: w(x).relu())
torch_variant("TorchMeanWeights", "weights_averaged", give=lambda w: w.mean(dim=1))
torch_variant("TorchLastHead", "weights_of_one_head", give=lambda w: w[:, -1])
torch_variant("TorchOverHeads", "softmax_over_heads", weigh=lambda s, keep: masked(s, keep).softmax(1).nan_to_num())
torch_variant("TorchOverQueries", "over_queries", weigh=lambda s, keep: masked(s, keep).softmax(2).nan_to_num())
torch_variant("TorchOverBatch", "softmax_over_batch", weigh=lambda s, keep: masked(s, keep).softmax(0).nan_to_num())
torch_variant("TorchNaN", "fully_masked_nan", weigh=lambda s, keep: masked(s, keep).softmax(-1))
torch_variant("TorchUniform", "fully_masked_uniform", weigh=lambda s, keep: masked(s, keep, -1e9).softmax(-1))
torch_variant("TorchSmallFill", "finite_fill", weigh=lambda s, keep: masked(s, keep, -1e4).softmax(-1))
torch_variant("TorchTinyFill", "hidden_score_zero", weigh=lambda s, keep: masked(s, keep, 1e-9).softmax(-1))
torch_variant(
    "TorchMaskLate",
    "mask_after_softmax",
    weigh=lambda s, keep: s.softmax(-1) if keep is None else s.softmax(-1) * keep,
)
torch_variant("TorchMaskAdded", "mask_added", weigh=lambda s, keep: (s if keep is None else s + keep).softmax(-1))
torch_variant(
    "TorchFillThrownAway",
    "ignores_mask",
    weigh=lambda s, keep: (keep is None or s.masked_fill(~keep, -1e9) is None or s) is not None and s.softmax(-1),
)
torch_variant(
    "TorchInverted",
    "inverted_mask",
    weigh=lambda s, keep: s.softmax(-1) if keep is None else s.masked_fill(keep, -torch.inf).softmax(-1).nan_to_num(),
)
torch_variant(
    "TorchUnsqueezesAll",
    "mask_axis_inserted",
    weigh=lambda s, keep: good_weights(s, None if keep is None else keep.unsqueeze(1)),
)
torch_variant(
    "TorchGuessesPadding",
    "mask_axis_inserted",
    weigh=lambda s, keep: good_weights(s, keep[:, None] if keep is not None and keep.dim() == 3 else keep),
)
torch_variant(
    "TorchSqueezes",
    "mask_batch_on_heads",
    weigh=lambda s, keep: good_weights(s, None if keep is None else keep.squeeze(1)),
)
torch_variant(
    "TorchMaskAlongQueries",
    "mask_along_queries",
    weigh=lambda s, keep: good_weights(s, None if keep is None else keep.transpose(-1, -2)),
)
torch_variant(
    "TorchRepeatsMask",
    "mask_batch_on_heads",
    weigh=lambda s, keep: (
        good_weights(
            s.flatten(0, 1),
            None if keep is None else keep.expand(-1, 1, -1, -1).repeat(s.shape[1], 1, 1, 1).flatten(0, 1),
        ).view(s.shape)
        if keep is not None and keep.dim() == 4
        else good_weights(s, keep)
    ),
)


def masked(scores, keep, fill=-torch.inf):
    return scores if keep is None else scores.masked_fill(~keep, fill)


@wrong("MultiHeadAttention", "heads_averaged")
class TorchAverages(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_head)
        self.w_o = nn.Linear(self.d_head, d_model, bias=False)

    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.heads(self.w_q(query)), self.heads(self.w_k(key)), self.heads(self.w_v(value))
        weights = good_weights(q @ k.mT / self.d_head**0.5, keep)
        return self.w_o((weights @ v).mean(1)), weights


@wrong("MultiHeadAttention", "heads_share_projection")
class TorchSharedProjections(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_head)
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, self.d_head, bias=False) for _ in range(3))

    def heads(self, x):
        return x.unsqueeze(1).expand(-1, self.n_heads, -1, -1)


@wrong("MultiHeadAttention", "biases")
class TorchBiases(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_head)
        width = n_heads * self.d_head
        self.w_q, self.w_k, self.w_v = nn.Linear(d_model, width), nn.Linear(d_model, width), nn.Linear(d_model, width)
        self.w_o = nn.Linear(width, d_model)


@wrong("MultiHeadAttention", "dropout")
class TorchDropout(TorchBase):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_head)
        self.drop = nn.Dropout(0.1)

    def forward(self, query, key=None, value=None, keep=None):
        return self.drop(TorchGood.forward(self, query, key, value, keep)[0]), TorchGood.forward(
            self, query, key, value, keep
        )[1]


@wrong("MultiHeadAttention", "key_ignored")
class TorchSelfOnly(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        return super().forward(query, keep=keep)


@wrong("MultiHeadAttention", "value_ignored")
class TorchNoValue(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        return super().forward(query, key, keep=keep)


@wrong("MultiHeadAttention", "value_defaults_to_query")
class TorchValueFromQuery(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        return super().forward(query, key if key is not None else query, value if value is not None else query, keep)


@wrong("MultiHeadAttention", "value_dropped")
class TorchBothAtOnce(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        if key is None:
            key = value = query
        return super().forward(query, key, value, keep)


@wrong("MultiHeadAttention", "of_query_length")
class TorchOneLength(TorchGood):
    def heads(self, x):
        if not hasattr(self, "n"):
            self.n = x.shape[1]
        return x.view(x.shape[0], self.n, self.n_heads, self.d_head).transpose(1, 2)


@wrong("MultiHeadAttention", "attends_over_batch")
class TorchSequenceFirst(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        swapped = [None if x is None else x.transpose(0, 1) for x in (query, key, value)]
        output, weights = super().forward(*swapped, keep=keep)
        return output.transpose(0, 1), weights


@wrong("MultiHeadAttention", "stale_weights")
class TorchFusedOnce(TorchBase):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_head)
        self.fused = torch.cat([self.w_q.weight, self.w_k.weight, self.w_v.weight]).detach()

    def forward(self, query, key=None, value=None, keep=None):
        q, k, v = (self.heads(x) for x in (query @ self.fused.to(query.dtype).T).chunk(3, -1))
        weights = good_weights(q @ k.mT / self.d_head**0.5, keep)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2)), weights


@wrong("MultiHeadAttention", "stale_weights")
class TorchOtherNameForWeights(TorchBase):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_head)
        self.matrices = [layer.weight for layer in (self.w_q, self.w_k, self.w_v, self.w_o)]

    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        W_q, W_k, W_v, W_o = self.matrices
        q, k, v = (self.heads(F.linear(x, w)) for x, w in ((query, W_q), (key, W_k), (value, W_v)))
        weights = good_weights(q @ k.mT / self.d_head**0.5, keep)
        return F.linear((weights @ v).transpose(1, 2).flatten(2), W_o), weights


@wrong("MultiHeadAttention", "detached")
class TorchNoGradient(TorchGood):
    @torch.no_grad()
    def forward(self, query, key=None, value=None, keep=None):
        return super().forward(query, key, value, keep)


@wrong("MultiHeadAttention", "detached")
class TorchDataOfWeights(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = (
            self.heads(F.linear(x, w.weight.data)) for x, w in ((query, self.w_q), (key, self.w_k), (value, self.w_v))
        )
        weights = good_weights(q @ k.mT / self.d_head**0.5, keep)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2)), weights


@wrong("MultiHeadAttention", "d_head_ignored")
class TorchNoOwnWidth(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__(d_model, n_heads, d_model // n_heads)


@wrong("MultiHeadAttention", "divides_although_d_head_is_given")
class TorchAlwaysDivides(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        if n_heads <= 0 or d_model % n_heads:
            raise ValueError
        super().__init__(d_model, n_heads, d_head)


@wrong("MultiHeadAttention", "truncated_silently")
class TorchUnchecked(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        nn.Module.__init__(self)
        self.d_model, self.n_heads = d_model, n_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        width = n_heads * self.d_head
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, width, bias=False) for _ in range(3))
        self.w_o = nn.Linear(width, d_model, bias=False)


@wrong("MultiHeadAttention", "zero_or_negative_heads")
class TorchRemainderOnly(TorchUnchecked):
    def __init__(self, d_model, n_heads, d_head=None):
        if d_head is None and d_model % n_heads != 0:
            raise ValueError
        super().__init__(d_model, n_heads, d_head)


@wrong("MultiHeadAttention", "asserted")
class TorchAsserts(TorchGood):
    def __init__(self, d_model, n_heads, d_head=None):
        assert n_heads > 0 and (d_head is not None or d_model % n_heads == 0), (d_model, n_heads)
        super().__init__(d_model, n_heads, d_head)


@wrong("MultiHeadAttention", "super_missing")
class TorchSuperForgotten(nn.Module):
    def __init__(self, d_model, n_heads, d_head=None):
        if n_heads <= 0 or (d_head is None and d_model % n_heads):
            raise ValueError
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head or d_model // n_heads
        self.w_q = nn.Linear(d_model, d_model, bias=False)

    def forward(self, query, key=None, value=None, keep=None):
        return query, query


@wrong("MultiHeadAttention", "wrong_dtype")
class TorchAlwaysFloat32(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        output, weights = super().forward(query, key, value, keep)
        return output.float(), weights.float()


@wrong("MultiHeadAttention", "changes_input")
class TorchInPlace(TorchGood):
    def forward(self, query, key=None, value=None, keep=None):
        result = super().forward(query, key, value, keep)
        query.mul_(0.5)
        return result


@wrong("MultiHeadAttention", "library_call")
class TorchLibrary(TorchBase):
    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.heads(self.w_q(query)), self.heads(self.w_k(key)), self.heads(self.w_v(value))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        weights = F.scaled_dot_product_attention(q, k, torch.eye(k.shape[2]).to(k), attn_mask=keep)
        return self.w_o(out.transpose(1, 2).flatten(2)), weights


@wrong("MultiHeadAttention", "missing_attribute")
class TorchOtherNames(nn.Module):
    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__()
        if n_heads <= 0 or (d_head is None and d_model % n_heads):
            raise ValueError
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head or d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)

    def forward(self, query, key=None, value=None, keep=None):
        return self.W_q(query), query


# Begun, not finished: the mistake in the core is named all the same.


@wrong("MultiHeadAttention", "scaled_by_d_model")
class TorchSelfAttentionOnly(TorchBase):
    def forward(self, query, key=None, value=None, keep=None):
        q, k, v = (self.heads(w(query)) for w in (self.w_q, self.w_k, self.w_v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.d_model), dim=-1)
        return self.w_o((weights @ v).transpose(1, 2).reshape(query.shape)), weights


@wrong("MultiHeadAttentionNumPy", "split_without_transpose")
class NumPyWithoutMasks(NumPyBase):
    def forward(self, X, keep=None):
        Q, K, V = (split_straight(X @ W, self.n_heads) for W in (self.W_Q, self.W_K, self.W_V))
        heads, weights = attention(Q, K, V)
        return combine_good(heads) @ self.W_O, weights


# The other library's methods


@wrong("split_heads", "view_of_numpy")
def split_by_view(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    return x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).transpose(-3, -2)


@wrong("split_heads", "transpose_of_numpy")
def split_by_torch_transpose(x, n_heads):
    if n_heads <= 0 or x.shape[-1] % n_heads:
        raise ValueError
    return x.reshape(*x.shape[:-1], n_heads, -1).transpose(1, 2)


@wrong("combine_heads", "transpose_of_numpy")
def combine_by_torch_transpose(x):
    B, H, T, d = x.shape
    return x.transpose(1, 2).reshape(B, T, H * d)


@wrong("attention_macs", "maps_like_projections")
def macs_six_alike(n_tokens, d_model, n_heads):
    return 6 * n_tokens * d_model * d_model
