"""Answers to the exercises of chapter 1."""

import math
import os
import sys
import warnings

import numpy as np

from answers import right, wrong


def good_softmax(scores, axis=-1):
    shifted = scores - np.max(scores, axis=axis, keepdims=True)
    exps = np.exp(shifted)
    return exps / np.sum(exps, axis=axis, keepdims=True)


# softmax, right


right("softmax")(good_softmax)


@right("softmax")
def log_sum_exp(scores, axis=-1):
    peak = scores.max(axis=axis, keepdims=True)
    log_total = peak + np.log(np.exp(scores - peak).sum(axis=axis, keepdims=True))
    return np.exp(scores - log_total)


@right("softmax")
def plain_loops(scores, axis=-1):
    moved = np.moveaxis(np.array(scores, dtype=float), axis, -1)
    out = np.empty(moved.shape)
    for where in np.ndindex(*moved.shape[:-1]):
        row = list(moved[where])
        top = max(row)
        exps = [math.exp(s - top) for s in row]
        out[where] = [e / sum(exps) for e in exps]
    return np.moveaxis(out, -1, axis)


@right("softmax")
def expand_dims(scores, axis=-1):
    exps = np.exp(scores - np.expand_dims(scores.max(axis), axis))
    return exps / np.expand_dims(exps.sum(axis), axis)


@right("softmax")
def positional_names_and_hints(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.e ** (x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@right("softmax")
def tiny_epsilon(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exps / (exps.sum(axis=axis, keepdims=True) + 1e-12)


@right("softmax")
def works_on_a_copy(scores, axis=-1):
    work = np.array(scores, dtype=np.float64)
    work -= work.max(axis=axis, keepdims=True)
    np.exp(work, out=work)
    work /= work.sum(axis=axis, keepdims=True)
    return work


@right("softmax")
def apply_along_axis(scores, axis=-1):
    def one(row):
        e = np.exp(row - row.max())
        return e / e.sum()

    return np.apply_along_axis(one, axis, scores)


@right("softmax")
def prints_and_warns(scores, axis=-1):
    print("scores", scores)
    os.write(2, b"straight to file descriptor 2\n")
    print("to stderr", file=sys.stderr)
    warnings.warn("just saying", stacklevel=1)
    return good_softmax(scores, axis)


@right("softmax")
def prints_megabytes(scores, axis=-1):
    print("x" * 300_000)
    return good_softmax(scores, axis)


@right("softmax")
def nested_helpers(scores, axis=-1):
    def normalise(values):
        return values / values.sum(axis=axis, keepdims=True)

    return normalise(np.exp(scores - np.maximum.reduce(scores, axis=axis, keepdims=True)))


# softmax, wrong


@wrong("softmax", "no_max_subtracted")
def one_line(scores, axis=-1):
    return np.exp(scores) / np.exp(scores).sum(axis=axis, keepdims=True)


@wrong("softmax", "no_max_subtracted")
def overflow_hidden(scores, axis=-1):
    with np.errstate(all="ignore"):
        exps = np.e**scores
        return exps / np.sum(exps, axis, keepdims=True)


@wrong("softmax", "global_max")
def one_maximum(scores, axis=-1):
    exps = np.exp(scores - scores.max())
    return exps / exps.sum(axis, keepdims=True)


@wrong("softmax", "ignores_axis")
def always_last(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


@wrong("softmax", "wrong_axis")
def always_first(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=0))
    return exps / exps.sum(axis=0)


@wrong("softmax", "over_everything")
def whole_array(scores, axis=-1):
    exps = np.exp(scores - np.max(scores))
    return exps / np.sum(exps)


@wrong("softmax", "keepdims_missing")
def no_keepdims(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis)


@wrong("softmax", "argmax")
def winner_takes_all(scores, axis=-1):
    return (scores == scores.max(axis=axis, keepdims=True)).astype(float)


@wrong("softmax", "no_exp")
def shares_of_the_sum(scores, axis=-1):
    return scores / np.sum(scores, axis=axis, keepdims=True)


@wrong("softmax", "integer_truncated")
def result_like_the_input(scores, axis=-1):
    out = np.zeros_like(scores)
    out[...] = good_softmax(scores, axis)
    return out


@wrong("softmax", "changes_input")
def in_place(scores, axis=-1):
    scores -= scores.max(axis=axis, keepdims=True)
    exps = np.exp(scores)
    return exps / exps.sum(axis=axis, keepdims=True)


@wrong("softmax", "scores_clipped")
def clipped(scores, axis=-1):
    exps = np.exp(np.clip(scores, -700, 700))
    return exps / exps.sum(axis=axis, keepdims=True)


@wrong("softmax", "softmin")
def sign_turned(scores, axis=-1):
    return good_softmax(-scores, axis)


@wrong("softmax", "library_call")
def from_torch(scores, axis=-1):
    import torch

    return torch.softmax(torch.as_tensor(scores), axis).numpy()


@wrong("softmax", "library_call")
def from_helpers(scores, axis=-1):
    from helpers.checks import chapter_01_softmax

    return chapter_01_softmax.softmax(scores, axis)


@wrong("softmax", "library_call")
def imported_under_another_name(scores, axis=-1):
    from torch.nn.functional import softmax as shares

    return shares(scores, axis)


def imported():
    import torch

    return torch.softmax


wrong("softmax", "library_call")(imported())


@wrong("softmax", "returned_none")
def no_return(scores, axis=-1):
    good_softmax(scores, axis)


@wrong("softmax", "wrong_type")
def a_list(scores, axis=-1):
    return good_softmax(scores, axis).tolist()


@wrong("softmax", "wrong_shape")
def one_row_less(scores, axis=-1):
    return good_softmax(scores, axis)[..., :1]


@wrong("softmax")
def rounded(scores, axis=-1):
    return np.round(good_softmax(scores, axis), 2)


@wrong("softmax")
def half_precision(scores, axis=-1):
    return good_softmax(scores, axis).astype(np.float16)


@wrong("softmax")
def large_epsilon(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exps / (exps.sum(axis=axis, keepdims=True) + 1e-3)


@wrong("softmax")
def uniform(scores, axis=-1):
    return np.full(np.shape(scores), 1 / np.shape(scores)[axis])


@wrong("softmax")
def absolute_values(scores, axis=-1):
    return good_softmax(np.abs(scores), axis)


@wrong("softmax", "wrong_signature")
def without_axis(scores):
    return good_softmax(scores)


# masked_softmax


@right("masked_softmax")
def minus_infinity(scores, keep, axis=-1):
    masked = np.where(keep, scores, -np.inf)
    top = masked.max(axis=axis, keepdims=True)
    exps = np.exp(masked - np.where(np.isfinite(top), top, 0))
    total = exps.sum(axis=axis, keepdims=True)
    return exps / np.where(total == 0, 1, total)


@right("masked_softmax")
def nan_to_num(scores, keep, axis=-1):
    return np.nan_to_num(good_softmax(np.where(keep, scores, -np.inf), axis))


@right("masked_softmax")
def large_fill_then_zero(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, -1e30), axis) * keep


@right("masked_softmax")
def masked_sum_of_numpy(scores, keep, axis=-1):
    scores, keep = scores.astype(float), np.broadcast_to(keep, scores.shape)
    top = np.max(scores, axis=axis, keepdims=True, where=keep, initial=-np.inf)
    exps = np.where(keep, np.exp(np.where(keep, scores - np.where(np.isinf(top), 0, top), 0.0)), 0.0)
    total = exps.sum(axis=axis, keepdims=True)
    return np.divide(exps, total, out=np.zeros_like(exps), where=total > 0)


@right("masked_softmax")
def adds_minus_infinity(scores, keep, axis=-1):
    bias = np.where(keep, 0.0, -np.inf)
    weights = good_softmax(scores + bias, axis)
    return np.where(np.isnan(weights), 0.0, weights)


@wrong("masked_softmax", "mask_after_softmax")
def zero_afterwards(scores, keep, axis=-1):
    return np.where(keep, good_softmax(scores, axis), 0.0)


@wrong("masked_softmax", "inverted_mask")
def true_means_hidden(scores, keep, axis=-1):
    return np.nan_to_num(good_softmax(np.where(keep, -np.inf, scores), axis))


@wrong("masked_softmax", "mask_added")
def plus_the_mask(scores, keep, axis=-1):
    return good_softmax(scores + keep.astype(float), axis)


@wrong("masked_softmax", "hidden_score_zero")
def tiny_fill(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, 1e-9), axis)


@wrong("masked_softmax", "finite_fill")
def fill_of_ten_thousand(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, -1e4), axis) * np.any(keep, axis=-1, keepdims=True)


@wrong("masked_softmax", "fully_masked_nan")
def nan_when_all_hidden(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, -np.inf), axis)


@wrong("masked_softmax", "fully_masked_uniform")
def uniform_when_all_hidden(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, -1e9), axis)


@wrong("masked_softmax", "ignores_mask")
def thrown_away(scores, keep, axis=-1):
    np.where(keep, scores, -np.inf)
    return good_softmax(scores, axis)


@wrong("masked_softmax", "changes_input")
def writes_into_scores(scores, keep, axis=-1):
    scores[~np.broadcast_to(keep, scores.shape)] = -np.inf
    return np.nan_to_num(good_softmax(scores, axis))


@wrong("masked_softmax", "max_of_hidden")
def renormalised_too_late(scores, keep, axis=-1):
    weights = good_softmax(scores, axis) * keep
    return weights / weights.sum(axis=axis, keepdims=True)


@wrong("masked_softmax", "ignores_axis")
def mask_along_the_last_axis(scores, keep, axis=-1):
    return minus_infinity(scores, keep)


@wrong("masked_softmax")
def nearly_nothing(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, -20), axis)


@wrong("masked_softmax", "library_call")
def by_masked_torch(scores, keep, axis=-1):
    import torch.nn.functional as functional
    from torch import as_tensor

    return functional.softmax(as_tensor(np.where(keep, scores, -np.inf)), dim=axis).numpy()


# softmax_with_temperature


@right("softmax_with_temperature")
def divided(scores, temperature, axis=-1):
    if temperature <= 0:
        raise ValueError(f"temperature must be positive: {temperature}")
    return good_softmax(scores / temperature, axis)


@right("softmax_with_temperature")
def own_error_class(scores, temperature, axis=-1):
    class NotPositive(ValueError):
        pass

    if not temperature > 0:
        raise NotPositive(temperature)
    return good_softmax(np.asarray(scores) * (1.0 / temperature), axis)


@wrong("softmax_with_temperature", "multiplied")
def times_temperature(scores, temperature, axis=-1):
    if temperature <= 0:
        raise ValueError
    return good_softmax(scores * temperature, axis)


@wrong("softmax_with_temperature", "weights_divided")
def afterwards(scores, temperature, axis=-1):
    if temperature <= 0:
        raise ValueError
    return good_softmax(scores, axis) / temperature


@wrong("softmax_with_temperature", "asserted")
def by_assert(scores, temperature, axis=-1):
    assert temperature > 0, temperature
    return good_softmax(scores / temperature, axis)


@wrong("softmax_with_temperature", "no_error")
def no_check(scores, temperature, axis=-1):
    with np.errstate(all="ignore"):
        return good_softmax(scores / np.float64(temperature), axis)


@wrong("softmax_with_temperature", "wrong_error")
def another_error(scores, temperature, axis=-1):
    if temperature <= 0:
        raise TypeError("temperature")
    return good_softmax(scores / temperature, axis)


@wrong("softmax_with_temperature", "no_error")
def error_returned(scores, temperature, axis=-1):
    if temperature <= 0:
        return ValueError("temperature must be positive")
    return good_softmax(scores / temperature, axis)


@wrong("softmax_with_temperature")
def negative_only(scores, temperature, axis=-1):
    if temperature < 0:
        raise ValueError
    return good_softmax(scores / (temperature or 1e-6), axis)


@wrong("softmax_with_temperature", "no_max_subtracted")
def on_a_fragile_softmax(scores, temperature, axis=-1):
    if temperature <= 0:
        raise ValueError
    return one_line(scores / temperature, axis)


@wrong("softmax_with_temperature")
def always_raises(scores, temperature, axis=-1):
    raise ValueError("no")


# effective_choices


@right("effective_choices")
def where_positive(weights, axis=-1):
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return np.exp(-(weights * logs).sum(axis=axis))


@right("effective_choices")
def tiny_shift(weights, axis=-1):
    return np.exp(-np.sum(weights * np.log(weights + 1e-12), axis=axis))


@right("effective_choices")
def in_bits(weights, axis=-1):
    bits = np.log2(weights, out=np.zeros(weights.shape), where=weights > 0)
    return 2.0 ** -(weights * bits).sum(axis)


@right("effective_choices")
def product_of_powers(weights, axis=-1):
    weights = np.asarray(weights, dtype=float)
    return 1 / np.prod(weights**weights, axis=axis)


@right("effective_choices")
def nansum(weights, axis=-1):
    with np.errstate(all="ignore"):
        return np.exp(-np.nansum(weights * np.log(weights), axis=axis))


@wrong("effective_choices", "entropy_without_exp")
def entropy(weights, axis=-1):
    return -np.sum(weights * np.log(weights + 1e-12), axis=axis)


@wrong("effective_choices", "nan_at_zero")
def nan_for_zero(weights, axis=-1):
    return np.exp(-np.sum(weights * np.log(weights), axis=axis))


@wrong("effective_choices", "mixed_bases")
def bits_and_e(weights, axis=-1):
    return np.exp(-np.sum(weights * np.log2(weights + 1e-15), axis=axis))


@wrong("effective_choices", "inverse_of_squares")
def simpson(weights, axis=-1):
    return 1 / np.sum(np.square(weights), axis=axis)


@wrong("effective_choices", "sign_missing")
def no_minus(weights, axis=-1):
    return np.exp(np.sum(weights * np.log(weights + 1e-12), axis=axis))


@wrong("effective_choices", "counts_entries")
def how_many(weights, axis=-1):
    return np.count_nonzero(weights, axis=axis).astype(float)


@wrong("effective_choices", "wrong_shape")
def keeps_dims(weights, axis=-1):
    return np.exp(-np.sum(weights * np.log(weights + 1e-12), axis=axis, keepdims=True))


@wrong("effective_choices", "over_everything")
def one_number_for_all(weights, axis=-1):
    return np.exp(-np.sum(weights * np.log(weights + 1e-12)))


@wrong("effective_choices")
def large_shift(weights, axis=-1):
    return np.exp(-np.sum(weights * np.log(weights + 1e-3), axis=axis))


# What learners in a trial wrote, and nobody had listed


@wrong("softmax", "nearly_right")
def four_digits(scores, axis=-1):
    return np.round(good_softmax(scores, axis), 4)


@wrong("softmax")
def a_little_for_everyone(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis=axis, keepdims=True)) + 1e-9
    return exps / exps.sum(axis=axis, keepdims=True)


@wrong("softmax", "scores_clipped")
def distances_clipped(scores, axis=-1):
    exps = np.exp(np.clip(scores - scores.max(axis=axis, keepdims=True), -30, 0))
    return exps / exps.sum(axis=axis, keepdims=True)


@wrong("softmax", "library_call")
def method_of_tensor(scores, axis=-1):
    import torch

    return torch.Tensor.softmax(torch.as_tensor(scores), axis).numpy()


@wrong("masked_softmax", "plus_infinity")
def filled_with_plus_infinity(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, np.inf), axis)


@wrong("masked_softmax", "finite_fill")
def filled_with_minus_twenty(scores, keep, axis=-1):
    return good_softmax(np.where(keep, scores, -20), axis) * keep


@wrong("effective_choices", "nan_at_zero")
def nan_made_zero(weights, axis=-1):
    return np.nan_to_num(np.exp(-(weights * np.log(weights)).sum(axis=axis)))
