"""The original's decision: on a plateau with unmet criteria, a separate model; otherwise adapters."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import InvalidRequest
from shared.scorecard.decision import decide
from shared.scorecard.records import ConditionSummary, ScorecardSummary
from shared.scorecard.spec import ScorecardCondition
from shared.scorecard.summary import summarize
from tests.support.scorecards import scorecard_condition, scorecard_event


def condition(name: str, backend: str = "qlora", **fields: Any) -> ConditionSummary:
    made = ScorecardCondition.model_validate(scorecard_condition(name, backend))
    return summarize(made, [scorecard_event(name, "a")]).model_copy(update=fields)


def summary(*conditions: ConditionSummary) -> ScorecardSummary:
    return ScorecardSummary(
        prompt_pack_version="p", git_sha=None, run_started_utc="", spec_path="", conditions=list(conditions)
    )


def test_a_plateau_with_something_unmet_is_an_investment() -> None:
    low = {"task_success": 0.6, "semantic_task_success": 0.5}
    found = decide([summary(condition("ab", **low)), summary(condition("cd", **{**low, "task_success": 0.62}))])
    assert (found.recommended, found.qlora_plateau, found.semantic_unmet) == ("invest_in_custom_model_rnd", True, True)
    assert "The best condition is cd" in found.reason
    assert "unmet: semantic" in found.reason


def test_without_a_plateau_adapters_continue() -> None:
    low = {"semantic_task_success": 0.5}
    for conditions in (
        [condition("ab", task_success=0.6, **low), condition("cd", task_success=0.66, **low)],
        [condition("ab", task_success=0.6, **low)],
        [condition("ab", "base", task_success=0.6, **low), condition("cd", task_success=0.6, **low)],
    ):
        found = decide([summary(*conditions)])
        assert (found.recommended, found.qlora_plateau) == ("continue_qlora_first", False)


def test_a_plateau_with_everything_met_continues() -> None:
    found = decide([summary(condition("ab"), condition("cd"))])
    assert (found.recommended, found.qlora_plateau) == ("continue_qlora_first", True)


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"voxelized_strictness": 0.94}, "strictness_unmet"),
        ({"compile_pass_at_1": 0.89}, "strictness_unmet"),
        ({"semantic_task_success": 0.84}, "semantic_unmet"),
        ({"anti_stub_pass_rate": 0.91}, "anti_stub_unmet"),
        ({"trivial_placeholder_rate": 0.09}, "anti_stub_unmet"),
        ({"placeholder_event_rate": 0.09}, "anti_stub_unmet"),
        ({"construct_richness_mean": 0.19}, "anti_stub_unmet"),
    ],
)
def test_each_bound(fields: dict[str, Any], flag: str) -> None:
    found = decide([summary(condition("ab", **fields), condition("cd", **fields))]).model_dump()
    assert [name for name in ("strictness_unmet", "semantic_unmet", "anti_stub_unmet") if found[name]] == [flag]


def test_nothing_decides_nothing() -> None:
    with pytest.raises(InvalidRequest):
        decide([])
