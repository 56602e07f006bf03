"""Judging: every configured gate has one row; the original's defects; comparisons that reach a decision."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shared.gate_outcome import GateStatus
from shared.gates import evaluate
from shared.gates.evaluate import judge
from shared.gates.evidence import AnswerPair, Evidence, RunScores, ScoredAnswer
from shared.gates.measures import Loss
from shared.gates.policy import GatePolicy
from shared.gates.policy_file import policy_digest, read_policy
from shared.gates.receipt import GateRow, Receipt
from shared.gates.training_gates import device_profile
from shared.statistics import paired
from shared.statistics.resampling import bca_interval
from tests.support.gate_evidence import AT, NEW, TRAINED, answer, evidence, run_scores
from tests.support.holm import holm_adjusted

RUN = {"eval": "eval-1", "file": "file-1"}
GOLDEN = Path(__file__).parents[1] / "golden" / "gate_receipt.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(GOLDEN.read_text()))


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not the intervals that matter; and the same comparison is made once."""
    monkeypatch.setattr(paired, "bca_interval", partial(bca_interval, resamples=99))
    monkeypatch.setattr(evaluate, "compare", cache(paired.compare))


def policy(**gates: Any) -> GatePolicy:
    return GatePolicy.model_validate({"version": "1", "runs": {"bench": RUN}, "gates": gates})


def row(found: Receipt, name: str) -> GateRow:
    return next(row for row in found.gates if row.name == name)


# -- no gate vanishes ----------------------------------------------------------------------------------------------

GATES: dict[str, Any] = {
    "supervised_ratio": {},
    "truncation": {},
    "throughput": {},
    "eval_local": {"run": "bench"},
    "pass_at_k": {"run": "bench"},
    "collateral_damage": {"run": "bench"},
    "per_context": {"web": {"run": "bench"}, "cli": {}},
    "modal_mix": {},
    "mcp_tool_schema": {"applies": True, "run": "bench"},
    "anti_stub": {"run": "bench"},
    "review_recurrence": {"run": "bench"},
    "evals": {
        "quality": {"run": "bench", "max_loss": 0.1},
        "form": {"min_score": 0.5},
        "wins": {"run": "bench", "min_win_rate": 0.5},
    },
    "shadow": {"eval": "eval-1"},
    "cycles": {},
    "forget": {},
}
CRITERIA = ("parses", "construct_coverage", "scope_compliance", "tool_schema", "anti_stub", "repeated_finding")
RUNS = [
    None,
    run_scores([]),
    run_scores([], []),
    run_scores([1.0] * 3, [1.0] * 3),
    run_scores([1.0, 0.0] * 4),
    run_scores([1.0, 0.0] * 4, [0.0, 1.0] * 4, *CRITERIA),
    run_scores([1.0] * 3, [1.0] * 3, incumbent="other"),
]
SOME_GATES = st.sets(st.sampled_from(sorted(GATES)), min_size=1).map(
    lambda names: {name: GATES[name] for name in names}
)


@pytest.mark.usefixtures("few_resamples")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gates=SOME_GATES,
    applies=st.booleans(),
    without=st.sampled_from(["base", "not_applicable"]),
    run=st.sampled_from(RUNS),
    trained=st.sampled_from([None, TRAINED, TRAINED.model_copy(update={"truncation_fraction": None, "tokens": 0})]),
    is_new=st.booleans(),
)
def test_every_configured_gate_gives_exactly_one_row(
    gates: dict[str, Any], applies: bool, without: str, run: RunScores | None, trained: Any, is_new: bool
) -> None:
    asked = GatePolicy.model_validate(
        {"version": "1", "without_incumbent": without, "runs": {"bench": RUN}, "gates": gates}
    )
    if not applies:
        first = next(iter(asked.gates.model_dump(exclude_unset=True)))
        if first not in ("per_context", "evals"):
            asked = GatePolicy.model_validate(
                asked.model_dump() | {"gates": gates | {first: gates[first] | {"applies": False}}}
            )
    compared = run.incumbent if run and run.incumbent else "tiny"
    known = evidence(
        training=trained,
        runs={"bench": run} if run else {},
        compared_with=compared,
        **({"incumbent": None} if is_new else {}),
    )
    found = judge(asked, known)
    assert [row.name for row in found.gates] == [name for name, _ in asked.gates.configured()]
    assert found.overall_passed == all(row.passed for row in found.gates if row.block)
    for each in found.gates:
        assert each.message
        assert each.passed == (each.status in (GateStatus.PASSED, GateStatus.NOT_APPLICABLE))
        if each.status is GateStatus.NOT_APPLICABLE:
            gate = dict(asked.gates.configured())[each.name]
            assert not gate.applies or (is_new and without == "not_applicable")
    VALIDATOR.validate(json.loads(found.model_dump_json(by_alias=True)))
    assert Receipt.model_validate_json(found.model_dump_json(by_alias=True)) == found


# -- the original's five defects -----------------------------------------------------------------------------------


def test_a_gate_whose_evidence_is_not_found_has_failed_and_not_vanished() -> None:
    """The original looked for the trainer's numbers at the wrong level, and the gates that read them were gone."""
    found = judge(policy(supervised_ratio={}, throughput={}, truncation={}), evidence(training=None))
    assert [(row.name, row.status, row.passed) for row in found.gates] == [
        ("supervised_ratio", GateStatus.MISSING_EVIDENCE, False),
        ("truncation", GateStatus.MISSING_EVIDENCE, False),
        ("throughput", GateStatus.MISSING_EVIDENCE, False),
    ]
    assert not found.overall_passed


def test_collateral_damage_does_not_compare_a_score_with_itself() -> None:
    """The original mocked the score after to be the score before."""
    same = run_scores([1.0] * 100, [1.0] * 100, incumbent=NEW.id)
    found = judge(
        policy(collateral_damage={"run": "bench"}), evidence(runs={"bench": same}, compared_with=NEW.id)
    ).gates[0]
    assert (found.status, found.message) == (GateStatus.MISSING_EVIDENCE, "demo@1 was compared with itself")


@pytest.mark.parametrize(("after", "status"), [(0.95, "failed"), (1.0, "passed")])
def test_collateral_damage_is_judged_on_two_runs(after: float, status: str) -> None:
    before, now = [1.0] * 150, [1.0] * round(150 * (2 * after - 1)) + [0.0] * round(150 * (2 - 2 * after))
    found = judge(policy(collateral_damage={"run": "bench"}), evidence(runs={"bench": run_scores(now, before)})).gates[
        0
    ]
    assert found.status == status
    assert found.n == 150


def test_a_model_that_did_not_answer_is_missing_evidence_and_not_a_score() -> None:
    """The original's engine was not wired: everything failed, and the report was written all the same."""
    broken = ScoredAnswer(error="SERVING_UNAVAILABLE: no replica")
    pairs = tuple(AnswerPair(item_index=index, candidate=(broken,), incumbent=(answer(0.0),)) for index in range(100))
    run = run_scores([]).model_copy(update={"pairs": pairs, "incumbent": "demo@0"})
    found = judge(policy(evals={"q": {"run": "bench", "max_loss": 0.1}}), evidence(runs={"bench": run})).gates[0]
    assert found.status is GateStatus.MISSING_EVIDENCE
    assert "100 of 200 answers have no score: SERVING_UNAVAILABLE" in found.message


def test_one_good_run_of_few_items_promotes_nothing() -> None:
    """The original promoted on one cycle, and on the best of all conditions."""
    found = judge(
        policy(evals={"q": {"run": "bench", "max_loss": 0.03, "min_score": 0.5}}),
        evidence(runs={"bench": run_scores([1.0] * 10, [0.0] + [1.0] * 9)}),
    ).gates[0]
    assert found.status is GateStatus.MISSING_EVIDENCE
    assert found.items_needed == 20
    assert found.checks[1].items_needed > 100


def test_nothing_in_the_judgement_runs_code() -> None:
    """The original's rewards ran the code that they judged. Here a judgement has numbers alone to go by."""
    source = Path(evaluate.__file__).parent
    for path in source.glob("*.py"):
        text = path.read_text()
        assert not any(word in text for word in ("subprocess", "exec(", "eval(", "importlib"))
        assert path.name == "cycles_file.py" or "open(" not in text


# -- what is judged ------------------------------------------------------------------------------------------------


def test_a_worse_model_fails_and_a_better_one_passes() -> None:
    asked = policy(evals={"q": {"run": "bench", "max_loss": 0.05}})
    worse = judge(asked, evidence(runs={"bench": run_scores([1.0, 0.0] * 100, [1.0] * 200)}))
    better = judge(asked, evidence(runs={"bench": run_scores([1.0] * 200, [1.0, 0.0] * 100)}))
    assert (worse.gates[0].status, worse.overall_passed) == (GateStatus.FAILED, False)
    assert "from 1 to 0.5" in worse.gates[0].message
    assert (better.gates[0].status, better.overall_passed) == (GateStatus.PASSED, True)
    assert better.gates[0].interval[0] > 0 and better.gates[0].n == 200


@pytest.mark.parametrize(
    ("least", "won", "lost", "status"),
    [
        (0.5, 20, 4, GateStatus.PASSED),
        (0.5, 13, 11, GateStatus.MISSING_EVIDENCE),
        (0.5, 4, 20, GateStatus.FAILED),
        (0.8, 20, 4, GateStatus.MISSING_EVIDENCE),
    ],
)
def test_win_rate_has_to_be_shown_to_exceed_its_bound(least: float, won: int, lost: int, status: GateStatus) -> None:
    run = run_scores([0.6] * won + [0.1] * lost + [0.5] * 6, [0.5] * (won + lost + 6), "exact")
    asked = {"run": "bench", "criterion": "exact", "min_win_rate": least}
    found = judge(policy(evals={"wins": asked}), evidence(runs={"bench": run})).gates[0]
    assert found.status is status
    assert (found.value, found.bound, found.n) == (pytest.approx((won + 3) / (won + lost + 6)), least, won + lost + 6)
    assert found.interval and (found.interval[0] > least) is (status is GateStatus.PASSED)
    assert f"({won} won, 6 tied, {lost} lost)" in found.message
    assert found.checks[0].relation == "wins_above"


def test_win_rate_needs_an_incumbent() -> None:
    asked = policy(evals={"wins": {"run": "bench", "min_win_rate": 0.5}})
    found = judge(asked, evidence(runs={"bench": run_scores([1.0] * 30)})).gates[0]
    assert found.status is GateStatus.MISSING_EVIDENCE and "no answers of an incumbent" in found.message


def test_a_warning_does_not_block() -> None:
    found = judge(policy(throughput={"min_tokens_per_sec": {"cpu": 99}}, truncation={}), evidence())
    assert (row(found, "throughput").status, found.overall_passed) == (GateStatus.FAILED, True)


def test_several_blocking_comparisons_need_more_than_one_alone() -> None:
    """Holm: a gate that passes alone at 95 % has to pass at a higher level next to others that do not."""
    new, old = [1.0] * 58 + [0.0] * 2, [1.0] * 60
    one = {"run": "bench", "max_loss": 0.11}
    alone = judge(policy(evals={"a": one}), evidence(runs={"bench": run_scores(new, old)}))
    hard = {"run": "bench", "max_loss": 0.03}
    beside = judge(
        policy(evals={"a": one} | {f"b{index}": hard for index in range(8)}),
        evidence(runs={"bench": run_scores(new, old)}),
    )
    assert alone.gates[0].status is GateStatus.PASSED
    assert row(beside, "evals.a").status is not GateStatus.PASSED
    assert row(beside, "evals.a").checks[0].confidence == pytest.approx(1 - 0.05 / 9)


def by_normal(old: Sequence[float], new: Sequence[float], margin: float, confidence: float) -> paired.Comparison:
    """A comparison whose p-value is known: of one item, whose difference is normal with the deviation 1."""
    half = NormalDist().inv_cdf(confidence)
    difference = new[0] - old[0]
    interval = (difference - half, difference + half)
    status = paired.Status.PASSED if interval[0] > -margin else paired.Status.FAILED
    return paired.Comparison(status, 1, old[0], new[0], difference, interval, None, None, None, "")


@given(st.lists(st.floats(0.0005, 0.2), min_size=1, max_size=8), st.sampled_from([0.01, 0.05, 0.1]))
def test_comparisons_together_pass_where_holms_adjusted_p_values_do(p_values: list[float], alpha: float) -> None:
    adjusted = holm_adjusted(p_values)
    assume(all(abs(value - alpha) > 1e-9 for value in adjusted))
    losses = [Loss("x", (0.0,), (NormalDist().inv_cdf(1 - value),), 0.0) for value in p_values]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evaluate, "compare", by_normal)
        judged = evaluate.judge_together(losses, alpha)
    passed = [judged[id(loss)].status is GateStatus.PASSED for loss in losses]
    assert passed == [value <= alpha for value in adjusted]


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    answers = (answer(1.0), answer(0.0), answer(0.0), answer(0.0))
    pairs = tuple(AnswerPair(item_index=index, candidate=answers, incumbent=answers) for index in range(40))
    run = run_scores([]).model_copy(update={"pairs": pairs, "incumbent": "demo@0"})
    found = judge(policy(pass_at_k={"run": "bench", "k": 2}), evidence(runs={"bench": run})).gates[0]
    values = {check.measure: check.value for check in found.checks if check.relation == "at_least"}
    assert values == {"pass@1": pytest.approx(0.25), "pass@2": pytest.approx(0.5)}
    too_few = judge(policy(pass_at_k={"run": "bench", "k": 5}), evidence(runs={"bench": run})).gates[0]
    assert too_few.message == "pass@5 needs 5 answers to each item, but the run has 4"


@pytest.mark.parametrize(("repeated", "status"), [(0.0, "passed"), (1.0, "failed")])
def test_findings_are_better_when_they_are_fewer(repeated: float, status: str) -> None:
    names = ("repeated_finding", "post_regression")
    run = run_scores([repeated, 0.0] * 60, [1.0, 0.0] * 60, *names)
    asked = policy(review_recurrence={"run": "bench", "max_post_regression_rate": 1.0})
    assert judge(asked, evidence(runs={"bench": run})).gates[0].status == status


def test_what_could_not_be_judged_counts_against_the_candidate() -> None:
    names = ("placeholder", "trivial", "anti_stub", "construct_richness")
    good = ScoredAnswer(scores=dict(zip(names, (0.0, 0.0, 1.0, 1.0), strict=True)), passed=True)
    pairs = [AnswerPair(item_index=index, candidate=(good,)) for index in range(46)]
    pairs += [
        AnswerPair(item_index=index, candidate=(ScoredAnswer(error="GRADER_TIMEOUT"),)) for index in range(46, 50)
    ]
    run = run_scores([]).model_copy(update={"pairs": tuple(pairs)})
    found = judge(policy(anti_stub={"run": "bench"}), evidence(runs={"bench": run})).gates[0]
    assert {check.measure: check.value for check in found.checks} == {
        "anti-stub pass rate": pytest.approx(0.92),
        "placeholder rate": pytest.approx(0.08),
        "trivial rate": pytest.approx(0.08),
        "construct richness": pytest.approx(0.92),
    }


def test_a_context_is_judged_on_its_own_items() -> None:
    names = ("parses", "scope_compliance")
    pairs = [
        AnswerPair(
            item_index=index, context="web" if index % 2 else "cli", candidate=(answer(float(index % 2), *names),)
        )
        for index in range(60)
    ]
    run = run_scores([]).model_copy(update={"pairs": tuple(pairs)})
    found = judge(policy(per_context={"web": {"run": "bench"}, "cli": {"run": "bench"}}), evidence(runs={"bench": run}))
    assert (row(found, "per_context.web").value, row(found, "per_context.cli").value) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("device", "profile"),
    [("cpu", "cpu"), ("NVIDIA GeForce RTX 4080 SUPER", "rtx_4080_super"), ("NVIDIA H200", "h200"), ("Odd-1", "odd_1")],
)
def test_a_device_has_its_own_bound(device: str, profile: str) -> None:
    assert device_profile(device, ["cpu", "h200"]) == profile


def test_a_receipt_is_as_old_as_its_oldest_run() -> None:
    old = run_scores([1.0] * 30, None, measured_at=AT - timedelta(days=29))
    found = judge(policy(evals={"q": {"run": "bench", "min_score": 0.5}}), evidence(runs={"bench": old}))
    assert found.valid_until == AT + timedelta(days=1)


def test_evidence_is_of_the_adapter_that_it_names() -> None:
    with pytest.raises(ValueError, match="evaluates demo@7, not demo@1"):
        evidence(runs={"bench": run_scores([1.0], candidate="demo@7")})


def test_the_receipt_names_what_was_judged() -> None:
    asked = read_policy('version: "1"\ngates: {truncation: {}}')
    found: Receipt = judge(asked, evidence(), "strict")
    assert (found.policy.name, found.policy.digest) == ("strict", policy_digest(asked))
    assert (found.adapter.digest, found.incumbent.digest, found.serving_base.digest) == ("1" * 64, "0" * 64, "b" * 64)
    assert found.gates[0].evidence and len(found.gates[0].evidence) == 64


@pytest.mark.parametrize(
    ("levels", "named"),
    [
        ((None, None), None),
        ((None, "bubblewrap"), "bubblewrap"),
        (("landlock", "bubblewrap"), "landlock"),
        (("bubblewrap", "landlock"), "landlock"),
    ],
)
def test_the_receipt_names_the_weakest_sandbox_of_its_runs(levels: tuple[str | None, str | None], named: str) -> None:
    runs = {f"run{number}": run_scores([1.0], sandbox=level) for number, level in enumerate(levels)}
    asked = read_policy('version: "1"\ngates: {truncation: {}}')
    assert judge(asked, evidence(runs=runs), "strict").sandbox == named


def noisy_run(again: list[float]) -> RunScores:
    """A run whose incumbent was asked twice: it has lost two items of sixty against the candidate."""
    run = run_scores([1.0] * 60, [1.0] * 58 + [0.0] * 2)
    pairs = [
        pair.model_copy(update={"repeated": (answer(score),)}) for pair, score in zip(run.pairs, again, strict=True)
    ]
    return run.model_copy(update={"pairs": tuple(pairs)})


def test_difference_no_larger_than_the_incumbents_own_is_noise() -> None:
    asked = policy(evals={"quality": {"run": "bench", "max_loss": 0.1}})
    (same,) = judge(asked, evidence(runs={"bench": noisy_run([1.0] * 58 + [0.0] * 2)})).gates
    assert same.checks[0].noise_floor == 0
    assert "noise" not in same.message
    (noisy,) = judge(asked, evidence(runs={"bench": noisy_run([0.0] * 3 + [1.0] * 57)})).gates
    assert noisy.checks[0].noise_floor == pytest.approx(5 / 60)
    assert "the incumbent differs from itself by 0.0833, so this difference is noise" in noisy.message
    (unknown,) = judge(asked, evidence(runs={"bench": run_scores([1.0] * 60, [1.0] * 60)})).gates
    assert unknown.checks[0].noise_floor is None


@pytest.mark.usefixtures("few_resamples")
def test_each_further_attempt_at_a_pair_has_to_show_more() -> None:
    """Else it would be repeated until it passes by chance. The first sees no difference worth the name."""
    asked, run = policy(evals={"quality": {"run": "bench", "max_loss": 0.1}}), run_scores([1.0] * 40, [1.0] * 40)
    found = [judge(asked, evidence(runs={"bench": run}, attempt=number)) for number in range(4)]
    assert [receipt.attempt for receipt in found] == [0, 1, 2, 3]
    alphas = [receipt.alpha for receipt in found]
    assert alphas[0] == pytest.approx(0.05)
    assert alphas[1:] == [pytest.approx(0.05 * 6 / 9.8696044 / number**2) for number in (1, 2, 3)]
    lows = [receipt.gates[0].interval[0] for receipt in found if receipt.gates[0].interval]
    assert lows == sorted(lows, reverse=True)
    assert lows[-1] < lows[0]


def test_receipt_names_criteria_of_code_that_do_not_give_the_same_twice() -> None:
    run = run_scores([1.0] * 3, unrepeatable={"code": 2})
    found = judge(policy(truncation={}), evidence(runs={"bench": run}))
    assert found.unrepeatable == {"bench": {"code": 2}}


def test_schema_of_receipts_is_frozen() -> None:
    assert Receipt.model_json_schema(by_alias=True) == json.loads(GOLDEN.read_text())
    assert isinstance(evidence(), Evidence)


def test_a_receipt_is_as_old_as_its_file_of_cycles() -> None:
    found = judge(policy(cycles={}), evidence(cycles_from=AT - timedelta(days=29)))
    assert found.valid_until == AT + timedelta(days=1)
