"""The native API of jobs: create, idempotency, ETag, events as a stream, and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.contract.auto_hyperparameters import DEFAULT_LEARNING_RATE
from shared.database.leases import Leases
from shared.database.records import NewEvent
from shared.errors import Code, JobFailed
from tests.support.builders import BASE, claimed, new_adapter
from tests.support.waiting import eventually


def error_of(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


def leases_of(app: FastAPI) -> Leases:
    return Leases(app.state.services.database, 60)


def test_created_job_is_queued(app: FastAPI, client: TestClient, job_body: dict[str, Any]) -> None:
    response = client.post("/v1/jobs", json=job_body | {"metadata": {"a": "b"}, "name": "helper"})
    job = response.json()
    assert (response.status_code, job["state"], job["labels"], job["name"]) == (201, "queued", {"a": "b"}, "helper")
    assert job["plan"]["train"]["rows"] == 40
    assert app.state.services.job_queue.enqueued == [job["id"]]


def test_repeated_idempotency_key_returns_the_same_job(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/jobs", json=job_body, headers=headers).json()
    second = client.post("/v1/jobs", json=job_body, headers=headers).json()
    assert first["id"] == second["id"]
    assert app.state.services.job_queue.enqueued == [first["id"]]
    job_body["contract"]["exec"] = {"epochs": 7}
    other = client.post("/v1/jobs", json=job_body, headers=headers)
    assert (other.status_code, error_of(other)["code"]) == (409, "IDEMPOTENCY_CONFLICT")


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": {"hf_repo": "nobody"}}, 404, "MODEL_NOT_FOUND", "model"),
        ({"data": {"train_file": "file-x"}}, 404, "FILE_NOT_FOUND", "data.train_file"),
        ({"adapter": {"method": "lora"}, "quant": {"base": "nf4"}}, 422, "NF4_REQUIRES_QLORA", "adapter.method"),
        ({"adapter": {"targets": "lm_head_proxy"}}, 422, "CONTRACT_UNSUPPORTED", "adapter.targets"),
        ({"exec": {"epochs": 0}}, 422, "REQUEST_INVALID", "contract.exec.epochs"),
        ({"exec": {"epoch": 3}}, 422, "REQUEST_INVALID", "contract.exec.epoch"),
        ({"surprise": {}}, 422, "REQUEST_INVALID", "contract.surprise"),
        ({"artifact": {"alias": "Prod v2"}}, 422, "NAME_INVALID", "contract.artifact.alias"),
    ],
)
def test_invalid_contracts_are_refused(
    app: FastAPI,
    client: TestClient,
    job_body: dict[str, Any],
    change: dict[str, Any],
    status: int,
    code: str,
    param: str,
) -> None:
    job_body["contract"] |= change
    response = client.post("/v1/jobs", json=job_body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert app.state.services.job_queue.enqueued == []
    assert client.get("/v1/jobs").json()["data"] == []


def test_refusal_names_the_invalid_lines(client: TestClient, job_body: dict[str, Any]) -> None:
    content = b'{"prompt": "a", "response": "b"}\nnot json\n{"prompt": "only"}\n'
    file = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("f", content)}).json()
    job_body["contract"]["data"]["train_file"] = file["id"]
    error = error_of(client.post("/v1/jobs", json=job_body))
    assert error["code"] == "DATASET_LINE_INVALID"
    assert [fault["line"] for fault in error["mens"]["details"]["errors"]] == [2, 3]


def test_plan_creates_no_job(client: TestClient, job_body: dict[str, Any]) -> None:
    plan = client.post("/v1/plans", json={"contract": job_body["contract"]}).json()
    assert len(plan["plan_digest"]) == 64
    assert plan["plan"]["base"]["name"] == BASE
    assert client.get("/v1/jobs").json()["data"] == []


def test_publishing_without_a_serving_tier_is_refused(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    app.state.services.settings.serving_urls.clear()
    assert error_of(client.post("/v1/jobs", json=job_body))["param"] == "artifact.publish"
    job_body["contract"]["artifact"] = {"publish": False}
    assert client.post("/v1/jobs", json=job_body).status_code == 201


def placed(client: TestClient, job_id: str) -> Any:
    """A queued job with its place, which a busy machine reads only after the first answer."""

    def answer() -> Any:
        found = client.get(f"/v1/jobs/{job_id}")
        return found if found.json()["queue"] else None

    return eventually(answer)


def test_unchanged_job_is_a_304(client: TestClient, job_body: dict[str, Any]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    first = placed(client, job["id"])
    again = client.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    changed = client.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["state"]) == (200, "cancelled")


def test_jobs_are_listed_by_state_and_base(client: TestClient, job_body: dict[str, Any]) -> None:
    queued, cancelled, paused = (client.post("/v1/jobs", json=job_body).json()["id"] for _ in range(3))
    client.post(f"/v1/jobs/{cancelled}/cancel")
    client.post(f"/v1/jobs/{paused}/pause")

    def listed(**filters: str | list[str]) -> list[str]:
        return [job["id"] for job in client.get("/v1/jobs", params=filters).json()["data"]]

    assert listed(state="cancelled") == [cancelled]
    assert listed(state=["queued", "paused"], base_model=BASE) == [paused, queued]
    assert listed(base_model="another") == []
    assert listed(created_by="another") == listed(alias="prod") == listed(created_after="2100-01-01T00:00:00Z") == []
    by = client.get(f"/v1/jobs/{queued}").json()["created_by"]
    assert listed(created_by=by, created_before="2100-01-01T00:00:00Z") == [paused, cancelled, queued]
    assert listed(q=queued[-12:]) == [queued]

    def counted(**filters: str) -> dict[str, int]:
        found = client.get("/v1/jobs:count", params={"group_by": "state", **filters})
        return {one["state"]: one["jobs"] for one in found.json()["data"]}

    assert counted() == {"queued": 1, "paused": 1, "cancelled": 1}
    assert counted(q=queued[-12:]) == {"queued": 1}
    assert counted(base_model="another") == {}
    refusals = [client.get("/v1/jobs:count", params=query) for query in ({"state": "queued"}, {"group_by": "kind"})]
    assert [each.status_code for each in refusals] == [422, 422]
    assert client.get("/v1/jobs", params={"created_after": "yesterday"}).status_code == 422
    refused = client.get("/v1/jobs", params={"state": "done"})
    assert (refused.status_code, error_of(refused)["param"]) == (422, "state.0")


def test_events_after_a_cursor_are_returned(client: TestClient, job_body: dict[str, Any]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    events = client.get(f"/v1/jobs/{job['id']}", params={"after": "0"}).json()["events"]
    assert [event["message"] for event in events if "--replay" not in event["message"]] == ["Job created and queued."]
    assert client.get(f"/v1/jobs/{job['id']}", params={"after": events[-1]["seq"]}).json()["events"] == []
    assert client.get(f"/v1/jobs/{job['id']}").json()["events"] is None


def test_last_events_are_returned(app: FastAPI, client: TestClient, job_body: dict[str, Any]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    leases = leases_of(app)
    lease = leases.claim(job["id"], "w")
    assert lease
    leases.report(lease, events=[NewEvent(message=word) for word in ("one", "two", "three")])

    def messages(**params: str | int) -> list[str]:
        events = client.get(f"/v1/jobs/{job['id']}", params=params).json()["events"]
        return [event["message"] for event in events]

    everything = messages(after="0")
    assert messages(last=2) == ["two", "three"]
    assert messages(last=500) == everything
    first = client.get(f"/v1/jobs/{job['id']}", params={"after": "0"}).json()["events"][-2]["seq"]
    assert messages(last=2, after=first) == ["three"]
    assert client.get(f"/v1/jobs/{job['id']}", params={"last": 0}).status_code == 422


def stream(client: TestClient, job_id: str, **headers: str) -> list[tuple[str, str | None, dict[str, Any]]]:
    """(event, id, data) of a whole event stream."""
    found = []
    for block in client.get(f"/v1/jobs/{job_id}/events", headers=headers).text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


def test_event_stream_replays_events_and_ends_with_the_job(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    leases = leases_of(app)
    lease = leases.claim(job["id"], "w")
    assert lease
    leases.report(lease, events=[NewEvent(type="metrics", message="step", data={"loss": 1.5})])
    leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "broke", remedy="look"))
    events = stream(client, job["id"])
    assert [kind for kind, _, _ in events[-4:]] == ["message", "metrics", "message", "job"]
    assert {kind for kind, _, _ in events[:-4]} == {"message"}
    assert events[-1][2]["error"]["code"] == "TRAINER_CRASHED"
    rest = stream(client, job["id"], **{"Last-Event-ID": str(events[-4][1])})
    assert [kind for kind, _, _ in rest] == ["metrics", "message", "job"]


def test_event_stream_of_an_unknown_job_is_a_404(client: TestClient) -> None:
    assert error_of(client.get("/v1/jobs/nothing/events"))["code"] == "JOB_NOT_FOUND"


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_verb_in_a_state_that_forbids_it_is_a_conflict(client: TestClient, job_body: dict[str, Any], verb: str) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    client.post(f"/v1/jobs/{job['id']}/cancel")
    response = client.post(f"/v1/jobs/{job['id']}/{verb}")
    assert (response.status_code, error_of(response)["code"]) == (409, "JOB_STATE_CONFLICT")
    assert response.headers["x-should-retry"] == "false"


def test_contract_schema_is_served(client: TestClient) -> None:
    schema = client.get("/v1/contract/schema").json()
    assert set(schema["required"]) == {"data"}


@pytest.mark.parametrize("name", ["model.bin", "checkpoint.BIN"])
def test_bin_is_refused_before_anything_is_looked_up(client: TestClient, name: str) -> None:
    merge = client.post("/v1/jobs", json={"kind": "merge", "contract": {"adapter": name}})
    sent = {"file": (name, b"\x80\x04not even pickle")}
    weights = client.post("/v1/files", data={"purpose": "fine-tune"}, files=sent).json()["id"]
    contract = {"model": BASE, "name": "old", "weights_file": weights, "sidecar_file": weights, "publish": False}
    imported = client.post("/v1/jobs", json={"kind": "import", "contract": contract})
    for refused, param in ((merge, "adapter"), (imported, "weights_file")):
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "MERGE_REJECTS_BURN_BIN", param), error
        assert "Burn is retired" in error["message"] and "safetensors" in error["message"]


def test_merge_of_an_unknown_adapter_is_refused(client: TestClient) -> None:
    response = client.post("/v1/jobs", json={"kind": "merge", "contract": {"adapter": "nothing"}})
    assert error_of(response)["code"] == "ADAPTER_NOT_FOUND"


IMPORT = {"weights_file": "file-none", "sidecar_file": "file-none", "model": BASE, "name": "old"}


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"publish": False}, "FILE_NOT_FOUND", "weights_file"),
        ({"publish": False, "model": "nothing"}, "MODEL_NOT_FOUND", None),
        ({"alias": "Not a name"}, "NAME_INVALID", None),
    ],
)
def test_an_import_that_cannot_be_is_refused_before_it_is_queued(
    client: TestClient, change: dict[str, Any], code: str, param: str | None
) -> None:
    response = client.post("/v1/jobs", json={"kind": "import", "contract": IMPORT | change})
    assert error_of(response)["code"] == code
    assert param is None or error_of(response)["param"] == param


def test_an_import_is_not_published_where_nothing_serves(app: FastAPI, client: TestClient) -> None:
    app.state.services.settings.serving_urls[:] = []
    refused = error_of(client.post("/v1/jobs", json={"kind": "import", "contract": IMPORT}))
    assert (refused["code"], refused["param"]) == ("CONTRACT_UNSUPPORTED", "publish")


def test_ready_without_a_database_is_a_503(app: FastAPI, client: TestClient) -> None:
    app.state.services.database.engine.dispose()
    path = app.state.services.database.url.database
    import pathlib

    pathlib.Path(path).unlink()
    pathlib.Path(path).mkdir()
    response = client.get("/ready")
    assert (response.status_code, error_of(response)["code"]) == (503, "DATABASE_UNAVAILABLE")
    assert response.headers["retry-after"]


ROWS_AND_KEYS: dict[str, Any] = {
    "data": [{"prompt": f"question {index}", "completion": "an answer"} for index in range(24)],
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "batch_size": 4,
    "epochs": 2,
}
"""The body of the seeds' own example."""


def test_rows_and_flat_keys_make_a_job(client: TestClient, app: FastAPI) -> None:
    response = client.post("/v1/jobs", json={"model": BASE, **ROWS_AND_KEYS})
    assert response.status_code == 201, response.text
    contract = response.json()["contract"]
    adapter = contract["adapter"]
    assert (adapter["rank"], adapter["alpha"], adapter["target_modules"]) == (8, 16, ["q_proj", "v_proj"])
    assert (contract["exec"]["batch_size"], contract["exec"]["epochs"]) == (4, 2)
    rate = app.state.services.catalog().get(BASE).learning_rate or DEFAULT_LEARNING_RATE
    assert (contract["exec"]["learning_rate"], contract["exec"]["grad_accum"]) == (rate, 1), "by the auto rules"
    content = client.get(f"/v1/files/{contract['data']['train_file']}/content").text
    assert [json.loads(line) for line in content.splitlines()] == ROWS_AND_KEYS["data"]


def test_rows_and_base_may_have_the_journeys_names(client: TestClient) -> None:
    body = {("dataset" if key == "data" else key): value for key, value in ROWS_AND_KEYS.items()}
    response = client.post("/v1/jobs", json={"base": BASE, **body})
    assert response.status_code == 201, response.text
    assert response.json()["base_model"] == BASE
    twice = client.post("/v1/jobs", json={"base": BASE, "model": BASE, **body})
    assert (twice.status_code, error_of(twice)["param"]) == (422, "base")


def test_a_repeated_request_with_rows_is_the_same_job(client: TestClient) -> None:
    body, headers = {"model": BASE, **ROWS_AND_KEYS}, {"Idempotency-Key": "one"}
    first, again = (client.post("/v1/jobs", json=body, headers=headers).json() for _ in range(2))
    assert first["id"] == again["id"]
    assert len(client.get("/v1/files").json()["data"]) == 1
    assert len(client.get("/v1/files").json()["data"]) == 1


@pytest.mark.parametrize(
    "change",
    [{"r": 4}, {"preset": "tiny"}, {"domain": "rust-expert"}, {"name": "another"}, {"data": ROWS_AND_KEYS["data"]}],
)
def test_another_request_with_rows_and_the_same_key_is_a_conflict(client: TestClient, change: dict[str, Any]) -> None:
    rows = [row | {"category": "rust_source", "difficulty": 2} for row in ROWS_AND_KEYS["data"]]
    body, headers = {"model": BASE, **ROWS_AND_KEYS, "data": rows}, {"Idempotency-Key": "one"}
    assert client.post("/v1/jobs", json=body, headers=headers).status_code == 201
    other = client.post("/v1/jobs", json=body | change, headers=headers)
    assert error_of(other)["code"] == "IDEMPOTENCY_CONFLICT"
    assert len(client.get("/v1/files").json()["data"]) == 1


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"lora_rank_": 3}, "CONTRACT_INVALID", "lora_rank_"),
        ({"r": True}, "CONTRACT_INVALID", "adapter.rank"),
        ({"target_modules": ["q_proj", "foo"]}, "TARGET_MODULES_UNKNOWN", "adapter.target_modules"),
        ({"backend": "torch"}, "UNKNOWN_BACKEND", "backend"),
        ({"data": [{"prompt": "only"}]}, "DATASET_LINE_INVALID", "data.0"),
        ({"min_rating": 5, "data": [{"prompt": "a", "response": "b", "rating": 1}]}, "DATASET_EMPTY", "data"),
        ({"data": []}, "REQUEST_INVALID", "data"),
    ],
)
def test_a_refused_request_with_rows_leaves_no_file(
    client: TestClient, change: dict[str, Any], code: str, param: str
) -> None:
    error = error_of(client.post("/v1/jobs", json={"model": BASE, **ROWS_AND_KEYS, **change}))
    assert (error["code"], error["param"]) == (code, param)
    assert client.get("/v1/files").json()["data"] == []


def test_a_bad_row_that_came_with_the_job_is_reported_as_a_row(client: TestClient) -> None:
    rows = [*ROWS_AND_KEYS["data"], {"prompt": "only"}]
    error = error_of(client.post("/v1/jobs", json={"model": BASE, **ROWS_AND_KEYS, "data": rows}))
    assert error["param"] == f"data.{len(rows) - 1}"
    assert f"the first is row {len(rows)}: " in error["message"]
    assert error["mens"]["details"]["errors"][0]["line"] == len(rows)
    assert "file" not in error["mens"]["remedy"]


def test_a_job_carries_its_self_evaluation_and_lists_leave_the_texts_out(app: FastAPI, client: TestClient) -> None:
    measured = {"rows": 9, "sample_answers": [{"tuned": "a secret text"}]}
    leases = leases_of(app)
    adapter = new_adapter("demo@1", metrics={"train_loss": 1.0, "self_evaluation": measured})
    done = leases.finish(
        claimed(app.state.services.jobs, leases),
        {"adapter_id": "demo@1", "self_evaluation": measured},
        adapters=[adapter],
    )
    whole = [f"/v1/jobs/{done.id}", "/v1/adapters/demo@1"]
    for path in whole:
        assert "a secret text" in client.get(path).text, path
    lists = [*("/v1/jobs", f"/v1/jobs/{done.id}/checkpoints"), f"/v1/jobs/{done.id}?after=0", "/v1/adapters"]
    for path in (lists[0], lists[1], lists[3]):
        text = client.get(path).text
        assert '"rows":9' in text, path
        assert "a secret text" not in text, path
    events = client.get(lists[2]).json()["events"]
    assert "a secret text" not in json.dumps(events)


def test_end_of_a_failed_attempts_log_is_served(app: FastAPI, client: TestClient) -> None:
    leases = leases_of(app)
    jobs = app.state.services.jobs
    job = claimed(jobs, leases).job
    assert client.get(f"/v1/jobs/{job.id}/log").content == b""
    lease = claimed(jobs, leases)
    leases.fail(lease, JobFailed(Code.TRAINER_CRASHED, "It crashed."), "first é\nlast é\n")
    log = client.get(f"/v1/jobs/{lease.job.id}/log")
    assert (log.text, log.headers["x-mens-attempt"]) == ("first é\nlast é\n", "1")
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert client.get(f"/v1/jobs/{lease.job.id}/log?bytes=10").text == "last é\n", "whole lines"
    assert client.get(f"/v1/jobs/{lease.job.id}/log?attempt=2").text == ""
    assert client.get(f"/v1/jobs/{lease.job.id}/log?bytes=65537").status_code == 422
