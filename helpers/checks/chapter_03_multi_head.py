"""Chapter 3: split, attend, combine; what heads cost; multi-head attention in NumPy and in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from helpers.checks.chapter_01_softmax import masked_softmax
from helpers.checks.exercise import Arguments, Case, Exercise, Law, Misconception, Quiz, given

# Headings of the notebook that cards point to.
SPLIT = "Slices of one vector"
COMBINE = "Side by side again"
MASKS = "A mask for every head"
NUMPY = "Split, attend, combine"
COST = "What does it cost?"
STRIDES = "How a tensor lies in memory"
TORCH = "The same in PyTorch"

_LIBRARY_CALLS = (
    "torch.nn.MultiheadAttention",
    "torch.nn.Transformer",
    "torch.nn.TransformerEncoderLayer",
    "torch.nn.TransformerDecoderLayer",
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
)


def _check_heads(d_model: int, n_heads: int) -> None:
    if n_heads <= 0:
        raise ValueError(f"n_heads must be at least 1, got {n_heads}")
    if d_model % n_heads:
        raise ValueError(f"{n_heads} heads cannot share d_model = {d_model}: {d_model / n_heads:.2f} numbers each")


def _positive_heads(d_model: int, n_heads: int) -> None:
    if n_heads <= 0:
        raise ValueError(f"n_heads must be at least 1, got {n_heads}")


def _dividing_heads(d_model: int, n_heads: int) -> None:
    if d_model % n_heads:
        raise ValueError(f"{n_heads} heads cannot share d_model = {d_model}")


# split_heads and combine_heads


def split_heads(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(..., T, d_model) -> (..., n_heads, T, d_k): one slice of the last axis for each head."""
    d_model = x.shape[-1]
    _check_heads(d_model, n_heads)
    d_k = d_model // n_heads
    return np.stack([x[..., head * d_k : (head + 1) * d_k] for head in range(n_heads)], axis=-3)


def combine_heads(x: np.ndarray) -> np.ndarray:
    """(..., n_heads, T, d_k) -> (..., T, n_heads * d_k): the heads side by side."""
    return np.concatenate([x[..., head, :, :] for head in range(x.shape[-3])], axis=-1)


def _split_with(cut: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., Any]:
    def implementation(x: np.ndarray, n_heads: int) -> np.ndarray:
        _check_heads(x.shape[-1], n_heads)
        return cut(x, n_heads)

    return implementation


def _side_by_side(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(..., T, n_heads, d_k)"""
    return x.reshape(*x.shape[:-1], n_heads, -1)


def _every_nth(x: np.ndarray, n_heads: int) -> np.ndarray:
    """(..., n_heads, T, d_k), head h with the sliders h, h + n_heads, h + 2 n_heads, ..."""
    return np.stack([x[..., head::n_heads] for head in range(n_heads)], axis=-3)


def _split_without_transpose(x: np.ndarray, n_heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:-2], n_heads, x.shape[-2], -1)


def _split_tokens(x: np.ndarray, n_heads: int) -> Any:
    return np.stack(np.array_split(x, n_heads, axis=-2), axis=-3)


def _with_batch_axis(x: np.ndarray, n_heads: int) -> np.ndarray:
    _batch, _n_tokens, d_model = x.shape
    _check_heads(d_model, n_heads)
    return split_heads(x, n_heads)


def _without_batch_axis(x: np.ndarray, n_heads: int) -> np.ndarray:
    _n_tokens, d_model = x.shape
    _check_heads(d_model, n_heads)
    return split_heads(x, n_heads)


def _rest_left_out(x: np.ndarray, n_heads: int) -> np.ndarray:
    d_k = x.shape[-1] // n_heads
    return split_heads(x[..., : n_heads * d_k], n_heads)


def _zero_heads_split(x: np.ndarray, n_heads: int) -> np.ndarray:
    _dividing_heads(x.shape[-1], n_heads)
    return split_heads(x, n_heads)


def _zero_heads_divided(x: np.ndarray, n_heads: int) -> np.ndarray:
    return split_heads(x, n_heads) if n_heads else _rest_left_out(x, n_heads)


def _without_transpose_text(values: Mapping[str, Any]) -> str:
    n_tokens, d_model = values["x"].shape[-2:]
    token, slider = divmod(d_model // values["n_heads"], d_model)
    return (
        "Your result equals a reshape straight to (n_heads, T, d_k), without a transpose. A reshape only cuts the row "
        "of numbers in memory anew, and there the numbers of one token lie side by side. So row 1 of head 0 "
        f"begins with slider {slider} of token {token}; "
        + (
            "it should be slider 0 of token 1. Cut the last axis first, then swap the axes of tokens and heads."
            if n_tokens > 1
            else "cut the last axis first, then swap the axes of tokens and heads."
        )
    )


def _every_nth_text(values: Mapping[str, Any]) -> str:
    n_heads = values["n_heads"]
    d_k = values["x"].shape[-1] // n_heads
    return (
        f"Your head 0 gets the sliders 0, {n_heads}, {2 * n_heads}, ...: every head takes each {n_heads}th number. "
        f"Heads "
        f"are blocks of neighbours: head 0 has the sliders 0 to {d_k - 1}. Cut the last axis into (n_heads, d_k), in "
        "this order."
    )


_FIXED_RANK = (
    "Your code counts on a fixed number of axes. Any number of axes may stand before the last two, none as well: "
    "take those from `x.shape[:-2]`, and count the axes that you swap from the end, -1, -2, -3."
)
_FIXED_RANK_COMBINING = (
    "Your code counts on a fixed number of axes. Any number of axes may stand before the last three, none as well: "
    "count the axes that you swap from the end, -1, -2, -3, and take over all but the last two when you join those."
)
_TRANSPOSE_OF_NUMPY = (
    "`.transpose(1, 2)` swaps two axes in PyTorch. In NumPy `.transpose` wants the new order of all axes; `.swapaxes` "
    "swaps two."
)
_ZERO_HEADS = (
    "0 heads end in a ZeroDivisionError, because `% 0` has no value. Look at `n_heads` first, and raise a "
    "ValueError for anything below 1."
)

_WHOLE = "each head gets its own slice of every token"
_LEADING = "any number of axes before the last two"
_IMPOSSIBLE = "no impossible number of heads"


def _normal(*shape: int, dtype: type = float) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal(shape).astype(dtype)


def _to_split(n_heads: int, *shape: int, dtype: type = float) -> Callable[[np.random.Generator], Arguments]:
    make = _normal(*shape, dtype=dtype)
    return lambda rng: given(make(rng), n_heads)


def _named_entries(*shape: int) -> np.ndarray:
    """Entries that name their token and slider: 203.0 is slider 3 of token 2."""
    tokens, sliders = np.indices(shape)[-2:]
    return 100.0 * tokens + sliders


def _not_the_same_numbers(values: Mapping[str, Any], result: np.ndarray) -> str | None:
    if np.array_equal(np.sort(result, axis=None), np.sort(values["x"], axis=None)):
        return None
    return "Your result does not hold the numbers of `x`, each of them once. They should only change places."


_SAME_NUMBERS = "not_the_same_numbers"

_split_heads = Exercise(
    id="split_heads",
    points=3,
    section=SPLIT,
    reference=split_heads,
    laws=(Law(_SAME_NUMBERS, _not_the_same_numbers, SPLIT),),
    families={_WHOLE: 0.6, _LEADING: 0.2, _IMPOSSIBLE: 0.2},
    cases=(
        Case(
            "two tokens of four sliders (103 is slider 3 of token 1), two heads",
            _WHOLE,
            lambda rng: given(_named_entries(1, 2, 4), 2),
        ),
        Case(
            "three tokens of six sliders, two heads (103 is slider 3 of token 1)",
            _WHOLE,
            lambda rng: given(_named_entries(1, 3, 6), 2),
        ),
        Case("a batch of 2, 5 tokens, 3 heads of 4", _WHOLE, _to_split(3, 2, 5, 12)),
        Case("a batch of 3, 2 tokens, 4 heads of 5", _WHOLE, _to_split(4, 3, 2, 20, dtype=np.float32)),
        Case("everything is 3: batch, heads, tokens and d_k", _WHOLE, _to_split(3, 3, 3, 9)),
        Case("one head", _WHOLE, _to_split(1, 2, 3, 4)),
        Case("one token", _WHOLE, _to_split(2, 3, 1, 6)),
        Case("as many heads as sliders", _WHOLE, _to_split(4, 2, 3, 4)),
        Case("no batch: 5 tokens, 2 heads of 3", _LEADING, _to_split(2, 5, 6)),
        Case("two axes of batches", _LEADING, _to_split(3, 2, 3, 4, 6)),
        Case("3 heads for 8 sliders", _IMPOSSIBLE, _to_split(3, 2, 3, 8)),
        Case("12 heads for 512 sliders", _IMPOSSIBLE, lambda rng: given(np.zeros((1, 2, 512)), 12)),
        Case("more heads than sliders", _IMPOSSIBLE, _to_split(8, 2, 3, 4)),
        Case("0 heads", _IMPOSSIBLE, _to_split(0, 2, 3, 4)),
        Case("-2 heads", _IMPOSSIBLE, _to_split(-2, 2, 3, 4)),
    ),
    misconceptions=(
        Misconception("split_without_transpose", _split_with(_split_without_transpose), _without_transpose_text, SPLIT),
        Misconception(
            "split_without_transpose",
            lambda x, n_heads: _split_without_transpose(x, n_heads) if n_heads > 0 else split_heads(x, n_heads),
            _without_transpose_text,
            SPLIT,
        ),
        Misconception(
            "heads_after_tokens",
            _split_with(_side_by_side),
            "The last axis is cut right, but the axis of heads comes after the axis of tokens: (..., T, n_heads, d_k). "
            "Attention works on the last two axes, so these must be tokens and d_k. Swap the axes of tokens and heads.",
            SPLIT,
        ),
        Misconception("heads_interleaved", _split_with(_every_nth), _every_nth_text, SPLIT),
        Misconception(
            "number_and_size_swapped",
            _split_with(lambda x, n_heads: split_heads(x, x.shape[-1] // n_heads)),
            lambda values: (
                f"You make {values['x'].shape[-1] // values['n_heads']} heads of {values['n_heads']} numbers. It "
                f"should "
                f"be {values['n_heads']} heads of {values['x'].shape[-1] // values['n_heads']}: the number of heads is "
                "given, and d_k is what remains for each."
            ),
            SPLIT,
        ),
        Misconception(
            "number_and_size_swapped",
            _split_with(lambda x, n_heads: np.moveaxis(x.reshape(*x.shape[:-1], -1, n_heads), -2, -3)),
            "You cut the last axis into (d_k, n_heads) and then move d_k in front as if it were the axis of heads. "
            "Cut it into (n_heads, d_k).",
            SPLIT,
        ),
        Misconception(
            "head_axis_first",
            _split_with(lambda x, n_heads: np.moveaxis(split_heads(x, n_heads), -3, 0)),
            "The heads come before the batch: (n_heads, B, T, d_k). The axis of heads belongs just before the tokens, "
            "(B, n_heads, T, d_k); counted from the end it is axis -3.",
            SPLIT,
        ),
        Misconception(
            "token_and_slider_swapped",
            _split_with(lambda x, n_heads: np.swapaxes(split_heads(x, n_heads), -1, -2)),
            "The last two axes of your result are (d_k, T), and (T, d_k) was asked for. Which two axes do you swap?",
            SPLIT,
        ),
        Misconception(
            "splits_tokens",
            _split_with(_split_tokens),
            "You share out the tokens: each head gets some of them, whole. Every head must see every token; what is "
            "shared out are the numbers of each token, the last axis.",
            SPLIT,
        ),
        Misconception(
            "whole_vector_for_each_head",
            _split_with(lambda x, n_heads: np.stack([x] * n_heads, axis=-3)),
            "Each head gets a copy of all d_model numbers. Heads cost nothing extra because they share them: each gets "
            "a slice of d_k = d_model / n_heads.",
            SPLIT,
        ),
        Misconception(
            "list_of_heads",
            _split_with(lambda x, n_heads: np.split(x, n_heads, axis=-1)),
            "`np.split` gives a list of arrays, one for each head. Stack them along a new axis, -3, to make one array.",
            SPLIT,
        ),
        Misconception(
            "truncated_silently",
            _rest_left_out,
            lambda values: (
                f"{values['n_heads']} heads cannot share {values['x'].shape[-1]} numbers evenly, and your code goes on "
                "with whole-number division and leaves the rest out. Raise a ValueError when "
                "`d_model % n_heads` is not 0."
            ),
            SPLIT,
        ),
        Misconception("zero_heads", _zero_heads_split, _ZERO_HEADS, SPLIT),
        Misconception("zero_heads", _zero_heads_divided, _ZERO_HEADS, SPLIT),
        Misconception(
            "view_of_numpy",
            _split_with(lambda x, n_heads: x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads)),
            "`.view(...)` with a shape is PyTorch's. `x` is a NumPy array here: use `.reshape(...)`.",
            SPLIT,
        ),
        Misconception(
            "transpose_of_numpy",
            _split_with(lambda x, n_heads: _side_by_side(x, n_heads).transpose(1, 2)),
            _TRANSPOSE_OF_NUMPY,
            SPLIT,
        ),
        Misconception("fixed_rank", _with_batch_axis, _FIXED_RANK, SPLIT),
        Misconception("fixed_rank", _without_batch_axis, _FIXED_RANK, SPLIT),
        Misconception(
            "fixed_rank", _split_with(lambda x, n: _side_by_side(x, n).transpose(0, 2, 1, 3)), _FIXED_RANK, SPLIT
        ),
        Misconception("fixed_rank", _split_with(lambda x, n: _side_by_side(x, n).swapaxes(1, 2)), _FIXED_RANK, SPLIT),
    ),
)


def _to_combine(*shape: int, dtype: type = float) -> Callable[[np.random.Generator], Arguments]:
    make = _normal(*shape, dtype=dtype)
    return lambda rng: given(make(rng))


def _named_heads(n_heads: int, n_tokens: int, d_k: int) -> np.ndarray:
    """(1, n_heads, n_tokens, d_k) of entries that name their token and slider."""
    entries = _named_entries(n_tokens, n_heads * d_k)
    return split_heads(entries[None], n_heads)


def _combined_with_batch_axis(x: np.ndarray) -> np.ndarray:
    _batch, _n_heads, _n_tokens, _d_k = x.shape
    return combine_heads(x)


def _combined_without_batch_axis(x: np.ndarray) -> np.ndarray:
    _n_heads, _n_tokens, _d_k = x.shape
    return combine_heads(x)


def _merge_without_transpose(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:-3], x.shape[-2], -1)


def _merge_text(values: Mapping[str, Any]) -> str:
    n_heads, n_tokens, d_k = values["x"].shape[-3:]
    if n_tokens == 1 or n_heads == 1:
        return "Your result equals a reshape without a transpose: swap the axes of heads and tokens first."
    return (
        "Your result equals a reshape straight from (n_heads, T, d_k), without a transpose. In memory, head 0 of "
        "token 0 "
        f"is followed by head 0 of token 1, so the row of token 0 ({n_heads * d_k} numbers) also takes in "
        "numbers of token 1. Swap the axes of heads and tokens first, then join the last two."
    )


_JOINED = "the heads of a token side by side"

_combine_heads = Exercise(
    id="combine_heads",
    points=2,
    section=COMBINE,
    reference=combine_heads,
    laws=(Law(_SAME_NUMBERS, _not_the_same_numbers, COMBINE),),
    families={_JOINED: 0.75, _LEADING: 0.25},
    cases=(
        Case(
            "two heads, two tokens (103 is slider 3 of token 1)",
            _JOINED,
            lambda rng: given(_named_heads(2, 2, 2)),
        ),
        Case("two heads, three tokens, d_k = 3", _JOINED, lambda rng: given(_named_heads(2, 3, 3))),
        Case("a batch of 2, 3 heads, 5 tokens, d_k = 4", _JOINED, _to_combine(2, 3, 5, 4)),
        Case("a batch of 3, 4 heads, 2 tokens, d_k = 5", _JOINED, _to_combine(3, 4, 2, 5, dtype=np.float32)),
        Case("everything is 3: batch, heads, tokens and d_k", _JOINED, _to_combine(3, 3, 3, 3)),
        Case("one head", _JOINED, _to_combine(2, 1, 3, 4)),
        Case("one token", _JOINED, _to_combine(3, 2, 1, 4)),
        Case("one number for each head", _JOINED, _to_combine(2, 4, 3, 1)),
        Case("no batch", _LEADING, _to_combine(2, 5, 3)),
        Case("two axes of batches", _LEADING, _to_combine(2, 3, 4, 5, 2)),
    ),
    misconceptions=(
        Misconception("combine_without_transpose", _merge_without_transpose, _merge_text, COMBINE),
        Misconception(
            "heads_interleaved",
            lambda x: np.moveaxis(x, -3, -1).reshape(*x.shape[:-3], x.shape[-2], -1),
            lambda values: (
                "The heads alternate in your result: a number of head 0, one of head 1, and so on. "
                f"The {values['x'].shape[-1]} numbers of a head stay together: first all of head 0, then all of head "
                f"1. "
                "Before you join the last two axes they must be (n_heads, d_k), in this order."
            ),
            COMBINE,
        ),
        Misconception(
            "heads_averaged",
            lambda x: x.mean(axis=-3),
            "You average the heads. What they found is then blended into one, and the width shrinks to d_k. Put them "
            "side by side: n_heads * d_k numbers for each token.",
            COMBINE,
        ),
        Misconception(
            "heads_summed",
            lambda x: x.sum(axis=-3),
            "You add the heads up. What they found is then blended into one, and the width shrinks to d_k. Put them "
            "side by side: n_heads * d_k numbers for each token.",
            COMBINE,
        ),
        Misconception(
            "joined_along_tokens",
            lambda x: np.concatenate([x[..., head, :, :] for head in range(x.shape[-3])], axis=-2),
            "You put the heads one below the other, so there are n_heads * T rows. There should be one row for each "
            "token: join along the last axis.",
            COMBINE,
        ),
        Misconception(
            "not_joined",
            lambda x: np.swapaxes(x, -2, -3),
            "The heads of a token now stand side by side, (..., T, n_heads, d_k). One step is missing: make one axis "
            "of "
            "the last two.",
            COMBINE,
        ),
        Misconception(
            "tokens_flattened",
            lambda x: np.swapaxes(x, -2, -3).reshape(*x.shape[:-3], -1),
            "The tokens are gone: your last axis holds all of them in one row. Keep the axis of tokens, and join only "
            "heads and d_k.",
            COMBINE,
        ),
        Misconception(
            "sliders_before_tokens",
            lambda x: np.swapaxes(combine_heads(x), -1, -2),
            "Your result is (..., n_heads * d_k, T), and (..., T, n_heads * d_k) was asked for: a row for each token.",
            COMBINE,
        ),
        Misconception(
            "one_head_only",
            lambda x: x[..., 0, :, :],
            "You return head 0 alone. All heads belong in the row of a token, side by side.",
            COMBINE,
        ),
        Misconception(
            "transpose_of_numpy",
            lambda x: x.transpose(1, 2).reshape(*x.shape[:-3], x.shape[-2], -1),
            _TRANSPOSE_OF_NUMPY,
            COMBINE,
        ),
        Misconception("fixed_rank", _combined_with_batch_axis, _FIXED_RANK_COMBINING, COMBINE),
        Misconception("fixed_rank", _combined_without_batch_axis, _FIXED_RANK_COMBINING, COMBINE),
        Misconception(
            "fixed_rank",
            lambda x: x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1),
            _FIXED_RANK_COMBINING,
            COMBINE,
        ),
        Misconception(
            "fixed_rank", lambda x: x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1), _FIXED_RANK_COMBINING, COMBINE
        ),
    ),
)


# What heads cost


def parameter_count(d_model: int, n_heads: int) -> int:
    """The entries of the four matrices, counted one head at a time."""
    _check_heads(d_model, n_heads)
    d_k = d_model // n_heads
    entries = 0
    for _ in range(n_heads):
        entries += 3 * d_model * d_k  # this head's columns of W_Q, W_K and W_V
        entries += d_k * d_model  # this head's rows of W_O
    return entries


def attention_macs(n_tokens: int, d_model: int, n_heads: int) -> int:
    """One multiply-add for each term of each sum, counted one head at a time."""
    _check_heads(d_model, n_heads)
    d_k = d_model // n_heads
    macs = 0
    for _ in range(n_heads):
        macs += 3 * n_tokens * d_k * d_model  # T * d_k numbers of Q, of K and of V, each a sum of d_model terms
        macs += n_tokens * n_tokens * d_k  # T * T scores, each a sum of d_k terms
        macs += n_tokens * d_k * n_tokens  # T * d_k outputs, each a sum of T terms
        macs += n_tokens * d_model * d_k  # this head's part of the product with W_O
    return macs


_parameter_count = Exercise(
    id="parameter_count",
    points=2,
    section=COST,
    reference=parameter_count,
    families={"the entries of the four matrices": 1.0},
    cases=tuple(
        Case(title, "the entries of the four matrices", lambda rng, d=d_model, h=n_heads: given(d, h))
        for title, d_model, n_heads in (
            ("d_model 12, three heads", 12, 3),
            ("d_model 12, one head", 12, 1),
            ("d_model 512, eight heads", 512, 8),
            ("d_model 768, twelve heads", 768, 12),
            ("d_model 10, two heads", 10, 2),
        )
    ),
    misconceptions=(
        Misconception(
            "times_heads",
            lambda d_model, n_heads: 4 * d_model**2 * n_heads,
            lambda values: (
                f"You give each of the {values['n_heads']} heads whole matrices of its own. The heads share one set: "
                f"of "
                "W_Q, W_K and W_V each head has d_k columns, of W_O d_k rows."
            ),
            COST,
        ),
        Misconception(
            "times_heads",
            lambda d_model, n_heads: 3 * d_model**2 * n_heads + d_model**2,
            "You count a whole W_Q, W_K and W_V for each head. A head has only d_k = d_model / n_heads columns of "
            "each.",
            COST,
        ),
        Misconception(
            "one_head_only",
            lambda d_model, n_heads: 4 * d_model * (d_model // n_heads),
            "That is what a single head has: d_model x d_k numbers in each matrix. There are n_heads of them.",
            COST,
        ),
        Misconception(
            "one_head_only",
            lambda d_model, n_heads: 3 * d_model * (d_model // n_heads) + d_model**2,
            "Your W_Q, W_K and W_V are those of a single head, d_model x d_k. All heads together have d_model columns.",
            COST,
        ),
        Misconception(
            "w_o_forgotten",
            lambda d_model, n_heads: 3 * d_model**2,
            "You count W_Q, W_K and W_V. W_O, which mixes what the heads found, has as many entries as each of them.",
            COST,
        ),
        Misconception(
            "with_biases",
            lambda d_model, n_heads: 4 * d_model**2 + 4 * d_model,
            "You count biases too. The four matrices of this chapter have none.",
            COST,
        ),
        Misconception(
            "one_matrix",
            lambda d_model, n_heads: d_model**2,
            "That is one matrix. There are four: W_Q, W_K, W_V and W_O.",
            COST,
        ),
        Misconception(
            "not_squared",
            lambda d_model, n_heads: 4 * d_model,
            "A matrix of d_model rows and d_model columns has d_model * d_model entries.",
            COST,
        ),
    ),
)

_attention_macs = Exercise(
    id="attention_macs",
    points=2,
    section=COST,
    reference=attention_macs,
    families={"one multiply-add for each term of each sum": 1.0},
    cases=tuple(
        Case(
            title,
            "one multiply-add for each term of each sum",
            lambda rng, t=n_tokens, d=d_model, h=n_heads: given(t, d, h),
        )
        for title, n_tokens, d_model, n_heads in (
            ("ten tokens, d_model 12, three heads", 10, 12, 3),
            ("ten tokens, d_model 12, one head", 10, 12, 1),
            ("one token", 1, 12, 3),
            ("100 tokens, d_model 512, eight heads", 100, 512, 8),
            ("4096 tokens, d_model 768, twelve heads", 4096, 768, 12),
        )
    ),
    misconceptions=(
        Misconception(
            "maps_times_heads",
            lambda n_tokens, d_model, n_heads: 4 * n_tokens * d_model**2 + 2 * n_tokens**2 * d_model * n_heads,
            lambda values: (
                f"You count T x T x d_model for each of the {values['n_heads']} heads. A head's vectors have only d_k "
                "numbers, and n_heads * d_k is d_model again."
            ),
            COST,
        ),
        Misconception(
            "everything_times_heads",
            lambda n_tokens, d_model, n_heads: n_heads * (4 * n_tokens * d_model**2 + 2 * n_tokens**2 * d_model),
            lambda values: (
                f"You count {values['n_heads']} whole attentions. Each head works with d_k = d_model / n_heads numbers "
                "instead of d_model."
            ),
            COST,
        ),
        Misconception(
            "one_head_only",
            lambda n_tokens, d_model, n_heads: 4 * n_tokens * d_model**2 + 2 * n_tokens**2 * (d_model // n_heads),
            "The scores and the weighted sums are those of a single head, T x T x d_k each. There are n_heads of them.",
            COST,
        ),
        Misconception(
            "one_map_product",
            lambda n_tokens, d_model, n_heads: 4 * n_tokens * d_model**2 + n_tokens**2 * d_model,
            "You count one of the two products with a T x T map. There are Q @ K^T, which makes the scores, and "
            "weights @ V, which spends them.",
            COST,
        ),
        Misconception(
            "w_o_forgotten",
            lambda n_tokens, d_model, n_heads: 3 * n_tokens * d_model**2 + 2 * n_tokens**2 * d_model,
            "You count the products with W_Q, W_K and W_V, but not the one with W_O.",
            COST,
        ),
        Misconception(
            "projections_only",
            lambda n_tokens, d_model, n_heads: 4 * n_tokens * d_model**2,
            "That is the four products with W_Q, W_K, W_V and W_O. The attention itself is missing: scores and "
            "weighted sums.",
            COST,
        ),
        Misconception(
            "maps_only",
            lambda n_tokens, d_model, n_heads: 2 * n_tokens**2 * d_model,
            "That is the scores and the weighted sums. The products with W_Q, W_K, W_V and W_O are missing.",
            COST,
        ),
        Misconception(
            "multiplications_and_additions",
            lambda n_tokens, d_model, n_heads: 2 * (4 * n_tokens * d_model**2 + 2 * n_tokens**2 * d_model),
            "You count multiplications and additions apart (FLOPs), which is twice as much. A multiply-add is one "
            "step: "
            "one product, added to a sum.",
            COST,
        ),
        Misconception(
            "tokens_forgotten",
            lambda n_tokens, d_model, n_heads: 4 * d_model**2 + 2 * n_tokens**2 * d_model,
            "The products with W_Q, W_K, W_V and W_O are counted for one token. They are needed for each of the T.",
            COST,
        ),
        Misconception(
            "one_projection",
            lambda n_tokens, d_model, n_heads: n_tokens * d_model**2 + 2 * n_tokens**2 * d_model,
            "You count one product with a matrix. There are four: W_Q, W_K, W_V and W_O.",
            COST,
        ),
        Misconception(
            "maps_like_projections",
            lambda n_tokens, d_model, n_heads: 6 * n_tokens * d_model**2,
            "You count six products of T x d_model x d_model. In two of them tokens meet tokens: there T comes in "
            "twice, "
            "and d_model once.",
            COST,
        ),
        Misconception(
            "not_squared",
            lambda n_tokens, d_model, n_heads: 4 * n_tokens * d_model + 2 * n_tokens**2 * d_model,
            "Each number of Q is a sum of d_model terms, and each token has d_model such numbers: T * d_model * "
            "d_model.",
            COST,
        ),
    ),
)


# The two classes: oracles


class MultiHeadAttentionNumPy:
    """Multi-head self-attention in loops over sequences and heads."""

    check = staticmethod(_check_heads)

    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        self.check(d_model, n_heads)
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        rng = np.random.default_rng(seed)
        self.W_Q, self.W_K, self.W_V, self.W_O = rng.standard_normal((4, d_model, d_model)) / math.sqrt(d_model)

    def forward(self, X: np.ndarray, keep: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(..., T, d_model) -> output (..., T, d_model), weights (..., n_heads, T, T)."""
        *leading, n_tokens, _ = X.shape
        weights = np.zeros((*leading, self.n_heads, n_tokens, n_tokens))
        kept = np.broadcast_to(True if keep is None else keep, weights.shape)
        output = np.zeros(X.shape)
        for place in np.ndindex(*leading):
            found = []
            for head in range(self.n_heads):
                own = slice(head * self.d_k, (head + 1) * self.d_k)
                Q, K, V = (X[place].astype(float) @ W[:, own] for W in (self.W_Q, self.W_K, self.W_V))
                scores = Q @ K.T / math.sqrt(self.d_k)
                weights[place][head] = masked_softmax(scores, kept[place][head])
                found.append(weights[place][head] @ V)
            output[place] = np.concatenate(found, axis=-1) @ self.W_O
        return output.astype(X.dtype), weights.astype(X.dtype)


class MultiHeadAttention(nn.Module):
    """Multi-head attention on torch's own attention, which also gives the weights: those of values that are a unit
    matrix. The stand-in of later chapters."""

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__()
        self.check(d_model, n_heads, d_head)
        self.d_model, self.n_heads = d_model, n_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        width = n_heads * self.d_head
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, width, bias=False) for _ in range(3))
        self.w_o = nn.Linear(width, d_model, bias=False)

    @staticmethod
    def check(d_model: int, n_heads: int, d_head: int | None) -> None:
        """ValueError for a number of heads that cannot be."""
        if d_head is None:
            _check_heads(d_model, n_heads)
        else:
            _positive_heads(d_model, n_heads)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, T_q, d_model), (B, T_k, d_model) twice -> output (B, T_q, d_model), weights (B, n_heads, T_q, T_k)."""
        if keep is not None and keep.dtype != torch.bool:
            raise ValueError(f"keep must be boolean, True = may attend, got {keep.dtype}")  # else it would be added
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = (
            torch.stack(layer(x).split(self.d_head, dim=-1), dim=1)
            for layer, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        )
        unit = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-1], -1)
        weights = scaled_dot_product_attention(q, k, unit, attn_mask=keep)
        return self.w_o(torch.cat((weights @ v).unbind(dim=1), dim=-1)), weights


# The two classes: mistakes. One description in steps, a step of which is replaced, serves NumPy and PyTorch.


class _Matrices(NamedTuple):
    """The four matrices for row vectors, x @ W: three (d_model, n_heads * d_head), and W_O (n_heads * d_head, "
    "d_model)."""

    Q: Tensor
    K: Tensor
    V: Tensor
    O: Tensor  # noqa: E741 - named as in the course


def _split(x: Tensor, n_heads: int) -> Tensor:
    return x.unflatten(-1, (n_heads, -1)).transpose(-2, -3)


def _combine(x: Tensor) -> Tensor:
    return x.transpose(-2, -3).flatten(-2)


def _softmax(scores: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(scores, dim)


def _weigh(scores: Tensor, keep: Tensor | None) -> Tensor:
    if keep is None:
        return _softmax(scores)
    return torch.nan_to_num(_softmax(scores.masked_fill(~keep, -math.inf)))


@dataclass(frozen=True)
class _Steps:
    """Multi-head attention from token vectors to (output, weights), step by step."""

    project: Callable[..., tuple[Tensor, Tensor, Tensor]] = lambda query, key, value, W: (
        query @ W.Q,
        key @ W.K,
        value @ W.V,
    )
    split: Callable[[Tensor, int], Tensor] = _split
    scale: Callable[[int, int], float] = lambda d_head, d_model: 1 / math.sqrt(d_head)
    weigh: Callable[[Tensor, Tensor | None], Tensor] = _weigh
    mix: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    combine: Callable[[Tensor], Tensor] = _combine
    write: Callable[[Tensor, Tensor], Tensor] = torch.matmul
    give: Callable[..., Any] = lambda query, output, weights, scores: (output, weights)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, W: _Matrices, n_heads: int, keep: Any) -> Any:
        q, k, v = (self.split(x, n_heads) for x in self.project(query, key, value, W))
        d_model, d_head = W.Q.shape[0], W.Q.shape[1] // n_heads
        scores = q @ k.transpose(-2, -1) * self.scale(d_head, d_model)
        weights = self.weigh(scores, keep)
        output = self.write(self.combine(self.mix(weights, v)), W.O)
        return self.give(query, output, weights, scores)


def _over_batch(query: Tensor, key: Tensor, value: Tensor, W: _Matrices, n_heads: int, keep: Any) -> Any:
    output, weights = _Steps()(*(x.transpose(0, 1) for x in (query, key, value)), W, n_heads, keep)
    return output.transpose(0, 1), weights


def _shared_projection(x: Tensor, n_heads: int) -> Tensor:
    heads = _split(x, n_heads)
    return heads[..., :1, :, :].expand(heads.shape)


def _in_memory_order(x: Tensor, n_heads: int) -> Tensor:
    return x.reshape(*x.shape[:-2], n_heads, x.shape[-2], -1)


def _alternating(x: Tensor, n_heads: int) -> Tensor:
    return x.unflatten(-1, (-1, n_heads)).movedim(-1, -3)


def _merged_in_memory_order(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:-3], x.shape[-2], -1)


def _softmax_along(dim: int | None) -> Callable[[Tensor, Tensor | None], Tensor]:
    def weigh(scores: Tensor, keep: Tensor | None) -> Tensor:
        masked = scores if keep is None else scores.masked_fill(~keep, -math.inf)
        weights = _softmax(masked.flatten(), 0).reshape(scores.shape) if dim is None else _softmax(masked, dim)
        return weights if keep is None else torch.nan_to_num(weights)

    return weigh


def _with_mask(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    return lambda scores, keep: _weigh(scores, None) if keep is None else weigh(scores, keep)


def _mask_changed(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    return _with_mask(lambda scores, keep: _weigh(scores, change(keep)))


def _filled(fill: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    return _with_mask(lambda scores, keep: _softmax(scores.masked_fill(~keep, fill)))


def _first_head_only(scores: Tensor, keep: Tensor) -> Tensor:
    masked, weights = _weigh(scores, keep), _softmax(scores)
    weights[..., 0, :, :] = masked[..., 0, :, :]
    return weights


def _exp_without_maximum(scores: Tensor, keep: Tensor | None) -> Tensor:
    powers = torch.exp(scores if keep is None else scores.masked_fill(~keep, -math.inf))
    return powers / powers.sum(-1, keepdim=True)


def _causal_always(scores: Tensor, keep: Tensor | None) -> Tensor:
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return _weigh(scores, past if keep is None else keep & past)


def _sizes(values: Mapping[str, Any]) -> tuple[int, int]:
    """d_model and d_k of a case."""
    d_model, n_heads = values["d_model"], values["n_heads"]
    return d_model, values.get("d_head") or d_model // n_heads


def _scale_text(words: str) -> Callable[[Mapping[str, Any]], str]:
    def text(values: Mapping[str, Any]) -> str:
        d_model, d_k = _sizes(values)
        return words.format(d_model=d_model, d_k=d_k, root_model=math.sqrt(d_model), root_k=math.sqrt(d_k))

    return text


#: (id, what computes (output, weights) wrongly, explanation, section): mistakes of both classes.
_ATTENTION_MISTAKES: tuple[tuple[str, Callable[..., Any], Any, str], ...] = (
    (
        "no_scale",
        _Steps(scale=lambda d_head, d_model: 1.0),
        _scale_text("Your scores equal Q @ K^T without a scale. Divide them by sqrt(d_k) = {root_k:.3g}."),
        NUMPY,
    ),
    (
        "scaled_by_d_model",
        _Steps(scale=lambda d_head, d_model: 1 / math.sqrt(d_model)),
        _scale_text(
            "Your scores equal those divided by sqrt(d_model) = {root_model:.3g} instead of sqrt(d_k) = {root_k:.3g}. "
            "A score is a sum of d_k = {d_k} terms: scale by what one head has."
        ),
        NUMPY,
    ),
    (
        "scaled_by_d_k",
        _Steps(scale=lambda d_head, d_model: 1 / d_head),
        _scale_text(
            "Your scores equal those divided by d_k = {d_k} instead of sqrt(d_k) = {root_k:.3g}. Either the root is "
            "missing, or you divide by it twice: `attention` of chapter 2 already scales."
        ),
        NUMPY,
    ),
    (
        "scaled_by_d_model",
        _Steps(scale=lambda d_head, d_model: 1 / math.sqrt(d_head * d_model)),
        _scale_text(
            "Your scores are scaled twice: by sqrt(d_k) = {root_k:.3g} and by sqrt(d_model) = {root_model:.3g}. "
            "Scale once, by sqrt(d_k); `attention` of chapter 2 already does."
        ),
        NUMPY,
    ),
    (
        "multiplied_by_scale",
        _Steps(scale=lambda d_head, d_model: math.sqrt(d_head)),
        _scale_text("Your scores are multiplied by sqrt(d_k) = {root_k:.3g}. Divide by it."),
        NUMPY,
    ),
    (
        "split_without_transpose",
        _Steps(split=_in_memory_order),
        "Your heads equal those of a reshape straight to (n_heads, T, d_k), without a transpose: they mix numbers of "
        "different tokens. Cut the last axis into (n_heads, d_k) first, then swap the axes of tokens and heads.",
        SPLIT,
    ),
    (
        "combine_without_transpose",
        _Steps(combine=_merged_in_memory_order),
        "Your output equals a reshape straight from (n_heads, T, d_k), without a transpose: rows mix numbers of "
        "different "
        "tokens. Swap the axes of heads and tokens first, then join the last two.",
        COMBINE,
    ),
    (
        "split_without_transpose",
        _Steps(split=_in_memory_order, combine=_merged_in_memory_order),
        "You reshape without a transpose both when splitting and when combining. Coming back the same way hides it, "
        "but in "
        "between the heads mix numbers of different tokens. Swap the axes of tokens and heads both times.",
        SPLIT,
    ),
    (
        "attends_over_heads",
        _Steps(split=lambda x, n: x.unflatten(-1, (n, -1)), combine=lambda x: x.flatten(-2)),
        "Your weights are (..., T, n_heads, n_heads): the heads of a token look at each other, and no token looks at "
        "another "
        "one. After cutting the last axis, swap the axes of tokens and heads, so that the last two are (T, d_k).",
        SPLIT,
    ),
    (
        "heads_interleaved",
        _Steps(split=_alternating),
        "Your heads take every n_heads-th number instead of blocks of neighbours: cut the last axis into (n_heads, "
        "d_k), "
        "in this order, not into (d_k, n_heads).",
        SPLIT,
    ),
    (
        "heads_interleaved",
        _Steps(split=_alternating, combine=lambda x: x.movedim(-3, -1).flatten(-2)),
        "Your heads take every n_heads-th number instead of blocks of neighbours, both when splitting and when "
        "combining: "
        "the axes are (n_heads, d_k), in this order, not (d_k, n_heads).",
        SPLIT,
    ),
    (
        "heads_interleaved",
        _Steps(combine=lambda x: x.movedim(-3, -1).flatten(-2)),
        "When you combine, the heads alternate: a number of head 0, one of head 1, and so on. The d_k numbers of a "
        "head stay together.",
        COMBINE,
    ),
    (
        "heads_share_projection",
        _Steps(split=_shared_projection),
        "All your heads are the same: each works with the first d_k columns of W_Q, W_K and W_V. Every head has "
        "columns of its own.",
        SPLIT,
    ),
    (
        "heads_averaged",
        _Steps(combine=lambda x: x.mean(-3), write=lambda joined, W_O: joined),
        "You average the heads. What they found is then blended into one. Put them side by side, n_heads * d_k numbers "
        "for each token, and multiply by W_O.",
        COMBINE,
    ),
    (
        "heads_averaged",
        _Steps(combine=lambda x: x.mean(-3).repeat(*[1] * (x.ndim - 2), x.shape[-3])),
        "You average the heads and repeat the average to the full width. Put the heads themselves side by side.",
        COMBINE,
    ),
    (
        "heads_summed",
        _Steps(combine=lambda x: x.sum(-3), write=lambda joined, W_O: joined),
        "You add the heads up. What they found is then blended into one. Put them side by side, n_heads * d_k numbers "
        "for each token, and multiply by W_O.",
        COMBINE,
    ),
    (
        "not_combined",
        _Steps(combine=lambda x: x, write=lambda heads, W_O: heads),
        "Your output still has the axis of heads, (..., n_heads, T, d_k). Put the heads side by side again, and "
        "multiply by "
        "W_O.",
        COMBINE,
    ),
    (
        "w_o_missing",
        _Steps(write=lambda joined, W_O: joined),
        "Your output equals the heads side by side, without W_O. One step is missing: the product with W_O, which "
        "mixes what "
        "the heads found.",
        NUMPY,
    ),
    (
        "w_o_transposed",
        _Steps(write=lambda joined, W_O: joined @ W_O.T),
        "Your output is multiplied by the transpose of W_O. Vectors are rows here: in NumPy `joined @ W_O`, in PyTorch "
        "`w_o(joined)`.",
        NUMPY,
    ),
    (
        "activation_added",
        _Steps(write=lambda joined, W_O: torch.relu(joined @ W_O)),
        "Negative numbers of your output are 0: after W_O comes no activation such as ReLU.",
        NUMPY,
    ),
    (
        "residual_added",
        _Steps(give=lambda query, output, weights, scores: (query + output, weights)),
        "You add the input to the output. That belongs around attention, in a whole block, and is not asked for here.",
        NUMPY,
    ),
    (
        "weights_averaged",
        _Steps(give=lambda query, output, weights, scores: (output, weights.mean(-3))),
        "You average the weights over the heads. Return them for each head, (..., n_heads, T, T): the heads differ, "
        "and an "
        "average hides that.",
        NUMPY,
    ),
    (
        "weights_summed",
        _Steps(give=lambda query, output, weights, scores: (output, weights.sum(-3))),
        "You add the weights up over the heads. Return them for each head, (..., n_heads, T, T).",
        NUMPY,
    ),
    (
        "weights_of_one_head",
        _Steps(give=lambda query, output, weights, scores: (output, weights[..., 0, :, :])),
        "You return the weights of head 0 alone. Return those of all heads, (..., n_heads, T, T).",
        NUMPY,
    ),
    (
        "weights_of_one_head",
        _Steps(give=lambda query, output, weights, scores: (output, weights[..., -1, :, :])),
        "You return the weights of the last head alone. Return those of all heads, (..., n_heads, T, T).",
        NUMPY,
    ),
    (
        "scores_returned",
        _Steps(give=lambda query, output, weights, scores: (output, scores)),
        "The second thing you return are the scores. The weights are asked for: after the softmax, each row sums to 1.",
        NUMPY,
    ),
    (
        "returned_in_wrong_order",
        _Steps(give=lambda query, output, weights, scores: (weights, output)),
        "You return (weights, output). Return the output first.",
        NUMPY,
    ),
    (
        "weights_missing",
        _Steps(give=lambda query, output, weights, scores: output),
        "You return the output alone. The pair (output, weights) is asked for.",
        NUMPY,
    ),
    (
        "over_queries",
        _Steps(weigh=_softmax_along(-2)),
        "Your weights sum to 1 down the columns, over the queries. Each query has its own 100 % to spend on the "
        "keys: take the softmax along the last axis.",
        NUMPY,
    ),
    (
        "softmax_over_heads",
        _Steps(weigh=_softmax_along(-3)),
        "Your weights sum to 1 over the heads: they share one budget. Every query of every head has 100 % of "
        "its own to spend on the keys. Take the softmax along the last axis.",
        NUMPY,
    ),
    (
        "softmax_over_batch",
        _Steps(weigh=_softmax_along(0)),
        "Your weights sum to 1 along axis 0. Take the softmax along the last axis, the keys.",
        NUMPY,
    ),
    (
        "over_everything",
        _Steps(weigh=_softmax_along(None)),
        "All your weights together sum to 1. Every query of every head has a budget of its own.",
        NUMPY,
    ),
    (
        "no_softmax",
        _Steps(weigh=lambda scores, keep: scores if keep is None else scores * keep),
        "Your weights are the scores themselves. A softmax along the last axis makes shares of them.",
        NUMPY,
    ),
    (
        "no_max_subtracted",
        _Steps(weigh=_exp_without_maximum),
        "Your softmax does not subtract the largest score of each row, so exp overflows and the result is NaN. "
        "A softmax that does so is at hand: in chapter 1, and as `torch.softmax`.",
        NUMPY,
    ),
    (
        "values_not_projected",
        _Steps(project=lambda query, key, value, W: (query @ W.Q, key @ W.K, value)),
        "Your heads mix the token vectors themselves. They mix values: token vectors times W_V.",
        NUMPY,
    ),
    (
        "same_projection",
        _Steps(project=lambda query, key, value, W: (query @ W.Q, key @ W.Q, value @ W.V)),
        "Your keys are made with W_Q. Each has a matrix of its own: keys with W_K.",
        NUMPY,
    ),
    (
        "same_projection",
        _Steps(project=lambda query, key, value, W: (query @ W.Q, key @ W.K, value @ W.K)),
        "Your values are made with W_K. Each has a matrix of its own: values with W_V.",
        NUMPY,
    ),
    (
        "same_projection",
        _Steps(project=lambda query, key, value, W: (query @ W.Q, key @ W.Q, value @ W.Q)),
        "Your queries, keys and values are all made with W_Q. Each has a matrix of its own: W_Q, W_K and W_V.",
        NUMPY,
    ),
    (
        "queries_and_keys_swapped",
        _Steps(project=lambda query, key, value, W: (key @ W.K, query @ W.Q, value @ W.V)),
        "Queries and keys have changed places: your scores are K @ Q^T. A row belongs to a query: Q @ K^T.",
        NUMPY,
    ),
    (
        "keys_and_values_swapped",
        _Steps(project=lambda query, key, value, W: (query @ W.Q, value @ W.V, key @ W.K)),
        "Keys and values have changed places: scores come from Q and K, and what is mixed are the V. Look at the "
        "order of "
        "the arguments.",
        NUMPY,
    ),
    (
        "weights_transposed",
        _Steps(project=lambda query, key, value, W: (query @ W.Q.T, key @ W.K.T, value @ W.V.T)),
        "Q, K and V equal products with the transposes of W_Q, W_K and W_V. Vectors are rows here: in NumPy `X @ "
        "W_Q`, in "
        "PyTorch `w_q(query)` (a layer keeps its matrix transposed, and turns it by itself).",
        NUMPY,
    ),
    (
        "attends_over_batch",
        _over_batch,
        "Your weights compare the sequences of the batch with each other instead of the tokens of a sequence: their "
        "last "
        "two axes have the size of the batch. The axes are (B, T, d_model), in this order.",
        NUMPY,
    ),
    (
        "ignores_mask",
        _Steps(weigh=lambda scores, keep: _softmax(scores)),
        "Your weights are those without a mask. Is `keep` handed on, and is the result of the masking used?",
        MASKS,
    ),
    (
        "inverted_mask",
        _Steps(weigh=_mask_changed(torch.logical_not)),
        "Your mask works the other way round: `keep` True means that a key may be attended to.",
        MASKS,
    ),
    (
        "mask_after_softmax",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores) * keep)),
        "You set hidden weights to 0 after the softmax: the rows no longer sum to 1. Hide the scores first, "
        "with -infinity, then take the softmax.",
        MASKS,
    ),
    (
        "mask_added",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores + keep.to(scores.dtype)))),
        "You add the mask to the scores: True counts as 1, so a hidden key loses only 1 point of score. Hidden "
        "scores must become -infinity.",
        MASKS,
    ),
    (
        "hidden_score_zero",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores * keep))),
        "Your weights equal those of hidden scores set to 0 (by multiplying with the mask, or with a fill such as "
        "1e-9). "
        "exp(0) is 1, not 0: a hidden score must become -infinity.",
        MASKS,
    ),
    (
        "fully_masked_nan",
        _Steps(weigh=_with_mask(lambda scores, keep: _softmax(scores.masked_fill(~keep, -math.inf)))),
        "A query that may attend to nothing gets NaN in your code, a softmax of nothing but -infinity. Its weights "
        "are all "
        "0.",
        MASKS,
    ),
    (
        "fully_masked_uniform",
        _Steps(weigh=_filled(-1e9)),
        "A query that may attend to nothing gets equal weights in your code, since all its scores are filled with "
        "the same "
        "number. Its weights are all 0.",
        MASKS,
    ),
    *(
        (
            "finite_fill",
            _Steps(weigh=_filled(fill)),
            f"You fill hidden scores with {fill:g}. Scores can be lower than that, and then the hidden key wins; and "
            f"where "
            "everything is hidden, the weights come out equal instead of 0. Only -infinity is below every score.",
            MASKS,
        )
        for fill in (-50.0, -100.0, -1e3, -1e4)
    ),
    (
        "mask_on_first_head_only",
        _Steps(weigh=_with_mask(_first_head_only)),
        "The mask reaches only head 0. Let it broadcast over all heads.",
        MASKS,
    ),
    (
        "mask_along_queries",
        _Steps(weigh=_mask_changed(lambda keep: keep.transpose(-1, -2) if keep.ndim > 1 else keep[:, None])),
        "Your mask lies along the queries: rows and columns are exchanged. In `keep` the last axis belongs to the "
        "keys, as "
        "in the scores: it needs no transpose.",
        MASKS,
    ),
    (
        "mask_axis_inserted",
        _Steps(weigh=_mask_changed(lambda keep: keep.unsqueeze(-3))),
        "You insert an axis into every mask. `keep` arrives ready to broadcast to (..., n_heads, T_q, T_k): whoever "
        "calls "
        "has put the axis for the heads in, where one was needed.",
        MASKS,
    ),
    (
        "mask_axis_inserted",
        _Steps(weigh=_mask_changed(lambda keep: keep.unsqueeze(1) if keep.ndim == 3 else keep)),
        "You take a mask with three axes for one mask per sequence and insert an axis for the heads. It broadcasts "
        "as it "
        "is: with three axes it is (n_heads, T_q, T_k), one mask per head. Guessing goes wrong as soon as there are "
        "as many "
        "sequences as heads.",
        MASKS,
    ),
    (
        "mask_batch_on_heads",
        _Steps(weigh=_mask_changed(lambda keep: keep.squeeze(1) if keep.ndim == 4 else keep)),
        "Your code drops the axis of length 1 that stands for the heads, so the masks of the sequences land on the "
        "heads: an "
        "error, or, with as many sequences as heads, silently the wrong masks. Leave the axes of `keep` as they are.",
        MASKS,
    ),
    (
        "causal_always",
        _Steps(weigh=_causal_always),
        "Your tokens see only the past, though no mask says so. What may be seen is `keep`'s business alone.",
        MASKS,
    ),
)


def _heads_text(values: Mapping[str, Any]) -> str:
    if values["n_heads"] == 0:
        return _ZERO_HEADS
    return (
        f"Your class accepts {values['n_heads']} heads for d_model = {values['d_model']}. Look at the numbers when an "
        "object is built, and raise a ValueError there: later, in `forward`, the mistake is far away from its cause."
    )


def _weights_of(result: Any) -> np.ndarray | None:
    """The weights of a pair (output, weights); None for what other scenarios return."""
    if not isinstance(result, tuple):
        return None
    return getattr(result[1], "array", result[1])


def _sum_is_not_1(values: Mapping[str, Any], result: Any) -> str | None:
    weights = _weights_of(result)
    if weights is None or values.get("keep") is not None:
        return None
    sums = weights.sum(axis=-1)
    wrong = sums[~np.isclose(sums, 1.0, atol=1e-4)]
    if not wrong.size:
        return None
    return f"A row of your weights sums to {wrong.flat[0]:.4g}. Each query of each head spends 1, that is, 100 %."


def _hidden_gets_weight(values: Mapping[str, Any], result: Any) -> str | None:
    weights = _weights_of(result)
    if weights is None or values.get("keep") is None:
        return None
    leaked = float(np.max(np.where(values["keep"], 0.0, weights)))
    return f"A hidden key gets a weight of {leaked:.3g} in your result. It must get exactly 0." if leaked else None


def _heads_are_equal(values: Mapping[str, Any], result: Any) -> str | None:
    weights = _weights_of(result)
    if weights is None or values["n_heads"] == 1 or weights.shape[-1] == 1:
        return None
    if not np.allclose(weights, weights[..., :1, :, :]):
        return None
    return "All your heads have the same weights. Each has its own columns of the matrices, so they should differ."


_LAWS = (
    Law("hidden_gets_weight", _hidden_gets_weight, MASKS),
    Law("rows_do_not_sum_to_1", _sum_is_not_1, NUMPY),
    Law("heads_are_equal", _heads_are_equal, SPLIT),
)


def _nonzero_dividing_heads(d_model: int, n_heads: int) -> None:
    if n_heads == 0 or d_model % n_heads:
        raise ValueError


#: (id, the check that an object makes when it is built, explanation): mistakes of both classes.
_CHECK_MISTAKES: tuple[tuple[str, Callable[[int, int], None], Any], ...] = (
    ("truncated_silently", _positive_heads, _heads_text),
    ("truncated_silently", lambda d_model, n_heads: None, _heads_text),
    ("zero_or_negative_heads", _dividing_heads, _heads_text),
    ("zero_or_negative_heads", _nonzero_dividing_heads, _heads_text),
)


# MultiHeadAttentionNumPy


class _NumPyVariant(MultiHeadAttentionNumPy):
    """A wrong answer: `attend` computes (output, weights)."""

    attend: Callable[..., Any] = _Steps()

    def matrices(self) -> tuple[np.ndarray, ...]:
        return self.W_Q, self.W_K, self.W_V, self.W_O

    def forward(self, X: np.ndarray, keep: np.ndarray | None = None) -> Any:
        W = _Matrices(*(torch.from_numpy(np.array(matrix, dtype=float)) for matrix in self.matrices()))
        x = torch.from_numpy(np.array(X, dtype=float))
        kept = None if keep is None else torch.from_numpy(np.array(keep))
        result = self.attend(x, x, x, W, self.n_heads, kept)
        if not isinstance(result, tuple):
            return result.numpy().astype(X.dtype)
        return tuple(part.numpy().astype(X.dtype) for part in result)


def _numpy_with(attend: Callable[..., Any]) -> type:
    return type("MultiHeadAttentionNumPy", (_NumPyVariant,), {"attend": staticmethod(attend)})


def _numpy_checked_by(check: Callable[[int, int], None]) -> type:
    return type("MultiHeadAttentionNumPy", (_NumPyVariant,), {"check": staticmethod(check)})


class _NumPyStale(_NumPyVariant):
    """Keeps the matrices that it ran with first."""

    def matrices(self) -> tuple[np.ndarray, ...]:
        if not hasattr(self, "kept"):
            self.kept = super().matrices()
        return self.kept


class _NumPyStaleProjections(_NumPyStale):
    """The same for W_Q, W_K and W_V, as a fused matrix does; W_O is live."""

    def matrices(self) -> tuple[np.ndarray, ...]:
        return (*super().matrices()[:3], self.W_O)


class _NumPySeedIgnored(_NumPyVariant):
    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        super().__init__(d_model, n_heads, np.random.SeedSequence().entropy)


class _NumPySeedFixed(_NumPyVariant):
    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        super().__init__(d_model, n_heads, 0)


class _NumPyOneMatrix(_NumPyVariant):
    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        super().__init__(d_model, n_heads, seed)
        self.W_K = self.W_V = self.W_O = self.W_Q


class _NumPyWholeWidth(_NumPyVariant):
    """d_k is the whole d_model."""

    def __init__(self, d_model: int, n_heads: int, seed: int = 0) -> None:
        super().__init__(d_model, n_heads, seed)
        self.d_k = d_model


_NUMPY_NAMES = ("W_Q", "W_K", "W_V", "W_O")


def _numpy_built(
    implementation: Any, d_model: int, n_heads: int, W_Q: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, W_O: np.ndarray
) -> Any:
    mha = implementation(d_model, n_heads)
    mha.W_Q, mha.W_K, mha.W_V, mha.W_O = W_Q, W_K, W_V, W_O
    return mha


def _numpy_forward(
    implementation: Any,
    d_model: int,
    n_heads: int,
    X: np.ndarray,
    W_Q: np.ndarray,
    W_K: np.ndarray,
    W_V: np.ndarray,
    W_O: np.ndarray,
    keep: np.ndarray | None = None,
) -> Any:
    """Build it, give it these matrices, run it."""
    mha = _numpy_built(implementation, d_model, n_heads, W_Q, W_K, W_V, W_O)
    return mha.forward(X) if keep is None else mha.forward(X, keep=keep)


def _numpy_attributes(implementation: Any, d_model: int, n_heads: int) -> dict[str, Any]:
    """Its attributes as it was built; of the matrices, the shapes."""
    mha = implementation(d_model, n_heads)
    shapes = {f"shape of {name}": str(np.shape(getattr(mha, name))) for name in _NUMPY_NAMES}
    return {"n_heads": mha.n_heads, "d_k": mha.d_k, **shapes}


def _numpy_seeds(implementation: Any, d_model: int, n_heads: int) -> dict[str, bool]:
    """How the matrices of four objects compare."""

    def matrices(*seed: int) -> list[np.ndarray]:
        mha = implementation(d_model, n_heads, *seed)
        return [np.array(getattr(mha, name)) for name in _NUMPY_NAMES]

    first, again, other, default, zero = matrices(3), matrices(3), matrices(4), matrices(), matrices(0)
    return {
        "seed 3 twice: the same matrices": all(map(np.array_equal, first, again)),
        "seeds 3 and 4: the same matrices": any(map(np.array_equal, first, other)),
        "no seed and seed 0: the same matrices": all(map(np.array_equal, default, zero)),
        "W_Q, W_K, W_V and W_O differ from each other": not any(
            np.array_equal(first[one], first[two]) for one in range(4) for two in range(one)
        ),
    }


def _numpy_replaced(
    implementation: Any,
    d_model: int,
    n_heads: int,
    X: np.ndarray,
    W_Q: np.ndarray,
    W_K: np.ndarray,
    W_V: np.ndarray,
    W_O: np.ndarray,
) -> dict[str, bool]:
    """Run it as it was built; then give it a new matrix, run it again and see whether the output follows."""
    mha = implementation(d_model, n_heads)
    follows = {}
    for name, matrix in zip(_NUMPY_NAMES, (W_Q, W_K, W_V, W_O), strict=True):
        before = np.array(mha.forward(X)[0])
        setattr(mha, name, matrix)
        follows[f"a new {name} changes the output"] = not np.array_equal(before, mha.forward(X)[0])
    return follows


def _build(implementation: Any, d_model: int, n_heads: int) -> Any:
    """Build it, and do nothing with it."""
    mha = implementation(d_model, n_heads)
    return {"n_heads": mha.n_heads}


def _numpy_arguments(
    rng: np.random.Generator, n_heads: int, *shape: int, dtype: type = float, scale: float = 1.0, opposed: bool = False
) -> dict[str, Any]:
    """X of this shape and matrices that give scores of about unit variance times scale squared.

    `opposed` keys point away from the queries: a token's score for itself is far below 0.
    """
    d_model = shape[-1]
    W = {name: rng.standard_normal((d_model, d_model)) / math.sqrt(d_model) for name in _NUMPY_NAMES}
    if opposed:
        W["W_K"] = -W["W_Q"]
    X = scale * rng.standard_normal(shape)
    return {"d_model": d_model, "n_heads": n_heads, "X": X.astype(dtype)} | {n: w.astype(dtype) for n, w in W.items()}


def _numpy_case(
    title: str,
    family: str,
    n_heads: int,
    *shape: int,
    keep: Callable[[np.random.Generator], np.ndarray] | None = None,
    **options: Any,
) -> Case:
    def arguments(rng: np.random.Generator) -> Arguments:
        named = _numpy_arguments(rng, n_heads, *shape, **options)
        return given(**named) if keep is None else given(**named, keep=keep(rng))

    return Case(title, family, arguments, _numpy_forward)


def _small_numpy(rng: np.random.Generator) -> Arguments:
    """Two heads of two numbers; the matrices only reorder and add, so that it can be followed by hand."""
    X = np.array([[[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 2.0, -1.0]]])
    W_Q, W_K, W_V = np.eye(4), np.eye(4)[[1, 0, 3, 2]], np.diag([1.0, 2.0, 3.0, 4.0])
    W_O = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0], [1.0, 0.0, 0.0, 1.0]])
    return given(d_model=4, n_heads=2, X=X, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O)


def _past(n: int) -> np.ndarray:
    return np.tri(n, dtype=bool)


def _real(lengths: list[int], n: int) -> np.ndarray:
    """(B, 1, n): which tokens are real, the rest being padding."""
    return (np.arange(n) < np.array(lengths)[:, None])[:, None, :]


def _per_head(n_heads: int, n_q: int, n_k: int) -> Callable[[np.random.Generator], np.ndarray]:
    """(n_heads, n_q, n_k): a random mask for each head, without empty rows, all heads different."""

    def make(rng: np.random.Generator) -> np.ndarray:
        keep = rng.random((n_heads, n_q, n_k)) < 0.5
        keep[..., 0] |= ~keep.any(-1)
        keep[np.arange(n_heads), 0, np.arange(n_heads) % n_k] ^= True
        keep[..., -1] |= ~keep.any(-1)
        return keep

    return make


def _one_empty_row(n: int) -> np.ndarray:
    """(n, n): causal, but row 1 may attend to nothing."""
    keep = np.tri(n, dtype=bool)
    keep[1] = False
    return keep


_SELF = "self-attention with several heads"
_MASKED = "masks"
_EMPTY = "a query that may attend to nothing"
_LIVE = "matrices that are replaced later"
_BUILT = "attributes and seeds"

_NUMPY_STALE_TEXT = (
    "A matrix that is assigned later, `mha.W_Q = ...`, changes nothing: your code works with copies that were made "
    "earlier. Use `self.W_Q` and its sisters in `forward`, as they are at that moment."
)

_multi_head_attention_numpy = Exercise(
    id="MultiHeadAttentionNumPy",
    points=5,
    section=NUMPY,
    reference=MultiHeadAttentionNumPy,
    returns=("output", "weights"),
    laws=_LAWS,
    forbidden=_LIBRARY_CALLS,
    exact_zeros=True,
    families={_SELF: 0.5, _LEADING: 0.1, _MASKED: 0.15, _EMPTY: 0.05, _BUILT: 0.1, _LIVE: 0.05, _IMPOSSIBLE: 0.05},
    cases=(
        Case("two tokens, two heads of two numbers", _SELF, _small_numpy, _numpy_forward),
        _numpy_case("three tokens, three heads of two numbers", _SELF, 3, 1, 3, 6),
        _numpy_case("a batch of 2, 5 tokens, 3 heads of 4", _SELF, 3, 2, 5, 12),
        _numpy_case("a batch of 3, 4 tokens, 2 heads of 5, in float32", _SELF, 2, 3, 4, 10, dtype=np.float32),
        _numpy_case("everything is 3: batch, heads, tokens and d_k", _SELF, 3, 3, 3, 9),
        _numpy_case("one head", _SELF, 1, 2, 4, 8),
        _numpy_case("one token", _SELF, 2, 3, 1, 8),
        _numpy_case("scores of a million", _SELF, 2, 1, 3, 8, scale=1000.0),
        _numpy_case("no batch: 5 tokens, 2 heads of 4", _LEADING, 2, 5, 8),
        _numpy_case("two axes of batches", _LEADING, 2, 2, 3, 5, 8),
        _numpy_case("a causal mask", _MASKED, 2, 3, 5, 8, keep=lambda rng: _past(5)),
        _numpy_case(
            "a padding mask, keep[:, None]", _MASKED, 2, 3, 5, 8, keep=lambda rng: _real([5, 2, 3], 5)[:, None]
        ),
        _numpy_case(
            "a padding mask, keep[:, None], with as many sequences as heads",
            _MASKED,
            3,
            3,
            5,
            12,
            keep=lambda rng: _real([5, 2, 1], 5)[:, None],
        ),
        _numpy_case(
            "a mask for each head, (n_heads, T, T), with as many sequences as heads",
            _MASKED,
            3,
            3,
            5,
            12,
            keep=_per_head(3, 5, 5),
        ),
        _numpy_case("a mask for each head, no batch", _LEADING, 3, 5, 12, keep=_per_head(3, 5, 5)),
        _numpy_case(
            "kept scores far below -10000",
            _MASKED,
            2,
            2,
            3,
            12,
            keep=lambda rng: _past(3),
            scale=300.0,
            opposed=True,
        ),
        _numpy_case("token 1 may attend to nothing", _EMPTY, 2, 3, 5, 8, keep=lambda rng: _one_empty_row(5)),
        Case("as it is built", _BUILT, lambda rng: given(12, 3), _numpy_attributes),
        Case("seeds", _BUILT, lambda rng: given(6, 2), _numpy_seeds),
        Case(
            "a new matrix after the first forward",
            _LIVE,
            lambda rng: given(**_numpy_arguments(rng, 2, 2, 3, 8)),
            _numpy_replaced,
        ),
        Case("3 heads for d_model 8", _IMPOSSIBLE, lambda rng: given(8, 3), _build),
        Case("12 heads for d_model 512", _IMPOSSIBLE, lambda rng: given(512, 12), _build),
        Case("0 heads", _IMPOSSIBLE, lambda rng: given(6, 0), _build),
        Case("-2 heads", _IMPOSSIBLE, lambda rng: given(6, -2), _build),
    ),
    misconceptions=(
        *(
            Misconception(identity, _numpy_with(attend), explanation, section)
            for identity, attend, explanation, section in _ATTENTION_MISTAKES
        ),
        Misconception("stale_weights", _NumPyStale, _NUMPY_STALE_TEXT, NUMPY),
        Misconception("stale_weights", _NumPyStaleProjections, _NUMPY_STALE_TEXT, NUMPY),
        *(
            Misconception(identity, _numpy_checked_by(check), explanation, SPLIT)
            for identity, check, explanation in _CHECK_MISTAKES
        ),
        Misconception(
            "seed_ignored",
            _NumPySeedIgnored,
            "Two objects with the same seed have different matrices. Draw them from `np.random.default_rng(seed)`.",
            NUMPY,
        ),
        Misconception(
            "seed_ignored",
            _NumPySeedFixed,
            "Objects with different seeds have the same matrices. Draw them from `np.random.default_rng(seed)`.",
            NUMPY,
        ),
        Misconception(
            "same_matrix_four_times",
            _NumPyOneMatrix,
            "W_Q, W_K, W_V and W_O are the same matrix. If you make a generator with the same seed for each, each "
            "draws "
            "the same numbers: make one, and draw four times.",
            NUMPY,
        ),
        Misconception(
            "d_k_is_d_model",
            _NumPyWholeWidth,
            lambda values: (
                f"`d_k` is {values['d_model']}, the whole width. Each head has d_model / n_heads = "
                f"{values['d_model'] // values['n_heads']} numbers."
            ),
            SPLIT,
        ),
    ),
)


# MultiHeadAttention


class _Layer:
    """What a check needs of an `nn.Linear`, many times faster to make: a card compares with thousands of answers."""

    def __init__(self, d_in: int, d_out: int, bias: bool = False) -> None:
        self.weight = nn.Parameter(torch.ones(d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None


class _Variant:
    """A wrong answer: `attend` computes (output, weights), `fill_in` says what key and value are if not given."""

    attend: Callable[..., Any] = _Steps()
    check = staticmethod(MultiHeadAttention.check)
    training = True

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        self.check(d_model, n_heads, d_head)
        self.d_model, self.n_heads = d_model, n_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        width = n_heads * self.d_head
        self.w_q, self.w_k, self.w_v = (_Layer(d_model, width) for _ in range(3))
        self.w_o = _Layer(width, d_model)

    def parameters(self) -> list[Tensor]:
        return [layer.weight for layer in (self.w_q, self.w_k, self.w_v, self.w_o)]

    def to(self, dtype: torch.dtype) -> _Variant:
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        return self

    def train(self, mode: bool = True) -> _Variant:
        self.training = mode
        return self

    def eval(self) -> _Variant:
        return self.train(False)

    @staticmethod
    def fill_in(query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
        key = query if key is None else key
        return key, key if value is None else value

    def matrices(self) -> tuple[Tensor, ...]:
        """The weights that `forward` works with."""
        return tuple(self.parameters())

    def __call__(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, keep: Tensor | None = None
    ) -> Any:
        W = _Matrices(*(matrix.T for matrix in self.matrices()))
        return self.attend(query, *self.fill_in(query, key, value), W, self.n_heads, keep)


def _torch_with(attend: Callable[..., Any]) -> type:
    return type("MultiHeadAttention", (_Variant,), {"attend": staticmethod(attend)})


def _filling_in(fill_in: Callable[..., tuple[Tensor, Tensor]]) -> type:
    return type("MultiHeadAttention", (_Variant,), {"fill_in": staticmethod(fill_in)})


def _checked_by(check: Callable[[int, int, int | None], None]) -> type:
    return type("MultiHeadAttention", (_Variant,), {"check": staticmethod(check)})


def _view_after_transpose(x: Tensor) -> Tensor:
    x = x.transpose(-2, -3)
    return x.view(*x.shape[:-2], -1)


def _of_query_length(last: int | None) -> Callable[..., Any]:
    """Keys and values are cut up with the query's number of tokens; `last` is the last size asked for, or d_head."""

    def attend(query: Tensor, key: Tensor, value: Tensor, W: _Matrices, n_heads: int, keep: Any) -> Any:
        def split(x: Tensor, n_heads: int) -> Tensor:
            return x.view(*query.shape[:2], n_heads, last or W.Q.shape[1] // n_heads).transpose(1, 2)

        return _Steps(split=split)(query, key, value, W, n_heads, keep)

    return attend


class _Stale(_Variant):
    """Keeps copies of the weights that it ran with first."""

    def matrices(self) -> tuple[Tensor, ...]:
        if not hasattr(self, "kept"):
            self.kept = tuple(matrix.clone() for matrix in super().matrices())
        return self.kept


class _StaleProjections(_Stale):
    """The same for w_q, w_k and w_v, as a fused matrix does; w_o is live."""

    def matrices(self) -> tuple[Tensor, ...]:
        return (*super().matrices()[:3], self.w_o.weight)


class _StaleParameters(_Variant):
    """Keeps the parameters that it ran with first."""

    def matrices(self) -> tuple[Tensor, ...]:
        if not hasattr(self, "kept"):
            self.kept = super().matrices()
        return self.kept


class _Detached(_Variant):
    def matrices(self) -> tuple[Tensor, ...]:
        return tuple(matrix.detach() for matrix in super().matrices())


class _DetachedProjections(_Variant):
    def matrices(self) -> tuple[Tensor, ...]:
        *projections, last = super().matrices()
        return (*(matrix.detach() for matrix in projections), last)


class _Dropping(_Variant):
    """Dropout on the weights."""

    def attend(self, *args: Any) -> Any:
        return _Steps(mix=lambda weights, v: nn.functional.dropout(weights, 0.1, self.training) @ v)(*args)


class _WithBiases(_Variant):
    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__(d_model, n_heads, d_head)
        self.w_q, self.w_k, self.w_v = (_Layer(d_model, n_heads * self.d_head, bias=True) for _ in range(3))
        self.w_o = _Layer(n_heads * self.d_head, d_model, bias=True)


class _BiasAtTheEnd(_Variant):
    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__(d_model, n_heads, d_head)
        self.w_o = _Layer(n_heads * self.d_head, d_model, bias=True)


class _OneHeadWide(_Variant):
    """Projections as wide as one head, shared by all."""

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__(d_model, n_heads, d_head)
        self.w_q, self.w_k, self.w_v = (_Layer(d_model, self.d_head) for _ in range(3))


class _OneHeadBack(_Variant):
    """w_o takes the numbers of one head, as it would after an average."""

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__(d_model, n_heads, d_head)
        self.w_o = _Layer(self.d_head, d_model)


class _OwnWidthIgnored(_Variant):
    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__(d_model, n_heads)


class _AlwaysDModelWide(_Variant):
    """The layers are d_model wide, whatever d_head."""

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        super().__init__(d_model, n_heads, d_head)
        self.w_q, self.w_k, self.w_v, self.w_o = (_Layer(d_model, d_model) for _ in range(4))


class _WithoutSuper(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None) -> None:
        self.w_q = nn.Linear(d_model, d_model, bias=False)


_TORCH_NAMES = ("w_q", "w_k", "w_v", "w_o")


class WrongShape(Exception):
    """A layer of the learner's does not have the shape that the contract asks for."""


class NotAModule(Exception):
    """The learner's class does not inherit from nn.Module."""


def _copy_in(mha: Any, name: str, weight: Tensor) -> None:
    """Copy a weight into the layer of this name. A bias, which should not be there, is set to 0."""
    layer = getattr(mha, name)
    if tuple(layer.weight.shape) != tuple(weight.shape):
        raise WrongShape(f"`{name}.weight` has shape {tuple(layer.weight.shape)}, not {tuple(weight.shape)}")
    with torch.no_grad():
        layer.weight.copy_(weight)
        if getattr(layer, "bias", None) is not None:
            layer.bias.zero_()


def _torch_built(
    implementation: Any,
    d_model: int,
    n_heads: int,
    d_head: int | None,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
) -> Any:
    """An object with these weights, in the mode for evaluation."""
    mha = implementation(d_model, n_heads) if d_head is None else implementation(d_model, n_heads, d_head=d_head)
    if not hasattr(mha, "parameters"):
        raise NotAModule("write `class MultiHeadAttention(nn.Module)`, so that it is a module of PyTorch")
    mha.to(w_q.dtype)
    for name, weight in zip(_TORCH_NAMES, (w_q, w_k, w_v, w_o), strict=True):
        _copy_in(mha, name, weight)
    return mha.eval()


def _torch_forward(
    implementation: Any,
    d_model: int,
    n_heads: int,
    query: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    keep: Tensor | None = None,
    d_head: int | None = None,
) -> Any:
    """Build it, copy these weights in, run it."""
    mha = _torch_built(implementation, d_model, n_heads, d_head, w_q, w_k, w_v, w_o)
    others = {"key": key, "value": value, "keep": keep}
    return mha(query, **{name: tensor for name, tensor in others.items() if tensor is not None})


def _torch_attributes(implementation: Any, d_model: int, n_heads: int, d_head: int | None = None) -> dict[str, Any]:
    """Its attributes as it was built; of the layers, the shapes of their weights and whether they have a bias."""
    mha = implementation(d_model, n_heads) if d_head is None else implementation(d_model, n_heads, d_head)
    layers = {name: getattr(mha, name) for name in _TORCH_NAMES}
    return {
        "d_model": mha.d_model,
        "n_heads": mha.n_heads,
        "d_head": mha.d_head,
        **{f"shape of {name}.weight": str(tuple(layer.weight.shape)) for name, layer in layers.items()},
        **{f"{name} has a bias": getattr(layer, "bias", None) is not None for name, layer in layers.items()},
    }


def _torch_accepts(implementation: Any, d_model: int, n_heads: int, d_head: int) -> dict[str, bool]:
    """Whether it can be built with a width of its own."""
    try:
        implementation(d_model, n_heads, d_head)
    except ValueError:
        return {"this is accepted": False}
    return {"this is accepted": True}


def _torch_replaced(
    implementation: Any,
    d_model: int,
    n_heads: int,
    query: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
) -> dict[str, bool]:
    """Run it as it was built; then give it new weights, run it again and see whether the output follows."""
    mha = implementation(d_model, n_heads).to(query.dtype).eval()
    new = dict(zip(_TORCH_NAMES, (w_q, w_k, w_v, w_o), strict=True))
    follows = {}
    for name, weight in new.items():
        before = mha(query)[0].detach().clone()
        _copy_in(mha, name, weight)
        follows[f"a weight copied into {name} changes the output"] = not torch.equal(before, mha(query)[0])
    for name, weight in new.items():
        before = mha(query)[0].detach().clone()
        _replace_parameter(mha, name, -2 * weight)
        follows[f"a new parameter as {name}.weight changes the output"] = not torch.equal(before, mha(query)[0])
    return follows


def _replace_parameter(mha: Any, name: str, weight: Tensor) -> None:
    """Give a layer a new parameter; where the layer is a view of a larger one, and takes none, copy into it."""
    try:
        getattr(mha, name).weight = nn.Parameter(weight.clone())
        taken = torch.equal(getattr(mha, name).weight, weight)
    except (AttributeError, TypeError):
        taken = False
    if not taken:
        _copy_in(mha, name, weight)


def _torch_gradients(
    implementation: Any,
    d_model: int,
    n_heads: int,
    query: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
) -> dict[str, int]:
    """Run it in training mode, and count the numbers that learn something from a loss."""
    mha = _torch_built(implementation, d_model, n_heads, None, w_q, w_k, w_v, w_o)
    output, _ = mha(query)
    loss = (output * torch.arange(1.0, output.numel() + 1, dtype=output.dtype).reshape(output.shape)).sum()
    if loss.requires_grad:
        loss.backward()
    learning = sum(int((p.grad != 0).sum()) for p in mha.parameters() if p.grad is not None)
    return {"numbers in the four weights that get a gradient": learning}


def _torch_training(
    implementation: Any,
    d_model: int,
    n_heads: int,
    query: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
) -> dict[str, bool]:
    """Whether the output is the same in training mode and in evaluation mode."""
    mha = _torch_built(implementation, d_model, n_heads, None, w_q, w_k, w_v, w_o)
    calm = mha(query.clone())[0]
    mha.train()
    return {"the same output in training mode": torch.allclose(calm, mha(query.clone())[0])}


def _torch_arguments(
    rng: np.random.Generator,
    n_heads: int,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    opposed: bool = False,
    d_head: int | None = None,
    n_keys: int | None = None,
    given_too: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A query of this shape and weights that give scores of about unit variance times scale squared.

    `n_keys` is the length of the key and value named in `given_too`. `opposed` keys point away from the queries.
    """
    d_model = shape[-1]
    width = n_heads * d_head if d_head else d_model
    shapes = {name: (width, d_model) for name in _TORCH_NAMES[:3]} | {"w_o": (d_model, width)}
    w = {name: rng.standard_normal(size) / math.sqrt(size[1]) for name, size in shapes.items()}
    if opposed:
        w["w_k"] = -w["w_q"]
    tensors = {"query": scale * rng.standard_normal(shape)} | w
    for name in given_too:
        tensors[name] = scale * rng.standard_normal((shape[0], n_keys or shape[1], d_model))
    named = {"d_model": d_model, "n_heads": n_heads}
    named |= {name: torch.from_numpy(array).to(dtype) for name, array in tensors.items()}
    return named | ({"d_head": d_head} if d_head else {})


def _torch_case(
    title: str,
    family: str,
    n_heads: int,
    *shape: int,
    keep: Callable[[np.random.Generator], np.ndarray] | None = None,
    call: Callable[..., Any] = _torch_forward,
    **options: Any,
) -> Case:
    def arguments(rng: np.random.Generator) -> Arguments:
        named = _torch_arguments(rng, n_heads, *shape, **options)
        return given(**named) if keep is None else given(**named, keep=torch.from_numpy(keep(rng)))

    return Case(title, family, arguments, call)


def _small_torch(rng: np.random.Generator) -> Arguments:
    """The same numbers as in `_small_numpy`."""
    named = dict(_small_numpy(rng).kwargs)
    weights = {name.lower(): torch.from_numpy(named.pop(name)).T.contiguous().float() for name in _NUMPY_NAMES}
    return given(query=torch.from_numpy(named.pop("X")).float(), **named, **weights)


_CROSS = "keys and values from another sequence"
_WIDTH = "d_head, a width of its own"
_LAYERS = "layers and attributes by name"
_TRAINABLE = "fit for training"

_STALE_TEXT = (
    "Weights that are copied in later change nothing: your code works with copies that were made earlier. Use "
    "`self.w_q` and its sisters in `forward`, as they are at that moment."
)
_OF_QUERY_LENGTH = (
    "A key has its own number of tokens, and your code cuts it up with that of the query. Take the sizes of each "
    "tensor from the tensor itself."
)

_multi_head_attention = Exercise(
    id="MultiHeadAttention",
    points=5,
    section=TORCH,
    reference=MultiHeadAttention,
    returns=("output", "weights"),
    laws=_LAWS,
    forbidden=_LIBRARY_CALLS,
    exact_zeros=True,
    families={
        _SELF: 0.4,
        _CROSS: 0.15,
        _MASKED: 0.15,
        _EMPTY: 0.05,
        _LAYERS: 0.05,
        _WIDTH: 0.05,
        _LIVE: 0.05,
        _TRAINABLE: 0.05,
        _IMPOSSIBLE: 0.05,
    },
    cases=(
        Case("two tokens, two heads of two numbers", _SELF, _small_torch, _torch_forward),
        _torch_case("a batch of 2, 5 tokens, 3 heads of 4", _SELF, 3, 2, 5, 12),
        _torch_case("a batch of 3, 4 tokens, 2 heads of 5, in float64", _SELF, 2, 3, 4, 10, dtype=torch.float64),
        _torch_case("everything is 3: batch, heads, tokens and d_head", _SELF, 3, 3, 3, 9),
        _torch_case("one head", _SELF, 1, 2, 4, 8),
        _torch_case("one token", _SELF, 2, 3, 1, 8),
        _torch_case("scores of a million, in float64", _SELF, 2, 1, 3, 8, dtype=torch.float64, scale=1000.0),
        _torch_case("a key of 5 tokens for 3 queries", _CROSS, 2, 3, 3, 8, n_keys=5, given_too=("key",)),
        _torch_case("a key as long as the query", _CROSS, 3, 2, 5, 12, given_too=("key",)),
        _torch_case("key and value, 2 queries", _CROSS, 3, 4, 2, 12, n_keys=5, given_too=("key", "value")),
        _torch_case("a value, but no key", _CROSS, 2, 3, 5, 8, given_too=("value",)),
        _torch_case("a causal mask", _MASKED, 2, 3, 5, 8, keep=lambda rng: _past(5)),
        _torch_case(
            "a padding mask, keep[:, None]", _MASKED, 2, 3, 5, 8, keep=lambda rng: _real([5, 2, 3], 5)[:, None]
        ),
        _torch_case(
            "a padding mask, keep[:, None], with as many sequences as heads",
            _MASKED,
            3,
            3,
            5,
            12,
            keep=lambda rng: _real([5, 2, 1], 5)[:, None],
        ),
        _torch_case(
            "a mask for each head, (n_heads, T_q, T_k), with as many sequences as heads",
            _MASKED,
            3,
            3,
            2,
            12,
            keep=_per_head(3, 2, 5),
            n_keys=5,
            given_too=("key",),
        ),
        _torch_case(
            "kept scores far below -10000, in float64",
            _MASKED,
            2,
            2,
            3,
            12,
            keep=lambda rng: _past(3),
            dtype=torch.float64,
            scale=300.0,
            opposed=True,
        ),
        _torch_case("token 1 may attend to nothing", _EMPTY, 2, 3, 5, 8, keep=lambda rng: _one_empty_row(5)),
        Case("as it is built", _LAYERS, lambda rng: given(12, 3), _torch_attributes),
        Case("2 heads of 5 for d_model 12", _WIDTH, lambda rng: given(12, 2, 5), _torch_attributes),
        Case("5 heads of 4 for d_model 12: d_head is given", _WIDTH, lambda rng: given(12, 5, 4), _torch_accepts),
        _torch_case("2 heads of 5 for d_model 8", _WIDTH, 2, 3, 4, 8, d_head=5),
        _torch_case("new weights after the first forward", _LIVE, 2, 2, 3, 8, call=_torch_replaced),
        _torch_case("gradients", _TRAINABLE, 2, 2, 3, 8, call=_torch_gradients),
        _torch_case("no dropout", _TRAINABLE, 3, 4, 12, 12, call=_torch_training),
        Case("3 heads for d_model 8", _IMPOSSIBLE, lambda rng: given(8, 3), _build),
        Case("12 heads for d_model 512", _IMPOSSIBLE, lambda rng: given(512, 12), _build),
        Case("0 heads", _IMPOSSIBLE, lambda rng: given(6, 0), _build),
        Case("-2 heads", _IMPOSSIBLE, lambda rng: given(6, -2), _build),
    ),
    misconceptions=(
        *(
            Misconception(identity, _torch_with(attend), explanation, section)
            for identity, attend, explanation, section in _ATTENTION_MISTAKES
        ),
        Misconception(
            "view_after_transpose",
            _torch_with(_Steps(combine=_view_after_transpose)),
            "`.view` after `.transpose`: a view may only regroup numbers that lie side by side in memory, and a "
            "transpose "
            "leaves them where they are and changes the strides. Make a copy in the new order first, with "
            "`.contiguous()`, or use `.reshape`, which does so where it must.",
            STRIDES,
        ),
        Misconception(
            "of_query_length",
            _torch_with(_of_query_length(None)),
            _OF_QUERY_LENGTH,
            TORCH,
        ),
        Misconception("of_query_length", _torch_with(_of_query_length(-1)), _OF_QUERY_LENGTH, TORCH),
        Misconception(
            "key_ignored",
            _filling_in(lambda query, key, value: (query, query)),
            "Your keys and values are made from the query, whatever `key` is. Keys are `w_k(key)`, values "
            "`w_v(value)`.",
            TORCH,
        ),
        Misconception(
            "value_ignored",
            _filling_in(lambda query, key, value: (query if key is None else key,) * 2),
            "`value` is not used: your values are made from `key`. They are `w_v(value)`.",
            TORCH,
        ),
        Misconception(
            "key_and_value_swapped",
            _filling_in(lambda query, key, value: _Variant.fill_in(query, key, value)[::-1]),
            "`key` and `value` have changed places. Keys are `w_k(key)`, values `w_v(value)`.",
            TORCH,
        ),
        Misconception(
            "value_defaults_to_query",
            _filling_in(lambda query, key, value: (query if key is None else key, query if value is None else value)),
            "Without a `value` your code takes the query for it. It should be the key: what is looked up is what is "
            "read.",
            TORCH,
        ),
        Misconception(
            "value_dropped",
            _filling_in(
                lambda query, key, value: (query, query) if key is None else _Variant.fill_in(query, key, value)
            ),
            "Without a `key`, the `value` that was given is thrown away. Fill in one at a time: first the key, then "
            "the "
            "value.",
            TORCH,
        ),
        Misconception(
            "key_defaults_to_value",
            _filling_in(
                lambda query, key, value: (
                    (value, value) if key is None and value is not None else _Variant.fill_in(query, key, value)
                )
            ),
            "Without a `key` your code takes the value for it. It should be the query.",
            TORCH,
        ),
        Misconception(
            "stale_weights",
            _Stale,
            _STALE_TEXT,
            TORCH,
        ),
        Misconception("stale_weights", _StaleProjections, _STALE_TEXT, TORCH),
        Misconception(
            "stale_weights",
            _StaleParameters,
            "A layer that is given a new weight, `mha.w_q.weight = ...`, goes on with the old one: your code has "
            "kept it "
            "under another name. Use `self.w_q` and its sisters in `forward`, as they are at that moment.",
            TORCH,
        ),
        Misconception(
            "detached",
            _Detached,
            "No gradient reaches the weights, so this module cannot be trained. `.data`, `.detach()`, `.numpy()` and "
            "`torch.no_grad()` cut the way back.",
            TORCH,
        ),
        Misconception(
            "detached",
            _DetachedProjections,
            "No gradient reaches w_q, w_k and w_v, so they cannot be trained. `.data`, `.detach()`, `.numpy()` and "
            "`torch.no_grad()` cut the way back.",
            TORCH,
        ),
        Misconception(
            "dropout",
            _Dropping,
            "In training mode your output differs from that in evaluation mode. No dropout is asked for.",
            TORCH,
        ),
        Misconception(
            "biases",
            _WithBiases,
            "Your layers have a bias, which `nn.Linear` adds unless it is told not to. The four of this chapter have "
            "none: "
            "`bias=False`.",
            TORCH,
        ),
        Misconception(
            "biases",
            _BiasAtTheEnd,
            "`w_o` has a bias, which `nn.Linear` adds unless it is told not to. The four layers of this chapter have "
            "none: "
            "`bias=False`.",
            TORCH,
        ),
        Misconception(
            "heads_share_projection",
            _OneHeadWide,
            "`w_q`, `w_k` and `w_v` are as wide as a single head, d_head. Every head has columns of its own: "
            "n_heads * d_head in all.",
            SPLIT,
        ),
        Misconception(
            "heads_averaged",
            _OneHeadBack,
            "`w_o` takes the numbers of a single head, d_head. It takes those of all heads side by side, n_heads * "
            "d_head; "
            "an average or a sum of the heads would blend what they found.",
            COMBINE,
        ),
        Misconception(
            "d_head_ignored",
            _OwnWidthIgnored,
            "`d_head` is not used. When it is given, each head has d_head numbers, whatever d_model / n_heads is.",
            TORCH,
        ),
        Misconception(
            "d_head_ignored",
            _AlwaysDModelWide,
            "Your layers are d_model wide, even where n_heads * d_head is something else. `w_q`, `w_k` and `w_v` "
            "lead from "
            "d_model to n_heads * d_head, `w_o` leads back.",
            TORCH,
        ),
        Misconception(
            "divides_although_d_head_is_given",
            _checked_by(lambda d_model, n_heads, d_head: _check_heads(d_model, n_heads)),
            "With `d_head` given, n_heads need not divide d_model: 5 heads of 4 make a width of 20, and `w_o` leads "
            "back to "
            "d_model. Check for division only where d_head is not given.",
            TORCH,
        ),
        *(
            Misconception(
                identity,
                _checked_by(lambda d_model, n_heads, d_head, check=check: d_head is None and check(d_model, n_heads)),
                explanation,
                SPLIT,
            )
            for identity, check, explanation in _CHECK_MISTAKES
        ),
        Misconception(
            "super_missing",
            _WithoutSuper,
            "Layers can be assigned only after `super().__init__()`: `nn.Module` must set itself up first.",
            TORCH,
        ),
    ),
)


# Quizzes

_quiz_1 = Quiz(
    id="quiz_03_1",
    answer="B",
    explanations={
        "A": "The slice 64 to 127 is one of Q, after the projection. Each number of Q is a sum over all 512 numbers "
        "of the "
        "token vector.",
        "B": "Head 1 owns the numbers 64 to 127 of Q, K and V, and each of these is a sum over the whole token "
        "vector, with "
        "a column of W_Q, W_K or W_V. Heads share out the results, not what they may look at.",
        "C": "Every eighth number would be the interleaved order. And what is cut is Q, after the projection: each "
        "of its "
        "numbers is a sum over the whole token vector.",
        "D": "Tokens are not shared out: every head sees all of them. What is cut is the width of Q, K and V.",
    },
)

_quiz_2 = Quiz(
    id="quiz_03_2",
    answer="C",
    explanations={
        "A": "A head's vectors have only 64 numbers instead of 512. Eight heads of 64 need the same matrices as one "
        "of 512.",
        "B": "The scores of a head cost T x T x 64 multiply-adds, an eighth of those of one wide head. Eight times "
        "an eighth is "
        "the same.",
        "C": "Eight heads of an eighth of the width: parameters and multiply-adds are the same. What grows is the "
        "number of "
        "maps, T x T weights for each head.",
        "D": "Neither is saved. Eight heads together have the width of one.",
    },
)

_quiz_3 = Quiz(
    id="quiz_03_3",
    answer="D",
    explanations={
        "A": "12 x 42 = 504. The last 8 sliders would reach no head, and nothing would say so.",
        "B": "Heads of different widths could not be stacked into one array. All heads have the same d_k.",
        "C": "12 x 43 = 516. There is nothing to fill four more sliders with.",
        "D": "512 / 12 = 42.67, so 12 heads cannot share 512 sliders. 768 / 12 = 64 goes.",
    },
)

EXERCISES = (
    _split_heads,
    _combine_heads,
    _multi_head_attention_numpy,
    _parameter_count,
    _attention_macs,
    _multi_head_attention,
    _quiz_1,
    _quiz_2,
    _quiz_3,
)
