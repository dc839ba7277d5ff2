"""Pictures that a learner can touch: choose something, and the picture answers at once.

All of it is HTML, SVG and CSS made beforehand: the browser only chooses what to show. So a picture needs no
kernel, no network, no widget manager and no script, and works in exported HTML and in a notebook that was closed
and opened again. Every function returns an `Interactive`: the last expression of a cell, or something to `display`.
"""

from helpers.widgets.interactive import Interactive
from helpers.widgets.winner import winner_takes_almost_all

__all__ = ["Interactive", "winner_takes_almost_all"]
