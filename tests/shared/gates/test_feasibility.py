"""Gates that cannot pass are named beforehand; those that can pass are not."""

from __future__ import annotations

from typing import Any

import pytest

from shared.gates.evidence import TrainingReport
from shared.gates.feasibility import ENOUGH_ITEMS, RunFacts, hopeless_gates
from shared.gates.policy import GatePolicy
from tests.support.gate_evidence import TRAINED

RUN, UNKNOWN = {"eval": "eval-1", "file": "file-1"}, RunFacts()
SAMPLED = RUN | {"samples": 4, "temperature": 0.7}


def said(gates: dict[str, Any], run: dict[str, Any] = RUN, facts: RunFacts = UNKNOWN, **given: Any) -> dict[str, str]:
    """Reasons by the name of the gate's row."""
    policy = GatePolicy.model_validate({"version": "1", "runs": {"bench": run}, "gates": gates})
    return {found.row: found.reason for found in hopeless_gates(policy, {"bench": facts}, **given)}


def items(count: int, *criteria: str) -> RunFacts:
    return RunFacts(count, {"web": count}, frozenset(criteria) if criteria else None)


ON_RUNS: dict[str, Any] = {
    "eval_local": {"run": "bench"},
    "pass_at_k": {"run": "bench"},
    "collateral_damage": {"run": "bench"},
    "per_context": {"web": {"run": "bench"}},
    "mcp_tool_schema": {"applies": True, "run": "bench"},
    "anti_stub": {"run": "bench"},
    "review_recurrence": {"run": "bench"},
    "evals": {"quality": {"run": "bench", "min_score": 1.0, "max_loss": 0.1}},
}


@pytest.mark.parametrize("name", list(ON_RUNS))
@pytest.mark.parametrize("facts", [items(100), RunFacts()], ids=["known", "unknown"])
def test_gate_with_enough_items_can_pass(name: str, facts: RunFacts) -> None:
    assert said({name: ON_RUNS[name]}, facts=facts) == {}


@pytest.mark.parametrize("name", [name for name in ON_RUNS if name != "collateral_damage"])
def test_gate_with_fewer_items_than_it_needs_cannot_pass(name: str) -> None:
    [reason] = said({name: ON_RUNS[name]}, facts=items(10)).values()
    assert "needs 20 items, and the run has 10" in reason


@pytest.mark.parametrize(
    ("gate", "count", "reason"),
    [
        (
            {"max_loss": 0.03},
            40,
            "mean score: 40 items do not exclude a loss of 0.03, even if both models answer alike; about",
        ),
        ({"max_loss": 0.03}, 120, ""),
        ({"max_loss": 0.1}, 30, ""),
        ({"max_loss": 0.0001}, ENOUGH_ITEMS, ""),
        ({"min_score": 0.5, "min_items": 500}, 499, "mean score needs 500 items, and the run has 499"),
        ({"min_score": 0.5, "min_items": 500}, 600, ""),
        ({"min_score": 0.5}, 0, "mean score: the run has no items"),
        ({"min_win_rate": 0.5}, 20, ""),
        ({"min_win_rate": 0.5, "max_loss": 0.1}, 20, ""),
        ({"min_win_rate": 0.9}, 12, "win rate: the interval would not lie above 0.9, even if the adapter is right"),
    ],
)
def test_what_the_number_of_items_allows(gate: dict[str, Any], count: int, reason: str) -> None:
    found = said({"evals": {"quality": {"run": "bench"} | gate}}, facts=items(count))
    assert found.get("evals.quality", "").startswith(reason) and bool(found) == bool(reason)


def test_gates_that_share_the_error_level_need_more_items() -> None:
    gate = {"run": "bench", "max_loss": 0.05}
    alone, two = {"one": gate}, {"one": gate, "two": gate}
    enough, more = 50, 60
    assert said({"evals": alone}, facts=items(enough)) == {}
    assert said({"evals": alone | {"two": gate | {"block": False}}}, facts=items(enough)) == {}, (
        "a warning takes no share"
    )
    found = said({"evals": two}, facts=items(enough))
    assert set(found) == {"evals.one", "evals.two"}
    assert found["evals.one"].endswith(" are needed (its share of the error level is 0.025)")
    assert said({"evals": two}, facts=items(more)) == {}
    wide = two | {"two": gate | {"max_loss": 0.3}}
    assert said({"evals": wide}, facts=items(enough)) == {}, (
        "the first passes, and leaves the whole level to the second"
    )


def test_share_of_the_incumbents_score_is_judged_at_its_best() -> None:
    [reason] = said({"collateral_damage": {"run": "bench"}}, facts=items(10)).values()
    assert reason.startswith(
        "mean score: 10 items do not exclude a loss of 0.05, even if both models answer alike; about"
    )


@pytest.mark.parametrize(
    ("share", "count", "reason"),
    [
        (0.05, None, ""),
        (0.05, 100, ""),
        (0.005, None, "mean score of general questions: 200 items do not exclude a loss of 0.005, even if"),
        (0.05, 10, "mean score of the parent's support: 10 items do not exclude a loss of 0.05, even if"),
    ],
)
def test_what_a_model_forgets_can_be_shown_with_enough_items(share: float, count: int | None, reason: str) -> None:
    policy = GatePolicy.model_validate({"version": "1", "gates": {"forget": {"max_degradation": share}}})
    found = list(hopeless_gates(policy, {}, parents_items={"the parent's support": count}))
    assert [one.reason[: len(reason)] for one in found] == ([reason] if reason else [])


def test_gain_beyond_what_a_run_can_show() -> None:
    gate = {"review_recurrence": {"run": "bench", "min_delta": 1.0}}
    [reason] = said(gate, facts=items(100)).values()
    assert reason.startswith(
        "answers without a repeated finding: a gain of 1 is not shown, even if the adapter is right"
    )


def test_context_without_items() -> None:
    gates = {"per_context": {"cli": {"run": "bench"}}}
    assert said(gates, facts=items(100)) == {
        "per_context.cli": "parse rate: the run has no items; scope compliance: the run has no items"
    }


def test_criterion_that_the_eval_lacks() -> None:
    gates = {"evals": {"quality": {"run": "bench", "criterion": "exact", "min_score": 0.5}}}
    assert said(gates, facts=items(100, "other")) == {"evals.quality": "the eval eval-1 has no criterion 'exact'"}
    assert said(gates, facts=items(100, "exact")) == {}


def test_more_tries_than_answers() -> None:
    gates = {"pass_at_k": {"run": "bench", "k": 5}}
    assert said(gates, SAMPLED) == {"pass_at_k": "pass@5 needs 5 answers to each item, but the run has 4"}
    assert said({"pass_at_k": {"run": "bench", "k": 4}}, SAMPLED) == {}


def test_gate_without_a_run_and_one_that_does_not_apply() -> None:
    assert said({"pass_at_k": {}}) == {"pass_at_k": "the policy does not name a run for this gate"}
    assert said({"pass_at_k": {"applies": False}}) == {}


def test_run_of_which_nothing_is_known_is_not_judged() -> None:
    policy = GatePolicy.model_validate(
        {"version": "1", "runs": {"bench": RUN}, "gates": {"pass_at_k": {"run": "bench", "k": 9}}}
    )
    assert list(hopeless_gates(policy, {})) == []


def test_comparison_is_left_out_without_incumbent() -> None:
    gates = {"evals": {"quality": {"run": "bench", "max_loss": 0.01}}}
    policy = GatePolicy.model_validate(
        {"version": "1", "without_incumbent": "not_applicable", "runs": {"bench": RUN}, "gates": gates}
    )
    assert list(hopeless_gates(policy, {"bench": items(10)}))
    assert not list(hopeless_gates(policy, {"bench": items(10)}, compares=False))


def test_training_gates_are_judged_by_the_preflight() -> None:
    gates = {"supervised_ratio": {"min_pct": 50.0}, "truncation": {}, "throughput": {}}
    counted = TRAINED.model_copy(update={"tokens_per_second": None})
    assert said(gates) == {}, "nothing is known"
    assert said(gates, training=counted) == {
        "supervised_ratio": "supervised tokens (%) is 40; at least 50 is required, 10 below it"
    }
    assert said({"modal_mix": {}}, training=TrainingReport(job_id="", device="", tokens=1, supervised_tokens=1)) == {
        "modal_mix": "share of spoken rows: not every training row has a lane or a category"
    }
    imported = said(gates, is_imported=True)
    assert imported == dict.fromkeys(gates, "an imported adapter has no record of its training")


def test_sentence_says_what_the_gate_does() -> None:
    policy = GatePolicy.model_validate(
        {"version": "1", "gates": {"pass_at_k": {}, "mcp_tool_schema": {"applies": True}}}
    )
    blocks, warns = (found.describe() for found in hopeless_gates(policy, {}))
    assert blocks == "The gate pass_at_k cannot pass (blocks the alias): the policy does not name a run for this gate."
    assert warns.startswith("The gate mcp_tool_schema cannot pass (only warns): ")
