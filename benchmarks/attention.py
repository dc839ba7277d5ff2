"""How fast the attention of the solution notebooks is, as ratios: `python benchmarks/attention.py`, on one thread.

The forward of chapter 3's `MultiHeadAttention` against `nn.MultiheadAttention` with the same weights, without
gradients. Both are run in turns, and the best of all turns counts. 2.0 means that the course takes twice as long.
Then, in the same run, what gqa.py and kv_cache.py print by themselves.
"""

from __future__ import annotations

import gqa
import kv_cache
import torch
from common import answers_of, best_times
from torch import Tensor, nn

#: (sequences, tokens, d_model, heads)
SIZES = ((1, 32, 64, 4), (16, 32, 64, 4), (1, 128, 512, 8), (4, 256, 512, 8), (1, 1024, 512, 8))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("MultiHeadAttention of chapter 3 / nn.MultiheadAttention, one thread")
    print("sequences  tokens  d_model  heads   both with weights   library without")
    multi_head = answers_of("03_multi_head")["MultiHeadAttention"]
    with torch.inference_mode():
        for size in SIZES:
            with_weights, without = multi_head_ratios(multi_head, *size)
            print("{:9}{:8}{:9}{:7}".format(*size), f"{with_weights:19.2f}{without:18.2f}", flush=True)


def multi_head_ratios(
    multi_head: type[nn.Module], batch: int, n_tokens: int, d_model: int, n_heads: int
) -> tuple[float, float]:
    """Our time over the library's, which returns the weights as well, or only the output."""
    ours = multi_head(d_model, n_heads).eval()
    library = nn.MultiheadAttention(d_model, n_heads, bias=False, batch_first=True).eval()
    library.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
    library.out_proj.weight.copy_(ours.w_o.weight)
    x = torch.randn(batch, n_tokens, d_model)

    def with_weights() -> tuple[Tensor, Tensor]:
        return library(x, x, x, average_attn_weights=False)

    def without_weights() -> tuple[Tensor, None]:
        return library(x, x, x, need_weights=False)

    torch.testing.assert_close(ours(x), with_weights(), rtol=1e-4, atol=1e-5)
    our_time, *library_times = best_times(lambda: ours(x), with_weights, without_weights)
    return our_time / library_times[0], our_time / library_times[1]


if __name__ == "__main__":
    main()
    gqa.main()
    kv_cache.main()
