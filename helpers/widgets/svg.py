"""Small pieces of SVG. Coordinates are CSS pixels, rounded to 0.1: a picture may hold hundreds of frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from helpers import theme
from helpers.heatmaps.wording import percent

FONTS = f"'{theme.FONT}',Verdana,sans-serif"  # Verdana is as wide as DejaVu Sans
TEXT, SMALL, HEADLINE_SIZE = 14, 12, 16  # px: what is read, what is looked up, and what the finding is
MARGIN, HEADLINE = 16, 34  # px: around a drawing that is a file, and above it for its headline
LETTER = 0.62  # the width of an average letter, as a part of the font's size


@dataclass(frozen=True)
class Drawing:
    """SVG elements on a sheet of `width` by `height`; what they mean in words is up to who shows it."""

    width: float
    height: float
    parts: Sequence[str]

    def tag(self, label: str) -> str:
        """The `<svg>` to put into a page. `label` tells those who cannot see it what it shows."""
        return (
            f'<svg viewBox="0 0 {_number(self.width)} {_number(self.height)}" width="{_number(self.width)}" '
            f'role="img" aria-label="{escape(label)}">{"".join(self.parts)}</svg>'
        )

    def file(self, headline: str) -> str:
        """The same as a file of its own, with the paper, the fonts and the headline that a page would give it."""
        width, height = self.width + 2 * MARGIN, self.height + 2 * MARGIN + HEADLINE
        size = min(HEADLINE_SIZE, self.width / (LETTER * len(headline)))
        title = text(MARGIN, MARGIN + HEADLINE_SIZE, headline, font_weight="bold", font_size=_number(size))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(width)} {_number(height)}" '
            f'width="{_number(width)}" height="{_number(height)}" font-family="{FONTS}" font-size="{TEXT}" '
            f'fill="{theme.INK}">{rectangle(0, 0, width, height, theme.PAPER)}{title}'
            f'<g transform="translate({MARGIN} {MARGIN + HEADLINE})">{"".join(self.parts)}</g></svg>'
        )


def rectangle(x: float, y: float, width: float, height: float, fill: str, **more: str | float) -> str:
    """A filled box. `more` are SVG attributes, `stroke_width=2` for `stroke-width`."""
    box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect {box} fill="{fill}"{_attributes(more)}/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = theme.LINE, **more: str | float) -> str:
    """A straight line."""
    ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
    return f'<line {ends} stroke="{stroke}"{_attributes(more)}/>'


def text(x: float, y: float, content: str, anchor: str = "start", **more: str | float) -> str:
    """Plain text with its baseline at `y`; `anchor` start, middle or end says which part of it is at `x`."""
    anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{_number(x)}" y="{_number(y)}"{anchored}{_attributes(more)}>{escape(content, quote=False)}</text>'


def label(x: float, y: float, content: str, width: float, size: float = SMALL, **more: str | float) -> str:
    """A text in the middle of `width` px: smaller where it has no room, cut off where it could not be read any more."""
    size = min(size, max(theme.LABEL_SIZE, width / (LETTER * max(len(content), 1))))
    most = max(int(width / (LETTER * size) + 1e-6), 1)
    shown = content if len(content) <= most else content[: most - 1] + "…"
    return text(x, y, shown, "middle", font_size=_number(size), **more)


def fits(content: str, width: float, size: float = TEXT) -> bool:
    """Whether a text of `size` px has room in `width` px, by the width of an average letter."""
    return len(content) * LETTER * size <= width


def budget_bar(
    weights: Sequence[float], tokens: Sequence[str], x: float, y: float, width: float, height: float = 40
) -> str:
    """A row of weights as one bar of 100 %, a piece for each token in its colour, named where there is room."""
    pieces, start = [], x
    for index, (weight, token) in enumerate(zip(weights, tokens, strict=True)):
        wide = float(weight) * width
        if wide >= 0.5:
            colour = theme.token_colour(index)
            pieces.append(rectangle(start, y, wide, height, colour, stroke=theme.PAPER))
            pieces.append(_piece_label(start + wide / 2, y + height / 2, wide, token, weight))
        start += wide
    return "".join(pieces) + rectangle(x, y, width, height, "none", stroke=theme.INK)


def token_row(
    weights: Sequence[float], tokens: Sequence[str], x: float, y: float, width: float, height: float = 44
) -> str:
    """The tokens as a line of boxes, each in the colour of its weight with the percent below it."""
    cell = width / len(tokens)
    parts = []
    for index, (weight, token) in enumerate(zip(weights, tokens, strict=True)):
        left, middle = x + index * cell, x + (index + 0.5) * cell
        parts.append(weight_cell(weight, left, y, cell, height, token))
        parts.append(text(middle, y + height + 16, f"{percent(weight)} %", "middle", font_size=SMALL))
    return "".join(parts)


def weight_cell(weight: float, x: float, y: float, width: float, height: float, name: str = "") -> str:
    """A box in the colour of a weight between 0 and 1, with a name that stays readable on it."""
    colour = theme.weight_colour(weight)
    ink = theme.label_colour(colour)
    box = rectangle(x, y, width, height, colour, stroke=theme.PAPER)
    return box + label(x + width / 2, y + height / 2 + 4, name, width - 2, fill=ink)


def _piece_label(x: float, y: float, width: float, token: str, weight: float) -> str:
    share = f"{percent(weight)} %"
    if fits(token, width, SMALL):
        return text(x, y - 3, token, "middle", font_size=SMALL) + text(x, y + 13, share, "middle", font_size=SMALL)
    return text(x, y + 5, share, "middle", font_size=SMALL) if fits(share, width, SMALL) else ""


def _number(value: float) -> str:
    return f"{round(float(value), 1):g}"


def _attributes(more: dict[str, str | float]) -> str:
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
