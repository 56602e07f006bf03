"""The last lines of a job: the measurements, and a wrong answer of each kind."""

from __future__ import annotations

from cli.client.self_evaluation import describe_evaluation
from shared.model_card.self_evaluation import KEY, GeneralAnswer, RowSource, SampleAnswer, SelfEvaluation

RIGHT = SampleAnswer(
    line=3, role="user", prompt="a?", turns=1, reference="A", base="x", tuned="A", base_ended=True, tuned_ended=True
)
WRONG = RIGHT.model_copy(update={"line": 7, "prompt": "b?", "reference": "B", "tuned": "C"})
EVALUATION = SelfEvaluation(
    source=RowSource.HELD_OUT,
    rows=8,
    rows_available=8,
    tokens=40,
    loss=None,
    token_accuracy=None,
    sample_answers=(RIGHT, WRONG),
    general_answers=(
        GeneralAnswer(question="France?", base="Paris.", tuned='{"a": "Paris"}', kept=False),
        GeneralAnswer(question="Hot?", base="cold", tuned="cold", kept=True),
    ),
)


def lines(evaluation: SelfEvaluation, *, brief: bool) -> list[str]:
    return list(describe_evaluation({KEY: evaluation.model_dump(mode="json")}, "measured ", brief=brief))


def test_the_last_lines_count_the_right_answers_and_show_a_wrong_one_of_each_kind() -> None:
    shown = lines(EVALUATION, brief=True)
    assert "         1 of 2 sample answers equal their reference" in shown
    assert "         general answers kept: 1 of 2" in shown
    assert shown[-8:] == [
        "a row that it answers differently, line 7:",
        "  question  b?",
        "  expected  B",
        "  got       C",
        "a general question no longer answered correctly:",
        "  question  France?",
        "  base      Paris.",
        '  got       {"a": "Paris"}',
    ]


def test_the_system_turn_of_a_row_is_shown() -> None:
    for brief in (True, False):
        assert not any("  system " in line for line in lines(EVALUATION, brief=brief))
        wrong = WRONG.model_copy(update={"system": "Be brief."})
        shown = lines(EVALUATION.model_copy(update={"sample_answers": (wrong,)}), brief=brief)
        assert "  system    Be brief." in shown


def test_where_all_is_right_no_answer_is_shown() -> None:
    right = EVALUATION.model_copy(update={"sample_answers": (RIGHT,), "general_answers": ()})
    assert lines(right, brief=True)[-1] == "         1 of 1 sample answer equals its reference"


def test_general_questions_that_the_base_does_not_know_prove_nothing() -> None:
    unknown = GeneralAnswer(question="Hot?", base="x", tuned="cold", kept=None)
    shown = lines(EVALUATION.model_copy(update={"general_answers": (unknown, unknown)}), brief=True)
    assert any("not known, because the base answers none of the 2 questions" in line for line in shown)


def test_the_whole_record_has_every_answer() -> None:
    shown = lines(EVALUATION, brief=False)
    assert [line for line in shown if line.startswith("sample ")] == ["sample 1, line 3", "sample 2, line 7"]
    assert "general question, lost: France?" in shown
    assert "general question, kept: Hot?" in shown
