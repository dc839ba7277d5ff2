"""A picture: a matplotlib figure in our look that says in words what it shows."""

import base64
import html
import io
import os
from contextlib import AbstractContextManager
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from PIL import Image

from helpers import WITHOUT_PICTURES, theme


def our_look() -> AbstractContextManager[None]:
    """Our settings, whatever style the learner has switched on; serves as a decorator too."""
    return style.context(["default", theme.MATPLOTLIB])


def words_only() -> bool:
    """Whether pictures are not drawn at all, since nobody will look at them."""
    return WITHOUT_PICTURES in os.environ


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
        with our_look():
            super().savefig(fname, **{"bbox_inches": "tight", "pad_inches": 0.1} | options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        words = html.escape(" ".join(self.alt_text.split()))
        if words_only():
            return {"text/html": f"<p><em>Picture: {words}</em></p>", "text/plain": self.alt_text}, {}
        image, png = self._small_image(), io.BytesIO()
        image.save(png, format="png", optimize=True)
        encoded = base64.b64encode(png.getvalue()).decode()
        page = (
            f'<img alt="{words}" '
            f'width="{round(image.width * theme.SCREEN_DPI / theme.DPI)}" style="max-width:100%;height:auto" '
            f'src="data:image/png;base64,{encoded}">'
        )
        return {"text/html": page, "image/png": encoded}, {"image/png": {"alt": self.alt_text}}

    def _small_image(self) -> Image.Image:
        """256 colours look the same and take a third of the space: notebooks are saved and submitted."""
        png = io.BytesIO()
        self.savefig(png, format="png")
        return Image.open(png).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
