"""Pictures of attention: who looks at whom, how budgets are spent, what masks allow, how views read memory.

Every function takes NumPy arrays, PyTorch tensors or nested lists, leaves them as they are and returns a
`Picture`. Heads, rows and columns are counted from 0, as in code. All texts are plain: a `$` is a dollar
sign, so write √ for a root. In an attention picture a blank cell means exactly 0, "<1" a little more.
"""

import base64
import functools
import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from PIL import Image

from helpers import theme

SCALES = (0.1, 0.25, 0.5, 1.0)  # where a colour bar may end: few values, so that pictures can be compared
ROUNDING = 0.01  # how far over 100 % a row may come: bfloat16 weights do
NUMBERED = 16  # up to so many columns the cells carry numbers
DETAILED = 12  # up to so many heads each head gets labelled axes and its own sentence
SENTENCES = 16  # so many rows are described in an alternative text

OTHER = "with no plain pattern"  # the heads that are left over

# inches
CELL = 0.42  # the largest cell
GAP = 0.25  # between panels
BAR, BAR_WIDTH = 0.5, 7.2
MEMORY_BOX = (0.28, 0.3)
MEMORY_LINE = 0.6  # from one line of memory to the next
MEMORY_COLUMNS = 30


class Picture(Figure):
    """A matplotlib figure that also says in words what it shows: `alt_text`.

    Made without pyplot: it shows once, as the last expression of a cell or through `display`, and is freed
    when nobody holds it. JupyterLab and nbconvert prefer HTML to an image, and keep an alternative text only
    there; the PNG beside it is for exports that cannot show HTML, such as PDF.
    """

    def __init__(self, alt_text: str, width: float, height: float) -> None:
        """A blank picture of `width` by `height` inches."""
        super().__init__(figsize=(width, height), dpi=theme.DPI)
        self.alt_text = alt_text

    def __repr__(self) -> str:
        return self.alt_text

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save like matplotlib, grown or trimmed so that no label is cut off."""
        with _look():
            super().savefig(fname, **{"bbox_inches": "tight", "pad_inches": 0.1} | options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        png = self._png()
        image = base64.b64encode(png).decode()
        return {"text/html": self._html(png), "image/png": image}, {"image/png": {"alt": self.alt_text}}

    def _repr_html_(self) -> str:
        return self._html(self._png())

    def _png(self) -> bytes:
        drawn, small = io.BytesIO(), io.BytesIO()
        self.savefig(drawn, format="png")
        # 256 colours look the same and take a third of the space: notebooks are saved, submitted and synchronised.
        image = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        image.save(small, format="png", optimize=True)
        return small.getvalue()

    def _html(self, png: bytes) -> str:
        pixels = int.from_bytes(png[16:20], "big")  # the width, in the PNG's header
        return (
            f'<img alt="{html.escape(" ".join(self.alt_text.split()))}" '
            f'width="{round(pixels * theme.SCREEN_DPI / theme.DPI)}" style="max-width:100%;height:auto" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        )


def _look():
    """Our settings, whatever style the learner has switched on."""
    return style.context(["default", theme.MATPLOTLIB])


def _drawn_in_our_look(draw: Callable[..., Picture]) -> Callable[..., Picture]:
    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Picture:
        with _look():
            return draw(*args, **kwargs)

    return drawn


# The pictures


@_drawn_in_our_look
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
    matrix = _weights(weights, 2, "(T_q, T_k), one head, for example weights[0, 0]")
    queries, keys = _query_and_key_labels(matrix.shape, tokens, key_tokens)
    words = [f"Attention weights of {_counted(matrix.shape)}", *_row_sentences(matrix, queries, keys)]
    picture, axes = _matrix_picture(_spoken(title, words), matrix.shape, title or _headline(matrix, queries, keys))
    cell = _cell_size(matrix.shape)
    image = _draw_weights(axes, matrix, _scale(matrix), cell)
    _label_queries(axes, queries.shown, cell[1])
    _label_keys(axes, keys.shown, cell[0])
    _draw_colour_bar(picture, image, _numbers_fit(matrix.shape, cell) and bool((matrix == 0).any()))
    return picture


@_drawn_in_our_look
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
    heads = _weights(weights, 3, "(H, T_q, T_k), for example weights[0]; for one head (T_q, T_k) use attention_map")
    queries, keys = _query_and_key_labels(heads.shape[1:], tokens, key_tokens)
    names = _names(titles, len(heads), "titles", "heads", [f"head {h}" for h in range(len(heads))])
    patterns = [_pattern(head) for head in heads]
    words = [f"Attention weights of {_plural(len(heads), 'head')} over {_counted(heads.shape[1:])}"]
    if len(heads) <= DETAILED:
        words += [f"{n}: {p or _headline(h, queries, keys)}" for n, p, h in zip(names, patterns, heads, strict=True)]
        draw = _draw_panels_of_heads
    else:
        words += _pattern_groups(names, patterns)
        draw = _draw_tiles_of_heads
    headline = _grid_headline(patterns) if len(heads) > 1 else _headline(heads[0], queries, keys)
    return draw(_spoken(title, words), heads, queries, keys, names, title or headline)


@_drawn_in_our_look
def budget_bars(
    weights: Any, tokens: Sequence[str], row_labels: Sequence[str] | None = None, title: str | None = None
) -> Picture:
    """Each row of weights as one bar of 100 %, cut into the shares of the tokens.

    `weights` (T,) or (R, T), `tokens` T labels. The eight largest tokens get a colour and their name; tokens
    that stay under 4 % in every row are put together. A row that sums to less than 1, be it 0, ends in a
    hatched piece, "not spent".
    ValueError: as `attention_map`; also a row that sums to more than 1 (beyond rounding, 0.01).
    """
    shares = np.atleast_2d(_weights(weights, (1, 2), "(T,) or (R, T), for example weights[0, 0]"))
    _refuse_overspent(shares)
    labels = _labels(tokens, shares.shape[1], "token", "weights in a row")
    no_names = [""] if len(shares) == 1 else [f"row {row}" for row in range(len(shares))]
    rows = _names(row_labels, len(shares), "row_labels", "rows", no_names)
    words = ["Budgets of 100 %", *_budget_sentences(shares, labels, rows)]
    picture = Picture(_spoken(title, words), theme.MAX_WIDTH, 1.0 + BAR * len(shares))
    axes = _axes(picture, 1.0, 0.8, BAR_WIDTH, BAR * len(shares))
    _draw_bars(axes, shares, labels.shown)
    axes.set_yticks(range(len(rows)), rows)
    _draw_title(axes, title or _budget_headline(shares, labels, rows), BAR_WIDTH)
    return picture


@_drawn_in_our_look
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
    mask = _mask(keep)
    if key_tokens is None and mask.shape[0] == mask.shape[1]:
        key_tokens = query_tokens
    queries = _labels(query_tokens, mask.shape[0], "query", "queries")
    keys = _labels(key_tokens, mask.shape[1], "key", "keys")
    words = [f"Mask for {_counted(mask.shape)}", _mask_pattern(mask), *_mask_counts(mask)]
    picture, axes = _matrix_picture(_spoken(title, words), mask.shape, title or _sentence(_mask_pattern(mask)))
    cell = _cell_size(mask.shape)
    _draw_mask(axes, mask, cell)
    _label_queries(axes, queries.shown, cell[1])
    _label_keys(axes, keys.shown, cell[0])
    return picture


@_drawn_in_our_look
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
    tensor = _small_tensor(entries)
    marked = _highlight(highlight, tensor.shape)
    panels = _Panels(
        texts=np.vectorize(_entry_text, otypes=[object])(tensor),
        colours=_entry_colours(tensor),
        marked=marked,
        names=(panel_label, row_label, column_label)[3 - tensor.ndim :],
    )
    headline = f"Shape {_shape(tensor.shape)}"
    if marked.any():
        headline += f": {marked.sum()} of {_plural(tensor.size, 'entry', 'entries')} mixed up"
    alt_text = _spoken(title, [headline, *_tensor_sentences(panels)])
    picture, board = _board(alt_text, *panels.size(), title or headline)
    panels.draw(board, 0.0)
    return picture


@_drawn_in_our_look
def stride_map(shape: Sequence[int], strides: Sequence[int], title: str | None = None) -> Picture:
    """How a view walks through memory: the memory as numbered cells, the view with the cell each index reads.

    `shape` and `strides` of a view with two or three axes, strides counted in entries as `tensor.stride()`
    does (in NumPy: `[s // x.itemsize for s in x.strides]`). A cell has the colour of the row that reads it;
    arcs follow the first steps.
    ValueError: other numbers of axes, sizes below 1, negative strides, more than 128 cells.
    """
    positions = _memory_positions(shape, strides)
    rows = np.broadcast_to(np.arange(positions.shape[-2])[:, None], positions.shape)
    panels = _Panels(
        texts=np.vectorize(str, otypes=[object])(positions),
        colours=np.vectorize(theme.token_colour, otypes=[object])(rows),
        marked=np.zeros(positions.shape, bool),
        names=("panel", "row", "column")[3 - positions.ndim :],
    )
    walk = f"Shape {_shape(shape)}, strides {_shape(strides)}: {_walk(positions)}"
    words = [walk, *_step_sentences(strides), f"Row by row it reads memory {_listed(positions.ravel(), 24)}"]
    (width, height), (memory_width, memory_height) = panels.size(), _memory_size(positions)
    size = max(width, memory_width), memory_height + height
    picture, board = _board(_spoken(title, words), *size, title or walk)
    _draw_memory(board, positions, rows)
    panels.draw(board, memory_height)
    return picture


# What goes in


def _array(values: Any, what: str) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()  # NumPy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} must be a regular array, all rows of one length") from error


def _weights(values: Any, rank: int | tuple[int, ...], wanted: str) -> np.ndarray:
    weights = _array(values, "weights")
    if weights.dtype == bool:
        raise ValueError("weights are True and False, which is a mask: draw it with mask_map")
    if weights.dtype.kind not in "iuf":
        raise ValueError(f"weights must be real numbers, got {weights.dtype}")
    if weights.ndim not in np.atleast_1d(rank):
        raise ValueError(f"weights must be {wanted}; got shape {weights.shape}")
    if weights.size == 0:
        raise ValueError(f"weights of shape {weights.shape} have no entries, so there is nothing to draw")
    weights = weights.astype(float)
    _refuse(weights, np.isnan(weights), "NaN: did a softmax get a row of only -inf?")
    _refuse(weights, weights < 0, "which is negative: are these scores? Softmax them first")
    _refuse(weights, weights > 1 + ROUNDING, "which is more than 1: are these scores? Softmax them first")
    return weights


def _refuse(weights: np.ndarray, bad: np.ndarray, why: str) -> None:
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        head = f"head {index[0]}, " if weights.ndim == 3 else ""
        row = f"row {index[-2]}, " if weights.ndim > 1 else ""
        value = "" if np.isnan(weights[index]) else f"{weights[index]:.4g}, "
        raise ValueError(f"weights at {head}{row}column {index[-1]} are {value}{why}")


def _refuse_overspent(shares: np.ndarray) -> None:
    totals = shares.sum(axis=1)
    if totals.max() > 1 + ROUNDING:
        row = int(totals.argmax())
        raise ValueError(
            f"row {row} sums to {totals[row]:.4g}, more than the budget of 1: was the softmax taken along another axis?"
        )


def _mask(values: Any) -> np.ndarray:
    mask = _array(values, "keep")
    if mask.dtype != bool:
        raise ValueError(f"keep must be boolean, True = may attend, got {mask.dtype}: write for example keep == 1")
    if mask.ndim != 2:
        raise ValueError(f"keep must be (T_q, T_k), for example keep[0]; got shape {mask.shape}")
    if mask.size == 0:
        raise ValueError(f"keep of shape {mask.shape} has no entries, so there is nothing to draw")
    return mask


def _small_tensor(values: Any) -> np.ndarray:
    tensor = _array(values, "entries")
    if tensor.ndim not in (2, 3):
        raise ValueError(f"entries must be (rows, columns) or (panels, rows, columns), got shape {tensor.shape}")
    if not 0 < tensor.size <= 600:
        raise ValueError(f"entries must be 1 to 600 to be read, got {tensor.size} in shape {tensor.shape}")
    return tensor


def _highlight(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    marked = np.zeros(shape, bool) if values is None else _array(values, "highlight")
    if marked.dtype != bool or marked.shape != shape:
        raise ValueError(f"highlight must be boolean of shape {shape}, got {marked.dtype} of shape {marked.shape}")
    return marked


def _memory_positions(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The memory cell of each index of the view."""
    if len(shape) not in (2, 3) or len(strides) != len(shape):
        raise ValueError(f"shape and strides must have 2 or 3 numbers each, got {_shape(shape)} and {_shape(strides)}")
    if min(shape) < 1 or min(strides) < 0:
        raise ValueError(f"sizes must be at least 1 and strides at least 0, got {_shape(shape)} and {_shape(strides)}")
    steps = [np.arange(size) * stride for size, stride in zip(shape, strides, strict=True)]
    last = sum(int(step[-1]) for step in steps)
    if max(last + 1, math.prod(shape)) > 128:
        raise ValueError(
            f"shape {_shape(shape)} with strides {_shape(strides)} needs {last + 1} memory cells for "
            f"{math.prod(shape)} entries, a picture shows at most 128; NumPy's strides count bytes: "
            "divide them by itemsize"
        )
    return functools.reduce(np.add.outer, steps)


class _Labels(NamedTuple):
    shown: list[str]  # in the picture
    spoken: list[str]  # in the alternative text: quoted, and with the position where a token occurs twice


def _query_and_key_labels(
    shape: Sequence[int], tokens: Sequence[str] | None, key_tokens: Sequence[str] | None
) -> tuple[_Labels, _Labels]:
    n_queries, n_keys = shape
    if key_tokens is None and tokens is not None and not isinstance(tokens, str):
        if len(tokens) == n_queries != n_keys:
            raise ValueError(f"{n_queries} tokens cannot label {n_keys} keys: pass key_tokens as well")
        key_tokens = tokens
    queries = _labels(tokens, n_queries, "query" if n_queries != n_keys else "token", "queries")
    keys = _labels(key_tokens, n_keys, "key" if n_queries != n_keys else "token", "keys")
    return queries, keys


def _labels(tokens: Sequence[str] | None, length: int, kind: str, counted: str) -> _Labels:
    shown = _names(tokens, length, "tokens", counted, [str(i) for i in range(length)], longest=18)
    if tokens is None:
        return _Labels(shown, [f"{kind} {i}" for i in range(length)])
    repeated = {token for token in shown if shown.count(token) > 1}
    spoken = [f"'{token}'" + (f" at {i}" if token in repeated else "") for i, token in enumerate(shown)]
    return _Labels(shown, spoken)


def _names(
    names: Sequence[str] | None, length: int, what: str, counted: str, default: list[str], longest: int = 40
) -> list[str]:
    if names is None:
        return default
    if isinstance(names, str):
        raise ValueError(
            f"{what} must be a list of strings, got the string {names!r}: write for example sentence.split()"
        )
    names = [_visible(str(name), longest) for name in names]
    if len(names) != length:
        raise ValueError(f"{len(names)} {what} do not match {length} {counted}: pass one for each")
    return names


def _visible(text: str, longest: int) -> str:
    """A label that can be seen and fits: blanks and line breaks spelled out, long ones shortened."""
    if not text.strip() or not text.isprintable():
        text = repr(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


# What it says


def _spoken(title: str | None, words: Sequence[str]) -> str:
    return " ".join(_sentence(text) + "." for text in ([title] if title else []) + [w for w in words if w])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def _plural(count: int, noun: str, nouns: str | None = None) -> str:
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def _counted(shape: tuple[int, int]) -> str:
    if shape[0] == shape[1]:
        return _plural(shape[0], "token")
    return f"{_plural(shape[0], 'query', 'queries')} and {_plural(shape[1], 'key')}"


def _shape(sizes: Sequence[int]) -> str:
    return str(tuple(int(size) for size in sizes))


def _listed(items: Sequence[Any], limit: int) -> str:
    shown = ", ".join(str(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def _percent(weight: float) -> str:
    """A whole number of percent that keeps 0 and 100 for exactly that."""
    rounded = round(100 * weight)
    if weight > 0 and rounded == 0:
        return "<1"
    return ">99" if weight < 1 - 1e-9 and rounded == 100 else str(rounded)


def _row_sentence(row: np.ndarray, query: str, keys: _Labels) -> str:
    used = np.flatnonzero(row)
    if not used.size:
        return f"{query} attends to nothing"
    first, second = (*np.argsort(-row, kind="stable")[:2], 0)[:2]
    if used.size == 1:
        return f"{query} attends only to {keys.spoken[first]} ({_percent(row[first])} %)"
    if _is_even(row):
        return f"{query} spreads evenly over {used.size} tokens (at most {_percent(row[first])} %)"
    how = "mostly" if row[first] >= 0.5 else "most"
    then = f", then {keys.spoken[second]} ({_percent(row[second])} %)" if row[second] >= 0.05 else ""
    return f"{query} attends {how} to {keys.spoken[first]} ({_percent(row[first])} %){then}"


def _is_even(row: np.ndarray) -> bool:
    return bool(row.max() <= 1.25 * row[row > 0].mean())


def _most_decided(matrix: np.ndarray) -> np.ndarray:
    """Rows by their largest weight; those with a single key to look at had no choice and come last."""
    had_choice = (matrix > 0).sum(axis=1) > 1
    return np.argsort(-(matrix.max(axis=1) + 10 * had_choice), kind="stable")


def _headline(matrix: np.ndarray, queries: _Labels, keys: _Labels) -> str:
    row = _most_decided(matrix)[0]
    return _sentence(_row_sentence(matrix[row], queries.spoken[row], keys))


def _row_sentences(matrix: np.ndarray, queries: _Labels, keys: _Labels) -> Iterator[str]:
    rows = np.arange(len(matrix))
    if len(matrix) > SENTENCES:
        rows = _most_decided(matrix)[: SENTENCES // 2]
        yield f"The {len(rows)} most decided of the queries follow"
    for row in rows:
        yield _row_sentence(matrix[row], queries.spoken[row], keys)
    totals = matrix.sum(axis=1)
    off = np.flatnonzero((np.abs(totals - 1) > ROUNDING) & (totals > 0))
    if off.size:
        sums = [f"{queries.spoken[r]} to {_percent(totals[r])} %" for r in off]
        yield f"Not every row sums to 100 %: {_listed(sums, 3)}"


def _pattern(head: np.ndarray) -> str | None:
    """What the head does on average, in words, or None when it is no classic pattern."""
    with_choice = [row for row in head if (row > 0).sum() > 1]
    if with_choice and all(_is_even(row) for row in with_choice):
        return "spread evenly"
    if head.shape[0] != head.shape[1] or len(head) < 3:
        return None
    means = {
        "the previous token": head.diagonal(-1).mean(),
        "the first token": head[1:, 0].mean(),
        "the token itself": head.diagonal().mean(),
        "the next token": head.diagonal(1).mean(),
    }
    name = max(means, key=means.get)
    return f"mostly on {name}" if means[name] >= 0.5 else None


def _pattern_counts(patterns: Sequence[str | None]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for head, pattern in enumerate(patterns):
        groups.setdefault(pattern or OTHER, []).append(head)
    return dict(sorted(groups.items(), key=lambda group: (group[0] == OTHER, -len(group[1]))))


def _pattern_groups(names: list[str], patterns: Sequence[str | None]) -> Iterator[str]:
    for pattern, heads in _pattern_counts(patterns).items():
        listed = "" if pattern == OTHER else f": {_listed([names[h] for h in heads], 8)}"
        yield f"{_plural(len(heads), 'head')} {pattern}{listed}"


def _grid_headline(patterns: Sequence[str | None]) -> str:
    if not any(patterns):
        return f"Attention weights of {_plural(len(patterns), 'head')}"
    counts = [f"{len(heads)} {pattern}" for pattern, heads in _pattern_counts(patterns).items()]
    return f"{_plural(len(patterns), 'head')}: " + ", ".join(counts)


def _budget_sentences(shares: np.ndarray, tokens: _Labels, rows: list[str]) -> Iterator[str]:
    for row, name in list(zip(shares, rows, strict=True))[:SENTENCES]:
        top = [t for t in np.argsort(-row, kind="stable")[:4] if row[t] > 0]
        parts = [f"{tokens.spoken[t]} {_percent(row[t])} %" for t in top]
        rest = row.sum() - row[top].sum()
        if rest > 0.005:
            parts.append(f"{(row > 0).sum() - len(top)} others {_percent(rest)} %")
        if 1 - row.sum() > ROUNDING:
            parts.append(f"not spent {_percent(1 - row.sum())} %")
        yield (f"{name}: " if name else "") + ", ".join(parts)
    if len(shares) > SENTENCES:
        yield f"{len(shares) - SENTENCES} more rows"


def _budget_headline(shares: np.ndarray, tokens: _Labels, rows: list[str]) -> str:
    if len(shares) == 1:
        return f"{tokens.spoken[shares[0].argmax()]} gets {_percent(shares.max())} % of the budget"
    largest = shares.max(axis=1)
    high = int(largest.argmax())
    low = int(np.where(largest > 0, largest, 2).argmin())  # a row that spends nothing has no largest share
    ends = [f"{_percent(largest[row])} % ({rows[row]})" for row in (low, high)]
    return f"Largest share: {' to '.join(ends)}"


def _mask_pattern(mask: np.ndarray) -> str:
    n_queries, n_keys = mask.shape
    if mask.all():
        return "every query may attend to every key"
    if not mask.any():
        return "no query may attend to anything"
    if np.array_equal(mask, np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)):
        return "causal: each query sees itself and the past" + (", aligned to the end" if n_queries != n_keys else "")
    if np.array_equal(mask, np.tri(n_queries, n_keys, dtype=bool)):
        return "a lower triangle aligned to the top left: later keys are never seen"
    if np.array_equal(mask, np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)[::-1, ::-1]):
        return "an upper triangle: each query sees itself and the future"
    if (mask == mask[0]).all():
        return f"every query may attend to the same {mask[0].sum()} of {n_keys} keys"
    return f"{_plural(int(mask.sum()), 'pair')} of {mask.size} allowed"


def _mask_counts(mask: np.ndarray) -> Iterator[str]:
    counts = mask.sum(axis=1)
    if len(counts) == 1 or counts.min() == counts.max():
        yield f"Each query may see {counts[0]} of {_plural(mask.shape[1], 'key')}"
    else:
        seen = _listed(counts, len(counts)) if len(counts) <= SENTENCES else f"{counts.min()} to {counts.max()}"
        yield f"Keys each query may see, from the first query to the last: {seen}"
    if mask.any() and not counts.all():
        yield f"{_plural(int((counts == 0).sum()), 'query', 'queries')} may see nothing"


def _tensor_sentences(panels: "_Panels") -> Iterator[str]:
    spoken = 0
    for name, texts, _, marked in panels.each():
        for row, entries in enumerate(texts):
            spoken += 1
            if spoken <= 2 * SENTENCES:
                mixed = f"; mixed up: {', '.join(entries[marked[row]])}" if marked[row].any() else ""
                yield f"{name + ', ' if name else ''}{panels.names[-2]} {row}: {' '.join(entries)}{mixed}"


def _walk(positions: np.ndarray) -> str:
    order = positions.ravel()
    if np.array_equal(order, np.arange(order.size)):
        return "straight through memory (contiguous)"
    if len(np.unique(order)) < order.size:
        return "several indices share a memory cell"
    return "jumps through memory (not contiguous)"


def _step_sentences(strides: Sequence[int]) -> Iterator[str]:
    names = ("the next panel", "the next row", "the next column")[3 - len(strides) :]
    steps = [f"{_plural(int(s), 'cell')} on to {name}" for s, name in zip(strides, names, strict=True)]
    yield "Steps in memory: " + ", ".join(steps)


# How it is drawn


def _axes(picture: Picture, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes placed in inches."""
    across, up = picture.get_size_inches()
    return picture.add_axes((left / across, bottom / up, width / across, height / up))


def _write(axes: Axes, x: float, y: float, text: str, on: str | None = None, **options: Any) -> None:
    """Centred small text; on a coloured cell (`on`) in the colour that reads best there."""
    colour = theme.FAINT if on is None else theme.label_colour(on)
    axes.text(x, y, text, **{"color": colour, "size": theme.NUMBER_SIZE, "ha": "center", "va": "center"} | options)


def _draw_title(axes: Axes, title: str, width: float, above: float = 0.12) -> None:
    """A title of as many lines as it needs, `above` inches over the axes and `width` inches wide."""
    height = axes.get_position().height * axes.figure.get_size_inches()[1]
    text = textwrap.fill(title, max(40, int(10.5 * width)))
    axes.text(
        0,
        1 + above / height,
        text,
        transform=axes.transAxes,
        va="bottom",
        size=theme.TITLE_SIZE,
        weight="bold",
    )


# Matrices: rows are queries, columns are keys


def _cell_size(shape: Sequence[int], width: float = 7.0, height: float = 6.0) -> tuple[float, float]:
    """Width and height of a cell, in inches, square where the matrix is."""
    cell = min(CELL, width / shape[1]), min(CELL, height / shape[0])
    return (min(cell),) * 2 if shape[0] == shape[1] else cell


def _numbers_fit(shape: Sequence[int], cell: tuple[float, float]) -> bool:
    return shape[1] <= NUMBERED and cell[0] >= 0.25 and cell[1] >= 0.15


def _matrix_picture(alt_text: str, shape: tuple[int, int], title: str) -> tuple[Picture, Axes]:
    cell = _cell_size(shape)
    width, height = cell[0] * shape[1], cell[1] * shape[0]
    picture = Picture(alt_text, width + 2.0, height + 1.5)
    axes = _axes(picture, 1.0, 1.0, width, height)
    _draw_title(axes, title, max(width + 1.0, 4.5))
    return picture, axes


def _scale(weights: np.ndarray) -> float:
    return next((scale for scale in SCALES if weights.max() <= scale + 1e-6), 1.0)


def _draw_cells(axes: Axes, matrix: np.ndarray, colours: Any, top: float, cell: tuple[float, float]) -> AxesImage:
    axes.spines[:].set_visible(False)
    if min(cell) >= 0.15:
        axes.hlines(np.arange(1, matrix.shape[0]) - 0.5, -0.5, matrix.shape[1] - 0.5, color=theme.PAPER, lw=0.8)
        axes.vlines(np.arange(1, matrix.shape[1]) - 0.5, -0.5, matrix.shape[0] - 0.5, color=theme.PAPER, lw=0.8)
    return axes.imshow(matrix, cmap=colours, vmin=0, vmax=top, aspect="auto", interpolation="nearest")


def _draw_weights(axes: Axes, matrix: np.ndarray, top: float, cell: tuple[float, float]) -> AxesImage:
    if _numbers_fit(matrix.shape, cell):
        for row, column in np.argwhere(matrix > 0):
            weight = matrix[row, column]
            _write(axes, column, row, _percent(weight), on=theme.weight_colour(weight / top))
    return _draw_cells(axes, matrix, theme.WEIGHT_MAP, top, cell)


def _draw_mask(axes: Axes, mask: np.ndarray, cell: tuple[float, float]) -> None:
    kinds = [("×", "may not attend", theme.BLOCKED), ("✓", "may attend", theme.MAY_ATTEND)]
    signs = _numbers_fit(mask.shape, cell)
    _draw_cells(axes, mask, ListedColormap([colour for *_, colour in kinds]), 1, cell)
    for (row, column), kept in np.ndenumerate(mask):
        if signs:
            sign, _, colour = kinds[int(kept)]
            _write(axes, column, row, sign, on=colour)
    handles = [
        Patch(facecolor=colour, edgecolor=theme.LINE, label=f"{sign} {meaning}" if signs else meaning)
        for sign, meaning, colour in reversed(kinds)
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _label_queries(axes: Axes, queries: list[str], cell: float) -> None:
    places, size = _label_places(len(queries), cell)
    axes.set_yticks(places, [queries[i] for i in places], size=size)
    axes.set_ylabel("queries: who attends" if len(queries) * cell > 1.4 else "queries", color=theme.FAINT)


def _label_keys(axes: Axes, keys: list[str], cell: float) -> None:
    places, size = _label_places(len(keys), cell)
    labels = [keys[i] for i in places]
    angle = {"rotation": 90}
    if max(len(label) for label in labels) * 0.65 * size <= 72 * cell:
        angle = {}
    elif cell >= 0.3:
        angle = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(places, labels, size=size, **angle)
    axes.set_xlabel("keys: attended to" if len(keys) * cell > 1.2 else "keys", color=theme.FAINT)


def _label_places(count: int, cell: float) -> tuple[range, float]:
    """Where labels go, at every n-th row where the cells are too small for all, and their size in points."""
    size = min(theme.LABEL_SIZE, max(theme.SMALLEST_SIZE, 72 * cell * 0.8))
    return range(0, count, math.ceil(1.1 * size / (72 * cell))), size


def _draw_colour_bar(picture: Picture, image: AxesImage, has_blanks: bool = False) -> None:
    """A colour bar to the right of everything, level with the top of the first axes."""
    across, up = picture.get_size_inches()
    first = picture.axes[0].get_position()
    right = max(axes.get_position().x1 for axes in picture.axes) * across
    height = max(1.3, min(3.0, first.height * up))
    ticks = np.linspace(0, image.get_clim()[1], 6)
    bar = picture.colorbar(image, cax=_axes(picture, right + 0.2, first.y1 * up - height, 0.15, height), ticks=ticks)
    bar.ax.set_yticklabels([f"{round(100 * tick)} %" for tick in ticks], size=theme.NUMBER_SIZE)
    bar.outline.set_visible(False)
    bar.ax.set_ylabel("weight" + (" (blank: exactly 0)" if has_blanks else ""), color=theme.FAINT)


def _draw_panels_of_heads(
    alt_text: str, heads: np.ndarray, queries: _Labels, keys: _Labels, names: list[str], title: str
) -> Picture:
    n_heads, *shape = heads.shape
    columns = min(n_heads, 3 if n_heads in (5, 6, 9) else 4)
    rows = math.ceil(n_heads / columns)
    cell = _cell_size(shape, (theme.MAX_WIDTH - 1.7) / columns - GAP, 3.6)
    width, height = cell[0] * shape[1], cell[1] * shape[0]
    right, down = max(width, 0.9) + GAP, height + 0.4  # from one panel to the next
    picture = Picture(alt_text, 2.0 + columns * right, 1.6 + rows * down)
    for head, matrix in enumerate(heads):
        row, column = divmod(head, columns)
        axes = _axes(picture, 1.0 + column * right, 1.0 + (rows - 1 - row) * down, width, height)
        axes.set_title(names[head], size=theme.LABEL_SIZE, loc="left", pad=4)
        axes.set(xticks=[], yticks=[])
        image = _draw_weights(axes, matrix, _scale(heads), cell)
        if column == 0:
            _label_queries(axes, queries.shown, cell[1])
        if head + columns >= n_heads:
            _label_keys(axes, keys.shown, cell[0])
    _draw_colour_bar(picture, image, _numbers_fit(shape, cell) and bool((heads == 0).any()))
    _draw_title(picture.axes[0], title, max(columns * right + 0.7, 4.5), above=0.3)
    return picture


def _draw_tiles_of_heads(
    alt_text: str, heads: np.ndarray, queries: _Labels, keys: _Labels, names: list[str], title: str
) -> Picture:
    """Many heads share one pair of axes, measured in inches: hundreds of axes would take seconds."""
    columns = _tile_columns(len(heads))
    right = (theme.MAX_WIDTH - 1.0) / columns  # from one tile to the next
    width = min(right - 0.08, 1.4)
    height = width * min(1.2, max(0.4, len(queries.shown) / len(keys.shown)))
    down = height + 0.22
    board_size = columns * right, math.ceil(len(heads) / columns) * down
    picture = Picture(alt_text, board_size[0] + 1.0, board_size[1] + 0.5)
    board = _axes(picture, 0.1, 0.1, *board_size)
    size = max(theme.SMALLEST_SIZE - 0.5, min(theme.NUMBER_SIZE, 72 * width / 6))
    for head, matrix in enumerate(heads):
        left, top = head % columns * right, head // columns * down + 0.22
        extent = (left, left + width, top + height, top)
        image = board.imshow(matrix, cmap=theme.WEIGHT_MAP, vmin=0, vmax=_scale(heads), extent=extent)
        name = names[head][: int(1.9 * 72 * width / size)]
        _write(board, left, top - 0.03, name, size=size, ha="left", va="bottom", color=theme.INK)
    board.set(xlim=(0, board_size[0]), ylim=(board_size[1], 0), aspect="auto")
    board.set_axis_off()
    _draw_colour_bar(picture, image)
    order = f"{names[0]} is at the top left, {names[columns - 1]} ends the first row, {names[-1]} is the last"
    note = f"{order}. In each tile queries go down ({len(queries.shown)}) and keys across ({len(keys.shown)})."
    _write(board, 0, -0.05, note, ha="left", va="bottom")
    _draw_title(board, title, theme.MAX_WIDTH - 0.5, above=0.3)
    return picture


def _tile_columns(n_heads: int) -> int:
    """Columns that fill all rows, if there are any near a square; so whole layers stay together."""
    fewest = max(6, math.ceil(math.sqrt(n_heads)))
    wide = range(fewest, min(2 * fewest, 20) + 1)
    return next((columns for columns in wide if n_heads % columns == 0), min(fewest, 20))


# Bars


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
    largest = shares.max(axis=0)
    candidates = np.argsort(-largest, kind="stable")[: len(theme.TOKEN_COLOURS)]
    named = sorted(token for token in candidates if largest[token] >= 0.04)
    for place, token in enumerate(named):
        yield tokens[token], shares[:, token], theme.token_colour(place)
    others = shares.sum(axis=1) - shares[:, named].sum(axis=1)
    if others.max() > 1e-9:
        yield f"{len(tokens) - len(named)} others", others, theme.REST
    not_spent = 1 - shares.sum(axis=1)
    if not_spent.max() > ROUNDING:
        yield "not spent", np.where(not_spent > ROUNDING, not_spent, 0), theme.PAPER


def _write_share(axes: Axes, x: float, row: int, name: str, share: float, colour: str) -> None:
    """The token and its percent in its piece of the bar, or as much as fits."""
    room = int(BAR_WIDTH * share / 0.075)  # characters
    number = f"{_percent(share)} %"
    for text in (f"{name} {number}", f"{name}\n{number}", number):
        if _longest_line(text) <= room:
            plate = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}  # keeps hatching off the letters
            return _write(axes, x, row, text, on=colour, bbox=plate)


def _longest_line(text: str) -> int:
    return max(len(line) for line in text.split("\n"))


# Boxes: tensors and memory, drawn on a board measured in inches with y downwards


def _board(alt_text: str, width: float, height: float, title: str) -> tuple[Picture, Axes]:
    picture = Picture(alt_text, width, height)
    board = _axes(picture, 0, 0, width, height)
    board.set(xlim=(0, width), ylim=(height, 0))
    board.set_axis_off()
    _draw_title(board, title, max(5.0, width))
    return picture, board


def _draw_box(
    board: Axes,
    left: float,
    top: float,
    size: tuple[float, float],
    text: str,
    colour: str,
    marked: bool = False,
) -> None:
    look = {"edgecolor": theme.LINE if colour == theme.PAPER else theme.PAPER, "lw": 1.0, "zorder": 1}
    if marked:
        look = {"edgecolor": theme.INK, "lw": 2.2, "zorder": 2, "hatch": "////"}
    board.add_patch(Rectangle((left, top), *size, facecolor=colour, **look))
    plate = {"facecolor": colour, "edgecolor": "none", "pad": 0.8} if marked else None
    _write(board, left + size[0] / 2, top + size[1] / 2, text, on=colour, zorder=3, bbox=plate)


class _Panels(NamedTuple):
    """Boxes in one panel (2-D) or several (3-D); `names` are those of the axes, outermost first."""

    texts: np.ndarray
    colours: np.ndarray
    marked: np.ndarray
    names: tuple[str, ...]

    def each(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Name, texts, colours and marks of each panel."""
        if self.texts.ndim == 2:
            yield "", self.texts, self.colours, self.marked
        else:
            names = [f"{self.names[0]} {index}" for index in range(len(self.texts))]
            yield from zip(names, self.texts, self.colours, self.marked, strict=True)

    def box(self) -> tuple[float, float]:
        longest = max(len(text) for text in self.texts.flat)
        return max(0.36, 0.1 + longest * 0.075), 0.3

    def above(self) -> float:
        """Room for the headings over the boxes."""
        return 0.42 if self.texts.ndim == 2 else 0.65

    def step(self) -> tuple[float, float]:
        """From one panel to the next, to the right and down."""
        rows, columns = self.texts.shape[-2:]
        width, height = self.box()
        return columns * width + 0.75, rows * height + self.above() + 0.25

    def across(self) -> int:
        """How many panels fit side by side."""
        count = 1 if self.texts.ndim == 2 else len(self.texts)
        return max(1, min(count, int(theme.MAX_WIDTH / self.step()[0])))

    def size(self) -> tuple[float, float]:
        count = 1 if self.texts.ndim == 2 else len(self.texts)
        right, down = self.step()
        return self.across() * right, math.ceil(count / self.across()) * down - 0.2

    def draw(self, board: Axes, top: float) -> None:
        width, height = self.box()
        for index, (name, texts, colours, marked) in enumerate(self.each()):
            line, place = divmod(index, self.across())
            corner = place * self.step()[0] + 0.5, top + line * self.step()[1] + self.above()
            self._draw_headings(board, *corner, name)
            for (row, column), text in np.ndenumerate(texts):
                left_top = corner[0] + column * width, corner[1] + row * height
                _draw_box(board, *left_top, self.box(), text, colours[row, column], marked[row, column])
        if self.marked.any():
            _write(board, 0.5, top + self.size()[1] + 0.15, "hatched, with a bold border: mixed up", ha="left")

    def _draw_headings(self, board: Axes, left: float, top: float, name: str) -> None:
        rows, columns = self.texts.shape[-2:]
        width, height = self.box()
        board.text(left, top - 0.42, name, size=theme.LABEL_SIZE, weight="bold", va="bottom")
        _write(board, left + columns * width / 2, top - 0.28, self.names[-1])
        _write(board, left - 0.35, top + rows * height / 2, self.names[-2], rotation=90)
        for column in range(columns):
            _write(board, left + (column + 0.5) * width, top - 0.1, str(column))
        for row in range(rows):
            _write(board, left - 0.08, top + (row + 0.5) * height, str(row), ha="right")


def _entry_text(entry: Any) -> str:
    return f"{entry:.3g}" if isinstance(entry, float | np.floating) else _visible(str(entry), 18)


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


def _memory_size(positions: np.ndarray) -> tuple[float, float]:
    lines = math.ceil((positions.max() + 1) / MEMORY_COLUMNS)
    return 0.5 + min(MEMORY_COLUMNS, positions.max() + 1) * MEMORY_BOX[0], 0.75 + lines * MEMORY_LINE


def _memory_place(position: int) -> tuple[float, float]:
    line, column = divmod(position, MEMORY_COLUMNS)
    return 0.5 + column * MEMORY_BOX[0], 0.5 + line * MEMORY_LINE


def _draw_memory(board: Axes, positions: np.ndarray, rows: np.ndarray) -> None:
    board.text(0.5, 0.12, "memory", size=theme.LABEL_SIZE, weight="bold", va="center")
    _write(board, 1.2, 0.12, "arcs: the first steps of reading the view row by row", ha="left")
    readers = dict(zip(positions.flat[::-1], rows.flat[::-1], strict=True))  # of several readers the first
    for position in range(positions.max() + 1):
        colour = theme.token_colour(readers[position]) if position in readers else theme.PAPER
        _draw_box(board, *_memory_place(position), MEMORY_BOX, str(position), colour)
    steps = positions.ravel()[: max(positions.shape[-1], 5) + 1]
    for here, there in zip(steps, steps[1:], strict=False):
        _draw_arc(board, int(here), int(there))


def _draw_arc(board: Axes, here: int, there: int) -> None:
    """An arc over the memory for a step forward, under it for a step back; none from line to line."""
    (start, line), (end, other_line) = _memory_place(here), _memory_place(there)
    if here == there or line != other_line:
        return
    edge = line if here < there else line + MEMORY_BOX[1]
    half = MEMORY_BOX[0] / 2
    bend = f"arc3,rad={-min(0.9, 0.3 / abs(end - start))}"
    look = {
        "arrowstyle": "-|>",
        "mutation_scale": 7,
        "lw": 0.9,
        "color": theme.INK,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    board.add_patch(FancyArrowPatch((start + half, edge), (end + half, edge), connectionstyle=bend, **look))
