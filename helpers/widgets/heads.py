"""Head explorer: a small map of every head, the map of the chosen one, and in it the row of the chosen token.

Hundreds of heads with a drawing for each of their rows would be too many. So all of them lie on three rolls: one of
maps, one of lines of numbers, one of columns. Each is seen through a window, and CSS pulls it to the chosen head and
token by the numbers `--head` and `--row`. What is to be said of a row is kept in CSS as well. For the browser, a step
is then a matter of a few elements, however many heads there are.
"""

import io
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from helpers import theme
from helpers.heatmaps.attention import SCALES
from helpers.heatmaps.reading import Labels, read_labels, read_names, read_weights
from helpers.heatmaps.wording import head_headline, percent
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import ACCENT, WIDTH
from helpers.widgets.reading import read_numbers, read_place
from helpers.widgets.svg import LETTER, SMALL, Drawing, line, rectangle, text

MOST_TOKENS = 40  # so many columns of numbers can be read side by side
MOST_ENTRIES = 80_000  # 270 heads of 17 tokens, about 1.5 MB
SHADES = 32  # colours of a map, few enough for a small file
NUMBERS, BARS = 18, 64  # px: the heights of the line of numbers and of the columns


def head_explorer(
    weights: Any,
    tokens: Sequence[str] | None = None,
    scores: Mapping[str, Any] | None = None,
    titles: Sequence[str] | None = None,
    head: int = 0,
    token: int = -1,
) -> Interactive:
    """The maps of many heads to choose from, and the row of any token in the chosen one.

    `weights` (H, T, T); `tokens` label queries and keys. Each of `scores`, a name and a number per head (H,), is one
    more order for the maps, the largest first. `titles` name the heads ("head 0", "head 1", ... by default), `head` and
    `token` are chosen at first. Quick for hundreds of heads; 270 heads of 14 tokens take about 1 MB.
    ValueError: as `heatmaps.head_grid`; also a map that is not square, more than 40 tokens or 80,000 weights, a score
    that is not finite or not one number per head, a `head` or `token` that does not exist.
    """
    heads = read_weights(weights, (3,), "(H, T, T), for example weights[0] of a batch, or weights[None] for one head")
    _refuse_size(heads.shape)
    labels = read_labels(tokens, heads.shape[1], "token", "tokens")
    names = read_names(titles, len(heads), "titles", "heads", [f"head {number}" for number in range(len(heads))])
    head, token = read_place(head, len(heads), "head"), read_place(token, heads.shape[1], "token")
    ranked = _read_scores(scores, len(heads))
    sheet = _Sheet(heads, labels, names)

    which = Choice("Head", names, head, pictures=_small_maps(sheet, ranked), effects=_head_effects(sheet))
    row = Choice("Row of", labels.shown, token, effects=_row_effects(sheet))
    words = "The map of the chosen head, queries down and keys across, and above it the row of the chosen token."
    panels = [
        Panel([row], lambda token: Frame(_capital(labels.spoken[token]))),  # goes on with what CSS has to say
        Panel([], lambda: Frame("", sheet.live(), words)),
    ]
    finding = _capital(labels.spoken[token]) + sheet.finding(head, token) + sheet.place(head)
    still = Frame(finding, sheet.still(head, token), sheet.shares(head, token))
    return Interactive("Head explorer", [*_orders(ranked), which, row], panels, still)


def _head_effects(sheet: "_Sheet") -> list[str]:
    """For each head where its rolls are pulled to, and what there is to say of its rows."""
    rows = range(sheet.n_tokens)
    return [
        f"--head:{head};--place:{_quoted(sheet.place(head))};"
        + ";".join(f"--say{row}:{_quoted(sheet.finding(head, row))}" for row in rows)
        for head in range(len(sheet.heads))
    ]


def _row_effects(sheet: "_Sheet") -> list[str]:
    said = ".touch-headlines p::after{content:var(--say%s) var(--place)}"
    return [f"--row:{row};{said % row}" for row in range(sheet.n_tokens)]


def _quoted(content: str) -> str:
    """A string in CSS, without any character that could end it or the style sheet."""
    return '"' + re.sub(r"[^\w .,()%'>-]", lambda match: f"\\{ord(match[0]):x} ", content) + '"'


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


# What it is given


def _refuse_size(shape: tuple[int, ...]) -> None:
    n_heads, n_queries, n_keys = shape
    if n_queries != n_keys:
        raise ValueError(f"weights must be (H, T, T), as many queries as keys; got shape {shape}")
    if n_keys > MOST_TOKENS:
        part = f"weights[:, :{MOST_TOKENS}, :{MOST_TOKENS}]"
        raise ValueError(f"{n_keys} tokens are too many to read, at most {MOST_TOKENS}: pass a part, such as {part}")
    if n_heads * n_queries * n_keys > MOST_ENTRIES:
        most = MOST_ENTRIES // n_keys**2
        raise ValueError(
            f"weights of shape {shape} have more than {MOST_ENTRIES:,} entries: "
            f"pass fewer heads, such as weights[:{most}], or fewer tokens"
        )


def _read_scores(scores: Mapping[str, Any] | None, n_heads: int) -> dict[str, np.ndarray]:
    if not isinstance(scores or {}, Mapping):
        raise ValueError('scores must be a dictionary of names and numbers per head, for example {"loudness": lengths}')
    return {name: _read_score(name, values, n_heads) for name, values in (scores or {}).items()}


def _read_score(name: str, values: Any, n_heads: int) -> np.ndarray:
    score = read_numbers(values, f'score "{name}"')
    if score.shape != (n_heads,):
        raise ValueError(f'score "{name}" must be one number for each of {n_heads} heads; got shape {score.shape}')
    return score


# The grid of small maps


def _small_maps(sheet: "_Sheet", scores: Mapping[str, np.ndarray]) -> list[str]:
    side = 76 if len(sheet.heads) <= 8 else 54 if len(sheet.heads) <= 24 else 36
    wide = max(side, LETTER * SMALL * max(map(len, sheet.names)))  # so that the grid has straight columns
    look = f'width="{side}" height="{side}" style="image-rendering:pixelated;margin:0 {(wide - side) / 2:.1f}px"'
    return [
        f'<img alt="" {look} src="{_image(sheet.shades[head])}">'
        + "".join(_score_label(number, score[head]) for number, score in enumerate(scores.values()))
        for head in range(len(sheet.heads))
    ]


def _score_label(number: int, score: float) -> str:
    return f'<span style="display:var(--score{number},none);order:1">{score:.2f}</span>'


def _orders(scores: Mapping[str, np.ndarray]) -> list[Choice]:
    """The choice of an order, if there is more than one. A score is written below its map while it sorts."""
    if not scores:
        return []
    effects = [""]
    for number, score in enumerate(scores.values()):
        places = (f".touch-grid .o{head}{{order:{place}}}" for place, head in enumerate(_largest_first(score)))
        effects.append(f"--score{number}:block;{''.join(places)}")
    return [Choice("Order", ["by number", *(f"by {name}" for name in scores)], effects=effects)]


def _largest_first(score: np.ndarray) -> np.ndarray:
    return np.argsort(-score, kind="stable")


# The drawing: numbers, columns and tokens above the map, all on the same grid of keys


@dataclass(frozen=True)
class _Sheet:
    """Where everything is, and the parts that the live drawing and the still one have in common."""

    heads: np.ndarray  # (H, T, T)
    labels: Labels
    names: list[str]

    @cached_property
    def top(self) -> float:
        """The weight that gets the brightest colour, and a column of full height."""
        return next((scale for scale in SCALES if self.heads.max() <= scale + 1e-6), 1.0)

    @cached_property
    def shades(self) -> np.ndarray:
        """The weights as numbers of colours, (H, T, T)."""
        return (np.minimum(self.heads / self.top, 1) * (SHADES - 1)).round().astype(np.uint8)

    @property
    def n_tokens(self) -> int:
        return self.heads.shape[-1]

    @cached_property
    def left(self) -> float:
        """Where the map begins, behind the longest query."""
        return max(114, 14 + LETTER * SMALL * max(map(len, self.labels.shown)))

    @cached_property
    def cell(self) -> float:
        return min(56.0, (WIDTH - 2 - self.left) / self.n_tokens)

    @cached_property
    def line(self) -> float:
        """The height of a row of the map."""
        return max(14.0, min(26.0, 238 / self.n_tokens))

    @property
    def wide(self) -> float:
        return self.cell * self.n_tokens

    @cached_property
    def key_size(self) -> float:
        """The size of the keys' letters: a little smaller if that keeps them level, else they are turned."""
        level = self.cell / (LETTER * max(map(len, self.labels.shown)))
        return min(SMALL, level) if level >= 10 else 0

    @cached_property
    def map_top(self) -> float:
        turned = LETTER * SMALL * max(map(len, self.labels.shown)) + 12
        return NUMBERS + BARS + (22 if self.key_size else turned)

    def finding(self, head: int, token: int) -> str:
        """What a row does, as a sentence that lacks its beginning, the token."""
        said = self.labels.spoken[token]
        sentence = head_headline(self.heads[head, token : token + 1], Labels([said], [said]), self.labels)
        return sentence[len(said) :]

    def place(self, head: int) -> str:
        return f", in {self.names[head]}"

    def shares(self, head: int, token: int) -> str:
        row = zip(self.labels.spoken, self.heads[head, token], strict=True)
        return f"Weights: {', '.join(f'{key} {percent(weight)} %' for key, weight in row)}."

    def live(self) -> Drawing:
        """All heads on rolls, each behind a window."""
        rows = f"var(--head)*{self.n_tokens} + var(--row)"
        parts = [
            self._window(0, NUMBERS, rows, self._numbers()),
            self._window(NUMBERS, BARS, rows, self._columns()),
            self._window(self.map_top, self.n_tokens * self.line, "var(--head)", self._map(self.shades)),
            self._lines(),
            f'<g style="transform:translateY(calc(var(--row)*{self.line:g}px))">{self._frame(0)}</g>',
        ]
        return Drawing(WIDTH, self._height(), [*parts, *self._labels()])

    def _window(self, top: float, height: float, steps: str, roll: str) -> str:
        """A part of the drawing over the keys; the roll behind it is pulled up by so many of its heights."""
        box = f'x="{self.left:g}" y="{top:g}" width="{self.wide:g}" height="{height:g}"'
        pulled = f"transform:translateY(calc(({steps})*{-height:g}px))"
        return f'<svg {box} aria-hidden="true"><g style="{pulled}">{roll}</g></svg>'

    def still(self, head: int, token: int) -> Drawing:
        row = self.heads[head, token]
        numbers = [text(self._middle(key), 13, _number(weight), "middle") for key, weight in enumerate(row)]
        columns = [
            rectangle(self._middle(key) - 0.3 * self.cell, NUMBERS + BARS - high, 0.6 * self.cell, high, ACCENT)
            for key, high in enumerate(row / self.top * BARS)
        ]
        map_ = f'<g transform="translate({self.left:g} {self.map_top:g})">{self._map(self.shades[head])}</g>'
        parts = [*numbers, *columns, map_, self._lines(), self._frame(token), *self._labels()]
        return Drawing(WIDTH, self._height(), parts)

    def _height(self) -> float:
        return self.map_top + self.n_tokens * self.line + 2

    def _middle(self, key: int) -> float:
        return self.left + (key + 0.5) * self.cell

    def _numbers(self) -> str:
        """The percents of all rows of all heads: a line for each row, with a tab stop for each key."""
        rows = self.heads.reshape(-1, self.n_tokens)
        lines = "\n".join("\t".join(map(_number, row)).rstrip("\t") for row in rows)
        size = f'x="{0.5 * self.cell - 8:g}" width="{self.wide:g}" height="{NUMBERS * len(rows)}"'
        letters = f"font-size:{SMALL if self.cell >= 22 else 10}px;line-height:{NUMBERS}px"
        tabs = f"white-space:pre;tab-size:{self.cell:g}px"
        return f'<foreignObject {size}><div style="{letters};{tabs}">{escape(lines)}</div></foreignObject>'

    def _columns(self) -> str:
        """The columns of all rows, in a grid with a unit for each key, and 100 for each row and for a full column."""
        look = f'fill="none" stroke="{ACCENT}" stroke-width="0.6"'
        paths = "".join(self._head_columns(head) for head in range(len(self.heads)))
        return f'<g transform="translate({self.cell / 2:g}) scale({self.cell:g} {BARS / 100})" {look}>{paths}</g>'

    def _head_columns(self, head: int) -> str:
        high = (self.heads[head] / self.top * 100).round().astype(int)
        floor = head * self.n_tokens + 1
        strokes = (f"M{key} {100 * (floor + row)}v-{high[row, key]}" for row, key in np.argwhere(high))
        return f'<path d="{"".join(strokes)}"/>'

    def _map(self, shades: np.ndarray) -> str:
        """Maps, one below the other, as a picture with a pixel for each weight."""
        rows = shades.reshape(-1, self.n_tokens)
        look = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
        return f'<image width="{self.wide:g}" height="{len(rows) * self.line:g}" {look} href="{_image(rows)}"/>'

    def _lines(self) -> str:
        """Thin lines between the rows and columns of the map."""
        high, inner = self.n_tokens * self.line, range(1, self.n_tokens)
        across = "".join(f"M0 {row * self.line:g}h{self.wide:g}" for row in inner)
        down = "".join(f"M{key * self.cell:.1f} 0v{high:g}" for key in inner)
        place = f"translate({self.left:g} {self.map_top:g})"
        look = f'stroke="{theme.PAPER}" stroke-opacity="0.4" stroke-width="0.8"'
        return f'<path d="{across}{down}" transform="{place}" {look}/>'

    def _frame(self, row: int) -> str:
        """A frame round a row of the map and its query, with a halo to be seen on dark colours."""
        box = 1, self.map_top + row * self.line, self.left + self.wide, self.line, "none"
        halo = rectangle(*box, stroke=theme.PAPER, stroke_width=5)
        return halo + rectangle(*box, stroke=theme.INK, stroke_width=2, rx=2)

    def _labels(self) -> list[str]:
        floor, faint = NUMBERS + BARS, {"font_size": SMALL, "fill": theme.FAINT}
        parts = [
            text(0, 13, "percent", **faint),
            text(0, self.map_top - 7, "who ↓ at whom →", **faint),
            line(self.left, floor, self.left + self.wide, floor, theme.INK),
        ]
        for number, token in enumerate(self.labels.shown):
            middle, base = self._middle(number), self.map_top + number * self.line + self.line / 2 + 4
            parts.append(text(self.left - 6, base, token, "end", font_size=SMALL))
            parts.append(self._key(middle, token))
        return parts

    def _key(self, middle: float, token: str) -> str:
        if self.key_size:
            return text(middle, self.map_top - 7, token, "middle", font_size=f"{self.key_size:.1f}")
        place = f"rotate(-90 {middle + 4:.1f} {self.map_top - 6:.1f})"
        return text(middle + 4, self.map_top - 6, token, font_size=SMALL, transform=place)


def _number(weight: float) -> str:
    """The weight in percent; nothing for exactly 0."""
    return percent(weight) if weight > 0 else ""


def _image(shades: np.ndarray) -> str:
    """The address of a picture with a pixel for each number of a colour."""
    picture = Image.fromarray(shades, "P")
    picture.putpalette(_palette())
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


@cache
def _palette() -> bytes:
    colours = [to_rgb(theme.weight_colour(shade / (SHADES - 1))) for shade in range(SHADES)]
    return (255 * np.array(colours)).round().astype(np.uint8).tobytes()
