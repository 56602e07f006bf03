"""General questions: which answers count, and what is compared."""

from __future__ import annotations

import pytest

from shared.model_card.general_questions import GeneralQuestion, all_general_questions, general_questions

FRANCE, WATER, *_, COLORS, DOG = general_questions()


def test_eight_of_two_hundred_are_queried_after_a_training() -> None:
    assert len(general_questions()) == 8
    assert len({one.question for one in all_general_questions()}) == 200


@pytest.mark.parametrize("question", all_general_questions(), ids=lambda one: one.question)
def test_every_question_can_be_answered_and_does_not_answer_itself(question: GeneralQuestion) -> None:
    assert question.is_answered_by(" ".join(group[0] for group in question.right))
    assert question.is_answered_by(question.question) is (question is DOG)


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("The capital of France is Paris.", True),
        ("paris", True),
        ('{"capital": "Paris"}', False),
        ("```\nParis\n```", False),
        ("Parisian cafés", False),
        ("", False),
    ],
)
def test_an_answer_names_the_fact_in_prose(answer: str, is_right: bool) -> None:
    assert FRANCE.is_answered_by(answer) is is_right


def test_each_group_of_words_must_be_named() -> None:
    assert COLORS.is_answered_by("1. Red\n2. Blue\n3. Yellow")
    assert not COLORS.is_answered_by("Red and blue.")
    assert WATER.is_answered_by("It is H₂O.")
    assert DOG.is_answered_by("Dogs are loyal.")


@pytest.mark.parametrize(
    ("base", "tuned", "kept"),
    [("Paris.", "Paris.", True), ("Paris.", "Rome.", False), ("Rome.", "Paris.", None)],
)
def test_only_what_the_base_knows_can_be_kept(base: str, tuned: str, kept: bool | None) -> None:
    assert FRANCE.judge(base, tuned).kept is kept
