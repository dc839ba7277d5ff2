"""Chapter 4: what each head writes through W_O, how loud it is, and what becomes of a layer without it."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.checks.chapter_03_multi_head import MultiHeadAttention
from helpers.checks.exercise import INPUTS_UNCHANGED, Arguments, Case, Exercise, Law, Misconception, Quiz, given

# Headings of the notebook that cards point to.
WRITES = "What each head writes"
LOUDEST = "Who is loudest?"
MUTING = "Muting a head"
MISSED = "Who would be missed?"
PRUNING = "Heads that can go"

LossFunction = Callable[[nn.Module], Any]


# Oracles: slow, obvious loops, and heads that are muted in another place than the one the course teaches.


def head_contributions(head_outputs: Tensor, W_O: Tensor) -> Tensor:
    """(B, H, T, d_k), (H * d_k, d_model) -> (B, H, T, d_model): number by number, times its own row of W_O."""
    d_k = head_outputs.shape[-1]
    contributions = torch.zeros(*head_outputs.shape[:-1], W_O.shape[1], dtype=head_outputs.dtype)
    for b, head, token, place in np.ndindex(*head_outputs.shape):
        contributions[b, head, token] += head_outputs[b, head, token, place] * W_O[head * d_k + place]
    return contributions


def contribution_share(contributions: Tensor) -> Tensor:
    """(B, H, T, d_model) -> (B, H, T): the length of what each head writes, as a share of the sum of lengths."""
    shares = torch.zeros(contributions.shape[:-1], dtype=contributions.dtype)
    for b, token in np.ndindex(contributions.shape[0], contributions.shape[2]):
        lengths = [math.hypot(*written) for written in contributions[b, :, token].tolist()]
        for head, length in enumerate(lengths):
            shares[b, head, token] = length / math.fsum(lengths) if length else 0.0
    return shares


def ablate_heads(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    """A copy whose `heads` have nothing to say: all their values are 0. ValueError: out of range or repeated."""
    heads = _checked(heads, mha.n_heads)
    quiet = copy.deepcopy(mha)
    with torch.no_grad():
        for head in heads:
            quiet.w_v.weight[_block(head, mha.d_head)] = 0.0
    return quiet


def head_importance(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    """(n_heads,): how much the loss rises when a head is muted."""
    whole = float(loss_fn(mha))
    return torch.tensor([float(loss_fn(ablate_heads(mha, [head]))) - whole for head in range(mha.n_heads)])


def prune_heads(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    """A smaller layer of the same class with `keep_heads` in their order. ValueError: out of range, repeated, none."""
    keep_heads = _checked(keep_heads, mha.n_heads)
    if not keep_heads:
        raise ValueError("a layer needs at least one head to keep")
    small = type(mha)(mha.d_model, len(keep_heads), mha.d_head).to(mha.w_o.weight.dtype)
    with torch.no_grad():
        for new, old in enumerate(keep_heads):
            for place in range(mha.d_head):
                here, there = new * mha.d_head + place, old * mha.d_head + place
                for name in ("w_q", "w_k", "w_v"):
                    getattr(small, name).weight[here] = getattr(mha, name).weight[there]
                small.w_o.weight[:, here] = mha.w_o.weight[:, there]
    return small


def _checked(heads: Iterable[int], n_heads: int) -> list[int]:
    heads = list(heads)
    for head in heads:
        if not 0 <= head < n_heads:
            raise ValueError(f"head {head} is out of range: there are heads 0 to {n_heads - 1}")
        if heads.count(head) > 1:
            raise ValueError(f"head {head} is given {heads.count(head)} times")
    return heads


def _block(head: int, size: int) -> slice:
    return slice(head * size, (head + 1) * size)


# What cases hand in


def _normal(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


@dataclass(frozen=True)
class Layer:
    """A layer that a case hands in: made anew for every call, with the same weights for the same seed."""

    d_model: int
    n_heads: int
    d_head: int
    seed: int
    dtype: torch.dtype = torch.float32
    training: bool = True

    def build(self) -> MultiHeadAttention:
        """The layer, with weights at which scores have a variance of about 1."""
        layer = MultiHeadAttention(self.d_model, self.n_heads, self.d_head).to(self.dtype).train(self.training)
        rng = np.random.default_rng(self.seed)
        with torch.no_grad():
            for linear in _linears(layer):
                linear.weight.copy_(_normal(rng, *linear.weight.shape) / math.sqrt(linear.weight.shape[1]))
        return layer

    def __str__(self) -> str:
        kind = f"{str(self.dtype).removeprefix('torch.')}, " if self.dtype != torch.float32 else ""
        mode = "random weights" if self.training else "random weights, in eval mode"
        return f"MultiHeadAttention({self.d_model}, {self.n_heads}, d_head={self.d_head}), {kind}{mode}"


@dataclass(frozen=True)
class SquaredError:
    """A loss function that a case hands in: mean squared error against a target, as one kind of number or another."""

    returns: str

    def function(self, x: Tensor, target: Tensor) -> LossFunction:
        """loss_fn(mha) for these inputs."""
        kinds = {"a float": float, "a NumPy float": lambda loss: np.float64(float(loss)), "a 0-d tensor": torch.clone}
        return lambda mha: kinds[self.returns](((mha(x)[0] - target) ** 2).mean().detach())

    def __str__(self) -> str:
        return f"lambda mha: ((mha(x)[0] - target) ** 2).mean(), as {self.returns}"


def _linears(layer: nn.Module) -> tuple[nn.Linear, ...]:
    return layer.w_q, layer.w_k, layer.w_v, layer.w_o


def _is_layer(value: Any) -> bool:
    return isinstance(value, nn.Module) or (callable(value) and hasattr(value, "w_o"))


# head_contributions


def _contribution_case(title: str, family: str, sizes: tuple[int, int, int, int, int], **options: Any) -> Case:
    """`sizes` are B, H, T, d_k and d_model."""

    def arguments(rng: np.random.Generator) -> Arguments:
        batch, heads, tokens, d_k, d_model = sizes
        dtype = options.get("dtype", torch.float32)
        head_outputs = _normal(rng, batch, heads, tokens, d_k, dtype=dtype)
        if not options.get("from_layer"):
            return given(head_outputs, _normal(rng, heads * d_k, d_model, dtype=dtype))
        by_token = head_outputs.transpose(1, 2).contiguous()  # as it comes when heads were split off a projection
        w_o = nn.Parameter(_normal(rng, d_model, heads * d_k, dtype=dtype))
        return given(by_token.transpose(1, 2), w_o.T)

    return Case(title, family, arguments)


def _fixed_contributions(rng: np.random.Generator) -> Arguments:
    head_outputs = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])  # (1, 2, 1, 2)
    W_O = torch.tensor([[1.0, 0, 0, 0], [0, 10, 0, 0], [0, 0, 100, 0], [1000, 1000, 0, 1000]])
    return given(head_outputs, W_O)


def _concat(head_outputs: Tensor) -> Tensor:
    return head_outputs.transpose(1, 2).flatten(2)


def _by_blocks(blocks: Callable[[Tensor, int, int], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Each head's output times its block; `blocks(W_O, H, d_k)` cuts W_O into (H, d_k, d_model)."""

    def implementation(head_outputs: Tensor, W_O: Tensor) -> Tensor:
        _, n_heads, _, d_k = head_outputs.shape
        return head_outputs @ blocks(W_O, n_heads, d_k)

    return implementation


_contributions = _by_blocks(lambda W_O, n_heads, d_k: W_O.reshape(n_heads, d_k, -1))


def _transposed_in_a_loop(head_outputs: Tensor, W_O: Tensor) -> Tensor:
    d_k = head_outputs.shape[-1]
    return torch.stack(
        [head_outputs[:, h] @ W_O[:, _block(h, d_k)].T for h in range(head_outputs.shape[1])],
        dim=1,
    )


def _transposed_in_one(head_outputs: Tensor, W_O: Tensor) -> Tensor:
    return head_outputs @ W_O.T.reshape(head_outputs.shape[1], head_outputs.shape[-1], -1)


def _padded(head_outputs: Tensor) -> Tensor:
    """(B, H, T, H * d_k): each head's numbers at its own places among the sliders, 0 elsewhere."""
    batch, n_heads, n_tokens, d_k = head_outputs.shape
    padded = head_outputs.new_zeros(batch, n_heads, n_tokens, n_heads * d_k)
    for head in range(n_heads):
        padded[:, head, :, _block(head, d_k)] = head_outputs[:, head]
    return padded


def _only_own_columns(head_outputs: Tensor, W_O: Tensor) -> Tensor:
    """The block of rows and the block of columns: a head that may write on its own sliders only."""
    d_k = head_outputs.shape[-1]
    written = _contributions(head_outputs, W_O)
    own = torch.zeros_like(written)
    for head in range(head_outputs.shape[1]):
        own[:, head, :, _block(head, d_k)] = written[:, head, :, _block(head, d_k)]
    return own


def _scrambled(head_outputs: Tensor, W_O: Tensor) -> Tensor:
    """Heads and tokens mixed up on the way to concat, by a reshape that does not bring the heads together."""
    batch, n_heads, n_tokens, d_k = head_outputs.shape
    concat = head_outputs.reshape(batch, n_tokens, n_heads * d_k)
    return _contributions(concat.unflatten(-1, (n_heads, d_k)).transpose(1, 2), W_O)


def _every_head_all(head_outputs: Tensor, W_O: Tensor) -> Tensor:
    total = (_concat(head_outputs) @ W_O)[:, None]
    return total.expand(-1, head_outputs.shape[1], -1, -1)


def _parts_miss_the_sum(values: Mapping[str, Any], contributions: Any) -> str | None:
    head_outputs, W_O = values["head_outputs"].detach(), values["W_O"].detach()
    whole = (_concat(head_outputs) @ W_O).numpy()
    off = np.abs(contributions.array.sum(axis=1) - whole).max()
    if off < 1e-3:
        return None
    return f"Summed over heads, your parts are not concat @ W_O: they differ from it by up to {off:.3g}."


def _rows_of_head_one(values: Mapping[str, Any]) -> str:
    d_k = values["head_outputs"].shape[-1]
    return f"rows {d_k} to {2 * d_k - 1}"


_SUM = "each head's numbers times its own rows of W_O"
_head_contributions = Exercise(
    id="head_contributions",
    points=3,
    section=WRITES,
    reference=head_contributions,
    families={
        _SUM: 0.6,
        "a concat wider or narrower than d_model": 0.2,
        "any dtype, and views of a layer's weights": 0.1,
        INPUTS_UNCHANGED: 0.1,
    },
    cases=(
        Case("two heads of two numbers, one token", _SUM, _fixed_contributions),
        _contribution_case("two heads, three tokens", _SUM, (1, 2, 3, 2, 4)),
        _contribution_case("as many heads as tokens, and as numbers per head", _SUM, (3, 3, 3, 3, 9)),
        _contribution_case("a batch of two, three heads, four tokens", _SUM, (2, 3, 4, 5, 15)),
        _contribution_case("one head", _SUM, (2, 1, 3, 4, 4)),
        _contribution_case("concat of 12, d_model of 7", "a concat wider or narrower than d_model", (2, 3, 5, 4, 7)),
        _contribution_case("concat of 4, d_model of 9", "a concat wider or narrower than d_model", (3, 2, 1, 2, 9)),
        _contribution_case(
            "float64", "any dtype, and views of a layer's weights", (2, 3, 4, 2, 6), dtype=torch.float64
        ),
        _contribution_case(
            "heads split off a projection, and w_o.weight.T",
            "any dtype, and views of a layer's weights",
            (2, 3, 4, 2, 6),
            from_layer=True,
        ),
    ),
    laws=(Law("parts_miss_the_sum", _parts_miss_the_sum, WRITES),),
    misconceptions=(
        Misconception(
            "heads_summed",
            lambda head_outputs, W_O: _concat(head_outputs) @ W_O,
            lambda values: (
                "You return concat @ W_O, the sum over all heads. This exercise asks for its "
                f"{values['head_outputs'].shape[1]} parts, one for each head, before they are added up."
            ),
            WRITES,
        ),
        *(
            Misconception(
                "w_o_transposed",
                implementation,
                "You multiply by W_O transposed. Here W_O is (H * d_k, d_model), as in x @ W: head h owns a band of "
                "its rows, not of its columns. (`w_o.weight` in PyTorch is the transpose: hand over `w_o.weight.T`.)",
                WRITES,
            )
            for implementation in (_transposed_in_a_loop, _transposed_in_one)
        ),
        Misconception(
            "w_o_cut_into_columns",
            _by_blocks(lambda W_O, n_heads, d_k: W_O.reshape(-1, n_heads, d_k).permute(1, 2, 0)),
            "You cut W_O into heads along its last axis. That is right for `w_o.weight`, (d_model, H * d_k). The W_O "
            "of this exercise is (H * d_k, d_model): cut its first axis, the rows.",
            WRITES,
        ),
        Misconception(
            "w_o_cut_into_columns",
            _by_blocks(lambda W_O, n_heads, d_k: W_O.reshape(d_k, n_heads, -1).permute(1, 0, 2)[:, :, : W_O.shape[1]]),
            lambda values: (
                "You deal the rows of W_O out in turn, so that head 1 gets rows 1, "
                f"{1 + values['head_outputs'].shape[1]}, ... A head's rows lie next to each other: head 1 owns "
                f"{_rows_of_head_one(values)}. Reshape to (H, d_k, d_model), not to (d_k, H, d_model)."
            ),
            WRITES,
        ),
        Misconception(
            "same_block_for_all",
            _by_blocks(lambda W_O, n_heads, d_k: W_O[:d_k].expand(n_heads, d_k, -1)),
            lambda values: (
                "Every head uses the first rows of W_O. These belong to head 0; head 1 owns "
                f"{_rows_of_head_one(values)}."
            ),
            WRITES,
        ),
        Misconception(
            "heads_in_reverse",
            _by_blocks(lambda W_O, n_heads, d_k: W_O.reshape(n_heads, d_k, -1).flip(0)),
            "The heads use each other's rows of W_O, in reverse order: head 0 owns the first rows.",
            WRITES,
        ),
        Misconception(
            "blocks_start_one_apart",
            _by_blocks(lambda W_O, n_heads, d_k: torch.stack([W_O[h : h + d_k] for h in range(n_heads)])),
            lambda values: (
                "The rows of your heads overlap: head h begins at row h. Each head owns d_k = "
                f"{values['head_outputs'].shape[-1]} rows, so head 1 owns {_rows_of_head_one(values)}."
            ),
            WRITES,
        ),
        Misconception(
            "w_o_missing",
            lambda head_outputs, W_O: _padded(head_outputs),
            "Your result is each head's output at its own place, before W_O. Multiply by the head's rows of W_O.",
            WRITES,
        ),
        Misconception(
            "w_o_missing",
            lambda head_outputs, W_O: head_outputs,
            "You return the heads' outputs as they came, before W_O. Multiply each by its own rows of W_O.",
            WRITES,
        ),
        Misconception(
            "only_its_own_sliders",
            _only_own_columns,
            "You keep only the head's own columns of W_O as well. A head writes on all d_model sliders: take its rows "
            "with all their columns.",
            WRITES,
        ),
        Misconception(
            "every_head_gets_the_sum",
            _every_head_all,
            "Every head gets the whole of concat @ W_O, so their sum is H times too large. A head's part comes from "
            "its own d_k numbers and its own rows.",
            WRITES,
        ),
        Misconception(
            "every_head_gets_the_mean",
            lambda head_outputs, W_O: _every_head_all(head_outputs, W_O) / head_outputs.shape[1],
            "You share concat @ W_O out equally. The sum is right, but the parts are not: each comes from the head's "
            "own d_k numbers and its own rows of W_O.",
            WRITES,
        ),
        Misconception(
            "divided_by_heads",
            lambda head_outputs, W_O: _contributions(head_outputs, W_O) / head_outputs.shape[1],
            "You divide by the number of heads. W_O adds the heads up; it takes no mean.",
            WRITES,
        ),
        Misconception(
            "heads_and_tokens_mixed",
            _scrambled,
            "Heads and tokens are mixed up by a reshape: (B, H, T, d_k) was cut into (B, T, H * d_k) without bringing "
            "H next to d_k first. You need no concat here: multiply per head.",
            WRITES,
        ),
        Misconception(
            "heads_after_tokens",
            lambda head_outputs, W_O: _contributions(head_outputs, W_O).transpose(1, 2),
            "Your result has its axes in the order (B, T, H, d_model). Asked for was (B, H, T, d_model).",
            WRITES,
        ),
        Misconception(
            "activation_added",
            lambda head_outputs, W_O: torch.relu(_contributions(head_outputs, W_O)),
            "Negative numbers became 0, as with a ReLU. W_O is a plain matrix product, with nothing after it.",
            WRITES,
        ),
    ),
)


# contribution_share


def _share_case(
    title: str,
    family: str,
    sizes: tuple[int, int, int, int],
    quiet: tuple[tuple[Any, ...], ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Case:
    """`sizes` are B, H, T and d_model; what lies at the indices `quiet` is exactly 0."""

    def arguments(rng: np.random.Generator) -> Arguments:
        contributions = _normal(rng, *sizes, dtype=dtype)
        contributions *= torch.arange(1, sizes[1] + 1)[:, None, None]  # heads of different loudness
        for index in quiet:
            contributions[index] = 0.0
        return given(contributions)

    return Case(title, family, arguments)


def _fixed_share(rng: np.random.Generator) -> Arguments:
    return given(torch.tensor([[[[3.0, 4.0, 0.0]], [[0.0, -5.0, 0.0]], [[6.0, 0.0, 8.0]]]]))  # lengths 5, 5, 10


def _lengths(contributions: Tensor) -> Tensor:
    return contributions.norm(dim=-1)


def _shared(
    size: Callable[[Tensor], Tensor], dims: int | tuple[int, ...] = 1, where_nothing: float = 0.0
) -> Callable[[Tensor], Tensor]:
    """`size` of each head's writing over its sum along `dims`."""

    def implementation(contributions: Tensor) -> Tensor:
        sizes = size(contributions)
        totals = sizes.sum(dim=dims, keepdim=True)
        return torch.where(totals == 0, where_nothing, sizes / torch.where(totals == 0, 1.0, totals))

    return implementation


def _without_care(contributions: Tensor) -> Tensor:
    lengths = _lengths(contributions)
    return lengths / lengths.sum(dim=1, keepdim=True)


def _of_the_loudest(contributions: Tensor) -> Tensor:
    lengths = _lengths(contributions)
    largest = lengths.amax(dim=1, keepdim=True)
    return lengths / torch.where(largest == 0, 1.0, largest)


def _of_the_sum_of_all(contributions: Tensor) -> Tensor:
    whole = contributions.sum(dim=1, keepdim=True).norm(dim=-1)
    return _lengths(contributions) / torch.where(whole == 0, 1.0, whole)


def _share_sum_text(values: Mapping[str, Any]) -> str:
    n_heads = values["contributions"].shape[1]
    return f"Each token has 100 % to hand out among its {n_heads} heads."


def _shares_miss_1(values: Mapping[str, Any], shares: Any) -> str | None:
    sums = shares.array.sum(axis=1)
    off = sums[(np.abs(sums - 1) > 1e-3) & (np.abs(sums) > 1e-3)]
    if not off.size:
        return None
    return f"At one token your shares sum to {off[0]:.4g} over the heads. {_share_sum_text(values)}"


_SHARES = "lengths as a share over heads"
_contribution_share = Exercise(
    id="contribution_share",
    points=2,
    section=LOUDEST,
    reference=contribution_share,
    families={_SHARES: 0.6, "heads that write nothing": 0.2, "any dtype": 0.1, INPUTS_UNCHANGED: 0.1},
    cases=(
        Case("lengths 5, 5 and 10", _SHARES, _fixed_share),
        _share_case("two heads, three tokens", _SHARES, (1, 2, 3, 4)),
        _share_case("a batch of two, three heads, five tokens", _SHARES, (2, 3, 5, 4)),
        _share_case("as many sequences as heads, tokens and sliders", _SHARES, (3, 3, 3, 3)),
        _share_case("one head has all", _SHARES, (2, 1, 3, 4)),
        _share_case("one head is silent", "heads that write nothing", (1, 3, 2, 4), quiet=((0, 1),)),
        _share_case(
            "all are silent at one token", "heads that write nothing", (1, 2, 3, 4), quiet=((0, slice(None), 1),)
        ),
        _share_case("nothing is written at all", "heads that write nothing", (1, 2, 2, 3), quiet=((...,),)),
        _share_case("float64", "any dtype", (2, 4, 3, 5), dtype=torch.float64),
    ),
    laws=(Law("shares_do_not_sum_to_1", _shares_miss_1, LOUDEST),),
    misconceptions=(
        Misconception(
            "nan_where_nothing",
            _without_care,
            "Where no head writes anything you divide 0 by 0, which is NaN. Such a token gets zeros.",
            LOUDEST,
        ),
        Misconception(
            "equal_where_nothing",
            lambda contributions: _shared(_lengths, where_nothing=1 / contributions.shape[1])(contributions),
            "Where no head writes anything you give all heads the same share. Nobody wrote: such a token gets zeros.",
            LOUDEST,
        ),
        Misconception(
            "share_over_tokens",
            _shared(_lengths, dims=2),
            lambda values: (
                f"Your shares sum to 1 over the tokens of a head. {_share_sum_text(values)} Heads are axis 1."
            ),
            LOUDEST,
        ),
        Misconception(
            "share_over_batch",
            _shared(_lengths, dims=0),
            lambda values: (
                f"Your shares sum to 1 over the batch, axis 0. {_share_sum_text(values)} Heads are axis 1; sequences "
                "have nothing to do with each other."
            ),
            LOUDEST,
        ),
        *(
            Misconception(
                "share_over_everything",
                _shared(_lengths, dims=dims),
                lambda values: f"You divide by a sum over tokens as well as heads. {_share_sum_text(values)}",
                LOUDEST,
            )
            for dims in ((0, 1, 2), (1, 2))
        ),
        Misconception(
            "squared_lengths",
            _shared(lambda contributions: (contributions**2).sum(dim=-1)),
            "You compare squared lengths, so a head twice as long counts four times. Take the square root before you "
            "divide.",
            LOUDEST,
        ),
        Misconception(
            "l1_lengths",
            _shared(lambda contributions: contributions.abs().sum(dim=-1)),
            "You add up absolute values (the L1 norm). The length of a vector, its L2 norm, is the root of the sum of "
            "squares.",
            LOUDEST,
        ),
        *(
            Misconception(
                "largest_entry",
                _shared(size),
                "You measure a head by its largest number. Its length, the L2 norm, counts all of them: the root of "
                "the sum of squares.",
                LOUDEST,
            )
            for size in (lambda c: c.abs().amax(dim=-1), lambda c: c.amax(dim=-1))
        ),
        *(
            Misconception(
                "plain_sums",
                _shared(size),
                "You add up a head's numbers with their signs, so that loud pluses and minuses cancel. Take the "
                "length of the vector, its L2 norm.",
                LOUDEST,
            )
            for size in (lambda c: c.sum(dim=-1), lambda c: c.sum(dim=-1).abs())
        ),
        Misconception(
            "not_divided",
            _lengths,
            lambda values: (
                f"You return the lengths themselves. {_share_sum_text(values)} Divide by the sum over heads."
            ),
            LOUDEST,
        ),
        Misconception(
            "softmax_of_lengths",
            lambda contributions: torch.softmax(_lengths(contributions), dim=1),
            "You take a softmax of the lengths. Here plain proportions are meant: a head twice as long gets twice the "
            "share, a silent one gets 0.",
            LOUDEST,
        ),
        Misconception(
            "share_of_the_loudest",
            _of_the_loudest,
            lambda values: f"You divide by the longest head. {_share_sum_text(values)} Divide by the sum over heads.",
            LOUDEST,
        ),
        Misconception(
            "share_of_the_output",
            _of_the_sum_of_all,
            "You divide by the length of the output, the sum of what all heads write. Heads can cancel each other in "
            "there, and then your shares sum to more than 1. Divide by the sum of the heads' own lengths.",
            LOUDEST,
        ),
        Misconception(
            "in_percent",
            lambda contributions: 100 * contribution_share(contributions),
            "Your shares are in percent. Asked for were shares that sum to 1.",
            LOUDEST,
        ),
        *(
            Misconception(
                "norm_over_heads",
                implementation,
                "You take the norm over the heads (axis 1), which mixes them. A head's length runs over its d_model "
                "numbers, the last axis.",
                LOUDEST,
            )
            for implementation in (lambda c: c.norm(dim=1), _shared(lambda c: c.norm(dim=1)))
        ),
        Misconception(
            "norm_over_tokens",
            _shared(lambda contributions: contributions.norm(dim=2)),
            "You take the norm over the tokens (axis 2). A head's length at a token runs over its d_model numbers, "
            "the last axis.",
            LOUDEST,
        ),
        Misconception(
            "axis_left_over",
            lambda contributions: contribution_share(contributions)[..., None],
            "Your result has an axis of length 1 at its end. The norm takes `keepdim=True` only if you need that axis "
            "again; here the last axis should be gone.",
            LOUDEST,
        ),
    ),
)


# Ways to mute a head that do not: by the weights that are set to 0.


def _muted_by(zero: Callable[[nn.Module, nn.Module, int], None]) -> Callable[[nn.Module, Iterable[int]], nn.Module]:
    """A copy in which `zero(copy, original, head)` has set something to 0 for each of the heads."""

    def implementation(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
        heads = _checked(heads, mha.n_heads)
        quiet = copy.deepcopy(mha)
        with torch.no_grad():
            for head in heads:
                zero(quiet, mha, head)
        return quiet

    return implementation


def _zero_columns(weight: Tensor, columns: Any) -> None:
    weight[:, columns] = 0.0


def _zero_rows(weight: Tensor, rows: Any) -> None:
    weight[rows] = 0.0


def _zero_what_it_writes(quiet: nn.Module, mha: nn.Module, head: int) -> None:
    _zero_columns(quiet.w_o.weight, _block(head, mha.d_head))


_mute = _muted_by(_zero_what_it_writes)


def _rescaled(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    heads = list(heads)
    quiet = _mute(mha, heads)
    if len(heads) < mha.n_heads:
        with torch.no_grad():
            quiet.w_o.weight *= mha.n_heads / (mha.n_heads - len(heads))
    return quiet


def _columns(head: int, d_head: int) -> str:
    return f"columns {head * d_head} to {(head + 1) * d_head - 1}"


def _some_head(values: Mapping[str, Any]) -> int:
    """A head of the case, other than 0 if possible, for examples in texts."""
    named = values.get("heads", values.get("keep_heads", range(values["mha"].n_heads)))
    return max(named, default=0)


def _own_columns_text(values: Mapping[str, Any]) -> str:
    mha, head = values["mha"], _some_head(values)
    return f"In `w_o.weight`, (d_model, H * d_head), head {head} owns {_columns(head, mha.d_head)}."


def _one_column_text(values: Mapping[str, Any]) -> str:
    return (
        f"You set one column of `w_o.weight` to 0 for each head, but a head owns d_head = {values['mha'].d_head} of "
        f"them. {_own_columns_text(values)}"
    )


def _every_nth_text(values: Mapping[str, Any]) -> str:
    return f"You take every H-th column for a head. Its columns lie next to each other. {_own_columns_text(values)}"


def _size_from_d_model(values: Mapping[str, Any]) -> str:
    mha = values["mha"]
    return (
        f"You take d_model // n_heads = {mha.d_model // mha.n_heads} numbers for a head. This layer was made with "
        f"d_head = {mha.d_head}: ask `mha.d_head`."
    )


def _row_of_w_o_text(values: Mapping[str, Any]) -> str:
    return (
        "You set rows of `w_o.weight` to 0, which silences sliders of the output for all heads. "
        f"{_own_columns_text(values)}"
    )


#: Wrong places: `head_importance` inherits them from the learner's `ablate_heads`.
_WRONG_PLACES = (
    (
        "rows_of_w_o",
        lambda quiet, mha, head: _zero_rows(quiet.w_o.weight, _block(head, mha.d_head)),
        _row_of_w_o_text,
    ),
    (
        "question_muted",
        lambda quiet, mha, head: _zero_rows(quiet.w_q.weight, _block(head, mha.d_head)),
        "You set the head's queries or keys to 0. All its scores are 0 then, and it spreads its budget evenly: it "
        "still writes, namely the average of all values. Stop what it writes, not what it asks.",
    ),
    (
        "one_column",
        lambda quiet, mha, head: _zero_columns(quiet.w_o.weight, head),
        _one_column_text,
    ),
    (
        "every_nth_column",
        lambda quiet, mha, head: _zero_columns(quiet.w_o.weight, slice(head, None, mha.n_heads)),
        _every_nth_text,
    ),
    (
        "size_from_d_model",
        lambda quiet, mha, head: _zero_columns(quiet.w_o.weight, _block(head, mha.d_model // mha.n_heads)),
        _size_from_d_model,
    ),
    (
        "columns_of_w_v",
        lambda quiet, mha, head: _zero_columns(quiet.w_v.weight, _block(head, mha.d_head)),
        "You set columns of `w_v.weight` to 0, which hides sliders of the input from all heads. In `w_v` a head owns "
        "rows; in `w_o.weight` it owns columns.",
    ),
)


# ablate_heads


def _not_what_heads_write(values: Mapping[str, Any], result: Any) -> str | None:
    """Whether an output is made of what the original's heads write at all, and which of them it has too much of."""
    output = result.get("output") if isinstance(result, Mapping) else result
    if output is None or "x" not in values:
        return None
    written = _written_by_each(values["mha"], values["x"])
    amounts, *_ = np.linalg.lstsq(written, output.array.ravel(), rcond=None)
    if np.abs(written @ amounts - output.array.ravel()).max() > 1e-3:
        return (
            "No mixture of what the heads of `mha` write gives your layer's output. Were all its weights copied from "
            "`mha`, each to its own place?"
        )
    muted = values.get("heads", [head for head in range(len(amounts)) if head not in values.get("keep_heads", ())])
    off = [head for head, amount in enumerate(amounts) if abs(amount - (head not in muted)) > 1e-3]
    if not off:
        return None
    times = "should be silent" if off[0] in muted else "should be heard as before"
    return f"Head {off[0]} {times}. In your layer's output there is {amounts[off[0]]:.2g} times what it wrote."


def _written_by_each(mha: Layer, x: Tensor) -> np.ndarray:
    """(numbers in the output, H): what each head of a layer writes, as columns."""
    layer = mha.build()
    with torch.no_grad():
        alone = [ablate_heads(layer, [h for h in range(mha.n_heads) if h != head]) for head in range(mha.n_heads)]
        return np.stack([one(x)[0].numpy().ravel() for one in alone], axis=1)


def _muted(ablate_heads: Callable[..., Any], mha: Layer, heads: Any, x: Tensor) -> Any:
    quiet = ablate_heads(mha.build(), heads)
    return quiet(x)[0] if _is_layer(quiet) else quiet


def _muted_from_a_generator(ablate_heads: Callable[..., Any], mha: Layer, heads: Any, x: Tensor) -> Any:
    quiet = ablate_heads(mha.build(), (head for head in heads))
    return quiet(x)[0] if _is_layer(quiet) else quiet


def _muted_between_two(
    ablate_heads: Callable[..., Any], mha: Layer, heads: Any, query: Tensor, key: Tensor, keep: Tensor
) -> Any:
    quiet = ablate_heads(mha.build(), heads)
    if not _is_layer(quiet):
        return quiet
    return {"output": quiet(query, key, keep=keep)[0], "n_heads": quiet.n_heads, "d_head": quiet.d_head}


def _original_after_muting(ablate_heads: Callable[..., Any], mha: Layer, heads: Any, x: Tensor) -> Any:
    layer = mha.build()
    return _original_after(layer, ablate_heads(layer, heads), x)


def _original_after(layer: nn.Module, made: Any, x: Tensor) -> Any:
    """What the original gives once something was made from it, and once all numbers of that are overwritten."""
    if not _is_layer(made):
        return made
    after = {"the original afterwards": layer(x)[0], "the original is in training mode": layer.training}
    with torch.no_grad():
        for linear in _linears(made):
            linear.weight.fill_(0.5)
    return after | {"the original once the new layer is changed": layer(x)[0]}


def _layer_case(
    title: str,
    family: str,
    call: Callable[..., Any],
    sizes: tuple[int, int, int],
    heads: Any,
    batch: tuple[int, int] = (2, 4),
    name: str = "heads",
    **options: Any,
) -> Case:
    """`sizes` are d_model, H and d_head, `batch` is B and T; the heads are passed as `name`."""

    def arguments(rng: np.random.Generator) -> Arguments:
        mha = Layer(*sizes, seed=int(rng.integers(2**31)), **options)
        chosen = list(heads) if isinstance(heads, list) else heads
        return given(mha=mha, **{name: chosen}, x=_normal(rng, *batch, sizes[0], dtype=mha.dtype))

    return Case(title, family, arguments, call)


def _between_two_arguments(name: str, sizes: tuple[int, int, int], heads: Any) -> Callable[..., Arguments]:
    def arguments(rng: np.random.Generator) -> Arguments:
        mha = Layer(*sizes, seed=int(rng.integers(2**31)))
        query, key = _normal(rng, 2, 3, sizes[0]), _normal(rng, 2, 5, sizes[0])
        keep = torch.from_numpy(rng.random((2, 1, 3, 5)) < 0.6) | (torch.arange(5) == 0)
        return given(mha=mha, **{name: heads}, query=query, key=key, keep=keep)

    return arguments


def _unchecked(
    make: Callable[[nn.Module, list[int]], nn.Module], *, negative: bool, too_large: bool, repeated: bool
) -> Callable[[nn.Module, Iterable[int]], nn.Module]:
    """`make` behind a check that lets some kinds of bad heads through."""

    def implementation(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
        heads = list(heads)
        good = [head for head in heads if not (negative and head < 0) and not (too_large and head >= mha.n_heads)]
        _checked(dict.fromkeys(good) if repeated else good, mha.n_heads)
        return make(mha, heads)

    return implementation


def _mute_slices(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    """A slice beyond the end is empty; one with a negative start is empty, too, or another head."""
    quiet = copy.deepcopy(mha)
    with torch.no_grad():
        for head in heads:
            _zero_columns(quiet.w_o.weight, _block(head, mha.d_head))
    return quiet


def _mute_from_the_end(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    """-1 is the last head, as in a list."""
    return _mute_slices(mha, [head % mha.n_heads if -mha.n_heads <= head < 0 else head for head in heads])


def _mute_members(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    """Each head is looked up in a set of heads to mute; what else is in the set does not matter."""
    return _mute_slices(mha, set(heads) & set(range(mha.n_heads)))


def _used_up(make: Callable[[nn.Module, Iterable[int]], nn.Module]) -> Callable[[nn.Module, Iterable[int]], nn.Module]:
    """The heads are gone through twice, once to check them; of a generator nothing is left the second time."""

    def implementation(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
        _checked(heads, mha.n_heads)
        return make(mha, heads)

    return implementation


def _in_place(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    with torch.no_grad():
        for head in _checked(heads, mha.n_heads):
            _zero_columns(mha.w_o.weight, _block(head, mha.d_head))
    return mha


def _original_muted_copy_returned(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    return copy.deepcopy(_in_place(mha, heads))


def _swapped_in_a_shallow_copy(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    """copy.copy shares even the list of parts, so the new w_o becomes the original's too."""
    heads = _checked(heads, mha.n_heads)
    quiet = copy.copy(mha)
    quiet.w_o = copy.deepcopy(mha.w_o)
    with torch.no_grad():
        for head in heads:
            _zero_columns(quiet.w_o.weight, _block(head, mha.d_head))
    return quiet


def _shares_projections(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    quiet = _mute(mha, heads)
    quiet.w_q, quiet.w_k, quiet.w_v = mha.w_q, mha.w_k, mha.w_v
    return quiet


def _original_if_none(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    heads = list(heads)
    return _mute(mha, heads) if heads else mha


def _leaves_eval_mode(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
    return _mute(mha.eval(), _checked(heads, mha.n_heads))


_GRADIENTS_TEXT = (
    "PyTorch refuses to write into a parameter whose gradients it follows. Write inside `with torch.no_grad():`."
)


def _with_gradients(write: Callable[[Tensor, slice], Any]) -> Callable[[nn.Module, Iterable[int]], nn.Module]:
    def implementation(mha: nn.Module, heads: Iterable[int]) -> nn.Module:
        quiet = copy.deepcopy(mha)
        for head in _checked(heads, mha.n_heads):
            write(quiet.w_o.weight, _block(head, mha.d_head))
        return quiet

    return implementation


def _complement(mha: nn.Module, heads: Iterable[int]) -> list[int]:
    heads = list(heads)
    return [head for head in range(mha.n_heads) if head not in heads]


def _refuse(values: Mapping[str, Any]) -> str:
    name = "heads" if "heads" in values else "keep_heads"
    return (
        f"{name} = {list(values[name])} should be refused, as this layer has heads 0 to {values['mha'].n_heads - 1}. "
        "Raise a ValueError "
    )


def _negative_text(values: Mapping[str, Any]) -> str:
    return _refuse(values) + "for a negative number; as a slice it means no head, or another one."


def _too_large_text(values: Mapping[str, Any]) -> str:
    return _refuse(values) + "for a head that does not exist; a slice out there is empty, without a word."


def _repeated_text(values: Mapping[str, Any]) -> str:
    name = "heads" if "heads" in values else "keep_heads"
    return (
        f"{name} = {list(values[name])} gives a head twice and should be refused with a ValueError. A list and the "
        "set of its members then differ in length."
    )


def _not_checked_text(values: Mapping[str, Any]) -> str:
    return (
        _refuse(values) + "for a head that does not exist, negative or too large, and for one that is given twice. A "
        "caller who mistypes a head would otherwise never know."
    )


def _bad_heads(
    slices: Callable[[nn.Module, Iterable[int]], nn.Module],
    from_the_end: Callable[[nn.Module, Iterable[int]], nn.Module],
    members: Callable[[nn.Module, Iterable[int]], nn.Module],
    section: str,
) -> tuple[Misconception, ...]:
    """Bad heads let through by implementations that take slices, count from the end, or look heads up in a set."""

    def unchecked(name: str, make: Callable[..., nn.Module], text: Callable[..., str], **kinds: bool) -> Misconception:
        kinds = {"negative": False, "too_large": False, "repeated": False} | kinds
        return Misconception(name, _unchecked(make, **kinds), text, section)

    every_kind = {"negative": True, "too_large": True, "repeated": True}
    return (
        unchecked("heads_not_checked", slices, _not_checked_text, **every_kind),
        unchecked("heads_not_checked", members, _not_checked_text, **every_kind),
        unchecked("negative_head_accepted", slices, _negative_text, negative=True),
        unchecked("negative_head_accepted", from_the_end, _negative_text, negative=True),
        unchecked("negative_head_accepted", members, _negative_text, negative=True),
        unchecked("head_too_large_accepted", slices, _too_large_text, too_large=True),
        unchecked("repeated_head_accepted", slices, _repeated_text, repeated=True),
    )


_QUIET = "the other heads' sum, and nothing else"
_COPY = "the original is left as it was"
_BAD = "heads out of range or repeated"
_ablate_heads = Exercise(
    id="ablate_heads",
    points=4,
    section=MUTING,
    reference=ablate_heads,
    families={
        _QUIET: 0.4,
        "heads of any size, any dtype": 0.1,
        "heads in any iterable": 0.1,
        _COPY: 0.2,
        _BAD: 0.2,
    },
    cases=(
        _layer_case("two heads, one token", _QUIET, _muted, (4, 2, 2), [1], (1, 1)),
        _layer_case("three heads, the middle one muted", _QUIET, _muted, (6, 3, 2), [1], (1, 3)),
        _layer_case("four heads, two muted", _QUIET, _muted, (8, 4, 2), [3, 0]),
        _layer_case("all muted", _QUIET, _muted, (6, 2, 3), [0, 1]),
        _layer_case("none muted", _QUIET, _muted, (6, 3, 2), []),
        _layer_case("the only head muted", _QUIET, _muted, (3, 1, 3), [0]),
        Case(
            "queries, keys and a mask",
            _QUIET,
            _between_two_arguments("heads", (6, 3, 2), [2]),
            _muted_between_two,
        ),
        _layer_case("heads of 4 in a d_model of 10", "heads of any size, any dtype", _muted, (10, 3, 4), [1]),
        _layer_case("heads of 2 in a d_model of 12", "heads of any size, any dtype", _muted, (12, 3, 2), [2, 1]),
        _layer_case("float64", "heads of any size, any dtype", _muted, (6, 3, 2), [0], dtype=torch.float64),
        _layer_case("a tuple", "heads in any iterable", _muted, (8, 4, 2), (2, 1)),
        _layer_case("a range", "heads in any iterable", _muted, (8, 4, 2), range(1, 3)),
        _layer_case("a generator", "heads in any iterable", _muted_from_a_generator, (8, 4, 2), [1, 3]),
        _layer_case("one head muted", _COPY, _original_after_muting, (6, 3, 2), [1]),
        _layer_case("no head muted", _COPY, _original_after_muting, (6, 3, 2), []),
        _layer_case("a layer in eval mode", _COPY, _original_after_muting, (6, 2, 3), [0, 1], training=False),
        _layer_case("head 3 of three", _BAD, _muted, (6, 3, 2), [3], (1, 2)),
        _layer_case("head 7 after a good one", _BAD, _muted, (6, 3, 2), [0, 7], (1, 2)),
        _layer_case("head -1", _BAD, _muted, (6, 3, 2), [-1], (1, 2)),
        _layer_case("head -2 after a good one", _BAD, _muted, (6, 3, 2), [2, -2], (1, 2)),
        _layer_case("head 1 twice", _BAD, _muted, (6, 3, 2), [1, 1], (1, 2)),
        _layer_case("head 0 twice, from a generator", _BAD, _muted_from_a_generator, (8, 4, 2), [0, 2, 0], (1, 2)),
    ),
    laws=(Law("not_what_the_heads_write", _not_what_heads_write, MUTING),),
    misconceptions=(
        *(Misconception(name, _muted_by(zero), text, MUTING) for name, zero, text in _WRONG_PLACES),
        Misconception(
            "nothing_muted",
            lambda mha, heads: _mute(mha, _checked(heads, mha.n_heads)[:0]),
            "The copy gives the same as the original: nothing was muted. Did you change a copy of the weights "
            "(`.clone()`, or `weight[...] * 0` without assigning it)? Write the zeros into the copy's own "
            "`w_o.weight`.",
            MUTING,
        ),
        Misconception(
            "first_head_only",
            lambda mha, heads: _mute(mha, _checked(heads, mha.n_heads)[:1]),
            "Only the first of the heads is muted. Does the `return` stand inside the loop?",
            MUTING,
        ),
        Misconception(
            "last_head_only",
            lambda mha, heads: _mute(mha, _checked(heads, mha.n_heads)[-1:]),
            "Only the last of the heads is muted. Is the copy made inside the loop, anew for each head?",
            MUTING,
        ),
        Misconception(
            "others_muted",
            lambda mha, heads: _mute(mha, _complement(mha, _checked(heads, mha.n_heads))),
            "You keep the heads that were to be muted, and mute the others.",
            MUTING,
        ),
        Misconception(
            "everything_muted",
            lambda mha, heads: _mute(mha, range(mha.n_heads) if _checked(heads, mha.n_heads) else []),
            "All heads are muted, whichever were asked for.",
            MUTING,
        ),
        Misconception(
            "rescaled",
            _rescaled,
            "The other heads became louder to make up for the muted ones. Leave them as they are.",
            MUTING,
        ),
        *(
            Misconception("gradients_in_the_way", _with_gradients(write), _GRADIENTS_TEXT, MUTING)
            for write in (_zero_columns, lambda weight, columns: weight[:, columns].zero_())
        ),
        Misconception(
            "eval_mode_left_on",
            _leaves_eval_mode,
            "The original layer is in eval mode after the call, as `mha.eval()` leaves it. Leave it in the mode it "
            "had.",
            MUTING,
        ),
        *(
            Misconception(
                "original_changed",
                implementation,
                "The original layer is muted too, so the next head would be tried on a damaged layer. `copy.copy` and "
                "`b = a` share the weights; `copy.deepcopy` makes its own. Copy first, then mute the copy.",
                MUTING,
            )
            for implementation in (_in_place, _original_muted_copy_returned, _swapped_in_a_shallow_copy)
        ),
        *(
            Misconception(
                "shares_weights",
                implementation,
                "The copy shares weights with the original: when the copy is trained or changed, the original changes "
                "as well. Even `[]` asks for a copy of its own: `copy.deepcopy`.",
                MUTING,
            )
            for implementation in (_shares_projections, _original_if_none)
        ),
        Misconception(
            "generator_used_up",
            _used_up(_mute),
            "You go through `heads` twice, and a generator can be gone through only once: the second time it is "
            "empty. Make a list of it first.",
            MUTING,
        ),
        *_bad_heads(_mute_slices, _mute_from_the_end, _mute_members, MUTING),
    ),
)


# head_importance


def _importance(head_importance: Callable[..., Any], mha: Layer, x: Tensor, target: Tensor, loss_fn: Any) -> Any:
    return _as_numbers(head_importance(mha.build(), loss_fn.function(x, target)))


def _as_numbers(values: Any) -> Any:
    """What `torch.as_tensor` makes of an answer, in float32; the answer itself where that fails."""
    try:
        return torch.as_tensor(values).detach().to(torch.float32)
    except (TypeError, ValueError, RuntimeError):
        return values


def _original_after_measuring(
    head_importance: Callable[..., Any], mha: Layer, x: Tensor, target: Tensor, loss_fn: Any
) -> Any:
    layer = mha.build()
    importance = _as_numbers(head_importance(layer, loss_fn.function(x, target)))
    return {
        "importance": importance,
        "the original afterwards": layer(x)[0],
        "the original is in training mode": layer.training,
    }


def _importance_between_two(
    head_importance: Callable[..., Any], mha: Layer, query: Tensor, key: Tensor, keep: Tensor, target: Tensor
) -> Any:
    return _as_numbers(
        head_importance(mha.build(), lambda layer: ((layer(query, key, keep=keep)[0] - target) ** 2).mean().item())
    )


def _importance_case(
    title: str,
    family: str,
    sizes: tuple[int, int, int],
    returns: str = "a float",
    batch: tuple[int, int] = (2, 4),
    harmful: bool = False,
    call: Callable[..., Any] = _importance,
    **options: Any,
) -> Case:
    """The target is near the layer's own output, so that muting costs; of a `harmful` head 0 it wants the opposite."""

    def arguments(rng: np.random.Generator) -> Arguments:
        mha = Layer(*sizes, seed=int(rng.integers(2**31)), **options)
        x, target = _inputs_and_target(mha, batch, harmful)
        return given(mha=mha, x=x.clone(), target=target.clone(), loss_fn=SquaredError(returns))

    return Case(title, family, arguments, call)


@functools.lru_cache(maxsize=32)
def _inputs_and_target(mha: Layer, batch: tuple[int, int], harmful: bool) -> tuple[Tensor, Tensor]:
    rng, layer = np.random.default_rng(mha.seed + 1), mha.build()
    x = _normal(rng, *batch, mha.d_model, dtype=mha.dtype)
    with torch.no_grad():
        target = layer(x)[0]
        if harmful:
            target = 2 * ablate_heads(layer, [0])(x)[0] - target
        return x, target + 0.5 * _normal(rng, *target.shape, dtype=mha.dtype)


def _importance_between_two_arguments(rng: np.random.Generator) -> Arguments:
    mha = Layer(6, 3, 2, seed=int(rng.integers(2**31)))
    query, key, target = _normal(rng, 2, 3, 6), _normal(rng, 2, 5, 6), _normal(rng, 2, 3, 6)
    keep = torch.from_numpy(rng.random((2, 1, 3, 5)) < 0.6) | (torch.arange(5) == 0)
    return given(mha=mha, query=query, key=key, keep=keep, target=target)


def _measured(
    compare: Callable[[float, float], float] = lambda without, whole: without - whole,
    zero: Callable[[nn.Module, nn.Module, int], None] = _zero_what_it_writes,
    muted: Callable[[int, int], Iterable[int]] = lambda head, n_heads: [head],
) -> Callable[[nn.Module, LossFunction], Tensor]:
    """`compare(loss without the head, loss of the whole layer)`, where `muted(head, H)` says which heads are muted."""

    def implementation(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
        whole = float(loss_fn(mha))
        losses = [_loss_without(mha, loss_fn, muted(head, mha.n_heads), zero) for head in range(mha.n_heads)]
        return torch.tensor([compare(loss, whole) for loss in losses])

    return implementation


@torch.no_grad()
def _loss_without(
    mha: nn.Module, loss_fn: LossFunction, heads: Iterable[int], zero: Callable[[nn.Module, nn.Module, int], None]
) -> float:
    """Muted in place and put right again: quicker than a copy."""
    before = [linear.weight.clone() for linear in _linears(mha)]
    for head in heads:
        zero(mha, mha, head)
    loss = float(loss_fn(mha))
    for linear, weight in zip(_linears(mha), before, strict=True):
        linear.weight.copy_(weight)
    return loss


def _shares_of_importance(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    importance = head_importance(mha, loss_fn)
    return importance / importance.sum()


def _largest_is_one(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    importance = head_importance(mha, loss_fn)
    return importance / importance.abs().max()


def _order_of_importance(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    return head_importance(mha, loss_fn).argsort()


def _measured_in_place(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    """Each head is muted in the layer itself, and stays so."""
    whole = float(loss_fn(mha))
    return torch.tensor([float(loss_fn(_in_place(mha, [head]))) - whole for head in range(mha.n_heads)])


def _measured_from_the_last(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    """The loss is compared with that of the step before, when one head fewer was muted."""
    losses = [float(loss_fn(_mute(mha, range(n)))) for n in range(mha.n_heads + 1)]
    return torch.tensor(losses).diff()


def _measured_in_eval_mode(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    return head_importance(mha.eval(), loss_fn)


def _measured_by_item(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    return torch.tensor([loss_fn(_mute(mha, [head])).item() - loss_fn(mha).item() for head in range(mha.n_heads)])


def _measured_detached(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    losses = [(loss_fn(_mute(mha, [head])) - loss_fn(mha)).detach() for head in range(mha.n_heads)]
    return torch.stack(losses)


def _measured_stacked(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    return torch.stack([loss_fn(_mute(mha, [head])) - loss_fn(mha) for head in range(mha.n_heads)])


def _written_into_one(mha: nn.Module, loss_fn: LossFunction) -> Tensor:
    return head_importance(mha, loss_fn)[-1]


def _importance_texts(text: str | Callable[[Mapping[str, Any]], str]) -> str | Callable[[Mapping[str, Any]], str]:
    """A text of `ablate_heads` for somebody whose `head_importance` is built on it."""
    before = "Your numbers are those of heads that are not really muted, so look at your `ablate_heads`. "
    return before + text if isinstance(text, str) else lambda values: before + text(values)


def _not_the_difference(values: Mapping[str, Any], result: Any) -> str | None:
    importance = result.get("importance") if isinstance(result, Mapping) else result
    if importance is None or "loss_fn" not in values:
        return None
    layer, loss_fn = values["mha"].build(), values["loss_fn"].function(values["x"], values["target"])
    whole = float(loss_fn(layer))
    for head, found in enumerate(importance.array):
        without = float(loss_fn(ablate_heads(layer, [head])))
        if abs(without - whole - found) > 1e-4:
            return (
                f"Without head {head} the loss is {without:.4f}, with all heads {whole:.4f}. So its importance is "
                f"{without - whole:.4f}; you have {found:.4f}."
            )
    return None


_RISE = "how much the loss rises without each head"
_head_importance = Exercise(
    id="head_importance",
    points=3,
    section=MISSED,
    reference=head_importance,
    families={
        _RISE: 0.6,
        "losses as tensors and as numbers": 0.2,
        _COPY: 0.2,
    },
    cases=(
        _importance_case("two heads, one token", _RISE, (4, 2, 2), batch=(1, 1)),
        _importance_case("three heads", _RISE, (6, 3, 2), batch=(1, 3)),
        _importance_case("head 0 does harm", _RISE, (6, 3, 2), harmful=True),
        _importance_case("four heads of 3 in a d_model of 10", _RISE, (10, 4, 3)),
        _importance_case("the only head", _RISE, (3, 1, 3)),
        Case("queries, keys and a mask", _RISE, _importance_between_two_arguments, _importance_between_two),
        _importance_case("a 0-d tensor", "losses as tensors and as numbers", (6, 3, 2), "a 0-d tensor"),
        _importance_case("a NumPy float", "losses as tensors and as numbers", (6, 2, 3), "a NumPy float"),
        _importance_case("a float", "losses as tensors and as numbers", (6, 3, 2), "a float", harmful=True),
        _importance_case(
            "a 0-d tensor in float64",
            "losses as tensors and as numbers",
            (8, 4, 2),
            "a 0-d tensor",
            dtype=torch.float64,
        ),
        _importance_case("the layer afterwards", _COPY, (6, 3, 2), call=_original_after_measuring),
        _importance_case("a layer in eval mode", _COPY, (8, 2, 4), call=_original_after_measuring, training=False),
    ),
    laws=(Law("not_the_difference", _not_the_difference, MISSED),),
    misconceptions=(
        Misconception(
            "sign_turned",
            _measured(lambda without, whole: whole - without),
            "The sign is turned round: a head that is missed gets a negative number. Take the loss without the head "
            "minus the loss of the whole layer.",
            MISSED,
        ),
        Misconception(
            "loss_without_the_head",
            _measured(lambda without, whole: without),
            "You return the losses without each head. How much of that is the head's doing? Subtract the loss of the "
            "whole layer.",
            MISSED,
        ),
        Misconception(
            "absolute_value",
            _measured(lambda without, whole: abs(without - whole)),
            "You drop the sign. A head that does harm has a negative importance: without it the loss falls.",
            MISSED,
        ),
        Misconception(
            "clamped_at_zero",
            _measured(lambda without, whole: max(without - whole, 0.0)),
            "You cut negative numbers off at 0. A head that does harm has a negative importance: without it the loss "
            "falls.",
            MISSED,
        ),
        *(
            Misconception(
                "relative_to_the_loss",
                _measured(compare),
                "You divide by the loss of the whole layer. Asked for was the plain difference of the two losses.",
                MISSED,
            )
            for compare in (
                lambda without, whole: without / whole,
                lambda without, whole: (without - whole) / whole,
                lambda without, whole: without / whole - 1,
            )
        ),
        *(
            Misconception(
                "rescaled_importance",
                implementation,
                "Your numbers are rescaled to shares or to a largest of 1. Asked for were the plain differences of "
                "the two losses.",
                MISSED,
            )
            for implementation in (_shares_of_importance, _largest_is_one)
        ),
        Misconception(
            "order_of_heads",
            _order_of_importance,
            "You return an order of the heads. Asked for was one number for each head: how much the loss rises.",
            MISSED,
        ),
        Misconception(
            "all_other_heads_muted",
            _measured(muted=lambda head, n_heads: [other for other in range(n_heads) if other != head]),
            "You mute all heads except one. Asked for is the loss without this head, with all others at work.",
            MISSED,
        ),
        Misconception(
            "alone",
            _measured(
                lambda without, whole: whole - without,
                muted=lambda head, n_heads: [other for other in range(n_heads) if other != head],
            ),
            "You measure how the layer does with one head alone. Asked for is the loss without this head, with all "
            "others at work.",
            MISSED,
        ),
        Misconception(
            "muted_heads_pile_up",
            _measured(muted=lambda head, n_heads: range(head + 1)),
            "The heads before are still muted when the next one is tried. Each head is tried on its own: begin again "
            "from the whole layer.",
            MISSED,
        ),
        Misconception(
            "muted_heads_pile_up",
            _measured_from_the_last,
            "The heads before are still muted when the next one is tried. Each head is tried on its own: begin again "
            "from the whole layer, and compare with it.",
            MISSED,
        ),
        Misconception(
            "original_changed",
            _measured_in_place,
            "The layer itself is muted, head after head, and stays so: each measurement begins with more damage, and "
            "the caller's layer is ruined. Mute a copy (`ablate_heads` makes one).",
            MISSED,
        ),
        Misconception(
            "nothing_muted",
            _measured(muted=lambda head, n_heads: []),
            "All your differences are 0: both losses come from the same layer. Hand `loss_fn` the copy without the "
            "head.",
            MISSED,
        ),
        Misconception(
            "last_head_only",
            _written_into_one,
            "You return a single number. Asked for was one for each head: collect them in a list, and return after "
            "the loop.",
            MISSED,
        ),
        Misconception(
            "eval_mode_left_on",
            _measured_in_eval_mode,
            "The layer is in eval mode after the call, as `mha.eval()` leaves it. Leave it in the mode it had.",
            MISSED,
        ),
        *(
            Misconception(
                "loss_must_be_a_tensor",
                implementation,
                "`loss_fn` may return a plain float as well as a tensor, and a float has no `.item()` or `.detach()` "
                "and cannot be stacked. `float(loss)` works for both.",
                MISSED,
            )
            for implementation in (_measured_by_item, _measured_detached, _measured_stacked)
        ),
        *(
            Misconception(name, _measured(zero=zero), _importance_texts(text), MUTING)
            for name, zero, text in _WRONG_PLACES
        ),
    ),
)


# prune_heads


def _pruned(prune_heads: Callable[..., Any], mha: Layer, keep_heads: Any, x: Tensor) -> Any:
    small = prune_heads(mha.build(), keep_heads)
    return small(x)[0] if _is_layer(small) else small


def _pruned_from_a_generator(prune_heads: Callable[..., Any], mha: Layer, keep_heads: Any, x: Tensor) -> Any:
    small = prune_heads(mha.build(), (head for head in keep_heads))
    return small(x)[0] if _is_layer(small) else small


def _pruned_and_looked_at(prune_heads: Callable[..., Any], mha: Layer, keep_heads: Any, x: Tensor) -> Any:
    small = prune_heads(mha.build(), keep_heads)
    if not _is_layer(small):
        return small
    output, weights = small(x)
    return {"output": output, "weights": weights}


def _size_after_pruning(prune_heads: Callable[..., Any], mha: Layer, keep_heads: Any, x: Tensor) -> Any:
    small = prune_heads(mha.build(), keep_heads)
    if not _is_layer(small):
        return small
    parameters = list(small.parameters())
    return {
        "n_heads": small.n_heads,
        "d_head": small.d_head,
        "d_model": small.d_model,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "can be trained": all(parameter.requires_grad for parameter in parameters),
        "output": small(x)[0],
    }


def _pruned_between_two(
    prune_heads: Callable[..., Any], mha: Layer, keep_heads: Any, query: Tensor, key: Tensor, keep: Tensor
) -> Any:
    small = prune_heads(mha.build(), keep_heads)
    return small(query, key, keep=keep)[0] if _is_layer(small) else small


def _original_after_pruning(prune_heads: Callable[..., Any], mha: Layer, keep_heads: Any, x: Tensor) -> Any:
    layer = mha.build()
    return _original_after(layer, prune_heads(layer, keep_heads), x)


def _prune_case(title: str, family: str, call: Callable[..., Any], *args: Any, **options: Any) -> Case:
    return _layer_case(title, family, call, *args, name="keep_heads", **options)


def _numbers_of(heads: Iterable[int], size: int) -> list[int]:
    return [place for head in heads for place in range(head * size, (head + 1) * size)]


@dataclass(frozen=True)
class _Cut:
    """Pruning in parts, so that a misconception can replace one of them. Quick, unlike the oracle."""

    heads: Callable[[list[int], nn.Module], list[int]] = lambda keep_heads, mha: keep_heads
    numbers: Callable[[list[int], nn.Module], list[int]] = lambda heads, mha: _numbers_of(heads, mha.d_head)
    out: Callable[[nn.Module, list[int]], Tensor] = lambda mha, numbers: mha.w_o.weight[:, numbers]
    like_the_original: bool = True

    def __call__(self, mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
        keep_heads = _checked(keep_heads, mha.n_heads)
        heads = self.heads(keep_heads, mha)
        numbers = self.numbers(heads, mha)
        small = _filled(type(mha)(mha.d_model, len(heads), mha.d_head), mha, numbers, self.out(mha, numbers))
        return small if self.like_the_original else small.float()


def _filled(small: nn.Module, mha: nn.Module, numbers: list[int], out: Tensor) -> nn.Module:
    """The new layer with the old one's rows `numbers`, and with `out` for its w_o."""
    weights = [*(getattr(mha, name).weight[numbers] for name in ("w_q", "w_k", "w_v")), out]
    for linear, weight in zip(_linears(small), weights, strict=True):
        linear.weight = nn.Parameter(weight.detach().clone())
    return small


_prune = _Cut()


def _size_forgotten(assign: bool) -> Callable[[nn.Module, Iterable[int]], nn.Module]:
    """The new layer chooses d_head = d_model // n_heads, larger than the heads that are to go in."""

    def implementation(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
        keep_heads = _checked(keep_heads, mha.n_heads)
        numbers = _numbers_of(keep_heads, mha.d_head)
        small = type(mha)(mha.d_model, len(keep_heads)).to(mha.w_o.weight.dtype)
        new = {name: getattr(mha, name).weight[numbers].detach() for name in ("w_q", "w_k", "w_v")}
        new["w_o"] = mha.w_o.weight[:, numbers].detach()
        with torch.no_grad():
            for name, weight in new.items():
                linear = getattr(small, name)
                if assign:
                    linear.weight = nn.Parameter(weight.clone())
                else:
                    linear.weight.copy_(weight)
        return small

    return implementation


def _d_model_forgotten(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    """d_model shrinks with the heads: the layer no longer takes the same tokens."""
    keep_heads = _checked(keep_heads, mha.n_heads)
    return type(mha)(len(keep_heads) * mha.d_head, len(keep_heads)).to(mha.w_o.weight.dtype)


def _prune_unchanged_count(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    small = _prune(mha, keep_heads)
    small.n_heads = mha.n_heads
    return small


def _prune_with_gradients(
    write: Callable[[Tensor, Tensor, list[int], int], Any],
) -> Callable[[nn.Module, Iterable[int]], nn.Module]:
    def implementation(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
        keep_heads = _checked(keep_heads, mha.n_heads)
        small = type(mha)(mha.d_model, len(keep_heads), mha.d_head)
        write(small.w_q.weight, mha.w_q.weight, _numbers_of(keep_heads, mha.d_head), mha.d_head)
        return small

    return implementation


def _assign_first_block(new: Tensor, old: Tensor, numbers: list[int], size: int) -> None:
    new[:size] = old[numbers[:size]]


def _prune_with_plain_tensors(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    keep_heads = _checked(keep_heads, mha.n_heads)
    small = type(mha)(mha.d_model, len(keep_heads), mha.d_head)
    small.w_q.weight = mha.w_q.weight[_numbers_of(keep_heads, mha.d_head)]
    return small


def _prune_in_place(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    small = _prune(mha, keep_heads)
    mha.n_heads, mha.w_q, mha.w_k, mha.w_v, mha.w_o = small.n_heads, small.w_q, small.w_k, small.w_v, small.w_o
    return mha


def _prune_a_shallow_copy(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    """copy.copy shares the list of parts but not `n_heads`: the original keeps its count and loses its weights."""
    small, shallow = _prune(mha, keep_heads), copy.copy(mha)
    shallow.n_heads = small.n_heads
    shallow.w_q, shallow.w_k, shallow.w_v, shallow.w_o = small.w_q, small.w_k, small.w_v, small.w_o
    return shallow


def _prune_to_views(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    """Slices share memory with what they were cut from, also as a parameter of their own."""
    keep_heads = _checked(keep_heads, mha.n_heads)
    small = _prune(mha, keep_heads)
    if keep_heads == list(range(keep_heads[0], keep_heads[-1] + 1)):
        kept = slice(keep_heads[0] * mha.d_head, (keep_heads[-1] + 1) * mha.d_head)
        for name in ("w_q", "w_k", "w_v"):
            getattr(small, name).weight = nn.Parameter(getattr(mha, name).weight.detach()[kept])
        small.w_o.weight = nn.Parameter(mha.w_o.weight.detach()[:, kept])
    return small


def _prune_nothing_if_all(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    keep_heads = _checked(keep_heads, mha.n_heads)
    return mha if keep_heads == list(range(mha.n_heads)) else _prune(mha, keep_heads)


def _frozen(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    return _prune(mha, keep_heads).requires_grad_(False)


def _prune_leaving_eval_mode(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    return _prune(mha.eval(), _checked(keep_heads, mha.n_heads))


def _prune_slices(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    """Slices are joined: one beyond the end is empty, and one with a negative start is empty or another head."""
    keep_heads = list(keep_heads)
    all_numbers = range(mha.n_heads * mha.d_head)
    numbers = [number for head in keep_heads for number in all_numbers[_block(head, mha.d_head)]]
    return _filled(type(mha)(mha.d_model, len(keep_heads), mha.d_head), mha, numbers, mha.w_o.weight[:, numbers])


def _prune_from_the_end(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    """Rows are looked up one by one, and a negative number counts from the end, as in a list."""
    return _prune_slices(mha, [head % mha.n_heads for head in keep_heads])


def _prune_members(mha: nn.Module, keep_heads: Iterable[int]) -> nn.Module:
    return _prune_slices(mha, [head for head in dict.fromkeys(keep_heads) if 0 <= head < mha.n_heads])


def _kept_rows_text(values: Mapping[str, Any]) -> str:
    mha, head = values["mha"], _some_head(values)
    first, last = head * mha.d_head, (head + 1) * mha.d_head - 1
    return (
        f"Head {head} owns rows {first} to {last} of `w_q`, `w_k` and `w_v` (their weights are (H * d_head, "
        f"d_model)), and columns {first} to {last} of `w_o.weight`, (d_model, H * d_head)."
    )


def _size_forgotten_text(values: Mapping[str, Any]) -> str:
    mha, kept = values["mha"], len(list(values["keep_heads"]))
    return (
        f"The new layer was made without d_head, so it takes d_model // n_heads = {mha.d_model} // {kept} = "
        f"{mha.d_model // kept}. The heads that go in are {mha.d_head} wide: pass `d_head` on."
    )


_KEPT = "the output of the kept heads"
_ORDER = "heads in the order given"
_SMALL = "a smaller layer that can be trained"
_prune_heads = Exercise(
    id="prune_heads",
    points=4,
    section=PRUNING,
    reference=prune_heads,
    families={
        _KEPT: 0.35,
        _SMALL: 0.15,
        _ORDER: 0.1,
        "heads of any size, any dtype, any iterable": 0.1,
        _COPY: 0.15,
        _BAD: 0.15,
    },
    cases=(
        _prune_case("two heads, one kept, one token", _KEPT, _pruned, (4, 2, 2), [1], (1, 1)),
        _prune_case("three heads, two kept", _KEPT, _pruned, (6, 3, 2), [0, 2], (1, 3)),
        _prune_case("four heads, two kept", _KEPT, _pruned, (8, 4, 2), [1, 3]),
        _prune_case("all kept", _KEPT, _pruned, (6, 3, 2), [0, 1, 2]),
        _prune_case("the only head kept", _KEPT, _pruned, (3, 1, 3), [0]),
        Case(
            "queries, keys and a mask", _KEPT, _between_two_arguments("keep_heads", (6, 3, 2), [2]), _pruned_between_two
        ),
        _prune_case("three of four heads kept", _SMALL, _size_after_pruning, (8, 4, 2), [0, 1, 3]),
        _prune_case("one of two heads kept", _SMALL, _size_after_pruning, (6, 2, 3), [1]),
        _prune_case("the last head first", _ORDER, _pruned_and_looked_at, (6, 3, 2), [2, 0]),
        _prune_case("all heads, shuffled", _ORDER, _pruned_and_looked_at, (8, 4, 2), [2, 0, 3, 1]),
        _prune_case(
            "heads of 4 in a d_model of 10", "heads of any size, any dtype, any iterable", _pruned, (10, 3, 4), [0, 2]
        ),
        _prune_case(
            "heads of 2 in a d_model of 12", "heads of any size, any dtype, any iterable", _pruned, (12, 3, 2), [1]
        ),
        _prune_case(
            "float64", "heads of any size, any dtype, any iterable", _pruned, (6, 3, 2), [0, 1], dtype=torch.float64
        ),
        _prune_case("a range", "heads of any size, any dtype, any iterable", _pruned, (8, 4, 2), range(1, 3)),
        _prune_case(
            "a generator", "heads of any size, any dtype, any iterable", _pruned_from_a_generator, (8, 4, 2), [0, 3]
        ),
        _prune_case("neighbours kept", _COPY, _original_after_pruning, (6, 3, 2), [1, 2]),
        _prune_case("all kept", _COPY, _original_after_pruning, (6, 3, 2), [0, 1, 2]),
        _prune_case("a layer in eval mode", _COPY, _original_after_pruning, (8, 4, 2), [3, 1], training=False),
        _prune_case("head 3 of three", _BAD, _pruned, (6, 3, 2), [3], (1, 2)),
        _prune_case("head 7 after a good one", _BAD, _pruned, (6, 3, 2), [0, 7], (1, 2)),
        _prune_case("head -1", _BAD, _pruned, (6, 3, 2), [-1], (1, 2)),
        _prune_case("head -2 after a good one", _BAD, _pruned, (6, 3, 2), [2, -2], (1, 2)),
        _prune_case("head 1 twice", _BAD, _pruned, (6, 3, 2), [1, 1], (1, 2)),
        _prune_case("head 0 twice, from a generator", _BAD, _pruned_from_a_generator, (8, 4, 2), [0, 2, 0], (1, 2)),
    ),
    laws=(Law("not_what_the_heads_write", _not_what_heads_write, PRUNING),),
    misconceptions=(
        *(
            Misconception(
                "d_head_forgotten",
                _size_forgotten(assign),
                _size_forgotten_text,
                PRUNING,
            )
            for assign in (False, True)
        ),
        Misconception(
            "d_model_shrunk",
            _d_model_forgotten,
            "The new layer has a smaller d_model, so it no longer takes the same tokens. Fewer heads make the concat "
            "narrower; what goes into the layer and what comes out keep their width.",
            PRUNING,
        ),
        Misconception(
            "order_ignored",
            _Cut(heads=lambda keep_heads, mha: sorted(keep_heads)),
            "The heads come in the order of the old layer. Asked for is the order in which `keep_heads` gives them.",
            PRUNING,
        ),
        Misconception(
            "others_kept",
            _Cut(heads=lambda keep_heads, mha: _complement(mha, keep_heads)),
            "You keep the heads that were to go, and drop the ones in `keep_heads`.",
            PRUNING,
        ),
        Misconception(
            "first_heads_kept",
            _Cut(heads=lambda keep_heads, mha: list(range(len(keep_heads)))),
            "You keep as many heads as were asked for, but always the first ones.",
            PRUNING,
        ),
        Misconception(
            "w_o_out_of_step",
            _Cut(out=lambda mha, numbers: mha.w_o.weight[:, : len(numbers)]),
            lambda values: (
                "`w_o` keeps its first columns, whichever heads were kept, so a head's numbers meet the columns of "
                f"another. {_kept_rows_text(values)}"
            ),
            PRUNING,
        ),
        Misconception(
            "w_o_out_of_step",
            _Cut(out=lambda mha, numbers: mha.w_o.weight[:, sorted(numbers)]),
            lambda values: (
                "The heads come in the order of `keep_heads`, but the columns of `w_o` in the old one. Both have to "
                "follow the same list."
            ),
            PRUNING,
        ),
        Misconception(
            "rows_of_w_o",
            _Cut(out=lambda mha, numbers: mha.w_o.weight[numbers]),
            lambda values: f"You take rows of `w_o.weight` where columns are meant. {_kept_rows_text(values)}",
            PRUNING,
        ),
        Misconception(
            "rows_of_w_o",
            _Cut(out=lambda mha, numbers: mha.w_o.weight[numbers].T),
            lambda values: f"You take rows of `w_o.weight` where columns are meant. {_kept_rows_text(values)}",
            PRUNING,
        ),
        Misconception(
            "one_row_per_head",
            _Cut(numbers=lambda heads, mha: [h + i for h in heads for i in range(mha.d_head)]),
            lambda values: f"Your heads begin one row apart, so they overlap. {_kept_rows_text(values)}",
            PRUNING,
        ),
        Misconception(
            "every_nth_row",
            _Cut(numbers=lambda heads, mha: [h + i * mha.n_heads for h in heads for i in range(mha.d_head)]),
            lambda values: (
                f"You take every H-th row for a head. Its rows lie next to each other. {_kept_rows_text(values)}"
            ),
            PRUNING,
        ),
        Misconception(
            "size_from_d_model",
            _Cut(numbers=lambda heads, mha: _first_of(mha, _numbers_of(heads, mha.d_model // mha.n_heads))),
            _size_from_d_model,
            PRUNING,
        ),
        Misconception(
            "only_muted",
            lambda mha, keep_heads: _mute(mha, _complement(mha, _checked(keep_heads, mha.n_heads))),
            "The other heads are muted, but still there: the layer is as large as before. Make a new layer with only "
            "the kept heads in it.",
            PRUNING,
        ),
        Misconception(
            "everything_kept",
            lambda mha, keep_heads: copy.deepcopy(mha) if _checked(keep_heads, mha.n_heads) else mha,
            "The new layer still has all heads.",
            PRUNING,
        ),
        Misconception(
            "n_heads_unchanged",
            _prune_unchanged_count,
            lambda values: (
                f"The weights were cut, but `n_heads` still says {values['mha'].n_heads}, so `forward` splits into "
                "too many heads. Make the new layer with the right number of heads."
            ),
            PRUNING,
        ),
        *(
            Misconception("gradients_in_the_way", _prune_with_gradients(write), _GRADIENTS_TEXT, PRUNING)
            for write in (
                lambda new, old, numbers, size: new.copy_(old[numbers]),
                lambda new, old, numbers, size: new[:size].copy_(old[numbers[:size]]),
                _assign_first_block,
            )
        ),
        Misconception(
            "tensor_for_parameter",
            _prune_with_plain_tensors,
            "A layer's `weight` must stay a parameter, so PyTorch refuses a plain tensor in its place. Copy the "
            "numbers into it (`weight.copy_(...)` inside `torch.no_grad()`), or wrap them in `nn.Parameter`.",
            PRUNING,
        ),
        Misconception(
            "frozen",
            _frozen,
            "The new layer cannot be trained any more: its parameters have `requires_grad=False`. A pruned model is "
            "usually trained on for a while.",
            PRUNING,
        ),
        Misconception(
            "dtype_lost",
            _Cut(like_the_original=False),
            "The new layer is in float32, whatever the old one was. Give it the dtype of the original, for example "
            "with `.to(mha.w_o.weight.dtype)`.",
            PRUNING,
        ),
        *(
            Misconception(
                "original_changed",
                implementation,
                "The original layer has lost its heads as well. `copy.copy` and `b = a` share the parts of a layer. "
                "Make a new layer, and copy the kept weights into it.",
                PRUNING,
            )
            for implementation in (_prune_in_place, _prune_a_shallow_copy)
        ),
        *(
            Misconception(
                "shares_weights",
                implementation,
                "The new layer shares weights with the original: when it is trained, the original changes as well. A "
                "slice is a view of the same memory, also inside `nn.Parameter`; `clone()` it, or copy into new "
                "weights.",
                PRUNING,
            )
            for implementation in (_prune_to_views, _prune_nothing_if_all)
        ),
        Misconception(
            "eval_mode_left_on",
            _prune_leaving_eval_mode,
            "The original layer is in eval mode after the call, as `mha.eval()` leaves it. Leave it in the mode it "
            "had.",
            PRUNING,
        ),
        Misconception(
            "generator_used_up",
            _used_up(_prune_slices),
            "You go through `keep_heads` twice, and a generator can be gone through only once: the second time it is "
            "empty. Make a list of it first.",
            PRUNING,
        ),
        *_bad_heads(_prune_slices, _prune_from_the_end, _prune_members, PRUNING),
    ),
)


def _first_of(mha: nn.Module, numbers: list[int]) -> list[int]:
    """As many as there are rows, so that heads cut to a wrong size still make a layer."""
    rows = mha.n_heads * mha.d_head
    return [min(number, rows - 1) for number in numbers]


_QUIZZES = (
    Quiz(
        "quiz_04_1",
        answer="C",
        section=WRITES,
        explanations={
            "A": "Softmax already saw to that, inside each head. W_O comes after it and may have any numbers.",
            "B": "The concat has n_heads * d_k numbers, in the usual layer just d_model. No width is missing.",
            "C": "Yes. In the concat each head's numbers lie in places of their own. Every column of W_O reads all of "
            "them, so one slider of the output can combine what several heads found.",
            "D": "Nobody is chosen. W_O adds up what all heads write; a head with small numbers in its rows is quiet.",
        },
    ),
    Quiz(
        "quiz_04_2",
        answer="A",
        section=WRITES,
        explanations={
            "A": "Yes. Head 2 comes after 2 x 64 = 128 rows of heads 0 and 1, owns the next 64, and writes on all 512 "
            "sliders.",
            "B": "That is head 1: heads are counted from 0, so head 2 begins at 2 x 64.",
            "C": "That would be a head that writes on 64 sliders only. W_O lets it write on all 512.",
            "D": "The columns belong to the sliders of the output, and every head writes on all of them.",
        },
    ),
    Quiz(
        "quiz_04_3",
        answer="D",
        section=MISSED,
        explanations={
            "A": "It writes, and loudly: 30 % of the lengths. What it writes is just not missed on this data.",
            "B": "Each alone may be spared because the other stands in for it. Without both, nobody does.",
            "C": "The share measures how long a vector is, the importance what the task loses. Both can be right.",
            "D": "Yes. Importance asks what is lost when this head alone goes, on this data. If another head writes "
            "the same, nothing is lost, until that one goes too.",
        },
    ),
)

EXERCISES = (_head_contributions, _contribution_share, _ablate_heads, _head_importance, _prune_heads, *_QUIZZES)
