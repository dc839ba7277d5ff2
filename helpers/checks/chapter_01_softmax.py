"""Chapter 1: softmax as a budget of 100 %, masks, temperature, effective choices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from helpers.checks.exercise import INPUTS_UNCHANGED, Arguments, Case, Exercise, Law, Misconception, Quiz, given

# Headings of the notebook that cards point to.
SHARES = "From scores to shares"
AXES = "Along which axis?"
LARGE = "Scores too large for exp"
MASKS = "Tokens that must get nothing"
TEMPERATURE = "Temperature"
CHOICES = "How many choices are really left?"
QUIZ = "Quiz"


# Oracles: slow, obvious loops over rows of plain numbers.


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """exp of each score, divided by the sum of them along `axis`."""
    return np.apply_along_axis(_softmax_row, axis, np.asarray(scores, dtype=float))


def _softmax_row(row: np.ndarray) -> np.ndarray:
    largest = max(row)
    powers = [math.exp(score - largest) for score in row]
    return np.array([power / math.fsum(powers) for power in powers])


def masked_softmax(scores: np.ndarray, keep: np.ndarray, axis: int = -1) -> np.ndarray:
    """softmax among the kept entries of each row; zero everywhere else, and everywhere in a row that keeps none."""
    scores = np.asarray(scores, dtype=float)
    rows = np.moveaxis(scores, axis, -1)
    kept = np.moveaxis(np.broadcast_to(keep, scores.shape), axis, -1)
    weights = np.zeros(rows.shape)
    for place in np.ndindex(rows.shape[:-1]):
        if kept[place].any():
            weights[place][kept[place]] = _softmax_row(rows[place][kept[place]])
    return np.moveaxis(weights, -1, axis)


def softmax_with_temperature(scores: np.ndarray, temperature: float, axis: int = -1) -> np.ndarray:
    """softmax of the scores divided by a positive temperature."""
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return softmax(np.asarray(scores, dtype=float) / temperature, axis)


def effective_choices(weights: np.ndarray, axis: int = -1) -> np.ndarray:
    """exp of the entropy of each row."""
    return np.apply_along_axis(_effective_choices_row, axis, np.asarray(weights, dtype=float))


def _effective_choices_row(row: np.ndarray) -> float:
    return math.exp(-math.fsum(share * math.log(share) for share in row if share > 0))


# Mistakes with softmax itself. Later exercises call the learner's softmax and inherit them.


def _without_maximum(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum(axis=axis, keepdims=True)


def _global_maximum(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - np.max(scores))
    return powers / powers.sum(axis=axis, keepdims=True)


def _over_everything(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - np.max(scores))
    return powers / powers.sum()


def _sum_over_everything(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum()


def _without_keepdims(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis)


def _maximum_without_keepdims(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    return softmax(scores - scores.max(axis=axis), axis)


def _argmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    winners = np.argmax(scores, axis=axis, keepdims=True)
    places = np.arange(scores.shape[axis]).reshape([-1 if i == axis % scores.ndim else 1 for i in range(scores.ndim)])
    return (winners == places).astype(float)


def _without_exp(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    return scores / scores.sum(axis=axis, keepdims=True)


def _not_normalised(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(scores - scores.max(axis=axis, keepdims=True))


def _integer_result(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    return softmax(scores, axis).astype(scores.dtype)


def _clipped(limit: float) -> Callable[..., np.ndarray]:
    return lambda scores, axis=-1: softmax(np.clip(scores, -limit, limit), axis)


def _largest(values: Mapping[str, Any]) -> float:
    return float(np.max(values["scores"])) / values.get("temperature", 1.0)


def _no_maximum_text(values: Mapping[str, Any]) -> str:
    if _largest(values) < 700:
        return (
            "Your weights equal those of a softmax that does not subtract the maximum of each row: here every exp is "
            "0, "
            "and 0 / 0 is NaN. Subtract each row's largest score first; the weights stay the same."
        )
    return (
        "Your weights equal those of a softmax that does not subtract the maximum of each row: "
        f"exp({_largest(values):g}) is more than a float can hold, and infinity / infinity is NaN. "
        "Subtract each row's largest score first; the weights stay the same."
    )


def _axis_text(values: Mapping[str, Any]) -> str:
    return (
        f"Your weights sum to 1 along the last axis whatever `axis` says; here axis = {values.get('axis', -1)} was "
        f"asked "
        "for. Hand `axis` on to every sum and max."
    )


SOFTMAX_MISTAKES = (
    Misconception("no_max_subtracted", _without_maximum, _no_maximum_text, LARGE),
    Misconception(
        "global_max",
        _global_maximum,
        "Your weights equal those of a softmax that subtracts the largest score of the whole array. A row far below it "
        "becomes 0 / 0. Subtract each row's own maximum: `max(axis=axis, keepdims=True)`.",
        LARGE,
    ),
    Misconception("ignores_axis", lambda scores, axis=-1: softmax(scores, -1), _axis_text, AXES),
    Misconception(
        "wrong_axis",
        lambda scores, axis=-1: softmax(scores, 0),
        "Your weights sum to 1 down the columns (axis 0), not along the asked axis. With a single row every weight "
        "would be 1.",
        AXES,
    ),
    Misconception(
        "over_queries",
        lambda scores, axis=-1: softmax(scores, -2 if np.ndim(scores) > 1 else -1),
        "Your weights sum to 1 along the last axis but one, the queries. Each query has its own 100 % to spend on "
        "the keys.",
        AXES,
    ),
    *(
        Misconception(
            "over_everything",
            implementation,
            "Your weights sum to 1 over the whole array. Every row has a budget of 100 % of its own: sum along `axis`.",
            AXES,
        )
        for implementation in (_over_everything, _sum_over_everything)
    ),
    Misconception(
        "keepdims_missing",
        _without_keepdims,
        "Your result equals a division by `sum(axis=axis)` without `keepdims=True`: the sums lose their axis and no "
        "longer "
        "line up with their rows (an error, or with a square array silently the wrong sums).",
        AXES,
    ),
    Misconception(
        "keepdims_missing",
        _maximum_without_keepdims,
        "Your result equals the subtraction of `max(axis=axis)` without `keepdims=True`: the maxima lose their axis "
        "and no "
        "longer line up with their rows.",
        AXES,
    ),
    Misconception(
        "argmax",
        _argmax,
        "Your weights are all or nothing: the winner gets 1. Softmax gives every score a share, exp(score) over "
        "their sum.",
        SHARES,
    ),
    Misconception(
        "no_exp",
        _without_exp,
        "Your weights are score / sum of scores. Negative scores then get negative shares; take exp of each score "
        "first.",
        SHARES,
    ),
    Misconception(
        "divided_by_maximum",
        lambda scores, axis=-1: softmax(scores / np.max(scores, axis=axis, keepdims=True), axis),
        "Your weights equal those of scores divided by their maximum. Dividing changes the differences between "
        "scores, and "
        "with them the weights. Subtract the maximum.",
        LARGE,
    ),
    Misconception(
        "not_normalised",
        _not_normalised,
        "Your weights are exp(score - maximum) without the division: a row should sum to 1.",
        SHARES,
    ),
    Misconception(
        "softmin",
        lambda scores, axis=-1: softmax(-np.asarray(scores, dtype=float), axis),
        "The smallest score gets the largest weight: the sign in the exponent is turned round.",
        SHARES,
    ),
    Misconception(
        "log_softmax",
        lambda scores, axis=-1: np.log(softmax(scores, axis)),
        "You return the logarithm of the weights. Softmax returns the weights themselves.",
        SHARES,
    ),
    Misconception(
        "base_two",
        lambda scores, axis=-1: softmax(np.asarray(scores, dtype=float) * math.log(2), axis),
        "Your weights equal powers of 2, not of e: use `np.exp`.",
        SHARES,
    ),
    Misconception(
        "softmax_twice",
        lambda scores, axis=-1: softmax(softmax(scores, axis), axis),
        "Your weights equal a softmax of a softmax. Apply it once.",
        SHARES,
    ),
    Misconception(
        "integer_truncated",
        _integer_result,
        "The weights were written into an integer array, which cuts 0.7 down to 0. Make the result a float array.",
        SHARES,
    ),
    *(
        Misconception(
            "scores_clipped",
            _clipped(limit),
            "Your result equals one in which scores, or their distances from the maximum, are cut off at a limit (or "
            "a small "
            "number is added to every exp): what lies beyond can no longer be told apart. Subtract each row's "
            "maximum, and "
            "nothing needs a limit.",
            LARGE,
        )
        for limit in (20, 30, 50, 88, 100, 500, 700, 709)
    ),
)


def _normal(*shape: int, scale: float = 2.0, dtype: type = float) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: (scale * rng.standard_normal(shape)).astype(dtype)


def _scores(*shape: int, scale: float = 2.0, dtype: type = float, **kwargs: Any) -> Callable[..., Arguments]:
    make = _normal(*shape, scale=scale, dtype=dtype)
    return lambda rng: given(make(rng), **kwargs)


def _fixed(*rows: Any, **kwargs: Any) -> Callable[..., Arguments]:
    return lambda rng: given(np.array(rows), **kwargs)


def _far_apart(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((3, 4)) + np.array([[1e4], [0.0], [-1e4]])


def _with_minus_infinity(rng: np.random.Generator) -> Arguments:
    scores = rng.standard_normal((3, 5))
    scores[0, 1] = scores[2, 4] = scores[2, 0] = -np.inf
    return given(scores)


def _sum_is_not_1(values: Mapping[str, Any], weights: np.ndarray) -> str | None:
    axis = values.get("axis", -1)
    kept = np.broadcast_to(values.get("keep", True), weights.shape).any(axis=axis)
    sums = weights.sum(axis=axis)
    off = np.flatnonzero(np.ravel(kept & ~np.isclose(sums, 1.0, rtol=1e-4)))
    if not off.size:
        return None
    total = np.ravel(sums)[off[0]]
    return f"Along axis {axis} your weights sum to {total:.4g}. They are shares of 100 %: they must sum to 1."


def _is_negative(values: Mapping[str, Any], weights: np.ndarray) -> str | None:
    lowest = float(weights.min())
    return f"Your result has a weight of {lowest:.3g}. A share of a budget cannot be negative." if lowest < 0 else None


def _order_is_not_kept(values: Mapping[str, Any], weights: np.ndarray) -> str | None:
    axis = values.get("axis", -1)
    scores = np.where(values.get("keep", True), values["scores"], -np.inf)
    largest = np.take_along_axis(weights, np.argmax(scores, axis=axis, keepdims=True), axis)
    if (largest >= weights.max(axis=axis, keepdims=True)).all():
        return None
    return "The largest score of a row does not get the largest weight in your result."


SUMS_TO_1 = Law("rows_do_not_sum_to_1", _sum_is_not_1, SHARES)
NOT_NEGATIVE = Law("negative_weights", _is_negative, SHARES)
KEEPS_ORDER = Law("order_not_kept", _order_is_not_kept, SHARES)


def _hidden_gets_weight(values: Mapping[str, Any], weights: np.ndarray) -> str | None:
    leaked = float(np.max(np.where(values["keep"], 0.0, weights)))
    return f"A hidden token gets a weight of {leaked:.3g} in your result. It must get exactly 0." if leaked else None


def _outside_1_to_n(values: Mapping[str, Any], choices: np.ndarray) -> str | None:
    n = np.shape(values["weights"])[values.get("axis", -1)]
    outside = [float(number) for number in np.ravel(choices) if not 1 - 1e-6 <= number <= n + 1e-6]
    if not outside:
        return None
    return f"Your result says {outside[0]:.3g} choices for a row of {n}: it must lie between 1 and {n}."


_SOFTMAX_CALLS = (
    "torch.softmax",
    "torch.Tensor.softmax",
    "torch.Tensor.log_softmax",
    "torch.special.log_softmax",
    "torch.masked.softmax",
    "torch.masked.log_softmax",
    "torch.masked.softmin",
    "torch.nn.Softmin",
    "torch.nn.functional.gumbel_softmax",
    "torch.ops.aten.softmax",
    "torch.ops.aten._softmax",
    "torch._softmax",
    "torch.log_softmax",
    "torch.nn.functional.softmax",
    "torch.nn.functional.log_softmax",
    "torch.nn.functional.softmin",
    "torch.nn.Softmax",
    "torch.nn.LogSoftmax",
    "torch.special.softmax",
    "scipy.special.softmax",
    "scipy.special.log_softmax",
    "jax.nn.softmax",
    ".softmax",
    ".log_softmax",
)

_softmax = Exercise(
    id="softmax",
    points=4,
    section=SHARES,
    reference=softmax,
    forbidden=_SOFTMAX_CALLS,
    exact_zeros=True,
    families={
        "weights along the last axis": 0.4,
        "any axis": 0.15,
        "very large and very small scores": 0.2,
        "minus infinity gets exactly 0": 0.05,
        "integer scores": 0.1,
        INPUTS_UNCHANGED: 0.1,
    },
    cases=(
        Case("three scores", "weights along the last axis", _fixed(1.0, 2.0, 4.0)),
        Case("two rows, each with its own budget", "weights along the last axis", _scores(2, 3)),
        Case("one row of five", "weights along the last axis", _scores(1, 5)),
        Case("a square of scores", "weights along the last axis", _scores(4, 4)),
        Case("two heads, three queries, five keys", "weights along the last axis", _scores(2, 3, 5)),
        Case("scores in float32", "weights along the last axis", _scores(3, 4, dtype=np.float32)),
        Case("a single score", "weights along the last axis", _fixed(-3.0)),
        Case("integer scores", "integer scores", lambda rng: given(rng.integers(-4, 5, (2, 4)))),
        Case("down the columns, axis=0", "any axis", _scores(3, 4, axis=0)),
        Case("along the middle, axis=1", "any axis", _scores(2, 3, 4, axis=1)),
        Case("axis=-2 of a square", "any axis", _scores(4, 4, axis=-2)),
        Case("axis=2 of five axes", "any axis", _scores(2, 2, 3, 2, 2, axis=2)),
        Case("axis=0 of four axes", "any axis", _scores(3, 2, 4, 2, axis=0)),
        Case("two scores near 1000", "very large and very small scores", _fixed(1000.0, 1001.0)),
        Case("scores of 10000, 0 and -10000", "very large and very small scores", _fixed(1e4, 0.0, -1e4)),
        Case("two very negative scores", "very large and very small scores", _fixed(-9999.0, -1e4)),
        Case("rows far apart", "very large and very small scores", lambda rng: given(_far_apart(rng))),
        Case("a score of minus infinity", "minus infinity gets exactly 0", _fixed(0.5, -np.inf, 1.5)),
        Case("some scores of minus infinity", "minus infinity gets exactly 0", _with_minus_infinity),
    ),
    misconceptions=SOFTMAX_MISTAKES,
    laws=(SUMS_TO_1, NOT_NEGATIVE, KEEPS_ORDER),
)


# masked_softmax


def _filled_with(fill: float, row: Callable[..., np.ndarray] = softmax) -> Callable[..., np.ndarray]:
    return lambda scores, keep, axis=-1: row(np.where(keep, scores, fill), axis)


def _filled_then_hidden(fill: float) -> Callable[..., np.ndarray]:
    return lambda scores, keep, axis=-1: softmax(np.where(keep, scores, fill), axis) * keep


def _vectorised_softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _maximum_of_all(scores: np.ndarray, keep: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True)) * keep
    total = powers.sum(axis=axis, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def _maximum_of_all_nan(scores: np.ndarray, keep: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True)) * keep
    return powers / powers.sum(axis=axis, keepdims=True)


def _any_of_keep(unnoticed: float | None) -> Callable[..., np.ndarray]:
    """Rows that keep nothing are sought in `keep` as it is; unnoticed ones get this weight, or equal shares."""

    def implementation(scores: np.ndarray, keep: np.ndarray, axis: int = -1) -> np.ndarray:
        weights = masked_softmax(scores, keep, axis)
        some = np.broadcast_to(keep, scores.shape).any(axis=axis, keepdims=True)
        share = 1 / scores.shape[axis] if unnoticed is None else unnoticed
        return np.where(keep.any(axis=axis, keepdims=True), np.where(some, weights, share), 0.0)

    return implementation


def _first_slice_only(scores: np.ndarray, keep: np.ndarray, axis: int = -1) -> np.ndarray:
    masked = masked_softmax(scores, keep, axis)
    if scores.ndim < 3:
        return masked
    result = softmax(scores, axis)
    result[0] = masked[0]
    return result


_MASK_FIRST = (
    "Replace the scores of hidden tokens by -infinity before the softmax, then the rest share the whole 100 %."
)

_masked_softmax = Exercise(
    id="masked_softmax",
    points=3,
    section=MASKS,
    reference=masked_softmax,
    forbidden=_SOFTMAX_CALLS,
    exact_zeros=True,
    families={
        "hidden tokens get 0 and the rest share 100 %": 0.35,
        "masks that are smaller than the scores": 0.1,
        "any axis": 0.1,
        "integer scores": 0.05,
        "very large and very small scores": 0.15,
        "a row that may attend to nothing": 0.15,
        INPUTS_UNCHANGED: 0.1,
    },
    cases=(
        Case(
            "three tokens, one hidden",
            "hidden tokens get 0 and the rest share 100 %",
            lambda rng: given(np.array([1.0, 3.0, 2.0]), np.array([True, False, True])),
        ),
        Case(
            "two rows with masks of their own",
            "hidden tokens get 0 and the rest share 100 %",
            lambda rng: given(
                _normal(2, 5)(rng),
                np.array([[True, False, True, True, False], [False, True, True, True, True]]),
            ),
        ),
        Case(
            "nothing hidden",
            "hidden tokens get 0 and the rest share 100 %",
            lambda rng: given(_normal(2, 4)(rng), np.ones((2, 4), dtype=bool)),
        ),
        Case(
            "only one token left in each row",
            "hidden tokens get 0 and the rest share 100 %",
            lambda rng: given(_normal(3, 3)(rng), np.eye(3, dtype=bool)[[2, 0, 1]]),
        ),
        Case(
            "integer scores",
            "integer scores",
            lambda rng: given(rng.integers(-4, 5, (2, 3)), np.array([[True, True, False], [False, True, True]])),
        ),
        Case(
            "one mask for both heads",
            "masks that are smaller than the scores",
            lambda rng: given(_normal(2, 3, 4)(rng), np.tri(3, 4, 1, dtype=bool)),
        ),
        Case(
            "one mask for all rows",
            "masks that are smaller than the scores",
            lambda rng: given(_normal(3, 4)(rng), np.array([True, True, False, True])),
        ),
        Case(
            "one mask per sequence of a batch",
            "masks that are smaller than the scores",
            lambda rng: given(
                _normal(2, 3, 4)(rng), np.array([[[True, True, True, False]], [[True, True, False, False]]])
            ),
        ),
        Case(
            "down the columns, axis=0",
            "any axis",
            lambda rng: given(_normal(3, 4)(rng), np.tri(3, 4, 1, dtype=bool)[::-1], axis=0),
        ),
        Case(
            "along the middle, axis=1",
            "any axis",
            lambda rng: given(_normal(2, 3, 4)(rng), np.array([True, False, True])[:, None], axis=1),
        ),
        Case(
            "the hidden token has by far the largest score",
            "very large and very small scores",
            lambda rng: given(np.array([1.0, 5000.0, 2.0]), np.array([True, False, True])),
        ),
        Case(
            "all kept scores are very negative",
            "very large and very small scores",
            lambda rng: given(np.array([-30000.0, -29999.0, 0.0]), np.array([True, True, False])),
        ),
        Case(
            "scores of 10000",
            "very large and very small scores",
            lambda rng: given(np.array([1e4, 1e4 - 1, -1e4]), np.array([True, True, True])),
        ),
        Case(
            "rows far apart",
            "very large and very small scores",
            lambda rng: given(_far_apart(rng), np.tri(3, 4, 1, dtype=bool)),
        ),
        Case(
            "the second of two rows is hidden altogether",
            "a row that may attend to nothing",
            lambda rng: given(_normal(2, 3)(rng), np.array([[True, True, False], [False, False, False]])),
        ),
        Case(
            "one column of a smaller mask is hidden altogether, axis=1",
            "a row that may attend to nothing",
            lambda rng: given(_normal(2, 3, 4)(rng), np.tri(3, 4, 0, dtype=bool), axis=1),
        ),
        Case(
            "a single row, hidden altogether",
            "a row that may attend to nothing",
            lambda rng: given(_normal(4)(rng), np.zeros(4, dtype=bool)),
        ),
    ),
    laws=(Law("hidden_gets_weight", _hidden_gets_weight, MASKS), SUMS_TO_1, NOT_NEGATIVE, KEEPS_ORDER),
    misconceptions=(
        Misconception(
            "mask_after_softmax",
            lambda scores, keep, axis=-1: softmax(scores, axis) * keep,
            "You take the softmax first and set hidden weights to 0 afterwards: the rows no longer sum to 1, as the "
            "hidden "
            "tokens have already spent a part of the budget. " + _MASK_FIRST,
            MASKS,
        ),
        Misconception(
            "inverted_mask",
            lambda scores, keep, axis=-1: masked_softmax(scores, ~keep, axis),
            "Your mask works the other way round: `keep` True means that a token may be attended to.",
            MASKS,
        ),
        Misconception(
            "fully_masked_nan",
            _filled_with(-np.inf, _vectorised_softmax),
            "A row in which nothing may be attended to becomes NaN in your code: -infinity minus -infinity has no "
            "value. "
            "Such a row gets all zeros.",
            MASKS,
        ),
        Misconception(
            "mask_added",
            lambda scores, keep, axis=-1: softmax(scores + keep, axis),
            "You add the mask to the scores: True counts as 1, so a hidden token loses only 1 point of score. "
            "Hidden scores must become -infinity.",
            MASKS,
        ),
        Misconception(
            "hidden_score_zero",
            lambda scores, keep, axis=-1: softmax(scores * keep, axis),
            "Your weights equal those of hidden scores set to 0 (by multiplying with the mask, or by filling with a "
            "tiny number "
            "such as 1e-9). exp(0) is 1, not 0: a hidden score must become -infinity.",
            MASKS,
        ),
        Misconception(
            "ignores_mask",
            lambda scores, keep, axis=-1: softmax(scores, axis),
            "Your weights equal the softmax of all tokens, as if there were no mask. Is the masked array thrown away?",
            MASKS,
        ),
        *(
            Misconception(
                "finite_fill",
                implementation(fill),
                "You fill hidden scores with an ordinary number. A hidden token then keeps a share, however small, "
                "and where "
                "all other scores are lower than your number it even wins. Only -np.inf is below every score.",
                MASKS,
            )
            for fill in (-1.0, -5.0, -10.0, -20.0, -50.0, -100.0, -1e3, -9999.0, -1e4)
            for implementation in (_filled_with, _filled_then_hidden)
        ),
        *(
            Misconception(
                "plus_infinity",
                implementation,
                "You fill hidden scores with plus infinity: the hidden tokens then win, or everything becomes NaN. "
                "Fill with "
                "-np.inf.",
                MASKS,
            )
            for implementation in (
                _filled_with(np.inf, _vectorised_softmax),
                lambda scores, keep, axis=-1: np.nan_to_num(
                    _filled_with(np.inf, _vectorised_softmax)(scores, keep, axis)
                ),
            )
        ),
        Misconception(
            "fully_masked_uniform",
            _filled_with(-1e9),
            "A row in which nothing may be attended to gets equal weights in your code, since all its scores are "
            "filled with "
            "the same number. Such a row gets all zeros: nothing may be attended to.",
            MASKS,
        ),
        Misconception(
            "max_of_hidden",
            _maximum_of_all,
            "You subtract the maximum of all scores, hidden ones too: with a hidden score of 5000, exp of the others "
            "becomes "
            "0. Hide first, then take the maximum.",
            MASKS,
        ),
        Misconception(
            "max_of_hidden",
            _maximum_of_all_nan,
            "You divide by a sum that is 0: either nothing is kept in the row (it should get all zeros), or a hidden "
            "score "
            "was so large that exp of the others became 0. Hide first, then take the maximum.",
            MASKS,
        ),
        *(
            Misconception(
                "looks_at_keep_alone",
                implementation,
                "You look along `axis` of `keep` itself. It may have fewer axes than the scores, or a length of 1 "
                "where it is "
                "repeated. Look at the masked scores (or at `keep` broadcast to their shape) to find the rows that "
                "keep nothing.",
                MASKS,
            )
            for implementation in (_any_of_keep(np.nan), _any_of_keep(None))
        ),
        Misconception(
            "mask_on_first_only",
            _first_slice_only,
            "The mask reaches only the first head of the array. Let it broadcast over all of them.",
            MASKS,
        ),
        Misconception(
            "ignores_axis",
            lambda scores, keep, axis=-1: masked_softmax(scores, keep, -1),
            _axis_text,
            AXES,
        ),
        *(
            Misconception(
                mistake.id,
                _filled_with(-np.inf, mistake.implementation),
                mistake.explanation,
                mistake.section,
            )
            for mistake in SOFTMAX_MISTAKES
            if mistake.id not in ("ignores_axis", "no_max_subtracted", "integer_truncated")
        ),
        Misconception("no_max_subtracted", _filled_with(-np.inf, _without_maximum), _no_maximum_text, LARGE),
    ),
)


# softmax_with_temperature


def _at_temperature(row: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def implementation(scores: np.ndarray, temperature: float, axis: int = -1) -> np.ndarray:
        if temperature <= 0:
            raise ValueError
        return row(scores / temperature, axis)

    return implementation


_softmax_with_temperature = Exercise(
    id="softmax_with_temperature",
    points=2,
    section=TEMPERATURE,
    reference=softmax_with_temperature,
    forbidden=_SOFTMAX_CALLS,
    families={
        "scores divided by the temperature": 0.5,
        "any axis": 0.15,
        "very low and very high temperatures": 0.15,
        "no temperature of zero or less": 0.2,
    },
    cases=(
        Case(
            "three scores at 2",
            "scores divided by the temperature",
            lambda rng: given(np.array([1.0, 2.0, 4.0]), 2.0),
        ),
        Case(
            "three scores at 0.5",
            "scores divided by the temperature",
            lambda rng: given(np.array([1.0, 2.0, 4.0]), 0.5),
        ),
        Case(
            "a temperature of 1",
            "scores divided by the temperature",
            lambda rng: given(_normal(2, 4)(rng), 1.0),
        ),
        Case(
            "rows at some temperature",
            "scores divided by the temperature",
            lambda rng: given(_normal(2, 3, 5)(rng), float(rng.uniform(0.3, 0.8))),
        ),
        Case("integers", "scores divided by the temperature", lambda rng: given(rng.integers(-4, 5, (3, 4)), 3)),
        Case("down the columns, axis=0", "any axis", lambda rng: given(_normal(3, 4)(rng), 1.5, axis=0)),
        Case("along the middle, axis=1", "any axis", lambda rng: given(_normal(2, 3, 4)(rng), 0.7, axis=1)),
        Case("rows far apart", "very low and very high temperatures", lambda rng: given(_far_apart(rng), 0.5)),
        Case(
            "nearly 0",
            "very low and very high temperatures",
            lambda rng: given(np.array([1.0, 3.0, 2.0]), 1e-3),
        ),
        Case(
            "a million",
            "very low and very high temperatures",
            lambda rng: given(np.array([1.0, 3.0, 2.0]), 1e6),
        ),
        Case("zero", "no temperature of zero or less", lambda rng: given(_normal(3)(rng), 0.0)),
        Case("the integer 0", "no temperature of zero or less", lambda rng: given(_normal(3)(rng), 0)),
        Case("minus one", "no temperature of zero or less", lambda rng: given(_normal(2, 3)(rng), -1.0)),
    ),
    laws=(SUMS_TO_1, NOT_NEGATIVE, KEEPS_ORDER),
    misconceptions=(
        Misconception(
            "multiplied",
            lambda scores, temperature, axis=-1: softmax(scores * temperature, axis),
            lambda values: (
                f"Your weights equal those of scores multiplied by {values['temperature']:.3g}: high temperatures "
                f"then sharpen. "
                "Divide by the temperature."
            ),
            TEMPERATURE,
        ),
        Misconception(
            "temperature_ignored",
            lambda scores, temperature, axis=-1: softmax(scores, axis),
            "Your weights are those of temperature 1, whatever the temperature.",
            TEMPERATURE,
        ),
        Misconception(
            "weights_divided",
            lambda scores, temperature, axis=-1: softmax(scores, axis) / temperature,
            "You divide the finished weights, so they no longer sum to 1. Divide the scores, before the softmax.",
            TEMPERATURE,
        ),
        Misconception(
            "root_of_temperature",
            lambda scores, temperature, axis=-1: softmax(scores / np.sqrt(temperature), axis),
            "You divide by the square root of the temperature. Divide by the temperature itself.",
            TEMPERATURE,
        ),
        Misconception(
            "zero_accepted",
            lambda scores, temperature, axis=-1: softmax_with_temperature(scores, temperature or 1e-12, axis),
            "A temperature of 0 is let through. It would divide by 0: raise a ValueError for `temperature <= 0`.",
            TEMPERATURE,
        ),
        *(
            Misconception(
                mistake.id,
                _at_temperature(mistake.implementation),
                mistake.explanation,
                mistake.section,
            )
            for mistake in SOFTMAX_MISTAKES
            if mistake.id != "integer_truncated"  # the division has made floats by then
        ),
    ),
)


# effective_choices


def _entropy(weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.log(effective_choices(weights, axis))


def _nan_at_zero(weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(-(weights * np.log(weights)).sum(axis=axis))


def _over_all_entries(weights: np.ndarray, axis: int = -1) -> np.ndarray:
    return effective_choices(np.ravel(weights))


def _weights(*shape: int, scale: float = 1.5, **kwargs: Any) -> Callable[..., Arguments]:
    make = _normal(*shape, scale=scale)
    return lambda rng: given(softmax(make(rng), kwargs.get("axis", -1)), **kwargs)


_effective_choices = Exercise(
    id="effective_choices",
    points=2,
    section=CHOICES,
    reference=effective_choices,
    forbidden=("scipy.stats.entropy", "scipy.special.entr", "scipy.special.rel_entr", "torch.special.entr"),
    families={
        "exp of the entropy of a row": 0.5,
        "shares of exactly 0": 0.2,
        "any axis": 0.2,
        INPUTS_UNCHANGED: 0.1,
    },
    cases=(
        Case(
            "four equal shares are four choices",
            "exp of the entropy of a row",
            _fixed(0.25, 0.25, 0.25, 0.25),
        ),
        Case("shares of 70, 20 and 10 %", "exp of the entropy of a row", _fixed(0.7, 0.2, 0.1)),
        Case("one row of five", "exp of the entropy of a row", _weights(5)),
        Case("two rows, two numbers", "exp of the entropy of a row", _weights(2, 3)),
        Case("two heads, three queries, five keys", "exp of the entropy of a row", _weights(2, 3, 5)),
        Case("one-hot is one choice", "shares of exactly 0", _fixed(0.0, 1.0, 0.0)),
        Case("half and half", "shares of exactly 0", _fixed(0.5, 0.0, 0.5, 0.0)),
        Case("the integers 0 and 1", "shares of exactly 0", lambda rng: given(np.array([[0, 1, 0], [1, 0, 0]]))),
        Case("down the columns, axis=0", "any axis", _weights(3, 4, axis=0)),
        Case("along the middle, axis=1", "any axis", _weights(2, 3, 4, axis=1)),
    ),
    laws=(Law("choices_out_of_range", _outside_1_to_n, CHOICES),),
    misconceptions=(
        Misconception(
            "entropy_without_exp",
            _entropy,
            "You return the entropy itself: 0 for one-hot. exp of it counts choices: 1 for one-hot, n for n equal "
            "shares.",
            CHOICES,
        ),
        Misconception(
            "bits_without_power",
            lambda weights, axis=-1: _entropy(weights, axis) / math.log(2),
            "You return the entropy in bits. Take the natural logarithm and exp of the entropy.",
            CHOICES,
        ),
        Misconception(
            "mixed_bases",
            lambda weights, axis=-1: np.exp(_entropy(weights, axis) / math.log(2)),
            "You take the logarithm to base 2 and then exp to base e. Use the same base for both: `np.log` and "
            "`np.exp`.",
            CHOICES,
        ),
        Misconception(
            "mixed_bases",
            lambda weights, axis=-1: 2 ** _entropy(weights, axis),
            "You take the natural logarithm and then a power of 2. Use the same base for both: `np.log` and `np.exp`.",
            CHOICES,
        ),
        Misconception(
            "mixed_bases",
            lambda weights, axis=-1: np.exp(_entropy(weights, axis) / math.log(10)),
            "You take the logarithm to base 10 and then exp to base e. Use the same base for both: `np.log` and "
            "`np.exp`.",
            CHOICES,
        ),
        Misconception(
            "sign_missing",
            lambda weights, axis=-1: 1 / effective_choices(weights, axis),
            "The minus sign of the entropy is missing: your result is 1 / choices.",
            CHOICES,
        ),
        *(
            Misconception(
                "nan_at_zero",
                implementation,
                "A share of 0 gives NaN in your code: log(0) is -infinity, and 0 times that has no value. A share of "
                "0 adds "
                "nothing to the entropy: leave it out, before the sum.",
                CHOICES,
            )
            for implementation in (_nan_at_zero, lambda weights, axis=-1: np.nan_to_num(_nan_at_zero(weights, axis)))
        ),
        Misconception(
            "logarithms_not_weighed",
            lambda weights, axis=-1: np.exp(-np.log(np.where(weights > 0, weights, 1.0)).sum(axis=axis)),
            "You add up the logarithms as they are. Each counts for as much as its share: multiply it by the weight "
            "first.",
            CHOICES,
        ),
        Misconception(
            "inverse_of_squares",
            lambda weights, axis=-1: 1 / (weights**2).sum(axis=axis),
            "You return 1 / sum of squares. It agrees for one-hot and equal shares and differs in between; the "
            "exercise "
            "asks for exp of the entropy.",
            CHOICES,
        ),
        Misconception(
            "one_over_largest",
            lambda weights, axis=-1: 1 / weights.max(axis=axis),
            "You return 1 / largest share. It agrees for one-hot and equal shares and differs in between.",
            CHOICES,
        ),
        Misconception(
            "counts_entries",
            lambda weights, axis=-1: (weights > 0).sum(axis=axis).astype(float),
            "You count the shares above 0. A share of 1 % should hardly count: take exp of the entropy.",
            CHOICES,
        ),
        Misconception(
            "over_everything",
            _over_all_entries,
            "You sum over the whole array. Each row has an entropy of its own: sum along `axis`.",
            AXES,
        ),
        Misconception(
            "ignores_axis",
            lambda weights, axis=-1: effective_choices(weights, -1),
            "You sum along the last axis whatever `axis` says. Hand `axis` on to the sum.",
            AXES,
        ),
        Misconception(
            "wrong_axis",
            lambda weights, axis=-1: effective_choices(weights, 0),
            "You sum down the columns (axis 0). Sum along the axis that was asked for, by default the last.",
            AXES,
        ),
        Misconception(
            "mean_for_sum",
            lambda weights, axis=-1: np.exp(_entropy(weights, axis) / np.shape(weights)[axis]),
            "You take the mean over the tokens where the entropy is their sum.",
            CHOICES,
        ),
    ),
)


_QUIZZES = (
    Quiz(
        "quiz_01_1",
        answer="B",
        section=LARGE,
        explanations={
            "A": "The row would then sum to more than 100 %. The sum below the line grows as well.",
            "B": "Yes. Every exp grows by the factor e^5, in the numerator and in the sum, and it cancels. That is why "
            "subtracting the maximum is allowed.",
            "C": "Only differences between scores count, and adding 5 to all of them leaves every difference as it "
            "was.",
            "D": "Large scores overflow only when exp does not fit into a float; the weights themselves do not change.",
        },
    ),
    Quiz(
        "quiz_01_2",
        answer="C",
        section=TEMPERATURE,
        explanations={
            "A": "That is the other end: at a very high temperature all scores become nearly equal.",
            "B": "That is temperature 1. Dividing by a small number stretches the differences.",
            "C": "Yes. Divided by a tiny temperature, the lead of the largest score becomes enormous: it takes all.",
            "D": "Every row still sums to 1, at any temperature.",
        },
    ),
    Quiz(
        "quiz_01_3",
        answer="A",
        section=SHARES,
        explanations={
            "A": "Yes. One row has 100 % to spend. Three strong clues must share it; chapter 3 gives each its own row.",
            "B": "The weights of a row sum to 1, so three of them cannot all be 80 %.",
            "C": "Three equal scores get equal weights. And a weaker clue gets less, not nothing, as long as its exp "
            "is not "
            "so small that it is rounded to 0.",
            "D": "A higher temperature makes shares more equal. It adds nothing to the budget.",
        },
    ),
)

EXERCISES = (_softmax, _masked_softmax, _softmax_with_temperature, _effective_choices, *_QUIZZES)
