"""A row of weights as a budget of 100 %: one bar, cut into the shares of the tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from helpers import theme
from helpers.heatmaps.drawing import add_axes, draw_title, write
from helpers.heatmaps.picture import Picture, our_look, words_only
from helpers.heatmaps.reading import ROUNDING, read_labels, read_names, read_weights, refuse_overspent
from helpers.heatmaps.wording import budget_headline, budget_sentences, percent, plural, spoken

BAR, BAR_WIDTH = 0.5, 7.2  # inches from one bar to the next, and along a bar
SMALL = 0.04  # tokens that stay below are put together
COLOURS = len(theme.TOKEN_COLOURS)


@our_look()
def budget_bars(
    weights: Any, tokens: Sequence[str], row_labels: Sequence[str] | None = None, title: str | None = None
) -> Picture:
    """Each row of weights as one bar of 100 %, cut into the shares of the tokens.

    `weights` (T,) or (R, T), `tokens` T labels. The eight largest tokens get a colour and their name; tokens
    that stay under 4 % in every row are put together. Up to eight tokens have their colours by position, so
    a word keeps its colour from picture to picture. A row that sums to less than 1, be it 0, ends in a
    hatched piece, "not spent".
    ValueError: as `attention_map`; also a row that sums to more than 1 (beyond rounding, 0.01).
    """
    shares = np.atleast_2d(read_weights(weights, (1, 2), "(T,) or (R, T), for example weights[0, 0]"))
    refuse_overspent(shares)
    labels = read_labels(tokens, shares.shape[1], "token", "weights in a row")
    no_names = [""] if len(shares) == 1 else [f"row {row}" for row in range(len(shares))]
    rows = read_names(row_labels, len(shares), "row_labels", "rows", no_names)
    alt_text = spoken(title, budget_sentences(shares, labels, rows))
    if words_only():
        return Picture(alt_text, 1, 1)
    picture = Picture(alt_text, theme.MAX_WIDTH, 1.0 + BAR * len(shares))
    axes = add_axes(picture, 1.0, 0.8, BAR_WIDTH, BAR * len(shares))
    _draw_bars(axes, shares, labels.shown)
    axes.set_yticks(range(len(rows)), rows)
    draw_title(axes, title or budget_headline(shares, labels, rows), BAR_WIDTH)
    return picture


def _draw_bars(axes: Axes, shares: np.ndarray, tokens: list[str]) -> None:
    start = np.zeros(len(shares))
    for name, widths, colour in _pieces(shares, tokens):
        hatch = "////" if colour == theme.PAPER else None
        look = {"color": colour, "hatch": hatch, "edgecolor": theme.LINE, "height": 0.7}
        axes.barh(range(len(shares)), widths, left=start, label=name, **look)
        for row, share in enumerate(widths):
            _write_share(axes, start[row] + share / 2, row, name, share, colour)
        start = start + widths
    axes.set(xlim=(0, max(1.0, start.max())), ylim=(len(shares) - 0.5, -0.5))
    axes.set_xticks(np.linspace(0, 1, 6), [f"{p} %" for p in range(0, 101, 20)], size=theme.NUMBER_SIZE)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.3 / (BAR * len(shares))), ncols=5, frameon=False)


def _pieces(shares: np.ndarray, tokens: list[str]) -> Iterator[tuple[str, np.ndarray, str]]:
    """Name, width in each row and colour of the pieces, from left to right."""
    named, others = _named_and_others(shares.max(axis=0))
    for place, token in enumerate(named):
        colour = theme.token_colour(token if len(tokens) <= COLOURS else place)
        yield tokens[token], shares[:, token], colour
    if others:
        yield plural(len(others), "other"), shares[:, others].sum(axis=1), theme.REST
    not_spent = 1 - shares.sum(axis=1)
    if not_spent.max() > ROUNDING:
        yield "not spent", np.where(not_spent > ROUNDING, not_spent, 0), theme.PAPER


def _named_and_others(largest: np.ndarray) -> tuple[list[int], list[int]]:
    """Tokens with a piece of their own and those that share one, by the `largest` share of each."""
    spent = [int(token) for token in np.argsort(-largest, kind="stable") if largest[token] > 1e-9]
    count = min(COLOURS, int((largest >= SMALL).sum()))
    if count == len(spent) - 1 and count < COLOURS:
        count += 1  # a single small token needs no piece called "1 other"
    return sorted(spent[:count]), spent[count:]


def _write_share(axes: Axes, x: float, row: int, name: str, share: float, colour: str) -> None:
    """The token and its percent in its piece of the bar, or as much as fits."""
    room = int(BAR_WIDTH * share / 0.075)  # characters
    number = f"{percent(share)} %"
    for text in (f"{name} {number}", f"{name}\n{number}", number):
        if max(len(line) for line in text.split("\n")) <= room:
            plate = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}  # keeps hatching off the letters
            return write(axes, x, row, text, on=colour, bbox=plate)
