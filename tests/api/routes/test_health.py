"""Liveness and readiness, which everybody may ask for as often as they like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.polling.readiness import Readiness
from shared.database.tenancy import Role
from shared.worker_registry import WorkerMachine


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_it_takes_no_thread_of_the_pool(client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a thread of the pool")

    monkeypatch.setattr("fastapi.routing.run_in_threadpool", fail)
    monkeypatch.setattr("fastapi.dependencies.utils.run_in_threadpool", fail)
    assert client.get(path).status_code == 200


def test_ready_lists_faults_of_workers_and_names_them_to_operators_only(
    app: FastAPI, anonymous: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = "gpu-7:12 takes no job: the disk is full."
    machines = [WorkerMachine(device="cpu", fault=fault, fault_code="STORAGE_FULL"), WorkerMachine(device="cpu")]
    readiness = Readiness(app.state.services.database.ping, lambda: machines)
    monkeypatch.setattr(app.state, "services", replace(app.state.services, readiness=readiness))
    keys = app.state.services.keys
    secrets = {
        "operator": keys.create("alice")[1],
        "trainer": keys.create("bot", role=Role.TRAINER)[1],
        "tenant": keys.create("carol", tenant="acme")[1],
        "unknown": "mens-unknown",
    }
    answers = {name: anonymous.get("/ready", headers={"Authorization": f"Bearer {secrets[name]}"}) for name in secrets}
    answers["nobody"] = anonymous.get("/ready")
    assert {answer.status_code for answer in answers.values()} == {200}
    assert answers.pop("operator").json() == {
        "status": "ready",
        "worker_faults": [{"code": "STORAGE_FULL", "message": fault}],
    }
    for answer in answers.values():
        assert answer.json()["worker_faults"] == [{"code": "STORAGE_FULL", "message": None}]
        assert "gpu-7" not in answer.text
