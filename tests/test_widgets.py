"""Interactive pictures without a browser: a frame for each state, words for each frame, nothing from elsewhere."""

from __future__ import annotations

import base64
import html
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from helpers.widgets import winner_takes_almost_all
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.svg import Drawing, budget_bar, rectangle, text, token_row
from helpers.widgets.winner import MOVED_SCORES, TEMPERATURES

TOKENS = ["chef", "dropped", "glass", "bowl", "tile", "floor", "slippery"]
SCORES = np.array([2.0, -1.0, 1.0, 4.0, -1.0, 2.0, 0.0])


def count(page: str, piece: str) -> int:
    return len(re.findall(piece, page))


def headlines(page: str) -> list[str]:
    return re.findall("<p>(.*?)</p>", page)


@pytest.fixture
def size() -> Choice:
    return Choice("Size", ["small", "large"], start=1)


@pytest.fixture
def side() -> Choice:
    return Choice("Side", ["left", "middle", "right"], look="slider")


@pytest.fixture
def sheet(size, side) -> Interactive:
    def draw(size_stop: int, side_stop: int) -> Frame:
        drawing = Drawing(100, 50, [rectangle(20 * side_stop, 0, 10 + 10 * size_stop, 9, "#000"), text(0, 40, "a < b")])
        return Frame(f"{size.options[size_stop]} & {side.options[side_stop]}", drawing, "A box on a sheet.")

    return Interactive("Sheet", [size, side], [Panel([size, side], draw)])


# ---- Any picture


def test_there_is_one_frame_for_each_combination_of_choices(sheet):
    shown = [f"{size} &amp; {side}" for size in ("small", "large") for side in ("left", "middle", "right")]
    assert headlines(sheet.html()) == shown
    assert count(sheet.html(), '<svg [^>]*role="img" aria-label="A box on a sheet."') == 6


def test_each_choice_is_a_named_group_with_one_option_chosen(sheet):
    page = sheet.html()
    assert re.findall('role="radiogroup" aria-label="(.*?)"', page) == ["Size", "Side"]
    assert [label for label in re.findall(r"checked><span>(.*?)</span>", page)] == ["large", "left"]


def test_an_option_tells_jupyterlab_to_leave_its_keys_alone(sheet):
    assert count(sheet.html(), "<input [^>]*data-lm-suppress-shortcuts") == count(sheet.html(), "<input ") == 5


def test_two_copies_on_one_page_do_not_disturb_each_other(sheet):
    one, other = (set(re.findall(r"touch-[0-9a-f]{8}", sheet.html())) for _ in range(2))
    assert len(one) == len(other) == 1
    assert one != other


def test_a_panel_depends_on_its_own_choices_only(size, side):
    def draw(stop: int) -> Frame:
        return Frame(f"state {stop}", Drawing(9, 9, []), "Nothing.")

    page = Interactive("Two panels", [size, side], [Panel([size], draw), Panel([side], draw)]).html()
    assert headlines(page) == ["state 0", "state 1", "state 0", "state 1", "state 2"]


def test_a_picture_is_text_where_html_cannot_be_shown(sheet):
    bundle = sheet._repr_mimebundle_()
    assert bundle["text/plain"] == sheet.alt_text == repr(sheet)
    assert sheet.alt_text == "Sheet. large & left. A box on a sheet. In a notebook you can change: Size; Side."


def test_an_image_of_the_first_state_is_left_where_style_sheets_are_not(sheet):
    page = re.sub("<style>.*?</style>", "", sheet.html(), flags=re.DOTALL)
    (image,) = re.findall('<img class="touch-still" alt="Sheet. [^"]*"[^>]*base64,([^"]*)">', page)
    drawing = ElementTree.fromstring(base64.b64decode(image))
    assert "large & left" in "".join(drawing.itertext())
    assert '<div class="touch-live' in page
    assert count(page, '<div class="touch-live [^>]*hidden style="display:none"') == 1


def test_nothing_comes_from_elsewhere_and_nothing_is_run(sheet):
    for page in (sheet.html(), winner_takes_almost_all(SCORES, TOKENS, "bowl").html()):
        assert count(page, r"<script|<link|<iframe|@import|url\(|https?:|\son[a-z]+=") == 0


def test_an_effect_holds_while_its_option_is_chosen():
    gain = Choice("Gain", ["off", "on"], effects=["--gain:0", "--gain:1"])
    page = Interactive("Fader", [gain], [Panel([], lambda: Frame("Fixed", Drawing(9, 9, []), "Nothing."))]).html()
    assert re.findall(r":has\(\.a-choice \.o(\d)>:checked\)\{--gain:(\d)\}", page) == [
        ("0", "0"),
        ("1", "1"),
    ]


def test_play_is_one_more_option_and_shows_every_step_in_its_turn(size, side):
    steps = Choice("Step", ["1", "2", "3", "4"], look="slider", seconds_per_step=0.5)
    page = Interactive(
        "Steps", [steps], [Panel([steps], lambda stop: Frame(f"{stop}", Drawing(9, 9, []), "A step."))]
    ).html()
    assert count(page, 'value="play"') == 1
    assert re.findall(r"animation-delay:([\d.]+)s", page) == ["0", "0.5", "1", "1.5"]


# ---- Pieces of SVG


def widths(drawing: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect [^>]*? width="([\d.]+)"', drawing)]


def test_a_budget_bar_is_as_long_as_its_pieces_together():
    *pieces, whole = widths(budget_bar([0.5, 0.3, 0.2], ["a", "b", "c"], 10, 0, 600))
    assert whole == 600
    assert pieces == [300, 180, 120]


def test_a_row_of_tokens_names_each_token_and_its_percent():
    row = token_row([0.25, 0.0, 0.749, 0.001], ["the", "<s>", "bowl", "it"], 0, 0, 400)
    assert re.findall(r">([^<]+)</text>", row) == ["the", "25 %", "&lt;s&gt;", "0 %", "bowl", "75 %", "it", "&lt;1 %"]


# ---- Winner takes almost all


def test_the_winner_has_a_frame_for_each_score_and_temperature():
    page = winner_takes_almost_all(SCORES, TOKENS, "bowl").html()
    assert len(headlines(page)) == len(MOVED_SCORES) * len(TEMPERATURES)


def test_the_weights_and_choices_in_words_are_those_of_the_scores():
    weights = torch.softmax(torch.from_numpy(SCORES), -1)
    choices = torch.exp(torch.distributions.Categorical(weights).entropy())
    picture = winner_takes_almost_all(SCORES, TOKENS, "bowl")
    assert f"bowl {100 * weights[3]:.0f} %" in picture.alt_text
    assert f"Effective choices: {choices:.1f} of 7" in picture.alt_text


def test_words_that_share_the_first_place_are_all_named():
    page = html.unescape(winner_takes_almost_all([2, 2, 0], ["chef", "floor", "bowl"], "bowl").html())
    assert '<p>"chef", "floor" and "bowl" take 33 % each. In effect, the row looks at 3.0 words</p>' in page


def test_scores_are_left_as_they_are():
    scores = SCORES.copy()
    winner_takes_almost_all(scores, TOKENS, "bowl").html()
    assert np.array_equal(scores, SCORES)


@pytest.mark.parametrize(
    ("scores", "move", "reason"), [(SCORES[:3], "bowl", "7 tokens"), (SCORES, "spoon", '"spoon" is not among')]
)
def test_scores_without_tokens_and_tokens_without_scores_are_refused(scores, move, reason):
    with pytest.raises(ValueError, match=reason):
        winner_takes_almost_all(scores, TOKENS, move)
