"""Winner takes almost all: how one score and the temperature share out a budget of 100 %."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers import theme
from helpers.heatmaps.wording import percent
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import WIDTH
from helpers.widgets.reading import read_numbers, read_tokens
from helpers.widgets.svg import SMALL, TEXT, Drawing, budget_bar, label, line, rectangle, text

MOVED_SCORES = tuple(range(9))
TEMPERATURES = (0.25, 0.5, 1, 2, 4, 8, 16)
LEFT, RIGHT = 130, WIDTH - 1  # the names of the rows end at LEFT, half a line's width is kept free at RIGHT
FLOOR, TALLEST = 176, 84  # px: where the columns stand, and how high 100 % is
BUDGET, BOXES = 192, 250  # px: the tops of the bar of 100 % and of the boxes that count choices
BOX = 22


def winner_takes_almost_all(scores: Any, tokens: Sequence[str], move: str) -> Interactive:
    """The weights of a row of `scores` (T,), while the score of the token `move` and the temperature change.

    The score moves over the whole numbers up to 8; its own value is among them. Below the weights: the budget of 100 %,
    and how many tokens the row looks at in effect (exp of its entropy).
    ValueError: `move` is not among the tokens, their number is not that of the scores or more than 20, a score that is
    not finite.
    """
    row = read_numbers(scores, "scores")
    if row.shape != (len(tokens),):
        raise ValueError(f"scores of shape {row.shape} do not belong to {len(tokens)} tokens")
    if move not in tokens:
        raise ValueError(f'"{move}" is not among the tokens {", ".join(tokens)}')
    place, tokens = list(tokens).index(move), read_tokens(tokens)
    stops = sorted({*MOVED_SCORES, float(row[place])})
    score = Choice(
        f'Score of "{tokens[place]}"', [_number(stop) for stop in stops], start=stops.index(row[place]), look="slider"
    )
    temperature = Choice(
        "Temperature", [f"{stop:g}" for stop in TEMPERATURES], start=TEMPERATURES.index(1), look="slider"
    )

    def draw(score_stop: int, temperature_stop: int) -> Frame:
        moved = row.copy()
        moved[place] = stops[score_stop]
        return _frame(moved, TEMPERATURES[temperature_stop], tokens)

    return Interactive("Winner takes almost all", [score, temperature], [Panel([score, temperature], draw)])


def _frame(scores: np.ndarray, temperature: float, tokens: Sequence[str]) -> Frame:
    weights = _softmax((scores - scores.max()) / temperature)
    choices = np.exp(-np.sum(weights * np.log(np.where(weights > 0, weights, 1.0))))
    shares = ", ".join(f"{token} {percent(weight)} %" for token, weight in zip(tokens, weights, strict=True))
    return Frame(
        f"{_winner(weights, tokens)}. In effect, the row looks at {choices:.1f} words",
        Drawing(WIDTH, BOXES + BOX + 2, _parts(scores, temperature, weights, choices, tokens)),
        f"Temperature {temperature:g}. Weights: {shares}. Effective choices: {choices:.1f} of {len(tokens)}.",
    )


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _winner(weights: np.ndarray, tokens: Sequence[str]) -> str:
    first = [f'"{token}"' for token, weight in zip(tokens, weights, strict=True) if np.isclose(weight, weights.max())]
    share = percent(weights.max())
    if len(first) == 1:
        return f"{first[0]} takes {share} % of the budget"
    return f"{', '.join(first[:-1])} and {first[-1]} take {share} % each"


def _parts(
    scores: np.ndarray, temperature: float, weights: np.ndarray, choices: float, tokens: Sequence[str]
) -> list[str]:
    wide = (RIGHT - LEFT) / len(tokens)
    column = min(48, wide - 4)
    parts = [text(0, 40, "score"), text(0, 62, f"score / {temperature:g}"), text(0, FLOOR - 6, "weight")]
    for index, token in enumerate(tokens):
        middle = LEFT + (index + 0.5) * wide
        high = weights[index] * TALLEST
        parts += [
            label(middle, 16, token, wide - 4, TEXT, font_weight="bold"),
            label(middle, 40, _number(scores[index]), wide - 4, TEXT),
            label(middle, 62, _number(scores[index] / temperature), wide - 4, TEXT),
            rectangle(middle - column / 2, FLOOR - high, column, high, theme.token_colour(index)),
            text(middle, FLOOR - high - 5, f"{percent(weights[index])} %", "middle", font_size=SMALL),
        ]
    parts += [line(LEFT, FLOOR, RIGHT, FLOOR, theme.INK), text(0, BUDGET + 25, "budget, 100 %")]
    parts += [budget_bar(weights, tokens, LEFT, BUDGET, RIGHT - LEFT), text(0, BOXES + 16, "words in effect")]
    return parts + _boxes(choices, len(tokens))


def _number(score: float) -> str:
    return f"{score:.3g}"


def _boxes(choices: float, most: int) -> list[str]:
    """As many full boxes as there are choices, the last one filled as far as the fraction goes."""
    parts = []
    for index in range(most):
        x = LEFT + index * (BOX + 4)
        filled = min(max(choices - index, 0), 1)
        parts.append(rectangle(x, BOXES, filled * BOX, BOX, theme.MAY_ATTEND))
        parts.append(rectangle(x, BOXES, BOX, BOX, "none", stroke=theme.FAINT))
    return [*parts, text(LEFT + most * (BOX + 4) + 8, BOXES + 16, f"{choices:.1f} of {most}", font_weight="bold")]
