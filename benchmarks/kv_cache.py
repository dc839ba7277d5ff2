"""What the cache of chapter 5 saves, as ratios: `python benchmarks/kv_cache.py`, on one thread.

The solution notebook's own answers make one more token: with a cache, one token is fed after those that are in it;
without, the whole text is fed. One attention layer of d_model 512 with 8 heads, without gradients; medians count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from common import answers_of

TOKENS = (32, 128, 512, 2048)
D_MODEL, N_HEADS = 512, 8
CACHED_STEPS, FULL_PASSES = 16, 3


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    answers = answers_of("05_kv_cache")
    print("one more token, chapter 5's answers, one thread")
    print("tokens   without / with cache   with cache / with cache at 32   nbytes / kv_cache_bytes")
    with torch.inference_mode():
        at_first = None
        for n_tokens in TOKENS:
            cached, full, bytes_ratio = one_more_token(answers, n_tokens)
            at_first = at_first or cached
            print(f"{n_tokens:6}{full / cached:23.1f}{cached / at_first:32.2f}{bytes_ratio:26.6f}", flush=True)


def one_more_token(answers: Mapping[str, Any], n_tokens: int) -> tuple[float, float, float]:
    """Seconds for token number `n_tokens` with and without a cache, and the cache's bytes over those counted."""
    mha = answers["MultiHeadAttention"](D_MODEL, N_HEADS)
    x = torch.randn(1, n_tokens, D_MODEL)
    cache = answers["KVCache"](1, N_HEADS, n_tokens, D_MODEL // N_HEADS)
    answers["attend_with_cache"](mha, x[:, :-CACHED_STEPS], cache)
    last_steps = x[:, -CACHED_STEPS:].split(1, dim=1)
    cached = median(seconds(lambda step=step: answers["attend_with_cache"](mha, step, cache)) for step in last_steps)
    causal = torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()
    full = median(seconds(lambda: mha(x, keep=causal)) for _ in range(FULL_PASSES))
    counted = answers["kv_cache_bytes"](1, N_HEADS, D_MODEL // N_HEADS, n_tokens, bytes_per_value=4)
    return cached, full, cache.nbytes / counted


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
