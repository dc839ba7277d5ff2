"""Right implementations pass, wrong ones are rejected and named, whoever wrote them and however."""

import pytest
from answers import RIGHT, WRONG, Answer

from helpers.checks import judge_implementation
from helpers.checks.exercise import Exercise, Misconception, Quiz
from helpers.checks.registry import CHAPTERS, chapter

SEEDS = (0, 2026)
EXERCISES = [e for name in CHAPTERS for e in chapter(name) if isinstance(e, Exercise)]
QUIZZES = [q for name in CHAPTERS for q in chapter(name) if isinstance(q, Quiz)]
MISCONCEPTIONS = [(exercise, mistake) for exercise in EXERCISES for mistake in exercise.misconceptions]


@pytest.mark.parametrize("answer", RIGHT, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_answer_passes(answer: Answer, seed: int) -> None:
    report = judge_implementation(answer.exercise, answer.implementation, seed)
    assert report.passed, report.message
    assert report.score == 1.0


@pytest.mark.parametrize("answer", WRONG, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_answer_is_rejected_and_named(answer: Answer, seed: int) -> None:
    report = judge_implementation(answer.exercise, answer.implementation, seed)
    assert not report.passed, report.message
    assert report.score < 1.0
    if answer.named:
        assert answer.named in report.misconceptions, report.message


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.id)
@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_passes_its_own_check(exercise: Exercise, seed: int) -> None:
    report = judge_implementation(exercise.id, exercise.reference, seed)
    assert report.passed, report.message


@pytest.mark.parametrize(
    ("exercise", "mistake"),
    MISCONCEPTIONS,
    ids=[f"{e.id}-{m.id}-{n}" for n, (e, m) in enumerate(MISCONCEPTIONS)],
)
def test_every_misconception_is_rejected_and_named(exercise: Exercise, mistake: Misconception) -> None:
    report = judge_implementation(exercise.id, mistake.implementation, seed=1)
    assert not report.passed
    assert mistake.id in report.misconceptions, report.message


@pytest.mark.parametrize("quiz", QUIZZES, ids=lambda q: q.id)
@pytest.mark.parametrize("letter", "ABCD")
def test_a_quiz_explains_the_choice_and_once_it_is_right_all_others(quiz: Quiz, letter: str) -> None:
    if letter not in quiz.explanations:
        pytest.skip("no such choice")
    report = judge_implementation(quiz.id, letter)
    explained = {choice for choice, text in quiz.explanations.items() if text in report.message}
    assert report.passed == (letter == quiz.answer)
    assert explained == (set(quiz.explanations) if report.passed else {letter})
