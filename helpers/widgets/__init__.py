"""Pictures that a learner can touch: choose something, and the picture answers at once.

All of it is HTML, SVG and CSS made beforehand: the browser only chooses what to show. So a picture needs no
kernel, no network, no widget manager and no script, and works in exported HTML and in a notebook that was closed
and opened again. Every function returns an `Interactive`: the last expression of a cell, or something to `display`.
"""

from helpers.widgets.heads import head_explorer
from helpers.widgets.interactive import Interactive
from helpers.widgets.kv_cache import kv_cache_steps
from helpers.widgets.mixing_desk import mixing_desk
from helpers.widgets.split import split_and_combine
from helpers.widgets.spotlight import one_spotlight_or_three, spotlight
from helpers.widgets.winner import winner_takes_almost_all
from helpers.widgets.wiring import wiring

__all__ = [
    "Interactive",
    "head_explorer",
    "kv_cache_steps",
    "mixing_desk",
    "one_spotlight_or_three",
    "split_and_combine",
    "spotlight",
    "winner_takes_almost_all",
    "wiring",
]
