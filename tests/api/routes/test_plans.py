"""The dry run, the job's preflight, the capabilities, the accuracy of estimates, and the replicas' limits."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.serving_limits import ServingTier
from shared.capabilities import CAPABILITIES
from shared.lease import LeaseLedger
from shared.servability import ServingLimits
from tests.api.test_gateway import serve


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/jobs"])
@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"preset": "nope"}, "UNKNOWN_PRESET", 422),
        ({"domain": "rust-expert"}, "CONTRACT_UNSUPPORTED", 422),
        ({"contract": {"exec": {"seq_len": 4096}}}, "SEQ_LEN_TOO_LARGE", 422),
        ({"contract": {"adapter": {"rank": 64}}}, "NOT_SERVABLE_RANK", 422),
    ],
)
def test_what_a_dry_run_refuses_a_submission_refuses(
    app: FastAPI, client: TestClient, job_body: dict[str, Any], path: str, change: Any, code: str, status: int
) -> None:
    limits = ServingLimits(max_lora_rank=16)
    object.__setattr__(app.state.services.serving_tier, "limits", lambda: limits)
    contract = job_body["contract"] | change.get("contract", {})
    body = change | {"contract": contract} | ({"kind": "finetune"} if path == "/v1/jobs" else {})
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert app.state.services.doorbell.rung == []


def test_a_preset_is_echoed_resolved(client: TestClient, job_body: dict[str, Any]) -> None:
    answer = client.post("/v1/plans", json={"contract": job_body["contract"], "preset": "tiny"}).json()
    assert answer["plan"]["contract"]["adapter"]["rank"] == 4
    assert answer["sources"]["adapter.rank"] == "preset"
    assert answer["preflight"]["supervision"]["rows"] == 40


def test_a_job_keeps_its_preflight(client: TestClient, job_body: dict[str, Any]) -> None:
    job = client.post("/v1/jobs", json=job_body).json()
    record = client.get(f"/v1/jobs/{job['id']}/preflight").json()
    assert record["contract_digest"] == job["plan"]["contract_digest"]
    assert record["data"]["training"]["rows"] == 40
    assert "preflight" not in job, "polling a job does not carry it"


def test_capabilities(client: TestClient) -> None:
    assert client.get("/v1/capabilities").json() == CAPABILITIES.model_dump(mode="json")


def test_accuracy_of_the_estimates(app: FastAPI, client: TestClient, job_body: dict[str, Any]) -> None:
    assert client.get("/v1/estimates/accuracy").json()["data"] == []
    ledger = LeaseLedger(app.state.services.database, 60)
    for peak in (90, 110, 150):
        lease = ledger.claim(client.post("/v1/jobs", json=job_body).json()["id"], "w")
        assert lease
        ledger.finish(lease, {"memory": {"device": "cuda", "predicted_bytes": 100, "peak_bytes": peak}})
    (found,) = client.get("/v1/estimates/accuracy").json()["data"]
    assert (found["device"], found["jobs"]) == ("cuda", 3)
    assert found["median_error"] == pytest.approx(0.1)
    assert found["worst_error"] == found["p95_absolute_error"] == pytest.approx(0.5)


class Limits:
    """A replica that tells its limits."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status, self.asked = body, status, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


def limits_body(rank: int, length: str = "null") -> bytes:
    text = f'{{"base": "tiny", "base_digest": "{"a" * 64}", "max_lora_rank": {rank}, "max_model_len": {length}}}'
    return text.encode()


def test_the_tightest_limits_of_all_replicas_count() -> None:
    one, other = Limits(limits_body(32, "4096")), Limits(limits_body(16))
    for url in serve(one):
        for second in serve(other):
            tier = ServingTier([url, second, "http://127.0.0.1:9"], "key")
            found = tier.limits()
            assert found
            assert (found.max_lora_rank, found.max_model_len, found.base_digest) == (16, 4096, "a" * 64)
            tier.limits()
            assert one.asked == 1, "they are remembered for a while"


@pytest.mark.parametrize("replica", [Limits(b"no json"), Limits(b"{}", 401)])
def test_replicas_that_do_not_tell_are_no_reason_to_refuse(replica: Limits) -> None:
    for url in serve(replica):
        assert ServingTier([url], "").limits() is None


def test_time_is_estimated_from_the_last_job_of_the_base(
    app: FastAPI, client: TestClient, job_body: dict[str, Any]
) -> None:
    def seconds() -> float | None:
        answer = client.post("/v1/plans", json={"contract": job_body["contract"]}).json()
        found: float | None = answer["preflight"]["estimate"]["seconds"]
        return found

    assert seconds() is None
    ledger = LeaseLedger(app.state.services.database, 60)
    lease = ledger.claim(client.post("/v1/jobs", json=job_body).json()["id"], "w")
    assert lease
    ledger.finish(lease, {"tokens_per_second": 1000.0})
    found = seconds()
    assert found
    assert found > 0


def test_a_lenient_contract_skips_bad_lines(client: TestClient, job_body: dict[str, Any]) -> None:
    content = b'{"prompt": "a", "response": "b"}\n' * 9 + b"not json\n"
    file = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("f", content)}).json()
    job_body["contract"]["data"] = {"train_file": file["id"]}
    assert client.post("/v1/jobs", json=job_body).json()["error"]["code"] == "DATASET_LINE_INVALID"
    job_body["contract"]["data"]["mode"] = "lenient"
    job = client.post("/v1/jobs", json=job_body).json()
    assert job["plan"]["train"]["rows"] == 9
    notes = client.get(f"/v1/jobs/{job['id']}/preflight").json()["notes"]
    assert "1 bad lines are skipped." in notes
