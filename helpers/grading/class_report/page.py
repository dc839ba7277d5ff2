"""The page that `report` writes: what the template shows, worked out from the results."""

from __future__ import annotations

import datetime
import itertools
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.colors import to_hex, to_rgb

from helpers import theme
from helpers.grading.class_report.mistakes import GENERAL, STOPPED, explanation, short_name
from helpers.grading.class_report.pseudonyms import OwnNames, Pseudonyms
from helpers.grading.results import (
    GRADED,
    NOT_GRADED,
    NOT_WRITTEN,
    NOTHING,
    SET_ASIDE,
    ClassResults,
    Exercise,
    Result,
    Work,
)

_LONGEST_TEXT = 400
_STEPS = 10  # of the colour scale, from no point to all
_BINS = ("0", "1–25", "26–50", "51–75", "76–99", "100")  # per cent of an exercise's points
_BAR, _GAP, _HEIGHT = 38, 6, 60
_MOST_LETTERS = 2
_MOST_COMMON = 8
_CHOICE = "chose_"  # begins the ids of wrong choices in quizzes


def page(results: ClassResults, names: OwnNames | Pseudonyms, made: datetime.datetime) -> str:
    """The whole page as HTML. `made` is the time that it names."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "prose": _prose, "several": several}
    template = environment.get_template("page.html.j2")
    return template.render(_Page(results, names).context(), made=made, theme=theme, scale=_scale())


def tidy(text: str) -> str:
    """A text from a submission in one line of readable characters, not too long."""
    plain = "".join(" " if character.isspace() else character for character in text)
    plain = "".join(character for character in plain if unicodedata.category(character) not in ("Cc", "Cf", "Cs"))
    plain = " ".join(plain.split())
    return plain if len(plain) <= _LONGEST_TEXT else f"{plain[:_LONGEST_TEXT]} ..."


@dataclass(frozen=True)
class Mistake:
    """A named mistake in one exercise: the letter that stands for it there, and how many students made it.

    Of a quiz it is the letter that was chosen.
    """

    letter: str
    id: str
    name: str
    told: str
    students: int

    @property
    def is_choice(self) -> bool:
        return self.id.startswith(_CHOICE)


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram, in SVG's units."""

    x: float
    height: float
    label: str
    students: int


@dataclass(frozen=True)
class Summary:
    """How the class did in one exercise."""

    exercise: Exercise
    scores: list[float]
    unscored: int
    not_written: int
    bars: list[Bar]
    mistakes: list[Mistake]

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def full(self) -> int:
        return sum(score >= self.exercise.points for score in self.scores)

    @property
    def letters(self) -> dict[str, str]:
        return {mistake.id: mistake.letter for mistake in self.mistakes}


@dataclass(frozen=True)
class Cell:
    """One cell of the table of students by exercises: what it says, its colour's class, and the same in words."""

    text: str
    kind: str
    letters: str = ""
    title: str = ""


class _Page:
    def __init__(self, results: ClassResults, names: OwnNames | Pseudonyms) -> None:
        self.results, self.names = results, names
        self.students = sorted(results.people, key=lambda student: _alphabetical(names.label(student)))
        self.works = {
            chapter: [results.works[student, chapter] for student in self.students] for chapter in results.exercises
        }
        self.summaries = {
            chapter: [self._summary(exercise) for exercise in exercises]
            for chapter, exercises in results.exercises.items()
        }

    def context(self) -> dict[str, object]:
        """What the template shows."""
        works = [work for chapter in self.works.values() for work in chapter]
        graded = [work for work in works if work.state == GRADED]
        return {
            "anonymous": self.names.anonymous,
            "person": self._person,
            "students": self.students,
            "chapters": [self._chapter(chapter) for chapter in self.works],
            "summaries": self.summaries,
            "unsafe": [work for work in works if work.sandbox is False],
            "unknown_sandbox": sum(work.sandbox is None for work in graded),
            "without_details": sum(not work.has_verdicts for work in graded),
            "problems": [(problem, self._text(problem.text)) for problem in self.results.problems],
            "to_read": list(self._to_read()),
            "set_aside": [(work, self._text(work.reason)) for work in works if work.state == SET_ASIDE],
            "not_graded": [work for work in works if work.state == NOT_GRADED],
            "outdated": [work for work in works if work.outdated],
            "nothing": {chapter: self._with_state(chapter, NOTHING) for chapter in self.works},
            "late": [(work, _duration(work.seconds_late)) for work in works if work.seconds_late or work.penalty],
            "happened": [(work, told) for work in works if (told := self._happened(work))],
            "common": self._common(),
            "rows": [(student, *self._row(student)) for student in self.students],
            "general": GENERAL,
        }

    def _person(self, student: str) -> Markup:
        """How a student is called on the page. <bdi> keeps a name's direction of writing to itself."""
        name = tidy(self.names.full_name(student))
        shown = escape(tidy(self.names.label(student)))
        return (
            Markup("<bdi>{}</bdi> <bdi class=name>{}</bdi>").format(shown, name)
            if name
            else Markup("<bdi>{}</bdi>").format(shown)
        )

    def _text(self, text: str) -> str:
        return tidy(self.names.text(text))

    def _with_state(self, chapter: str, state: str) -> list[str]:
        return [work.student for work in self.works[chapter] if work.state == state]

    def _chapter(self, chapter: str) -> dict[str, object]:
        works = self.works[chapter]
        scored = [work.score for work in works if work.results]
        states = Counter(work.state for work in works)
        return {
            "name": chapter,
            "handed_in": len(works) - states[NOTHING],
            "graded": states[GRADED],
            "set_aside": states[SET_ASIDE],
            "not_graded": states[NOT_GRADED],
            "nothing": states[NOTHING],
            "late": sum(work.seconds_late > 0 for work in works),
            "to_read": sum(len(work.manual) for work in works),
            "mean": sum(scored) / len(scored) if scored else None,
            "points": sum(exercise.points for exercise in self.results.exercises[chapter]),
        }

    def _summary(self, exercise: Exercise) -> Summary:
        results = [work.results[exercise.id] for work in self.works[exercise.chapter] if exercise.id in work.results]
        scores = [result.score for result in results if result.score is not None]
        counts = Counter(mistake for result in results for mistake in set(result.misconceptions))
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return Summary(
            exercise=exercise,
            scores=scores,
            unscored=len(results) - len(scores),
            not_written=sum(result.state == NOT_WRITTEN for result in results),
            bars=_bars(scores, exercise.points),
            mistakes=[
                Mistake(
                    letter=mistake.removeprefix(_CHOICE) if mistake.startswith(_CHOICE) else letter,
                    id=mistake,
                    name=short_name(tidy(mistake)),
                    told=explanation(exercise.chapter, exercise.id, mistake),
                    students=students,
                )
                for letter, (mistake, students) in zip(_letters(), ordered, strict=False)
            ],
        )

    def _to_read(self) -> Iterator[tuple[Exercise, list[str]]]:
        """What a person has to grade, by exercise."""
        for chapter, exercises in self.results.exercises.items():
            for exercise in exercises:
                waiting = [work.student for work in self.works[chapter] if exercise.id in work.manual]
                if waiting:
                    yield exercise, waiting

    def _happened(self, work: Work) -> list[str]:
        """Sentences on what was put right, started again or cut short."""
        told = list(work.notes)
        for exercise, result in work.results.items():
            told += [f"`{exercise}`: {note}" for note in result.notes if note not in work.notes]
            told += [f"`{exercise}`: {GENERAL[mistake]}" for mistake in result.misconceptions if mistake in STOPPED]
        return [self._text(sentence) for sentence in told]

    def _common(self) -> list[tuple[str, list[tuple[Exercise, Mistake, int]]]]:
        """The mistakes that most students made, in exercises and in quizzes, with the number of those judged."""
        found = [
            (summary.exercise, mistake, len(summary.scores))
            for summaries in self.summaries.values()
            for summary in summaries
            for mistake in summary.mistakes
            if mistake.id not in GENERAL
        ]
        found.sort(key=lambda item: -item[1].students)
        in_exercises = [item for item in found if not item[1].is_choice]
        in_quizzes = [item for item in found if item[1].is_choice]
        both = (("In exercises", in_exercises[:_MOST_COMMON]), ("In quizzes", in_quizzes[:_MOST_COMMON]))
        return [(place, items) for place, items in both if items]

    def _row(self, student: str) -> tuple[float | None, list[Cell]]:
        """A student's points over all chapters, and the cells."""
        cells, total = [], None
        for chapter, summaries in self.summaries.items():
            work = self.results.works[student, chapter]
            if work.results:
                total = (total or 0.0) + work.score
            cells += [_cell(work, summary) for summary in summaries]
        return total, cells


def _cell(work: Work, summary: Summary) -> Cell:
    exercise = summary.exercise
    result = work.results.get(exercise.id)
    if result is None:
        text, kind = {NOTHING: ("", "nothing"), SET_ASIDE: ("×", "aside")}.get(work.state, ("…", "waiting"))
        return Cell(text, kind, title="" if work.state == NOTHING else f"{exercise.id}: {work.state}")
    letters = [summary.letters[mistake] for mistake in result.misconceptions]
    shown = " ".join(letters[:_MOST_LETTERS]) + ("+" if len(letters) > _MOST_LETTERS else "")
    return Cell(*_look(result, exercise.points), letters=shown, title=_title(result, exercise))


def _look(result: Result, points: float) -> tuple[str, str]:
    """What a cell says, and the class of its colour."""
    if result.score is None:
        return "?", "unread"
    if result.state == "not judged" and not result.score:
        return "!", "unjudged"
    if result.state == NOT_WRITTEN and not result.score:
        return "–", "unwritten"
    return _number(result.score), f"s{_step(result.score, points)}"


def _title(result: Result, exercise: Exercise) -> str:
    if result.state == "passed":
        return ""
    score = "no score yet" if result.score is None else f"{_number(result.score)} of {_number(exercise.points)}"
    mistakes = ", ".join(short_name(tidy(mistake)) for mistake in result.misconceptions)
    return f"{exercise.id}: {score}, {result.state}" + (f"; {mistakes}" if mistakes else "")


def _step(score: float, points: float) -> int:
    """The step of the colour scale: the first only for no point at all, the last only for all of them."""
    if score <= 0:
        return 0
    if score >= points:
        return _STEPS
    return min(max(round(score / points * _STEPS), 1), _STEPS - 1)


def _scale() -> list[tuple[str, str]]:
    """The colours of the steps, and those of the text on them: the more points are missing, the darker.

    One hue that gets steadily darker, so that it reads the same with every kind of colour vision, and in grey.
    """
    paper, dark = to_rgb(theme.PAPER), to_rgb(theme.weight_colour(0.25))
    shares = [1 - 0.92 * step / _STEPS for step in range(_STEPS + 1)]
    colours = [
        to_hex([share * end + (1 - share) * start for start, end in zip(paper, dark, strict=True)]) for share in shares
    ]
    return [(colour, theme.label_colour(colour)) for colour in colours]


def _bars(scores: list[float], points: float) -> list[Bar]:
    counts = Counter(_bin(score, points) for score in scores)
    most = max(counts.values(), default=1)
    return [
        Bar(
            x=number * (_BAR + _GAP),
            height=round(counts[number] / most * _HEIGHT, 1),
            label=label,
            students=counts[number],
        )
        for number, label in enumerate(_BINS)
    ]


def _bin(score: float, points: float) -> int:
    if score <= 0:
        return 0
    if score >= points:
        return len(_BINS) - 1
    return min(int(score / points * 4) + 1, len(_BINS) - 2)


def _alphabetical(label: str) -> tuple[str, str]:
    """A sorting key that puts "é" beside "e"."""
    return unicodedata.normalize("NFKD", label).casefold(), label


def _letters() -> Iterator[str]:
    """a, b, ... z, aa, ab, ..."""
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)


def _number(value: float | None) -> str:
    """A number of points in at most two decimals."""
    return "–" if value is None else f"{round(value, 2):g}"


def several(count: int, one: str, more: str | None = None) -> str:
    """ "1 student", "2 students"."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{several(days, 'day')} {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _prose(text: str) -> Markup:
    """A text with `...` set as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece) for number, piece in enumerate(pieces)
    )
