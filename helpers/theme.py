"""The look of every picture in one place: colours, fonts, sizes.

Used by the matplotlib pictures (`heatmaps`) and by the interactive ones. The paper is always white and
opaque, so a picture reads the same in JupyterLab's light and dark themes.
"""

from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

PAPER = "#ffffff"
INK = "#1a1a1a"
FAINT = "#595959"  # small print: still 7:1 on the paper
LINE = "#b0b0b0"

WEIGHT_MAP = "viridis"  # perceptually uniform, readable with every common colour blindness; bright = much attention
MAY_ATTEND = "#2a788e"
BLOCKED = "#ececec"

# One colour per token, light enough for dark text and apart for colour-blind eyes: Paul Tol's "light" scheme.
TOKEN_COLOURS = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#aaaa00")
REST = "#dddddd"  # whatever is too small to get a colour of its own

FONT = "DejaVu Sans"  # comes with matplotlib, so the pictures look alike on every machine
TITLE_SIZE = 12  # points
LABEL_SIZE = 9
NUMBER_SIZE = 8
SMALLEST_SIZE = 6

MAX_WIDTH = 9.0  # inches
DPI = 144
SCREEN_DPI = 96  # CSS pixels per inch

MATPLOTLIB = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.labelsize": LABEL_SIZE,
    "font.family": FONT,
    "font.size": LABEL_SIZE,
    "legend.fontsize": LABEL_SIZE,
    "xtick.labelsize": LABEL_SIZE,
    "ytick.labelsize": LABEL_SIZE,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "text.parse_math": False,  # a token may be "$"
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
}


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (black on white); from 4.5 on a text is readable (WCAG 2.2)."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def label_colour(background: str) -> str:
    """Black or white, whichever reads better on `background`; always a contrast of at least 4.5."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def weight_colour(fraction: float) -> str:
    """The hex colour of a weight, `fraction` running from 0 to 1 along the colour bar."""
    return to_hex(colormaps[WEIGHT_MAP](float(fraction)))


def token_colour(index: int) -> str:
    """The hex colour of token number `index`; colours repeat, so the token's name must be written as well."""
    return TOKEN_COLOURS[index % len(TOKEN_COLOURS)]


def _luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
