"""Tensors as labelled boxes, and the memory that a view of them reads."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers import theme
from helpers.heatmaps.drawing import add_axes, draw_title, write
from helpers.heatmaps.picture import Picture, our_look, words_only
from helpers.heatmaps.reading import read_highlight, read_tensor, read_view, visible
from helpers.heatmaps.wording import spoken, tensor_headline, tensor_sentences, view_headline, view_sentences

# inches
MEMORY_BOX = (0.28, 0.3)
MEMORY_LINE = 0.6  # from one line of memory to the next
MEMORY_COLUMNS = 30


@our_look()
def tensor_map(
    entries: Any,
    title: str | None = None,
    row_label: str = "token",
    column_label: str = "slider",
    highlight: Any = None,
    panel_label: str = "head",
) -> Picture:
    """A small tensor as labelled boxes, with three axes as panels side by side, one for each head.

    `entries` (rows, columns) or (panels, rows, columns) of strings or numbers. Strings such as "t0s3" (token
    0, slider 3) are coloured by token, numbers by size. `highlight`, boolean of the same shape, marks mixed-up
    entries by hatching and a bold border. ValueError: wrong shape or type, no entries, more than 600.
    """
    tensor = read_tensor(entries)
    marked = read_highlight(highlight, tensor.shape)
    texts = np.vectorize(_entry_text, otypes=[object])(tensor)
    panels = _panels(texts, _entry_colours(tensor), marked, (panel_label, row_label, column_label))
    headline = tensor_headline(marked)
    words = [headline, *tensor_sentences(panels.texts, panels.marked, panels.names, row_label)]
    if words_only():
        return Picture(spoken(title, words), 1, 1)
    picture, board = _board(spoken(title, words), *panels.size(), title or headline)
    panels.draw(board, 0.0)
    return picture


@our_look()
def stride_map(shape: Sequence[int], strides: Sequence[int], title: str | None = None) -> Picture:
    """How a view walks through memory: the memory as numbered cells, the view with the cell each index reads.

    `shape` and `strides` of a view with two or three axes, strides counted in entries as `tensor.stride()`
    does (in NumPy: `[s // x.itemsize for s in x.strides]`). A cell has the colour of the row that reads it;
    arcs follow the first steps.
    ValueError: other numbers of axes, sizes below 1, negative strides, more than 128 cells.
    """
    shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
    positions = read_view(shape, strides)
    rows = np.broadcast_to(np.arange(shape[-2])[:, None], shape)
    texts = np.vectorize(str, otypes=[object])(positions)
    colours = np.vectorize(theme.token_colour, otypes=[object])(rows)
    panels = _panels(texts, colours, np.zeros(shape, bool), ("panel", "row", "column"))
    headline = view_headline(positions, strides)
    words = [headline, *view_sentences(positions, strides)]
    if words_only():
        return Picture(spoken(title, words), 1, 1)
    (width, height), (memory_width, memory_height) = panels.size(), _memory_size(positions)
    size = max(width, memory_width), memory_height + height
    picture, board = _board(spoken(title, words), *size, title or headline)
    _draw_memory(board, positions, rows)
    panels.draw(board, memory_height)
    return picture


# Boxes, drawn on a board measured in inches with y downwards


def _board(alt_text: str, width: float, height: float, title: str) -> tuple[Picture, Axes]:
    picture = Picture(alt_text, width, height)
    board = add_axes(picture, 0, 0, width, height)
    board.set(xlim=(0, width), ylim=(height, 0))
    board.set_axis_off()
    draw_title(board, title, max(5.0, width))
    return picture, board


def _draw_box(
    board: Axes, left: float, top: float, size: tuple[float, float], text: str, colour: str, marked: bool = False
) -> None:
    look = {"edgecolor": theme.LINE if colour == theme.PAPER else theme.PAPER, "lw": 1.0, "zorder": 1}
    if marked:
        look = {"edgecolor": theme.INK, "lw": 2.2, "zorder": 2, "hatch": "////"}
    board.add_patch(Rectangle((left, top), *size, facecolor=colour, **look))
    plate = {"facecolor": colour, "edgecolor": "none", "pad": 0.8} if marked else None
    write(board, left + size[0] / 2, top + size[1] / 2, text, on=colour, zorder=3, bbox=plate)


def _entry_text(entry: Any) -> str:
    return f"{entry:.3g}" if isinstance(entry, float | np.floating) else visible(str(entry), 18)


def _entry_colours(tensor: np.ndarray) -> np.ndarray:
    """The token's colour for entries such as t0s3, the weight map for numbers, grey for anything else."""
    if tensor.dtype.kind in "iuf":
        finite = np.where(np.isfinite(tensor), tensor, 0).astype(float)
        span = (finite.max() - finite.min()) or 1.0
        return np.vectorize(theme.weight_colour, otypes=[object])((finite - finite.min()) / span)
    return np.vectorize(_token_entry_colour, otypes=[object])(tensor)


def _token_entry_colour(entry: Any) -> str:
    token = re.match(r"t(\d+)", str(entry))
    return theme.token_colour(int(token[1])) if token else theme.BLOCKED


# Panels of boxes


@dataclass(frozen=True)
class _Panels:
    """Boxes in rows and columns, one panel beside the other; the arrays are (panels, rows, columns)."""

    texts: np.ndarray
    colours: np.ndarray
    marked: np.ndarray
    names: list[str]  # of the panels; the only one has none
    row_label: str
    column_label: str

    def box(self) -> tuple[float, float]:
        longest = max(len(text) for text in self.texts.flat)
        return max(0.36, 0.1 + longest * 0.075), 0.3

    def above(self) -> float:
        """Room for the headings over the boxes."""
        return 0.65 if any(self.names) else 0.42

    def step(self) -> tuple[float, float]:
        """From one panel to the next, to the right and down."""
        _, rows, columns = self.texts.shape
        width, height = self.box()
        return columns * width + 0.75, rows * height + self.above() + 0.25

    def across(self) -> int:
        """How many panels fit side by side."""
        return max(1, min(len(self.names), int(theme.MAX_WIDTH / self.step()[0])))

    def size(self) -> tuple[float, float]:
        right, down = self.step()
        return self.across() * right, math.ceil(len(self.names) / self.across()) * down - 0.2

    def draw(self, board: Axes, top: float) -> None:
        width, height = self.box()
        right, down = self.step()
        for panel, name in enumerate(self.names):
            line, place = divmod(panel, self.across())
            corner = place * right + 0.5, top + line * down + self.above()
            self._draw_headings(board, *corner, name)
            for (row, column), text in np.ndenumerate(self.texts[panel]):
                colour, marked = self.colours[panel, row, column], self.marked[panel, row, column]
                left_top = corner[0] + column * width, corner[1] + row * height
                _draw_box(board, *left_top, (width, height), text, colour, marked)
        if self.marked.any():
            write(board, 0.5, top + self.size()[1] + 0.15, "hatched, with a bold border: mixed up", ha="left")

    def _draw_headings(self, board: Axes, left: float, top: float, name: str) -> None:
        _, rows, columns = self.texts.shape
        width, height = self.box()
        board.text(left, top - 0.42, name, size=theme.LABEL_SIZE, weight="bold", va="bottom")
        write(board, left + columns * width / 2, top - 0.28, self.column_label)
        write(board, left - 0.35, top + rows * height / 2, self.row_label, rotation=90)
        for column in range(columns):
            write(board, left + (column + 0.5) * width, top - 0.1, str(column))
        for row in range(rows):
            write(board, left - 0.08, top + (row + 0.5) * height, str(row), ha="right")


def _panels(texts: np.ndarray, colours: np.ndarray, marked: np.ndarray, axes: tuple[str, str, str]) -> _Panels:
    """Panels of arrays with two or three axes; `axes` says what a panel, a row and a column is."""
    names = [""] if texts.ndim == 2 else [f"{axes[0]} {panel}" for panel in range(len(texts))]
    texts, colours, marked = (array.reshape(-1, *array.shape[-2:]) for array in (texts, colours, marked))
    return _Panels(texts, colours, marked, names, *axes[1:])


# Memory


def _memory_size(positions: np.ndarray) -> tuple[float, float]:
    cells = int(positions.max()) + 1
    lines = math.ceil(cells / MEMORY_COLUMNS)
    return 0.5 + min(MEMORY_COLUMNS, cells) * MEMORY_BOX[0], 0.75 + lines * MEMORY_LINE


def _memory_place(position: int) -> tuple[float, float]:
    line, column = divmod(position, MEMORY_COLUMNS)
    return 0.5 + column * MEMORY_BOX[0], 0.5 + line * MEMORY_LINE


def _draw_memory(board: Axes, positions: np.ndarray, rows: np.ndarray) -> None:
    board.text(0.5, 0.12, "memory", size=theme.LABEL_SIZE, weight="bold", va="center")
    write(board, 1.2, 0.12, "arcs: the first steps of reading the view row by row", ha="left")
    readers = dict(zip(positions.flat[::-1], rows.flat[::-1], strict=True))  # of several readers the first
    for position in range(positions.max() + 1):
        colour = theme.token_colour(readers[position]) if position in readers else theme.PAPER
        _draw_box(board, *_memory_place(position), MEMORY_BOX, str(position), colour)
    first = positions.ravel()[: max(positions.shape[-1], 5) + 1]
    for here, there in zip(first, first[1:], strict=False):
        _draw_arc(board, int(here), int(there))


def _draw_arc(board: Axes, here: int, there: int) -> None:
    """An arc over the memory for a step forward, under it for a step back; none from line to line."""
    (start, line), (end, other_line) = _memory_place(here), _memory_place(there)
    if here == there or line != other_line:
        return
    edge = line if here < there else line + MEMORY_BOX[1]
    half = MEMORY_BOX[0] / 2
    look = {"arrowstyle": "-|>", "mutation_scale": 7, "lw": 0.9, "color": theme.INK, "shrinkA": 0, "shrinkB": 0}
    bend = f"arc3,rad={-min(0.9, 0.3 / abs(end - start))}"
    board.add_patch(FancyArrowPatch((start + half, edge), (end + half, edge), connectionstyle=bend, **look))
