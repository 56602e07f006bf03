"""Judging an adapter by a policy: two real runs on the same items and seeds, one receipt."""

from __future__ import annotations

import pytest

from shared.database.adapters import Adapters
from shared.database.evaluation.evals import Evals
from shared.database.gates.policies import Policies
from shared.database.gates.shadow_comparisons import PairCounts, ShadowComparisons, ShadowPair
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Job, Kind
from shared.database.routing import Routing
from shared.errors import MensError
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing as lacks
from shared.statistics.sequential import is_worse
from tests.support.builders import claimed, new_adapter, submission
from tests.support.databases import ON_SQLITE_IN_MAKE_TEST
from tests.support.gate_rows import govern
from tests.support.judged_installation import (
    ALICE,
    BAD,
    CONFIG,
    EQUALS,
    GOOD,
    OLD,
    ROWS,
    JudgedInstallation,
    Models,
    policy_of,
)
from tests.support.scorecards import promotion_cycle
from worker.jobs.judge import training_report

CODE = {
    "type": "python",
    "name": "equals",
    "source": "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])",
    "pass_threshold": 1,
}


def test_a_better_adapter_passes_and_takes_the_alias_in_one_call(place: JudgedInstallation, models: Models) -> None:
    job = place.judge(GOOD)
    assert job.state == "succeeded", job.error
    receipt = place.receipt(job)
    assert receipt.passed
    rows = {row["name"]: row for row in receipt.receipt["gates"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "truncation": "passed",
        "throughput": "failed",
        "collateral_damage": "passed",
        "evals.quality": "passed",
    }
    assert rows["evals.quality"]["value"] == pytest.approx(0.1)
    assert (rows["throughput"]["value"], rows["throughput"]["block"]) == (50.0, False)
    assert receipt.serving_digest == "b" * 64
    assert place.aliases.set("prod", Routing.to(GOOD), ALICE).adapter_id == GOOD
    said = [event.message for event in Jobs(place.database).events(job.id)]
    assert any(message.startswith("evals.quality passed: mean score went from 0.9 to 1") for message in said)


@ON_SQLITE_IN_MAKE_TEST
def test_candidate_and_incumbent_answer_the_same_items_with_the_same_seeds(
    place: JudgedInstallation, models: Models
) -> None:
    place.judge(GOOD)
    asked = {
        name: sorted((body["messages"][-1]["content"], body["seed"]) for body in models.asked if body["model"] == name)
        for name in (GOOD, OLD)
    }
    assert asked[GOOD] == asked[OLD]
    assert (len(asked[GOOD]), {seed for _, seed in asked[GOOD]}) == (ROWS, {11})


@ON_SQLITE_IN_MAKE_TEST
def test_a_worse_adapter_does_not(place: JudgedInstallation) -> None:
    job = place.judge(BAD)
    assert job.state == "succeeded"
    assert not place.receipt(job).passed
    with pytest.raises(MensError, match="failed under the policy") as caught:
        place.aliases.set("prod", Routing.to(BAD), ALICE)
    assert {row["name"] for row in caught.value.details["gates"]} == {
        "throughput", "collateral_damage", "evals.quality",
    }  # fmt: skip
    assert "from 0.9 to 0.5" in caught.value.message


def test_a_new_aliases_first_adapter_is_compared_with_the_base(place: JudgedInstallation, models: Models) -> None:
    plan = {"adapter_id": GOOD, "adapter_digest": "d" * 64, "alias": "new", "policy": place.policy.model_dump()}
    job, _ = Jobs(place.database).submit(submission(kind=Kind.JUDGE, plan=plan))
    place.worker.run_job(job.id)
    receipt = place.receipt(Jobs(place.database).get(job.id))
    assert (receipt.passed, receipt.incumbent_id, receipt.receipt["compared_with"]) == (True, None, "tiny")
    assert {body["model"] for body in models.asked} == {GOOD, "tiny"}


def test_a_model_that_does_not_answer_is_missing_evidence(place: JudgedInstallation, models: Models) -> None:
    del models.right[GOOD]
    job = place.judge(GOOD)
    rows = {row["name"]: row for row in place.receipt(job).receipt["gates"]}
    assert rows["evals.quality"]["status"] == "missing_evidence"
    assert "MODEL_NOT_FOUND" in rows["evals.quality"]["message"]
    assert not place.receipt(job).passed


def test_a_run_whose_eval_is_gone_is_missing_evidence(place: JudgedInstallation) -> None:
    eval_id = Evals(place.database).list()[0].id
    Evals(place.database).delete(eval_id)
    rows = {row["name"]: row for row in place.receipt(place.judge(GOOD)).receipt["gates"]}
    assert rows["collateral_damage"]["status"] == "missing_evidence"
    assert "EVAL_NOT_FOUND" in rows["collateral_damage"]["message"]


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.sandbox
@pytest.mark.skipif(all(map(lacks, LEVELS)), reason=lacks("landlock"))
def test_code_judges_in_the_sandbox_that_the_receipt_names(place: JudgedInstallation) -> None:
    assert place.receipt(place.judge(GOOD)).receipt["sandbox"] is None, "this eval has no code"
    place.govern_by(CODE)
    receipt = place.receipt(place.judge(GOOD))
    assert receipt.receipt["sandbox"] in LEVELS
    assert {row["name"]: row["status"] for row in receipt.receipt["gates"]}["evals.quality"] == "passed"


def test_code_without_a_sandbox_is_missing_evidence_and_says_why(place: JudgedInstallation) -> None:
    place.worker.settings = place.worker.settings.model_copy(update={"sandbox": "off"})
    place.govern_by(CODE)
    receipt = place.receipt(place.judge(GOOD))
    row = next(row for row in receipt.receipt["gates"] if row["name"] == "evals.quality")
    assert (row["status"], receipt.passed, receipt.receipt["sandbox"]) == ("missing_evidence", False, None)
    assert "SANDBOX_UNAVAILABLE" in row["message"]
    assert "MENS_SANDBOX is off" in row["message"]


def test_training_is_read_from_the_job_ledger_or_is_missing(place: JudgedInstallation) -> None:
    jobs, adapter = Jobs(place.database), Adapters(place.database).get(GOOD)
    report = training_report(jobs, adapter)
    assert report and (report.tokens, report.supervised_tokens, report.device) == (100, 40, "cpu")
    assert report.voice_fraction == 0.25
    leases = Leases(place.database, 60)
    lease = claimed(jobs, leases)
    leases.finish(lease, {}, adapters=[new_adapter("imported@1")])
    assert training_report(jobs, Adapters(place.database).get("imported@1")) is None


def test_samples_count_in_what_a_run_may_ask(
    place: JudgedInstallation, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.evaluation.gate_runs.MOST_ITEMS", 2 * ROWS - 1)
    judged = Evals(place.database).create("e", {}, {"data_source_config": CONFIG, "testing_criteria": [EQUALS]})
    source = policy_of(judged.id, place.file_id).replace("seed: 11", "seed: 11, samples: 2, temperature: 1")
    place.policy = govern(place.database, "alias:prod", source, name="twice").policy
    receipt = place.receipt(place.judge(GOOD))
    assert (receipt.passed, models.asked) == (False, [])
    assert "EVAL_TOO_MANY_ITEMS" in receipt.receipt["gates"][2]["message"]


@ON_SQLITE_IN_MAKE_TEST
def test_receipts_that_draw_new_answers_are_counted_and_share_one_alpha(
    place: JudgedInstallation, models: Models
) -> None:
    assert [place.receipt(place.judge(GOOD)).receipt["attempt"] for _ in range(2)] == [0, 0], "no chance is drawn"
    judged = Evals(place.database).create("e", {}, {"data_source_config": CONFIG, "testing_criteria": [EQUALS]})
    source = policy_of(judged.id, place.file_id).replace("seed: 11", "seed: 11, temperature: 1")
    place.policy = govern(place.database, "alias:prod", source, name="warm").policy
    receipts = [place.receipt(place.judge(GOOD)).receipt for _ in range(3)]
    assert [receipt["attempt"] for receipt in receipts] == [1, 2, 3]
    alphas = [receipt["alpha"] for receipt in receipts]
    assert alphas[0] > 3 * alphas[1] > 6 * alphas[2]
    assert place.receipt(place.judge(BAD)).receipt["attempt"] == 1, "another pair"


@ON_SQLITE_IN_MAKE_TEST
def test_incumbent_is_queried_twice_where_the_policy_wants_the_noise_floor(
    place: JudgedInstallation, models: Models
) -> None:
    judged = Evals(place.database).create("e", {}, {"data_source_config": CONFIG, "testing_criteria": [EQUALS]})
    source = policy_of(judged.id, place.file_id).replace("seed: 11", "seed: 11, noise_floor: true")
    place.policy = govern(place.database, "alias:prod", source, name="noise").policy
    receipt = place.receipt(place.judge(GOOD)).receipt
    row = next(row for row in receipt["gates"] if row["name"] == "evals.quality")
    assert row["checks"][0]["noise_floor"] == 0.0, "these models answer the same each time"
    asked = [body["model"] for body in models.asked]
    assert (asked.count(OLD), asked.count(GOOD)) == (2 * ROWS, ROWS)


def test_outcome_of_shadow_traffic_is_evidence(place: JudgedInstallation) -> None:
    source = 'version: "1"\ngates: {shadow: {eval: eval-1, max_loss: 0.1}}'
    place.policy = govern(place.database, "alias:prod", source, name="online").policy
    row = place.receipt(place.judge(GOOD)).receipt["gates"][0]
    assert (row["name"], row["status"]) == ("shadow", "missing_evidence")
    pair = ShadowPair(alias="prod", incumbent_id=OLD, candidate_id=GOOD, eval_id="eval-1")
    ShadowComparisons(place.database).add(pair, PairCounts(wins=5, ties=60), is_worse)
    assert place.receipt(place.judge(GOOD)).passed
    assert place.aliases.set("prod", Routing.to(GOOD), ALICE).adapter_id == GOOD


def test_requests_of_another_tenant_are_not_evidence(place: JudgedInstallation) -> None:
    source = 'version: "1"\ngates: {shadow: {eval: eval-1, max_loss: 0.1}}'
    place.policy = govern(place.database, "alias:prod", source, name="online").policy
    pair = ShadowPair(alias="prod", incumbent_id=OLD, candidate_id=GOOD, eval_id="eval-1")
    ShadowComparisons(place.database, "acme").add(pair, PairCounts(wins=5, ties=60), is_worse)
    assert not place.receipt(place.judge(GOOD)).passed


def test_a_new_aliases_continued_adapter_is_compared_with_its_parent(place: JudgedInstallation, models: Models) -> None:
    receipt = place.receipt(judge_continued(place, models, OLD))
    assert (receipt.incumbent_id, receipt.receipt["compared_with"]) == (None, OLD)
    assert {body["model"] for body in models.asked} == {"next@1", OLD}


def judge_continued(place: JudgedInstallation, models: Models, parent: str) -> Job:
    """Judge an adapter that was trained from another, for an alias that points nowhere."""
    leases, jobs = Leases(place.database, 60), Jobs(place.database)
    manifest = {"rank": 8, "parent": {"id": parent, "digest": "d" * 64, "step": 7}}
    leases.finish(claimed(jobs, leases), {}, adapters=[new_adapter("next@1", digest="e" * 64, manifest=manifest)])
    models.right["next@1"] = 1.0
    plan = {"adapter_id": "next@1", "adapter_digest": "e" * 64, "alias": "new", "policy": place.policy.model_dump()}
    job, _ = jobs.submit(submission(kind=Kind.JUDGE, plan=plan))
    place.worker.run_job(job.id)
    return jobs.get(job.id)


FORGET = 'version: "1"\ngates: {forget: {}}'


@pytest.mark.parametrize(("general", "status"), [(0.2, "passed"), (0.05, "failed")])
def test_what_an_adapter_forgets_is_measured_against_its_base(
    place: JudgedInstallation, models: Models, general: float, status: str
) -> None:
    place.policy = govern(place.database, "alias:prod", FORGET, name="forget").policy
    models.general[GOOD] = general
    job = place.judge(GOOD)
    receipt = place.receipt(job)
    (row,) = receipt.receipt["gates"]
    assert (row["name"], row["status"], receipt.passed, row["n"]) == ("forget", status, status == "passed", 200)
    assert (receipt.incumbent_id, {body["model"] for body in models.asked}) == (OLD, {GOOD, "tiny"})
    assert [len(models.asked), {body["temperature"] for body in models.asked}] == [400, {0.0}]
    events = Jobs(place.database).events(job.id)
    said = [event.message for event in events if "general questions that" in event.message]
    lost = "tiny answered 30 of 200 general questions that demo@2 does not: "
    assert [message[: len(lost)] for message in said] == ([lost] if status == "failed" else [])
    assert all(message.endswith(" … and 20 more") and message.count("?") == 10 for message in said)


def test_a_continued_adapter_answers_the_rows_by_which_its_parent_was_judged(
    place: JudgedInstallation, models: Models
) -> None:
    place.judge(GOOD)
    models.asked.clear()
    place.policy = govern(place.database, "alias:prod", FORGET, name="forget").policy
    receipt = place.receipt(judge_continued(place, models, GOOD))
    (row,) = receipt.receipt["gates"]
    assert (row["status"], receipt.receipt["compared_with"]) == ("passed", GOOD)
    assert [check["measure"] for check in row["checks"]] == [
        "mean score of general questions", "mean score of the parent's support",
    ]  # fmt: skip
    asked = [(body["model"], body["messages"][-1]["content"].isdigit()) for body in models.asked]
    counts = {True: ROWS, False: 200}
    assert {each: asked.count(each) for each in asked} == {
        (model, is_own): count for model in ("next@1", GOOD) for is_own, count in counts.items()
    }


def test_rows_that_the_policy_has_too_are_sent_once(place: JudgedInstallation, models: Models) -> None:
    place.judge(GOOD)
    models.asked.clear()
    source = place.policy
    stored = Policies(place.database).exactly(source).source
    place.policy = govern(place.database, "alias:prod", stored + "  forget: {}\n", name="both").policy
    receipt = place.receipt(judge_continued(place, models, GOOD))
    assert {row["name"]: row["status"] for row in receipt.receipt["gates"]}["forget"] == "passed"
    assert sum(body["messages"][-1]["content"].isdigit() for body in models.asked) == 2 * ROWS


def test_general_questions_that_nobody_answers_are_missing_evidence(place: JudgedInstallation, models: Models) -> None:
    place.policy = govern(place.database, "alias:prod", FORGET, name="forget").policy
    del models.right["tiny"]
    (row,) = place.receipt(place.judge(GOOD)).receipt["gates"]
    assert row["status"] == "missing_evidence"
    assert row["message"].startswith("general questions: MODEL_NOT_FOUND: ")


def test_cycles_of_scorecards_move_the_alias(place: JudgedInstallation) -> None:
    place.policy = govern(place.database, "alias:prod", 'version: "1"\ngates: {cycles: {}}\n', name="cycles").policy
    lines = [promotion_cycle(seed, tasks=20).model_dump_json() for seed in (1, 2)]
    for name, adapter in (("new", GOOD), ("old", OLD)):
        lines[0] = lines[0].replace(f"{name}@{1:064d}", adapter)
    (row,) = place.receipt(place.judge(GOOD)).receipt["gates"]
    assert (row["status"], row["passed"]) == ("missing_evidence", False)
    assert not place.receipt(place.judge(BAD, "\n".join(lines))).passed, "the cycles are about another adapter"
    assert place.receipt(place.judge(GOOD, "\n".join(lines))).passed
    assert place.aliases.set("prod", Routing.to(GOOD), ALICE).adapter_id == GOOD
