"""The mixing desk: what each head writes through its band of W_O, and what is lost when its fader is down."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers import theme
from helpers.heatmaps.wording import percent
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import ACCENT, WIDTH
from helpers.widgets.reading import read_numbers, read_tokens, refuse_shape
from helpers.widgets.svg import SMALL, Drawing, budget_bar, fits, label, line, rectangle, text

GAINS = {"100 %": 1.0, "50 %": 0.5, "off": 0.0}
LEFT, RIGHT = 152, WIDTH - 1  # the columns begin where the faders do, half a line's width is kept free at RIGHT
HEADS, QUERIES, BUDGETS, REPORTS, RESULT, WRITTEN = 0, 25, 57, 129, 182, 214  # px: the tops of the parts
CELL, BUDGET = 22, 38  # px: the heights of a cell and of a bar of 100 %
BAND, SUM = 44, 62  # px: the heights of what one head writes and of the sum
COLOURS = [theme.token_colour(index) for index in (0, 5, 6)]


def mixing_desk(
    queries: Any,
    weights: Any,
    reports: Any,
    W_O: Any,
    *,
    token: str,
    words: Sequence[str],
    heads: Sequence[str],
    report_sliders: Sequence[str],
    result_sliders: Sequence[str],
) -> Interactive:
    """One token's way through a layer of three heads: its queries, its rows of weights, the reports, their sum.

    queries, reports: (3, d_k); weights: (3, T); W_O: (3 * d_k, d_model), used as in concat @ W_O
    A fader for each head scales what it writes.
    ValueError: an array of another shape or with a number that is not finite, too few names for something.
    """
    words = read_tokens(words)
    queries, weights, reports = (
        read_numbers(array, name) for array, name in ((queries, "queries"), (weights, "weights"), (reports, "reports"))
    )
    W_O = read_numbers(W_O, "W_O")
    _refuse(queries, weights, reports, W_O, words, heads, report_sliders, result_sliders)
    bands = W_O.reshape(*reports.shape, -1)  # (3, d_k, d_model)
    written = np.einsum("hk,hkm->hm", reports, bands)  # (3, d_model): what each head writes
    faders = [Choice(f"{head} head", list(GAINS)) for head in heads]
    above = [
        *_names(heads),
        *_cells(queries.ravel(), QUERIES, f'query of "{token}"'),
        *_budgets(weights, words),
        *_cells(reports.ravel(), REPORTS + 18, "reports (concat)", report_sliders),
    ]
    rows = "; ".join(f"{head}: {_shares(row, words)}" for head, row in zip(heads, weights, strict=True))

    def draw(*stops: int) -> Frame:
        gains = np.array([list(GAINS.values())[stop] for stop in stops])
        parts = [*above, *_desk(written, gains, heads, result_sliders)]
        total = gains @ written
        sums = ", ".join(f"{name} {_signed(number)}" for name, number in zip(result_sliders, total, strict=True))
        return Frame(
            _headline(written, gains, heads, result_sliders),
            Drawing(WIDTH, WRITTEN + 3 * BAND + SUM + 16, parts),
            f'Where "{token}" looks: {rows}. What the heads write adds up to: {sums}.',
        )

    return Interactive("The mixing desk", faders, [Panel(faders, draw)])


def _refuse(
    queries: np.ndarray,
    weights: np.ndarray,
    reports: np.ndarray,
    W_O: np.ndarray,
    words: Sequence[str],
    heads: Sequence[str],
    report_sliders: Sequence[str],
    result_sliders: Sequence[str],
) -> None:
    if len(heads) != len(COLOURS):
        raise ValueError(f"heads must be {len(COLOURS)} names, got {len(heads)}")
    d_k = len(report_sliders) // len(heads)
    refuse_shape("queries", queries, (len(heads), d_k), "(heads, report sliders per head)")
    refuse_shape("weights", weights, (len(heads), len(words)), "(heads, words)")
    refuse_shape("reports", reports, (len(heads), d_k), "(heads, report sliders per head)")
    refuse_shape("W_O", W_O, (len(report_sliders), len(result_sliders)), "(report sliders, result sliders)")


def _headline(written: np.ndarray, gains: np.ndarray, heads: Sequence[str], result_sliders: Sequence[str]) -> str:
    if gains.min() == 1:
        return "All faders up: every slider of the result is the sum of what the heads write"
    if gains.max() == 0:
        return "All faders down: nobody is heard, and the result is 0 everywhere"
    whole, rest = written.sum(0), gains @ written
    most = int(np.abs(whole - rest).argmax())
    turned = [
        f"{head} {'off' if gain == 0 else 'at 50 %'}" for head, gain in zip(heads, gains, strict=True) if gain < 1
    ]
    change = f"{_signed(whole[most])} to {_signed(rest[most])}"
    return f'{" and ".join(turned).capitalize()}: "{result_sliders[most]}" changes most, from {change}'


def _column(index: int, count: int) -> float:
    """The left edge of column `index` of `count`."""
    return LEFT + index * (RIGHT - LEFT) / count


def _names(heads: Sequence[str]) -> list[str]:
    """The heads above their share of the columns, each on a bar of its colour."""
    parts = []
    for index, (head, colour) in enumerate(zip(heads, COLOURS, strict=True)):
        left, right = _column(index, len(heads)) + 3, _column(index + 1, len(heads)) - 3
        parts.append(rectangle(left, HEADS, right - left, 18, colour))
        parts.append(text((left + right) / 2, HEADS + 14, f"which {head}?", "middle", font_weight="bold"))
    return parts


def _cells(numbers: np.ndarray, top: float, name: str, labels: Sequence[str] = ()) -> list[str]:
    """A box for each of a vector's numbers, in the colour of the head that it belongs to."""
    boxes, texts, wide = [], [], (RIGHT - LEFT) / len(numbers)
    for index, number in enumerate(numbers):
        left = _column(index, len(numbers))
        colour = COLOURS[index * len(COLOURS) // len(numbers)]
        boxes.append(rectangle(left + 3, top, wide - 6, CELL, theme.PAPER, stroke=colour))
        texts.append(text(left + wide / 2, top + 15.5, f"{round(number, 2):g}"))
        if labels:
            texts.append(label(left + wide / 2, top - 5, labels[index], wide))
    return [text(0, top + 15.5, name), f'<g stroke-width="2">{"".join(boxes)}</g>', *_small(texts)]


def _small(texts: Sequence[str]) -> list[str]:
    """Small texts around their places: said once for all of them, as there are hundreds."""
    return [f'<g font-size="{SMALL}" text-anchor="middle">', *texts, "</g>"]


def _budgets(weights: np.ndarray, words: Sequence[str]) -> list[str]:
    """Each head's row as a bar of 100 %; words that have no room in it are named below."""
    parts, wide = [text(0, BUDGETS + 23, "its row, 100 %")], (RIGHT - LEFT) / len(weights) - 6
    for index, row in enumerate(weights):
        left = _column(index, len(weights)) + 3
        without_room = np.array([not fits(word, share * wide, SMALL) for word, share in zip(words, row, strict=True)])
        parts.append(budget_bar(row, words, left, BUDGETS, wide, BUDGET))
        parts.append(
            text(left + wide, BUDGETS + BUDGET + 14, _shares(row * without_room, words), "end", font_size=SMALL)
        )
    return parts


def _shares(row: np.ndarray, words: Sequence[str]) -> str:
    """The words with at least half a percent, the largest first."""
    return ", ".join(f"{words[word]} {percent(row[word])} %" for word in row.argsort()[::-1] if row[word] >= 0.005)


def _desk(written: np.ndarray, gains: np.ndarray, heads: Sequence[str], result_sliders: Sequence[str]) -> list[str]:
    """A band for each head with what it writes at its fader, and below them their sum and what is lost."""
    n_heads, n_sliders = written.shape
    wide = (RIGHT - LEFT) / n_sliders
    scale = (BAND - 18) / (np.abs(written).max() or 1)
    labels = []
    for index, name in enumerate(result_sliders):
        first, _, last = name.rpartition(" ")
        middle = _column(index, n_sliders) + wide / 2
        labels += [label(middle, RESULT + 10, first, wide)] * bool(first) + [label(middle, RESULT + 24, last, wide)]
    parts = [text(0, RESULT + 24, "× W_O"), *_small(labels)]
    for head, (name, gain) in enumerate(zip(heads, gains, strict=True)):
        top = WRITTEN + head * BAND
        parts.append(text(0, top + BAND - 13, f"{name} × {gain:g}"))
        parts += _bars(written[head] * gain, written[head], top, BAND, scale, COLOURS[head])
    total, whole = gains @ written, written.sum(0)
    top = WRITTEN + n_heads * BAND + 8
    parts += [line(0, top, RIGHT, top, theme.INK), text(0, top + SUM - 13, "sum", font_weight="bold")]
    if gains.min() < 1:
        parts.append(text(0, top + SUM + 4, "dashed: all faders up", font_size=SMALL, fill=theme.FAINT))
    return parts + _bars(total, whole, top, SUM, scale, ACCENT)


def _bars(numbers: np.ndarray, whole: np.ndarray, top: float, height: float, scale: float, colour: str) -> list[str]:
    """A bar for each number, up or down from its floor; a dashed frame where it would end with all faders up."""
    floor, wide = top + height - 16, (RIGHT - LEFT) / len(numbers)
    bars, frames, texts = [], [], []
    for index, (number, full) in enumerate(zip(numbers, whole, strict=True)):
        middle = _column(index, len(numbers)) + wide / 2
        if abs(full) >= 0.005:
            texts.append(text(middle, floor + (13 if full > 0 else -5), _signed(number)))
        for value, kind in [(number, bars), (full, frames)]:
            if abs(value) >= 0.005 and (kind is bars or number != full):
                kind.append(rectangle(middle - 15, floor - max(value, 0) * scale, 30, abs(value) * scale, "inherit"))
    return [
        f'<g fill="{colour}">{"".join(bars)}</g>',
        f'<g fill="none" stroke="{theme.FAINT}" stroke-dasharray="3 3">{"".join(frames)}</g>',
        line(LEFT, floor, RIGHT, floor),
        *_small(texts),
    ]


def _signed(number: float) -> str:
    return f"{number:.2f}".replace("-0.00", "0.00").replace("-", "−")
