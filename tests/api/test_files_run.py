"""How many files run for a request, which a newcomer has to read to follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.support.asgi_server import serve
from tests.support.builders import BASE, ROWS
from tests.support.files_run import CHAT, JOB, FilesRun
from tests.support.gateway import register_adapters
from tests.support.scripted_replica import ScriptedReplica


@pytest.fixture
def run(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> FilesRun:
    return FilesRun(app, monkeypatch)


@contextmanager
def caller_of(app: FastAPI, run: FilesRun) -> Iterator[TestClient]:
    _, secret = app.state.services.keys.create("test")
    with TestClient(run, headers={"Authorization": f"Bearer {secret}"}) as client:
        yield client


def listed(files: set[str]) -> str:
    return "\n".join(sorted(files))


@pytest.mark.network
def test_chat_completion(app: FastAPI, run: FilesRun) -> None:
    replica = ScriptedReplica()
    replica.answers({"said": "so"})
    register_adapters(app)
    body = {"model": "helper", "messages": [{"role": "user", "content": "Hello"}]}
    for url in serve(replica):
        app.state.services.settings.serving_urls[:] = [url]
        with caller_of(app, run) as caller:
            for _ in range(2):  # the first one also reads names and keys from the database
                assert caller.post("/v1/chat/completions", json=body).status_code == 200
    assert len(run.files) <= CHAT, listed(run.files)


def test_creation_of_a_job(app: FastAPI, run: FilesRun) -> None:
    with caller_of(app, run) as caller:
        form = {"data": {"purpose": "fine-tune"}, "files": {"file": ("rows.jsonl", ROWS)}}
        contract = {"model": {"hf_repo": BASE}, "data": {"train_file": caller.post("/v1/files", **form).json()["id"]}}
        for _ in range(2):  # the first one also reads the base
            response = caller.post("/v1/jobs", json={"kind": "finetune", "contract": contract})
            assert response.status_code == 201
    assert len(run.files) <= JOB, listed(run.files)
