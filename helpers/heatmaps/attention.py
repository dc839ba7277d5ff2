"""Attention as matrices, rows for queries and columns for keys: one head, many heads, a mask."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from helpers import theme
from helpers.heatmaps.drawing import (
    add_axes,
    cell_size,
    draw_cells,
    draw_colour_bar,
    draw_title,
    label_keys,
    label_queries,
    numbers_fit,
    write,
)
from helpers.heatmaps.picture import Picture, our_look, words_only
from helpers.heatmaps.reading import (
    Labels,
    read_labels,
    read_mask,
    read_names,
    read_query_and_key_labels,
    read_weights,
)
from helpers.heatmaps.wording import (
    DETAILED,
    grid_headline,
    grid_sentences,
    head_headline,
    head_sentences,
    mask_headline,
    mask_sentences,
    percent,
    spoken,
)

SCALES = (0.1, 0.25, 0.5, 1.0)  # where a colour bar may end: few values, so that pictures can be compared
GAP = 0.25  # inches between the heads


@our_look()
def attention_map(
    weights: Any,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """One head: a row for each query, a column for each key, bright where the weight is large.

    `weights` (T_q, T_k); `tokens` label the queries and, unless `key_tokens` are given, the keys. Without a
    `title` the most decided row becomes the title. The colour bar ends at 10, 25, 50 or 100 %.
    ValueError: wrong shape, no entries, NaN or infinite, outside 0 to 1, numbers of labels that do not match.
    Rows need not sum to 1 (a wrong softmax can be shown); the alternative text mentions those that do not.
    """
    matrix = read_weights(weights, (2,), "(T_q, T_k), one head, for example weights[0, 0]")
    queries, keys = read_query_and_key_labels(matrix.shape, tokens, key_tokens)
    alt_text = spoken(title, head_sentences(matrix, queries, keys))
    if words_only():
        return Picture(alt_text, 1, 1)
    cell = cell_size(matrix.shape)
    picture, axes = _matrix_picture(alt_text, title or head_headline(matrix, queries, keys), queries, keys, cell)
    image = _draw_weights(axes, matrix, _scale(matrix), cell)
    draw_colour_bar(picture, image, _has_blanks(matrix, cell))
    return picture


@our_look()
def head_grid(
    weights: Any,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """All heads side by side on one colour scale; more than 12 heads become small tiles without labels.

    `weights` (H, T_q, T_k); `titles` name the heads ("head 0", "head 1", ... by default).
    ValueError: as `attention_map`, with the head named; a number of `titles` that is not H.
    """
    wanted = "(H, T_q, T_k), for example weights[0]; for one head (T_q, T_k) use attention_map"
    heads = read_weights(weights, (3,), wanted)
    queries, keys = read_query_and_key_labels(heads.shape[1:], tokens, key_tokens)
    names = read_names(titles, len(heads), "titles", "heads", [f"head {h}" for h in range(len(heads))])
    alt_text = spoken(title, grid_sentences(heads, queries, keys, names))
    if words_only():
        return Picture(alt_text, 1, 1)
    draw = _draw_panels if len(heads) <= DETAILED else _draw_tiles
    return draw(alt_text, title or grid_headline(heads, queries, keys), heads, queries, keys, names)


@our_look()
def mask_map(
    keep: Any,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """A mask: which keys (columns) each query (row) may attend to.

    `keep` (T_q, T_k) boolean, True = may attend. A square mask needs only `query_tokens`.
    ValueError: not boolean, wrong shape, no entries, numbers of labels that do not match.
    """
    mask = read_mask(keep)
    if key_tokens is None and mask.shape[0] == mask.shape[1]:
        key_tokens = query_tokens
    queries = read_labels(query_tokens, mask.shape[0], "query", "queries")
    keys = read_labels(key_tokens, mask.shape[1], "key", "keys")
    alt_text, cell = spoken(title, mask_sentences(mask)), cell_size(mask.shape)
    if words_only():
        return Picture(alt_text, 1, 1)
    picture, axes = _matrix_picture(alt_text, title or mask_headline(mask), queries, keys, cell)
    _draw_mask(axes, mask, cell)
    return picture


def _matrix_picture(
    alt_text: str, title: str, queries: Labels, keys: Labels, cell: tuple[float, float]
) -> tuple[Picture, Axes]:
    """A picture with labelled axes that wait for a matrix."""
    width, height = cell[0] * len(keys.shown), cell[1] * len(queries.shown)
    picture = Picture(alt_text, width + 2.0, height + 1.5)
    axes = add_axes(picture, 1.0, 1.0, width, height)
    label_queries(axes, queries.shown, cell[1])
    label_keys(axes, keys.shown, cell[0])
    draw_title(axes, title, max(width + 1.0, 4.5))
    return picture, axes


def _draw_mask(axes: Axes, mask: np.ndarray, cell: tuple[float, float]) -> None:
    kinds = [("×", "may not attend", theme.BLOCKED), ("✓", "may attend", theme.MAY_ATTEND)]
    draw_cells(axes, mask, ListedColormap([colour for *_, colour in kinds]), 1, cell)
    signs = numbers_fit(mask.shape, cell)
    if signs:
        for (row, column), kept in np.ndenumerate(mask):
            sign, _, colour = kinds[int(kept)]
            write(axes, column, row, sign, on=colour)
    handles = [
        Patch(facecolor=colour, edgecolor=theme.LINE, label=f"{sign} {meaning}" if signs else meaning)
        for sign, meaning, colour in reversed(kinds)
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _draw_weights(axes: Axes, matrix: np.ndarray, top: float, cell: tuple[float, float]) -> AxesImage:
    if numbers_fit(matrix.shape, cell):
        for row, column in np.argwhere(matrix > 0):
            weight = matrix[row, column]
            write(axes, column, row, percent(weight), on=theme.weight_colour(weight / top))
    return draw_cells(axes, matrix, theme.WEIGHT_MAP, top, cell)


def _scale(weights: np.ndarray) -> float:
    return next((scale for scale in SCALES if weights.max() <= scale + 1e-6), 1.0)


def _has_blanks(weights: np.ndarray, cell: tuple[float, float]) -> bool:
    """Whether there are cells without a number among cells with one."""
    return numbers_fit(weights.shape[-2:], cell) and bool((weights == 0).any())


# Many heads: up to 12 have labelled axes each, more share one pair of axes


def _draw_panels(
    alt_text: str, title: str, heads: np.ndarray, queries: Labels, keys: Labels, names: list[str]
) -> Picture:
    n_heads, *shape = heads.shape
    columns = min(n_heads, 3 if n_heads in (5, 6, 9) else 4)
    rows = math.ceil(n_heads / columns)
    cell = cell_size(shape, (theme.MAX_WIDTH - 1.7) / columns - GAP, 3.6)
    width, height = cell[0] * shape[1], cell[1] * shape[0]
    right, down = max(width, 0.9) + GAP, height + 0.4  # from one panel to the next
    picture = Picture(alt_text, 2.0 + columns * right, 1.6 + rows * down)
    for head, matrix in enumerate(heads):
        row, column = divmod(head, columns)
        axes = add_axes(picture, 1.0 + column * right, 1.0 + (rows - 1 - row) * down, width, height)
        axes.set_title(names[head], size=theme.LABEL_SIZE, loc="left", pad=4)
        axes.set(xticks=[], yticks=[])
        image = _draw_weights(axes, matrix, _scale(heads), cell)
        if column == 0:
            label_queries(axes, queries.shown, cell[1])
        if head + columns >= n_heads:
            label_keys(axes, keys.shown, cell[0])
    draw_colour_bar(picture, image, _has_blanks(heads, cell))
    draw_title(picture.axes[0], title, max(columns * right + 0.7, 4.5), above=0.3)
    return picture


def _draw_tiles(
    alt_text: str, title: str, heads: np.ndarray, queries: Labels, keys: Labels, names: list[str]
) -> Picture:
    """Many heads share one pair of axes, measured in inches: hundreds of axes would take seconds."""
    columns = _tile_columns(len(heads))
    right = (theme.MAX_WIDTH - 1.0) / columns  # from one tile to the next
    width = min(right - 0.08, 1.4)
    height = width * min(1.2, max(0.4, len(queries.shown) / len(keys.shown)))
    down = height + 0.22
    board_size = columns * right, math.ceil(len(heads) / columns) * down
    picture = Picture(alt_text, board_size[0] + 1.0, board_size[1] + 0.5)
    board = add_axes(picture, 0.1, 0.1, *board_size)
    size = max(theme.SMALLEST_SIZE - 0.5, min(theme.NUMBER_SIZE, 72 * width / 6))
    for head, matrix in enumerate(heads):
        left, top = head % columns * right, head // columns * down + 0.22
        extent = (left, left + width, top + height, top)
        image = board.imshow(matrix, cmap=theme.WEIGHT_MAP, vmin=0, vmax=_scale(heads), extent=extent)
        name = names[head][: int(1.9 * 72 * width / size)]
        write(board, left, top - 0.03, name, size=size, ha="left", va="bottom", color=theme.INK)
    board.set(xlim=(0, board_size[0]), ylim=(board_size[1], 0), aspect="auto")
    board.set_axis_off()
    draw_colour_bar(picture, image)
    order = f"{names[0]} is at the top left, {names[columns - 1]} ends the first row, {names[-1]} is the last"
    note = f"{order}. In each tile queries go down ({len(queries.shown)}) and keys across ({len(keys.shown)})."
    write(board, 0, -0.05, note, ha="left", va="bottom")
    draw_title(board, title, theme.MAX_WIDTH - 0.5, above=0.3)
    return picture


def _tile_columns(n_heads: int) -> int:
    """Columns that fill all rows, if there are any near a square; so whole layers stay together."""
    fewest = max(6, math.ceil(math.sqrt(n_heads)))
    wide = range(fewest, min(2 * fewest, 20) + 1)
    return next((columns for columns in wide if n_heads % columns == 0), min(fewest, 20))
