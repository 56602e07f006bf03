"""Means, medians and sums of events."""

from __future__ import annotations

import pytest

from shared.scorecard.spec import ScorecardCondition
from shared.scorecard.summary import summarize
from tests.support.scorecards import scorecard_condition, scorecard_event

CONDITION = ScorecardCondition.model_validate(scorecard_condition("new"))


def test_numbers_are_those_of_the_events() -> None:
    events = [
        scorecard_event("new", "a"),
        scorecard_event("new", "b", attempts=3, canonical_pass=False, placeholder_marker_hits=4, anti_stub_pass=False),
        scorecard_event("new", "c", attempts=2, is_valid=False, repair_stalled=True),
        scorecard_event("new", "d", task_success=False, construct_richness_score=0.1),
    ]
    found = summarize(CONDITION, events)
    assert (found.total_tasks, found.compile_pass_at_1, found.compile_pass_at_n) == (4, 0.5, 0.75)
    assert (found.canonical_pass, found.task_success, found.semantic_task_success) == (0.5, 0.5, 0.75)
    assert found.repair_depth_mean == pytest.approx(2 / 3)
    assert (found.repair_stall_rate, found.time_to_first_valid_p50_ms) == (0.25, 100)
    assert (found.latency_p50_ms, found.latency_p95_ms) == (150, 300)
    assert (found.tokens_in_total, found.tokens_out_total, found.placeholder_hits_total) == (40, 80, 4)
    assert (found.placeholder_event_rate, found.anti_stub_pass_rate) == (0.25, 0.5)
    assert found.construct_richness_mean == pytest.approx(0.4)


def test_what_never_compiled_has_no_depth_and_no_time() -> None:
    found = summarize(CONDITION, [scorecard_event("new", "a", is_valid=False)])
    assert (found.repair_depth_mean, found.time_to_first_valid_p50_ms) == (None, None)
    with pytest.raises(ValueError):
        summarize(CONDITION, [])
