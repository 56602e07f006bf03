"""A self-evaluation as text, and the parts that lists omit."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.model_card.self_evaluation import (
    FORGETTING_REMEDY,
    KEY,
    TEXTS,
    AnswerSource,
    GeneralAnswer,
    PairedMeasure,
    PreferredAnswers,
    RowSource,
    SampleAnswer,
    SelfEvaluation,
    ServedEvaluation,
    shift_warning,
    summarize,
    without_samples,
)

EVALUATION = SelfEvaluation(
    source=RowSource.HELD_OUT,
    rows=64,
    rows_available=100,
    tokens=1234,
    loss=PairedMeasure(base=2.5, tuned=1.25, row_difference=-1.2, interval=(-1.4, -1.0)),
    token_accuracy=PairedMeasure(base=0.4, tuned=0.6, row_difference=0.21, interval=None),
    notes=("Sample answers are left out because of the operator's setting.",),
)


def test_the_summary_has_both_models_and_how_sure_it_is():
    assert summarize(EVALUATION) == [
        "64 of 100 held-out rows; 1,234 supervised tokens",
        "loss 2.5000 -> 1.2500 nats per token; better by 1.2000 on an average row (1.0000 to 1.4000; each end holds with 95 % confidence)",
        "token accuracy 40.0 % -> 60.0 %; better by 21.0 points on an average row (too few rows to be sure)",
        "Sample answers are left out because of the operator's setting.",
    ]


def test_of_pairs_it_says_which_answer_each_model_prefers():
    preferred = PreferredAnswers(reference="parent", pairs=24, before=11, tuned=23, interval=(0.25, 0.75))
    assert summarize(EVALUATION.model_copy(update={"preferred": preferred}))[3] == (
        "the preferred answer is more likely per token in 11 of 24 pairs for the parent and in 23 for the tuned model;"
        " better by 50.0 points (25.0 to 75.0 points; each end holds with 95 % confidence)"
    )


def test_single_things_are_in_the_singular():
    preferred = PreferredAnswers(reference="base", pairs=1, before=0, tuned=1, interval=None)
    few = {"rows": 1, "rows_available": 1, "tokens": 1, "loss": None, "token_accuracy": None, "preferred": preferred}
    rows, pairs, *_ = summarize(EVALUATION.model_copy(update=few))
    assert rows == "1 of 1 held-out row; 1 supervised token"
    assert "in 0 of 1 pair for the base and in 1 for the tuned model; better by 100.0 points" in pairs


def test_rows_that_were_trained_on_are_called_so():
    first, *_ = summarize(EVALUATION.model_copy(update={"source": RowSource.TRAINING}))
    assert "training rows, because no others can be measured" in first


def test_held_out_rows_that_are_trained_on_too_are_called_so():
    first, *_ = summarize(EVALUATION.model_copy(update={"held_out_copies": 60}))
    assert first.startswith("64 of 100 held-out rows; 60 of them are trained on too, so new rows may do worse; ")


def test_an_evaluation_of_an_earlier_release_is_still_read():
    dumped = EVALUATION.model_dump(mode="json", exclude={"held_out_copies"})
    assert SelfEvaluation.model_validate(dumped) == EVALUATION


def test_lists_leave_the_texts_out_and_keep_the_numbers():
    dumped = EVALUATION.model_dump(mode="json")
    shown = without_samples({"adapter_id": "a", KEY: dumped})
    assert shown["adapter_id"] == "a"
    assert shown[KEY] == {name: value for name, value in dumped.items() if name not in TEXTS}
    assert "sample_answers" in dumped
    assert without_samples({"model_digest": "b"}) == {"model_digest": "b"}


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError):
        SelfEvaluation.model_validate(EVALUATION.model_dump() | {"score": 1})


# -- what is served ----------------------------------------------------------------------------------------------------


def sample(tuned: str, reference: str = "Paris", *, ended: bool = True) -> SampleAnswer:
    """A sample answer by the tuned model."""
    texts = {"prompt": "?", "base": "", "tuned": tuned, "reference": reference}
    return SampleAnswer(line=1, role="user", turns=1, base_ended=True, tuned_ended=ended, **texts)


def served(tuned_loss: float) -> SelfEvaluation:
    """Return the self-evaluation of an NF4 run, whose own loss is 1.25."""
    loss = PairedMeasure(base=1.9, tuned=tuned_loss, row_difference=-0.5, interval=(-0.9, 0.1))
    measured = ServedEvaluation(
        base="tiny", dtype="float32", weights="original", rows=12, tokens=398, loss=loss, token_accuracy=None
    )
    return EVALUATION.model_copy(
        update={
            "precision": "nf4",
            "served": measured,
            "answers_from": AnswerSource.REPLICA,
            "sample_answers": (sample("Paris"), sample(" Paris\n"), sample("Rome"), sample("Paris", ended=False)),
            "general_answers": (
                GeneralAnswer(question="a", base="x", tuned="x", kept=True),
                GeneralAnswer(question="b", base="x", tuned="y", kept=False),
                GeneralAnswer(question="c", base="z", tuned="x", kept=None),
            ),
            "notes": (),
        }
    )


def test_what_is_served_comes_first_and_answers_are_counted() -> None:
    lines = summarize(served(1.3))
    assert lines[1:] == [
        (
            "served (original weights, float32, 12 of these rows): loss 1.9000 -> 1.3000 nats per token; not certain:"
            " between 0.1000 worse and 0.9000 better on an average row"
        ),
        (
            "on the training's own weights (nf4): loss 2.5000 -> 1.2500 nats per token; better by 1.2000 on an average row"
            " (1.0000 to 1.4000; each end holds with 95 % confidence)"
        ),
        (
            "on the training's own weights (nf4): token accuracy 40.0 % -> 60.0 %; better by 21.0 points on an average row"
            " (too few rows to be sure)"
        ),
        "2 of 4 sample answers equal their reference",
        "general answers kept: 1 of 2",
        FORGETTING_REMEDY,
    ]


def test_a_run_that_was_not_published_says_that_nothing_served_was_measured() -> None:
    assert "not measured on served weights" in summarize(EVALUATION.model_copy(update={"precision": "nf4"}))


@pytest.mark.parametrize(("tuned_loss", "is_warned"), [(1.25, False), (1.5, False), (1.6, True), (2.4, True)])
def test_a_served_loss_a_quarter_over_the_trainers_is_warned_of(tuned_loss: float, is_warned: bool) -> None:
    warning = shift_warning(served(tuned_loss))
    assert bool(warning) is is_warned
    assert not warning or "quant.base none" in warning
