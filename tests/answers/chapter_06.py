"""Answers to the exercises of chapter 6."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from answers import right, wrong

# repeat_kv, right


@right("repeat_kv")
def interleaved(x, group_size):
    return x.repeat_interleave(group_size, dim=1)


@right("repeat_kv")
def interleaved_function(x: Tensor, group_size: int) -> Tensor:
    return torch.repeat_interleave(x, group_size, 1)


@right("repeat_kv")
def expanded(x, group_size):
    B, H_kv, T, d = x.shape
    if group_size == 1:
        return x
    return x[:, :, None, :, :].expand(B, H_kv, group_size, T, d).reshape(B, H_kv * group_size, T, d)


@right("repeat_kv")
def by_index(x, group_size):
    return x[:, torch.arange(x.shape[1] * group_size) // group_size]


@right("repeat_kv")
def list_of_heads(x, group_size):
    heads = []
    for h in range(x.size(1)):
        for _ in range(group_size):
            heads.append(x[:, h : h + 1])
    return torch.cat(heads, dim=1)


@right("repeat_kv")
def stacked(x, group_size):
    return torch.stack([x] * group_size, dim=2).flatten(1, 2)


@right("repeat_kv")
def whole_sequences_then_view(x, group_size):
    B, H, T, d = x.shape
    return x.repeat(1, 1, group_size, 1).view(B, H * group_size, T, d)


@right("repeat_kv")
def filled(x, group_size):
    out = x.new_empty(x.shape[0], x.shape[1] * group_size, x.shape[2], x.shape[3])
    for h in range(out.shape[1]):
        out[:, h] = x[:, h // group_size]
    return out


@right("repeat_kv")
def by_einsum(x, group_size):
    ones = torch.ones(group_size, dtype=x.dtype)
    return torch.einsum("bhtd,g->bhgtd", x, ones).flatten(1, 2)


@right("repeat_kv")
def gathered(x, group_size):
    wanted = torch.tensor([h for h in range(x.shape[1]) for _ in range(group_size)])
    return torch.index_select(x, 1, wanted)


# repeat_kv, wrong


@wrong("repeat_kv", "heads_take_turns")
def tiled(x, group_size):
    return x.repeat(1, group_size, 1, 1)


@wrong("repeat_kv", "heads_take_turns")
def tiled_by_torch(x, group_size):
    return torch.tile(x, (1, group_size, 1, 1))


@wrong("repeat_kv", "heads_take_turns")
def expanded_in_front(x, group_size):
    B, H, T, d = x.shape
    return x.unsqueeze(1).expand(B, group_size, H, T, d).reshape(B, group_size * H, T, d)


@wrong("repeat_kv", "heads_take_turns")
def modulo(x, group_size):
    return x[:, torch.arange(x.shape[1] * group_size) % x.shape[1]]


@wrong("repeat_kv", "repeated_along_tokens")
def along_the_sequence(x, group_size):
    return torch.repeat_interleave(x, repeats=group_size, dim=-2)


@wrong("repeat_kv", "repeated_along_tokens")
def along_the_sequence_then_reshape(x, group_size):
    B, H, T, d = x.shape
    return x.repeat_interleave(group_size, 2).view(B, H * group_size, T, d)


@wrong("repeat_kv", "repeated_along_tokens")
def as_if_tokens_came_first(x, group_size):
    B, T, H, d = x.shape
    return x[:, :, :, None].expand(B, T, H, group_size, d).reshape(B, T, H * group_size, d)


@wrong("repeat_kv", "repeated_along_batch")
def along_the_batch(x, group_size):
    return torch.repeat_interleave(x, group_size, 0)


@wrong("repeat_kv", "flattened")
def no_axis(x, group_size):
    return torch.repeat_interleave(x, group_size)


@wrong("repeat_kv", "not_repeated")
def thrown_away(x, group_size):
    x.repeat_interleave(group_size, dim=1)
    return x


@wrong("repeat_kv", "group_size_swapped")
def as_often_as_heads(x, group_size):
    n_kv_heads = x.shape[1]
    return x.repeat_interleave(n_kv_heads, dim=1)


@wrong("repeat_kv", "axis_left_over")
def five_axes(x, group_size):
    return x.unsqueeze(2).repeat(1, 1, group_size, 1, 1)


@wrong("repeat_kv", "axis_left_over")
def stacked_in_front(x, group_size):
    return torch.stack([x for _ in range(group_size)], dim=1)


@wrong("repeat_kv", "one_head_for_all")
def first_head(x, group_size):
    return x[:, 0].unsqueeze(1).expand(-1, x.shape[1] * group_size, -1, -1)


@wrong("repeat_kv", "one_copy_too_many")
def original_and_copies(x, group_size):
    B, H, T, d = x.shape
    return torch.cat([x[:, :, None], x[:, :, None].expand(B, H, group_size, T, d)], dim=2).reshape(B, -1, T, d)


@wrong("repeat_kv", "wrong_dtype")
def always_float(x, group_size):
    return x.float().repeat_interleave(group_size, dim=1)


@wrong("repeat_kv", "wrong_type")
def through_numpy(x, group_size):
    return x.float().numpy().repeat(group_size, axis=1)


@wrong("repeat_kv", "returned_none")
def nothing(x, group_size):
    x = x.repeat_interleave(group_size, dim=1)


# grouped_attention, right


@right("grouped_attention")
def repeating(q, k, v, keep=None):
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"{q.shape[1]} heads, {k.shape[1]} key/value heads")
    group_size = q.shape[1] // k.shape[1]
    k = interleaved(k, group_size)
    v = interleaved(v, group_size)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if keep is not None:
        weights = torch.nan_to_num(weights)
    return weights @ v, weights


@right("grouped_attention")
def query_rows_in_groups(q, k, v, keep=None):
    B, H_q, T_q, d = q.shape
    _, H_kv, T_k, _ = k.shape
    if H_q % H_kv:
        raise ValueError("not a multiple")
    rows = q.reshape(B, H_kv, H_q // H_kv * T_q, d)
    scores = (rows @ k.mT * d**-0.5).view(B, H_q, T_q, T_k)
    weights = scores.softmax(-1) if keep is None else torch.where(keep, scores, -torch.inf).softmax(-1).nan_to_num(0.0)
    output = weights.view(B, H_kv, -1, T_k) @ v
    return output.view(B, H_q, T_q, d), weights


@right("grouped_attention")
def five_axes_einsum(q, k, v, keep=None):
    B, H_q, T_q, d = q.shape
    H_kv = k.shape[1]
    if H_q % H_kv:
        raise ValueError((H_q, H_kv))
    grouped = q.reshape(B, H_kv, H_q // H_kv, T_q, d)
    scores = torch.einsum("bkgqd,bktd->bkgqt", grouped, k) / d**0.5
    if keep is not None:
        keep = keep.broadcast_to(B, H_q, T_q, k.shape[2]).reshape(scores.shape)
        scores = scores.masked_fill(keep.logical_not(), -torch.inf)
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))
    output = torch.einsum("bkgqt,bktd->bkgqd", weights, v)
    return output.reshape(B, H_q, T_q, d), weights.reshape(B, H_q, T_q, -1)


@right("grouped_attention")
def loop_over_heads(q, k, v, keep=None):
    n_heads, n_kv_heads = q.size(1), k.size(1)
    if n_heads % n_kv_heads:
        raise ValueError("heads")
    outputs, all_weights = [], []
    if keep is not None:
        keep = keep.expand(q.shape[0], n_heads, q.shape[2], k.shape[2])
    for h in range(n_heads):
        shared = h // (n_heads // n_kv_heads)
        scores = torch.bmm(q[:, h], k[:, shared].transpose(1, 2)) / math.sqrt(q.size(-1))
        if keep is not None:
            scores = scores.masked_fill(~keep[:, h], -math.inf)
        weights = torch.softmax(scores, -1)
        if keep is not None:
            weights = weights.masked_fill(~keep[:, h], 0)
        outputs.append(torch.bmm(weights, v[:, shared]))
        all_weights.append(weights)
    return torch.stack(outputs, 1), torch.stack(all_weights, 1)


@right("grouped_attention")
def loop_over_groups(q, k, v, keep=None):
    if q.shape[1] % k.shape[1]:
        raise ValueError
    size = q.shape[1] // k.shape[1]
    found = []
    for g in range(k.shape[1]):
        members = slice(g * size, (g + 1) * size)
        scores = q[:, members] @ k[:, g : g + 1].transpose(2, 3) / q.shape[-1] ** 0.5
        if keep is not None:
            scores = torch.where(
                torch.broadcast_to(keep, (q.shape[0], q.shape[1], *scores.shape[2:]))[:, members], scores, -1e30
            )
        found.append(scores)
    scores = torch.cat(found, 1)
    weights = torch.softmax(scores, -1)
    if keep is not None:
        weights = weights * keep
    return torch.cat([weights[:, g * size : (g + 1) * size] @ v[:, g : g + 1] for g in range(k.shape[1])], 1), weights


@right("grouped_attention")
def in_double(q, k, v, keep=None):
    H_q, H_kv = q.shape[1], k.shape[1]
    if H_kv > H_q or H_q % H_kv:
        raise ValueError(f"H_q = {H_q} is not a multiple of H_kv = {H_kv}")
    k, v = (expanded(x, H_q // H_kv).double() for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    bias = torch.zeros_like(scores) if keep is None else torch.zeros_like(scores).masked_fill(~keep, -math.inf)
    weights = torch.softmax(scores + bias, dim=3)
    weights = torch.where(weights.isnan(), 0.0, weights)
    return (weights @ v).to(q.dtype), weights.to(q.dtype)


@right("grouped_attention")
def own_softmax(q, k, v, keep=None):
    group_size, rest = divmod(q.shape[1], k.shape[1])
    if rest:
        raise ValueError(rest)
    k, v = by_index(k, group_size), by_index(v, group_size)
    scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.permute(0, 1, 3, 2))
    if keep is None:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool)
    top = scores.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    powers = torch.exp(scores - top.clamp(min=torch.finfo(top.dtype).min)).where(keep, 0.0)
    powers = torch.where(keep.expand(powers.shape), powers, torch.zeros_like(powers))
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total == 0, torch.ones_like(total), total)
    return torch.matmul(weights, v), weights


@right("grouped_attention")
def heads_last(q, k, v, keep=None):
    """Works with (B, T, H, d) inside, as some libraries do."""
    if q.shape[1] % k.shape[1]:
        raise ValueError("groups")
    k = torch.repeat_interleave(k, q.shape[1] // k.shape[1], 1)
    v = torch.repeat_interleave(v, q.shape[1] // v.shape[1], 1)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if keep is not None:
        scores = scores.masked_fill(keep == 0, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    if keep is not None:
        weights = weights.masked_fill(keep == 0, 0.0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2), weights


@right("grouped_attention")
def list_returned(q, k, v, keep=None):
    return list(repeating(q, k, v, keep))


# grouped_attention, wrong


def _attend(q, k, v, keep=None, scale=None):
    scores = q @ k.transpose(-2, -1) * (scale or q.shape[-1] ** -0.5)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    weights = torch.softmax(scores, -1)
    return (weights @ v, weights) if keep is None else (weights.nan_to_num() @ v, weights.nan_to_num())


def _checked(q, k):
    if q.shape[1] % k.shape[1]:
        raise ValueError("not a multiple")
    return q.shape[1] // k.shape[1]


@wrong("grouped_attention", "heads_take_turns")
def attends_tiled(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q, k.repeat(1, g, 1, 1), v.repeat(1, g, 1, 1), keep)


@wrong("grouped_attention", "heads_take_turns")
def groups_in_front(q, k, v, keep=None):
    B, H_q, T_q, d = q.shape
    g = _checked(q, k)
    grouped = q.view(B, g, k.shape[1], T_q, d)
    scores = grouped @ k.unsqueeze(1).transpose(-2, -1) / d**0.5
    scores = scores.view(B, H_q, T_q, -1)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num()
    output = weights.view(B, g, k.shape[1], T_q, -1) @ v.unsqueeze(1)
    return output.view(q.shape), weights


@wrong("grouped_attention", "repeated_along_tokens")
def attends_to_repeated_tokens(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q, along_the_sequence_then_reshape(k, g), along_the_sequence_then_reshape(v, g), keep)


@wrong("grouped_attention", "not_repeated")
def forgets_to_repeat(q, k, v, keep=None):
    _checked(q, k)
    return _attend(q, k, v, keep)


@wrong("grouped_attention", "group_size_swapped")
def number_for_size(q, k, v, keep=None):
    _checked(q, k)
    n = k.shape[1]
    return _attend(q, interleaved(k, n), interleaved(v, n), keep)


@wrong("grouped_attention", "group_size_swapped")
def wrong_quotient(q, k, v, keep=None):
    _checked(q, k)
    which = [h // k.shape[1] for h in range(q.shape[1])]
    return _attend(q, k[:, which], v[:, which], keep)


@wrong("grouped_attention", "values_take_turns")
def values_tiled(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q, interleaved(k, g), tiled(v, g), keep)


@wrong("grouped_attention", "heads_out_of_order")
def put_back_exchanged(q, k, v, keep=None):
    B, H_q, T_q, d = q.shape
    output, weights = repeating(q, k, v, keep)
    H_kv = k.shape[1]
    output = output.view(B, H_kv, -1, T_q, d).permute(0, 2, 1, 3, 4).reshape(B, H_q, T_q, d)
    return output, weights.view(B, H_kv, -1, T_q, k.shape[2]).permute(0, 2, 1, 3, 4).reshape(B, H_q, T_q, -1)


@wrong("grouped_attention", "scaled_by_d_model")
def root_of_d_model(q, k, v, keep=None):
    g = _checked(q, k)
    d_model = q.shape[1] * q.shape[3]
    return _attend(q, interleaved(k, g), interleaved(v, g), keep, 1 / math.sqrt(d_model))


@wrong("grouped_attention", "scaled_by_shared_width")
def root_of_kv_width(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q, interleaved(k, g), interleaved(v, g), keep, (k.shape[1] * k.shape[3]) ** -0.5)


@wrong("grouped_attention", "scaled_by_shared_width")
def root_of_group_width(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q, interleaved(k, g), interleaved(v, g), keep, 1 / math.sqrt(g * q.shape[-1]))


@wrong("grouped_attention", "no_scale")
def unscaled(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q, interleaved(k, g), interleaved(v, g), keep, 1.0)


@wrong("grouped_attention", "scaled_by_d")
def rootless(q, k, v, keep=None):
    g = _checked(q, k)
    return _attend(q / math.sqrt(q.shape[-1]), interleaved(k, g), interleaved(v, g), keep)


@wrong("grouped_attention", "softmax_over_heads")
def along_axis_1(q, k, v, keep=None):
    g = _checked(q, k)
    scores = q @ interleaved(k, g).mT / q.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    weights = F.softmax(scores, dim=1).nan_to_num()
    return weights @ interleaved(v, g), weights


@wrong("grouped_attention", "over_queries")
def along_queries(q, k, v, keep=None):
    g = _checked(q, k)
    scores = q @ interleaved(k, g).mT / q.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    weights = scores.softmax(dim=-2).nan_to_num()
    return weights @ interleaved(v, g), weights


@wrong("grouped_attention", "mask_on_groups")
def mask_meets_five_axes(q, k, v, keep=None):
    B, H_q, T_q, d = q.shape
    _checked(q, k)
    grouped = q.reshape(B, k.shape[1], -1, T_q, d)
    scores = torch.einsum("bhgqd,bhkd->bhgqk", grouped, k) / math.sqrt(d)
    if keep is not None:
        scores = scores.masked_fill(~keep, float("-inf"))
    weights = scores.softmax(-1).nan_to_num()
    output = torch.einsum("bhgqk,bhkd->bhgqd", weights, v)
    return output.reshape(q.shape), weights.reshape(B, H_q, T_q, -1)


@wrong("grouped_attention", "mask_on_groups")
def mask_gets_an_axis(q, k, v, keep=None):
    B, H_q, T_q, d = q.shape
    _checked(q, k)
    grouped = q.reshape(B, k.shape[1], -1, T_q, d)
    scores = grouped @ k[:, :, None].mT / math.sqrt(d)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, :, None], float("-inf"))
    weights = scores.softmax(-1).nan_to_num()
    return (weights @ v[:, :, None]).reshape(q.shape), weights.reshape(B, H_q, T_q, -1)


@wrong("grouped_attention", "fully_masked_nan")
def nan_rows(q, k, v, keep=None):
    g = _checked(q, k)
    scores = q @ interleaved(k, g).mT / q.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights @ interleaved(v, g), weights


@wrong("grouped_attention", "fully_masked_uniform")
def equal_rows(q, k, v, keep=None):
    g = _checked(q, k)
    scores = q @ interleaved(k, g).mT / q.shape[-1] ** 0.5
    if keep is not None:
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    return weights @ interleaved(v, g), weights


@wrong("grouped_attention", "inverted_mask")
def true_means_hidden(q, k, v, keep=None):
    return repeating(q, k, v, None if keep is None else ~keep)


@wrong("grouped_attention", "mask_after_softmax")
def too_late(q, k, v, keep=None):
    output, weights = repeating(q, k, v)
    if keep is not None:
        weights = weights * keep
    return weights @ interleaved(v, q.shape[1] // k.shape[1]), weights


@wrong("grouped_attention", "ignores_mask")
def mask_thrown_away(q, k, v, keep=None):
    return repeating(q, k, v)


@wrong("grouped_attention", "causal_always")
def past_only(q, k, v, keep=None):
    past = torch.tril(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool), k.shape[2] - q.shape[2])
    return repeating(q, k, v, past if keep is None else past & keep)


@wrong("grouped_attention", "groups_left_over")
def output_in_groups(q, k, v, keep=None):
    output, weights = repeating(q, k, v, keep)
    return output.unflatten(1, (k.shape[1], -1)), weights.unflatten(1, (k.shape[1], -1))


@wrong("grouped_attention", "weights_averaged")
def mean_weights(q, k, v, keep=None):
    output, weights = repeating(q, k, v, keep)
    return output, weights.mean(dim=1)


@wrong("grouped_attention", "weights_missing")
def output_alone(q, k, v, keep=None):
    return repeating(q, k, v, keep)[0]


@wrong("grouped_attention", "queries_averaged")
def one_query_per_group(q, k, v, keep=None):
    g = _checked(q, k)
    mean = q.view(q.shape[0], k.shape[1], g, q.shape[2], -1).mean(dim=2)
    return repeating(interleaved(mean, g), k, v, keep)


@wrong("grouped_attention", "wrong_error")
def no_check(q, k, v, keep=None):
    g = q.shape[1] // k.shape[1]
    return _attend(q, interleaved(k, g), interleaved(v, g), keep)


@wrong("grouped_attention", "asserted")
def by_assert(q, k, v, keep=None):
    assert q.shape[1] % k.shape[1] == 0, "not a multiple"
    return repeating(q, k, v, keep)


@wrong("grouped_attention", "accepts_unequal_groups")
def uneven(q, k, v, keep=None):
    which = [h * k.shape[1] // q.shape[1] for h in range(q.shape[1])]
    return _attend(q, k[:, which], v[:, which], keep)


@wrong("grouped_attention", "wrong_dtype")
def always_float32(q, k, v, keep=None):
    return repeating(q.float(), k.float(), v.float(), keep)


@wrong("grouped_attention", "changes_input")
def scales_in_place(q, k, v, keep=None):
    q /= math.sqrt(q.shape[-1])
    g = _checked(q, k)
    return _attend(q, interleaved(k, g), interleaved(v, g), keep, 1.0)


@wrong("grouped_attention", "library_call")
def by_torch(q, k, v, keep=None):
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return output, repeating(q, k, v, keep)[1]


# GroupedQueryAttention, right


def causal_from_the_end(n_new, n_total):
    return torch.arange(n_total)[None, :] <= torch.arange(n_total - n_new, n_total)[:, None]


@right("GroupedQueryAttention")
class Plain(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        if min(d_model, n_heads, n_kv_heads) <= 0 or d_model % n_heads or n_heads % n_kv_heads:
            raise ValueError(f"impossible: {d_model}, {n_heads}, {n_kv_heads}")
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.d_head = d_model // n_heads
        self.w_q = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_o = nn.Linear(n_heads * self.d_head, d_model, bias=False)

    def forward(self, x, keep=None, cache=None):
        B, T, _ = x.shape
        q = self.w_q(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        k = self.w_k(x).view(B, T, self.n_kv_heads, self.d_head).transpose(1, 2)
        v = self.w_v(x).view(B, T, self.n_kv_heads, self.d_head).transpose(1, 2)
        if cache is not None:
            k, v = cache.append(k, v)
            causal = causal_from_the_end(T, k.shape[2])
            keep = causal if keep is None else causal & keep
        output, weights = repeating(q, k, v, keep)
        return self.w_o(output.transpose(1, 2).reshape(B, T, -1)), weights


@right("GroupedQueryAttention")
class FusedAndLive(nn.Module):
    """One product for queries, keys and values, made of the named weights at every call."""

    def __init__(self, d_model: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        if n_heads % n_kv_heads:
            raise ValueError("n_kv_heads must divide n_heads")
        if d_model % n_heads:
            raise ValueError("n_heads must divide d_model")
        self.d_model, self.n_heads, self.n_kv_heads, self.d_head = d_model, n_heads, n_kv_heads, d_model // n_heads
        self.sizes = [d_model, n_kv_heads * self.d_head, n_kv_heads * self.d_head]
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, size, bias=False) for size in self.sizes)
        self.w_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(0.0)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_head)).movedim(2, 1)

    def forward(self, x: Tensor, keep: Tensor | None = None, cache: object = None) -> tuple[Tensor, Tensor]:
        fused = torch.cat([self.w_q.weight, self.w_k.weight, self.w_v.weight])
        q, k, v = map(self.split, F.linear(x, fused).split(self.sizes, dim=-1))
        if cache is not None:
            before = len(cache)
            k, v = cache.append(k, v)
            rows = torch.arange(before, before + x.shape[1])
            causal = rows[:, None] >= torch.arange(k.shape[-2])
            keep = causal if keep is None else torch.logical_and(keep, causal)
        output, weights = query_rows_in_groups(q, k, v, keep)
        return self.w_o(self.dropout(output.movedim(1, 2).flatten(2))), weights


@right("GroupedQueryAttention")
class HeadByHead(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        if d_model % n_heads != 0 or n_heads % n_kv_heads != 0:
            raise ValueError("sizes")
        nn.Module.__init__(self)
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads
        kv_width = self.d_head * n_kv_heads
        for name, width in {"w_q": d_model, "w_k": kv_width, "w_v": kv_width, "w_o": d_model}.items():
            setattr(self, name, nn.Linear(d_model, width, bias=False))

    def forward(self, x, keep=None, cache=None):
        d = self.d_head
        k = torch.stack(self.w_k(x).split(d, -1), 1)
        v = torch.stack(torch.split(self.w_v(x), d, dim=-1), dim=1)
        if cache is not None:
            k, v = cache.append(k, v)
            n_new, n_total = x.shape[1], k.shape[2]
            causal = torch.tril(torch.ones(n_new, n_total, dtype=torch.bool), diagonal=n_total - n_new)
            keep = causal & (keep if keep is not None else True)
        q = torch.stack(self.w_q(x).split(d, -1), 1)
        output, weights = loop_over_heads(q, k, v, keep)
        return self.w_o(torch.cat(list(output.unbind(1)), -1)), weights


@right("GroupedQueryAttention")
class OnTopOfPlain(Plain):
    """Subclasses, with an attribute and a method more, and checks when it runs."""

    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__(d_model, n_heads, n_kv_heads)
        self.group_size = n_heads // n_kv_heads
        self.scale = self.d_head**-0.5
        self.last_weights = None

    def forward(self, x, keep=None, cache=None):
        output, self.last_weights = super().forward(x, keep=keep, cache=cache)
        return output, self.last_weights


@right("GroupedQueryAttention")
class AdditiveMask(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        if n_kv_heads < 1 or n_heads % n_kv_heads or d_model % n_heads:
            raise ValueError("sizes")
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_model // n_heads
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, keep=None, cache=None):
        B, n = x.shape[:2]
        q = self.w_q(x).reshape(B, n, self.n_kv_heads, -1, self.d_head).permute(0, 2, 3, 1, 4)
        k, v = (w(x).reshape(B, n, self.n_kv_heads, self.d_head).permute(0, 2, 1, 3) for w in (self.w_k, self.w_v))
        if cache is not None:
            k, v = cache.append(k, v)
        n_total = k.shape[2]
        scores = torch.einsum("bhgqd,bhkd->bhgqk", q, k).flatten(1, 2) / self.d_head**0.5
        if cache is not None:
            future = torch.ones(n, n_total).triu(n_total - n + 1).bool()
            scores = scores.masked_fill(future, -torch.inf)
        if keep is not None:
            scores = scores + torch.zeros(keep.shape, dtype=scores.dtype).masked_fill(~keep, -torch.inf)
        weights = torch.softmax(scores, -1).nan_to_num(nan=0.0)
        output = torch.einsum("bhgqk,bhkd->bqhgd", weights.unflatten(1, (self.n_kv_heads, -1)), v)
        return self.w_o(output.reshape(B, n, -1)), weights


# GroupedQueryAttention, wrong


@wrong("GroupedQueryAttention", "kv_heads_of_full_size")
class AllFull(Plain):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__(d_model, n_heads, n_kv_heads)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, keep=None, cache=None):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        if cache is not None:
            k, v = cache.append(k, v)
            causal = causal_from_the_end(x.shape[1], k.shape[2])
            keep = causal if keep is None else causal & keep
        output, weights = repeating(q, k, v, keep)
        return self.w_o(output.transpose(1, 2).flatten(2)), weights


class Steps(Plain):
    """`Plain` in steps, to be wrong in one of them."""

    attention = staticmethod(repeating)

    def heads(self, x, n):
        return x.view(x.shape[0], x.shape[1], n, self.d_head).transpose(1, 2)

    def cached(self, cache, k, v):
        return cache.append(k, v)

    def mask(self, n_new, n_total, keep):
        causal = causal_from_the_end(n_new, n_total)
        return causal if keep is None else causal & keep

    def out(self, output):
        return self.w_o(output.transpose(1, 2).flatten(2))

    def forward(self, x, keep=None, cache=None):
        q = self.heads(self.w_q(x), self.n_heads)
        k = self.heads(self.w_k(x), self.n_kv_heads)
        v = self.heads(self.w_v(x), self.n_kv_heads)
        if cache is not None:
            k, v = self.cached(cache, k, v)
            keep = self.mask(x.shape[1], k.shape[2], keep)
        output, weights = self.attention(q, k, v, keep)
        return self.out(output), weights


@wrong("GroupedQueryAttention", "cache_gets_repeated_keys")
class RepeatsFirst(Steps):
    def cached(self, cache, k, v):
        group_size = self.n_heads // self.n_kv_heads
        return cache.append(interleaved(k, group_size), interleaved(v, group_size))


@wrong("GroupedQueryAttention", "heads_take_turns")
class Tiles(Steps):
    attention = staticmethod(attends_tiled)


@wrong("GroupedQueryAttention", "repeated_along_tokens")
class RepeatsTokens(Steps):
    attention = staticmethod(attends_to_repeated_tokens)


@wrong("GroupedQueryAttention", "group_size_swapped")
class SwapsNumbers(Steps):
    attention = staticmethod(number_for_size)


@wrong("GroupedQueryAttention", "scaled_by_d_model")
class WrongScale(Steps):
    attention = staticmethod(root_of_d_model)


@wrong("GroupedQueryAttention", "group_size_swapped")
class GroupSizeWidth(Plain):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__(d_model, n_heads, n_kv_heads)
        group_size = n_heads // n_kv_heads
        self.w_k = nn.Linear(d_model, group_size * self.d_head, bias=False)
        self.w_v = nn.Linear(d_model, group_size * self.d_head, bias=False)


@wrong("GroupedQueryAttention", "d_head_of_groups")
class WiderHeads(Plain):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__(d_model, n_heads, n_kv_heads)
        self.d_head = d_model // n_kv_heads
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_head, bias=False)


@wrong("GroupedQueryAttention", "with_biases")
class Biased(Plain):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__(d_model, n_heads, n_kv_heads)
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, n_kv_heads * self.d_head)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.d_head)
        self.w_o = nn.Linear(d_model, d_model)


@wrong("GroupedQueryAttention", "cache_result_ignored")
class ForgetsTheOld(Steps):
    def cached(self, cache, k, v):
        cache.append(k, v)
        return k, v


@wrong("GroupedQueryAttention", "cache_not_used")
class NeverAppends(Steps):
    def cached(self, cache, k, v):
        return k, v


@wrong("GroupedQueryAttention", "cache_swaps_keys_and_values")
class AppendsInWrongOrder(Steps):
    def cached(self, cache, k, v):
        return cache.append(v, k)


@wrong("GroupedQueryAttention", "appended_twice")
class AppendsTwice(Steps):
    def cached(self, cache, k, v):
        k_all, _ = cache.append(k, v)
        _, v_all = cache.append(k, v)
        return k_all, v_all


@wrong("GroupedQueryAttention", "cache_gets_tokens_before_heads")
class AppendsBeforeTransposing(Steps):
    def cached(self, cache, k, v):
        k, v = cache.append(k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3))
        return k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)


@wrong("GroupedQueryAttention", "memory_in_the_layer")
class RemembersItself(Steps):
    past = None

    def cached(self, cache, k, v):
        if self.past is not None:
            k, v = torch.cat([self.past[0], k], 2), torch.cat([self.past[1], v], 2)
        self.past = k, v
        return k, v


@wrong("GroupedQueryAttention", "mask_from_top_left")
class TopLeft(Steps):
    def mask(self, n_new, n_total, keep):
        causal = torch.tril(torch.ones(n_new, n_total)).bool()
        return causal if keep is None else causal & keep


@wrong("GroupedQueryAttention", "square_mask_on_cached_keys")
class SquareMask(Steps):
    def mask(self, n_new, n_total, keep):
        causal = torch.ones(n_new, n_new, dtype=torch.bool).tril()
        return causal if keep is None else causal & keep


@wrong("GroupedQueryAttention", "not_causal_in_chunk")
class SeesTheWholeChunk(Steps):
    def mask(self, n_new, n_total, keep):
        return keep


@wrong("GroupedQueryAttention", "not_causal_in_chunk")
class CausalOnlyForOne(Steps):
    def mask(self, n_new, n_total, keep):
        causal = torch.ones(n_new, n_total, dtype=torch.bool)
        return causal if keep is None else causal & keep


@wrong("GroupedQueryAttention", "keep_ignored_with_cache")
class IgnoresKeep(Steps):
    def mask(self, n_new, n_total, keep):
        return causal_from_the_end(n_new, n_total)


@wrong("GroupedQueryAttention", "keep_replaces_causal")
class KeepInstead(Steps):
    def mask(self, n_new, n_total, keep):
        if keep is None:
            keep = causal_from_the_end(n_new, n_total)
        return keep


@wrong("GroupedQueryAttention", "keep_or_causal")
class EitherMask(Steps):
    def mask(self, n_new, n_total, keep):
        causal = causal_from_the_end(n_new, n_total)
        return causal if keep is None else keep | causal


@wrong("GroupedQueryAttention", "causal_always")
class AlwaysCausal(Steps):
    def forward(self, x, keep=None, cache=None):
        if cache is None:
            causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
            keep = causal if keep is None else causal & keep
        return super().forward(x, keep, cache)


@wrong("GroupedQueryAttention", "w_o_missing")
class NoMixing(Steps):
    def out(self, output):
        return output.transpose(1, 2).flatten(2)


@wrong("GroupedQueryAttention", "combine_without_transpose")
class CombinesAsItLies(Steps):
    def out(self, output):
        return self.w_o(output.reshape(output.shape[0], output.shape[2], -1))


@wrong("GroupedQueryAttention", "split_without_transpose")
class SplitsAsItLies(Steps):
    def heads(self, x, n):
        return x.view(x.shape[0], n, x.shape[1], self.d_head)


@wrong("GroupedQueryAttention", "accepts_unequal_heads")
class Truncates(Steps):
    def __init__(self, d_model, n_heads, n_kv_heads):
        nn.Module.__init__(self)
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, n_kv_heads, d_model // n_heads
        self.w_q = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.w_k, self.w_v = (nn.Linear(d_model, n_kv_heads * self.d_head, bias=False) for _ in range(2))
        self.w_o = nn.Linear(n_heads * self.d_head, d_model, bias=False)


@wrong("GroupedQueryAttention", "accepts_unequal_groups")
class TruncatesGroups(Truncates):
    attention = staticmethod(uneven)

    def __init__(self, d_model, n_heads, n_kv_heads):
        if d_model % n_heads:
            raise ValueError(d_model)
        super().__init__(d_model, n_heads, n_kv_heads)


@wrong("GroupedQueryAttention", "asserted")
class Asserts(Truncates):
    def __init__(self, d_model, n_heads, n_kv_heads):
        assert d_model % n_heads == 0
        assert n_kv_heads and n_heads % n_kv_heads == 0
        super().__init__(d_model, n_heads, n_kv_heads)


@wrong("GroupedQueryAttention", "weights_missing")
class OutputAlone(Steps):
    def forward(self, x, keep=None, cache=None):
        return super().forward(x, keep, cache)[0]


@wrong("GroupedQueryAttention", "missing_attribute")
class OtherNames(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        self.layer = Plain(d_model, n_heads, n_kv_heads)

    def forward(self, x, keep=None, cache=None):
        return self.layer(x, keep, cache)


@wrong("GroupedQueryAttention", "wrong_signature")
class NoCache(Steps):
    def forward(self, x, keep=None):
        return super().forward(x, keep)


# gqa_parameter_count


@right("gqa_parameter_count")
def formula(d_model, n_heads, n_kv_heads):
    d_head = d_model // n_heads
    return 2 * d_model**2 + 2 * d_model * n_kv_heads * d_head


@right("gqa_parameter_count")
def true_division(d_model, n_heads, n_kv_heads):
    return 2 * d_model * d_model * (1 + n_kv_heads / n_heads)


@right("gqa_parameter_count")
def matrix_by_matrix(d_model: int, n_heads: int, n_kv_heads: int) -> int:
    if d_model % n_heads or n_heads % n_kv_heads:
        raise ValueError("sizes")
    d_head = d_model // n_heads
    shapes = [
        (d_model, n_heads * d_head),
        (d_model, n_kv_heads * d_head),
        (d_model, n_kv_heads * d_head),
        (d_model, d_model),
    ]
    return sum(math.prod(shape) for shape in shapes)


@right("gqa_parameter_count")
def counted(d_model, n_heads, n_kv_heads):
    with torch.device("meta"):
        return sum(p.numel() for p in Plain(d_model, n_heads, n_kv_heads).parameters())


@wrong("gqa_parameter_count", "counted_as_mha")
def four_squares(d_model, n_heads, n_kv_heads):
    return 4 * d_model * d_model


@wrong("gqa_parameter_count", "counted_as_mha")
def wider_kv_heads(d_model, n_heads, n_kv_heads):
    d_head = d_model // n_kv_heads
    return 2 * d_model**2 + 2 * d_model * (n_kv_heads * d_head)


@wrong("gqa_parameter_count", "group_size_swapped")
def with_group_size(d_model, n_heads, n_kv_heads):
    d_head, group_size = d_model // n_heads, n_heads // n_kv_heads
    return 2 * d_model**2 + 2 * d_model * group_size * d_head


@wrong("gqa_parameter_count", "all_matrices_shrunk")
def all_four_narrow(d_model, n_heads, n_kv_heads):
    return 4 * d_model * (n_kv_heads * d_model // n_heads)


@wrong("gqa_parameter_count", "w_o_forgotten")
def three_matrices(d_model, n_heads, n_kv_heads):
    return d_model**2 + 2 * d_model * n_kv_heads * d_model // n_heads


@wrong("gqa_parameter_count", "with_biases")
def biases_too(d_model, n_heads, n_kv_heads):
    kv_width = n_kv_heads * d_model // n_heads
    return 2 * (d_model * d_model + d_model) + 2 * (d_model * kv_width + kv_width)


@wrong("gqa_parameter_count", "only_keys_shared")
def full_values(d_model, n_heads, n_kv_heads):
    return 3 * d_model**2 + d_model * n_kv_heads * (d_model // n_heads)


@wrong("gqa_parameter_count")
def none_of_this(d_model, n_heads, n_kv_heads):
    return d_model * n_heads * n_kv_heads


# kv_saving


@right("kv_saving")
def ratio(n_heads, n_kv_heads):
    return n_heads / n_kv_heads


@right("kv_saving")
def whole_ratio(n_heads, n_kv_heads):
    return n_heads // n_kv_heads


@right("kv_saving")
def by_tensors(n_heads: int, n_kv_heads: int) -> float:
    if n_heads % n_kv_heads:
        raise ValueError("sizes")
    return float(2 * n_heads) / float(2 * n_kv_heads)


@wrong("kv_saving", "upside_down")
def share_left(n_heads, n_kv_heads):
    return n_kv_heads / n_heads


@wrong("kv_saving", "share_saved")
def share_gone(n_heads, n_kv_heads):
    return (n_heads - n_kv_heads) / n_heads


@wrong("kv_saving", "share_saved")
def percent_gone(n_heads, n_kv_heads):
    return 100 - 100 * n_kv_heads / n_heads


@wrong("kv_saving", "tensors_saved")
def difference(n_heads, n_kv_heads):
    return 2 * n_heads - 2 * n_kv_heads


@wrong("kv_saving", "kinds_counted_once")
def two_kinds(n_heads, n_kv_heads):
    return 2 * n_heads / n_kv_heads


@wrong("kv_saving", "eight_always")
def as_the_text_says(n_heads, n_kv_heads):
    return 8


@wrong("kv_saving", "wrong_type")
def in_words(n_heads, n_kv_heads):
    return f"{n_heads / n_kv_heads}x"


# mha_to_gqa, right


@right("mha_to_gqa")
def by_view(mha, n_kv_heads):
    gqa = Plain(mha.d_model, mha.n_heads, n_kv_heads)
    with torch.no_grad():
        gqa.w_q.weight.copy_(mha.w_q.weight)
        gqa.w_o.weight.copy_(mha.w_o.weight)
        for new, old in ((gqa.w_k, mha.w_k), (gqa.w_v, mha.w_v)):
            grouped = old.weight.view(n_kv_heads, mha.n_heads // n_kv_heads, mha.d_head, mha.d_model)
            new.weight.copy_(grouped.mean(dim=1).reshape(n_kv_heads * mha.d_head, mha.d_model))
    return gqa


@right("mha_to_gqa")
@torch.no_grad()
def by_loops(mha, n_kv_heads):
    if mha.n_heads % n_kv_heads:
        raise ValueError(f"{mha.n_heads} heads, {n_kv_heads} groups")
    size, d = mha.n_heads // n_kv_heads, mha.d_head
    layer = FusedAndLive(mha.d_model, mha.n_heads, n_kv_heads)
    layer.w_q.load_state_dict(mha.w_q.state_dict())
    layer.w_o.load_state_dict(mha.w_o.state_dict())
    for g in range(n_kv_heads):
        for name in ("w_k", "w_v"):
            heads = [getattr(mha, name).weight[h * d : (h + 1) * d] for h in range(g * size, (g + 1) * size)]
            getattr(layer, name).weight[g * d : (g + 1) * d] = sum(heads) / len(heads)
    return layer


@right("mha_to_gqa")
def by_chunks(mha, n_kv_heads):
    def pooled(weight):
        heads = torch.stack(weight.detach().chunk(mha.n_heads))
        return torch.cat([group.mean(0) for group in heads.split(mha.n_heads // n_kv_heads)])

    layer = HeadByHead(mha.w_q.in_features, mha.n_heads, n_kv_heads)
    layer.w_q = copy.deepcopy(mha.w_q)
    layer.w_o = copy.deepcopy(mha.w_o)
    layer.w_k.weight = nn.Parameter(pooled(mha.w_k.weight))
    layer.w_v.weight = nn.Parameter(pooled(mha.w_v.weight))
    return layer


@right("mha_to_gqa")
def by_state_dict(mha, n_kv_heads):
    group_size = mha.n_heads // n_kv_heads
    gqa = AdditiveMask(mha.d_model, mha.n_heads, n_kv_heads)
    state = {name: value.clone() for name, value in mha.state_dict().items()}
    for name in ("w_k.weight", "w_v.weight"):
        state[name] = (
            torch.einsum("kgdm->kdm", state[name].unflatten(0, (n_kv_heads, group_size, -1))).flatten(0, 1) / group_size
        )
    gqa.load_state_dict(state)
    return gqa


@right("mha_to_gqa")
def by_data(mha, n_kv_heads):
    gqa = OnTopOfPlain(mha.d_model, mha.n_heads, n_kv_heads)
    averaging = torch.kron(torch.eye(n_kv_heads), torch.full((1, mha.n_heads // n_kv_heads), n_kv_heads / mha.n_heads))
    averaging = torch.kron(averaging, torch.eye(mha.d_head))
    gqa.w_q.weight.data = mha.w_q.weight.data.clone()
    gqa.w_o.weight.data = mha.w_o.weight.data.clone()
    gqa.w_k.weight.data = averaging @ mha.w_k.weight.data
    gqa.w_v.weight.data = averaging @ mha.w_v.weight.data
    return gqa


# mha_to_gqa, wrong


def _convert(mha, n_kv_heads, pool_keys, pool_values=None):
    gqa = Plain(mha.d_model, mha.n_heads, n_kv_heads)
    with torch.no_grad():
        gqa.w_q.weight.copy_(mha.w_q.weight)
        gqa.w_o.weight.copy_(mha.w_o.weight)
        for new, old, pool in ((gqa.w_k, mha.w_k, pool_keys), (gqa.w_v, mha.w_v, pool_values or pool_keys)):
            heads = old.weight.view(mha.n_heads, mha.d_head, mha.d_model)
            new.weight.copy_(pool(heads, n_kv_heads).reshape(new.weight.shape))
    return gqa


def _mean(heads, n):
    return heads.view(n, -1, *heads.shape[1:]).mean(1)


@wrong("mha_to_gqa", "sum_for_mean")
def summed(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: heads.view(n, -1, *heads.shape[1:]).sum(1))


@wrong("mha_to_gqa", "first_head_only")
def one_of_each(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: heads[:: len(heads) // n])


@wrong("mha_to_gqa", "first_heads_only")
def the_first_few(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: heads[:n])


@wrong("mha_to_gqa", "strided_heads")
def every_nth(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: torch.stack([heads[g::n].mean(0) for g in range(n)]))


@wrong("mha_to_gqa", "strided_heads")
def viewed_in_wrong_order(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: heads.view(len(heads) // n, n, *heads.shape[1:]).mean(0))


@wrong("mha_to_gqa", "keys_pooled_values_not")
def values_cut(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, _mean, lambda heads, n: heads[:n])


@wrong("mha_to_gqa", "keys_pooled_values_not")
def values_forgotten(mha, n_kv_heads):
    gqa = Plain(mha.d_model, mha.n_heads, n_kv_heads)
    with torch.no_grad():
        gqa.w_q.weight.copy_(mha.w_q.weight)
        gqa.w_o.weight.copy_(mha.w_o.weight)
        gqa.w_k.weight.copy_(_mean(mha.w_k.weight.view(mha.n_heads, mha.d_head, -1), n_kv_heads).flatten(0, 1))
    return gqa


@wrong("mha_to_gqa", "keys_pooled_values_not")
def values_of_first_in_group(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, _mean, lambda heads, n: heads[:: len(heads) // n])


@wrong("mha_to_gqa", "values_pooled_keys_not")
def keys_cut(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: heads[:n], _mean)


@wrong("mha_to_gqa", "rows_mixed")
def groups_inside_heads(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    with torch.no_grad():
        for new, old in ((gqa.w_k, mha.w_k), (gqa.w_v, mha.w_v)):
            new.weight.copy_(old.weight.view(n_kv_heads * mha.d_head, mha.n_heads // n_kv_heads, -1).mean(1))
    return gqa


@wrong("mha_to_gqa", "mean_over_all_heads")
def the_same_for_all(mha, n_kv_heads):
    return _convert(mha, n_kv_heads, lambda heads, n: heads.mean(0, keepdim=True).expand(n, -1, -1))


@wrong("mha_to_gqa", "group_size_swapped")
def other_number_of_heads(mha, n_kv_heads):
    return by_view(mha, mha.n_heads // n_kv_heads)


@wrong("mha_to_gqa", "shares_weights")
def same_modules(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    gqa.w_q = mha.w_q
    gqa.w_o = mha.w_o
    return gqa


@wrong("mha_to_gqa", "shares_weights")
def same_parameters(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    gqa.w_q.weight = mha.w_q.weight
    gqa.w_o.weight = mha.w_o.weight
    return gqa


@wrong("mha_to_gqa", "original_changed")
def pooled_in_place(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    with torch.no_grad():
        for linear in (mha.w_k, mha.w_v):
            heads = linear.weight.view(n_kv_heads, -1, mha.d_head, mha.d_model)
            heads.copy_(heads.mean(1, keepdim=True).expand_as(heads))
    return gqa


@wrong("mha_to_gqa", "w_q_not_copied")
def queries_forgotten(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    nn.init.xavier_uniform_(gqa.w_q.weight)
    return gqa


@wrong("mha_to_gqa", "w_o_not_copied")
def output_forgotten(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    nn.init.zeros_(gqa.w_o.weight)
    return gqa


@wrong("mha_to_gqa", "queries_pooled")
def queries_averaged_too(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    with torch.no_grad():
        heads = mha.w_q.weight.view(n_kv_heads, -1, mha.d_head, mha.d_model)
        gqa.w_q.weight.copy_(heads.mean(1, keepdim=True).expand_as(heads).reshape(mha.w_q.weight.shape))
    return gqa


@wrong("mha_to_gqa", "cannot_be_trained")
def requires_no_gradient(mha, n_kv_heads):
    gqa = by_view(mha, n_kv_heads)
    for parameter in gqa.parameters():
        parameter.requires_grad = False
    return gqa


@wrong("mha_to_gqa", "returned_none")
def forgets_to_return(mha, n_kv_heads):
    by_view(mha, n_kv_heads)


@wrong("mha_to_gqa", "missing_attribute")
def still_an_mha(mha, n_kv_heads):
    new = copy.deepcopy(mha)
    with torch.no_grad():
        for linear in (new.w_k, new.w_v):
            heads = linear.weight.view(n_kv_heads, -1, mha.d_head, mha.d_model)
            heads.copy_(heads.mean(1, keepdim=True).expand_as(heads))
    return new


@wrong("mha_to_gqa", "accepts_unequal_groups")
def makes_it_fit(mha, n_kv_heads):
    while mha.n_heads % n_kv_heads:
        n_kv_heads -= 1
    return by_view(mha, n_kv_heads)


@wrong("mha_to_gqa", "raises")
def cannot_write(mha, n_kv_heads):
    gqa = Plain(mha.d_model, mha.n_heads, n_kv_heads)
    gqa.w_q.weight.copy_(mha.w_q.weight)
    return gqa
