"""A self-evaluation as text, and what lists leave out of it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.model_card.self_evaluation import (
    KEY,
    PairedMeasure,
    RowSource,
    SelfEvaluation,
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
    notes=("Sample answers are left out, as the operator has set.",),
)


def test_the_summary_has_both_models_and_how_sure_it_is():
    assert summarize(EVALUATION) == [
        "64 of 100 held-out rows; 1,234 supervised tokens",
        "loss 2.5000 -> 1.2500 nats per token; -1.2000 a row, between -1.4000 and -1.0000",
        "token accuracy 40.0 % -> 60.0 %; +21.0 a row, too few rows for an interval",
        "Sample answers are left out, as the operator has set.",
    ]


def test_rows_that_were_trained_on_are_called_so():
    first, *_ = summarize(EVALUATION.model_copy(update={"source": RowSource.TRAINING}))
    assert "training rows, because none is held out" in first


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
    assert shown[KEY] == {name: value for name, value in dumped.items() if name != "sample_answers"}
    assert "sample_answers" in dumped
    assert without_samples({"model_digest": "b"}) == {"model_digest": "b"}


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError):
        SelfEvaluation.model_validate(EVALUATION.model_dump() | {"score": 1})
