"""Findings on a file of preferences: contradictions and length."""

from __future__ import annotations

import json

import pytest

from shared.datasets.preferences.findings import PreferenceFindings, refuse_contradictions, warnings
from shared.datasets.preferences.rows import parse_pair
from shared.errors import DatasetInvalid
from tests.support.preference_rows import plain_row


def findings(*rows: dict[str, object]) -> PreferenceFindings:
    found = PreferenceFindings()
    for line, row in enumerate(rows, start=1):
        found.add(parse_pair(json.dumps(row).encode()).record, line)
    return found


def test_the_opposite_preference_contradicts_and_the_same_one_does_not() -> None:
    opposite = plain_row(chosen="No.", rejected="Because.")
    report = findings(plain_row(), plain_row(), opposite, plain_row("Who?", "No.", "Because.")).report()
    assert (report.pairs, report.contradicting) == (4, 1)


def test_many_contradictions_refuse_the_file() -> None:
    opposite = plain_row(chosen="No.", rejected="Because.")
    with pytest.raises(DatasetInvalid) as refused:
        refuse_contradictions(findings(plain_row(), opposite, opposite, plain_row()).report(), "data.train_file")
    assert refused.value.code == "PREFERENCES_CONTRADICT"
    refuse_contradictions(findings(plain_row(), opposite, *[plain_row(str(n)) for n in range(6)]).report(), "x")


def test_preferring_what_is_longer_is_told() -> None:
    longer = findings(*[plain_row(str(n), "A long answer.", "No.") for n in range(9)], plain_row()).report()
    assert any("sigmoid_norm" in warning for warning in warnings(longer))
    shorter = findings(*[plain_row(str(n), "No.", "A long answer.") for n in range(9)]).report()
    assert warnings(shorter) == []
