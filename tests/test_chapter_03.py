"""The oracles of chapter 3 agree with PyTorch's own module, and with each other."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.checks.chapter_03_multi_head import MultiHeadAttention, MultiHeadAttentionNumPy


@pytest.mark.parametrize("n_keys", [None, 9], ids=["self-attention", "keys from another sequence"])
def test_the_oracle_agrees_with_the_library(n_keys: int | None) -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(12, 3).double()
    library = nn.MultiheadAttention(12, 3, bias=False, batch_first=True).double()
    with torch.no_grad():
        library.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        library.out_proj.weight.copy_(ours.w_o.weight)
    query = torch.randn(2, 5, 12, dtype=torch.float64)
    key = query if n_keys is None else torch.randn(2, n_keys, 12, dtype=torch.float64)
    keep = torch.rand(5, key.shape[1]) < 0.7
    keep[:, 0] = True  # where nothing may be attended to, the library gives NaN and we give zeros
    expected = library(query, key, key, attn_mask=~keep, average_attn_weights=False)
    torch.testing.assert_close(ours(query, key, keep=keep), expected)


def test_the_oracles_of_numpy_and_pytorch_agree() -> None:
    rng = np.random.default_rng(0)
    in_numpy, in_torch = MultiHeadAttentionNumPy(12, 3), MultiHeadAttention(12, 3).double()
    with torch.no_grad():
        for name in ("q", "k", "v", "o"):
            getattr(in_torch, f"w_{name}").weight.copy_(torch.from_numpy(getattr(in_numpy, f"W_{name.upper()}").T))
    X, keep = rng.standard_normal((2, 5, 12)), rng.random((2, 1, 5, 5)) < 0.5
    keep[0, 0, 2] = False  # a query that may attend to nothing
    output, weights = in_torch(torch.from_numpy(X), keep=torch.from_numpy(keep))
    np.testing.assert_allclose(in_numpy.forward(X, keep)[0], output.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(in_numpy.forward(X, keep)[1], weights.detach().numpy(), atol=1e-12)
