"""Liveness and readiness, which anyone may request at any rate."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.polling.readiness import ANSWER_SECONDS, Readiness
from cli.standalone import ports
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


def test_ready_waits_for_no_key(app: FastAPI, anonymous: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database may hang between the two questions; whose key it is stays open then."""
    machines = [WorkerMachine(device="cpu", fault="gpu-7:12 takes no job.", fault_code="STORAGE_FULL")]
    readiness = Readiness(lambda: None, lambda: machines)
    monkeypatch.setattr(app.state, "services", replace(app.state.services, readiness=readiness))
    monkeypatch.setattr("api.routes.health.ANSWER_SECONDS", 0.3)
    ended: list[bool] = []

    async def hang(*_: Any) -> None:
        try:
            await asyncio.sleep(2)
        finally:
            ended.append(True)

    monkeypatch.setattr("api.routes.health.authenticate", hang)
    began = time.monotonic()
    answer = anonymous.get("/ready")
    assert time.monotonic() - began < 1.5
    assert not ended, "a guess is counted, however late"
    assert (answer.status_code, answer.json()["worker_faults"][0]["message"]) == (200, None)


def test_every_probe_waits_longer_than_the_answer_takes() -> None:
    """A probe that gives up first has neither the 503 nor its code."""
    assert ports.TIMEOUT_SECONDS > ANSWER_SECONDS
