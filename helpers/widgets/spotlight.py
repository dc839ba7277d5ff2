"""The spotlight: how one head shares out its light over a sentence, and why three questions need three heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers import theme
from helpers.heatmaps.reading import Labels, read_labels
from helpers.heatmaps.wording import head_headline, percent
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import ACCENT, WIDTH
from helpers.widgets.reading import read_numbers, read_place, read_tokens
from helpers.widgets.svg import LETTER, SMALL, Drawing, label, line, rectangle, text, weight_cell

RIGHT = WIDTH - 1  # half a line's width is kept free
LAMP, FLOOR = 30, 112  # px: where beams start and end
CELL, STEP = 26, 29  # px: the height of a row of shares, and from one row to the next
LEAST = 0.015  # the share from which on a beam is drawn
DIMMEST, BRIGHTEST = 0.08, 0.82  # the opacity of a beam with next to no light, and with all of it

LOUDNESS = (1, 2, 4, 8)
BEST_SCORE = 4.0  # of each question that the one head asks, so that all are equally strong


def spotlight(scores: Any, tokens: Sequence[str], token: int = -1) -> Interactive:
    """The row of any token over the sentence, as beams of light, with and without a causal mask.

    `scores` (T, T), scaled: row for query, column for key. `token` asks at first.
    ValueError: scores of another shape or not finite (the mask is added here), no tokens or more than 20, a `token`
    that does not exist.
    """
    read_tokens(tokens)
    table = _table(scores, len(tokens))
    if len(table) != len(tokens):
        raise ValueError(f"scores must be (T, T) with a row for each of {len(tokens)} tokens; got shape {table.shape}")
    labels = read_labels(tokens, len(tokens), "token", "tokens")
    mask = Choice("Mask", ["none", "causal"])
    query = Choice("Who asks", labels.shown, read_place(token, len(tokens), "token"))

    def draw(asking: int, causal: int) -> Frame:
        keep = np.arange(len(tokens)) <= asking if causal else np.ones(len(tokens), bool)
        return _row_frame(_softmax(np.where(keep, table[asking], -np.inf)), keep, asking, labels)

    return Interactive("The spotlight", [mask, query], [Panel([query, mask], draw)])


def one_spotlight_or_three(scores: Any, tokens: Sequence[str], questions: Sequence[str]) -> Interactive:
    """One head that asks one question, two or three at once, and below it a head for each question.

    `scores` (3, T), scaled: a row for each of the `questions`, which have names. The one head asks them at equal
    strength, so that each gives its best token a score of 4, and then up to 8 times as loud.
    ValueError: scores of another shape or not finite, no tokens or more than 20, a question without a positive score.
    """
    tokens = read_tokens(tokens)
    table = _table(scores, len(tokens))
    if len(table) != 3 or len(questions) != 3:
        raise ValueError(f"scores must be (3, T), a row for each of three questions; got shape {table.shape}")
    best = table.max(axis=1, keepdims=True)
    if not (best > 0).all():
        raise ValueError("each question needs a token with a positive score")
    equal = BEST_SCORE * table / best
    many = [questions[0], f"{questions[0]} and {questions[1]}", "all three at once"]
    asked = Choice("One head asks", many, start=2)
    loud = Choice("How loud", [f"{times} ×" for times in LOUDNESS], start=1, look="slider")
    three = _softmax(table)

    def draw(many_stop: int, loud_stop: int) -> Frame:
        one = _softmax(LOUDNESS[loud_stop] * equal[: many_stop + 1].sum(axis=0))
        return _against_frame(one, three, table[: many_stop + 1].argmax(axis=1), tokens, questions)

    return Interactive("One spotlight or three", [asked, loud], [Panel([asked, loud], draw)])


def _table(scores: Any, n_tokens: int) -> np.ndarray:
    table = read_numbers(scores, "scores")
    if table.ndim != 2 or table.shape[1] != n_tokens:
        raise ValueError(f"scores of shape {table.shape} do not have a column for each of {n_tokens} tokens")
    return table


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# One row of a sentence


def _row_frame(weights: np.ndarray, keep: np.ndarray, asking: int, labels: Labels) -> Frame:
    said = labels.spoken[asking]
    hidden = int((~keep).sum())
    shares = ", ".join(
        f"{token} {percent(weight)} %" for token, weight, seen in zip(labels.spoken, weights, keep, strict=True) if seen
    )
    words = f"Weights: {shares}." + (f" Hidden: the {hidden} after {said}." if hidden else "")
    drawing = Drawing(WIDTH, FLOOR + 72, _row_parts(weights, keep, asking, labels.shown))
    return Frame(head_headline(weights[None], Labels([said], [said]), labels), drawing, words)


def _row_parts(weights: np.ndarray, keep: np.ndarray, asking: int, tokens: Sequence[str]) -> list[str]:
    wide = RIGHT / len(tokens)
    size = _size(tokens, wide)
    parts = [_lamp(asking * wide + 1, 1, wide - 2), *_beams(weights, (asking + 0.5) * wide, 0, wide)]
    for key, token in enumerate(tokens):
        middle = (key + 0.5) * wide
        look = {"font_weight": "bold"} if key == asking else {"fill": theme.FAINT}
        parts.append(label(middle, LAMP - 13, token, wide, size, **look))
        if keep[key]:
            parts.append(weight_cell(weights[key], key * wide, FLOOR, wide, 44, token))
            parts.append(text(middle, FLOOR + 62, f"{percent(weights[key])} %", "middle"))
        else:
            parts.append(rectangle(key * wide, FLOOR, wide, 44, theme.BLOCKED, stroke=theme.PAPER))
            parts.append(label(middle, FLOOR + 26, token, wide, size, fill=theme.FAINT))
            parts.append(text(middle, FLOOR + 62, "hidden", "middle", font_size=SMALL, fill=theme.FAINT))
    return parts


def _lamp(x: float, y: float, width: float) -> str:
    return rectangle(x, y, width, LAMP - 6, theme.PAPER, stroke=ACCENT, stroke_width=2, rx=4)


def _beams(weights: np.ndarray, lamp: float, left: float, wide: float, top: float = 0) -> list[str]:
    """A beam from the lamp to each token that gets light, the more opaque the more it gets."""
    beams = []
    for key in np.flatnonzero(weights >= LEAST):
        start, end = top + LAMP - 4, top + FLOOR
        near, far = left + key * wide + 3, left + (key + 1) * wide - 3
        points = f"{lamp - 5:.1f},{start} {lamp + 5:.1f},{start} {far:.1f},{end} {near:.1f},{end}"
        opacity = DIMMEST + (BRIGHTEST - DIMMEST) * weights[key]
        beams.append(f'<polygon points="{points}" fill="{ACCENT}" fill-opacity="{opacity:.2f}"/>')
    return beams


def _size(tokens: Sequence[str], wide: float) -> float:
    """The size of letters with which the longest token has room."""
    return max(theme.LABEL_SIZE, min(SMALL, wide / (LETTER * max(map(len, tokens)))))


# One row against three


def _against_frame(
    one: np.ndarray, three: np.ndarray, clues: np.ndarray, tokens: Sequence[str], questions: Sequence[str]
) -> Frame:
    found = ", ".join(f'{percent(one[clue])} % on "{tokens[clue]}"' for clue in clues)
    each = ", ".join(
        f'{name} {percent(row.max())} % on "{tokens[row.argmax()]}"' for name, row in zip(questions, three, strict=True)
    )
    words = f"One head: {found}. Three heads, a row each: {each}."
    parts = [*_stage(one[None], 0, ["one head"], tokens), *_stage(three, 172, questions, tokens)]
    return Frame(f"One head has {found}", Drawing(WIDTH, 172 + FLOOR + 24 + 3 * STEP, parts), words)


def _stage(rows: np.ndarray, top: float, names: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """Lamps above the sentence, one for each row, and below it what each token gets of each."""
    left = 72
    wide = (RIGHT - left) / len(tokens)
    size, parts = _size(tokens, wide), []
    for head, row in enumerate(rows):
        lamp = left + (RIGHT - left) * (2 * head + 1) / (2 * len(rows))
        parts += [*_beams(row, lamp, left, wide, top), _lamp(lamp - 40, top + 1, 80)]
        parts.append(text(lamp, top + 17, names[head], "middle", font_size=SMALL, font_weight="bold"))
    parts.append(line(left, top + FLOOR, RIGHT, top + FLOOR, theme.LINE))
    for key, token in enumerate(tokens):
        parts.append(label(left + (key + 0.5) * wide, top + FLOOR + 16, token, wide, size))
    for head, row in enumerate(rows):
        at = top + FLOOR + 23 + head * STEP
        parts.append(text(left - 8, at + 17, names[head], "end", font_size=SMALL))
        parts += [
            weight_cell(share, left + key * wide, at, wide, CELL, percent(share)) for key, share in enumerate(row)
        ]
    return parts
