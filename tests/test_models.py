"""The clues task, the small model around an attention layer, and training that can be interrupted."""

import copy
import queue
import time
from functools import partial

import jupyter_client
import pytest
import torch
from torch import nn

from helpers.checks.chapter_03_multi_head import MultiHeadAttention
from helpers.models import clues, training

MODEL = partial(clues.CluesModel, partial(MultiHeadAttention, n_heads=3))


@pytest.fixture(autouse=True)
def not_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)


def batch(seed: int = 0, size: int = 64) -> clues.Batch:
    return clues.draw(torch.Generator().manual_seed(seed), size)


def train(model: nn.Module, steps: int, seed: int = 0, **options) -> list[float]:
    options = {"draw": clues.draw, "loss": clues.loss, "learning_rate": 3e-3} | options
    return training.train(model, options.pop("draw"), options.pop("loss"), steps=steps, seed=seed, **options)


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# The task


def test_the_same_seed_draws_the_same_sequences() -> None:
    assert all(torch.equal(one, other) for one, other in zip(batch(7), batch(7), strict=True))
    assert not torch.equal(batch(7).attributes, batch(8).attributes)


def test_every_query_asks_about_three_different_items() -> None:
    assert all(len(set(asked)) == 3 for asked in batch(size=500).asked.tolist())


def test_question_s_asks_for_attribute_s_of_its_own_item() -> None:
    attributes, asked = batch(3)
    for sequence, answers in enumerate(batch(3).answers.tolist()):
        assert answers == [attributes[sequence, asked[sequence, s], s] for s in range(3)]


# The model


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 8])
def test_the_number_of_heads_changes_no_number_of_parameters(n_heads: int) -> None:
    model = clues.CluesModel(partial(MultiHeadAttention, n_heads=n_heads))
    assert weights_of(model).numel() == 13_224


def test_an_untrained_model_guesses() -> None:
    assert clues.accuracy(MODEL(), batch(size=4000)) == pytest.approx(1 / 8, abs=0.05)


def test_the_layer_s_own_initial_weights_do_not_matter() -> None:
    def tiny(d_model: int) -> nn.Module:
        layer = MultiHeadAttention(d_model, 3)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.01)
        return layer

    assert torch.equal(weights_of(clues.CluesModel(tiny, seed=4)), weights_of(MODEL(seed=4)))


def test_a_model_has_scores_of_about_unit_variance() -> None:
    model = MODEL()
    x = model.norm(model.embed(batch()))
    q, k = (layer(x).unflatten(-1, (3, 16)).transpose(1, 2) for layer in (model.attention.w_q, model.attention.w_k))
    assert 0.5 < (q @ k.transpose(-2, -1) / 4).var() < 2


def test_making_a_model_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    MODEL()
    assert torch.equal(torch.rand(3), expected)


def test_the_weights_of_the_query_sum_to_1_for_every_head() -> None:
    weights = MODEL().weights(batch())
    assert weights.shape == (64, 3, 10)
    assert torch.allclose(weights.sum(-1), torch.ones(64, 3))


def test_one_question_gets_one_answer() -> None:
    model = MODEL(questions=1)
    assert model(batch()).shape == (64, 1, 8)
    assert clues.loss(model, batch()).shape == ()


def test_a_model_with_another_layer_leaves_the_first_alone() -> None:
    model, layer = MODEL(), MultiHeadAttention(48, 2, 5)
    before = weights_of(model)
    changed = clues.with_attention(model, layer)
    assert changed.attention is layer
    train(changed, 1)
    assert torch.equal(weights_of(model), before)
    assert model.attention.n_heads == 3


# Training


def test_the_same_seed_trains_the_same_way() -> None:
    one, other = MODEL(), MODEL()
    assert train(one, 5, seed=2) == train(other, 5, seed=2)
    assert torch.equal(weights_of(one), weights_of(other))
    assert train(MODEL(), 5, seed=3) != train(MODEL(), 5, seed=2)


def test_the_loss_falls() -> None:
    losses = train(MODEL(), 60)
    assert len(losses) == 60
    assert sum(losses[-5:]) < sum(losses[:5])


def test_no_steps_change_nothing() -> None:
    model = MODEL()
    before = weights_of(model)
    assert train(model, 0) == []
    assert torch.equal(weights_of(model), before)


@pytest.mark.parametrize(("schedule", "share"), [("constant", 1.0), ("cosine", 1 / 30)])
def test_a_schedule_begins_at_its_own_rate(schedule: str, share: float) -> None:
    model = MODEL()
    before = weights_of(model)
    train(model, 1, schedule=schedule, learning_rate=1e-2)
    assert (weights_of(model) - before).abs().max() == pytest.approx(1e-2 * share, rel=0.2)  # as Adam's first step is


def test_cosine_ends_at_a_tenth() -> None:
    assert training._share_of_rate("cosine", 499, 500) == pytest.approx(0.1, abs=0.001)
    assert training._share_of_rate("cosine", 30, 500) == pytest.approx(1.0)


@pytest.mark.parametrize("options", [{"steps": -1}, {"steps": 3, "schedule": "linear"}])
def test_nonsense_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"-1|linear"):
        train(MODEL(), **options)


def test_an_interrupted_model_can_be_used_and_trained_on(capsys: pytest.CaptureFixture) -> None:
    model = MODEL().eval()
    calls = iter(range(100))

    def draw(generator: torch.Generator) -> clues.Batch:
        if next(calls) == 7:
            raise KeyboardInterrupt
        return clues.draw(generator)

    losses = train(model, 50, draw=draw)
    assert len(losses) == 7
    assert "7 of 50 steps" in capsys.readouterr().out
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert weights_of(model).isfinite().all()
    assert 0 <= clues.accuracy(model, batch()) <= 1
    assert len(train(copy.deepcopy(model), 3)) == 3


def test_an_error_in_the_loss_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        train(MODEL(), 3, loss=lambda model, batch: 1 / 0)


def test_training_is_shortened_while_nbgrader_runs_the_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    assert len(train(MODEL(), 500)) == training.SHORT_RUN
    assert "shortened" in capsys.readouterr().out
    assert len(train(MODEL(), 3)) == 3


@pytest.mark.slow
def test_three_heads_do_what_one_cannot() -> None:
    accuracies = {}
    for n_heads in (1, 3):
        model = clues.CluesModel(partial(MultiHeadAttention, n_heads=n_heads))
        train(model, 500)
        accuracies[n_heads] = clues.accuracy(model, batch(99, 2000))
    assert accuracies[1] < 0.5
    assert accuracies[3] > 0.95


@pytest.mark.slow
def test_the_stop_button_ends_a_run_in_a_real_kernel_and_leaves_the_model() -> None:
    code = """
from functools import partial
from helpers.checks.chapter_03_multi_head import MultiHeadAttention
from helpers.models import clues, training
model = clues.CluesModel(partial(MultiHeadAttention, n_heads=3))
losses = training.train(model, clues.draw, clues.loss, steps=100_000, learning_rate=3e-3)
print("after:", 0 < len(losses) < 100_000, 0 <= clues.accuracy(model, clues.draw(__import__("torch").Generator())) <= 1)
"""
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3")
    try:
        client.execute(code)
        said, shown = "", []
        deadline = time.monotonic() + 120
        interrupted = False
        while time.monotonic() < deadline and "after:" not in said:
            try:
                message = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["msg_type"] == "stream":
                said += message["content"]["text"]
            elif message["msg_type"] in ("display_data", "update_display_data"):
                shown.append(message["content"]["data"])
            if len(shown) >= 2 and not interrupted:
                interrupted = True
                manager.interrupt_kernel()
        assert "after: True True" in said
        assert '<progress value="0" max="100000"' in shown[0]["text/html"]
        assert "stopped by you" in shown[-1]["text/plain"]
        assert "text/html" not in shown[-1]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
