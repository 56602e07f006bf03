"""Dry runs, the preflight of a job, the capabilities, the accuracy of estimates, and the replicas' limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.capabilities import capabilities_here
from api.inference.replicas.limits import ReplicaLimits
from shared.base_models.catalog import Catalog, load_catalog, save_catalog
from shared.contract.auto_hyperparameters import auto_exec
from shared.database.leases import Leases
from shared.database.tenancy import Role
from shared.preflight.types import ServingLimits
from shared.replicas import ServedBaseName, Weights
from shared.worker_registry import WorkerMachine
from tests.support.asgi_server import serve
from tests.support.builders import BASE


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/jobs"])
@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"preset": "nope"}, "UNKNOWN_PRESET", 422),
        ({"contract": {"reward": {"hook": "cargo_build"}}}, "CONTRACT_UNSUPPORTED", 422),
        ({"backend": "lora"}, "BURN_HF_GPT2_ONLY", 422),
        ({"backend": "lora", "contract": {"quant": {"base": "nf4"}}}, "KERNEL_MISMATCH", 422),
        ({"backend": "torch"}, "UNKNOWN_BACKEND", 422),
        ({"contract": {"exec": {"seq_len": 4096}}}, "SEQ_LEN_TOO_LARGE", 422),
        ({"contract": {"adapter": {"rank": 64}}}, "NOT_SERVABLE_RANK", 422),
    ],
)
def test_dry_run_and_submission_refuse_alike(
    app: FastAPI,
    client: TestClient,
    job_body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    change: Any,
    code: str,
    status: int,
) -> None:
    limits = ServingLimits(max_lora_rank=16)
    monkeypatch.setattr(app.state.services.replica_limits, "limits", lambda _base: limits)
    contract = job_body["contract"] | change.get("contract", {})
    body = change | {"contract": contract} | ({"kind": "finetune"} if path == "/v1/jobs" else {})
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (status, code)
    assert app.state.services.job_queue.enqueued == []


def test_served_weights_decide_an_open_precision_and_refuse_a_written_one(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(weights: Weights, **sections: Any) -> httpx.Response:
        limits = ServingLimits(max_lora_rank=64, weights=frozenset([weights]))
        monkeypatch.setattr(app.state.services.replica_limits, "limits", lambda _base: limits)
        return client.post("/v1/plans", json={"contract": job_body["contract"] | sections})

    decided = plan("twin").json()
    assert decided["plan"]["contract"]["quant"]["base"] == "nf4"
    assert decided["preflight"]["precision"]["reason"] == "only the NF4 twin of this base is served"
    refused = plan("twin", quant={"base": "none"})
    error = refused.json()["error"]
    assert (refused.status_code, error["mens"]["code"], error["param"]) == (422, "NOT_SERVABLE_BASE", "quant.base")
    noted = plan("original", quant={"base": "nf4"}).json()["preflight"]["notes"]
    assert any("--weights twin" in note for note in noted)
    assert plan("original", quant={"base": "none"}).status_code == 200


def test_preset_is_returned_resolved(client: TestClient, job_body: dict[str, Any]) -> None:
    plan = client.post("/v1/plans", json={"contract": job_body["contract"], "preset": "tiny"}).json()
    assert plan["plan"]["contract"]["adapter"]["rank"] == 4
    assert plan["sources"]["adapter.rank"] == "preset"
    assert plan["preflight"]["supervision"]["rows"] == 40


def test_a_dry_run_takes_the_body_of_a_submission(app: FastAPI, client: TestClient, job_body: dict[str, Any]) -> None:
    job_body["contract"]["exec"] = {"epochs": 2, "batch_size": 2}
    body = job_body | {"auto": ["exec.batch_size"], "metadata": {"a": "b"}, "priority": -1, "max_gpu_minutes": 5}
    planned = client.post("/v1/plans", json=body)
    assert planned.status_code == 200, planned.text
    assert (planned.json()["sources"]["exec.batch_size"], planned.json()["sources"]["exec.epochs"]) == (
        "auto",
        "explicit",
    )
    assert app.state.services.job_queue.enqueued == []
    job = client.post("/v1/jobs", json=body).json()
    assert client.get(f"/v1/jobs/{job['id']}/preflight").json()["sources"] == planned.json()["sources"]
    assert job["plan"] == planned.json()["plan"]


def test_auto_rules_decide_what_a_contract_leaves_open(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    settings = app.state.services.settings
    (base,) = load_catalog(settings.catalog_path).bases
    save_catalog(settings.catalog_path, Catalog(bases=[base.model_copy(update={"learning_rate": 0.004})]))
    job_body["contract"]["exec"] = {"epochs": 2}
    body = job_body | {"hyperparameters": "auto"}
    planned = client.post("/v1/plans", json=body).json()
    settled = planned["plan"]["contract"]["exec"]
    assert {name: settled[name] for name in ("epochs", "batch_size", "grad_accum", "learning_rate")} == {
        "epochs": 2,
        **{name: value for name, value in auto_exec(40, 0.004).items() if name != "epochs"},
    }
    sources = planned["sources"]
    assert (sources["exec.epochs"], sources["exec.batch_size"], sources["exec.learning_rate"]) == (
        "explicit",
        "auto",
        "auto",
    )
    job = client.post("/v1/jobs", json=body).json()
    assert job["plan"] == planned["plan"]
    assert client.get(f"/v1/jobs/{job['id']}/preflight").json()["sources"] == sources
    with_preset = client.post("/v1/plans", json=body | {"preset": "tiny"}).json()
    assert with_preset["sources"]["exec.learning_rate"] != "auto"
    assert client.post("/v1/plans", json=body | {"hyperparameters": "mine"}).status_code == 422


def test_a_dry_run_refuses_a_priority_that_a_submission_would(app: FastAPI, anonymous: TestClient) -> None:
    _, secret = app.state.services.keys.create("tess", "acme", Role.TRAINER)
    body = {"contract": {"data": {"train_file": "file-1"}}, "priority": 1}
    headers = {"Authorization": f"Bearer {secret}"}
    for path in ("/v1/plans", "/v1/jobs"):
        assert anonymous.post(path, json=body, headers=headers).json()["error"]["code"] == "ROLE_INSUFFICIENT"


@pytest.mark.parametrize(
    ("change", "is_reported"),
    [({}, True), ({"preset": "tiny"}, False), ({"contract": {"exec": {"learning_rate": 2e-4}}}, False)],
)
def test_plan_and_job_say_that_the_base_learns_at_another_rate(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], change: dict[str, Any], is_reported: bool
) -> None:
    settings = app.state.services.settings
    (base,) = load_catalog(settings.catalog_path).bases
    save_catalog(settings.catalog_path, Catalog(bases=[base.model_copy(update={"learning_rate": 0.004})]))
    body = change | {"contract": job_body["contract"] | change.get("contract", {})}
    planned = client.post("/v1/plans", json=body).json()
    job = client.post("/v1/jobs", json=body | {"kind": "finetune"}).json()
    record = client.get(f"/v1/jobs/{job['id']}/preflight").json()
    events = client.get(f"/v1/jobs/{job['id']}?after=0").json()["events"]
    told = "exec.learning_rate is the contract's default, 0.0002; set it to 0.004, the rate in the catalogue's"
    for notes in (planned["preflight"]["notes"], record["notes"]):
        assert any(note.startswith(told) for note in notes) is is_reported
    assert any(e["message"].startswith(told) and e["level"] == "warn" for e in events) is is_reported


def test_only_base_is_taken_where_a_contract_names_none(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    del job_body["contract"]["model"]
    job = client.post("/v1/jobs", json=job_body).json()
    assert job["base_model"] == job["contract"]["model"]["hf_repo"] == BASE
    planned = client.post("/v1/plans", json=job_body).json()
    assert (planned["plan"]["base"]["name"], planned["sources"]["model.hf_repo"]) == (BASE, "auto")
    path = app.state.services.settings.catalog_path
    (base,) = load_catalog(path).bases
    save_catalog(path, Catalog(bases=[base, base.model_copy(update={"name": "other"})]))
    error = client.post("/v1/jobs", json=job_body).json()["error"]
    assert error["mens"]["code"] == "MODEL_NOT_FOUND"
    assert error["message"].startswith(
        f"No base model was named, and the catalogue has several: {BASE}, other. Name one"
    )


def test_job_keeps_its_preflight(client: TestClient, job_body: dict[str, Any]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    record = client.get(f"/v1/jobs/{job['id']}/preflight").json()
    assert record["contract_digest"] == job["plan"]["contract_digest"]
    assert record["data"]["training"]["rows"] == 40
    assert "preflight" not in job, "it is not part of a polled job"


def test_capabilities_are_served(client: TestClient) -> None:
    assert client.get("/v1/capabilities").json() == capabilities_here("none: off: MENS_SANDBOX is off").model_dump(
        mode="json"
    )


def test_accuracy_is_computed_from_finished_jobs(app: FastAPI, client: TestClient, job_body: dict[str, Any]) -> None:
    assert client.get("/v1/estimates/accuracy").json()["data"] == []
    jobs = Leases(app.state.services.database, 60)
    for peak in (90, 110, 150):
        lease = jobs.claim(client.post("/v1/jobs", json=job_body).json()["id"], "w")
        assert lease
        jobs.finish(lease, {"memory": {"device": "cuda", "predicted_bytes": 100, "peak_bytes": peak}})
    (found,) = client.get("/v1/estimates/accuracy").json()["data"]
    assert (found["device"], found["jobs"]) == ("cuda", 3)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["worst_error"] == found["p95_absolute_error"] == pytest.approx(0.5)


class LimitsReplica:
    """A replica that reports its limits."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status, self.requests = body, status, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


def limits_body(rank: int, length: str = "null", more: str = "") -> bytes:
    text = f'"base": "tiny", "base_digest": "{"a" * 64}", "served_digest": "{"a" * 64}", "max_lora_rank": {rank}'
    return f'{{{text}, "max_model_len": {length}{more}}}'.encode()


def test_tightest_limits_of_all_replicas_are_used() -> None:
    one, other = LimitsReplica(limits_body(32, "4096")), LimitsReplica(limits_body(16))
    for url in serve(one):
        for second in serve(other):
            tier = ReplicaLimits([url, second, "http://127.0.0.1:9"], "key")
            found = tier.limits("a" * 64)
            assert found
            assert (found.max_lora_rank, found.max_model_len, found.base_digest) == (16, 4096, "a" * 64)
            tier.limits("a" * 64)
            assert one.requests == 1, "they are cached for a while"


def test_limits_are_those_of_the_replicas_of_the_jobs_base() -> None:
    for url in serve(LimitsReplica(limits_body(16))):
        for second in serve(LimitsReplica(limits_body(64).replace(b"a" * 64, b"b" * 64))):
            tier = ReplicaLimits([url, second], "")
            ranks = [found.max_lora_rank for digest in "ab" if (found := tier.limits(digest * 64))]
            assert ranks == [16, 64]
            found = tier.limits("c" * 64)
            assert found and found.base_digest != "c" * 64, "all answer, and none serves it: the contract is refused"
            assert found.bases == {ServedBaseName("tiny")}
            partly = ReplicaLimits([url, "http://127.0.0.1:9"], "")
            assert partly.limits("c" * 64) is None, "the one that is away may serve it"


def test_weights_are_known_where_every_replica_answers() -> None:
    twin = LimitsReplica(limits_body(16, more=', "twin_of": "tiny"'))
    for url in serve(LimitsReplica(limits_body(16))):
        for second in serve(twin):
            both, alone = (
                ReplicaLimits([url, second], "").limits("a" * 64),
                ReplicaLimits([second], "").limits("a" * 64),
            )
            assert both and alone and (both.weights, alone.weights) == ({"original", "twin"}, {"twin"})
            partly = ReplicaLimits([second, "http://127.0.0.1:9"], "").limits("a" * 64)
            assert partly and partly.weights is None, "the one that is away may serve the original"


@pytest.mark.parametrize(
    ("says", "adapts"), [("", True), (', "adapts_head": true', True), (', "adapts_head": false', False)]
)
def test_head_is_servable_where_every_replica_says_so(says: str, adapts: bool) -> None:
    for url in serve(LimitsReplica(limits_body(16))):
        for second in serve(LimitsReplica(limits_body(16, more=says))):
            found = ReplicaLimits([url, second], "key").limits("a" * 64)
            assert found and bool(found.head_families) == adapts


@pytest.mark.parametrize(
    "replica",
    [
        LimitsReplica(b"no json"),
        LimitsReplica(b"{}", 401),
        LimitsReplica(b"{}"),
        LimitsReplica(b"[]"),
        LimitsReplica(b'{"max_lora_rank": "x"}'),
    ],
)
def test_limits_of_another_shape_are_unknown(replica: LimitsReplica) -> None:
    for url in serve(replica):
        assert ReplicaLimits([url], "").limits("a" * 64) is None


def test_time_is_estimated_from_the_last_job_of_the_base(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    def estimate() -> dict[str, Any]:
        plan = client.post("/v1/plans", json={"contract": job_body["contract"]}).json()
        found: dict[str, Any] = plan["preflight"]["estimate"]
        return found

    guess = estimate()
    assert guess["time"]["basis"] != "measured"
    assert "a guess" in guess["time"]["reason"]
    jobs = Leases(app.state.services.database, 60)
    job = client.post("/v1/jobs", json=job_body).json()["id"]
    lease = jobs.claim(job, "w")
    assert lease
    jobs.finish(lease, {"tokens_per_second": 1000.0})
    measured = estimate()
    assert measured["seconds"] == pytest.approx(measured["tokens"] / 1000)
    assert measured["time"]["basis"] == "measured"
    assert job in measured["time"]["reason"]


def test_lenient_contract_skips_invalid_lines(client: TestClient, job_body: dict[str, Any]) -> None:
    content = b'{"prompt": "a", "response": "b"}\n' * 9 + b"not json\n"
    file = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("f", content)}).json()
    job_body["contract"]["data"] = {"train_file": file["id"]}
    assert client.post("/v1/jobs", json=job_body).json()["error"]["mens"]["code"] == "DATASET_LINE_INVALID"
    job_body["contract"]["data"]["mode"] = "lenient"
    job = client.post("/v1/jobs", json=job_body).json()
    assert job["plan"]["train"]["rows"] == 9
    notes = client.get(f"/v1/jobs/{job['id']}/preflight").json()["notes"]
    assert "1 bad line is skipped." in notes


def test_the_plan_is_for_the_machine_that_the_workers_report(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails while a submitted job is planned for a machine of which nothing is known."""
    body = {name: value for name, value in job_body.items() if name != "kind"} | {"preset": "auto"}

    def plan(machine: WorkerMachine) -> Any:
        monkeypatch.setattr(app.state.services.workers, "machines", lambda: [machine])
        return client.post("/v1/plans", json=body)

    large = plan(WorkerMachine(device="cuda", devices=1, memory_bytes=80 << 30, free_bytes=80 << 30))
    small = plan(WorkerMachine(device="cuda", devices=1, memory_bytes=8 << 30, free_bytes=8 << 30))
    batches = [answer.json()["plan"]["contract"]["exec"]["batch_size"] for answer in (large, small)]
    assert batches == [8, 1]


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/jobs"])
@pytest.mark.parametrize(
    "machine",
    [
        WorkerMachine(device="cuda", devices=1, memory_bytes=1 << 20, free_bytes=0),
        WorkerMachine(device="cpu", host_bytes=1 << 20),
    ],
    ids=["cuda", "cpu"],
)
def test_a_job_that_fits_no_worker_is_refused(
    app: FastAPI,
    client: TestClient,
    job_body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    machine: WorkerMachine,
) -> None:
    monkeypatch.setattr(app.state.services.workers, "machines", lambda: [machine])
    body = job_body if path == "/v1/jobs" else {"contract": job_body["contract"]}
    refused = client.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (422, "MEMORY_DOES_NOT_FIT")
    assert app.state.services.job_queue.enqueued == []


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/jobs"])
def test_a_file_that_came_into_the_bases_folder_is_refused_before_a_worker_sees_it(
    client: TestClient, job_body: dict[str, Any], base_folder: Path, path: str
) -> None:
    added = base_folder / "chat_template.json"
    added.write_text("{}")
    try:
        refused = client.post(path, json=job_body if path == "/v1/jobs" else {"contract": job_body["contract"]})
    finally:
        added.unlink()
    error = refused.json()["error"]
    assert (error["mens"]["code"], error["param"]) == ("BASE_FILE_UNKNOWN", "chat_template.json")
