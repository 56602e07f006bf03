"""Judging an adapter by a policy: two real runs on the same items and seeds, one receipt; and the alias of a job under a policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from shared.artifacts.folder_storage import FolderStorage
from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.gates.policies import PolicyName
from shared.database.gates.receipts import Receipts, StoredReceipt
from shared.database.gates.shadow_comparisons import PairCounts, ShadowComparisons, ShadowPair
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.names.aliases import Actor, Aliases
from shared.database.records import Job, Kind
from shared.database.routing import Routing
from shared.database.tables import JobRow
from shared.errors import Code, JobFailed, MensError, Unavailable
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing as lacks
from shared.statistics.sequential import is_worse
from tests.support.builders import claimed, contract, new_adapter, submission
from tests.support.doubles import FakeJobQueue
from tests.support.gate_rows import govern
from tests.support.http_stub import http_stub
from worker.evaluation.gate_runs import run_policy
from worker.jobs.attempt import Attempt
from worker.jobs.finetune import finish
from worker.jobs.judge import training_report
from worker.jobs.runner import Worker
from worker.run_folder import METRICS_NAME, SUMMARY_NAME
from worker.settings import WorkerSettings

OLD, GOOD, BAD = "demo@1", "demo@2", "demo@3"
ALICE = Actor(id="key-1", name="alice")
ROWS = 60
EQUALS = {
    "type": "string_check",
    "name": "equals",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
CONFIG = {"type": "custom", "item_schema": {"type": "object"}}
SERVED = {
    "base": "tiny",
    "served_digest": "b" * 64,
    "max_lora_rank": 64,
}


CODE = {
    "type": "python",
    "name": "equals",
    "source": "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])",
    "pass_threshold": 1,
}


@dataclass
class Models:
    """An API and a replica: each model answers a share of the questions rightly.

    Attributes:
        right: by the model, the share that it answers rightly; a model that is not there is unknown.
        asked: bodies, as they came.
    """

    right: dict[str, float]
    asked: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, _method: str, target: str, content: bytes, _headers: Message) -> tuple[int, object]:
        if target == "/mens/limits":
            return 200, SERVED
        body = json.loads(content)
        self.asked.append(body)
        question = body["messages"][-1]["content"]
        if body["model"] not in self.right:
            error = {"message": "There is no such model.", "mens": {"code": "MODEL_NOT_FOUND", "remedy": ""}}
            return 404, {"error": error}
        knows = int(question) < ROWS * self.right[body["model"]]
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        message = {"content": question if knows else "I do not know"}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


@dataclass
class JudgedInstallation:
    """A worker, an alias that a policy governs, and three adapters."""

    database: Database
    worker: Worker
    policy: PolicyName
    aliases: Aliases
    file_id: str

    def judge(self, adapter: str) -> Job:
        """Let the worker judge an adapter for the alias."""
        plan = {"adapter_id": adapter, "adapter_digest": "d" * 64, "alias": "prod", "policy": self.policy.model_dump()}
        job, _ = Jobs(self.database).submit(submission(kind=Kind.JUDGE, plan=plan))
        self.worker.run_job(job.id)
        return Jobs(self.database).get(job.id)

    def govern_by(self, criterion: dict[str, Any]) -> None:
        """Let a policy govern whose eval has this criterion."""
        fields = {"data_source_config": CONFIG, "testing_criteria": [criterion]}
        judged = Evals(self.database).create("code", {}, fields)
        source = policy_of(judged.id, self.file_id)
        self.policy = govern(self.database, "alias:prod", source, name="code").policy

    def receipt(self, job: Job) -> StoredReceipt:
        return Receipts(self.database).get(job.result["receipt"]["id"])


def policy_of(eval_id: str, file_id: str) -> str:
    return f"""\
version: "1"
runs:
  support: {{eval: {eval_id}, file: {file_id}, messages: [{{role: user, content: "{{{{ item.question }}}}"}}], seed: 11}}
gates:
  truncation: {{}}
  throughput: {{min_tokens_per_sec: {{cpu: 1000}}}}
  collateral_damage: {{run: support, max_degradation: 0.2}}
  evals:
    quality: {{run: support, criterion: equals, max_loss: 0.1}}
"""


@pytest.fixture
def models() -> Models:
    return Models({OLD: 0.9, GOOD: 1.0, BAD: 0.5, "tiny": 0.2})


@pytest.fixture
def place(models: Models, database: Database, tmp_path: Path) -> Iterator[JudgedInstallation]:
    with http_stub(models.respond) as url:
        settings = WorkerSettings(home=tmp_path, heartbeat_seconds=0.5, api_url=url, serving_urls=[url])
        leases, storage = Leases(database, settings.lease_seconds), FolderStorage(settings.storage_dir)
        files = Files(database)
        worker = Worker(settings, leases, files, Uploads(database), storage, FakeJobQueue(), name="first")  # type: ignore[arg-type]
        lease = claimed(Jobs(database), leases)
        supervision = {"tokens": 100, "supervised_tokens": 40, "truncation_fraction": 0.1}
        leases.report(lease, preflight={"supervision": supervision}, events=[])
        made = [new_adapter(name, final=False) for name in (OLD, GOOD, BAD)]
        leases.finish(lease, {"tokens_per_second": 50.0, "memory": {"device": "cpu"}}, adapters=made)
        aliases = Aliases(database)
        aliases.set("prod", Routing.to(OLD), ALICE)
        judged = Evals(database).create("e", {}, {"data_source_config": CONFIG, "testing_criteria": [EQUALS]})
        with storage.writer() as writer:
            rows = [{"item": {"question": str(number), "answer": str(number)}} for number in range(ROWS)]
            writer.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            sha256 = writer.commit()
        file = files.add("rows.jsonl", "evals", 1, sha256)
        policy = govern(database, "alias:prod", policy_of(judged.id, file.id)).policy
        yield JudgedInstallation(database, worker, policy, aliases, file.id)


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


@pytest.mark.parametrize(("adapter", "moves"), [("new@1", True), ("new@2", False)])
def test_a_jobs_alias_moves_when_its_adapter_passes_and_else_stays(
    place: JudgedInstallation, models: Models, tmp_path: Path, adapter: str, moves: bool
) -> None:
    models.right |= {"new@1": 1.0, "new@2": 0.5}
    jobs, leases = Jobs(place.database), Leases(place.database, 60)
    lease = claimed(jobs, leases)
    supervision = {"tokens": 100, "supervised_tokens": 40, "truncation_fraction": 0.1}
    leases.report(lease, preflight={"supervision": supervision}, events=[])
    attempt = Attempt(place.worker.settings, leases, place.worker.storage, lease, None, lambda: False)  # type: ignore[arg-type]
    attempt.raise_if_stopped = lambda: None  # type: ignore[method-assign]
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / METRICS_NAME).write_text("step\n")
    numbers = dict.fromkeys(("trained_tokens", "optimizer_step_count", "last_train_loss", "last_val_loss", "resume"))
    summary = numbers | {"metrics": {}, "memory": {"device": "cpu"}, "tokens_per_second": 2000.0}
    (run_dir / SUMMARY_NAME).write_text(json.dumps(summary))
    plan: Any = SimpleNamespace(contract=contract(artifact={"alias": "prod"}))
    finish(attempt, plan, [new_adapter(adapter)], run_dir)
    job = jobs.get(lease.job.id)
    assert (job.state, Adapters(place.database).get(adapter).published) == ("succeeded", True)
    assert place.aliases.get("prod").adapter_id == (adapter if moves else OLD)
    assert (job.result["receipt"]["passed"], job.result["alias"]["moved"]) == (moves, moves)
    assert {row["name"]: row["status"] for row in job.result["receipt"]["gates"]}["throughput"] == "passed"
    said = [event.message for event in jobs.events(job.id)]
    assert any("Evaluating" in message for message in said)
    if not moves:
        assert job.result["alias"]["error"]["code"] == "GATE_FAILED"
        assert any(message.startswith("evals.quality failed: mean score went from 0.9 to 0.5") for message in said)
        assert said[-1].endswith("The alias prod stays at demo@1: GATE_FAILED.")


def test_training_is_read_from_the_job_ledger_or_is_missing(place: JudgedInstallation) -> None:
    jobs, adapter = Jobs(place.database), Adapters(place.database).get(GOOD)
    report = training_report(jobs, adapter)
    assert report and (report.tokens, report.supervised_tokens, report.device) == (100, 40, "cpu")
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


class HeldUp:
    """In place of the runs of a policy: a part of the system is away, so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise Unavailable(Code.SERVING_UNAVAILABLE, "No replica answers.")
        return run_policy(*args)


def finish_attempts(place: JudgedInstallation, tmp_path: Path, adapter: str, failures: int) -> Job:
    """A fine-tune whose training failed so often, then all attempts to finish it."""
    jobs, leases = Jobs(place.database), Leases(place.database, 60)
    job, _ = jobs.submit(submission())
    lost = JobFailed(Code.LEASE_EXPIRED, "The worker died.", retryable=True)
    plan: Any = SimpleNamespace(contract=contract(artifact={"alias": "prod"}))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / METRICS_NAME).write_text("step\n")
    numbers = dict.fromkeys(("trained_tokens", "optimizer_step_count", "last_train_loss", "last_val_loss", "resume"))
    summary = numbers | {"metrics": {}, "memory": {"device": "cpu"}, "tokens_per_second": 2000.0}
    (run_dir / SUMMARY_NAME).write_text(json.dumps(summary))
    for number in range(20):
        with place.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job.id).values(not_before=None))
        if (lease := leases.claim(job.id, "w")) is None:
            break
        if number < failures:
            leases.fail(lease, lost)
            continue
        supervision = {"tokens": 100, "supervised_tokens": 40, "truncation_fraction": 0.1}
        leases.report(lease, preflight={"supervision": supervision}, events=[])
        attempt = Attempt(place.worker.settings, leases, place.worker.storage, lease, None, lambda: False)  # type: ignore[arg-type]
        attempt.raise_if_stopped = lambda: None  # type: ignore[method-assign]
        try:
            finish(attempt, plan, [new_adapter(adapter)], run_dir)
        except MensError as error:
            leases.fail(lease, error)
    return jobs.get(job.id)


@pytest.mark.parametrize("failures", [0, 4])
def test_job_whose_judging_is_held_up_again_and_again_succeeds_and_leaves_the_alias(
    place: JudgedInstallation, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    held = HeldUp(99)
    monkeypatch.setattr("worker.jobs.judge.run_policy", held)
    job = finish_attempts(place, tmp_path, "new@1", failures)
    assert (job.state, 99 - held.left) == ("succeeded", 5), "judging has all attempts to itself"
    assert Adapters(place.database).get("new@1").published
    assert place.aliases.get("prod").adapter_id == OLD
    assert job.result["judging_error"]["code"] == "SERVING_UNAVAILABLE"
    assert job.result["alias"]["error"]["code"] == "GATE_MISSING"
    said = [event.message for event in Jobs(place.database).events(job.id)]
    assert any("mens receipts create new@1 --alias prod" in message for message in said)


def test_job_whose_judging_was_held_up_four_times_is_judged(
    place: JudgedInstallation, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.right["new@1"] = 1.0
    monkeypatch.setattr("worker.jobs.judge.run_policy", HeldUp(4))
    job = finish_attempts(place, tmp_path, "new@1", failures=4)
    assert (job.state, job.result["receipt"]["passed"]) == ("succeeded", True)
    assert place.aliases.get("prod").adapter_id == "new@1"


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


def test_incumbent_is_asked_twice_where_the_policy_wants_the_noise_floor(
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


def test_what_came_of_shadow_traffic_is_evidence(place: JudgedInstallation) -> None:
    source = 'version: "1"\ngates: {shadow: {eval: eval-1, max_loss: 0.1}}'
    place.policy = govern(place.database, "alias:prod", source, name="online").policy
    row = place.receipt(place.judge(GOOD)).receipt["gates"][0]
    assert (row["name"], row["status"]) == ("shadow", "missing_evidence")
    pair = ShadowPair(alias="prod", incumbent_id=OLD, candidate_id=GOOD, eval_id="eval-1")
    ShadowComparisons(place.database).add(pair, PairCounts(wins=5, ties=60), is_worse)
    assert place.receipt(place.judge(GOOD)).passed
    assert place.aliases.set("prod", Routing.to(GOOD), ALICE).adapter_id == GOOD


def test_requests_of_another_tenant_are_no_evidence(place: JudgedInstallation) -> None:
    source = 'version: "1"\ngates: {shadow: {eval: eval-1, max_loss: 0.1}}'
    place.policy = govern(place.database, "alias:prod", source, name="online").policy
    pair = ShadowPair(alias="prod", incumbent_id=OLD, candidate_id=GOOD, eval_id="eval-1")
    ShadowComparisons(place.database, "acme").add(pair, PairCounts(wins=5, ties=60), is_worse)
    assert not place.receipt(place.judge(GOOD)).passed
