"""Findings on a file of preferences: contradictions and length."""

from __future__ import annotations

import json

import pytest

from shared.contract.sections import PreferenceSection
from shared.datasets.preferences.findings import (
    PreferenceFindings,
    rated_warnings,
    refuse_contradictions,
    refuse_one_label,
    warnings,
)
from shared.datasets.preferences.rows import PairRecord, parse_pair
from shared.datasets.report_types import RatedReport
from shared.errors import DatasetInvalid
from tests.support.preference_rows import plain_row


def findings(*rows: dict[str, object]) -> PreferenceFindings:
    found = PreferenceFindings()
    for line, row in enumerate(rows, start=1):
        record = parse_pair(json.dumps(row).encode()).record
        assert isinstance(record, PairRecord)
        found.add(record, line)
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


def test_preferring_what_is_longer_is_reported() -> None:
    longer = findings(*[plain_row(str(n), "A long answer.", "No.") for n in range(9)], plain_row()).report()
    assert any("sigmoid_norm" in warning for warning in warnings(longer))
    shorter = findings(*[plain_row(str(n), "No.", "A long answer.") for n in range(9)]).report()
    assert warnings(shorter) == []


@pytest.mark.parametrize(("good", "bad", "advice"), [(5, 0, "label is false"), (0, 5, "label is true")])
def test_answers_of_one_label_are_refused(good: int, bad: int, advice: str) -> None:
    with pytest.raises(DatasetInvalid) as refused:
        refuse_one_label(RatedReport(good=good, bad=bad), "data.train_file")
    assert refused.value.code == "KTO_ONE_LABEL"
    assert advice in refused.value.remedy
    refuse_one_label(RatedReport(good=1, bad=1), "data.train_file")


@pytest.mark.parametrize(
    ("weights", "is_reported"), [((1, 1), True), ((1, 4), False), ((1, 3), False), ((1, 2.9), True), ((1, 5), True)]
)
def test_weights_that_drown_one_kind_are_reported(weights: tuple[float, float], is_reported: bool) -> None:
    section = PreferenceSection(desirable_weight=weights[0], undesirable_weight=weights[1])
    assert bool(rated_warnings(RatedReport(good=40, bad=10), section)) is is_reported
    assert rated_warnings(RatedReport(good=40, bad=10), PreferenceSection(desirable_weight=weights[0])) == []


@pytest.mark.parametrize(
    ("weights", "good", "advice"),
    [
        ((1, 1), 40, "out, and both kinds weigh the same."),
        ((1, 100), 4000, "over 100, so add answers that are rated bad."),
    ],
)
def test_the_advice_on_weights_says_what_helps(weights: tuple[float, float], good: int, advice: str) -> None:
    section = PreferenceSection(desirable_weight=weights[0], undesirable_weight=weights[1])
    [warning] = rated_warnings(RatedReport(good=good, bad=10), section)
    assert warning.endswith(advice)
