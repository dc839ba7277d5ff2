"""Drawing that several pictures share: axes placed in inches, texts and titles, matrices and their labels."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from helpers import theme
from helpers.heatmaps.picture import Picture

CELL = 0.42  # inches, the largest cell
NUMBERED = 16  # up to so many columns the cells carry numbers


def add_axes(picture: Picture, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes placed in inches."""
    across, up = picture.get_size_inches()
    return picture.add_axes((left / across, bottom / up, width / across, height / up))


def write(axes: Axes, x: float, y: float, text: str, on: str | None = None, **options: Any) -> None:
    """Centred small text; on a coloured cell (`on`) in the colour that reads best there."""
    colour = theme.FAINT if on is None else theme.label_colour(on)
    axes.text(x, y, text, **{"color": colour, "size": theme.NUMBER_SIZE, "ha": "center", "va": "center"} | options)


def draw_title(axes: Axes, title: str, width: float, above: float = 0.12) -> None:
    """A title of as many lines as it needs, `above` inches over the axes and `width` inches wide."""
    height = axes.get_position().height * axes.figure.get_size_inches()[1]
    text = textwrap.fill(title, max(40, int(10.5 * width)))
    look = {"size": theme.TITLE_SIZE, "weight": "bold", "va": "bottom"}
    axes.text(0, 1 + above / height, text, transform=axes.transAxes, **look)


# Matrices: rows are queries, columns are keys


def cell_size(shape: Sequence[int], width: float = 7.0, height: float = 6.0) -> tuple[float, float]:
    """Width and height of a cell, in inches, square where the matrix is."""
    cell = min(CELL, width / shape[1]), min(CELL, height / shape[0])
    return (min(cell),) * 2 if shape[0] == shape[1] else cell


def numbers_fit(shape: Sequence[int], cell: tuple[float, float]) -> bool:
    return shape[1] <= NUMBERED and cell[0] >= 0.25 and cell[1] >= 0.15


def draw_cells(axes: Axes, matrix: np.ndarray, colours: Any, top: float, cell: tuple[float, float]) -> AxesImage:
    """The matrix in a colour map that ends at `top`."""
    axes.spines[:].set_visible(False)
    if min(cell) >= 0.15:
        axes.hlines(np.arange(1, matrix.shape[0]) - 0.5, -0.5, matrix.shape[1] - 0.5, color=theme.PAPER, lw=0.8)
        axes.vlines(np.arange(1, matrix.shape[1]) - 0.5, -0.5, matrix.shape[0] - 0.5, color=theme.PAPER, lw=0.8)
    return axes.imshow(matrix, cmap=colours, vmin=0, vmax=top, aspect="auto", interpolation="nearest")


def label_queries(axes: Axes, queries: list[str], cell: float) -> None:
    places, size = _label_places(len(queries), cell)
    axes.set_yticks(places, [queries[i] for i in places], size=size)
    axes.set_ylabel("queries: who attends" if len(queries) * cell > 1.4 else "queries", color=theme.FAINT)


def label_keys(axes: Axes, keys: list[str], cell: float) -> None:
    places, size = _label_places(len(keys), cell)
    shown = [keys[i] for i in places]
    angle = {"rotation": 90}
    if max(len(label) for label in shown) * 0.65 * size <= 72 * cell:
        angle = {}
    elif cell >= 0.3:
        angle = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(places, shown, size=size, **angle)
    axes.set_xlabel("keys: attended to" if len(keys) * cell > 1.2 else "keys", color=theme.FAINT)


def _label_places(count: int, cell: float) -> tuple[range, float]:
    """Where labels go, at every n-th row where the cells are too small for all, and their size in points."""
    size = min(theme.LABEL_SIZE, max(theme.SMALLEST_SIZE, 72 * cell * 0.8))
    return range(0, count, math.ceil(1.1 * size / (72 * cell))), size


def draw_colour_bar(picture: Picture, image: AxesImage, has_blanks: bool = False) -> None:
    """A colour bar to the right of everything, level with the top of the first axes."""
    across, up = picture.get_size_inches()
    first = picture.axes[0].get_position()
    right = max(axes.get_position().x1 for axes in picture.axes) * across
    height = max(1.3, min(3.0, first.height * up))
    ticks = np.linspace(0, image.get_clim()[1], 6)
    bar = picture.colorbar(image, cax=add_axes(picture, right + 0.2, first.y1 * up - height, 0.15, height), ticks=ticks)
    bar.ax.set_yticklabels([f"{round(100 * tick)} %" for tick in ticks], size=theme.NUMBER_SIZE)
    bar.outline.set_visible(False)
    bar.ax.set_ylabel("weight" + (" (blank: exactly 0)" if has_blanks else ""), color=theme.FAINT)
