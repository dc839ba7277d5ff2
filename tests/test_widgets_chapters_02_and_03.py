"""The pictures of chapters 2 and 3 say what PyTorch and NumPy compute, and refuse what they cannot show."""

from __future__ import annotations

import base64
import html
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.heatmaps.wording import percent
from helpers.widgets import head_explorer, one_spotlight_or_three, split_and_combine, spotlight
from helpers.widgets.heads import MOST_ENTRIES, MOST_TOKENS
from helpers.widgets.spotlight import LOUDNESS

TOKENS = ["The", "chef", "dropped", "the", "glass", "bowl"]
QUESTIONS = ["noun", "trait", "action"]


def random_weights(*shape: int) -> torch.Tensor:
    return torch.softmax(3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0)), -1)


def headlines(page: str) -> list[str]:
    return [html.unescape(headline) for headline in re.findall("<p>(.*?)</p>", page)]


def effect(page: str, letter: str, option: int) -> str:
    """The CSS that holds while an option is chosen, beside showing frames."""
    style = page.split("</style>")[0]
    rules = [rule.rsplit("}", 1)[0] for rule in re.split(r"\.touch-[0-9a-f]{8}:has\(", style)]
    return [rule for rule in rules if rule.startswith(f".{letter}-choice .o{option}>:checked){{")][-1].split("{", 1)[1]


# ---- Head explorer


@pytest.fixture
def weights() -> torch.Tensor:
    return random_weights(3, 6, 6)


@pytest.fixture
def page(weights) -> str:
    return head_explorer(weights, TOKENS).html()


def test_the_numbers_of_all_rows_are_the_percents_of_the_weights(weights, page):
    (numbers,) = re.findall("<foreignObject[^>]*><div[^>]*>(.*?)</div>", page, re.DOTALL)
    lines = [html.unescape(line).split("\t") for line in numbers.split("\n")]
    assert lines == [[percent(float(weight)) for weight in row] for row in weights.reshape(-1, 6)]


def test_a_weight_of_exactly_0_has_no_number_and_no_column():
    page = head_explorer(np.tri(4)[None] / np.tri(4).sum(1)[None, :, None]).html()
    assert "<div" in page and "100\n50\t50\n33\t33\t33\n25\t25\t25\t25<" in page
    assert page.count("v-") == 10


def test_the_columns_are_as_high_as_the_weights_and_each_row_has_its_own_floor(weights, page):
    strokes = [tuple(map(int, stroke)) for stroke in re.findall(r"M(\d+) (\d+)v-(\d+)", page)]
    shares = (100 * weights.reshape(-1, 6).numpy()).round().astype(int)
    assert strokes == [(key, 100 * (row + 1), shares[row, key]) for row, key in np.argwhere(shares)]


def test_each_small_map_and_the_large_one_have_a_pixel_for_each_weight(weights, page):
    pictures = [
        Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"data:image/png;base64,([^\"]+)", page)
    ]
    assert [picture.size for picture in pictures] == [(6, 6)] * 3 + [(6, 18)]
    shades = np.concatenate([np.asarray(picture) for picture in pictures[:3]])
    assert np.array_equal(shades, np.asarray(pictures[3]))
    np.testing.assert_allclose(shades / 31, weights.reshape(-1, 6), atol=0.5 / 31 + 1e-6)


def test_what_is_said_of_a_row_names_its_largest_weight(weights, page):
    for head in range(3):
        said = dict(re.findall(r'--say(\d): "?([^;]*?)"?;', effect(page, "a", head).replace(":", ": ") + ";"))
        for token in range(6):
            share = percent(float(weights[head, token].max()))
            assert f"{TOKENS[weights[head, token].argmax()]}'" in said[str(token)]
            assert f"({share} %)" in said[str(token)]


def test_a_row_begins_with_its_token_and_css_goes_on(page):
    assert headlines(page) == ["'The'", "'chef'", "'dropped'", "'the'", "'glass'", "'bowl'"]
    assert effect(page, "b", 2) == "--row:2;.touch-headlines p::after{content:var(--say2) var(--place)}"


def test_the_picture_that_stays_is_that_of_the_chosen_head_and_token(weights):
    picture = head_explorer(weights, TOKENS, titles=QUESTIONS, head=1, token=2)
    assert picture.alt_text.startswith("Head explorer. 'dropped' attends")
    assert ", in trait. Weights: " in picture.alt_text
    assert f"'bowl' {percent(float(weights[1, 2, 5]))} %." in picture.alt_text


def test_each_score_is_an_order_with_the_largest_first(weights):
    page = head_explorer(
        weights, TOKENS, scores={"previous": [0.1, 0.9, 0.5], "resting": torch.tensor([3, 2, 1])}
    ).html()
    assert re.findall(r'value="\d" [^>]*><span>(by .*?)</span>', page) == ["by number", "by previous", "by resting"]
    assert re.findall(r"\.o(\d)\{order:(\d)\}", effect(page, "a", 1)) == [("1", "0"), ("2", "1"), ("0", "2")]
    assert re.findall(r"var\(--score0,none\);order:1\">(.*?)<", page) == ["0.10", "0.90", "0.50"]


def test_tokens_cannot_end_the_style_sheet_or_the_page():
    evil = ['"}</style>', "<script>", "\\", "it's"]
    page = head_explorer(random_weights(1, 4, 4), evil).html()
    assert page.count("</style>") == page.count("<style>") == 1
    assert "<script" not in page


def test_weights_may_be_lists_arrays_or_tensors_and_stay_as_they_are(weights):
    before = weights.clone()
    assert head_explorer(weights.tolist()).alt_text == head_explorer(weights).alt_text
    assert head_explorer(weights.bfloat16()).html()
    assert torch.equal(weights, before)


def test_270_heads_stay_far_below_2_mb():
    scores = {"previous": np.arange(270), "resting": np.arange(270)}
    page = head_explorer(random_weights(270, 17, 17), [f"word{t}" for t in range(17)], scores).html()
    assert len(page.encode()) < 1.6e6
    assert page.count("<") < 4000  # elements, and their ends


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"weights": random_weights(6, 6)}, r"weights\[None\]"),
        ({"weights": random_weights(2, 6, 5)}, "as many queries as keys"),
        ({"weights": torch.randn(2, 6, 6)}, "Softmax them first"),
        ({"weights": random_weights(1, MOST_TOKENS + 1, MOST_TOKENS + 1)}, "41 tokens are too many"),
        ({"weights": random_weights(MOST_ENTRIES // 100 + 1, 10, 10)}, r"weights\[:800\]"),
        ({"tokens": TOKENS[:5]}, "5 tokens do not match 6"),
        ({"titles": QUESTIONS[:2]}, "2 titles do not match 3 heads"),
        ({"scores": {"previous": [1, 2]}}, 'score "previous" must be one number for each of 3 heads'),
        ({"scores": {"previous": [1, np.nan, 2]}}, '"previous" must be finite numbers, got nan at 1'),
        ({"head": 3}, "head 3 does not exist"),
        ({"token": -7}, "token -7 does not exist"),
    ],
)
def test_what_the_explorer_cannot_show_is_refused_in_words(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        head_explorer(**{"weights": random_weights(3, 6, 6)} | arguments)


# ---- The spotlight


SCORES = 2 * torch.randn(6, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("causal", [False, True], ids=["no mask", "causal"])
def test_the_spotlight_shares_out_what_softmax_says(causal):
    page = html.unescape(spotlight(SCORES, TOKENS).html())
    hidden = torch.ones(6, 6).triu(1).bool() if causal else torch.zeros(6, 6).bool()
    weights = torch.softmax(SCORES.masked_fill(hidden, -torch.inf), -1)
    for query in range(6):
        seen = query + 1 if causal else 6
        shares = [f"'{token}' {percent(float(w))} %" for token, w in zip(TOKENS[:seen], weights[query], strict=False)]
        assert f"Weights: {', '.join(shares)}." in page


def test_under_a_mask_what_is_hidden_is_named_and_gets_no_beam():
    page = spotlight(torch.zeros(6, 6), TOKENS).html()
    assert len(headlines(page)) == 12
    assert "Hidden: the 5 after 'The'." in html.unescape(page)
    assert page.count("<polygon") == 6 * 6 + 21


def test_a_spotlight_without_a_row_for_each_token_is_refused():
    for scores in (SCORES[:3], SCORES[:, :3], SCORES[0]):
        with pytest.raises(ValueError, match="of 6 tokens"):
            spotlight(scores, TOKENS)
    with pytest.raises(ValueError, match="token 6 does not exist"):
        spotlight(SCORES, TOKENS, token=6)


CLUES = torch.tensor([[0, 0, 0, 0, 2, 4.5], [0, 4.2, 0, 0, 0, 0], [0, 0, 4.0, 0, 0, 0]], dtype=torch.float64)


def test_one_head_asks_all_its_questions_at_equal_strength():
    said = headlines(one_spotlight_or_three(CLUES, TOKENS, QUESTIONS).html())
    expected = []
    for many in (1, 2, 3):
        for loud in LOUDNESS:
            query = loud * 4 * (CLUES / CLUES.max(1, keepdim=True).values)[:many].sum(0)
            row = torch.softmax(query, -1)
            found = [f'{percent(float(row[place]))} % on "{TOKENS[place]}"' for place in (5, 1, 2)[:many]]
            expected.append(f"One head has {', '.join(found)}")
    assert said == expected


def test_three_heads_have_a_budget_each():
    rows = torch.softmax(CLUES, -1)
    each = [
        f'{name} {percent(float(row.max()))} % on "{TOKENS[row.argmax()]}"'
        for name, row in zip(QUESTIONS, rows, strict=True)
    ]
    assert f"a row each: {', '.join(each)}." in one_spotlight_or_three(CLUES, TOKENS, QUESTIONS).alt_text


def test_a_question_that_nothing_answers_and_a_missing_one_are_refused():
    with pytest.raises(ValueError, match="three questions"):
        one_spotlight_or_three(CLUES[:2], TOKENS, QUESTIONS[:2])
    with pytest.raises(ValueError, match="positive score"):
        one_spotlight_or_three(-CLUES, TOKENS, QUESTIONS)


# ---- Split and combine


NAMES = np.array([[f"t{t}s{s}" for s in range(6)] for t in range(4)])
HEADS = torch.arange(24).view(4, 3, 2).transpose(0, 1)


def rows_of(entries: torch.Tensor, panels: str, rows: str) -> str:
    return "; ".join(
        f"{panels} {panel}, {rows} {row}: {' '.join(NAMES.ravel()[entries[panel, row]])}"
        for panel, row in np.ndindex(*entries.shape[:2])
    )


def test_every_step_shows_what_torch_makes_of_it():
    page = re.sub("<img.*?>", "", split_and_combine(NAMES, 3).html())
    cut, straight = torch.arange(24).view(4, 3, 2), torch.arange(24).view(3, 4, 2)
    assert page.count(f"With the swap, shape (4, 3, 2), {rows_of(cut, 'token', 'head')}.") == 2
    assert page.count(f"With the swap, shape (3, 4, 2), {rows_of(HEADS, 'head', 'token')}.") == 1
    assert page.count(f"Without, shape (3, 4, 2), {rows_of(straight, 'head', 'token')}.") == 3


def test_entries_in_a_wrong_place_are_counted_and_marked():
    page = split_and_combine(NAMES, 3).html()
    mixed = int((torch.arange(24).view(3, 4, 2) != HEADS).sum())
    assert [str(mixed) in headline for headline in headlines(page)] == [False, True, True, True, False]
    assert page.count("mixed-up") == 3 * mixed + 5  # and once in each legend


def test_with_one_head_nothing_can_be_mixed_up():
    page = split_and_combine(NAMES[:1], 1).html()
    assert page.count("mixed-up") == 5


@pytest.mark.parametrize(
    ("names", "n_heads", "reason"),
    [
        (NAMES, 4, "cannot share d_model = 6"),
        (NAMES, 0, "n_heads must be"),
        (NAMES, 1, "do not fit"),
        (NAMES[0], 3, r"\(T, d"),
    ],
)
def test_what_cannot_be_split_is_refused(names, n_heads, reason):
    with pytest.raises(ValueError, match=reason):
        split_and_combine(names, n_heads)
