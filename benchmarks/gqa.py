"""How fast chapter 6's `grouped_attention` is, as ratios: `python benchmarks/gqa.py`, on one thread.

The solution notebook's own answer against torch's attention (which returns no weights), and against the notebook's
`by_repeating`, which copies keys and values for every query head. Sizes are those of a layer of Llama-3-8B. Then one
step of decode by the number of key/value heads. All are run in turns, and the best of all turns counts; 2.0 means
that `grouped_attention` takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import answers_of, best_times
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

N_HEADS, N_KV_HEADS, D_HEAD = 32, 8, 128
#: (new tokens, all tokens, with a causal mask)
SIZES = ((1, 128, False), (1, 512, False), (1, 2048, False), (128, 128, False), (128, 128, True))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    answers = answers_of("06_gqa")
    print(f"grouped_attention of chapter 6, {N_HEADS} query and {N_KV_HEADS} key/value heads of {D_HEAD}, one thread")
    print("new tokens  all tokens  causal mask   / torch   / by repeating")
    with torch.inference_mode():
        for size in SIZES:
            ratios = grouped_ratios(answers["grouped_attention"], answers["by_repeating"], *size)
            print("{:10}{:12}{:>13}{:10.2f}{:17.3f}".format(*size[:2], "yes" if size[2] else "no", *ratios), flush=True)
        print("\none new token after 2047, by key/value heads: milliseconds")
        for n_kv_heads, best in step_times(answers["grouped_attention"]).items():
            print(f"{n_kv_heads:10}{1e3 * best:12.3f}", flush=True)


def grouped_ratios(
    grouped: Callable[..., Any], repeating: Callable[..., Any], n_new: int, n_total: int, causal: bool
) -> tuple[float, float]:
    """Our time over torch's, and over that of the version with copies."""
    q, k, v = inputs(n_new, n_total, N_KV_HEADS)
    keep = torch.ones(n_new, n_total, dtype=torch.bool).tril(n_total - n_new) if causal else None

    def library() -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)

    torch.testing.assert_close(grouped(q, k, v, keep)[0], library(), rtol=1e-4, atol=1e-5)
    ours, torchs, copying = best_times(partial(grouped, q, k, v, keep), library, partial(repeating, q, k, v, keep))
    return ours / torchs, ours / copying


def step_times(grouped: Callable[..., Any]) -> dict[int, float]:
    """Seconds of one step of decode, from a key/value head for every query head to a single one for all."""
    steps = {n_kv_heads: partial(grouped, *inputs(1, 2048, n_kv_heads)) for n_kv_heads in (32, 16, 8, 4, 2, 1)}
    return dict(zip(steps, best_times(*steps.values()), strict=True))


def inputs(n_new: int, n_total: int, n_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(1, N_HEADS, n_new, D_HEAD)
    k, v = (torch.randn(1, n_kv_heads, n_total, D_HEAD) for _ in range(2))
    return q, k, v


if __name__ == "__main__":
    main()
