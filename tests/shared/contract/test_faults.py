"""Pydantic's errors in plain words, with an unknown field before the missing field for which it was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.faults import reason_of, unknown_before_missing
from shared.contract.flat_keys import parse_contract
from shared.errors import ContractRejected


def fault(kind: str, *path: str) -> dict[str, Any]:
    return {"type": kind, "loc": path, "msg": "Value error, words"}


def test_reasons_are_plain_words() -> None:
    assert reason_of(fault("extra_forbidden", "a")) == "this field does not exist"
    assert reason_of(fault("value_error", "a")) == "words"


@pytest.mark.parametrize(
    ("paths", "first"),
    [
        ([("missing", "data", "file"), ("extra_forbidden", "data", "fil")], "fil"),
        ([("missing", "data"), ("extra_forbidden", "exec", "rat"), ("extra_forbidden", "dat")], "dat"),
        ([("missing", "data"), ("extra_forbidden", "exec", "rat")], "rat"),
        # Of another branch of a union, and after a fault other than a missing field.
        ([("missing", "a", "file"), ("extra_forbidden", "b", "fil")], "file"),
        ([("int_type", "data", "file"), ("extra_forbidden", "data", "fil")], "file"),
    ],
)
def test_the_unknown_field_leads(paths: list[tuple[str, ...]], first: str) -> None:
    faults = [fault(*path) for path in paths]
    found = unknown_before_missing(faults)
    assert found[0]["loc"][-1] == first
    assert sorted(map(str, found)) == sorted(map(str, faults))


@pytest.mark.parametrize(
    ("sections", "param", "meant"),
    [
        (
            {"optimizer": {"learnin_rate": 1}, "data": {"train_file": "f"}},
            "optimizer.learnin_rate",
            "exec.learning_rate",
        ),
        ({"data": {"train_fil": "x"}}, "data.train_fil", "data.train_file"),
        ({"dat": {"train_file": "x"}}, "dat", "data"),
    ],
)
def test_a_misspelt_field_is_named_with_what_was_meant(sections: dict[str, Any], param: str, meant: str) -> None:
    with pytest.raises(ContractRejected) as refused:
        parse_contract(sections)
    error = refused.value
    assert (error.code, error.param, error.message) == (
        "CONTRACT_INVALID",
        param,
        f"{param}: this field does not exist.",
    )
    assert error.remedy.startswith(f"Did you mean {meant}? ")
    assert "mens plan" in error.remedy, "which needs no installation"
