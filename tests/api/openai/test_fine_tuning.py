"""OpenAI's fine-tuning API: auto values, overrides, refusals, and the translation of each state."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai.types.fine_tuning import FineTuningJob as OpenAIsJob
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from shared.database.job_states import Stage
from shared.database.leases import Leases
from shared.errors import Code, JobFailed
from shared.worker_registry import WorkerMachine
from tests.support.builders import BASE, new_adapter
from tests.support.preference_rows import PAIRS, RATED


def create(client: TestClient, train_file: str, **body: Any) -> Any:
    return client.post("/v1/fine_tuning/jobs", json={"model": BASE, "training_file": train_file} | body)


def test_auto_values_are_returned_resolved(client: TestClient, train_file: str) -> None:
    job = create(client, train_file, hyperparameters={"n_epochs": "auto", "batch_size": 2}).json()
    assert job["hyperparameters"] == {"batch_size": 2, "learning_rate_multiplier": 1.0, "n_epochs": 3}
    assert job["method"]["supervised"]["hyperparameters"] == job["hyperparameters"]


def test_only_base_is_taken_where_a_request_names_none(client: TestClient, train_file: str) -> None:
    job = client.post("/v1/fine_tuning/jobs", json={"training_file": train_file}).json()
    assert job["model"] == BASE


def test_what_a_rule_has_set_is_not_called_explicit(client: TestClient, train_file: str) -> None:
    job = create(client, train_file, hyperparameters={"batch_size": 2}, mens={"exec": {"grad_accum": 1}}).json()
    sources = client.get(f"/v1/jobs/{job['id']}/preflight").json()["sources"]
    names = ("epochs", "learning_rate", "batch_size", "grad_accum")
    assert [sources[f"exec.{name}"] for name in names] == ["auto", "auto", "explicit", "explicit"]


def upload(client: TestClient, rows: list[dict[str, Any]]) -> str:
    content = b"\n".join(json.dumps(row).encode() for row in rows)
    sent = client.post("/v1/files", files={"file": ("rows.jsonl", content)}, data={"purpose": "fine-tune"})
    return str(sent.json()["id"])


def test_length_is_that_of_the_data(client: TestClient) -> None:
    rows = [{"prompt": "Hi", "response": "Hello"}] * 20 + [{"prompt": "long " * 80, "response": "Hello"}]
    job_id = create(client, upload(client, rows)).json()["id"]
    contract = client.get(f"/v1/jobs/{job_id}").json()["contract"]
    preflight = client.get(f"/v1/jobs/{job_id}/preflight").json()
    assert preflight["supervision"]["truncated_rows"] == 0
    assert contract["exec"]["seq_len"] >= preflight["supervision"]["longest_row"] > 256
    assert preflight["sources"]["exec.seq_len"] == "data"


def test_a_job_that_fits_no_worker_is_refused(
    app: FastAPI, client: TestClient, train_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = WorkerMachine(device="cuda", devices=1, memory_bytes=1 << 20, free_bytes=0)
    monkeypatch.setattr(app.state.services.workers, "machines", lambda: [machine])
    refused = create(client, train_file)
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (400, "MEMORY_DOES_NOT_FIT")
    assert app.state.services.job_queue.enqueued == []


def test_every_row_is_trained_on_unless_the_contract_says_otherwise(client: TestClient, train_file: str) -> None:
    plans = []
    for mens in ({}, {"data": {"validation_split_ratio": 0.05}}):
        job_id = create(client, train_file, mens=mens).json()["id"]
        plans.append(client.get(f"/v1/jobs/{job_id}").json()["plan"])
    assert [plan["validation_rows"] for plan in plans] == [0, 10]
    assert [plan["train"]["rows"] for plan in plans] == [40, 40]


def test_hyperparameters_of_the_mens_block_are_returned(client: TestClient, train_file: str) -> None:
    mens = {"exec": {"epochs": 5, "batch_size": 2, "grad_accum": 3, "learning_rate": 1e-4}}
    job = create(client, train_file, mens=mens).json()
    assert job["hyperparameters"] == {"batch_size": 6, "learning_rate_multiplier": 0.5, "n_epochs": 5}


def test_mens_block_overrides_the_contract(client: TestClient, train_file: str) -> None:
    mens = {"adapter": {"r": 4}, "exec": {"epochs": 5}, "artifact": {"publish": False}}
    job = create(client, train_file, mens=mens, suffix="mine", seed=3).json()
    native = client.get(f"/v1/jobs/{job['id']}").json()
    contract = native["contract"]
    assert (contract["adapter"]["rank"], contract["exec"]["epochs"], contract["exec"]["seed"]) == (4, 5, 3)
    assert native["name"] == "mine"


def dpo(hyperparameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "dpo", "dpo": {"hyperparameters": hyperparameters or {}}}


def test_preferences_are_tuned_by_openais_method(client: TestClient) -> None:
    pairs = upload(client, PAIRS * 5)
    job = create(client, pairs, method=dpo({"beta": 0.3, "batch_size": 2})).json()
    expected = {"batch_size": 2, "learning_rate_multiplier": 1.0, "n_epochs": 3, "beta": 0.3}
    assert (job["method"], job["hyperparameters"]) == ({"type": "dpo", "dpo": {"hyperparameters": expected}}, {})
    contract = client.get(f"/v1/jobs/{job['id']}").json()["contract"]
    assert (contract["method"]["type"], contract["preference"]["beta"]) == ("dpo", 0.3)
    assert contract["exec"]["learning_rate"] == pytest.approx(2e-5)
    retrieved = client.get(f"/v1/fine_tuning/jobs/{job['id']}").json()
    assert retrieved["method"] == job["method"]


def test_an_open_beta_is_answered_resolved(client: TestClient) -> None:
    pairs = upload(client, PAIRS * 5)
    job = create(client, pairs, method=dpo(), mens={"preference": {"loss": "sigmoid_norm"}}).json()
    assert job["method"]["dpo"]["hyperparameters"]["beta"] == 1.0


def test_our_block_alone_names_the_method_too(client: TestClient) -> None:
    job = create(client, upload(client, PAIRS * 5), mens={"method": {"type": "dpo"}}).json()
    assert job["method"]["type"] == "dpo"


def test_kto_is_ours_alone(client: TestClient) -> None:
    job = create(client, upload(client, RATED), mens={"method": {"type": "kto"}, "preference": {"beta": 0.2}}).json()
    assert (job["method"], job["hyperparameters"]) == (None, {})
    OpenAIsJob.model_validate(job, strict=True)
    contract = client.get(f"/v1/jobs/{job['id']}").json()["contract"]
    assert (contract["method"]["type"], contract["preference"]["loss"]) == ("kto", "kto")


@pytest.mark.parametrize(("suffix", "name"), [("My Model v2!", "my-model-v2"), ("émile", "mile"), ("!!!", "adapter")])
def test_any_suffix_becomes_a_valid_name(client: TestClient, train_file: str, suffix: str, name: str) -> None:
    job_id = create(client, train_file, suffix=suffix).json()["id"]
    assert client.get(f"/v1/jobs/{job_id}").json()["name"] == name


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"suffix": ""}, "REQUEST_INVALID", "suffix"),
        ({"hyperparameters": {"n_epochs": 51}}, "REQUEST_INVALID", "hyperparameters.n_epochs"),
        (
            {"hyperparameters": {"learning_rate_multiplier": 1e9}},
            "CONTRACT_INVALID",
            "hyperparameters.learning_rate_multiplier",
        ),
        (
            {"method": {"type": "supervised", "supervised": {"hyperparameters": {"learning_rate_multiplier": 1e9}}}},
            "CONTRACT_INVALID",
            "method.supervised.hyperparameters.learning_rate_multiplier",
        ),
        ({"mens": {"exec": {"learning_rate": 2}}}, "CONTRACT_INVALID", "mens.exec.learning_rate"),
        ({"n_epochs": 3}, "REQUEST_INVALID", "n_epochs"),
        ({"method": {"type": "reinforcement"}}, "REQUEST_INVALID", "method.type"),
        ({"method": {"type": "dpo", "supervised": {}}}, "REQUEST_INVALID", "method"),
        (
            {"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": 0.1}}}},
            "REQUEST_INVALID",
            "method.supervised.hyperparameters.beta",
        ),
        ({"method": {"type": "dpo"}, "mens": {"method": {"type": "kto"}}}, "CONTRACT_INVALID", "mens.method.type"),
        ({"method": {"type": "dpo"}}, "ROWS_OF_OTHER_METHOD", "training_file"),
        ({"mens": {"method": {"type": "kto"}}}, "ROWS_OF_OTHER_METHOD", "training_file"),
        ({"mens": {"preference": {"beta": 0.2}}}, "CONTRACT_INVALID", "preference"),
        ({"integrations": [{"type": "wandb"}]}, "REQUEST_INVALID", "integrations"),
        ({"seed": -1}, "REQUEST_INVALID", "seed"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "REQUEST_INVALID", "metadata"),
        ({"mens": {"exec": {"epoch": 3}}}, "CONTRACT_INVALID", "mens.exec.epoch"),
        ({"mens": {"optimizer": {"learnin_rate": 3}}}, "CONTRACT_INVALID", "mens.optimizer.learnin_rate"),
        ({"mens": {"adapter": {"rank": 0}}}, "CONTRACT_INVALID", "mens.adapter.rank"),
        ({"mens": {"artifact": {"alias": "Prod v2"}}}, "NAME_INVALID", "mens.artifact.alias"),
        ({"training_file": "file-x"}, "FILE_NOT_FOUND", "training_file"),
        ({"validation_file": "file-x"}, "FILE_NOT_FOUND", "validation_file"),
        ({"mens": {"data": {"replay_file": "file-x"}}}, "FILE_NOT_FOUND", "data.replay_file"),
    ],
)
def test_invalid_requests_are_refused(
    client: TestClient, train_file: str, body: dict[str, Any], code: str, param: str
) -> None:
    error = create(client, train_file, **body).json()["error"]
    assert (error["mens"]["code"], error["param"]) == (code, param)


def test_a_misspelt_field_of_our_block_is_answered_with_what_was_meant(client: TestClient, train_file: str) -> None:
    error = create(client, train_file, mens={"optimizer": {"learnin_rate": 3}}).json()["error"]
    assert error["mens"]["remedy"].startswith("Did you mean mens.exec.learning_rate? ")


def test_bounds_of_a_multiplier_are_reported_as_rates(client: TestClient, train_file: str) -> None:
    error = create(client, train_file, hyperparameters={"learning_rate_multiplier": 1e4}).json()["error"]
    assert "gives the learning rate 2: Input should be less than or equal to 1" in error["message"]


def test_invalid_file_has_the_field_name_of_openai(client: TestClient, train_file: str) -> None:
    upload = {"file": ("rows.jsonl", b'{"prompt": "x"}\n')}
    broken = client.post("/v1/files", files=upload, data={"purpose": "fine-tune"}).json()["id"]
    for field in ("training_file", "validation_file"):
        error = create(client, train_file, **{field: broken}).json()["error"]
        assert (error["mens"]["code"], error["param"]) == ("DATASET_LINE_INVALID", field)


def test_states_become_openais_statuses(app: FastAPI, client: TestClient, train_file: str) -> None:
    job_id = create(client, train_file).json()["id"]
    path = f"/v1/fine_tuning/jobs/{job_id}"
    leases = Leases(app.state.services.database, 60)
    lease = leases.claim(job_id, "w")
    assert lease
    leases.report(lease, stage=Stage.PREFLIGHT, events=[])
    assert client.get(path).json()["status"] == "running", "OpenAI's own example takes any other for the end"
    leases.report(lease, stage=Stage.TRAINING, progress={"eta_seconds": 100.0}, events=[])
    running = client.get(path).json()
    assert (running["status"], running["mens"]["stage"]) == ("running", "training")
    assert running["mens"]["precision"] == "nf4", "no worker has reported a machine, so the plan takes the smaller"
    assert running["estimated_finish"] > running["created_at"]
    client.post(f"{path}/pause")
    leases.confirm_pause(lease)
    paused = client.get(path).json()
    assert (paused["status"], paused["mens"]["state"]) == ("queued", "paused")
    client.post(f"{path}/resume")
    lease = leases.claim(job_id, "w")
    assert lease
    leases.fail(lease, JobFailed(Code.OUT_OF_MEMORY, "full", remedy="less", param="data.train_file"))
    failed = client.get(path).json()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "OUT_OF_MEMORY")
    assert "less" in failed["error"]["message"]
    assert failed["error"]["param"] == "training_file"


def test_a_checkpoint_has_the_time_at_which_it_was_written(app: FastAPI, client: TestClient, train_file: str) -> None:
    """Their adapters are all registered at the job's end; a job of an earlier release has no other time."""
    job_id = create(client, train_file).json()["id"]
    leases = Leases(app.state.services.database, 60)
    lease = leases.claim(job_id, "w")
    assert lease
    adapters = [new_adapter(f"demo@{step}", step=step, final=step == 3) for step in (1, 2, 3)]
    leases.finish(lease, {"checkpoint_times": {"demo@1": 1000, "demo@2": 2000}}, adapters=adapters)
    listed = client.get(f"/v1/fine_tuning/jobs/{job_id}/checkpoints").json()["data"]
    registered = client.get("/v1/adapters/demo@3").json()["created_at"]
    assert [one["step_number"] for one in listed] == [3, 2, 1]
    assert [one["created_at"] for one in listed[1:]] == [2000, 1000]
    assert datetime.fromtimestamp(listed[0]["created_at"], UTC) == datetime.fromisoformat(registered).replace(
        microsecond=0
    )


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_checkpoints_are_listed_while_the_job_runs_and_after_its_end(
    app: FastAPI, client: TestClient, train_file: str, end: str
) -> None:
    job_id = create(client, train_file).json()["id"]
    path = f"/v1/fine_tuning/jobs/{job_id}/checkpoints"
    leases = Leases(app.state.services.database, 60)
    lease = leases.claim(job_id, "w")
    assert lease
    assert client.get(path).json()["data"] == []
    scores = {"train_loss": 1.5, "train_accuracy": 0.5, "valid_loss": 2.0, "valid_mean_token_accuracy": 0.25}
    for step in (2, 4):
        metrics = {"step": step, **scores}
        leases.register(lease, new_adapter(f"demo@{step}", step=step, final=False, metrics=metrics))
    failed = new_adapter("demo@6", step=6, final=False, published=False, certificates={"replica": {"passed": False}})
    leases.register(lease, failed)
    page = client.get(path, params={"limit": 1}).json()
    assert (page["has_more"], page["data"][0]["step_number"]) == (True, 4)
    rest = client.get(path, params={"after": page["data"][0]["id"]}).json()
    listed = [*page["data"], *rest["data"]]
    assert [one["fine_tuned_model_checkpoint"] for one in listed] == ["demo@4", "demo@2"], "none that has failed"
    for one in listed:
        checkpoint = FineTuningJobCheckpoint.model_validate_json(json.dumps(one), strict=True)
        assert checkpoint.metrics.train_mean_token_accuracy == 0.5
        assert (checkpoint.metrics.full_valid_loss, checkpoint.metrics.full_valid_mean_token_accuracy) == (2.0, 0.25)
        assert client.get(f"/v1/models/{one['fine_tuned_model_checkpoint']}").status_code == 200
    if end == "cancelled":
        leases.stop(lease)
    else:
        leases.fail(lease, JobFailed(Code.OUT_OF_MEMORY, "full", remedy="less", param="data.train_file"))
    assert client.get(path).json()["data"] == listed
    for one in listed:
        assert client.get(f"/v1/models/{one['fine_tuned_model_checkpoint']}").status_code == 200
    native = client.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
    assert [one["id"] for one in native] == ["demo@4", "demo@2"]
    ended = client.get(f"/v1/fine_tuning/jobs/{job_id}").json()
    assert (ended["status"], ended["fine_tuned_model"]) == (end, None)


def test_invalid_event_cursor_is_refused(client: TestClient, train_file: str) -> None:
    job_id = create(client, train_file).json()["id"]
    response = client.get(f"/v1/fine_tuning/jobs/{job_id}/events", params={"after": "x"})
    assert response.json()["error"]["param"] == "after"
