"""Answers to the exercises of chapter 2."""

import math
from itertools import product

import numpy as np

from answers import right, wrong


def good_scores(Q, K):
    return Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])


def good_softmax(scores, keep=None, axis=-1):
    scores = scores if keep is None else np.where(keep, scores, -np.inf)
    top = scores.max(axis=axis, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = exps.sum(axis=axis, keepdims=True)
    return exps / np.where(total == 0, 1, total)


def good_attention(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep)
    return weights @ V, weights


# attention_scores, right


right("attention_scores")(good_scores)


@right("attention_scores")
def by_einsum(Q, K):
    return np.einsum("...qd,...kd->...qk", Q, K) / math.sqrt(K.shape[-1])


@right("attention_scores")
def by_matmul_and_moveaxis(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    d_k = queries.shape[-1]
    return np.matmul(queries, np.moveaxis(keys, -1, -2)) * d_k**-0.5


@right("attention_scores")
def by_loops(Q, K):
    out = np.empty(Q.shape[:-1] + (K.shape[-2],))
    for batch in np.ndindex(*Q.shape[:-2]):
        for i, j in product(range(Q.shape[-2]), range(K.shape[-2])):
            total = 0.0
            for q, k in zip(Q[batch][i], K[batch][j], strict=True):
                total += q * k
            out[batch + (i, j)] = total / Q.shape[-1] ** 0.5
    return out


@right("attention_scores")
def by_broadcasting(Q, K):
    pairs = Q[..., :, None, :] * K[..., None, :, :]
    return pairs.sum(-1) / np.sqrt(pairs.shape[-1])


@right("attention_scores")
def by_transposed_axes(Q, K):
    axes = list(range(K.ndim))
    axes[-1], axes[-2] = axes[-2], axes[-1]
    return (Q / np.sqrt(Q.shape[-1])) @ K.transpose(axes)


@right("attention_scores")
def by_fourth_roots(Q, K):
    share = Q.shape[-1] ** 0.25
    return (Q / share) @ (K / share).swapaxes(-2, -1)


@right("attention_scores")
def by_matrix_transpose(Q, K):
    def scale(d):
        return 1 / np.sqrt(d)

    return Q @ np.matrix_transpose(K) * scale(Q.shape[-1])


@right("attention_scores")
def by_keys_first(Q, K):
    return (K @ Q.swapaxes(-1, -2)).swapaxes(-1, -2) / np.sqrt(K.shape[-1])


@right("attention_scores")
def by_torch(Q, K):
    import torch

    Q, K = (torch.as_tensor(x).double() for x in (Q, K))
    return (Q @ K.transpose(-2, -1) / Q.size(-1) ** 0.5).numpy()


# attention_scores, wrong


@wrong("attention_scores", "no_scale")
def unscaled(Q, K):
    return np.einsum("...qd,...kd->...qk", Q, K)


@wrong("attention_scores", "scale_by_d_k")
def without_the_root(Q, K):
    return np.matmul(Q, np.moveaxis(K, -1, -2)) / K.shape[-1]


@wrong("attention_scores", "scale_by_d_k")
def scaled_twice(Q, K):
    root = np.sqrt(Q.shape[-1])
    return (Q / root) @ (K / root).swapaxes(-1, -2)


@wrong("attention_scores", "multiplied")
def times_the_root(Q, K):
    return np.einsum("...qd,...kd->...qk", Q, K) * Q.shape[-1] ** 0.5


@wrong("attention_scores", "power_precedence")
def one_half_without_brackets(Q, K):
    return Q @ K.swapaxes(-1, -2) / Q.shape[-1] ** 1 / 2


@wrong("attention_scores", "power_precedence")
def minus_one_half_without_brackets(Q, K):
    return Q @ K.swapaxes(-1, -2) * Q.shape[-1] ** -1 / 2


@wrong("attention_scores", "root_rounded")
def root_as_integer(Q, K):
    return Q @ K.swapaxes(-1, -2) / int(np.sqrt(Q.shape[-1]))


@wrong("attention_scores", "scale_by_other_size")
def by_number_of_keys(Q, K):
    return Q @ K.swapaxes(-1, -2) / np.sqrt(K.shape[-2])


@wrong("attention_scores", "scale_by_other_size")
def by_length_of_array(Q, K):
    return Q @ K.swapaxes(-1, -2) / np.sqrt(len(Q))


@wrong("attention_scores", "scale_by_other_size")
def by_axis_one(Q, K):
    return Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[1])


@wrong("attention_scores", "queries_and_keys_swapped")
def keys_as_rows(Q, K):
    return np.einsum("...qd,...kd->...kq", Q, K) / np.sqrt(Q.shape[-1])


@wrong("attention_scores", "k_not_transposed")
def rows_by_columns(Q, K):
    return np.matmul(Q, K) / np.sqrt(Q.shape[-1])


@wrong("attention_scores", "k_dot_t")
def dot_t(Q, K):
    return (Q @ K.T) * (1 / np.sqrt(Q.shape[-1]))


@wrong("attention_scores", "k_dot_t")
def plain_transpose(Q, K):
    return np.matmul(Q, np.transpose(K)) / np.sqrt(Q.shape[-1])


@wrong("attention_scores", "k_dot_t")
def dot_and_t(Q, K):
    return np.dot(Q, K.T) / np.sqrt(Q.shape[-1])


@wrong("attention_scores", "dot_for_matmul")
def numpy_dot(Q, K):
    return np.dot(Q, K.swapaxes(-1, -2)) / np.sqrt(Q.shape[-1])


@wrong("attention_scores", "same_place_only")
def place_by_place(Q, K):
    return np.sum(Q * K, axis=-1) / np.sqrt(Q.shape[-1])


@wrong("attention_scores", "cosine")
def angles(Q, K):
    lengths = np.sqrt((Q**2).sum(-1))[..., :, None] * np.sqrt((K**2).sum(-1))[..., None, :]
    return Q @ K.swapaxes(-1, -2) / lengths


@wrong("attention_scores", "softmax_already")
def one_step_too_far(Q, K):
    return good_softmax(good_scores(Q, K))


@wrong("attention_scores", "integer_truncated")
def array_like_the_input(Q, K):
    out = np.zeros(Q.shape[:-1] + (K.shape[-2],), dtype=Q.dtype)
    out[...] = good_scores(Q, K)
    return out


@wrong("attention_scores", "integer_division")
def two_slashes(Q, K):
    return (Q @ K.swapaxes(-1, -2)) // np.sqrt(Q.shape[-1])


@wrong("attention_scores", "changes_input")
def scales_in_place(Q, K):
    if Q.dtype.kind == "f":
        Q /= np.sqrt(Q.shape[-1])
        return Q @ K.swapaxes(-1, -2)
    return good_scores(Q, K)


@wrong("attention_scores", "returned_none")
def forgets_to_return(Q, K):
    good_scores(Q, K)


@wrong("attention_scores", "wrong_factor")
def logarithm_for_root(Q, K):
    return Q @ K.swapaxes(-1, -2) / np.log(Q.shape[-1] + 1)


@wrong("attention_scores")
def two_axes_only(Q, K):
    T_q, d_k = Q.shape
    return Q @ K.T / np.sqrt(d_k)


@wrong("attention_scores")
def as_many_keys_as_queries(Q, K):
    T = Q.shape[-2]
    return (Q @ K.swapaxes(-1, -2) / np.sqrt(Q.shape[-1]))[..., :T, :T]


@wrong("attention_scores")
def rounded_scores(Q, K):
    return np.round(good_scores(Q, K), 2)


@wrong("attention_scores")
def negative_distances(Q, K):
    return -((Q[..., :, None, :] - K[..., None, :, :]) ** 2).sum(-1) / np.sqrt(Q.shape[-1])


# causal_mask, right


@right("causal_mask")
def by_tril(n_tokens):
    return np.tril(np.ones((n_tokens, n_tokens), dtype=bool))


@right("causal_mask")
def by_tri(n_tokens: int) -> np.ndarray:
    return np.tri(n_tokens) == 1


@right("causal_mask")
def by_inverted_triu(n_tokens):
    return ~np.triu(np.ones((n_tokens, n_tokens)), k=1).astype(bool)


@right("causal_mask")
def by_logical_not_of_triu(n):
    return np.logical_not(np.triu(np.full((n, n), True), 1))


@right("causal_mask")
def by_comparison(n_tokens):
    place = np.arange(n_tokens)
    return place[:, None] >= place[None, :]


@right("causal_mask")
def by_filling_rows(n_tokens):
    keep = np.zeros((n_tokens, n_tokens), dtype=bool)
    for i in range(n_tokens):
        keep[i, : i + 1] = True
    return keep


@right("causal_mask")
def by_fromfunction(n_tokens):
    return np.fromfunction(lambda i, j: j <= i, (n_tokens, n_tokens))


@right("causal_mask")
def by_lists(n_tokens):
    return np.array([[True] * (i + 1) + [False] * (n_tokens - i - 1) for i in range(n_tokens)])


@right("causal_mask")
def by_triangle_of_torch(n_tokens):
    import torch

    return torch.ones(n_tokens, n_tokens).tril().bool().numpy()


# causal_mask, wrong


@wrong("causal_mask", "upper_triangle")
def by_triu(n_tokens):
    return np.triu(np.ones((n_tokens, n_tokens))).astype(bool)


@wrong("causal_mask", "upper_triangle")
def keys_in_rows(n_tokens):
    place = np.arange(n_tokens)
    return place[:, None] <= place


@wrong("causal_mask", "diagonal_excluded")
def strictly_before(n_tokens):
    place = np.arange(n_tokens)
    return place < place[:, None]


@wrong("causal_mask", "inverted_mask")
def true_where_hidden(n_tokens):
    return np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)


@wrong("causal_mask", "sees_next_token")
def off_by_one(n_tokens):
    return np.tril(np.ones((n_tokens, n_tokens), dtype=bool), k=1)


@wrong("causal_mask", "only_itself")
def identity(n_tokens):
    return np.identity(n_tokens, dtype=bool)


@wrong("causal_mask", "nothing_hidden")
def all_true(n_tokens):
    return np.full((n_tokens, n_tokens), True)


@wrong("causal_mask", "extra_axes")
def with_axes_for_batch_and_heads(n_tokens):
    return by_tril(n_tokens)[None, None]


@wrong("causal_mask", "mask_not_boolean")
def ones_and_zeros(n_tokens):
    return np.tril(np.ones((n_tokens, n_tokens)))


@wrong("causal_mask", "mask_not_boolean")
def integers(n_tokens):
    return np.tril(np.ones((n_tokens, n_tokens), dtype=int))


@wrong("causal_mask", "additive_mask")
def minus_infinity_above(n_tokens):
    return np.triu(np.full((n_tokens, n_tokens), -np.inf), k=1)


@wrong("causal_mask", "additive_mask")
def minus_a_billion_above(n_tokens):
    return np.triu(np.ones((n_tokens, n_tokens)), k=1) * -1e9


@wrong("causal_mask", "wrong_type")
def list_of_lists(n_tokens):
    return by_tril(n_tokens).tolist()


@wrong("causal_mask", "wrong_row")
def window_of_two(n_tokens):
    return by_tril(n_tokens) & ~np.tril(np.ones((n_tokens, n_tokens), dtype=bool), k=-2)


@wrong("causal_mask")
def one_row(n_tokens):
    return np.arange(n_tokens) <= n_tokens


@wrong("causal_mask")
def always_four(n_tokens):
    return by_tril(4)


# padding_mask, right


@right("padding_mask")
def padding_by_comparison(lengths, n_tokens):
    return np.arange(n_tokens)[None, None, :] < np.asarray(lengths)[:, None, None]


@right("padding_mask")
def padding_by_loops(lengths, n_tokens):
    keep = np.zeros((len(lengths), 1, n_tokens), dtype=bool)
    for sequence, length in enumerate(lengths):
        keep[sequence, 0, :length] = True
    return keep


@right("padding_mask")
def padding_by_lists(lengths, n_tokens):
    return np.array([[[i < length for i in range(n_tokens)]] for length in lengths])


@right("padding_mask")
def padding_by_expand_dims(lengths, n_tokens):
    flat = np.less.outer(np.arange(n_tokens), lengths).T
    return np.expand_dims(flat, axis=1)


@right("padding_mask")
def padding_counted_from_one(lengths, n_tokens):
    return (np.arange(1, n_tokens + 1) <= lengths.reshape(-1, 1)).reshape(-1, 1, n_tokens)


@right("padding_mask")
def padding_by_inverting(lengths, n_tokens):
    filler = np.arange(n_tokens) >= lengths[:, np.newaxis]
    return ~filler[:, np.newaxis, :]


@right("padding_mask")
def padding_by_rows_of_a_triangle(lengths, n_tokens):
    return np.tri(n_tokens + 1, n_tokens, -1, dtype=bool)[lengths][:, None]


# padding_mask, wrong


@wrong("padding_mask", "missing_axis")
def without_axis_for_queries(lengths, n_tokens):
    return np.array([[i < length for i in range(n_tokens)] for length in lengths])


@wrong("padding_mask", "mask_along_queries")
def tokens_in_rows(lengths, n_tokens):
    keep = np.zeros((len(lengths), n_tokens, 1), dtype=bool)
    for sequence, length in enumerate(lengths):
        keep[sequence, :length] = True
    return keep


@wrong("padding_mask", "batch_along_queries")
def axis_in_front(lengths, n_tokens):
    return np.expand_dims(np.arange(n_tokens) < lengths[:, None], 0)


@wrong("padding_mask", "lengths_not_a_column")
def row_against_row(lengths, n_tokens):
    keep = np.arange(n_tokens) < lengths
    return keep[None, None, :]


@wrong("padding_mask", "inverted_mask")
def true_for_filler(lengths, n_tokens):
    return (np.arange(n_tokens) >= lengths[:, None])[:, None]


@wrong("padding_mask", "one_too_many")
def up_to_and_with(lengths, n_tokens):
    return (np.arange(n_tokens) <= lengths[:, None])[:, None]


@wrong("padding_mask", "one_too_few")
def one_less(lengths, n_tokens):
    return (np.arange(n_tokens) < lengths[:, None] - 1)[:, None]


@wrong("padding_mask", "padded_in_front")
def filler_first(lengths, n_tokens):
    return (np.arange(n_tokens) >= n_tokens - lengths[:, None])[:, None]


@wrong("padding_mask", "one_length_for_all")
def longest_for_all(lengths, n_tokens):
    return np.repeat([[np.arange(n_tokens) < max(lengths)]], len(lengths), axis=0)


@wrong("padding_mask", "queries_hidden_too")
def rows_and_columns(lengths, n_tokens):
    real = np.arange(n_tokens) < lengths[:, None]
    return np.einsum("bq,bk->bqk", real, real)


@wrong("padding_mask", "not_broadcast")
def repeated_for_every_query(lengths, n_tokens):
    return np.tile(padding_by_comparison(lengths, n_tokens), (1, n_tokens, 1))


@wrong("padding_mask", "extra_axes")
def with_axis_for_heads(lengths, n_tokens):
    return padding_by_loops(lengths, n_tokens)[:, :, None, :]


@wrong("padding_mask", "transposed")
def sequences_in_columns(lengths, n_tokens):
    return np.arange(n_tokens)[:, None] < lengths


@wrong("padding_mask", "mask_not_boolean")
def padding_of_ones(lengths, n_tokens):
    keep = np.zeros((len(lengths), 1, n_tokens))
    for sequence, length in enumerate(lengths):
        keep[sequence, 0, :length] = 1
    return keep


@wrong("padding_mask", "additive_mask")
def padding_to_add(lengths, n_tokens):
    return np.where(padding_by_loops(lengths, n_tokens), 0, -1e9)


@wrong("padding_mask", "only_last_token")
def where_it_ends(lengths, n_tokens):
    return (np.arange(n_tokens) + 1 == lengths[:, None])[:, None, :]


@wrong("padding_mask", "nothing_hidden")
def everything_is_real(lengths, n_tokens):
    return np.full((len(lengths), 1, n_tokens), True)


@wrong("padding_mask", "wrong_sequence")
def never_empty(lengths, n_tokens):
    return padding_by_comparison(np.maximum(lengths, 1), n_tokens)


@wrong("padding_mask")
def index_at_the_end(lengths, n_tokens):
    keep = np.ones((len(lengths), 1, n_tokens), dtype=bool)
    for sequence, length in enumerate(lengths):
        keep[sequence, 0, length] = False
    return keep


# attention, right


right("attention")(good_attention)


@right("attention")
def additive_mask(Q, K, V, keep=None):
    bias = 0.0 if keep is None else np.where(keep, 0.0, -np.inf)
    scores = good_scores(Q, K) + bias
    with np.errstate(invalid="ignore"):
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        weights = np.nan_to_num(exps / exps.sum(-1, keepdims=True))
    return weights @ V, weights


@right("attention")
def large_negative_fill(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is None:
        keep = np.ones(scores.shape, dtype=bool)
    scores = np.where(keep, scores, -1e30)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exps / exps.sum(axis=-1, keepdims=True) * keep
    return np.einsum("...qk,...kd->...qd", weights, V), weights


@right("attention")
def query_by_query(Q, K, V, keep=None):
    shape = Q.shape[:-1] + (K.shape[-2],)
    keep = np.broadcast_to(True if keep is None else keep, shape)
    weights, output = np.zeros(shape), np.zeros(Q.shape[:-1] + (V.shape[-1],))
    for batch in np.ndindex(*Q.shape[:-2]):
        for i, query in enumerate(Q[batch]):
            visible = [j for j in range(K.shape[-2]) if keep[batch + (i, j)]]
            if not visible:
                continue
            scores = [float(query @ K[batch][j]) / math.sqrt(len(query)) for j in visible]
            exps = [math.exp(s - max(scores)) for s in scores]
            for j, e in zip(visible, exps, strict=True):
                weights[batch + (i, j)] = e / sum(exps)
                output[batch + (i,)] += e / sum(exps) * V[batch][j]
    return output, weights


@right("attention")
def fills_a_copy_in_place(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        np.copyto(scores, -np.inf, where=~keep)
    empty = np.isneginf(scores).all(axis=-1, keepdims=True)
    scores[np.broadcast_to(empty, scores.shape)] = 0
    weights = np.where(empty, 0, good_softmax(scores))
    return weights @ V, weights


@right("attention")
def by_log_sum_exp(Q, K, V, keep=None):
    scores = np.where(True if keep is None else keep, good_scores(Q, K), -np.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))
    weights = np.where(np.isnan(weights), 0, weights)
    return weights @ V, weights


@right("attention")
def by_masked_arrays(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    hidden = np.broadcast_to(False if keep is None else ~keep, scores.shape)
    masked = np.ma.array(scores, mask=hidden)
    exps = np.ma.exp(masked - masked.max(axis=-1, keepdims=True))
    weights = np.asarray((exps / exps.sum(axis=-1, keepdims=True)).filled(0.0))
    return np.matmul(weights, V), weights


@right("attention")
def a_list_of_two(Q, K, V, keep=None):
    return list(good_attention(Q, K, V, keep))


@right("attention")
def softmax_of_torch(Q, K, V, keep=None):
    import torch

    scores = torch.as_tensor(good_scores(Q, K)).double()
    if keep is not None:
        scores = scores.masked_fill(~torch.as_tensor(keep), float("-inf"))
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0).numpy()
    return weights @ V, weights


@right("attention")
def mask_by_another_name(q, k, v, mask=None):
    output, weights = good_attention(q, k, v, mask)
    return output, weights


# attention, wrong


@wrong("attention", "no_scale")
def attention_unscaled(Q, K, V, keep=None):
    weights = good_softmax(Q @ K.swapaxes(-1, -2), keep)
    return weights @ V, weights


@wrong("attention", "scale_by_d_k")
def attention_scaled_again(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K) / np.sqrt(Q.shape[-1]), keep)
    return weights @ V, weights


@wrong("attention", "k_dot_t")
def attention_for_one_sequence(Q, K, V, keep=None):
    weights = good_softmax(Q @ K.T / np.sqrt(Q.shape[-1]), keep)
    return weights @ V, weights


@wrong("attention", "over_queries")
def attention_over_queries(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep, axis=-2)
    return weights @ V, weights


@wrong("attention", "wrong_axis")
def attention_over_axis_one(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep, axis=1)
    return weights @ V, weights


@wrong("attention", "keepdims_missing")
def attention_without_keepdims(Q, K, V, keep=None):
    scores = good_scores(Q, K) if keep is None else np.where(keep, good_scores(Q, K), -np.inf)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exps / exps.sum(-1)
    return weights @ V, weights


@wrong("attention", "no_max_subtracted")
def attention_overflows(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    exps = np.exp(scores) if keep is None else np.exp(np.where(keep, scores, -np.inf))
    total = exps.sum(axis=-1, keepdims=True)
    weights = exps / np.where(total == 0, 1, total)
    return weights @ V, weights


@wrong("attention", "global_max")
def attention_with_one_maximum(Q, K, V, keep=None):
    scores = np.where(True if keep is None else keep, good_scores(Q, K), -np.inf)
    exps = np.exp(scores - np.nanmax(scores, initial=-1e300))
    weights = exps / exps.sum(-1, keepdims=True)
    return weights @ V, weights


@wrong("attention", "mask_after_softmax")
def attention_masked_late(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K))
    if keep is not None:
        weights = np.where(keep, weights, 0)
    return weights @ V, weights


@wrong("attention", "inverted_mask")
def attention_inverted(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = np.where(keep, -np.inf, scores)
    weights = np.nan_to_num(good_softmax(scores))
    return weights @ V, weights


@wrong("attention", "mask_added")
def attention_plus_mask(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = scores + keep.astype(float)
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "hidden_score_zero")
def attention_tiny_fill(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = np.where(keep, scores, 1e-9)
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "finite_fill")
def attention_fill_of_minus_ten(Q, K, V, keep=None):
    scores = good_scores(Q, K) if keep is None else np.where(keep, good_scores(Q, K), -10)
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "finite_fill")
def attention_fill_of_ten_thousand(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is None:
        keep = np.ones_like(scores, dtype=bool)
    weights = good_softmax(np.where(keep, scores, -1e4)) * np.any(keep, axis=-1, keepdims=True)
    return weights @ V, weights


@wrong("attention", "fully_masked_unmasked")
def attention_minus_a_billion(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = scores + (1.0 - keep) * -1e9
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "fully_masked_uniform")
def attention_filled_with_a_billion(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = np.ma.filled(np.ma.array(scores, mask=np.broadcast_to(~keep, scores.shape)), -1e20)
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "fully_masked_nan")
def attention_nan(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = np.where(keep, scores, -np.inf)
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    weights = exps / exps.sum(-1, keepdims=True)
    return weights @ V, weights


@wrong("attention", "zero_times_infinity")
def attention_times_infinity(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        scores = scores - np.logical_not(keep) * np.inf
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "ignores_mask")
def attention_fill_thrown_away(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        np.where(keep, scores, -np.inf)
    weights = good_softmax(scores)
    return weights @ V, weights


@wrong("attention", "max_of_hidden")
def attention_renormalised(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K))
    if keep is not None:
        weights = weights * keep
        weights = weights / weights.sum(-1, keepdims=True)
    return weights @ V, weights


@wrong("attention", "mask_along_queries")
def attention_turned_mask(Q, K, V, keep=None):
    if keep is not None and keep.ndim > 1:
        keep = keep.swapaxes(-1, -2)
    return good_attention(Q, K, V, keep)


@wrong("attention", "mask_on_first_only")
def attention_masks_first_sequence(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None and scores.ndim > 2:
        scores[0] = np.where(np.broadcast_to(keep, scores.shape)[0], scores[0], -np.inf)
    elif keep is not None:
        scores = np.where(keep, scores, -np.inf)
    weights = good_softmax(scores, np.isfinite(scores))
    return weights @ V, weights


@wrong("attention", "batch_along_heads")
def attention_squeezes_mask(Q, K, V, keep=None):
    if keep is not None and keep.ndim == 4:
        keep = np.squeeze(keep, axis=1)
    return good_attention(Q, K, V, keep)


@wrong("attention", "always_causal")
def attention_causal_by_default(Q, K, V, keep=None):
    if keep is None:
        keep = np.tril(np.ones((Q.shape[-2], K.shape[-2]), dtype=bool))
    return good_attention(Q, K, V, keep)


@wrong("attention", "none_hides_all")
def attention_hands_none_on(Q, K, V, keep=None):
    weights = np.nan_to_num(good_softmax(np.where(keep, good_scores(Q, K), -np.inf)))
    return weights @ V, weights


@wrong("attention", "output_only")
def attention_output_with_a_fill(Q, K, V, keep=None):
    scores = good_scores(Q, K) if keep is None else np.where(keep, good_scores(Q, K), -1e12)
    return good_softmax(scores) @ V


@wrong("attention", "truth_of_array")
def attention_if_keep(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep:
        scores = np.where(keep, scores, -np.inf)
    weights = good_softmax(scores, np.isfinite(scores))
    return weights @ V, weights


@wrong("attention", "truth_of_array")
def attention_keep_unequal_none(Q, K, V, keep=None):
    return good_attention(Q, K, V, keep if keep != None else None)  # noqa: E711


@wrong("attention", "output_only")
def attention_output_only(Q, K, V, keep=None):
    return good_attention(Q, K, V, keep)[0]


@wrong("attention", "weights_only")
def attention_weights_only(Q, K, V, keep=None):
    return good_softmax(good_scores(Q, K), keep)


@wrong("attention", "pair_swapped")
def attention_weights_first(Q, K, V, keep=None):
    return good_attention(Q, K, V, keep)[::-1]


@wrong("attention", "scores_returned")
def attention_returns_scores(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    return good_softmax(scores, keep) @ V, scores


@wrong("attention", "scores_mixed")
def attention_mixes_by_scores(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    return scores @ V, good_softmax(scores, keep)


@wrong("attention", "keys_mixed")
def attention_mixes_keys(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep)
    return np.einsum("...qk,...kd->...qd", weights, K), weights


@wrong("attention", "values_unmixed")
def attention_returns_values(Q, K, V, keep=None):
    return V, good_softmax(good_scores(Q, K), keep)


@wrong("attention", "hard_choice")
def attention_takes_the_best(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep)
    best = np.eye(K.shape[-2])[weights.argmax(-1)]
    return best @ V, weights


@wrong("attention", "argmax")
def attention_all_or_nothing(Q, K, V, keep=None):
    scores = np.where(True if keep is None else keep, good_scores(Q, K), -np.inf)
    weights = np.eye(K.shape[-2])[scores.argmax(-1)]
    return weights @ V, weights


@wrong("attention", "attends_over_batch")
def attention_between_sequences(Q, K, V, keep=None):
    if Q.ndim == 3:
        Q, K, V = (x.transpose(1, 0, 2) for x in (Q, K, V))
        output, weights = good_attention(Q, K, V, keep)
        return output.transpose(1, 0, 2), weights
    return good_attention(Q, K, V, keep)


@wrong("attention", "library_call")
def attention_of_torch(Q, K, V, keep=None):
    import torch
    import torch.nn.functional as F

    Q, K, V = (torch.as_tensor(x) for x in (Q, K, V))
    output = F.scaled_dot_product_attention(Q, K, V, None if keep is None else torch.as_tensor(keep))
    return output.numpy(), good_softmax(good_scores(Q.numpy(), K.numpy()), keep)


@wrong("attention", "changes_input")
def attention_scales_queries_in_place(Q, K, V, keep=None):
    Q *= Q.shape[-1] ** -0.5
    weights = good_softmax(Q @ K.swapaxes(-1, -2), keep)
    return weights @ V, weights


@wrong("attention", "changes_input")
def attention_inverts_the_mask_in_place(Q, K, V, keep=None):
    scores = good_scores(Q, K)
    if keep is not None:
        np.logical_not(keep, out=keep)
        scores = np.where(keep, -np.inf, scores)
    weights = good_softmax(scores, np.isfinite(scores))
    return weights @ V, weights


@wrong("attention", "hidden_gets_weight")
def attention_leaks(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep) + (0 if keep is None else 0.01 * ~keep)
    return weights @ V, weights


@wrong("attention", "rows_do_not_sum_to_1")
def attention_large_epsilon(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep) * 0.97
    return weights @ V, weights


@wrong("attention", "output_is_not_the_mixture")
def attention_adds_the_values(Q, K, V, keep=None):
    output, weights = good_attention(Q, K, V, keep)
    return output + V.sum(axis=-2, keepdims=True), weights


@wrong("attention")
def attention_values_first(Q, K, V, keep=None):
    weights = good_softmax(good_scores(Q, K), keep)
    return V @ weights, weights


@wrong("attention")
def attention_empty_rows_mended_in_the_output(Q, K, V, keep=None):
    scores = good_scores(Q, K) if keep is None else np.where(keep, good_scores(Q, K), -1e9)
    weights = good_softmax(scores)
    seen = 1.0 if keep is None else np.any(keep, axis=-1, keepdims=True)
    return weights @ V * seen, weights


@wrong("attention")
def attention_square_mask_only(Q, K, V, keep=None):
    if keep is not None and keep.shape[-1] != keep.shape[-2]:
        keep = None
    return good_attention(Q, K, V, keep)


@wrong("attention")
def attention_in_half_precision(Q, K, V, keep=None):
    return tuple(x.astype(np.float16) for x in good_attention(Q, K, V, keep))


# single_head, right


@right("single_head")
def head_by_attention(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X @ W_Q, X @ W_K, X @ W_V, keep)


@right("single_head")
def head_by_einsum(X, W_Q, W_K, W_V, keep=None):
    Q, K, V = (np.einsum("...td,de->...te", X, W) for W in (W_Q, W_K, W_V))
    return good_attention(Q, K, V, keep=keep)


@right("single_head")
def head_by_fused_projection(X, W_Q, W_K, W_V, keep=None):
    fused = X @ np.concatenate([W_Q, W_K, W_V], axis=1)
    d_k = W_Q.shape[1]
    Q, K, V = np.split(fused, [d_k, 2 * d_k], axis=-1)
    return good_attention(Q, K, V, keep)


@right("single_head")
def head_by_one_bilinear_form(X, W_Q, W_K, W_V, keep=None):
    scores = X @ (W_Q @ W_K.T) @ np.swapaxes(X, -1, -2) / np.sqrt(W_Q.shape[-1])
    weights = good_softmax(scores, keep)
    return (weights @ X) @ W_V, weights


@right("single_head")
def head_by_transposes(X, W_Q, W_K, W_V, keep=None):
    Q, K, V = (np.swapaxes(W.T @ np.swapaxes(X, -1, -2), -1, -2) for W in (W_Q, W_K, W_V))
    return good_attention(Q, K, V, keep)


@right("single_head")
def head_by_np_dot(X, W_Q, W_K, W_V, keep=None):
    return good_attention(np.dot(X, W_Q), np.dot(X, W_K), np.dot(X, W_V), keep)


# single_head, wrong


@wrong("single_head", "scale_by_d_model")
def head_scaled_by_d_model(X, W_Q, W_K, W_V, keep=None):
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    weights = good_softmax(Q @ K.swapaxes(-1, -2) / np.sqrt(X.shape[-1]), keep)
    return weights @ V, weights


@wrong("single_head", "scale_by_d_v")
def head_scaled_by_d_v(X, W_Q, W_K, W_V, keep=None):
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V
    weights = good_softmax(Q @ K.swapaxes(-1, -2) / np.sqrt(V.shape[-1]), keep)
    return weights @ V, weights


@wrong("single_head", "scaled_twice")
def head_scaled_twice(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X @ W_Q / np.sqrt(W_Q.shape[-1]), X @ W_K, X @ W_V, keep)


@wrong("single_head", "no_scale")
def head_unscaled(X, W_Q, W_K, W_V, keep=None):
    weights = good_softmax((X @ W_Q) @ (X @ W_K).swapaxes(-1, -2), keep)
    return weights @ (X @ W_V), weights


@wrong("single_head", "ignores_mask")
def head_forgets_keep(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X @ W_Q, X @ W_K, X @ W_V)


@wrong("single_head", "values_not_projected")
def head_mixes_tokens(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X @ W_Q, X @ W_K, X, keep)


@wrong("single_head", "one_projection_reused")
def head_reuses_w_q(X, W_Q, W_K, W_V, keep=None):
    Q = K = X @ W_Q
    return good_attention(Q, K, X @ W_V, keep)


@wrong("single_head", "queries_and_keys_swapped")
def head_swaps_w_q_and_w_k(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X @ W_K, X @ W_Q, X @ W_V, keep)


@wrong("single_head", "values_from_wrong_matrix")
def head_values_from_w_k(X, W_Q, W_K, W_V, keep=None):
    keys = X @ W_K
    return good_attention(X @ W_Q, keys, keys, keep)


@wrong("single_head", "weights_transposed")
def head_like_nn_linear(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X @ W_Q.T, X @ W_K.T, X @ W_V.T, keep)


@wrong("single_head", "matrix_on_the_left")
def head_matrix_first(X, W_Q, W_K, W_V, keep=None):
    return good_attention(W_Q @ X, W_K @ X, W_V @ X, keep)


@wrong("single_head", "output_only")
def head_output_only(X, W_Q, W_K, W_V, keep=None):
    output, _ = good_attention(X @ W_Q, X @ W_K, X @ W_V, keep)
    return output


@wrong("single_head", "batch_flattened")
def head_flattens(X, W_Q, W_K, W_V, keep=None):
    flat = X.reshape(-1, X.shape[-1])
    output, weights = good_attention(flat @ W_Q, flat @ W_K, flat @ W_V, keep)
    return output.reshape(X.shape[:-1] + (W_V.shape[-1],)), weights


@wrong("single_head", "attends_over_batch")
def head_between_sequences(X, W_Q, W_K, W_V, keep=None):
    if X.ndim == 3:
        X = X.transpose(1, 0, 2)
    output, weights = good_attention(X @ W_Q, X @ W_K, X @ W_V, keep)
    return (output.transpose(1, 0, 2) if X.ndim == 3 else output), weights


@wrong("single_head", "mask_after_softmax")
def head_masks_late(X, W_Q, W_K, W_V, keep=None):
    output, weights = good_attention(X @ W_Q, X @ W_K, X @ W_V)
    weights = weights if keep is None else weights * keep
    return weights @ (X @ W_V), weights


@wrong("single_head", "over_queries")
def head_over_queries(X, W_Q, W_K, W_V, keep=None):
    weights = good_softmax(good_scores(X @ W_Q, X @ W_K), keep, axis=-2)
    return weights @ (X @ W_V), weights


@wrong("single_head", "keys_not_projected")
def head_compares_tokens(X, W_Q, W_K, W_V, keep=None):
    return good_attention(X, X, X @ W_V, keep)


@wrong("single_head", "library_call")
def head_of_torch(X, W_Q, W_K, W_V, keep=None):
    import torch

    Q, K, V = (torch.as_tensor(X @ W) for W in (W_Q, W_K, W_V))
    output = torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=keep)
    return output.numpy(), good_softmax(good_scores(Q.numpy(), K.numpy()), keep)


@wrong("single_head")
def head_with_an_activation(X, W_Q, W_K, W_V, keep=None):
    return good_attention(np.maximum(X @ W_Q, 0), np.maximum(X @ W_K, 0), X @ W_V, keep)


@wrong("single_head")
def head_with_a_shortcut(X, W_Q, W_K, W_V, keep=None):
    output, weights = good_attention(X @ W_Q, X @ W_K, X @ W_V, keep)
    return output + X @ W_V, weights


right("attention_scores")(
    np.vectorize(lambda Q, K: Q @ K.T / np.sqrt(Q.shape[-1]), signature="(q,d),(k,d)->(q,k)"),
)
