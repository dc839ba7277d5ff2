"""The KV cache, step by step: which keys and values are computed and which are read, with a cache and without one."""

from collections.abc import Sequence

from helpers import theme
from helpers.heatmaps.wording import plural
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import ACCENT, WIDTH
from helpers.widgets.reading import read_place, read_tokens, refuse_sizes
from helpers.widgets.svg import LETTER, SMALL, TEXT, Drawing, label, rectangle, text

LEFT, RIGHT = 76, WIDTH - 1  # the names of the rows end at LEFT, half a line's width is kept free at RIGHT
TOKENS, CACHED, PLAIN, COUNTED = 0, 34, 142, 256  # px: the tops of the parts
ROW, CELL = 24, 21  # px: from row to row, and how high a cell is
BAR, BAR_START = 190, 116  # px: the longest bar of the counts, and where bars begin in their half
COMPUTED, READ = ACCENT, theme.token_colour(4)
LETTERS = {"queries": "q", "keys": "k", "values": "v"}


def kv_cache_steps(
    tokens: Sequence[str], n_layers: int, n_kv_heads: int, d_head: int, bytes_per_value: int, start: int
) -> Interactive:
    """One more token at each step: its queries, keys and values, above with a cache and below without one.

    It begins at the step of token number `start`. The bytes are those of a model with these sizes.
    ValueError: no tokens or more than 20, a size that is not a whole number above 0, a `start` that does not exist.
    """
    tokens = read_tokens(tokens)
    refuse_sizes(n_layers=n_layers, n_kv_heads=n_kv_heads, d_head=d_head, bytes_per_value=bytes_per_value)
    step = Choice(
        "Step",
        [str(number) for number in range(1, len(tokens) + 1)],
        start=read_place(start, len(tokens), "start"),
        look="slider",
        seconds_per_step=1.0,
    )
    per_token = 2 * n_layers * n_kv_heads * d_head * bytes_per_value

    def draw(newest: int) -> Frame:
        n_tokens = newest + 1
        reread = n_tokens * (n_tokens + 1) // 2
        parts = [
            *_tokens(tokens, newest),
            text(0, CACHED + 12, "With a cache", font_weight="bold"),
            *_legend(),
            *_rows(CACHED + 20, len(tokens), newest, cached=True),
            text(0, PLAIN + 12, "Without a cache", font_weight="bold"),
            *_rows(PLAIN + 20, len(tokens), newest, cached=False),
            *_counts(n_tokens, reread, per_token, len(tokens)),
        ]
        return Frame(
            f'"{tokens[newest]}" comes: 1 token is projected with a cache, {n_tokens} without',
            Drawing(WIDTH, COUNTED + 70, parts),
            f"Step {n_tokens}. With a cache, the query, key and value of the new token are computed, and the keys and "
            f"values of {plural(newest, 'earlier token')} read. Without a cache, those of all {n_tokens} are "
            f"computed. Projected so far: {n_tokens} tokens with a cache, {reread} without. "
            f"Kept: {n_tokens * per_token:,} bytes with a cache, none without.",
        )

    return Interactive("The KV cache, step by step", [step], [Panel([step], draw)])


def _tokens(tokens: Sequence[str], newest: int) -> list[str]:
    """The text so far, the newest token in bold."""
    wide = (RIGHT - LEFT) / len(tokens)
    parts = [text(0, TOKENS + 15, "text so far")]
    for index, token in enumerate(tokens[: newest + 1]):
        weight = {"font_weight": "bold"} if index == newest else {}
        parts.append(label(_middle(index, wide), TOKENS + 15, token, wide, **weight))
    return parts


def _rows(top: float, most: int, newest: int, cached: bool) -> list[str]:
    """A row each of queries, keys and values, with a column for each token."""
    wide = (RIGHT - LEFT) / most
    parts = []
    for number, (name, letter) in enumerate(LETTERS.items()):
        y = top + number * ROW
        parts.append(text(0, y + 15, name))
        parts.append(rectangle(LEFT, y, RIGHT - LEFT, CELL, "none", stroke=theme.BLOCKED))
        for index in range(newest + 1):
            is_computed = index == newest or not cached
            if not is_computed and name == "queries":
                continue  # nobody asks them again
            colour = COMPUTED if is_computed else READ
            label = {"fill": theme.label_colour(colour), "font_weight": "bold" if is_computed else "normal"}
            parts.append(rectangle(LEFT + index * wide + 1, y, wide - 2, CELL, colour))
            parts.append(text(_middle(index, wide), y + 15, letter, "middle", **label))
    return parts


def _legend() -> list[str]:
    parts, x = [], RIGHT - 360
    for colour, meaning, width in [(COMPUTED, "computed in this step", 190), (READ, "read from the cache", 0)]:
        parts.append(rectangle(x, CACHED, 16, 14, colour))
        parts.append(text(x + 22, CACHED + 12, meaning, font_size=SMALL))
        x += width
    return parts


def _counts(n_tokens: int, reread: int, per_token: int, most: int) -> list[str]:
    """What has been projected so far, and what is kept, with a cache and without one."""
    most_reread, kept = most * (most + 1) // 2, n_tokens * per_token
    return [
        *_pair(0, "Tokens projected so far", [n_tokens, reread], most_reread, "", COMPUTED),
        *_pair(WIDTH / 2 + 14, "Kept in the cache", [kept, 0], most * per_token, " bytes", READ),
    ]


def _pair(x: float, title: str, amounts: Sequence[int], most: int, unit: str, colour: str) -> list[str]:
    parts = [text(x, COUNTED + 12, title, font_weight="bold")]
    room = WIDTH / 2 - 14 - BAR_START - 6 - LETTER * TEXT * len(f"{most:,}{unit}")  # beside the longest label
    for number, (name, amount) in enumerate(zip(("with a cache", "without"), amounts, strict=True)):
        y = COUNTED + 22 + number * ROW
        wide = min(BAR, room) * amount / most
        parts.append(text(x, y + 14, name))
        parts.append(rectangle(x + BAR_START, y, wide, 18, colour))
        parts.append(text(x + BAR_START + wide + 6, y + 14, f"{amount:,}{unit}"))
    return parts


def _middle(index: int, wide: float) -> float:
    return LEFT + (index + 0.5) * wide
