"""The wiring: which query head reads which key/value head, and what has to be kept for it, to scale."""

from helpers import theme
from helpers.heatmaps.wording import percent, plural
from helpers.widgets.interactive import Choice, Frame, Interactive, Panel
from helpers.widgets.look import ACCENT, WIDTH
from helpers.widgets.reading import refuse_sizes
from helpers.widgets.svg import SMALL, Drawing, fits, line, rectangle, text

LEFT, RIGHT = 152, WIDTH - 1  # the rows begin where the buttons do, half a line's width is kept free at RIGHT
ASKED, READ, KEYS, VALUES, FORMULA, CACHE = 0, 84, 134, 160, 202, 236  # px: the tops of the rows
LARGEST_HEAD = 22
MOST_HEADS = 128
NUMBER = 10  # px: the letters of a head's number
QUERY_COLOUR, KEY_COLOUR, VALUE_COLOUR = theme.token_colour(0), theme.token_colour(2), theme.token_colour(5)


def wiring(
    n_heads: int, n_kv_heads: int, n_layers: int, d_head: int, n_tokens: int, model: str, bytes_per_value: int = 2
) -> Interactive:
    """Lines from the query heads of a layer to its key/value heads, from one each (MHA) to one for all (MQA).

    It begins with `n_kv_heads`, those of the `model`. Below the lines: the keys and values of one token and one layer,
    and the cache of the whole model after `n_tokens`, both to scale.
    ValueError: `n_heads` is not a multiple of `n_kv_heads` or more than 128, a size that is not a whole number above 0.
    """
    refuse_sizes(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_layers=n_layers,
        d_head=d_head,
        n_tokens=n_tokens,
        bytes_per_value=bytes_per_value,
    )
    if n_heads > MOST_HEADS:
        raise ValueError(f"{n_heads} query heads are too many to draw, at most {MOST_HEADS}")
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads cannot share {n_kv_heads} key/value heads evenly")
    layouts = [heads for heads in range(n_heads, 0, -1) if n_heads % heads == 0]
    remarks = {n_heads: " (MHA)", 1: " (MQA)", n_kv_heads: f" ({model})"}
    choice = Choice(
        "Key/value heads",
        [f"{heads}{remarks.get(heads, '')}" for heads in layouts],
        start=layouts.index(n_kv_heads),
    )

    length = f"{n_tokens:,} token{'s' * (n_tokens > 1)}"

    def draw(stop: int) -> Frame:
        heads = layouts[stop]
        per_token = 2 * n_layers * heads * d_head * bytes_per_value
        gigabytes, most = per_token * n_tokens / 1e9, per_token * n_tokens / 1e9 * n_heads / heads
        parts = _heads(n_heads, heads) + _kept(n_heads, heads)
        parts += [
            text(0, CACHE + 16, length),
            rectangle(LEFT, CACHE, (RIGHT - LEFT) * heads / n_heads, 22, ACCENT),
            rectangle(LEFT, CACHE, RIGHT - LEFT, 22, "none", stroke=theme.FAINT),
            *_beside_the_bar(heads / n_heads, f"{gigabytes:.2f} GB in all {n_layers} layers", f"{most:.2f} GB"),
            text(0, FORMULA + 14, "one token"),
            text(
                LEFT,
                FORMULA + 14,
                f"2 × {n_layers} layers × {plural(heads, 'head')} × {d_head} numbers × {bytes_per_value} bytes "
                f"= {per_token:,} bytes",
            ),
        ]
        return Frame(
            _headline(n_heads, heads),
            Drawing(WIDTH, CACHE + 26, parts),
            f"{plural(n_heads, 'query head')} in groups of {n_heads // heads} read {plural(heads, 'key/value head')}. "
            f"Kept for each token and layer: {2 * heads} of {2 * n_heads} tensors. "
            f"Cache of {length}: {gigabytes:.2f} GB of {most:.2f} GB.",
        )

    return Interactive("The wiring", [choice], [Panel([choice], draw)])


def _headline(n_heads: int, n_kv_heads: int) -> str:
    most, kept = 2 * n_heads, 2 * n_kv_heads
    if n_kv_heads == n_heads:
        return f"MHA: every query head has keys and values of its own, {most} tensors to keep"
    saved = f"{kept} tensors to keep instead of {most}, {percent(1 - kept / most)} % less"
    if n_kv_heads == 1:
        return f"MQA: all {n_heads} query heads share one key/value head, {saved}"
    return f"GQA: {n_heads // n_kv_heads} query heads share a key/value head, {saved}"


def _heads(n_heads: int, n_kv_heads: int) -> list[str]:
    """Query heads above, key/value heads below in the middle of those who read them."""
    pitch, group = (RIGHT - LEFT) / n_heads, n_heads // n_kv_heads
    size = min(LARGEST_HEAD, pitch - 2)
    lines, boxes = [], [text(0, ASKED + 16, "query heads"), text(0, READ + 16, "key/value heads")]
    for head in range(n_heads):
        place = LEFT + (head + 0.5) * pitch
        read = LEFT + (head // group + 0.5) * group * pitch
        lines.append(line(place, ASKED + size, read, READ, theme.FAINT))
        boxes.append(_head(place, ASKED, size, head, QUERY_COLOUR, size / 2))
    for head in range(n_kv_heads):
        boxes.append(_head(LEFT + (head + 0.5) * group * pitch, READ, size, head, KEY_COLOUR, 3))
    return lines + boxes


def _head(middle: float, top: float, size: float, number: int, colour: str, roundness: float) -> str:
    box = rectangle(middle - size / 2, top, size, size, colour, rx=f"{roundness:g}")
    if not fits("00", size + 2, NUMBER):  # as in a layer of 64
        return box
    return box + text(middle, top + size / 2 + 3.6, str(number), "middle", font_size=NUMBER)


def _kept(n_heads: int, n_kv_heads: int) -> list[str]:
    """A slot for every tensor that a layer without sharing keeps; those that are kept are filled."""
    pitch = (RIGHT - LEFT) / n_heads
    size = min(LARGEST_HEAD, pitch - 2)
    parts = []
    for name, top, colour in [("keys to keep", KEYS, KEY_COLOUR), ("values to keep", VALUES, VALUE_COLOUR)]:
        parts.append(text(0, top + 16, name))
        for head in range(n_heads):
            middle = LEFT + (head + 0.5) * pitch
            if head < n_kv_heads:
                parts.append(_head(middle, top, size, head, colour, 3))
            else:
                parts.append(rectangle(middle - size / 2, top, size, size, "none", stroke=theme.LINE, rx=3))
    return parts


def _beside_the_bar(share: float, kept: str, most: str) -> list[str]:
    """What the bar stands for, inside it where it is long, else behind it; and what its frame stands for."""
    end = LEFT + (RIGHT - LEFT) * share
    if share > 0.45:
        parts = [text(end - 8, CACHE + 16, kept, "end", fill=theme.label_colour(ACCENT))]
    else:
        parts = [text(end + 8, CACHE + 16, kept)]
    if share < 1:
        parts.append(text(RIGHT - 8, CACHE + 16, f"without sharing {most}", "end", fill=theme.FAINT, font_size=SMALL))
    return parts
