"""The check of the first loss: its limits by precision, and values that exceed them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import worker.training.preference.first_loss
from shared.contract.sections import PreferenceSection
from shared.errors import JobFailed
from worker.training.preference.first_loss import check_first_loss
from worker.training.preference.losses import first_loss

CPU = torch.device("cpu")


def check(fields: dict[str, Any], loss: float, margin: float = 0.0, tokens: float = 100.0) -> None:
    section = PreferenceSection.model_validate(fields)
    check_first_loss(section, CPU, first_loss(section), loss, margin**2, tokens)


@pytest.mark.parametrize(
    ("fields", "loss"), [({}, math.log(2)), ({"loss": "ipo"}, 25.0), ({"loss": "sigmoid_norm"}, math.log(2))]
)
def test_what_an_untrained_adapter_gives_passes(fields: dict[str, Any], loss: float) -> None:
    check(fields, loss)
    check(fields, loss * (1 + 5e-5), 5e-4)


@pytest.mark.parametrize(
    ("fields", "loss", "margin"),
    [
        ({}, math.log(2) + 2e-4, 0.0),
        ({}, math.log(2), 2e-3),
        ({"loss": "ipo"}, 25.01, 0.0),
        ({}, math.nan, 0.0),
        ({}, math.log(2), math.inf),
    ],
)
def test_anything_else_is_refused(fields: dict[str, Any], loss: float, margin: float) -> None:
    with pytest.raises(JobFailed) as refused:
        check(fields, loss, margin)
    assert refused.value.code == "REFERENCE_MISMATCH"


def test_bfloat16_rounds_and_a_wrong_reference_is_further_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.training.preference.first_loss, "compute_dtype_name", lambda _: "bfloat16")
    check({}, math.log(2) + 0.02, 0.4)
    with pytest.raises(JobFailed):
        check({}, math.log(2), 5.0)
    with pytest.raises(JobFailed):
        check({}, math.log(2), 0.4, tokens=2.0)
