"""Chapter 2: scores of queries and keys, masks, attention, and a head on token vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from helpers.checks.chapter_01_softmax import masked_softmax
from helpers.checks.exercise import INPUTS_UNCHANGED, Arguments, Case, Exercise, Law, Misconception, Quiz, given

# Headings of the notebook that cards point to.
MEET = "Every query meets every key"
SCALE = "How large does a dot product get?"
CAUSAL = "Not into the future"
PADDING = "Not at the filler"
TWO_MASKS = "True and False, or 0 and minus infinity"
SPOTLIGHT = "The spotlight"
HEAD = "A whole head"
BLURRED = "The blurred spotlight"

Pair = tuple[np.ndarray, np.ndarray]


# Oracles: slow, obvious loops. They compute in float64 and hand back float32 where all inputs are float32.


def _dtype(*arrays: np.ndarray) -> np.dtype:
    return np.result_type(*arrays, np.float32)


def attention_scores(Q: np.ndarray, K: np.ndarray) -> np.ndarray:
    """The dot product of each query (..., T_q, d_k) with each key (..., T_k, d_k), over sqrt(d_k)."""
    scores = np.zeros((*Q.shape[:-1], K.shape[-2]))
    for *batch, query, key in np.ndindex(scores.shape):
        product = np.dot(Q[(*batch, query)].astype(float), K[(*batch, key)].astype(float))
        scores[(*batch, query, key)] = float(product) / math.sqrt(Q.shape[-1])
    return scores.astype(_dtype(Q, K))


def causal_mask(n_tokens: int) -> np.ndarray:
    """(n, n) bool: the token of a row may attend to itself and to those before it."""
    return np.array([[key <= query for key in range(n_tokens)] for query in range(n_tokens)])


def padding_mask(lengths: np.ndarray, n_tokens: int) -> np.ndarray:
    """(B, 1, n) bool: True for the real tokens of each sequence, False for the filler behind them."""
    return np.array([[[place < length for place in range(n_tokens)]] for length in lengths])


def attention(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    """The pair (output (..., T_q, d_v), weights (..., T_q, T_k)).

    ValueError if `keep` is not boolean or does not broadcast to the scores.
    """
    scores = attention_scores(Q.astype(float), K.astype(float))
    keep = np.array(True) if keep is None else np.asarray(keep)
    if keep.dtype != bool:
        raise ValueError(f"keep must be boolean, True = may attend, got {keep.dtype}")
    weights = masked_softmax(scores, np.broadcast_to(keep, scores.shape))
    output = np.zeros((*Q.shape[:-1], V.shape[-1]))
    for *batch, query in np.ndindex(output.shape[:-1]):
        for weight, value in zip(weights[(*batch, query)], V[tuple(batch)], strict=True):
            output[(*batch, query)] += weight * value
    dtype = _dtype(Q, K, V)
    return output.astype(dtype), weights.astype(dtype)


def single_head(
    X: np.ndarray, W_Q: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, keep: np.ndarray | None = None
) -> Pair:
    """attention among the token vectors X (..., T, d_model), with queries, keys and values made by three matrices."""
    return attention(X @ W_Q, X @ W_K, X @ W_V, keep)


# Attention in parts, so that a misconception can replace one of them. Quick, unlike the oracles.


def _scores(Q: np.ndarray, K: np.ndarray) -> np.ndarray:
    return Q @ np.swapaxes(K, -1, -2) / math.sqrt(Q.shape[-1])


def _softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _hidden(scores: np.ndarray, keep: np.ndarray | None, fill: float = -np.inf) -> np.ndarray:
    return scores if keep is None else np.where(keep, scores, fill)


def _weigh(scores: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    visible = _hidden(scores, keep)
    top = visible.max(axis=-1, keepdims=True)
    powers = np.exp(visible - np.where(np.isfinite(top), top, 0.0))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def _attention(
    score: Callable[..., np.ndarray] = _scores,
    weigh: Callable[..., np.ndarray] = _weigh,
    mix: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul,
) -> Callable[..., Pair]:
    def implementation(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
        weights = weigh(score(Q, K), keep)
        return mix(weights, V), weights

    return implementation


_attend = _attention()


def _on_tokens(attend: Callable[..., Any]) -> Callable[..., Any]:
    return lambda X, W_Q, W_K, W_V, keep=None: attend(X @ W_Q, X @ W_K, X @ W_V, keep)


def _d_k(values: Mapping[str, Any]) -> int:
    return values["Q" if "Q" in values else "W_Q"].shape[-1]


def _n_keys(values: Mapping[str, Any]) -> int:
    return values["K" if "K" in values else "X"].shape[-2]


# Mistakes with scores. `attention` and `single_head` are built on them and inherit them.


def _scaled(scale: Callable[[np.ndarray, np.ndarray], float]) -> Callable[..., np.ndarray]:
    return lambda Q, K: Q @ np.swapaxes(K, -1, -2) * scale(Q, K)


def _cosine(Q: np.ndarray, K: np.ndarray) -> np.ndarray:
    Q, K = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (Q, K))
    return Q @ np.swapaxes(K, -1, -2)


def _like_the_input(Q: np.ndarray, K: np.ndarray) -> np.ndarray:
    return _scores(Q, K).astype(np.result_type(Q, K))


def _no_scale_text(values: Mapping[str, Any]) -> str:
    d_k = _d_k(values)
    return (
        f"Your result equals one without the division by sqrt(d_k). Here d_k = {d_k}, so each score is "
        f"{math.sqrt(d_k):.3g} times too large. Divide the dot products by the square root of d_k."
    )


def _by_d_k_text(values: Mapping[str, Any]) -> str:
    d_k = _d_k(values)
    return (
        f"Your result equals one with scores divided by d_k = {d_k} where its square root, {math.sqrt(d_k):.3g}, was "
        "asked for. Is the root missing, or is the division there twice?"
    )


def _multiplied_text(values: Mapping[str, Any]) -> str:
    root = math.sqrt(_d_k(values))
    return (
        f"Your result equals one with scores multiplied by sqrt(d_k) = {root:.3g}. That makes large scores larger "
        "still; divide by it."
    )


def _precedence_text(values: Mapping[str, Any]) -> str:
    d_k = _d_k(values)
    return (
        f"Your result equals one with scores divided by 2 * d_k = {2 * d_k}. In Python `d_k ** 1/2` is (d_k ** 1) / 2, "
        "as the power binds more tightly than the division. Write `np.sqrt(d_k)` or `d_k ** 0.5`."
    )


def _other_size_text(what: str, size: Callable[[np.ndarray, np.ndarray], int]) -> Callable[[Mapping[str, Any]], str]:
    def text(values: Mapping[str, Any]) -> str:
        d_k = _d_k(values)
        tokens = (values["Q"], values["K"]) if "Q" in values else (values["X"], values["X"])
        used = size(*(np.empty((*x.shape[:-1], d_k)) for x in tokens))
        return (
            f"Your result equals one with scores divided by the root of {used}, {what}, where the root of d_k = {d_k} "
            f"was "
            "asked for. d_k is the length of one query, `Q.shape[-1]`."
        )

    return text


_NO_TRANSPOSE = (
    "Your result equals that of `Q @ K` without turning K round: rows of Q then meet columns of K, and not the keys. "
    "Each query has to meet each key, so the last two axes of K must change places."
)
_DOT_T = (
    "`K.T` turns round *all* axes of an array. That is right for a single sequence, but a batch (..., T_k, d_k) must "
    "keep its first axes and only swap the last two: `np.swapaxes(K, -1, -2)`."
)
_DOT_FOR_MATMUL = (
    "Your result pairs every sequence of the batch with every other. That is what `np.dot` does with more than two "
    "axes; `@` (or `np.matmul`) takes the sequences one by one."
)

# Scales by the root of some other size.
_OTHER_SIZES: tuple[tuple[str, Callable[[np.ndarray, np.ndarray], int]], ...] = (
    ("the number of queries", lambda Q, K: Q.shape[-2]),
    ("the number of keys", lambda Q, K: K.shape[-2]),
    ("the length of axis 0", lambda Q, K: Q.shape[0]),
    ("the length of axis 1", lambda Q, K: Q.shape[1]),
    ("the number of all entries of Q", lambda Q, K: Q.size),
    ("the number of all entries of K", lambda Q, K: K.size),
    ("d_k times the sizes of all axes in front", lambda Q, K: math.prod(Q.shape[:-2]) * Q.shape[-1]),
)

SCORE_MISTAKES = (
    Misconception("no_scale", _scaled(lambda Q, K: 1.0), _no_scale_text, SCALE),
    Misconception("scale_by_d_k", _scaled(lambda Q, K: 1 / Q.shape[-1]), _by_d_k_text, SCALE),
    Misconception("multiplied", _scaled(lambda Q, K: math.sqrt(Q.shape[-1])), _multiplied_text, SCALE),
    Misconception("power_precedence", _scaled(lambda Q, K: 1 / Q.shape[-1] / 2), _precedence_text, SCALE),
    Misconception(
        "root_rounded",
        _scaled(lambda Q, K: 1 / math.isqrt(Q.shape[-1])),
        lambda values: (
            f"Your result equals one with scores divided by {math.isqrt(_d_k(values))}: the root of d_k = "
            f"{_d_k(values)} is {math.sqrt(_d_k(values)):.3g}, and cutting it down to an integer changes every score."
        ),
        SCALE,
    ),
    *(
        Misconception(
            "scale_by_other_size",
            _scaled(lambda Q, K, size=size: 1 / math.sqrt(size(Q, K))),
            _other_size_text(what, size),
            SCALE,
        )
        for what, size in _OTHER_SIZES
    ),
    Misconception(
        "queries_and_keys_swapped",
        lambda Q, K: _scores(K, Q),
        "Your scores are turned round: keys as rows and queries as columns. A row belongs to the query that asks.",
        MEET,
    ),
    Misconception("k_not_transposed", lambda Q, K: Q @ K / math.sqrt(Q.shape[-1]), _NO_TRANSPOSE, MEET),
    Misconception("k_dot_t", lambda Q, K: Q @ K.T / math.sqrt(Q.shape[-1]), _DOT_T, MEET),
    Misconception("k_dot_t", lambda Q, K: np.dot(Q, K.T) / math.sqrt(Q.shape[-1]), _DOT_T, MEET),
    Misconception("dot_for_matmul", lambda Q, K: np.inner(Q, K) / math.sqrt(Q.shape[-1]), _DOT_FOR_MATMUL, MEET),
    *(
        Misconception(
            "same_place_only",
            implementation,
            "You multiply queries and keys place by place, so a query meets only the key at its own place. Every query "
            "has to meet every key: that is a matrix product.",
            MEET,
        )
        for implementation in (
            lambda Q, K: (Q * K).sum(axis=-1) / math.sqrt(Q.shape[-1]),
            lambda Q, K: Q * K / math.sqrt(Q.shape[-1]),
        )
    ),
    *(
        Misconception(
            "cosine",
            implementation,
            "Your result equals one with queries and keys cut to length 1 first (the cosine of their angle). Here a "
            "score is the plain dot product, over sqrt(d_k).",
            MEET,
        )
        for implementation in (_cosine, lambda Q, K: _cosine(Q, K) / math.sqrt(Q.shape[-1]))
    ),
    Misconception(
        "integer_truncated",
        _like_the_input,
        "The scores were written into an integer array, which cuts 2.5 down to 2. Make the result a float array.",
        SCALE,
    ),
    Misconception(
        "integer_division",
        lambda Q, K: Q @ np.swapaxes(K, -1, -2) // math.sqrt(Q.shape[-1]),
        "Your scores are rounded down: `//` drops what is behind the point. Divide with `/`.",
        SCALE,
    ),
)


# Mistakes with the softmax and with the mask, as functions of scores and `keep`.


def _filled_then_hidden(fill: float) -> Callable[..., np.ndarray]:
    return lambda scores, keep: _softmax(_hidden(scores, keep, fill)) * (1 if keep is None else keep)


def _filled(fill: float, softmax: Callable[..., np.ndarray] = _softmax) -> Callable[..., np.ndarray]:
    return lambda scores, keep: softmax(_hidden(scores, keep, fill))


def _without_maximum(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


def _global_maximum(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum(axis=-1, keepdims=True)


def _over_everything(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _sum_without_keepdims(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1)


def _along(axis: int) -> Callable[..., np.ndarray]:
    return lambda scores: _softmax(scores, axis if axis < scores.ndim else -1)


def _with_and_without_nan(softmax: Callable[..., np.ndarray]) -> tuple[Callable[..., np.ndarray], ...]:
    """The two things that become of a column of hidden scores."""
    weigh = _filled(-np.inf, softmax)
    return weigh, lambda scores, keep: np.nan_to_num(weigh(scores, keep))


def _argmax(scores: np.ndarray) -> np.ndarray:
    return np.eye(scores.shape[-1])[scores.argmax(axis=-1)]


def _max_of_hidden(scores: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True)) * (True if keep is None else keep)
    total = powers.sum(axis=-1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def _max_of_hidden_nan(scores: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True)) * (True if keep is None else keep)
    return powers / powers.sum(axis=-1, keepdims=True)


def _with_mask(weigh: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Weights by `weigh` where there is a mask, right ones where there is none."""
    return lambda scores, keep: _weigh(scores, None) if keep is None else weigh(scores, keep)


def _on_first_of(axis: int) -> Callable[..., np.ndarray]:
    """The mask reaches only the first place along an axis of the batch."""

    def weigh(scores: np.ndarray, keep: np.ndarray) -> np.ndarray:
        if scores.ndim < axis + 3:
            return _weigh(scores, keep)
        first = np.arange(scores.shape[axis]).reshape([-1 if i == axis else 1 for i in range(scores.ndim)]) == 0
        return _weigh(scores, keep | ~first)

    return _with_mask(weigh)


def _keep_transposed(scores: np.ndarray, keep: np.ndarray) -> np.ndarray:
    return _weigh(scores, np.swapaxes(keep, -1, -2) if keep.ndim > 1 else keep[:, None])


def _batch_along_heads(scores: np.ndarray, keep: np.ndarray) -> np.ndarray:
    return _weigh(scores, keep[:, 0] if keep.ndim == 4 and keep.shape[1] == 1 else keep)


def _causal(scores: np.ndarray) -> np.ndarray:
    return np.tri(*scores.shape[-2:], dtype=bool)


def _truth_of_array(scores: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    if keep:
        return _weigh(scores, keep)
    return _weigh(scores, None)


def _unmasked_where_empty(scores: np.ndarray, keep: np.ndarray) -> np.ndarray:
    return _weigh(scores, keep | ~keep.any(axis=-1, keepdims=True))


_HIDE_FIRST = "Put minus infinity in place of hidden scores before the softmax; the rest then shares the whole 100 %."
_EMPTY_ROW = "A query that may attend to nothing gets weights of 0, and so an output of 0."
_KEEPDIMS = (
    "Your result equals that of a softmax without `keepdims=True`: the maxima or sums lose their axis and no longer "
    "line up with their rows."
)

# id, weights from scores and `keep`, explanation, section
_Weighing = tuple[str, Callable[..., np.ndarray], str | Callable[[Mapping[str, Any]], str], str]
WEIGHT_MISTAKES: tuple[_Weighing, ...] = (
    *(
        (
            "over_queries",
            weigh,
            "Your weights sum to 1 over the queries, down each column. Every query has 100 % of its own to spend on "
            "the "
            "keys: the softmax runs along the last axis.",
            SPOTLIGHT,
        )
        for weigh in _with_and_without_nan(_along(-2))
    ),
    *(
        (
            "wrong_axis",
            weigh,
            f"Your weights sum to 1 along axis {axis}. With a batch or with heads in front, that is not the axis of "
            f"the "
            "keys, which is always the last: `axis=-1`.",
            SPOTLIGHT,
        )
        for axis in (0, 1)
        for weigh in _with_and_without_nan(_along(axis))
    ),
    (
        "over_everything",
        _filled(-np.inf, _over_everything),
        "All your weights together sum to 1. Every query has a budget of 100 % of its own.",
        SPOTLIGHT,
    ),
    ("keepdims_missing", _filled(-np.inf, _sum_without_keepdims), _KEEPDIMS, SPOTLIGHT),
    (
        "keepdims_missing",
        _filled(-np.inf, lambda scores: _softmax(scores - scores.max(axis=-1))),
        _KEEPDIMS,
        SPOTLIGHT,
    ),
    (
        "no_max_subtracted",
        _filled(-np.inf, _without_maximum),
        "Your result equals that of a softmax without the maximum subtracted: exp of a score in the hundreds is more "
        "than a float can hold. Use the softmax of chapter 1, which subtracts each row's maximum.",
        SPOTLIGHT,
    ),
    (
        "global_max",
        _filled(-np.inf, _global_maximum),
        "Your result equals that of a softmax that subtracts the maximum of the whole array: a row of scores far below "
        "it becomes 0 / 0. Each row needs its own maximum, as in chapter 1.",
        SPOTLIGHT,
    ),
    (
        "argmax",
        _filled(-np.inf, _argmax),
        "Your weights are all or nothing: the best key gets 1. Softmax gives every visible key a share.",
        SPOTLIGHT,
    ),
    (
        "no_exp",
        lambda scores, keep: _hidden(scores, keep, 0.0) / _hidden(scores, keep, 0.0).sum(axis=-1, keepdims=True),
        "Your weights are score / sum of scores. Negative scores then get negative shares; use softmax.",
        SPOTLIGHT,
    ),
    (
        "not_normalised",
        _filled(-np.inf, np.exp),
        "Your weights are exp of the scores and were not divided by their sum: each row should sum to 1.",
        SPOTLIGHT,
    ),
    (
        "softmax_missing",
        lambda scores, keep: _hidden(scores, keep, 0.0),
        "Your weights are the scores themselves. Softmax turns each row of scores into shares of 100 %.",
        SPOTLIGHT,
    ),
    (
        "softmax_twice",
        lambda scores, keep: _softmax(_weigh(scores, keep)),
        "Your weights equal a softmax of a softmax. Apply it once.",
        SPOTLIGHT,
    ),
    (
        "softmin",
        lambda scores, keep: _weigh(-scores, keep),
        "The smallest score gets the largest weight: a sign is turned round.",
        SPOTLIGHT,
    ),
    (
        "ignores_mask",
        lambda scores, keep: _weigh(scores, None),
        "Your result is the one without a mask. Is `keep` passed on, and is the masked array used and not thrown away? "
        "`np.where(...)` returns a new array.",
        SPOTLIGHT,
    ),
    (
        "mask_after_softmax",
        _with_mask(lambda scores, keep: _softmax(scores) * keep),
        "You take the softmax first and set hidden weights to 0 afterwards: the hidden keys have spent a part of the "
        "budget by then, and rows sum to less than 1. " + _HIDE_FIRST,
        SPOTLIGHT,
    ),
    (
        "inverted_mask",
        _with_mask(lambda scores, keep: _weigh(scores, ~keep)),
        "Your mask works the other way round: you hide what may be attended to. `keep` is True where a query *may* "
        "look.",
        CAUSAL,
    ),
    (
        "mask_added",
        _with_mask(lambda scores, keep: _softmax(scores + keep)),
        "You add True and False to the scores. They count as 1 and 0, so a hidden key loses a single point of score. "
        + _HIDE_FIRST,
        TWO_MASKS,
    ),
    (
        "zero_times_infinity",
        _with_mask(lambda scores, keep: _softmax(scores + (1 - keep) * -np.inf)),
        "You multiply the mask by minus infinity. 0 times infinity has no value, so every visible score becomes NaN. "
        "`np.where` chooses between two values without a product.",
        TWO_MASKS,
    ),
    (
        "hidden_score_zero",
        _with_mask(lambda scores, keep: _softmax(scores * keep)),
        "Your result equals one with hidden scores set to 0 (by multiplying with the mask, or by filling with a tiny "
        "number such as 1e-9). exp(0) is 1, not 0. " + _HIDE_FIRST,
        TWO_MASKS,
    ),
    *(
        (
            "finite_fill",
            weigh,
            "You fill hidden scores with an ordinary number. A hidden key then keeps a share, however small, and "
            "where all "
            "visible scores are lower than your number it even wins. Only minus infinity is below every score.",
            TWO_MASKS,
        )
        for fill in (-1.0, -5.0, -10.0, -20.0, -50.0, -100.0, -1e3, -9999.0, -1e4)
        for weigh in (_filled(fill), _filled_then_hidden(fill))
    ),
    (
        "fully_masked_nan",
        _filled(-np.inf),
        "A query that may attend to nothing gets NaN in your code: minus infinity less minus infinity has no value. "
        + _EMPTY_ROW
        + " Your `masked_softmax` of chapter 1 sees to it.",
        SPOTLIGHT,
    ),
    (
        "fully_masked_uniform",
        _filled(-1e9),
        "A query that may attend to nothing gets equal weights in your code, as all its scores are filled with the "
        "same "
        "number. " + _EMPTY_ROW,
        SPOTLIGHT,
    ),
    (
        "fully_masked_unmasked",
        _with_mask(_unmasked_where_empty),
        "A query that may attend to nothing attends in your code as if there were no mask. (A huge negative number "
        "added "
        "to all of its scores leaves their differences, and softmax sees only those.) " + _EMPTY_ROW,
        SPOTLIGHT,
    ),
    *(
        (
            "max_of_hidden",
            weigh,
            "You hide keys after exp was taken. A hidden score of 5000 is then the maximum that is subtracted, exp of "
            "the others becomes 0, and nothing is left to share. " + _HIDE_FIRST,
            SPOTLIGHT,
        )
        for weigh in (_max_of_hidden, _max_of_hidden_nan)
    ),
    *(
        (
            "mask_on_first_only",
            _on_first_of(axis),
            "The mask reaches only the first sequence or head of the batch. Let it broadcast over all of them.",
            PADDING,
        )
        for axis in (0, 1)
    ),
    (
        "mask_along_queries",
        _with_mask(_keep_transposed),
        "Your mask is turned round: it hides queries (rows) where it should hide keys (columns). The last axis of "
        "`keep` belongs to the keys; use it as it comes.",
        PADDING,
    ),
    (
        "batch_along_heads",
        _with_mask(_batch_along_heads),
        "The masks of the sequences land on the heads: you took the axis of length 1 away. `keep` (B, 1, 1, T_k) lines "
        "up with scores (B, H, T_q, T_k) as it is; without that axis, B meets H.",
        PADDING,
    ),
    *(
        (
            "always_causal",
            weigh,
            "Your result equals one with a causal mask that nobody asked for. Hide what `keep` hides, and nothing when "
            "it is None.",
            CAUSAL,
        )
        for weigh in (
            lambda scores, keep: _weigh(scores, _causal(scores)),
            lambda scores, keep: _weigh(scores, _causal(scores) if keep is None else keep),
            lambda scores, keep: _weigh(scores, _causal(scores) if keep is None else keep & _causal(scores)),
        )
    ),
    (
        "none_hides_all",
        lambda scores, keep: _weigh(scores, np.zeros(scores.shape, dtype=bool) if keep is None else keep),
        "Without a mask all your weights are 0. `keep` is None then, and `np.where` takes None for False: everything "
        "is "
        "hidden. Ask `if keep is None:` and use the softmax without a mask.",
        SPOTLIGHT,
    ),
    (
        "truth_of_array",
        _truth_of_array,
        "`if keep:` asks whether a whole array is true, which has no answer. Ask `if keep is not None:`.",
        SPOTLIGHT,
    ),
)


# Mistakes with what is done with the weights, as whole implementations of `attention`.


def _first_of(attend: Callable[..., Pair]) -> Callable[..., np.ndarray]:
    return lambda Q, K, V, keep=None: attend(Q, K, V, keep)[0]


def _pair_swapped(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    output, weights = _attend(Q, K, V, keep)
    return weights, output


def _scores_returned(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    return _attend(Q, K, V, keep)[0], _scores(Q, K)


def _hidden_scores_returned(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    return _attend(Q, K, V, keep)[0], _hidden(_scores(Q, K), keep)


def _scores_mixed(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    return _scores(Q, K) @ V, _attend(Q, K, V, keep)[1]


def _keys_mixed(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    return _attend(Q, K, K, keep)


def _over_batch(back: bool) -> Callable[..., Pair]:
    """The axis before the tokens (the batch, or the heads) is attended over in place of the tokens."""

    def implementation(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
        if Q.ndim < 3:
            return _attend(Q, K, V, keep)
        output, weights = _attend(*(np.swapaxes(x, -2, -3) for x in (Q, K, V)), keep)
        return (np.swapaxes(output, -2, -3) if back else output), weights

    return implementation


def _hard_choice(weights: np.ndarray, V: np.ndarray) -> np.ndarray:
    return np.take_along_axis(V, weights.argmax(axis=-1)[..., None], axis=-2)


def _nan_only_in_weights(Q: np.ndarray, K: np.ndarray, V: np.ndarray, keep: np.ndarray | None = None) -> Pair:
    output, weights = _attention(weigh=_filled(-np.inf))(Q, K, V, keep)
    return np.nan_to_num(output), weights


_MIXING_MISTAKES: tuple[Misconception, ...] = (
    *(
        Misconception(
            "output_only",
            _first_of(attend),
            "You return the output alone. A pair was asked for: `return output, weights`.",
            SPOTLIGHT,
        )
        # The others have a second mistake, in rows that may attend to nothing.
        for attend in (_attend, _attention(weigh=_filled(-np.inf)), _attention(weigh=_filled(-1e9)))
    ),
    Misconception(
        "weights_only",
        lambda Q, K, V, keep=None: _attend(Q, K, V, keep)[1],
        "You return the weights alone. The output is missing, the values mixed by these weights.",
        SPOTLIGHT,
    ),
    Misconception(
        "pair_swapped",
        _pair_swapped,
        "You return the right two arrays in the wrong order: the output comes first, then the weights.",
        SPOTLIGHT,
    ),
    *(
        Misconception(
            "scores_returned",
            implementation,
            "The output is right, but beside it you return the scores. The weights are wanted, what softmax made of "
            "them.",
            SPOTLIGHT,
        )
        for implementation in (_scores_returned, _hidden_scores_returned)
    ),
    Misconception(
        "scores_mixed",
        _scores_mixed,
        "Your weights are right, but the values are mixed by the scores. Mix them by the weights.",
        SPOTLIGHT,
    ),
    Misconception(
        "keys_mixed",
        _keys_mixed,
        "You mix the keys. Keys are for being found; what a query takes home is a mixture of the values V.",
        SPOTLIGHT,
    ),
    Misconception(
        "values_unmixed",
        _attention(mix=lambda weights, V: V),
        "Your output is V itself. Each query gets a mixture of the values, in the shares of its row of weights.",
        SPOTLIGHT,
    ),
    Misconception(
        "hard_choice",
        _attention(mix=_hard_choice),
        "Your output is the value of the best key alone. Each query gets a mixture of all values, in the shares of its "
        "row of weights.",
        SPOTLIGHT,
    ),
    Misconception(
        "even_mixture",
        _attention(mix=lambda weights, V: weights * 0 @ V + V.mean(axis=-2, keepdims=True)),
        "Your output is the plain average of all values. Mix them in the shares of each row of weights.",
        SPOTLIGHT,
    ),
    Misconception(
        "weights_transposed",
        _attention(mix=lambda weights, V: np.swapaxes(weights, -1, -2) @ V),
        "The weights are turned round in the mixture, so the output sums over queries. A row of weights belongs to a "
        "query: `weights @ V` without a transpose.",
        SPOTLIGHT,
    ),
    Misconception("dot_for_matmul", _attention(mix=np.dot), _DOT_FOR_MATMUL, SPOTLIGHT),
    *(
        Misconception(
            "attends_over_batch",
            _over_batch(back),
            "In your code the sequences of a batch (or the heads) attend to each other, place by place. Each sequence "
            "keeps to itself: attention runs over the tokens, the last axis but one of Q, K and V.",
            SPOTLIGHT,
        )
        for back in (True, False)
    ),
    Misconception(
        "fully_masked_nan",
        _nan_only_in_weights,
        "The weights of a query that may attend to nothing are NaN in your code; only the output was mended. "
        + _EMPTY_ROW,
        SPOTLIGHT,
    ),
)

ATTENTION_MISTAKES = (
    *_MIXING_MISTAKES,
    *(
        Misconception(mistake.id, _attention(score=mistake.implementation), mistake.explanation, mistake.section)
        for mistake in SCORE_MISTAKES
        if mistake.id not in ("integer_truncated", "integer_division")  # no exercise built on them gets integers
    ),
    *(
        Misconception(name, _attention(weigh=weigh), explanation, section)
        for name, weigh, explanation, section in WEIGHT_MISTAKES
    ),
)


# Laws, for mistakes that nobody listed.


def _kept(values: Mapping[str, Any], weights: np.ndarray) -> np.ndarray:
    keep = values.get("keep")
    return np.broadcast_to(True if keep is None else keep, weights.shape)


def _sum_is_not_1(values: Mapping[str, Any], pair: Pair) -> str | None:
    weights = pair[1]
    off = _kept(values, weights).any(axis=-1) & ~np.isclose(weights.sum(axis=-1), 1.0, rtol=1e-4)
    if not off.any():
        return None
    total = weights.sum(axis=-1)[off][0]
    return f"A row of your weights sums to {total:.4g}. Every query spends 100 %, so its row must sum to 1."


def _hidden_gets_weight(values: Mapping[str, Any], pair: Pair) -> str | None:
    leaked = float(np.max(np.where(_kept(values, pair[1]), 0.0, pair[1])))
    return f"A hidden key gets a weight of {leaked:.3g} in your result. It must get exactly 0." if leaked else None


def _not_mixed_by_weights(values: Mapping[str, Any], pair: Pair) -> str | None:
    V = values["V"] if "V" in values else values["X"] @ values["W_V"]
    output, weights = pair
    if np.allclose(output, weights @ V, rtol=1e-3, atol=1e-5, equal_nan=True):
        return None
    return "Your output is not the mixture of the values in the shares of your weights: it should equal `weights @ V`."


def _wrong_order(values: Mapping[str, Any], pair: Pair) -> str | None:
    queries, keys = (values["Q"], values["K"]) if "Q" in values else (values["X"] @ values[f"W_{x}"] for x in "QK")
    scores = np.where(_kept(values, pair[1]), _scores(queries, keys), -np.inf)
    largest = np.take_along_axis(pair[1], scores.argmax(axis=-1)[..., None], axis=-1)
    if (largest >= pair[1].max(axis=-1, keepdims=True)).all():
        return None
    return "The key with the largest score does not get the largest weight in your result."


_LAWS = (
    Law("hidden_gets_weight", _hidden_gets_weight, SPOTLIGHT),
    Law("rows_do_not_sum_to_1", _sum_is_not_1, SPOTLIGHT),
    Law("output_is_not_the_mixture", _not_mixed_by_weights, SPOTLIGHT),
    Law("order_not_kept", _wrong_order, MEET),
)


def _normal(*shapes: Sequence[int], dtype: type = float) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: given(*(rng.standard_normal(shape).astype(dtype) for shape in shapes))


_ATTENTION_CALLS = (
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
    "torch.nn.MultiheadAttention",
    "torch.nn.attention.flex_attention.flex_attention",
    "jax.nn.dot_product_attention",
    ".scaled_dot_product_attention",
)


# attention_scores


def _times_a_number(values: Mapping[str, Any], scores: np.ndarray) -> str | None:
    """Whether the scores are right up to one factor, and which."""
    right = _scores(values["Q"], values["K"])
    factor = float((scores * right).sum() / (right * right).sum())
    if not np.allclose(scores, factor * right, rtol=1e-3, atol=1e-5):
        return None
    return f"Your scores are {factor:.3g} times the right ones. The dot products are there; look at the division."


_attention_scores = Exercise(
    id="attention_scores",
    points=3,
    section=MEET,
    reference=attention_scores,
    forbidden=_ATTENTION_CALLS,
    families={
        "every query with every key, over sqrt(d_k)": 0.5,
        "batches and heads": 0.2,
        "one token, one slider": 0.1,
        "integer vectors": 0.1,
        INPUTS_UNCHANGED: 0.1,
    },
    cases=(
        Case(
            "two queries and three keys of length 4",
            "every query with every key, over sqrt(d_k)",
            lambda rng: given(
                np.array([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 1.0]]),
                np.array([[4.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 5.0]]),
            ),
        ),
        Case(
            "three queries and four keys of length 5",
            "every query with every key, over sqrt(d_k)",
            _normal((3, 5), (4, 5)),
        ),
        Case("more queries than keys", "every query with every key, over sqrt(d_k)", _normal((5, 3), (2, 3))),
        Case("as many tokens as sliders", "every query with every key, over sqrt(d_k)", _normal((3, 3), (3, 3))),
        Case("long vectors", "every query with every key, over sqrt(d_k)", _normal((2, 64), (3, 64))),
        Case("float32", "every query with every key, over sqrt(d_k)", _normal((2, 6), (3, 6), dtype=np.float32)),
        Case("a batch of two", "batches and heads", _normal((2, 3, 6), (2, 4, 6))),
        Case("a batch of three, three tokens", "batches and heads", _normal((3, 3, 3), (3, 3, 3))),
        Case("two sequences, three heads", "batches and heads", _normal((2, 3, 4, 6), (2, 3, 5, 6))),
        Case("one query, one key, one slider", "one token, one slider", _normal((1, 1), (1, 1))),
        Case("one query", "one token, one slider", _normal((1, 6), (4, 6))),
        Case("one key", "one token, one slider", _normal((4, 5), (1, 5))),
        Case("a batch of one", "one token, one slider", _normal((1, 2, 5), (1, 3, 5))),
        Case(
            "vectors of integers",
            "integer vectors",
            lambda rng: given(rng.integers(1, 5, (2, 3)), rng.integers(1, 5, (4, 3))),
        ),
    ),
    laws=(Law("wrong_factor", _times_a_number, SCALE),),
    misconceptions=(
        *SCORE_MISTAKES,
        Misconception(
            "softmax_already",
            lambda Q, K: _weigh(_scores(Q, K), None),
            "You return weights, the softmax of the scores. This function stops one step earlier, at the scores.",
            MEET,
        ),
    ),
)


# causal_mask


def _wrong_row(values: Mapping[str, Any], keep: np.ndarray) -> str | None:
    query = int(np.flatnonzero((keep != causal_mask(len(keep))).any(axis=-1))[0])
    seen = ", ".join(str(key) for key in np.flatnonzero(keep[query])) or "nothing"
    return f"In your mask token {query} sees {seen}. It should see the tokens 0 to {query}."


def _additive(mask: Callable[..., np.ndarray], hidden: float) -> Callable[..., np.ndarray]:
    return lambda *args: np.where(mask(*args), 0.0, hidden)


_NOT_BOOLEAN = (
    "Your mask holds the numbers 1 and 0. It should hold True and False: make it with a comparison, or with "
    "`dtype=bool`. (`~` turns True into False, but 1 into -2.)"
)
_ADDITIVE = (
    "Yours is an additive mask, 0 where a query may look and a huge negative number elsewhere. `keep` is boolean: True "
    "where a query may look."
)

_causal_mask = Exercise(
    id="causal_mask",
    points=2,
    section=CAUSAL,
    reference=causal_mask,
    forbidden=("torch.nn.Transformer.generate_square_subsequent_mask", *_ATTENTION_CALLS),
    laws=(Law("wrong_row", _wrong_row, CAUSAL),),
    families={"itself and the past, nothing else": 0.8, "one token": 0.2},
    cases=(
        Case("three tokens", "itself and the past, nothing else", lambda rng: given(3)),
        Case("two tokens", "itself and the past, nothing else", lambda rng: given(2)),
        Case("five tokens", "itself and the past, nothing else", lambda rng: given(5)),
        Case("some number of tokens", "itself and the past, nothing else", lambda rng: given(int(rng.integers(6, 12)))),
        Case("one token", "one token", lambda rng: given(1)),
    ),
    misconceptions=(
        Misconception(
            "upper_triangle",
            lambda n_tokens: np.triu(np.ones((n_tokens, n_tokens), dtype=bool)),
            "Yours is the upper triangle: a token sees itself and the *future*. Rows are queries, columns are keys, so "
            "the past lies to the left of the diagonal.",
            CAUSAL,
        ),
        Misconception(
            "diagonal_excluded",
            lambda n_tokens: np.tri(n_tokens, k=-1, dtype=bool),
            "Your tokens do not see themselves. The diagonal belongs to the mask; without it the first token would see "
            "nothing at all.",
            CAUSAL,
        ),
        Misconception(
            "inverted_mask",
            lambda n_tokens: ~np.tri(n_tokens, dtype=bool),
            "Your mask is True where a token may *not* look. In this course `keep` is True where it may.",
            CAUSAL,
        ),
        Misconception(
            "sees_next_token",
            lambda n_tokens: np.tri(n_tokens, k=1, dtype=bool),
            "Your tokens also see the next one, the very word that a model has to guess. Is the comparison off by one?",
            CAUSAL,
        ),
        Misconception(
            "only_itself",
            lambda n_tokens: np.eye(n_tokens, dtype=bool),
            "Your tokens see only themselves. They may look at everything before them as well.",
            CAUSAL,
        ),
        Misconception(
            "nothing_hidden",
            lambda n_tokens: np.ones((n_tokens, n_tokens), dtype=bool),
            "Your mask hides nothing. A token must not see those that come after it.",
            CAUSAL,
        ),
        *(
            Misconception(
                "extra_axes",
                lambda n_tokens, axes=axes: np.tri(n_tokens, dtype=bool).reshape(*axes, n_tokens, n_tokens),
                "Your mask is right but has axes of length 1 in front. (n, n) was asked for: broadcasting adds such "
                "axes "
                "by itself.",
                CAUSAL,
            )
            for axes in ((1,), (1, 1))
        ),
        Misconception("mask_not_boolean", lambda n_tokens: np.tri(n_tokens), _NOT_BOOLEAN, CAUSAL),
        *(
            Misconception("additive_mask", _additive(causal_mask, hidden), _ADDITIVE, TWO_MASKS)
            for hidden in (-np.inf, -1e9, -1e30, -1e4, float(np.finfo(np.float32).min), float(np.finfo(float).min))
        ),
    ),
)


# padding_mask


def _real(lengths: np.ndarray, n_tokens: int) -> np.ndarray:
    return np.arange(n_tokens) < np.asarray(lengths)[:, None]  # (B, n)


def _wrong_sequence(values: Mapping[str, Any], keep: np.ndarray) -> str | None:
    wanted = _real(values["lengths"], values["n_tokens"])
    sequence = int(np.flatnonzero((keep[:, 0] != wanted).any(axis=-1))[0])
    seen = ", ".join(str(key) for key in np.flatnonzero(keep[sequence, 0])) or "no tokens"
    return f"Sequence {sequence} has the length {values['lengths'][sequence]}, and your mask keeps {seen} of it."


def _lengths(*lengths: int, n_tokens: int) -> Callable[[np.random.Generator], Arguments]:
    return lambda rng: given(np.array(lengths), n_tokens)


_padding_mask = Exercise(
    id="padding_mask",
    points=3,
    section=PADDING,
    reference=padding_mask,
    forbidden=_ATTENTION_CALLS,
    laws=(Law("wrong_sequence", _wrong_sequence, PADDING),),
    families={
        "True for real tokens, in the shape (B, 1, n)": 0.6,
        "sequences without filler, or with nothing else": 0.2,
        "a batch of one": 0.2,
    },
    cases=(
        Case(
            "lengths 2 and 3 in rows of 4",
            "True for real tokens, in the shape (B, 1, n)",
            _lengths(2, 3, n_tokens=4),
        ),
        Case(
            "three sequences, the longest first",
            "True for real tokens, in the shape (B, 1, n)",
            _lengths(4, 1, 2, n_tokens=5),
        ),
        Case(
            "as many sequences as tokens",
            "True for real tokens, in the shape (B, 1, n)",
            _lengths(2, 1, 3, 2, n_tokens=4),
        ),
        Case(
            "some lengths",
            "True for real tokens, in the shape (B, 1, n)",
            lambda rng: given(rng.permutation([1, 2, 4, 5, 6]), 7),
        ),
        Case(
            "no filler, nothing but filler, one token",
            "sequences without filler, or with nothing else",
            _lengths(3, 0, 1, n_tokens=3),
        ),
        Case("one sequence", "a batch of one", _lengths(2, n_tokens=5)),
        Case("one sequence of one token", "a batch of one", _lengths(1, n_tokens=1)),
    ),
    misconceptions=(
        Misconception(
            "missing_axis",
            _real,
            lambda values: (
                f"Your mask has the shape ({len(values['lengths'])}, {values['n_tokens']}): the axis for the queries "
                f"is "
                "missing. Shapes are lined up from the right, so the sequences would be laid along the queries. "
                "(B, 1, n) was asked for."
            ),
            PADDING,
        ),
        Misconception(
            "lengths_not_a_column",
            lambda lengths, n_tokens: np.arange(n_tokens) < lengths,
            lambda values: (
                f"You compare {values['n_tokens']} places with {len(values['lengths'])} lengths, one by one. Every "
                f"place "
                "has to meet every length: make the lengths a column, `lengths[:, None]`."
            ),
            PADDING,
        ),
        Misconception(
            "mask_along_queries",
            lambda lengths, n_tokens: _real(lengths, n_tokens)[:, :, None],
            "Your mask (B, n, 1) hides rows, that is queries. Filler must not be looked *at*: the keys are on the last "
            "axis, so the 1 belongs in the middle.",
            PADDING,
        ),
        Misconception(
            "batch_along_queries",
            lambda lengths, n_tokens: _real(lengths, n_tokens)[None],
            "Your mask has the shape (1, B, n): the sequences lie along the queries. The batch comes first, (B, 1, n).",
            PADDING,
        ),
        Misconception(
            "inverted_mask",
            lambda lengths, n_tokens: ~_real(lengths, n_tokens)[:, None],
            "Your mask is True for the filler. `keep` is True where a query may look, at real tokens.",
            PADDING,
        ),
        Misconception(
            "padded_in_front",
            lambda lengths, n_tokens: _real(lengths, n_tokens)[:, None, ::-1],
            "Your mask has the filler in front. Here it comes behind the real tokens.",
            PADDING,
        ),
        Misconception(
            "one_too_many",
            lambda lengths, n_tokens: _real(np.asarray(lengths) + 1, n_tokens)[:, None],
            "Your mask keeps one token too many: places are counted from 0, so the last real one is at length - 1.",
            PADDING,
        ),
        Misconception(
            "one_too_few",
            lambda lengths, n_tokens: _real(np.asarray(lengths) - 1, n_tokens)[:, None],
            "Your mask hides the last real token of each sequence: places are counted from 0, so it is at length - 1.",
            PADDING,
        ),
        *(
            Misconception(
                "one_length_for_all",
                lambda lengths, n_tokens, choose=choose: _real(np.full(len(lengths), choose(lengths)), n_tokens)[
                    :, None
                ],
                "All sequences get the same mask in your result. Each has a length of its own.",
                PADDING,
            )
            for choose in (np.max, np.min, lambda lengths: lengths[0], lambda lengths: lengths[-1])
        ),
        Misconception(
            "only_last_token",
            lambda lengths, n_tokens: (np.arange(n_tokens) == np.asarray(lengths)[:, None] - 1)[:, None],
            "Your mask keeps only the last real token of each sequence. Keep all real ones.",
            PADDING,
        ),
        Misconception(
            "nothing_hidden",
            lambda lengths, n_tokens: np.ones((len(lengths), 1, n_tokens), dtype=bool),
            "Your mask hides nothing. Tokens from `lengths` on are filler.",
            PADDING,
        ),
        Misconception(
            "not_broadcast",
            lambda lengths, n_tokens: np.repeat(_real(lengths, n_tokens)[:, None], n_tokens, axis=1),
            "Your mask repeats the same row for every query, (B, n, n). One row is enough, (B, 1, n): broadcasting "
            "serves any number of queries with it.",
            PADDING,
        ),
        Misconception(
            "queries_hidden_too",
            lambda lengths, n_tokens: _real(lengths, n_tokens)[:, None] & _real(lengths, n_tokens)[:, :, None],
            "Your mask (B, n, n) also hides the rows of the filler. Only keys are hidden here: what filler asks for "
            "does "
            "no harm, as nobody reads its output. (B, 1, n) was asked for.",
            PADDING,
        ),
        Misconception(
            "extra_axes",
            lambda lengths, n_tokens: _real(lengths, n_tokens)[:, None, None],
            "Your mask has the shape (B, 1, 1, n), with an axis for heads. Here it is (B, 1, n); with heads, chapter 3 "
            "will use `keep[:, None]`.",
            PADDING,
        ),
        Misconception(
            "transposed",
            lambda lengths, n_tokens: _real(lengths, n_tokens).T,
            "Your mask has tokens as rows and sequences as columns, (n, B). The batch comes first, (B, 1, n).",
            PADDING,
        ),
        Misconception(
            "mask_not_boolean",
            lambda lengths, n_tokens: _real(lengths, n_tokens)[:, None].astype(float),
            _NOT_BOOLEAN,
            PADDING,
        ),
        *(
            Misconception("additive_mask", _additive(padding_mask, hidden), _ADDITIVE, TWO_MASKS)
            for hidden in (-np.inf, -1e9, -1e30, -1e4, float(np.finfo(np.float32).min), float(np.finfo(float).min))
        ),
    ),
)


# attention

_MIX = "weights from scores, outputs from values"
_BATCHES = "batches and heads"
_HIDE = "hidden keys get 0 and the rest share 100 %"
_SMALLER = "masks that are smaller than the scores"
_EXTREME = "very large and very small scores"
_NOTHING = "a query that may attend to nothing"
_ONE = "one query, one key"


def _masked(keep: np.ndarray, *shapes: Sequence[int]) -> Callable[[np.random.Generator], Arguments]:
    """Q, K and V of these shapes, and `keep`."""
    return lambda rng: given(*(rng.standard_normal(shape) for shape in shapes), keep.copy())


def _along_first_slider(queries: Sequence[float], keys: Sequence[float], keep: np.ndarray | None = None) -> Arguments:
    """Queries and keys of length 4 that differ in their first entry: a score is query * key / 2."""
    Q, K = np.zeros((len(queries), 4)), np.zeros((len(keys), 4))
    Q[:, 0], K[:, 0] = queries, keys
    V = np.arange(1.0, 1 + 3 * len(keys)).reshape(len(keys), 3) ** 2
    return given(Q, K, V) if keep is None else given(Q, K, V, keep)


_attention_exercise = Exercise(
    id="attention",
    points=5,
    section=SPOTLIGHT,
    reference=attention,
    forbidden=_ATTENTION_CALLS,
    returns=("output", "weights"),
    exact_zeros=True,
    families={
        _MIX: 0.3,
        _BATCHES: 0.1,
        _HIDE: 0.15,
        _SMALLER: 0.15,
        _EXTREME: 0.1,
        _NOTHING: 0.1,
        _ONE: 0.05,
        INPUTS_UNCHANGED: 0.05,
    },
    cases=(
        Case(
            "two queries, three keys",
            _MIX,
            lambda rng: given(
                np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]]),
                np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]),
                np.array([[10.0, 1.0], [20.0, 2.0], [30.0, 5.0]]),
            ),
        ),
        Case("three queries, four keys, short values", _MIX, _normal((3, 5), (4, 5), (4, 2))),
        Case("more queries than keys, long values", _MIX, _normal((5, 3), (2, 3), (2, 6))),
        Case("everything square", _MIX, _normal((3, 3), (3, 3), (3, 3))),
        Case("float32", _MIX, _normal((2, 6), (3, 6), (3, 4), dtype=np.float32)),
        Case("a batch of two", _BATCHES, _normal((2, 3, 5), (2, 4, 5), (2, 4, 6))),
        Case("a batch of two, as many queries as keys", _BATCHES, _normal((2, 4, 3), (2, 4, 3), (2, 4, 5))),
        Case("two sequences, three heads", _BATCHES, _normal((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2))),
        Case("a causal mask", _HIDE, _masked(np.tri(4, dtype=bool), (4, 5), (4, 5), (4, 2))),
        Case(
            "three queries, five keys, a mask for each query",
            _HIDE,
            _masked(
                np.array([[True, False, True, True, False], [False, True, False, True, True], [True] * 5]),
                (3, 4),
                (5, 4),
                (5, 3),
            ),
        ),
        Case(
            "a batch of two, each with a mask of its own",
            _HIDE,
            _masked(
                np.stack([np.tri(3, 4, 1, dtype=bool), np.tri(3, 4, 0, dtype=bool)[:, ::-1]]),
                (2, 3, 5),
                (2, 4, 5),
                (2, 4, 2),
            ),
        ),
        Case("nothing hidden", _HIDE, _masked(np.ones((3, 4), dtype=bool), (3, 5), (4, 5), (4, 2))),
        Case(
            "a padding mask (B, 1, T_k)",
            _SMALLER,
            _masked(_real(np.array([3, 2]), 5)[:, None], (2, 4, 3), (2, 5, 3), (2, 5, 6)),
        ),
        Case(
            "one causal mask for a batch",
            _SMALLER,
            _masked(np.tri(3, dtype=bool), (3, 3, 5), (3, 3, 5), (3, 3, 2)),
        ),
        Case(
            "two sequences, two heads, padding (B, 1, 1, T_k)",
            _SMALLER,
            _masked(_real(np.array([4, 2]), 5)[:, None, None], (2, 2, 3, 6), (2, 2, 5, 6), (2, 2, 5, 4)),
        ),
        Case(
            "one mask (T_q, T_k) for all sequences and heads",
            _SMALLER,
            _masked(np.tri(3, 5, 1, dtype=bool), (2, 2, 3, 6), (2, 2, 5, 6), (2, 2, 5, 4)),
        ),
        Case(
            "one mask (T_k,) for all queries",
            _SMALLER,
            _masked(np.array([True, False, True, True]), (3, 5), (4, 5), (4, 2)),
        ),
        Case("rows far apart", _EXTREME, lambda rng: _along_first_slider([3000.0, 1.0], [1.0, 0.4, -1.0])),
        Case(
            "the hidden key has by far the largest score",
            _EXTREME,
            lambda rng: _along_first_slider([2.0], [1.0, 5000.0, 2.0], np.array([[True, False, True]])),
        ),
        Case(
            "all visible scores are very negative",
            _EXTREME,
            lambda rng: _along_first_slider([-20000.0], [3.0, 2.9999, 0.0], np.array([[True, True, False]])),
        ),
        Case(
            "the second of two queries",
            _NOTHING,
            _masked(np.array([[True, True, False], [False, False, False]]), (2, 4), (3, 4), (3, 2)),
        ),
        Case(
            "a sequence of nothing but filler",
            _NOTHING,
            _masked(_real(np.array([3, 0]), 4)[:, None], (2, 3, 5), (2, 4, 5), (2, 4, 2)),
        ),
        Case("one query, and its only key is hidden", _NOTHING, _masked(np.array([[False]]), (1, 3), (1, 3), (1, 2))),
        Case("one query, one key", _ONE, _normal((1, 4), (1, 4), (1, 3))),
        Case("one query, one mask", _ONE, _masked(np.array([[True, False, True]]), (1, 4), (3, 4), (3, 2))),
        Case("a batch of one", _ONE, _masked(np.array([[[True, True, False]]]), (1, 2, 4), (1, 3, 4), (1, 3, 2))),
    ),
    misconceptions=ATTENTION_MISTAKES,
    laws=_LAWS,
)


# single_head

_MADE = "queries, keys and values from token vectors"
_MASKED_HEAD = "the mask is handed on"


def _head_arguments(
    *tokens: int,
    d_model: int,
    d_k: int,
    d_v: int,
    keep: np.ndarray | None = None,
    dtype: type = float,
    scale: float = 1.0,
) -> Callable[[np.random.Generator], Arguments]:
    """X (*tokens, d_model) and matrices that give scores of about unit variance, times `scale` squared."""

    def arguments(rng: np.random.Generator) -> Arguments:
        X = (scale * rng.standard_normal((*tokens, d_model))).astype(dtype)
        W = [(rng.standard_normal((d_model, d)) / math.sqrt(d_model)).astype(dtype) for d in (d_k, d_k, d_v)]
        return given(X, *W) if keep is None else given(X, *W, keep.copy())

    return arguments


def _scaled_by(size: Callable[[np.ndarray, np.ndarray], int]) -> Callable[..., Pair]:
    """The size that the scale is the root of comes from X and W_V."""

    def implementation(
        X: np.ndarray, W_Q: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, keep: np.ndarray | None = None
    ) -> Pair:
        attend = _attention(score=_scaled(lambda Q, K: 1 / math.sqrt(size(X, W_V))))
        return attend(X @ W_Q, X @ W_K, X @ W_V, keep)

    return implementation


def _d_model_text(values: Mapping[str, Any]) -> str:
    d_model, d_k = values["X"].shape[-1], _d_k(values)
    return (
        f"Your scores equal those divided by sqrt(d_model) = {math.sqrt(d_model):.3g} instead of sqrt(d_k) = "
        f"{math.sqrt(d_k):.3g}. Queries and keys have d_k = {d_k} entries here, and the products add up d_k terms."
    )


def _d_v_text(values: Mapping[str, Any]) -> str:
    d_v, d_k = values["W_V"].shape[-1], _d_k(values)
    return (
        f"Your scores equal those divided by sqrt(d_v) = {math.sqrt(d_v):.3g}, the root of the values' length, instead "
        f"of sqrt(d_k) = {math.sqrt(d_k):.3g}."
    )


def _flattened(
    X: np.ndarray, W_Q: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, keep: np.ndarray | None = None
) -> Pair:
    output, weights = _attend(*(X.reshape(-1, X.shape[-1]) @ W for W in (W_Q, W_K, W_V)), keep)
    return output.reshape(*X.shape[:-1], -1), weights


def _weights_transposed(
    X: np.ndarray, W_Q: np.ndarray, W_K: np.ndarray, W_V: np.ndarray, keep: np.ndarray | None = None
) -> Pair:
    return _attend(X @ W_Q.T, X @ W_K.T, X @ W_V.T, keep)


# The first three are said in the words of tokens; the cases of `attention` alone show the others.
_NOT_IN_A_HEAD = ("keys_mixed", "scale_by_d_k", "ignores_mask", "finite_fill", "max_of_hidden")

_KEEP_DROPPED = (
    "Your result is the one without a mask. Hand `keep` on to `attention`: the default None would hide nothing."
)

_single_head = Exercise(
    id="single_head",
    points=3,
    section=HEAD,
    reference=single_head,
    forbidden=_ATTENTION_CALLS,
    returns=("output", "weights"),
    exact_zeros=True,
    families={
        _MADE: 0.4,
        "batches": 0.15,
        _MASKED_HEAD: 0.2,
        _EXTREME: 0.05,
        "a token that may attend to nothing": 0.1,
        "one token": 0.05,
        INPUTS_UNCHANGED: 0.05,
    },
    cases=(
        Case(
            "three tokens of two entries",
            _MADE,
            lambda rng: given(
                np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]]),
                np.array([[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 1.0]]),
                np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 2.0]]),
                np.array([[1.0, 2.0, 3.0], [5.0, 1.0, 2.0]]),
            ),
        ),
        Case("four tokens", _MADE, _head_arguments(4, d_model=6, d_k=3, d_v=2)),
        Case("values longer than the token vectors", _MADE, _head_arguments(3, d_model=4, d_k=2, d_v=5)),
        Case("everything square", _MADE, _head_arguments(4, d_model=4, d_k=4, d_v=4)),
        Case("float32", _MADE, _head_arguments(3, d_model=6, d_k=4, d_v=2, dtype=np.float32)),
        Case("a batch of two", "batches", _head_arguments(2, 4, d_model=6, d_k=3, d_v=5)),
        Case("a batch of three, three tokens", "batches", _head_arguments(3, 3, d_model=5, d_k=2, d_v=4)),
        Case("two axes in front", "batches", _head_arguments(2, 3, 4, d_model=5, d_k=3, d_v=2)),
        Case(
            "a causal mask",
            _MASKED_HEAD,
            _head_arguments(4, d_model=6, d_k=3, d_v=2, keep=np.tri(4, dtype=bool)),
        ),
        Case(
            "one causal mask for a batch",
            _MASKED_HEAD,
            _head_arguments(2, 3, d_model=6, d_k=4, d_v=2, keep=np.tri(3, dtype=bool)),
        ),
        Case(
            "a padding mask (B, 1, T)",
            _MASKED_HEAD,
            _head_arguments(2, 5, d_model=4, d_k=3, d_v=2, keep=_real(np.array([3, 2]), 5)[:, None]),
        ),
        Case(
            "causal and padding at once",
            _MASKED_HEAD,
            _head_arguments(
                2, 4, d_model=5, d_k=3, d_v=2, keep=np.tri(4, dtype=bool) & _real(np.array([4, 2]), 4)[:, None]
            ),
        ),
        Case(
            "two axes in front, padding (B, 1, 1, T)",
            _MASKED_HEAD,
            _head_arguments(2, 2, 3, d_model=5, d_k=2, d_v=4, keep=_real(np.array([2, 1]), 3)[:, None, None]),
        ),
        Case("token vectors a thousand times larger", _EXTREME, _head_arguments(4, d_model=6, d_k=3, d_v=2, scale=1e3)),
        Case(
            "a sequence of nothing but filler",
            "a token that may attend to nothing",
            _head_arguments(2, 3, d_model=5, d_k=2, d_v=4, keep=_real(np.array([2, 0]), 3)[:, None]),
        ),
        Case(
            "the first token sees nothing",
            "a token that may attend to nothing",
            _head_arguments(3, d_model=5, d_k=2, d_v=4, keep=np.tri(3, k=-1, dtype=bool)),
        ),
        Case("one token", "one token", _head_arguments(1, d_model=4, d_k=3, d_v=2)),
        Case("a batch of one", "one token", _head_arguments(1, 3, d_model=4, d_k=3, d_v=2)),
    ),
    laws=_LAWS,
    misconceptions=(
        Misconception("scale_by_d_model", _scaled_by(lambda X, W_V: X.shape[-1]), _d_model_text, SCALE),
        Misconception("scale_by_d_v", _scaled_by(lambda X, W_V: W_V.shape[-1]), _d_v_text, SCALE),
        Misconception(
            "values_not_projected",
            lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_Q, X @ W_K, X, keep),
            "You mix the token vectors X themselves. Mix the values, X @ W_V.",
            HEAD,
        ),
        Misconception(
            "keys_not_projected",
            lambda X, W_Q, W_K, W_V, keep=None: _attend(X, X, X @ W_V, keep),
            "Your scores compare the token vectors X themselves. Queries are X @ W_Q and keys X @ W_K.",
            HEAD,
        ),
        Misconception(
            "nothing_projected",
            lambda X, W_Q, W_K, W_V, keep=None: _attend(X, X, X, keep),
            "You attend with the token vectors X as they are. Queries, keys and values are X times W_Q, W_K and W_V.",
            HEAD,
        ),
        Misconception(
            "queries_and_keys_swapped",
            lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_K, X @ W_Q, X @ W_V, keep),
            "Queries and keys have changed places: W_Q makes queries, what a token asks, and W_K makes keys, what it "
            "can be found by.",
            HEAD,
        ),
        *(
            Misconception(
                "one_projection_reused",
                implementation,
                "One matrix makes both queries and keys in your code. Each has a matrix of its own, W_Q and W_K.",
                HEAD,
            )
            for implementation in (
                lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_Q, X @ W_Q, X @ W_V, keep),
                lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_K, X @ W_K, X @ W_V, keep),
            )
        ),
        *(
            Misconception(
                "values_from_wrong_matrix",
                implementation,
                "You mix something else than the values. Values are X @ W_V; keys and queries are for finding only.",
                HEAD,
            )
            for implementation in (
                lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_Q, X @ W_K, X @ W_K, keep),
                lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_Q, X @ W_K, X @ W_Q, keep),
            )
        ),
        Misconception(
            "weights_transposed",
            _weights_transposed,
            "You multiply by the transposed matrices. Here token vectors are rows and the matrices (d_model, d_k), so "
            "it is `X @ W_Q`. (torch's nn.Linear stores its weight the other way round.)",
            HEAD,
        ),
        Misconception(
            "matrix_on_the_left",
            lambda X, W_Q, W_K, W_V, keep=None: _attend(W_Q @ X, W_K @ X, W_V @ X, keep),
            "You write the matrix first. Token vectors are the rows of X, (..., T, d_model), and the matrix comes "
            "behind: `X @ W_Q`.",
            HEAD,
        ),
        Misconception(
            "scaled_twice",
            _on_tokens(_attention(score=_scaled(lambda Q, K: 1 / Q.shape[-1]))),
            lambda values: (
                f"Your scores equal those divided by d_k = {_d_k(values)}, twice by its root. `attention` divides "
                "already; hand it queries and keys as they are."
            ),
            SCALE,
        ),
        Misconception(
            "ignores_mask",
            lambda X, W_Q, W_K, W_V, keep=None: _attend(X @ W_Q, X @ W_K, X @ W_V),
            _KEEP_DROPPED,
            HEAD,
        ),
        Misconception(
            "batch_flattened",
            _flattened,
            "Your code lays all sequences of the batch end to end, so they attend to each other. `X @ W_Q` works for a "
            "batch as it is: no reshape is needed.",
            HEAD,
        ),
        *(
            Misconception(mistake.id, _on_tokens(mistake.implementation), mistake.explanation, mistake.section)
            for mistake in ATTENTION_MISTAKES
            if mistake.id not in _NOT_IN_A_HEAD
        ),
    ),
)


_QUIZZES = (
    Quiz(
        "quiz_02_1",
        answer="D",
        section=SCALE,
        explanations={
            "A": "512 is the length of the token vectors. A score is a sum of d_k products, and d_k is 64 here.",
            "B": "64 is d_k itself, the variance of a dot product. Its spread is the square root of that.",
            "C": "That is the square root of d_model. The products that a score adds up are as many as a query has "
            "entries: d_k.",
            "D": "Yes. A dot product of 64 random products has the variance 64 and the spread 8. Divided by 8 it has "
            "the "
            "spread 1, as it would for any other d_k.",
        },
    ),
    Quiz(
        "quiz_02_2",
        answer="B",
        section=PADDING,
        explanations={
            "A": "Shapes are lined up from the right: 12 with 12 keys, then 5 with 12 queries. That does not fit, and "
            "NumPy refuses. With 12 sequences it would fit, and be wrong.",
            "B": "Yes. Lined up from the right, the 12 meets the keys, the 1 is repeated for every query, and the 5 "
            "meets the sequences.",
            "C": "That hides queries: the row of a filler token becomes empty, and all the others still look at "
            "filler.",
            "D": "Lined up from the right, the 5 would meet the 12 queries. The sequences are the first axis.",
        },
    ),
    Quiz(
        "quiz_02_3",
        answer="C",
        section=BLURRED,
        explanations={
            "A": "Longer queries and keys can tell more apart, but the row they make still sums to 100 %.",
            "B": "Larger scores make the row more decided: one clue then gets nearly all, and the others less.",
            "C": "Yes. Each row has a budget of its own, so one can be 88 % on bowl while another is 84 % on slippery. "
            "That is what chapter 3 builds.",
            "D": "Training finds the best row there is, and no row can do it: the three wishes add up to 253 %.",
        },
    ),
)

EXERCISES = (_attention_scores, _causal_mask, _padding_mask, _attention_exercise, _single_head, *_QUIZZES)
