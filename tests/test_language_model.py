"""The small language model: seeded, causal, built around whatever layer and cache it is given."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from helpers.checks.chapter_03_multi_head import MultiHeadAttention
from helpers.checks.chapter_05_kv_cache import KVCache, attend_with_cache, generate
from helpers.models.language import LanguageModel

VOCABULARY = 11
TEXT = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 10]])  # (2, 7)


def layer(d_model: int) -> MultiHeadAttention:
    return MultiHeadAttention(d_model, 3)


def new_model(**options) -> LanguageModel:
    made_with = {"attend": attend_with_cache, "cache": KVCache, "d_model": 12, "max_tokens": 20} | options
    return LanguageModel(layer, vocabulary=VOCABULARY, **made_with).double()


def splits(n_tokens: int) -> Iterator[list[int]]:
    """Every way to cut a text into chunks."""
    for cuts in itertools.product([False, True], repeat=n_tokens - 1):
        ends = [place for place, cut in enumerate([*cuts, True], 1) if cut]
        yield [end - start for start, end in zip([0, *ends], ends, strict=False)]


def test_it_gives_every_position_a_logit_for_every_token() -> None:
    assert new_model()(TEXT).shape == (2, 7, VOCABULARY)


def test_the_same_seed_makes_the_same_model_whatever_was_drawn_before() -> None:
    one = new_model(seed=3)(TEXT)
    torch.rand(5)
    torch.testing.assert_close(one, new_model(seed=3)(TEXT))
    assert not torch.allclose(one, new_model(seed=4)(TEXT))


def test_making_a_model_leaves_the_random_numbers_of_others_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    new_model()
    torch.testing.assert_close(torch.rand(3), expected)


def test_no_position_sees_the_future() -> None:
    model, changed = new_model(), TEXT.clone()
    changed[:, 4:] = 0
    torch.testing.assert_close(model(TEXT)[:, :4], model(changed)[:, :4])
    assert not torch.allclose(model(TEXT)[:, 4:], model(changed)[:, 4:])


@pytest.mark.parametrize("chunks", list(splits(7)), ids=str)
def test_with_caches_any_chunks_give_the_logits_of_the_whole_text(chunks: list[int]) -> None:
    model = new_model(n_layers=3)
    caches = model.new_caches(2, 7)
    logits = [model(chunk, caches) for chunk in TEXT.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(logits, dim=1), model(TEXT))


def test_there_is_a_cache_of_its_own_for_every_layer() -> None:
    model = new_model(n_layers=3)
    caches = model.new_caches(batch=2, max_tokens=9)
    assert len({id(cache) for cache in caches}) == 3
    model(TEXT, caches)
    assert [len(cache) for cache in caches] == [7, 7, 7]
    assert (
        sum(cache.nbytes for cache in caches) == 3 * 2 * 2 * 3 * 7 * 4 * 8
    )  # layers, k and v, B, H, T, d_head, float64


def test_scores_have_a_variance_of_about_one() -> None:
    model = LanguageModel(lambda d_model: MultiHeadAttention(d_model, 4), vocabulary=500, d_model=64, max_tokens=300)
    x = model.norms[0](model.tokens.weight[:300] + model.positions.weight)
    q, k = (w(x).unflatten(-1, (4, 16)).transpose(0, 1) for w in (model.layers[0].w_q, model.layers[0].w_k))
    assert 0.5 < (q @ k.mT / 4).var().item() < 2


def test_layers_and_caches_are_those_that_were_handed_in() -> None:
    calls = []

    class Layer(MultiHeadAttention):
        def forward(self, x, keep=None):
            calls.append(("forward", tuple(keep.shape)))
            return super().forward(x, keep=keep)

    def attend(mha: nn.Module, x_new: Tensor, cache: KVCache) -> Tensor:
        calls.append(("attend", x_new.shape[1]))
        return attend_with_cache(mha, x_new, cache)

    model = LanguageModel(lambda d_model: Layer(d_model, 2), attend, KVCache, vocabulary=VOCABULARY, d_model=8)
    model(TEXT)
    model(TEXT[:, :3], model.new_caches(2, 3))
    assert calls == [("forward", (7, 7))] * 2 + [("attend", 3)] * 2


def test_a_layer_with_fewer_key_value_heads_gets_a_smaller_cache() -> None:
    class Grouped(MultiHeadAttention):
        n_kv_heads = 2

    model = LanguageModel(lambda d_model: Grouped(d_model, 4), attend_with_cache, KVCache, vocabulary=5, d_model=8)
    cache = model.new_caches(1, 6)[0]
    cache.append(torch.zeros(1, 2, 6, 2), torch.zeros(1, 2, 6, 2))
    assert len(cache) == 6


def test_attend_and_cache_may_be_set_later() -> None:
    model = new_model(attend=None, cache=None)
    with pytest.raises(ValueError, match="no `attend` and `cache` yet"):
        model.new_caches(1, 5)
    model.attend, model.cache = attend_with_cache, KVCache
    torch.testing.assert_close(model(TEXT, model.new_caches(2, 7)), model(TEXT))


def test_a_text_longer_than_its_positions_is_refused() -> None:
    model = new_model(max_tokens=6)
    with pytest.raises(ValueError, match="7 tokens are more than the 6"):
        model(TEXT)
    caches = model.new_caches(2, 10)
    model(TEXT[:, :6], caches)
    with pytest.raises(ValueError, match="7 tokens are more than the 6"):
        model(TEXT[:, 6:], caches)


def test_it_can_be_trained() -> None:
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(TEXT[:, :-1]).flatten(0, 1), TEXT[:, 1:].flatten())

    before = loss().item()
    for _ in range(20):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < before / 2
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_generates_the_same_text_with_and_without_caches() -> None:
    model = new_model()
    torch.testing.assert_close(generate(model, TEXT[:, :3], 6), generate(model, TEXT[:, :3], 6, use_cache=False))
