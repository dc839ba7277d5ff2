"""Answers to the exercises of chapter 4."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from answers import right, wrong


class MultiHeadAttention(nn.Module):
    """A learner's own layer, with helpers and attributes of their own: some answers build on its name."""

    def __init__(self, d_model, n_heads, d_head=None):
        super().__init__()
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head or d_model // n_heads
        self.scale = self.d_head**-0.5
        inner = self.n_heads * self.d_head
        self.w_q = nn.Linear(d_model, inner, bias=False)
        self.w_k = nn.Linear(d_model, inner, bias=False)
        self.w_v = nn.Linear(d_model, inner, bias=False)
        self.w_o = nn.Linear(inner, d_model, bias=False)

    def split(self, x):
        return x.view(*x.shape[:2], self.n_heads, self.d_head).transpose(1, 2)

    def forward(self, query, key=None, value=None, keep=None):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.split(self.w_q(query)), self.split(self.w_k(key)), self.split(self.w_v(value))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        if keep is not None:
            scores = scores.masked_fill(~keep, -1e30)
        weights = scores.softmax(-1)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2)), weights


# head_contributions, right


@right("head_contributions")
def blocks_by_view(head_outputs, W_O):
    B, H, T, d_k = head_outputs.shape
    return head_outputs @ W_O.view(H, d_k, -1)


@right("head_contributions")
def einsum_over_blocks(head_outputs: torch.Tensor, W_O: torch.Tensor) -> torch.Tensor:
    n_heads, d_k = head_outputs.shape[1], head_outputs.shape[3]
    return torch.einsum("bhtk,hkm->bhtm", head_outputs, W_O.reshape(n_heads, d_k, W_O.shape[-1]))


@right("head_contributions")
def loop_and_stack(head_outputs, W_O):
    d_k = head_outputs.size(-1)
    parts = []
    for h in range(head_outputs.size(1)):
        parts.append(torch.matmul(head_outputs[:, h], W_O[h * d_k : (h + 1) * d_k, :]))
    return torch.stack(parts, dim=1)


@right("head_contributions")
def preallocated_with_chunks(head_outputs, W_O):
    B, H, T, d_k = head_outputs.shape
    out = torch.empty(B, H, T, W_O.shape[1], dtype=head_outputs.dtype)
    for h, block in enumerate(W_O.chunk(H, dim=0)):
        out[:, h] = head_outputs[:, h] @ block
    return out


@right("head_contributions")
def zero_padded_concat(head_outputs, W_O):
    B, H, T, d_k = head_outputs.shape
    concat = torch.zeros(B, H, T, H * d_k, dtype=head_outputs.dtype)
    for h in range(H):
        concat[:, h, :, h * d_k : (h + 1) * d_k] = head_outputs[:, h]
    return concat @ W_O


@right("head_contributions")
def broadcast_and_sum(head_outputs, W_O):
    blocks = torch.stack(W_O.split(head_outputs.shape[-1]))
    return (head_outputs[..., None] * blocks[None, :, None]).sum(dim=-2)


@right("head_contributions")
def through_linear(head_outputs, W_O):
    blocks = W_O.unflatten(0, (head_outputs.shape[1], -1))
    return torch.stack([F.linear(x, w.T) for x, w in zip(head_outputs.unbind(1), blocks, strict=True)], 1)


# head_contributions, wrong


@wrong("head_contributions", "heads_summed")
def the_sum(head_outputs, W_O):
    B, H, T, d_k = head_outputs.shape
    return head_outputs.permute(0, 2, 1, 3).reshape(B, T, H * d_k) @ W_O


@wrong("head_contributions", "w_o_transposed")
def as_a_linear_layer(head_outputs, W_O):
    d_k = head_outputs.shape[-1]
    parts = [F.linear(head_outputs[:, h], W_O[:, h * d_k : (h + 1) * d_k]) for h in range(head_outputs.shape[1])]
    return torch.stack(parts, dim=1)


@wrong("head_contributions", "w_o_cut_into_columns")
def last_axis_cut(head_outputs, W_O):
    H, d_k = head_outputs.shape[1], head_outputs.shape[3]
    return torch.einsum("bhtk,mhk->bhtm", head_outputs, W_O.reshape(-1, H, d_k))


@wrong("head_contributions", "w_o_cut_into_columns")
def rows_dealt_out(head_outputs, W_O):
    H = head_outputs.shape[1]
    return torch.stack([head_outputs[:, h] @ W_O[h::H] for h in range(H)], dim=1)


@wrong("head_contributions", "same_block_for_all")
def first_rows(head_outputs, W_O):
    return head_outputs @ W_O[: head_outputs.shape[-1]]


@wrong("head_contributions", "w_o_missing")
def only_the_heads(head_outputs, W_O):
    return head_outputs.clone()


@wrong("head_contributions", "only_its_own_sliders")
def square_blocks(head_outputs, W_O):
    B, H, T, d = head_outputs.shape
    out = torch.zeros(B, H, T, W_O.shape[1], dtype=W_O.dtype)
    for h in range(H):
        a, b = h * d, (h + 1) * d
        out[:, h, :, a:b] = head_outputs[:, h] @ W_O[a:b, a:b]
    return out


@wrong("head_contributions", "every_head_gets_the_sum")
def sum_repeated(head_outputs, W_O):
    concat = torch.cat(list(head_outputs.unbind(1)), dim=-1)
    return torch.stack([concat @ W_O] * head_outputs.shape[1], dim=1)


@wrong("head_contributions", "heads_after_tokens")
def tokens_before_heads(head_outputs, W_O):
    H, d_k = head_outputs.shape[1], head_outputs.shape[3]
    return torch.einsum("bhtk,hkm->bthm", head_outputs, W_O.reshape(H, d_k, -1))


@wrong("head_contributions", "activation_added")
def with_relu(head_outputs, W_O):
    return F.relu(blocks_by_view(head_outputs, W_O))


@wrong("head_contributions", "parts_miss_the_sum")
def a_factor_of_its_own(head_outputs, W_O):
    return 0.7 * blocks_by_view(head_outputs, W_O)


@wrong("head_contributions", "wrong_dtype")
def in_float32(head_outputs, W_O):
    return blocks_by_view(head_outputs.float(), W_O.float())


@wrong("head_contributions", "changes_input")
def into_the_input(head_outputs, W_O):
    d_k = head_outputs.shape[-1]
    parts = []
    for h in range(head_outputs.shape[1]):
        parts.append(head_outputs[:, h] @ W_O[h * d_k : (h + 1) * d_k])
    head_outputs.zero_()
    return torch.stack(parts, dim=1)


@wrong("head_contributions", "wrong_type")
def a_list_of_parts(head_outputs, W_O):
    return list(blocks_by_view(head_outputs, W_O).unbind(1))


@wrong("head_contributions", "returned_none")
def no_return(head_outputs, W_O):
    blocks_by_view(head_outputs, W_O)


# contribution_share, right


@right("contribution_share")
def norm_and_where(contributions):
    lengths = torch.linalg.vector_norm(contributions, dim=-1)
    total = lengths.sum(dim=1, keepdim=True)
    return torch.where(total > 0, lengths / total, torch.zeros_like(lengths))


@right("contribution_share")
def nan_to_zero(contributions):
    lengths = contributions.pow(2).sum(-1).sqrt()
    return torch.nan_to_num(lengths / lengths.sum(1, keepdim=True), nan=0.0)


@right("contribution_share")
def clamped_total(contributions):
    n = torch.norm(contributions, dim=3)
    return n / n.sum(dim=1).clamp_min(1e-12)[:, None]


@right("contribution_share")
def tiny_epsilon(contributions):
    n = contributions.norm(dim=-1)
    return n / (n.sum(1, keepdim=True) + 1e-9)


@right("contribution_share")
def loops_over_everything(contributions):
    B, H, T, _ = contributions.shape
    out = torch.zeros(B, H, T, dtype=contributions.dtype)
    for b in range(B):
        for t in range(T):
            lengths = [(contributions[b, h, t] ** 2).sum() ** 0.5 for h in range(H)]
            if sum(lengths) != 0:
                for h in range(H):
                    out[b, h, t] = lengths[h] / sum(lengths)
    return out


@right("contribution_share")
def normalize_from_the_library(contributions):
    return F.normalize(contributions.norm(dim=-1), p=1, dim=1)


@right("contribution_share")
def root_mean_square(contributions):
    rms = contributions.square().mean(-1).sqrt()
    total = rms.sum(1, keepdim=True)
    return rms / torch.where(total == 0, torch.ones_like(total), total)


@right("contribution_share")
def einsum_lengths(contributions):
    lengths = torch.einsum("bhtm,bhtm->bht", contributions, contributions).sqrt()
    return lengths.div(lengths.sum(1, keepdim=True)).masked_fill(lengths == 0, 0.0)


# contribution_share, wrong


@wrong("contribution_share", "nan_where_nothing")
def plain_division(contributions):
    n = torch.sqrt((contributions * contributions).sum(dim=-1))
    return n / n.sum(dim=1, keepdim=True)


@wrong("contribution_share", "share_over_tokens")
def last_axis_of_lengths(contributions):
    n = contributions.norm(dim=-1)
    return torch.nan_to_num(n / n.sum(dim=-1, keepdim=True))


@wrong("contribution_share", "squared_lengths")
def energy(contributions):
    e = (contributions**2).sum(-1)
    return torch.nan_to_num(e / e.sum(1, keepdim=True))


@wrong("contribution_share", "l1_lengths")
def absolute_sums(contributions):
    n = torch.norm(contributions, p=1, dim=-1)
    return F.normalize(n, p=1, dim=1)


@wrong("contribution_share", "not_divided")
def lengths_only(contributions):
    return torch.linalg.norm(contributions, dim=-1)


@wrong("contribution_share", "softmax_of_lengths")
def softmaxed(contributions):
    return contributions.norm(dim=-1).softmax(dim=1)


@wrong("contribution_share", "share_of_the_output")
def of_the_output(contributions):
    out = contributions.sum(1).norm(dim=-1)
    return torch.nan_to_num(contributions.norm(dim=-1) / out[:, None])


@wrong("contribution_share", "equal_where_nothing")
def equal_shares_of_nothing(contributions):
    n = contributions.norm(dim=-1) + 1e-12
    return n / n.sum(1, keepdim=True)


@wrong("contribution_share", "in_percent")
def percent(contributions):
    return nan_to_zero(contributions) * 100


@wrong("contribution_share", "axis_left_over")
def with_keepdim(contributions):
    n = contributions.norm(dim=-1, keepdim=True)
    return torch.nan_to_num(n / n.sum(1, keepdim=True))


@wrong("contribution_share", "share_over_everything")
def whole_tensor(contributions):
    n = contributions.norm(dim=-1)
    return n / n.sum().clamp(min=1e-12)


@wrong("contribution_share", "shares_do_not_sum_to_1")
def too_large_an_epsilon(contributions):
    n = contributions.norm(dim=-1)
    return n / (n.sum(1, keepdim=True) + 0.1)


@wrong("contribution_share", "plain_sums")
def signed(contributions):
    n = contributions.sum(dim=-1)
    return torch.nan_to_num(n / n.sum(1, keepdim=True))


@wrong("contribution_share", "wrong_shape")
def mean_over_tokens(contributions):
    return nan_to_zero(contributions).mean(-1)


@wrong("contribution_share", "changes_input")
def squares_in_place(contributions):
    n = contributions.pow_(2).sum(-1).sqrt()
    return torch.nan_to_num(n / n.sum(1, keepdim=True))


# ablate_heads, right


def check(heads, n_heads):
    heads = list(heads)
    if len(set(heads)) != len(heads):
        raise ValueError(f"repeated heads in {heads}")
    if any(h < 0 or h >= n_heads for h in heads):
        raise ValueError(f"heads {heads} out of range for {n_heads} heads")
    return heads


@right("ablate_heads")
def columns_of_w_o(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = copy.deepcopy(mha)
    with torch.no_grad():
        for h in heads:
            quiet.w_o.weight[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@right("ablate_heads")
def through_data(mha, heads):
    quiet = copy.deepcopy(mha)
    seen = set()
    for h in heads:
        if h in seen or h not in range(mha.n_heads):
            raise ValueError(f"bad head {h}")
        seen.add(h)
        quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head].zero_()
    return quiet


@right("ablate_heads")
def a_mask_of_columns(mha, heads):
    heads = check(heads, mha.n_heads)
    loud = torch.ones(mha.n_heads, mha.d_head, dtype=mha.w_o.weight.dtype)
    loud[heads] = 0
    quiet = copy.deepcopy(mha)
    quiet.w_o.weight = nn.Parameter(mha.w_o.weight.detach() * loud.flatten())
    return quiet


@right("ablate_heads")
def rows_of_w_v(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = copy.deepcopy(mha)
    with torch.no_grad():
        for h in heads:
            quiet.w_v.weight.unflatten(0, (mha.n_heads, mha.d_head))[h] = 0
    return quiet


@right("ablate_heads")
@torch.no_grad()
def a_new_layer_with_the_state(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = type(mha)(mha.d_model, mha.n_heads, d_head=mha.d_head).to(mha.w_q.weight.dtype)
    quiet.load_state_dict(mha.state_dict())
    for h in heads:
        for c in range(mha.d_head):
            quiet.w_o.weight[:, h * mha.d_head + c].fill_(0.0)
    return quiet


@right("ablate_heads")
def a_hook_before_w_o(mha, heads):
    heads, quiet = check(heads, mha.n_heads), copy.deepcopy(mha)

    def silence(_, inputs):
        x = inputs[0].clone()
        for h in heads:
            x[..., h * mha.d_head : (h + 1) * mha.d_head] = 0
        return (x,)

    quiet.w_o.register_forward_pre_hook(silence)
    return quiet


@right("ablate_heads")
def a_subclass_on_the_fly(mha, heads):
    heads = check(heads, mha.n_heads)

    class Quiet(type(mha)):
        muted = tuple(heads)

    quiet = copy.deepcopy(mha)
    quiet.__class__ = Quiet
    with torch.no_grad():
        quiet.w_o.weight.view(mha.d_model, mha.n_heads, mha.d_head)[:, heads] = 0.0
    return quiet


@right("ablate_heads")
def own_class_by_name(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = MultiHeadAttention(mha.d_model, mha.n_heads, mha.d_head).to(mha.w_o.weight.dtype)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        getattr(quiet, name).weight.data = getattr(mha, name).weight.data.clone()
    for h in heads:
        quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


# ablate_heads, wrong


@wrong("ablate_heads", "original_changed")
def no_copy(mha, heads):
    heads = check(heads, mha.n_heads)
    for h in heads:
        mha.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return mha


@wrong("ablate_heads", "original_changed")
def shallow_copy(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = copy.copy(mha)
    with torch.no_grad():
        for h in heads:
            quiet.w_o.weight[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "shares_weights")
def same_tensors_in_a_new_layer(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = type(mha)(mha.d_model, mha.n_heads, mha.d_head)
    for name in ("w_q", "w_k", "w_v"):
        getattr(quiet, name).weight.data = getattr(mha, name).weight.data
    quiet.w_o.weight.data = mha.w_o.weight.data.clone()
    for h in heads:
        quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "shares_weights")
def early_return(mha, heads):
    heads = check(heads, mha.n_heads)
    if not heads:
        return mha
    return columns_of_w_o(mha, heads)


@wrong("ablate_heads", "rows_of_w_o")
def rows(mha, heads):
    quiet, d = copy.deepcopy(mha), mha.d_head
    with torch.no_grad():
        for h in check(heads, mha.n_heads):
            quiet.w_o.weight[h * d : h * d + d] *= 0
    return quiet


@wrong("ablate_heads", "question_muted")
def no_keys(mha, heads):
    quiet, d = copy.deepcopy(mha), mha.d_head
    with torch.no_grad():
        for h in check(heads, mha.n_heads):
            quiet.w_k.weight[h * d : h * d + d] = 0
    return quiet


@wrong("ablate_heads", "one_column")
def a_single_column(mha, heads):
    quiet = copy.deepcopy(mha)
    quiet.w_o.weight.data[:, check(heads, mha.n_heads)] = 0
    return quiet


@wrong("ablate_heads", "size_from_d_model")
def width_from_d_model(mha, heads):
    quiet, d = copy.deepcopy(mha), mha.d_model // mha.n_heads
    with torch.no_grad():
        for h in check(heads, mha.n_heads):
            quiet.w_o.weight[:, h * d : (h + 1) * d] = 0
    return quiet


@wrong("ablate_heads", "gradients_in_the_way")
def in_the_face_of_autograd(mha, heads):
    quiet = copy.deepcopy(mha)
    for h in check(heads, mha.n_heads):
        quiet.w_o.weight[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "gradients_in_the_way")
def zeroed_by_method(mha, heads):
    quiet = copy.deepcopy(mha)
    for h in check(heads, mha.n_heads):
        quiet.w_o.weight[:, h * mha.d_head : (h + 1) * mha.d_head].zero_()
    return quiet


@wrong("ablate_heads", "nothing_muted")
def a_clone_is_zeroed(mha, heads):
    quiet = copy.deepcopy(mha)
    for h in check(heads, mha.n_heads):
        quiet.w_o.weight.clone()[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "first_head_only")
def return_inside_the_loop(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = copy.deepcopy(mha)
    for h in heads:
        quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
        return quiet
    return quiet


@wrong("ablate_heads", "last_head_only")
def a_copy_for_each(mha, heads):
    quiet = copy.deepcopy(mha)
    for h in check(heads, mha.n_heads):
        quiet = copy.deepcopy(mha)
        quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "others_muted")
def keeps_them(mha, heads):
    heads = check(heads, mha.n_heads)
    return columns_of_w_o(mha, [h for h in range(mha.n_heads) if h not in heads])


@wrong("ablate_heads", "heads_not_checked")
def no_checks(mha, heads):
    quiet = copy.deepcopy(mha)
    with torch.no_grad():
        for h in heads:
            quiet.w_o.weight[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "heads_not_checked")
def membership(mha, heads):
    muted, quiet = set(heads), copy.deepcopy(mha)
    for h in range(mha.n_heads):
        if h in muted:
            quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
    return quiet


@wrong("ablate_heads", "negative_head_accepted")
def only_too_large(mha, heads):
    heads = list(heads)
    if len(set(heads)) < len(heads) or max(heads, default=0) >= mha.n_heads:
        raise ValueError(heads)
    return no_checks(mha, heads)


@wrong("ablate_heads", "head_too_large_accepted")
def only_negative(mha, heads):
    heads = list(heads)
    if len(set(heads)) < len(heads) or min(heads, default=0) < 0:
        raise ValueError(heads)
    return no_checks(mha, heads)


@wrong("ablate_heads", "repeated_head_accepted")
def sorted_set(mha, heads):
    return columns_of_w_o(mha, sorted(set(heads)))


@wrong("ablate_heads", "generator_used_up")
def looks_twice(mha, heads):
    if any(not 0 <= h < mha.n_heads for h in heads):
        raise ValueError("no such head")
    if len(set(heads)) != len(list(heads)):
        raise ValueError("twice")
    return columns_of_w_o(mha, heads)


@wrong("ablate_heads", "asserted")
def asserts(mha, heads):
    heads = list(heads)
    assert len(set(heads)) == len(heads) and all(0 <= h < mha.n_heads for h in heads)
    return columns_of_w_o(mha, heads)


@wrong("ablate_heads", "wrong_error")
def index_error(mha, heads):
    heads = list(heads)
    for h in heads:
        if not 0 <= h < mha.n_heads:
            raise IndexError(h)
    return columns_of_w_o(mha, heads)


@wrong("ablate_heads", "returned_none")
def forgets_to_return(mha, heads):
    columns_of_w_o(mha, heads)


@wrong("ablate_heads", "eval_mode_left_on")
def to_eval(mha, heads):
    mha.eval()
    return columns_of_w_o(mha, heads)


@wrong("ablate_heads", "wrong_dtype")
def state_in_float32(mha, heads):
    quiet = columns_of_w_o(mha, heads).float()
    return lambda_like(quiet)


def lambda_like(layer):
    """A layer that takes its input in its own dtype."""
    forward = layer.forward
    layer.forward = lambda query, key=None, value=None, keep=None: forward(
        query.float(), None if key is None else key.float(), None if value is None else value.float(), keep
    )
    return layer


@wrong("ablate_heads", "not_what_the_heads_write")
def new_random_weights(mha, heads):
    heads = check(heads, mha.n_heads)
    quiet = type(mha)(mha.d_model, mha.n_heads, mha.d_head).to(mha.w_o.weight.dtype)
    return columns_of_w_o(quiet, heads)


@wrong("ablate_heads", "not_what_the_heads_write")
def half_muted(mha, heads):
    quiet = copy.deepcopy(mha)
    for h in check(heads, mha.n_heads):
        quiet.w_o.weight.data[:, h * mha.d_head : (h + 1) * mha.d_head] *= 0.5
    return quiet


@wrong("ablate_heads")
def pruned_instead(mha, heads):
    heads = check(heads, mha.n_heads)
    return rebuilt(mha, [h for h in range(mha.n_heads) if h not in heads] or [0])


@wrong("ablate_heads", "changes_input")
def sorts_the_list(mha, heads):
    if isinstance(heads, list):
        heads.sort()
    return columns_of_w_o(mha, heads)


# head_importance, right


@right("head_importance")
def a_list_of_floats(mha, loss_fn):
    base = float(loss_fn(mha))
    return [float(loss_fn(columns_of_w_o(mha, [h]))) - base for h in range(mha.n_heads)]


@right("head_importance")
def a_tensor(mha, loss_fn):
    importance = torch.zeros(mha.n_heads)
    for h in range(mha.n_heads):
        importance[h] = loss_fn(columns_of_w_o(mha, [h])) - loss_fn(mha)
    return importance


@right("head_importance")
@torch.no_grad()
def a_numpy_array(mha, loss_fn):
    base = loss_fn(mha)
    return np.array([float(loss_fn(rows_of_w_v(mha, (h,))) - base) for h in range(mha.n_heads)])


@right("head_importance")
def as_tensor_throughout(mha, loss_fn):
    losses = [torch.as_tensor(loss_fn(columns_of_w_o(mha, [h]))) for h in range(mha.n_heads)]
    return torch.stack(losses) - torch.as_tensor(loss_fn(mha))


@right("head_importance")
def a_list_of_whatever(mha, loss_fn):
    base = loss_fn(mha)
    return [loss_fn(columns_of_w_o(mha, [h])) - base for h in range(mha.n_heads)]


@right("head_importance")
def a_tuple(mha, loss_fn):
    base = loss_fn(mha)
    return tuple(float(loss_fn(columns_of_w_o(mha, {h}))) - float(base) for h in range(mha.n_heads))


@right("head_importance")
def mute_and_mend(mha, loss_fn):
    base, result = float(loss_fn(mha)), []
    saved = mha.w_o.weight.detach().clone()
    for h in range(mha.n_heads):
        with torch.no_grad():
            mha.w_o.weight[:, h * mha.d_head : (h + 1) * mha.d_head] = 0
        result.append(float(loss_fn(mha)) - base)
        with torch.no_grad():
            mha.w_o.weight.copy_(saved)
    return torch.tensor(result, dtype=torch.float64)


# head_importance, wrong


@wrong("head_importance", "sign_turned")
def base_minus_loss(mha, loss_fn):
    base = float(loss_fn(mha))
    return [base - float(loss_fn(columns_of_w_o(mha, [h]))) for h in range(mha.n_heads)]


@wrong("head_importance", "loss_without_the_head")
def only_losses(mha, loss_fn):
    return [float(loss_fn(columns_of_w_o(mha, [h]))) for h in range(mha.n_heads)]


@wrong("head_importance", "absolute_value")
def absolute(mha, loss_fn):
    return torch.tensor(a_list_of_floats(mha, loss_fn)).abs()


@wrong("head_importance", "all_other_heads_muted")
def all_but_one(mha, loss_fn):
    base, everyone = float(loss_fn(mha)), set(range(mha.n_heads))
    return [float(loss_fn(columns_of_w_o(mha, everyone - {h}))) - base for h in range(mha.n_heads)]


@wrong("head_importance", "muted_heads_pile_up")
def piling_up(mha, loss_fn):
    base, layer, out = float(loss_fn(mha)), mha, []
    for h in range(mha.n_heads):
        layer = columns_of_w_o(layer, [h])
        out.append(float(loss_fn(layer)) - base)
    return out


@wrong("head_importance", "original_changed")
def without_a_copy(mha, loss_fn):
    base, out = float(loss_fn(mha)), []
    for h in range(mha.n_heads):
        out.append(float(loss_fn(no_copy(mha, [h]))) - base)
    return out


@wrong("head_importance", "rows_of_w_o")
def on_wrong_ablation(mha, loss_fn):
    base = float(loss_fn(mha))
    return [float(loss_fn(rows(mha, [h]))) - base for h in range(mha.n_heads)]


@wrong("head_importance", "question_muted")
def on_uniform_attention(mha, loss_fn):
    base = float(loss_fn(mha))
    return [float(loss_fn(no_keys(mha, [h]))) - base for h in range(mha.n_heads)]


@wrong("head_importance", "relative_to_the_loss")
def relative(mha, loss_fn):
    base = float(loss_fn(mha))
    return [(float(loss_fn(columns_of_w_o(mha, [h]))) - base) / base for h in range(mha.n_heads)]


@wrong("head_importance", "nothing_muted")
def asks_the_whole_layer(mha, loss_fn):
    base = float(loss_fn(mha))
    return [float(loss_fn(mha)) - base for h in range(mha.n_heads)]


@wrong("head_importance", "loss_must_be_a_tensor")
def items(mha, loss_fn):
    base = loss_fn(mha).item()
    return [loss_fn(columns_of_w_o(mha, [h])).item() - base for h in range(mha.n_heads)]


@wrong("head_importance", "loss_must_be_a_tensor")
def stacked(mha, loss_fn):
    base = loss_fn(mha)
    return torch.stack([loss_fn(columns_of_w_o(mha, [h])) - base for h in range(mha.n_heads)])


@wrong("head_importance", "loss_must_be_a_tensor")
def stacked_first(mha, loss_fn):
    return torch.stack([loss_fn(columns_of_w_o(mha, [h])) for h in range(mha.n_heads)]) - loss_fn(mha)


@wrong("head_importance", "order_of_heads")
def ranking(mha, loss_fn):
    return torch.tensor(a_list_of_floats(mha, loss_fn)).argsort()


@wrong("head_importance", "returned_none")
def prints_it(mha, loss_fn):
    print(a_list_of_floats(mha, loss_fn))


@wrong("head_importance", "wrong_type")
def a_dict(mha, loss_fn):
    return dict(enumerate(a_list_of_floats(mha, loss_fn)))


@wrong("head_importance", "wrong_shape")
def a_column(mha, loss_fn):
    return torch.tensor(a_list_of_floats(mha, loss_fn))[:, None]


@wrong("head_importance", "eval_mode_left_on")
def eval_first(mha, loss_fn):
    mha.eval()
    return a_list_of_floats(mha, loss_fn)


@wrong("head_importance", "not_the_difference")
def rounded(mha, loss_fn):
    return [round(value, 1) for value in a_list_of_floats(mha, loss_fn)]


# prune_heads, right


@torch.no_grad()
def rebuilt(mha, heads):
    d = mha.d_head
    numbers = [h * d + i for h in heads for i in range(d)]
    small = type(mha)(mha.d_model, len(heads), d).to(mha.w_q.weight.dtype)
    small.w_q.weight.copy_(mha.w_q.weight[numbers])
    small.w_k.weight.copy_(mha.w_k.weight[numbers])
    small.w_v.weight.copy_(mha.w_v.weight[numbers])
    small.w_o.weight.copy_(mha.w_o.weight[:, numbers])
    return small


@right("prune_heads")
def rows_and_columns(mha, keep_heads):
    return rebuilt(mha, check(keep_heads, mha.n_heads))


@right("prune_heads")
def unflattened(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    small = MultiHeadAttention(mha.d_model, len(heads), d_head=mha.d_head).to(mha.w_o.weight)
    for name in ("w_q", "w_k", "w_v"):
        blocks = getattr(mha, name).weight.detach().unflatten(0, (mha.n_heads, mha.d_head))
        getattr(small, name).weight = nn.Parameter(blocks[heads].flatten(0, 1))
    blocks = mha.w_o.weight.detach().unflatten(1, (mha.n_heads, mha.d_head))
    small.w_o.weight = nn.Parameter(blocks[:, heads].flatten(1))
    return small


@right("prune_heads")
def joined_slices(mha, keep_heads):
    heads, d = check(keep_heads, mha.n_heads), mha.d_head

    def rows_of(linear):
        return torch.cat([linear.weight.data[h * d : (h + 1) * d] for h in heads])

    small = type(mha)(mha.d_model, len(heads), d)
    small.w_q.weight.data = rows_of(mha.w_q)
    small.w_k.weight.data = rows_of(mha.w_k)
    small.w_v.weight.data = rows_of(mha.w_v)
    small.w_o.weight.data = torch.cat([mha.w_o.weight.data[:, h * d : (h + 1) * d] for h in heads], dim=1)
    return small


@right("prune_heads")
def cut_a_copy(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    index = torch.tensor([h * mha.d_head + i for h in heads for i in range(mha.d_head)])
    small = copy.deepcopy(mha)
    small.n_heads = len(heads)
    for name, dim in (("w_q", 0), ("w_k", 0), ("w_v", 0), ("w_o", 1)):
        linear = getattr(small, name)
        linear.weight = nn.Parameter(linear.weight.data.index_select(dim, index))
        linear.out_features, linear.in_features = linear.weight.shape
    return small


@right("prune_heads")
def block_by_block(mha, keep_heads):
    keep_heads = list(keep_heads)
    for h in keep_heads:
        if not isinstance(h, int) or h < 0 or h >= mha.n_heads or keep_heads.count(h) != 1:
            raise ValueError(f"cannot keep heads {keep_heads}")
    d = mha.d_head
    small = type(mha)(mha.d_model, len(keep_heads), d_head=d).double().to(mha.w_o.weight.dtype)
    with torch.no_grad():
        for new, old in enumerate(keep_heads):
            for name in "qkv":
                source, target = getattr(mha, f"w_{name}").weight, getattr(small, f"w_{name}").weight
                target[new * d : (new + 1) * d] = source[old * d : (old + 1) * d]
            small.w_o.weight[:, new * d : (new + 1) * d] = mha.w_o.weight[:, old * d : (old + 1) * d]
    return small


@right("prune_heads")
def a_boolean_mask_and_an_order(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    owner = torch.arange(mha.n_heads).repeat_interleave(mha.d_head)
    numbers = torch.cat([(owner == h).nonzero()[:, 0] for h in heads])
    state = {f"w_{n}.weight": mha.state_dict()[f"w_{n}.weight"][numbers] for n in "qkv"}
    state["w_o.weight"] = mha.w_o.weight[:, numbers]
    small = type(mha)(mha.d_model, len(heads), mha.d_head).to(mha.w_o.weight.dtype)
    small.load_state_dict(state)
    return small


# prune_heads, wrong


@wrong("prune_heads", "d_head_forgotten")
@torch.no_grad()
def default_size(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    numbers = [h * mha.d_head + i for h in heads for i in range(mha.d_head)]
    small = type(mha)(mha.d_model, len(heads)).to(mha.w_q.weight.dtype)
    for name in ("w_q", "w_k", "w_v"):
        getattr(small, name).weight.copy_(getattr(mha, name).weight[numbers])
    small.w_o.weight.copy_(mha.w_o.weight[:, numbers])
    return small


@wrong("prune_heads", "d_head_forgotten")
def default_size_assigned(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    numbers = [h * mha.d_head + i for h in heads for i in range(mha.d_head)]
    small = type(mha)(mha.d_model, len(heads))
    for name in ("w_q", "w_k", "w_v"):
        getattr(small, name).weight.data = getattr(mha, name).weight.data[numbers]
    small.w_o.weight.data = mha.w_o.weight.data[:, numbers]
    return small


@wrong("prune_heads", "order_ignored")
def in_old_order(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    return rebuilt(mha, [h for h in range(mha.n_heads) if h in heads])


@wrong("prune_heads", "others_kept")
def the_rest(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    return rebuilt(mha, [h for h in range(mha.n_heads) if h not in heads])


@wrong("prune_heads", "rows_of_w_o")
def rows_everywhere(mha, keep_heads):
    heads, d = check(keep_heads, mha.n_heads), mha.d_head
    numbers = [h * d + i for h in heads for i in range(d)]
    small = rebuilt(mha, heads)
    small.w_o.weight.data = mha.w_o.weight.data[numbers].T
    return small


@wrong("prune_heads", "w_o_out_of_step")
def first_columns(mha, keep_heads):
    small = rebuilt(mha, check(keep_heads, mha.n_heads))
    small.w_o.weight.data = mha.w_o.weight.data[:, : small.n_heads * small.d_head].clone()
    return small


@wrong("prune_heads", "only_muted")
def muted_instead(mha, keep_heads):
    keep = check(keep_heads, mha.n_heads)
    return columns_of_w_o(mha, set(range(mha.n_heads)) - set(keep))


@wrong("prune_heads", "shares_weights")
def slices_as_parameters(mha, keep_heads):
    heads, d = check(keep_heads, mha.n_heads), mha.d_head
    small = rebuilt(mha, heads)
    if heads == list(range(heads[0], heads[-1] + 1)):
        for name in ("w_q", "w_k", "w_v"):
            getattr(small, name).weight.data = getattr(mha, name).weight.data[heads[0] * d : (heads[-1] + 1) * d]
        small.w_o.weight.data = mha.w_o.weight.data[:, heads[0] * d : (heads[-1] + 1) * d]
    return small


@wrong("prune_heads", "shares_weights")
def nothing_to_prune(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    return mha if heads == [*range(mha.n_heads)] else rebuilt(mha, heads)


@wrong("prune_heads", "original_changed")
def cut_the_original(mha, keep_heads):
    small = rebuilt(mha, check(keep_heads, mha.n_heads))
    mha.w_q, mha.w_k, mha.w_v, mha.w_o = small.w_q, small.w_k, small.w_v, small.w_o
    mha.n_heads = small.n_heads
    return mha


@wrong("prune_heads", "dtype_lost")
@torch.no_grad()
def always_float32(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    small = type(mha)(mha.d_model, len(heads), mha.d_head)
    for new, old in zip(_parameters(small), _parameters(rebuilt(mha, heads)), strict=True):
        new.copy_(old)
    return small


def _parameters(layer):
    return [layer.w_q.weight, layer.w_k.weight, layer.w_v.weight, layer.w_o.weight]


@wrong("prune_heads", "frozen")
def no_gradients(mha, keep_heads):
    small = rebuilt(mha, check(keep_heads, mha.n_heads))
    for p in small.parameters():
        p.requires_grad = False
    return small


@wrong("prune_heads", "gradients_in_the_way")
def copy_under_autograd(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    numbers = [h * mha.d_head + i for h in heads for i in range(mha.d_head)]
    small = type(mha)(mha.d_model, len(heads), mha.d_head).to(mha.w_q.weight.dtype)
    small.w_v.weight.copy_(mha.w_v.weight[numbers])
    return small


@wrong("prune_heads", "gradients_in_the_way")
def slices_under_autograd(mha, keep_heads):
    heads, d = check(keep_heads, mha.n_heads), mha.d_head
    small = type(mha)(mha.d_model, len(heads), d).to(mha.w_q.weight.dtype)
    for new, old in enumerate(heads):
        small.w_q.weight[new * d : (new + 1) * d] = mha.w_q.weight[old * d : (old + 1) * d]
    return small


@wrong("prune_heads", "tensor_for_parameter")
def a_tensor_as_weight(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    numbers = [h * mha.d_head + i for h in heads for i in range(mha.d_head)]
    small = type(mha)(mha.d_model, len(heads), mha.d_head)
    small.w_q.weight = mha.w_q.weight[numbers].detach()
    return small


@wrong("prune_heads", "n_heads_unchanged")
def stale_count(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    small = rebuilt(mha, heads)
    small.n_heads = mha.n_heads
    return small


@wrong("prune_heads", "heads_not_checked")
def cat_without_checks(mha, keep_heads):
    heads, d = list(keep_heads), mha.d_head
    small = type(mha)(mha.d_model, len(heads), d)
    for name in ("w_q", "w_k", "w_v"):
        weight = getattr(mha, name).weight.data
        getattr(small, name).weight.data = torch.cat([weight[h * d : (h + 1) * d] for h in heads])
    small.w_o.weight.data = torch.cat([mha.w_o.weight.data[:, h * d : (h + 1) * d] for h in heads], 1)
    return small


@wrong("prune_heads", "repeated_head_accepted")
def twice_is_fine(mha, keep_heads):
    heads = list(keep_heads)
    if any(h not in range(mha.n_heads) for h in heads):
        raise ValueError(f"no such heads: {heads}")
    return rebuilt(mha, heads)


@wrong("prune_heads", "negative_head_accepted")
def from_the_end(mha, keep_heads):
    heads = list(keep_heads)
    if len(set(heads)) < len(heads) or any(h >= mha.n_heads for h in heads):
        raise ValueError(f"bad heads: {heads}")
    return rebuilt(mha, heads)


@wrong("prune_heads", "wrong_error")
def whatever_indexing_says(mha, keep_heads):
    heads = list(keep_heads)
    if min(heads) < 0 or len(heads) > len(set(heads)):
        raise ValueError(heads)
    return rebuilt(mha, heads)


@wrong("prune_heads", "generator_used_up")
def checks_before_listing(mha, keep_heads):
    if any(h < 0 or h >= mha.n_heads for h in keep_heads):
        raise ValueError("no such head")
    heads = list(keep_heads)
    if len(heads) != len(set(heads)):
        raise ValueError("twice")
    return rebuilt(mha, heads)


@wrong("prune_heads", "not_what_the_heads_write")
def random_heads(mha, keep_heads):
    heads = check(keep_heads, mha.n_heads)
    return type(mha)(mha.d_model, len(heads), mha.d_head).to(mha.w_o.weight.dtype)


@wrong("prune_heads", "returned_none")
def builds_and_forgets(mha, keep_heads):
    rebuilt(mha, check(keep_heads, mha.n_heads))
