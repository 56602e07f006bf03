"""OpenAI's evals API with the stock client, strictly validated; refusals before any request to a model; tenants."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai import OpenAI

from shared.database.evaluation.items import EvalItems
from shared.database.job_states import JobState
from shared.database.leases import Leases
from shared.database.names.aliases import Actor
from shared.database.names.foreign_names import ForeignNames
from shared.database.routing import StandsFor
from shared.database.tenancy import Role
from shared.errors import Code
from shared.graders.remote_models import RemoteModels
from shared.settings import RemoteModel
from tests.support.asgi_server import serve
from tests.support.builders import BASE, claimed, new_adapter
from tests.support.eval_worker import StrictClient, work

pytestmark = pytest.mark.network

EQUALS: dict[str, Any] = {
    "type": "string_check",
    "name": "equals",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "question": {"type": "string"},
        "answer": {"type": "string"},
        "tags": {"type": "array", "items": {}},
    },
    "required": ["question", "answer"],
}
CONFIG: dict[str, Any] = {"type": "custom", "item_schema": SCHEMA, "include_sample_schema": True}
ROWS = [{"item": {"question": f"{number}", "answer": f"{number}"}} for number in range(4)]
PROMPT: dict[str, Any] = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}


def asking(rows: list[dict[str, Any]] = ROWS, **changes: Any) -> Any:
    """A data source that asks the base."""
    source = {"type": "completions", "model": BASE, "input_messages": PROMPT}
    return {**source, "source": {"type": "file_content", "content": rows}, **changes}


@pytest.fixture
def open_client(app: FastAPI) -> Iterator[Callable[[str], OpenAI]]:
    """Makes stock clients with trainers' keys of tenants."""

    def make(url: str, tenant: str) -> OpenAI:
        _, secret = app.state.services.keys.create(f"of {tenant}", tenant, Role.TRAINER)
        return StrictClient(base_url=f"{url}/v1", api_key=secret, max_retries=0, _strict_response_validation=True)

    for url in serve(app, "on"):
        yield partial(make, url)


@pytest.fixture
def acme(open_client: Callable[[str], OpenAI]) -> OpenAI:
    return open_client("acme")


def make_eval(client: OpenAI, *criteria: dict[str, Any], **config: Any) -> str:
    made = client.evals.create(
        name="Numbers",
        data_source_config=CONFIG | config,
        testing_criteria=[*(criteria or (EQUALS,))],
    )
    return made.id


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> dict[str, Any]:
    """The error of a refused call; OpenAI's type and code are checked."""
    with pytest.raises(openai.APIStatusError) as caught:
        call(*arguments, **named)
    body: Any = caught.value.body
    assert body["type"] == "invalid_request_error"
    return {**body, "status": caught.value.status_code, "code": body["mens"]["code"]}


def test_an_eval_lives_as_the_stock_client_expects(acme: OpenAI) -> None:
    made = acme.evals.create(
        name="Tone",
        data_source_config=CONFIG,
        testing_criteria=[EQUALS],
        metadata={"team": "a"},
    )
    assert made.data_source_config.type == "custom"
    assert made.data_source_config.schema_["properties"]["item"] == SCHEMA
    assert made.data_source_config.schema_["required"] == ["item", "sample"]
    assert acme.evals.retrieve(made.id).to_dict() == made.to_dict()
    renamed = acme.evals.update(made.id, name="Manner", metadata={})
    assert (renamed.name, renamed.metadata) == ("Manner", {})
    others = [acme.evals.create(data_source_config=CONFIG, testing_criteria=[EQUALS]).id for _ in range(3)]
    assert [found.id for found in acme.evals.list(limit=2)] == [made.id, *others]
    assert [found.id for found in acme.evals.list(limit=3, order="desc")] == [made.id, *others][::-1]
    assert acme.evals.delete(made.id).deleted
    assert refused(acme.evals.retrieve, made.id)["code"] == Code.EVAL_NOT_FOUND


CRITERIA: dict[str, dict[str, Any]] = {
    "text_similarity": {
        "type": "text_similarity", "name": "alike", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}",
        "evaluation_metric": "fuzzy_match", "pass_threshold": 0.8,
    },
    "label_model": {
        "type": "label_model", "name": "label", "model": BASE, "labels": ["good", "bad"], "passing_labels": ["good"],
        "input": [{"role": "developer", "content": "Judge."}, {"role": "user", "content": "{{ item.question }}"}],
    },
    "score_model": {
        "type": "score_model", "name": "score", "model": BASE, "range": [1, 7], "pass_threshold": 5,
        "input": [{"role": "user", "content": {"type": "input_text", "text": "{{ sample.output_text }}"}}],
        "sampling_params": {"temperature": 0, "seed": 1},
    },
    "python": {
        "type": "python", "name": "code", "source": "def grade(sample, item):\n    return 1.0", "image_tag": "2025-05-08",
        "pass_threshold": 0.5, "mens": {"check": "regex", "pattern": "[0-9]"},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(CRITERIA))
def test_every_kind_of_criterion_comes_back_as_it_was_sent(acme: OpenAI, kind: str) -> None:
    made = acme.evals.retrieve(make_eval(acme, CRITERIA[kind]))
    [criterion] = made.testing_criteria
    assert criterion.type == kind
    sent = json.loads(json.dumps(CRITERIA[kind]))
    told = criterion.to_dict()
    assert {name: told[name] for name in sent if name not in ("input", "mens")} == {
        name: value for name, value in sent.items() if name not in ("input", "mens")
    }


def test_a_run_is_queued_done_and_read(app: FastAPI, acme: OpenAI) -> None:
    eval_id = make_eval(acme)
    sampling: Any = {"temperature": 0, "seed": 11, "max_completion_tokens": 16}
    run = acme.evals.runs.create(
        eval_id, name="First", data_source=asking(sampling_params=sampling), metadata={"k": "v"}
    )
    assert (run.status, run.model, run.name, run.metadata) == ("queued", BASE, "First", {"k": "v"})
    assert run.data_source.source.content[2].item == ROWS[2]["item"]
    told: Any = run.to_dict()["mens"]
    assert (told["answers"], told["seed"], told["estimate"]) == (
        4, 11, {"requests": 4, "judge_requests": 0, "prompt_tokens": 1, "completion_tokens_at_most": 64},
    )  # fmt: skip
    work(app, run.id, lambda question: "?" if question == "3" else question)
    done = acme.evals.runs.retrieve(run.id, eval_id=eval_id)
    assert done.status == "completed"
    assert done.result_counts.model_dump() == {"total": 4, "errored": 0, "failed": 1, "passed": 3}
    [usage] = done.per_model_usage
    assert (usage.run_model_name, usage.invocation_count, usage.total_tokens) == (BASE, 4, 16)
    [result] = done.per_testing_criteria_results
    assert (result.testing_criteria, result.passed, result.failed) == ("equals", 3, 1)
    [listed] = acme.evals.runs.list(eval_id, status="completed")
    assert listed.id == run.id
    assert list(acme.evals.runs.list(eval_id, status="failed")) == []


def test_output_items_are_paged_filtered_and_read(app: FastAPI, acme: OpenAI) -> None:
    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source=asking(sampling_params={"seed": 11, "max_completion_tokens": 16}))
    work(app, run.id, lambda question: "?" if question == "3" else question)
    listed = list(acme.evals.runs.output_items.list(run.id, eval_id=eval_id, limit=2))
    assert [item.datasource_item_id for item in listed] == [0, 1, 2, 3]
    [failed] = acme.evals.runs.output_items.list(run.id, eval_id=eval_id, status="fail")
    assert failed.datasource_item == ROWS[3]["item"]
    assert [(result.name, result.passed, result.score) for result in failed.results] == [("equals", False, 0.0)]
    sample = failed.sample
    assert [(turn.role, turn.content) for turn in sample.input] == [("user", "3")]
    assert [(turn.role, turn.content) for turn in sample.output] == [("assistant", "?")]
    assert (sample.seed, sample.max_completion_tokens, sample.temperature, sample.finish_reason) == (
        11,
        16,
        1.0,
        "stop",
    )
    found = acme.evals.runs.output_items.retrieve(failed.id, eval_id=eval_id, run_id=run.id)
    assert found.to_dict() == failed.to_dict()
    assert (
        refused(acme.evals.runs.output_items.retrieve, f"{run.id}-9", eval_id=eval_id, run_id=run.id)["status"] == 404
    )


def test_the_report_of_a_run_is_a_page_that_exists(acme: OpenAI) -> None:
    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source=asking())
    assert acme.get(run.report_url, cast_to=object)["id"] == run.id


def test_rows_of_a_file_and_rows_with_answers(app: FastAPI, acme: OpenAI) -> None:
    rows = [{"item": {"question": "q", "answer": "a"}, "sample": {"output_text": text}} for text in ("a", "b")]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    file = acme.files.create(file=("rows.jsonl", content), purpose="evals")
    assert [found.id for found in acme.files.list(purpose="evals")] == [file.id]
    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source={"type": "jsonl", "source": {"type": "file_id", "id": file.id}})
    assert run.data_source.source.type == "file_id"
    assert refused(acme.files.delete, file.id)["code"] == Code.FILE_IN_USE
    work(app, run.id)
    assert acme.evals.runs.retrieve(run.id, eval_id=eval_id).result_counts.passed == 1


def test_responses_are_requested_in_the_same_way(acme: OpenAI) -> None:
    source: Any = asking(
        type="responses", sampling_params={"max_completion_tokens": 8, "text": {"format": {"type": "text"}}}
    )
    run = acme.evals.runs.create(make_eval(acme), data_source=source)
    assert run.data_source.type == "responses"


@pytest.mark.parametrize("path", ["", "/cancel"])
def test_a_run_is_cancelled_by_either_path(acme: OpenAI, path: str) -> None:
    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source=asking())
    told: Any = acme.post(f"/evals/{eval_id}/runs/{run.id}{path}", cast_to=object)
    assert told["status"] == "canceled"
    assert acme.evals.runs.delete(run.id, eval_id=eval_id).deleted
    assert list(acme.evals.runs.list(eval_id)) == []


def test_a_run_that_has_not_ended_is_not_deleted(acme: OpenAI) -> None:
    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source=asking())
    assert refused(acme.evals.runs.delete, run.id, eval_id=eval_id)["code"] == Code.EVAL_IN_USE
    assert refused(acme.evals.delete, eval_id)["code"] == Code.EVAL_IN_USE


def test_a_run_is_a_job_that_the_native_api_makes_shows_and_pauses(client: TestClient) -> None:
    made = client.post("/v1/evals", json={"data_source_config": CONFIG, "testing_criteria": [EQUALS]}).json()
    body = {"kind": "evaluate", "eval": made["id"], "run": {"data_source": asking()}, "name": "Native"}
    job = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert job.status_code == 201
    again = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}).json()
    assert again["id"] == job.json()["id"]
    assert [found["id"] for found in client.get("/v1/jobs?kind=evaluate").json()["data"]] == [again["id"]]
    files = client.get("/v1/files?purpose=evals").json()["data"]
    assert [file["id"] for file in files] == [again["extra"]["items_file"]]
    assert client.post(f"/v1/jobs/{again['id']}/pause").json()["state"] == JobState.PAUSED
    run = client.get(f"/v1/evals/{made['id']}/runs/{again['id']}").json()
    assert (run["status"], run["mens"]["state"], run["name"]) == ("queued", "paused", "Native")
    assert client.post(f"/v1/jobs/{again['id']}/resume").json()["state"] == JobState.QUEUED


BAD_EVALS: list[tuple[str, dict[str, Any], list[dict[str, Any]], str, str]] = [
    ("a field that the schema has not", CONFIG, [EQUALS | {"reference": "{{ item.anwser }}"}], "EVAL_INVALID", "testing_criteria.0"),
    ("a field of a text", CONFIG, [EQUALS | {"reference": "{{ item.answer.x }}"}], "EVAL_INVALID", "testing_criteria.0"),
    ("a schema that is none", CONFIG | {"item_schema": {"type": 3}}, [EQUALS], "EVAL_INVALID", "data_source_config.item_schema"),
    ("one name twice", CONFIG, [EQUALS, EQUALS], "REQUEST_INVALID", ""),
    ("no criterion", CONFIG, [], "REQUEST_INVALID", "testing_criteria"),
    ("an expression that is none", CONFIG, [CRITERIA["python"] | {"mens": {"check": "regex", "pattern": "("}}], "GRADER_INVALID", "testing_criteria.0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "criteria", "code", "param"), [row[1:] for row in BAD_EVALS], ids=[row[0] for row in BAD_EVALS]
)
def test_criteria_that_cannot_judge_are_reported_when_the_eval_is_created(
    acme: OpenAI, config: Any, criteria: Any, code: str, param: str
) -> None:
    error = refused(acme.evals.create, data_source_config=config, testing_criteria=criteria)
    assert (error["status"], error["code"]) == (400, code)
    assert (error["param"] or "").startswith(param)


def test_a_field_of_a_list_and_one_that_is_allowed_are_not_faults(acme: OpenAI) -> None:
    inside = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}]}}}
    schema = {**inside, "$defs": {"b": {"type": "object", "properties": {"c": {}}}}, "additionalProperties": True}
    criterion = EQUALS | {"input": "{{ item.a.c }} {{ item.other }}", "reference": "{{ item.tags[0].x }}"}
    assert make_eval(acme, criterion, item_schema=schema)


BAD_RUNS: list[tuple[str, dict[str, Any], dict[str, Any], int, str, str]] = [
    ("an unknown model", asking(model="nobody"), {}, 404, "MODEL_NOT_FOUND", "data_source.model"),
    ("no model", asking(model=None), {}, 400, "REQUEST_INVALID", "data_source.model"),
    ("an unknown incumbent", asking(), {"incumbent": "nobody"}, 404, "MODEL_NOT_FOUND", "mens.incumbent"),
    ("the same incumbent", asking(), {"incumbent": BASE}, 400, "REQUEST_INVALID", "mens.incumbent"),
    ("an item that does not fit", asking([*ROWS, {"item": {"question": "x"}}]), {}, 400, "EVAL_ITEMS_INVALID", "data_source.source.content.4"),
    ("a prompt of what is not there", asking(input_messages={"type": "item_reference", "item_reference": "item.chat"}), {}, 400, "EVAL_ITEMS_INVALID", "data_source.source.content.0"),
    ("rows without answers", {"type": "jsonl", "source": {"type": "file_content", "content": ROWS}}, {}, 400, "EVAL_ITEMS_INVALID", "data_source.source.content.0"),
    ("an unknown file", {"type": "jsonl", "source": {"type": "file_id", "id": "file-1"}}, {}, 404, "FILE_NOT_FOUND", "data_source.source.id"),
    ("stored completions", asking(source={"type": "stored_completions", "limit": 3}), {}, 400, "DATA_SOURCE_UNSUPPORTED", "data_source.source.type"),
    ("a prompt with an image", asking(input_messages={"type": "template", "template": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}]}), {}, 400, "GRADER_UNSUPPORTED", "data_source.input_messages"),
    ("tools that are none", asking(sampling_params={"tools": [{"type": "web"}]}), {}, 400, "", "data_source.sampling_params.tools"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "mens", "status", "code", "param"), [row[1:] for row in BAD_RUNS], ids=[row[0] for row in BAD_RUNS]
)
def test_items_that_cannot_be_run_are_reported_before_any_request(
    app: FastAPI, acme: OpenAI, source: Any, mens: dict[str, Any], status: int, code: str, param: str
) -> None:
    error = refused(acme.evals.runs.create, make_eval(acme), data_source=source, extra_body={"mens": mens})
    assert error["status"] == status
    assert error["code"] == code or not code
    assert str(error["param"]).startswith(param)
    assert list(acme.files.list(purpose="evals")) == []
    assert app.state.services.jobs.of("acme").list() == []


def test_a_judge_of_another_server_needs_no_model_of_that_name_here(app: FastAPI, acme: OpenAI) -> None:
    made = make_eval(acme, CRITERIA["label_model"] | {"model": "outside"})
    error = refused(acme.evals.runs.create, made, data_source=asking())
    assert (error["code"], error["param"]) == ("MODEL_NOT_FOUND", "testing_criteria.0.model")
    remote = RemoteModels({"outside": RemoteModel(url="https://models.example/v1")}, None)
    app.state.services = replace(app.state.services, remote_models=remote)
    assert acme.evals.runs.create(made, data_source=asking()).status == "queued"


def test_a_judge_of_both_answers_judges_two_models(app: FastAPI, acme: OpenAI) -> None:
    services = app.state.services
    leases = Leases(services.database, 60)
    lease = claimed(services.jobs.of("acme"), leases, base_model=BASE)
    leases.finish(lease, {}, adapters=[new_adapter("demo@1", base_model=BASE)])
    both = [{"role": "user", "content": "{{ sample.output_text }} or {{ sample.other.output_text }}"}]
    made = make_eval(acme, CRITERIA["label_model"] | {"input": both})
    run = acme.evals.runs.create(made, data_source=asking(model="demo@1"), extra_body={"mens": {"incumbent": BASE}})
    assert run.status == "queued"


def test_a_judge_of_both_answers_needs_a_second_model(acme: OpenAI) -> None:
    both = [{"role": "user", "content": "{{ sample.output_text }} or {{ sample.other.output_text }}"}]
    error = refused(
        acme.evals.runs.create, make_eval(acme, CRITERIA["label_model"] | {"input": both}), data_source=asking()
    )
    assert (error["code"], error["param"]) == ("GRADER_INVALID", "testing_criteria.0")
    both[0]["content"] = "{{ sample.other.mood }}"
    error = refused(
        acme.evals.runs.create, make_eval(acme, CRITERIA["label_model"] | {"input": both}), data_source=asking()
    )
    assert (error["code"], error["param"]) == ("EVAL_INVALID", "testing_criteria")


def test_a_model_by_its_other_name_is_not_an_incumbent(app: FastAPI, acme: OpenAI) -> None:
    base = StandsFor(kind="base", name=BASE)
    ForeignNames(app.state.services.database, "acme").set(
        "gpt-4o", base, Actor(id="key-1", name="ada"), bases=frozenset({BASE})
    )
    mens = {"mens": {"incumbent": "gpt-4o"}}
    error = refused(acme.evals.runs.create, make_eval(acme), data_source=asking(), extra_body=mens)
    assert (error["code"], error["param"]) == ("REQUEST_INVALID", "mens.incumbent")


def test_an_eval_of_stored_answers_is_kept_and_not_run(acme: OpenAI) -> None:
    made = acme.evals.create(data_source_config={"type": "logs", "metadata": {"a": "b"}}, testing_criteria=[EQUALS])
    assert made.data_source_config.type == "logs"
    assert refused(acme.evals.runs.create, made.id, data_source=asking())["code"] == Code.DATA_SOURCE_UNSUPPORTED


def test_code_without_a_sandbox_is_refused_at_a_run_and_not_at_an_eval(
    app: FastAPI, acme: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.state.services.sandboxes, "_choice", "off")
    code = {name: value for name, value in CRITERIA["python"].items() if name != "mens"}
    error = refused(acme.evals.runs.create, make_eval(acme, code), data_source=asking())
    assert (error["code"], error["param"]) == (Code.SANDBOX_UNAVAILABLE, "testing_criteria.0")


def test_code_that_does_not_compile_is_reported_before_any_request(
    app: FastAPI, acme: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.state.services.sandboxes, "_choice", "auto")
    if app.state.services.sandboxes.report().level is None:
        pytest.skip("nothing on this machine contains code")
    code = {"type": "python", "name": "code", "source": "def grade(sample, item) return 1"}
    error = refused(acme.evals.runs.create, make_eval(acme, code), data_source=asking())
    assert (error["code"], error["param"]) == (Code.GRADER_SOURCE_INVALID, "testing_criteria.0")


def test_code_within_another_check_is_looked_at_in_the_sandbox(
    app: FastAPI, acme: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.state.services.sandboxes, "_choice", "auto")
    if app.state.services.sandboxes.report().level is None:
        pytest.skip("nothing on this machine contains code")
    source = "def grade(sample, item): return 1"
    of = {"type": "python", "name": "code", "source": source}
    check = {"type": "python", "name": "any", "source": "", "mens": {"check": "pass_at_k", "k": 1, "of": of}}
    assert acme.evals.runs.create(make_eval(acme, check), data_source=asking()).status == "queued"
    of["source"] = "def grade(sample, item) return 1"
    error = refused(acme.evals.runs.create, make_eval(acme, check), data_source=asking())
    assert (error["code"], error["param"]) == (Code.GRADER_SOURCE_INVALID, "testing_criteria.0")


def test_faults_of_a_file_are_reported_by_their_lines(acme: OpenAI) -> None:
    eval_id = make_eval(acme)
    file = acme.files.create(
        file=("rows.jsonl", b'{"item": {"question": "a", "answer": "b"}}\n{"itm": 1}\n'), purpose="evals"
    )
    error = refused(acme.evals.runs.create, eval_id, data_source=asking(source={"type": "file_id", "id": file.id}))
    assert error["code"] == Code.EVAL_ITEMS_INVALID
    assert error["message"].startswith("Line 2:")


def test_a_run_of_too_many_answers_is_refused(app: FastAPI, acme: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.evaluation.check_count", lambda answers, limit: _check(answers, 7))
    source: Any = asking()
    error = refused(acme.evals.runs.create, make_eval(acme), data_source=source, extra_body={"mens": {"samples": 2}})
    assert error["code"] == Code.EVAL_TOO_MANY_ITEMS
    assert list(acme.files.list(purpose="evals")) == []


def _check(answers: int, limit: int) -> None:
    from shared.evaluation.items import check_count

    check_count(answers, limit)


def test_tenants_see_nothing_of_each_other(app: FastAPI, open_client: Callable[[str], OpenAI]) -> None:
    acme, other = open_client("acme"), open_client("other")
    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source=asking())
    work(app, run.id)
    assert list(other.evals.list()) == []
    calls: list[Callable[[], Any]] = [
        lambda: other.evals.retrieve(eval_id),
        lambda: other.evals.update(eval_id, name="mine"),
        lambda: other.evals.delete(eval_id),
        lambda: other.evals.runs.create(eval_id, data_source=asking()),
        lambda: other.evals.runs.list(eval_id),
        lambda: other.evals.runs.retrieve(run.id, eval_id=eval_id),
        lambda: other.evals.runs.cancel(run.id, eval_id=eval_id),
        lambda: other.evals.runs.delete(run.id, eval_id=eval_id),
        lambda: other.evals.runs.output_items.list(run.id, eval_id=eval_id),
        lambda: other.evals.runs.output_items.retrieve(f"{run.id}-0", eval_id=eval_id, run_id=run.id),
    ]
    assert {refused(call)["status"] for call in calls} == {404}
    own = make_eval(other)
    assert refused(other.evals.runs.retrieve, run.id, eval_id=own)["status"] == 404


def test_a_run_of_an_error_reports_it_in_openais_fields(app: FastAPI, acme: OpenAI) -> None:
    from shared.errors import JobFailed

    eval_id = make_eval(acme)
    run = acme.evals.runs.create(eval_id, data_source=asking())
    leases = Leases(app.state.services.database, 60.0)
    lease = leases.claim(run.id, "worker-1")
    assert lease
    leases.fail(lease, JobFailed(Code.EVAL_UNAVAILABLE, "No API.", remedy="Set MENS_API_URL."))
    failed = acme.evals.runs.retrieve(run.id, eval_id=eval_id)
    assert (failed.status, failed.error.code) == ("failed", Code.EVAL_UNAVAILABLE)
    assert failed.error.message == "No API. Set MENS_API_URL."
    assert EvalItems(app.state.services.database).positions(run.id) == set()
