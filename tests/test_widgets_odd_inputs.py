"""Odd inputs to the interactive pictures: drawn as what they are, or refused in words."""

from __future__ import annotations

import html
import re
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from helpers.heatmaps.wording import percent
from helpers.theme import LABEL_SIZE
from helpers.widgets import (
    head_explorer,
    kv_cache_steps,
    mixing_desk,
    one_spotlight_or_three,
    split_and_combine,
    spotlight,
    winner_takes_almost_all,
    wiring,
)
from helpers.widgets.reading import MOST_TOKENS
from helpers.widgets.svg import LETTER, label

TOKENS = ["a", "b", "c"]
HEADS = ["noun", "trait", "action"]
TABLE = np.array([[1.0, 2.0, 0.5], [0.0, 1.5, 3.0], [2.0, 2.5, 0.5]])  # exact in every dtype
EVEN = np.full((3, 2, 2), 0.5)
DESK = {
    "queries": np.ones((3, 2)),
    "weights": np.eye(3),
    "reports": np.ones((3, 2)),
    "W_O": np.eye(6),
    "token": "it",
    "words": TOKENS,
    "heads": HEADS,
    "report_sliders": [f"r{number}" for number in range(6)],
    "result_sliders": [f"s{number}" for number in range(6)],
}
CACHE = {"tokens": TOKENS, "n_layers": 2, "n_kv_heads": 4, "d_head": 8, "bytes_per_value": 2, "start": 0}
LLAMA = {"n_heads": 32, "n_kv_heads": 8, "n_layers": 32, "d_head": 128, "n_tokens": 8192, "model": "Llama-3-8B"}

explore = partial(head_explorer, EVEN)

#: Each picture that is given numbers, as a function of them.
OF_NUMBERS = {
    "winner": (lambda numbers: winner_takes_almost_all(numbers, TOKENS, "a"), TABLE[0]),
    "spotlight": (lambda numbers: spotlight(numbers, TOKENS), TABLE),
    "one or three": (lambda numbers: one_spotlight_or_three(numbers, TOKENS, HEADS), TABLE),
    "score of heads": (lambda numbers: explore(scores={"x": numbers}), TABLE[0]),
    **{
        name: (lambda numbers, name=name: mixing_desk(**DESK | {name: numbers}), DESK[name])
        for name in ("queries", "weights", "reports", "W_O")
    },
}


def without_names(page: str) -> str:
    return re.sub("touch-[0-9a-f]{8}", "", page)


@pytest.mark.parametrize("picture", OF_NUMBERS)
def test_numbers_may_be_lists_or_tensors_of_any_kind(picture):
    draw, numbers = OF_NUMBERS[picture]
    expected = without_names(draw(numbers).html())
    tensor = torch.tensor(numbers)
    for same in (numbers.tolist(), tensor.clone().requires_grad_(), tensor.bfloat16(), tensor.half()):
        assert without_names(draw(same).html()) == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1j, None, "x"])
@pytest.mark.parametrize("picture", OF_NUMBERS)
def test_what_is_no_finite_number_is_refused(picture, bad):
    draw, numbers = OF_NUMBERS[picture]
    spoilt = numbers.astype(object)
    spoilt.flat[1] = bad
    with pytest.raises(ValueError, match=r"must be (finite numbers, got -?\w+ at|.*real numbers)"):
        draw(spoilt.tolist())


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (partial(explore, scores=[1, 2, 3]), "scores must be a dictionary"),
        (partial(explore, head=1.5), "head must be a whole number"),
        (partial(explore, token="a"), "token must be a whole number"),
        (partial(spotlight, TABLE, TOKENS, token="a"), "token must be a whole number"),
        (partial(kv_cache_steps, **CACHE | {"tokens": []}), f"1 to {MOST_TOKENS}"),
        (partial(kv_cache_steps, **CACHE | {"tokens": "abc"}), "list of strings"),
        (partial(kv_cache_steps, **CACHE | {"start": 3}), "start 3 does not exist"),
        *[
            (partial(kv_cache_steps, **CACHE | {size: 0}), f"{size} must be a whole number of at least 1, got 0")
            for size in ("n_layers", "n_kv_heads", "d_head", "bytes_per_value")
        ],
        *[
            (partial(wiring, **LLAMA | {size: wrong}), f"{size} must be a whole number of at least 1, got {wrong}")
            for size in ("n_heads", "n_kv_heads", "n_layers", "d_head", "n_tokens")
            for wrong in (0, -8, 8.0)
        ],
        (partial(wiring, **LLAMA | {"n_heads": 360}), "360 query heads are too many"),
        (partial(split_and_combine, [["a"], ["b", "c"]], 1), "rows of one length"),
        (partial(split_and_combine, np.zeros((0, 4)), 2), r"got shape \(0, 4\)"),
        (partial(split_and_combine, [["a", "b"]], 2.0), "n_heads must be a whole number"),
        (partial(mixing_desk, **DESK | {"queries": np.ones(6)}), r"queries must be .* = \(3, 2\), got shape \(6,\)"),
        (partial(mixing_desk, **DESK | {"weights": np.eye(3)[:, :2]}), r"weights must be .* = \(3, 3\)"),
        (partial(mixing_desk, **DESK | {"reports": np.ones((2, 2))}), r"reports must be .* = \(3, 2\)"),
        (partial(mixing_desk, **DESK | {"W_O": np.ones((6, 5))}), r"W_O must be .* = \(6, 6\), got shape \(6, 5\)"),
        (partial(mixing_desk, **DESK | {"heads": HEADS[:2]}), "heads must be 3 names, got 2"),
    ],
)
def test_wrong_arguments_are_refused_in_words(draw, reason):
    with pytest.raises(ValueError, match=reason):
        draw()


def test_more_words_than_can_be_read_are_refused():
    many = [f"word{number}" for number in range(MOST_TOKENS + 1)]
    square = np.zeros((len(many), len(many)))
    for draw in (
        lambda: winner_takes_almost_all(square[0], many, "word0"),
        lambda: spotlight(square, many),
        lambda: one_spotlight_or_three(square[:3] + 1, many, HEADS),
        lambda: kv_cache_steps(**CACHE | {"tokens": many}),
        lambda: mixing_desk(**DESK | {"words": many, "weights": square[:3]}),
    ):
        with pytest.raises(ValueError, match=f"1 to {MOST_TOKENS} to be read"):
            draw()


@pytest.mark.parametrize("score", [1.3, -2.0, 50.0, 4.0])
def test_the_winner_begins_with_the_scores_it_was_given(score):
    row = torch.tensor([score, 2.0, 3.0])
    shares = [percent(float(weight)) for weight in torch.softmax(row.double(), -1)]
    words = ", ".join(f"{token} {share} %" for token, share in zip(TOKENS, shares, strict=True))
    assert f"Weights: {words}." in winner_takes_almost_all(row, TOKENS, "a").alt_text


def test_a_start_counted_from_the_end_is_the_last_step():
    assert kv_cache_steps(**CACHE | {"start": -1}).alt_text == kv_cache_steps(**CACHE | {"start": 2}).alt_text


def test_heads_that_write_nothing_give_a_desk_of_zeros():
    with np.errstate(all="raise"):
        page = mixing_desk(**DESK | {"reports": np.zeros((3, 2))}).html()
    assert not re.search(r"\b(nan|inf)\b", page)


ODD = ["<script>", '"', "it's", "$x$", "\\", "", "\n", "&amp;", "שלום", "🙂", "dup", "dup", "x" * 60, "</style>"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: head_explorer(np.full((2, 14, 14), 1 / 14), ODD, {"<b>": [1, 1]}, titles=["</style>", '"']),
        lambda: winner_takes_almost_all(np.arange(14) / 3, ODD, "dup"),
        lambda: spotlight(np.eye(14), ODD),
        lambda: one_spotlight_or_three(np.eye(14)[:3], ODD, ODD[:3]),
        lambda: kv_cache_steps(**CACHE | {"tokens": ODD}),
        lambda: split_and_combine([ODD[:4], ODD[4:8]], 2),
        lambda: mixing_desk(**DESK | {"words": ODD, "weights": np.eye(14)[:3], "token": "<b>"}),
        lambda: wiring(**LLAMA | {"model": "</style><b>"}),
    ],
)
def test_odd_tokens_are_text_and_nothing_else(draw):
    page = draw().html()
    style, rest = page.split("</style>")
    assert not re.search("<script|<b>", rest)
    # well-formed: every element is closed, every attribute quoted
    rest = re.sub(r"<(img|input)([^>]*)>", r"<\1\2/>", rest).replace(" hidden ", " ")
    ElementTree.fromstring(re.sub(r" (data-lm-suppress-shortcuts|checked)(?=[ />])", "", f"<p>{rest}</p>"))
    assert 'class="touch-live' in rest and "mathjax_ignore tex2jax_ignore" in rest


@pytest.mark.parametrize("content", ["", "a", "slippery", "extraordinarily long"])
@pytest.mark.parametrize("width", [12, 40, 90, 300])
def test_a_label_stays_in_its_width_and_is_large_enough_to_read(content, width):
    (size, shown) = re.fullmatch('<text .*font-size="([^"]*)">(.*)</text>', label(0, 0, content, width)).groups()
    assert LABEL_SIZE <= float(size) <= 12
    assert len(html.unescape(shown)) * LETTER * float(size) <= width + 1
    assert shown == content or (shown.endswith("…") and content.startswith(shown[:-1]))


def test_bytes_of_any_model_have_room_beside_their_bar():
    page = kv_cache_steps(**CACHE | {"n_layers": 126, "n_kv_heads": 128, "d_head": 128, "start": 2}).html()
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+">([\d,]+ bytes)</text>', page)
    assert len(labels) == 6  # two in each of three steps
    assert all(float(x) + LETTER * 14 * len(words) <= 861 for x, words in labels)


@pytest.mark.parametrize(("n_heads", "numbered"), [(32, True), (64, False), (128, False)])
def test_numbers_of_heads_are_left_out_where_they_would_touch(n_heads, numbered):
    page = wiring(**LLAMA | {"n_heads": n_heads}).html()
    assert ([f">{head}</text>" in page for head in (0, n_heads - 1)]) == [numbered, numbered]
