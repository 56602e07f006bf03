"""Runs of evaluations against an API in the test: what is requested and stored, and what a kill or a cancel leaves."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email.message import Message
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from shared.artifacts.folder_storage import FolderStorage
from shared.database.callers.key_records import Key
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from shared.database.evaluation.evals import Evals
from shared.database.evaluation.items import EvalItems, StoredItem
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.records import Job, Kind
from shared.database.tenancy import Role
from shared.errors import Code
from shared.evaluation.plan import EvaluationPlan, ModelTarget, PlannedItems, plan_run
from shared.evaluation.types import EvalSpec, ItemResult, RunSpec
from shared.sandbox.levels import LEVELS
from shared.sandbox.probe import missing
from shared.settings import RemoteModel
from tests.support.builders import submission
from tests.support.compilers import CONTAINED, WITH_GCC
from tests.support.databases import ON_SQLITE_IN_MAKE_TEST
from tests.support.doubles import FakeJobQueue
from tests.support.http_stub import http_stub
from tests.support.remote_server import RemoteServer
from tests.support.waiting import eventually
from worker.evaluation import gateway
from worker.evaluation.run import evaluate_model
from worker.jobs.runner import Worker
from worker.settings import WorkerSettings

pytestmark = pytest.mark.network

Body = dict[str, Any]
EQUALS = {
    "type": "string_check",
    "name": "equals",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
ROWS = [{"item": {"question": f"{number}", "answer": f"{number}"}} for number in range(8)]
PROMPT = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}


@dataclass
class GatewayStub:
    """An API that answers each question with itself, unless a test has it do otherwise.

    Attributes:
        asked: bodies, as they came.
        reply: what to answer instead: a status and a body, or None for the usual answer.
        keys: with which, in the same order.
    """

    asked: list[Body] = field(default_factory=list)
    reply: Callable[[Body], tuple[int, object] | None] = lambda body: None
    keys: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def respond(self, method: str, target: str, content: bytes, headers: Message) -> tuple[int, object]:
        body = json.loads(content)
        with self.lock:
            self.asked.append(body)
            self.keys.append(headers["Authorization"].removeprefix("Bearer "))
        return self.reply(body) or (200, chat(body["messages"][-1]["content"]))

    @property
    def questions(self) -> Counter[str]:
        return Counter(body["messages"][-1]["content"] for body in self.asked)


def chat(text: str) -> Body:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}


def refusal(code: Code, message: str = "No.") -> Body:
    return {"error": {"message": message, "mens": {"code": str(code), "remedy": ""}}}


@dataclass
class Place:
    """A database, a storage and a worker, and runs on them."""

    database: Database
    settings: WorkerSettings
    storage: FolderStorage
    worker: Worker
    eval_id: str

    def queue(self, rows: list[Body] = ROWS, *, criteria: list[Body] | None = None, **run: Any) -> Job:
        """Queue a run."""
        with self.storage.writer() as writer:
            writer.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            sha256 = writer.finish()
            writer.commit()
        plan = planned(self.eval_id, PlannedItems(file_id="file-1", sha256=sha256, count=len(rows)), criteria, **run)
        job, _ = Jobs(self.database, "acme").submit(
            submission(kind=Kind.EVALUATE, plan=plan.model_dump(mode="json"), eval_id=self.eval_id)
        )
        return job

    def run(self, job: Job) -> Job:
        """Let the worker work on a job."""
        self.worker.run_job(job.id)
        return self.job(job)

    def job(self, job: Job) -> Job:
        return Jobs(self.database, "acme").get(job.id)

    def items(self, job: Job) -> list[StoredItem]:
        return list(EvalItems(self.database).all(job.id))

    def results(self, job: Job) -> list[ItemResult]:
        return [ItemResult.model_validate(item.result) for item in self.items(job)]


def planned(
    eval_id: str,
    items: PlannedItems,
    criteria: list[Body] | None,
    models: tuple[str, ...] = ("tiny",),
    mens: Body | None = None,
    **source: Any,
) -> EvaluationPlan:
    config = {"type": "custom", "item_schema": {"type": "object"}}
    spec = EvalSpec.model_validate({"data_source_config": config, "testing_criteria": criteria or [EQUALS]})
    data: Body = {"type": "jsonl", "source": {"type": "file_id", "id": "file-1"}}
    if models:
        data |= {"type": "completions", "model": models[0], "input_messages": PROMPT, **source}
    run = RunSpec.model_validate({"data_source": data, "mens": mens or {}})
    return plan_run(eval_id, spec, run, items, [ModelTarget(name=name, served=f"{name}@1") for name in models], 7)


@pytest.fixture
def api() -> GatewayStub:
    return GatewayStub()


@pytest.fixture
def place(api: GatewayStub, database: Database, tmp_path: Path) -> Iterator[Place]:
    with http_stub(api.respond) as url:
        settings = WorkerSettings(
            home=tmp_path, heartbeat_seconds=0.05, stop_grace_seconds=5.0, api_url=url, evaluation_concurrency=4
        )
        leases, storage = Leases(database, settings.lease_seconds), FolderStorage(settings.storage_dir)
        worker = Worker(settings, leases, Files(database), Uploads(database), storage, FakeJobQueue(), name="first")
        made = Evals(database, "acme").create("e", {}, {})
        yield Place(database, settings, storage, worker, made.id)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between two attempts take no time."""
    monkeypatch.setattr(gateway, "LONGEST_WAIT_SECONDS", 0.01)


def test_every_item_is_sent_once_judged_and_stored(place: Place, api: GatewayStub) -> None:
    rows = [*ROWS, {"item": {"question": "other", "answer": "no"}}]
    job = place.queue(rows, sampling_params={"temperature": 0, "seed": 5, "max_completion_tokens": 9})
    done = place.run(job)
    assert done.state is JobState.SUCCEEDED
    assert api.questions == Counter(row["item"]["question"] for row in rows)
    expected = {"model": "tiny@1", "temperature": 0, "top_p": 1.0, "seed": 5, "max_completion_tokens": 9}
    assert all({name: body[name] for name in expected} == expected for body in api.asked)
    assert [item.status for item in place.items(job)] == ["pass"] * 8 + ["fail"]
    totals = done.result["totals"]
    assert (totals["done"], totals["passed"], totals["failed"], totals["errored"]) == (9, 8, 1, 0)
    assert totals["criteria"]["equals"] == {"passed": 8, "failed": 1, "errored": 0, "score_sum": 8.0}
    assert totals["usage"]["tiny"] == {
        "invocation_count": 9, "prompt_tokens": 27, "completion_tokens": 9, "total_tokens": 36, "cached_tokens": 0,
    }  # fmt: skip
    assert done.progress["items_done"] == done.progress["items_total"] == 9


def test_the_key_is_the_tenants_may_only_read_and_ends_with_the_attempt(place: Place, api: GatewayStub) -> None:
    seen: list[Key] = []

    def look(body: Body) -> None:
        seen.extend(key for key in Keys(place.database).all("acme") if not key.revoked_at)

    api.reply = look
    place.run(place.queue(ROWS[:1]))
    assert [(key.tenant, key.role) for key in seen] == [("acme", Role.VIEWER)]
    assert Keys(place.database).all("acme") == []
    assert len(set(api.keys)) == 1


def test_an_item_that_is_refused_is_an_error_with_its_reason_and_no_failure(place: Place, api: GatewayStub) -> None:
    refused = 400, refusal(Code.CONTEXT_LENGTH_EXCEEDED, "Too long.")
    api.reply = lambda body: refused if body["messages"][0]["content"] == "3" else None
    job = place.queue()
    totals = place.run(job).result["totals"]
    assert (totals["passed"], totals["failed"], totals["errored"]) == (7, 0, 1)
    [item] = EvalItems(place.database).list(job.id, status="error")
    error = ItemResult.model_validate(item.result).answer.error
    assert item.position == 3
    assert error
    assert (error["code"], error["message"]) == (Code.CONTEXT_LENGTH_EXCEEDED, "Too long.")


def test_a_limit_and_a_fault_are_waited_for(place: Place, api: GatewayStub, quick: None) -> None:
    told = iter([(429, refusal(Code.RATE_LIMITED)), (500, {}), (503, refusal(Code.SERVING_UNAVAILABLE))] * 2)
    api.reply = lambda body: next(told, None)
    totals = place.run(place.queue()).result["totals"]
    assert (totals["passed"], totals["errored"]) == (8, 0)
    assert len(api.asked) == 8 + 6


def test_a_fault_of_one_item_that_stays_is_its_error_alone(place: Place, api: GatewayStub, quick: None) -> None:
    api.reply = lambda body: (500, refusal(Code.SERVING_FAILED)) if body["messages"][0]["content"] == "3" else None
    totals = place.run(place.queue()).result["totals"]
    assert (totals["passed"], totals["errored"]) == (7, 1)
    assert api.questions["3"] == gateway.ATTEMPTS


def test_a_tier_that_is_away_ends_the_attempt_and_the_next_asks_the_rest(
    place: Place, api: GatewayStub, quick: None
) -> None:
    away = 503, refusal(Code.SERVING_UNAVAILABLE, "No replica.")
    api.reply = lambda body: away if int(body["messages"][0]["content"]) >= 6 else None
    job = place.queue()
    waiting = place.run(job)
    assert waiting.state is JobState.QUEUED
    stored = {item.position for item in place.items(job)}
    assert stored == set(range(6))
    api.asked.clear()
    api.reply = lambda body: None
    with place.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET not_before = NULL")
    assert place.run(job).result["totals"]["passed"] == 8
    assert api.questions == Counter({"6": 1, "7": 1})


def test_a_model_that_is_gone_ends_the_job(place: Place, api: GatewayStub) -> None:
    api.reply = lambda body: (404, refusal(Code.MODEL_NOT_FOUND, "The model 'tiny@1' does not exist."))
    failed = place.run(place.queue())
    assert failed.state is JobState.FAILED
    assert failed.error
    assert failed.error["code"] == Code.MODEL_NOT_FOUND


def test_without_the_apis_address_the_job_says_what_to_set(place: Place) -> None:
    place.worker.settings = place.settings.model_copy(update={"api_url": ""})
    failed = place.run(place.queue())
    assert failed.error
    assert (failed.error["code"], "MENS_API_URL" in failed.error["remedy"]) == (Code.EVAL_UNAVAILABLE, True)


def test_after_a_kill_nothing_that_was_stored_is_requested_again(place: Place, api: GatewayStub) -> None:
    rows = [{"item": {"question": f"{number}", "answer": f"{number}"}} for number in range(200)]
    job, stuck = place.queue(rows), threading.Event()
    place.worker.settings = place.settings.model_copy(update={"heartbeat_seconds": 60.0})

    def reply(body: Body) -> None:
        if int(body["messages"][0]["content"]) >= 150:
            stuck.wait(60)

    api.reply = reply
    dead = threading.Thread(target=place.worker.run_job, args=(job.id,), daemon=True)
    dead.start()
    eventually(lambda: len(place.items(job)) >= 64)
    with place.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease_expires_at = 1")
    second = replace(place.worker, name="second")

    def is_swept() -> bool:
        # A sweep passes over a job that is being written at that moment.
        second.sweep()
        return all(key.revoked_at for key in Keys(place.database).all("acme"))

    eventually(is_swept)
    stored = {item.position for item in place.items(job)}
    with place.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET not_before = NULL")
    api.reply = lambda body: None
    [dead_key] = set(api.keys)
    second.run_job(job.id)
    again = Counter(
        body["messages"][0]["content"] for body, key in zip(api.asked, api.keys, strict=True) if key != dead_key
    )
    stuck.set()
    dead.join(60)
    done = place.job(job)
    assert done.state is JobState.SUCCEEDED
    assert again == Counter(f"{number}" for number in range(200) if number not in stored)
    assert [item.position for item in place.items(job)] == list(range(200))
    assert done.result["totals"]["done"] == done.result["totals"]["passed"] == 200
    assert done.result["totals"]["usage"]["tiny"]["invocation_count"] == 200


@pytest.mark.parametrize(("verb", "state"), [("pause", JobState.PAUSED), ("cancel", JobState.CANCELLED)])
def test_a_run_stops_and_keeps_what_it_has(
    place: Place, api: GatewayStub, monkeypatch: pytest.MonkeyPatch, verb: str, state: JobState
) -> None:
    rows = [{"item": {"question": f"{number}", "answer": f"{number}"}} for number in range(500)]
    job = place.queue(rows)
    place.worker.settings = place.settings.model_copy(update={"stop_grace_seconds": 60.0})
    jobs, lock, asked, heard = Jobs(place.database, "acme"), threading.Lock(), threading.Event(), threading.Event()
    heartbeat = place.worker.leases.heartbeat

    def note(lease: Lease) -> Literal["cancel", "pause"] | None:
        requested = heartbeat(lease)
        if requested:
            heard.set()
        return requested

    monkeypatch.setattr(place.worker.leases, "heartbeat", note)

    def reply(body: Body) -> None:
        with lock:
            if len(api.asked) >= 20 and not asked.is_set():
                getattr(jobs, verb)(job.id)
                asked.set()
        if asked.is_set():  # the worker learns of it while it is about these
            heard.wait(60)
            threading.Event().wait(0.05)

    api.reply = reply
    stopped = place.run(job)
    assert stopped.state is state
    assert 20 <= len(place.items(job)) == len(api.asked) < 500


def test_a_cancel_does_not_wait_for_an_api_that_hangs(place: Place, api: GatewayStub) -> None:
    place.worker.settings = place.settings.model_copy(update={"stop_grace_seconds": 0.1})
    job = place.queue(ROWS)
    hangs, replies = threading.Event(), count(1)  # what was asked grows by several before any of them looks at it

    def reply(body: Body) -> None:
        if next(replies) == 4:
            Jobs(place.database, "acme").cancel(job.id)
        hangs.wait(120)

    api.reply = reply
    began = time.monotonic()
    stopped = place.run(job)
    took = time.monotonic() - began
    hangs.set()
    assert (stopped.state, place.items(job)) == (JobState.CANCELLED, [])
    assert took < 60


def test_rows_that_have_their_answers_are_judged_without_a_model(place: Place, api: GatewayStub) -> None:
    rows = [{"item": {"answer": "a"}, "sample": {"output_text": text}} for text in ("a", "b")]
    job = place.queue(rows, models=())
    place.worker.settings = place.settings.model_copy(update={"api_url": ""})
    assert place.run(job).result["totals"]["passed"] == 1
    assert api.asked == []
    assert Keys(place.database).all("acme") == []


def test_two_models_get_the_same_requests_and_are_compared_pair_by_pair(place: Place, api: GatewayStub) -> None:
    rows = [{"item": {"question": f"{number}", "answer": f"{number}"}} for number in range(100)]
    job = place.queue(rows, models=("new", "old"), mens={"margin": 0.1})
    api.reply = lambda body: (
        (200, chat("?")) if body["model"] == "old@1" and int(body["messages"][0]["content"]) < 30 else None
    )
    done = place.run(job)
    per_model: dict[str, list[Body]] = {"new@1": [], "old@1": []}
    for body in api.asked:
        per_model[body.pop("model")].append(body)
    by_question = lambda body: int(body["messages"][0]["content"])  # noqa: E731
    assert sorted(per_model["new@1"], key=by_question) == sorted(per_model["old@1"], key=by_question)
    comparison = done.result["comparisons"]["equals"]
    assert (comparison["old"], comparison["new"], comparison["status"]) == (0.7, 1.0, "passed")
    assert (comparison["items"], comparison["unpaired"]) == (100, 0)
    wins = comparison["win_rate"]
    assert (wins["wins"], wins["ties"], wins["losses"], wins["rate"]) == (30, 70, 0, 0.65)
    assert wins["interval"][0] > 0.5
    assert done.result["totals"]["incumbent_criteria"]["equals"]["failed"] == 30


def test_a_pair_of_which_one_has_no_score_is_in_no_comparison(place: Place, api: GatewayStub) -> None:
    refused = 400, refusal(Code.REQUEST_REJECTED)
    api.reply = lambda body: refused if (body["model"], body["messages"][0]["content"]) == ("old@1", "3") else None
    comparison = place.run(place.queue(models=("new", "old"))).result["comparisons"]["equals"]
    assert (comparison["items"], comparison["unpaired"]) == (7, 1)


def test_several_answers_to_an_item_have_seeds_of_their_own(place: Place, api: GatewayStub) -> None:
    job = place.queue(ROWS[:2], mens={"samples": 3})
    place.run(job)
    assert sorted((body["messages"][0]["content"], body["seed"]) for body in api.asked) == [
        (question, seed) for question in "01" for seed in (7, 8, 9)
    ]
    assert [(result.item_index, result.sample_index) for result in place.results(job)] == [
        (item, sample) for item in (0, 1) for sample in (0, 1, 2)
    ]


def test_a_criterion_that_cannot_judge_makes_an_error(place: Place, api: GatewayStub) -> None:
    judge = {
        "type": "score_model", "name": "judge", "model": "critic", "pass_threshold": 0.5,
        "input": [{"role": "user", "content": "Judge {{ sample.output_text }}"}],
    }  # fmt: skip
    refused = 400, refusal(Code.CONTEXT_LENGTH_EXCEEDED, "Too long.")
    api.reply = lambda body: refused if body["model"] == "critic" else None
    job = place.queue(ROWS[:1], criteria=[judge])
    place.run(job)
    [result] = place.results(job)
    assert result.status == "error"
    assert result.results[0].error
    assert result.results[0].error["code"] == Code.CONTEXT_LENGTH_EXCEEDED


@ON_SQLITE_IN_MAKE_TEST
def test_an_answer_at_fault_fails_also_where_a_grader_does_not_end_with_it(place: Place) -> None:
    """Else a model would keep out of every comparison by answers that no expression gets to the end of."""
    slow = {"type": "python", "name": "slow", "source": "", "mens": {"check": "regex", "pattern": "^(a|aa)+$"}}
    reads_json = {**EQUALS, "name": "json", "input": "{{ sample.output_json }}"}
    job = place.queue([{"item": {"question": "a" * 60 + "b", "answer": "x"}}], criteria=[slow, reads_json])
    totals = place.run(job).result["totals"]
    assert (totals["failed"], totals["errored"]) == (1, 0)
    [result] = place.results(job)
    assert result.status == "fail"
    found = [(each.error, each.passed, each.fault and each.fault["code"]) for each in result.results]
    assert found == [(None, False, Code.GRADER_TIMEOUT), (None, False, Code.GRADER_SAMPLE_INVALID)]


def test_a_model_that_judges_is_queried_and_its_tokens_are_counted(place: Place, api: GatewayStub) -> None:
    judge = {
        "type": "score_model", "name": "judge", "model": "critic", "pass_threshold": 0.5,
        "input": [{"role": "user", "content": "Judge {{ sample.output_text }}"}],
    }  # fmt: skip
    api.reply = lambda body: (200, chat('{"result": 0.8}')) if body["model"] == "critic" else None
    job = place.queue(ROWS[:2], criteria=[judge])
    totals = place.run(job).result["totals"]
    assert totals["passed"] == 2
    assert totals["usage"]["critic"]["invocation_count"] == 2
    assert totals["usage"]["critic"]["total_tokens"] == 8


PREFERS = {
    "type": "label_model", "name": "better", "model": "critic", "labels": ["first", "second"], "passing_labels": ["first"],
    "input": [{"role": "user", "content": "{{ sample.output_text }}|{{ sample.other.output_text }}"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("is_first", "counts"),
    [
        (lambda first, second: len(first) < len(second), (6, 1, 1)),
        (lambda first, second: True, (0, 8, 0)),  # favours a position, and so neither model
        (lambda first, second: False, (0, 8, 0)),
    ],
)
def test_a_judge_of_both_answers_sees_them_in_both_orders(
    place: Place, api: GatewayStub, is_first: Callable[[str, str], bool], counts: tuple[int, int, int]
) -> None:
    answers = {"new@1": {6: "same", 7: "longer than it"}, "old@1": {6: "same"}}

    def reply(body: Body) -> tuple[int, object]:
        said = body["messages"][-1]["content"]
        if body["model"] != "critic":
            return 200, chat(answers[body["model"]].get(int(said), "short" if body["model"] == "new@1" else "longer"))
        first, second = said.split("|")
        return 200, chat(json.dumps({"result": "first" if is_first(first, second) else "second"}))

    api.reply = reply
    done = place.run(place.queue(models=("new", "old"), criteria=[PREFERS]))
    found = done.result["comparisons"]["better"]
    assert (found["win_rate"]["wins"], found["win_rate"]["ties"], found["win_rate"]["losses"]) == counts
    assert found["win_rate"]["rate"] == pytest.approx((counts[0] + counts[1] / 2) / 8)
    assert api.questions["same|same"] == 2, "each answer is judged once as the first"
    assert all("other" not in (result.answer.sample or {}) for result in place.results(place.job(done)))


def test_a_judge_of_both_answers_has_no_score_where_one_is_missing(place: Place, api: GatewayStub) -> None:
    def reply(body: Body) -> tuple[int, object]:
        if body["model"] == "critic":
            return 200, chat('{"result": "first"}')
        is_refused = (body["model"], body["messages"][0]["content"]) == ("old@1", "3")
        return (400, refusal(Code.REQUEST_REJECTED)) if is_refused else (200, chat("an answer"))

    api.reply = reply
    found = place.run(place.queue(models=("new", "old"), criteria=[PREFERS])).result["comparisons"]["better"]
    assert (found["items"], found["unpaired"]) == (7, 1)


def test_models_of_other_servers_judge_and_are_counted(place: Place, api: GatewayStub) -> None:
    judge = {
        "type": "score_model", "name": "judge", "model": "outside", "pass_threshold": 0.5,
        "input": [{"role": "user", "content": "Judge {{ sample.output_text }}"}],
    }  # fmt: skip
    alike = {**EQUALS, "type": "text_similarity", "name": "alike", "evaluation_metric": "cosine", "pass_threshold": 0.9}
    del alike["operation"]
    server, rows = RemoteServer(), [{"item": {"question": "north", "answer": word}} for word in ("north", "east")]
    with http_stub(server.respond) as url:
        target = RemoteModel(url=f"{url}/v1")
        place.worker.settings = place.settings.model_copy(
            update={"grader_models": {"outside": target}, "grader_embeddings": target}
        )
        totals = place.run(place.queue(rows, criteria=[judge, alike])).result["totals"]
    criteria = {name: (counts["passed"], counts["failed"]) for name, counts in totals["criteria"].items()}
    assert criteria == {"judge": (2, 0), "alike": (1, 1)}
    assert totals["usage"]["outside"]["invocation_count"] == 2
    assert {body["model"] for body in api.asked} == {"tiny@1"}


CODE = {
    "type": "python",
    "name": "code",
    "source": "def grade(sample, item):\n    return float(int(sample['output_text']) == int(item['answer']))",
    "pass_threshold": 1,
}


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.sandbox
@pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock"))
def test_criteria_of_code_run_in_the_sandbox_whose_level_is_named(place: Place) -> None:
    rows = [*ROWS, {"item": {"question": "no number", "answer": "1"}}, {"item": {"question": "3", "answer": "4"}}]
    job = place.queue(rows, criteria=[CODE])
    result = place.run(job).result
    assert (result["totals"]["passed"], result["totals"]["failed"], result["totals"]["errored"]) == (8, 2, 0)
    assert result["sandbox"] in LEVELS
    assert result["unrepeatable"] == {}
    raised = place.results(job)[8].answer.results[0]
    assert raised.fault
    assert raised.fault["code"] == Code.GRADER_FAILED
    assert "ValueError" in raised.fault["details"]["traceback"]


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.sandbox
@pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock"))
def test_code_that_scores_otherwise_a_second_time_is_reported(place: Place) -> None:
    source = "import time\ndef grade(sample, item): return time.time()"
    rows = [{"item": {"question": f"{number}"}} for number in range(12)]
    result = place.run(place.queue(rows, criteria=[{**CODE, "source": source}])).result
    assert result["unrepeatable"] == {"code": 10}


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.sandbox
@pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock"))
def test_an_attempt_that_judges_nothing_more_names_the_level_of_the_one_that_did(place: Place) -> None:
    job = place.queue(ROWS[:2], criteria=[CODE])
    first = place.run(job).result["sandbox"]
    without = place.settings.model_copy(update={"sandbox": "off"})
    attempt: Any = SimpleNamespace(
        leases=place.worker.leases, settings=without, storage=place.storage, lease=None, report=lambda **_: None
    )
    outcome = evaluate_model(attempt, EvaluationPlan.model_validate(job.plan), job.id)
    assert outcome.as_dict()["sandbox"] == first in LEVELS


def test_criteria_of_code_without_a_sandbox_end_the_job_with_what_is_missing(place: Place) -> None:
    place.worker.settings = place.settings.model_copy(update={"sandbox": "off"})
    failed = place.run(place.queue(criteria=[CODE]))
    assert failed.error
    assert failed.error["code"] == Code.SANDBOX_UNAVAILABLE
    assert "MENS_SANDBOX is off" in failed.error["message"]


COMPILES = {"type": "python", "name": "c", "source": "", "mens": {"check": "compiles", "language": "c"}}


@ON_SQLITE_IN_MAKE_TEST
@WITH_GCC
@CONTAINED
@pytest.mark.sandbox
def test_criteria_that_a_compiler_judges_run_in_bubblewrap_or_end_the_job(place: Place) -> None:
    result = place.run(place.queue(ROWS[:2], criteria=[COMPILES])).result
    assert (result["totals"]["passed"], result["totals"]["failed"], result["totals"]["errored"]) == (0, 2, 0)
    assert result["sandbox"] == "bubblewrap"
    place.worker.settings = place.settings.model_copy(update={"sandbox": "landlock"})
    failed = place.run(place.queue(criteria=[COMPILES]))
    assert failed.error
    assert failed.error["code"] == Code.SANDBOX_UNAVAILABLE
    assert "requires the sandbox level bubblewrap" in failed.error["message"]


@ON_SQLITE_IN_MAKE_TEST
@pytest.mark.sandbox
@pytest.mark.skipif(all(map(missing, LEVELS)), reason=missing("landlock"))
def test_unrepeatable_scores_are_still_reported_after_another_attempt(place: Place) -> None:
    source = "import time\ndef grade(sample, item): return time.time()"
    job = place.queue(ROWS[:2], criteria=[{**CODE, "source": source}])
    assert place.run(job).result["unrepeatable"] == {"code": 2}
    attempt: Any = SimpleNamespace(
        leases=place.worker.leases,
        settings=place.settings,
        storage=place.storage,
        lease=None,
        report=lambda **_: None,
    )
    outcome = evaluate_model(attempt, EvaluationPlan.model_validate(job.plan), job.id)
    assert outcome.as_dict()["unrepeatable"] == {"code": 2}


def test_incumbent_is_queried_twice_for_the_noise_floor(place: Place, api: GatewayStub) -> None:
    """It answers its first question otherwise the second time, as a batched server may."""
    seen: Counter[str] = Counter()

    def answers(body: Body) -> tuple[int, object] | None:
        with api.lock:
            seen[body["model"] + body["messages"][-1]["content"]] += 1
            again = seen["old@10"]
        is_other = body["model"] == "old@1" and body["messages"][-1]["content"] == "0" and again > 1
        return (200, chat("no")) if is_other else None

    api.reply = answers
    job = place.queue(models=("tiny", "old"), mens={"incumbent": "old", "noise_floor": True})
    result = place.run(job).result
    assert result["comparisons"]["equals"]["noise_floor"] == pytest.approx(1 / 8)
    assert result["totals"]["usage"]["old"]["invocation_count"] == 16
    assert Counter(body["model"] for body in api.asked) == {"tiny@1": 8, "old@1": 16}
    once = place.run(place.queue(models=("tiny", "old"), mens={"incumbent": "old"})).result
    assert once["comparisons"]["equals"]["noise_floor"] is None
