"""How a picture is switched: native radio buttons, and CSS that shows the frame which belongs to the chosen ones.

A picture has choices and panels. A panel holds one frame for each combination of the choices that it depends on, all
drawn beforehand. `:has(:checked)` makes the browser show one of them: no script, no kernel, nothing from elsewhere,
and keyboards and screen readers find the controls that they know.

Where style sheets are taken out (GitHub's preview, a notebook that is not trusted), an image of the first state is
left, with its alternative text. Where HTML cannot be shown at all, that text is.
"""

import base64
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from helpers import WITHOUT_PICTURES
from helpers.widgets.look import STYLE
from helpers.widgets.svg import Drawing

NO_FORMULAS = "mathjax_ignore tex2jax_ignore"  # a token may be "$": JupyterLab and exports look for formulas in pages


@dataclass(frozen=True)
class Frame:
    """What a panel shows in one state: the finding as a headline, a drawing, and what the drawing shows in words.

    Where two panels share the work, one may have headlines only (`drawing` None) and the other drawings only ("").
    """

    headline: str
    drawing: Drawing | None = None
    words: str = ""


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several options: a slider with stops for amounts, or buttons for names; arrow keys move along both.

    name: what is chosen, written before the options
    options: their labels, in plain text
    start: the option chosen at first
    pictures: SVG shown above each label, such as the small maps of a grid of heads
    effects: CSS for each option beside choosing frames, applied to the whole picture while the option is chosen:
        declarations such as "--gain:0.5", or nested rules such as ".head{order:var(--by-score)}"
    seconds_per_step: adds an option "Play" that goes through the others by itself and stays at the last
    """

    name: str
    options: Sequence[str]
    start: int = 0
    look: Literal["slider", "buttons"] = "buttons"
    pictures: Sequence[str] = ()
    effects: Sequence[str] = ()
    seconds_per_step: float = 0.0


@dataclass(frozen=True)
class Panel:
    """A place for frames: `draw` gets the number of the chosen option for each of `choices`, in their order."""

    choices: Sequence[Choice]
    draw: Callable[..., Frame]


@dataclass(frozen=True)
class Interactive:
    """A picture that changes when one of its choices does.

    `still` stands for it where nothing can be chosen; by default, the first panel's first frame.
    """

    name: str
    choices: Sequence[Choice]
    panels: Sequence[Panel]
    still: Frame | None = None
    _letters: dict[Choice, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_letters", dict(zip(self.choices, "abcdefghijklmnopqrstuvwxyz", strict=False)))

    @property
    def alt_text(self) -> str:
        """What the picture shows at first, and that it can be changed."""
        frame = self._still_frame()
        names = "; ".join(choice.name for choice in self.choices)
        return f"{self.name}. {frame.headline}. {frame.words} In a notebook you can change: {names}."

    def __repr__(self) -> str:
        return self.alt_text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if WITHOUT_PICTURES in os.environ:
            words = f'<p class="{NO_FORMULAS}"><em>Picture: {escape(self.alt_text)}</em></p>'
            return {"text/html": words, "text/plain": self.alt_text}
        return {"text/html": self.html(), "text/plain": self.alt_text}

    def html(self) -> str:
        """The picture as a piece of HTML that stands by itself. Every call makes a copy with names of its own."""
        own = f"touch-{secrets.token_hex(4)}"
        style = STYLE + "".join(self._rules(f".{own}"))
        controls = "".join(self._control(choice, own) for choice in self.choices)
        stage = "".join(self._stage(panel) for panel in self.panels)
        return (
            f"<style>{style}</style>{self._still()}"
            f'<div class="touch-live {own} {NO_FORMULAS}" hidden style="display:none" role="group" '
            f'aria-label="{escape(self.name)}">'
            f'{controls}<div class="touch-stage">{stage}</div></div>'
        )

    def _still_frame(self) -> Frame:
        if self.still:
            return self.still
        panel = self.panels[0]
        return panel.draw(*(choice.start for choice in panel.choices))

    def _still(self) -> str:
        frame = self._still_frame()
        image = base64.b64encode(frame.drawing.file(frame.headline).encode()).decode()
        return (
            f'<img class="touch-still" alt="{escape(self.alt_text)}" '
            f'style="max-width:100%" src="data:image/svg+xml;base64,{image}">'
        )

    def _control(self, choice: Choice, own: str) -> str:
        letter = self._letters[choice]
        radios = "".join(self._radio(choice, own, number) for number in range(len(choice.options)))
        play = _option(f"{own}-{letter}", "play", "Play", mark="▶ ") if choice.seconds_per_step else ""
        kind = "touch-grid" if choice.pictures else f"touch-{choice.look}"
        return (
            f'<div class="touch-choice {kind} {letter}-choice" role="radiogroup" aria-label="{escape(choice.name)}">'
            f'<span class="touch-name" aria-hidden="true">{escape(choice.name)}</span>'
            f'{play}<div class="touch-options">{radios}</div></div>'
        )

    def _radio(self, choice: Choice, own: str, number: int) -> str:
        picture = choice.pictures[number] if choice.pictures else ""
        name, label = f"{own}-{self._letters[choice]}", choice.options[number]
        return _option(name, str(number), label, picture, number == choice.start)

    def _stage(self, panel: Panel) -> str:
        headlines, drawings = self._frames(panel, list(panel.choices), ())
        # The headlines are a live region: a screen reader speaks the one that appears.
        spoken = f'<div class="touch-headlines" role="status">{headlines}</div>' if "<p>" in headlines else ""
        return spoken + (f'<div class="touch-drawings">{drawings}</div>' if "<svg" in drawings else "")

    def _frames(self, panel: Panel, choices: list[Choice], state: tuple[int, ...]) -> tuple[str, str]:
        """Boxes in boxes, one level for each choice: a frame is seen when every box around it is shown."""
        if not choices:
            frame = panel.draw(*state)
            headline = f"<p>{escape(frame.headline)}</p>" if frame.headline else ""
            return headline, frame.drawing.tag(frame.words) if frame.drawing else ""
        headlines, drawings, letter = [], [], self._letters[choices[0]]
        for number in range(len(choices[0].options)):
            headline, drawing = self._frames(panel, choices[1:], (*state, number))
            box = f'<div class="touch-when {letter} {letter}{number}">'
            headlines.append(f"{box}{headline}</div>")
            drawings.append(f"{box}{drawing}</div>")
        return "".join(headlines), "".join(drawings)

    def _rules(self, own: str) -> list[str]:
        rules = []
        framed = {choice for panel in self.panels for choice in panel.choices}
        for choice, letter in self._letters.items():
            for number in range(len(choice.options)):
                state = _state(own, letter, number)
                if choice in framed:
                    rules.append(f"{state} .{letter}{number}{{display:grid}}")
                if choice.effects:
                    rules.append(f"{state}{{{choice.effects[number]}}}")
            if choice.seconds_per_step:
                rules += _playing(own, letter, len(choice.options), choice.seconds_per_step)
        return rules


def _state(own: str, letter: str, option: int | str) -> str:
    """The selector of the picture while this option is chosen."""
    return f"{own}:has(.{letter}-choice .o{option}>:checked)"


def _option(name: str, value: str, label: str, picture: str = "", chosen: bool = False, mark: str = "") -> str:
    # JupyterLab takes arrow keys as shortcuts for cells, unless the element that has the focus says that it needs them.
    state = "data-lm-suppress-shortcuts" + (" checked" if chosen else "")
    shown = f'<span aria-hidden="true">{mark}</span>{escape(label)}' if mark else escape(label)
    return (
        f'<label class="o{value}"><input type="radio" name="{name}" value="{value}" {state}>'
        f"{picture}<span>{shown}</span></label>"
    )


def _playing(own: str, letter: str, steps: int, seconds: float) -> list[str]:
    """While "Play" is chosen all frames lie on top of each other, and each is visible for its own stretch of time."""
    state = _state(own, letter, "play")
    name, total = f"{own[1:]}-{letter}", steps * seconds
    rules = [
        f"@keyframes {name}{{0%{{visibility:visible}}{100 / steps:.4f}%,100%{{visibility:hidden}}}}",
        f"@keyframes {name}-last{{0%,100%{{visibility:visible}}}}",
        f"{state} .{letter},{state} .{letter}-choice .touch-options ::after{{display:grid;visibility:hidden;"
        f"animation:{name} {total:g}s step-end}}",
    ]
    for step in range(steps):
        timing = f"animation-delay:{step * seconds:g}s"
        if step == steps - 1:
            timing += f";animation-name:{name}-last;animation-fill-mode:forwards"
        rules.append(f"{state} .{letter}{step},{state} .{letter}-choice .o{step}::after{{{timing}}}")
    return rules
