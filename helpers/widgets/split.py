"""Split and combine: the way of every entry into its head and back, and what a reshape alone makes of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers import theme
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import WIDTH
from helpers.widgets.reading import refuse_sizes
from helpers.widgets.svg import SMALL, Drawing, label, line, rectangle, text

STEPS = ("as it comes", "1 cut", "2 swap", "3 swap back", "4 join")
SECONDS = 2.5  # per step while it plays
MOST = 8  # boxes side by side
HALF = WIDTH / 2 + 12  # px: where the right side begins
LABELS, BOX, GAP = 56, 39, 14  # px: the names of the rows, a box, the space between panels
TOP, HIGH = 88, 27  # px: where boxes begin, and how high they are


@dataclass(frozen=True)
class _Stage:
    """One of the arrays on the way: the code that makes it, the numbers of its entries, what its axes count."""

    code: str
    entries: np.ndarray  # (rows, columns) or (panels, rows, columns)
    axes: tuple[str, str] = ("", "token")  # of the panels and of the rows

    @property
    def panels(self) -> np.ndarray:
        return self.entries.reshape(-1, *self.entries.shape[-2:])

    def row(self, panel: int, row: int) -> str:
        """The name of a row."""
        where = f"{self.axes[0]} {panel}, " if self.axes[0] else ""
        return f"{where}{self.axes[1]} {row}"


def split_and_combine(names: Any, n_heads: int) -> Interactive:
    """The way of a small tensor into heads and back, step by step; beside it the same without swapping axes.

    `names` (T, d_model), what is written on its entries; each token has a colour. Entries that stand where another
    head or token belongs have a bold border and a dark corner.
    ValueError: another number of axes, heads that cannot share d_model, more than 8 boxes side by side.
    """
    names = _read(names)
    refuse_sizes(n_heads=n_heads)
    n_tokens, d_model = names.shape
    if d_model % n_heads:
        raise ValueError(f"{n_heads} heads cannot share d_model = {d_model}")
    if max(d_model, n_tokens * d_model // n_heads) > MOST:
        raise ValueError(f"names of shape {names.shape} do not fit with {n_heads} heads: pass fewer tokens or sliders")
    swapped, straight = _stages(n_tokens, d_model, n_heads)
    height = TOP + HIGH * max(n_tokens, n_heads) + 34

    def draw(step: int) -> Frame:
        mixed = _mixed_up(step, straight, swapped)
        parts = [
            *_side(0, "with the swap", swapped[step], names, np.zeros(swapped[step].panels.shape, bool)),
            *_side(HALF, "without the swap", straight[step], names, mixed),
            line(WIDTH / 2 - 6, 0, WIDTH / 2 - 6, height - 30),
            *_legend(height - 8),
        ]
        words = f"With the swap, {_told(swapped[step], names)}. Without, {_told(straight[step], names)}."
        return Frame(_finding(step, mixed, names.size), Drawing(WIDTH, height, parts), words)

    step = Choice("Step", STEPS, start=STEPS.index("2 swap"), seconds_per_step=SECONDS)
    return Interactive("Split and combine", [step], [Panel([step], draw)])


def _read(names: Any) -> np.ndarray:
    try:
        names = np.array(names.detach().cpu().tolist() if hasattr(names, "detach") else names)
    except ValueError as error:
        raise ValueError("names must be (T, d_model), all rows of one length") from error
    if names.ndim != 2 or not names.size:
        raise ValueError(f"names must be (T, d_model); got shape {names.shape}")
    return names.astype(str)


def _stages(n_tokens: int, d_model: int, n_heads: int) -> tuple[list[_Stage], list[_Stage]]:
    """The arrays with and without the swap, one for each step."""
    d_k = d_model // n_heads
    x = np.arange(n_tokens * d_model).reshape(n_tokens, d_model)
    cut = x.reshape(n_tokens, n_heads, d_k)
    straight = x.reshape(n_heads, n_tokens, d_k)
    by_token, by_head = ("token", "head"), ("head", "token")
    join = f".reshape{n_tokens, d_model}"
    swapped = [
        _Stage("x", x),
        _Stage(f"x.reshape{cut.shape}", cut, by_token),
        _Stage(".swapaxes(0, 1)", cut.swapaxes(0, 1), by_head),
        _Stage(".swapaxes(0, 1)", cut, by_token),
        _Stage(join, x),
    ]
    without = [
        _Stage("x", x),
        _Stage(f"x.reshape{straight.shape}", straight, by_head),
        _Stage("(nothing)", straight, by_head),
        _Stage("(nothing)", straight, by_head),
        _Stage(join, x),
    ]
    return swapped, without


def _mixed_up(step: int, straight: list[_Stage], swapped: list[_Stage]) -> np.ndarray:
    """Which entries of the side without the swap stand where another belongs; as heads, or at the end as tokens."""
    entries = straight[step].panels
    belonging = swapped[2 if straight[step].axes == ("head", "token") else 0].panels
    return entries != belonging


def _finding(step: int, mixed: np.ndarray, total: int) -> str:
    wrong = f"{mixed.sum()} of {total} entries"
    return (
        "Rows are tokens, columns are sliders, and each token has its colour",
        f"Cut: left, each token keeps its entries; right, {wrong} are mixed up",
        f"Swapped, each head has all tokens; without, {wrong} are mixed up",
        f"The way back; without the swap, attention saw {wrong} mixed up",
        "In the end both look alike: the round trip does not show the mistake",
    )[step]


def _told(stage: _Stage, names: np.ndarray) -> str:
    rows = [
        f"{stage.row(panel, row)}: {' '.join(names.ravel()[stage.panels[panel, row]])}"
        for panel, row in np.ndindex(stage.panels.shape[:2])
    ]
    return f"shape {stage.entries.shape}, " + "; ".join(rows)


# The drawing


def _side(left: float, title: str, stage: _Stage, names: np.ndarray, mixed: np.ndarray) -> list[str]:
    parts = [
        text(left, 15, title, font_weight="bold"),
        text(left, 38, stage.code, font_family="monospace"),
        text(left + 226, 38, f"shape {stage.entries.shape}", fill=theme.FAINT),
    ]
    n_panels, n_rows, n_columns = stage.panels.shape
    for row in range(n_rows):
        parts.append(text(left + LABELS - 6, _baseline(row), f"{stage.axes[1]} {row}", "end", font_size=SMALL))
    for panel in range(n_panels):
        corner = left + LABELS + panel * (n_columns * BOX + GAP)
        if stage.axes[0]:
            parts.append(text(corner, TOP - 8, f"{stage.axes[0]} {panel}", font_size=SMALL, font_weight="bold"))
        for row, column in np.ndindex(n_rows, n_columns):
            token, slider = divmod(int(stage.panels[panel, row, column]), names.shape[1])
            place = corner + column * BOX, TOP + row * HIGH
            parts.append(_entry(*place, names[token, slider], token, mixed[panel, row, column]))
    return parts


def _baseline(row: int) -> float:
    return TOP + (row + 0.5) * HIGH + 4


def _entry(x: float, y: float, name: str, token: int, mixed: bool) -> str:
    colour = theme.token_colour(token)
    if mixed:
        box = rectangle(x + 1.5, y + 1.5, BOX - 3, HIGH - 3, colour, stroke=theme.INK, stroke_width=2)
        box += _corner(x + BOX - 2, y + 2)
    else:
        box = rectangle(x, y, BOX, HIGH, colour, stroke=theme.PAPER)
    return box + label(x + BOX / 2, y + HIGH / 2 + 5, name, BOX - 3)


def _corner(x: float, y: float) -> str:
    """A dark corner at the top right of a box: a mark that needs no colour."""
    return f'<polygon class="mixed-up" points="{x - 9:g},{y:g} {x:g},{y:g} {x:g},{y + 9:g}" fill="{theme.INK}"/>'


def _legend(y: float) -> list[str]:
    box = rectangle(HALF + 1, y - 14, 20, 18, theme.PAPER, stroke=theme.INK, stroke_width=2)
    meaning = text(HALF + 30, y, "another head or token belongs here", font_size=SMALL)
    return [box, _corner(HALF + 20.5, y - 13.5), meaning]
