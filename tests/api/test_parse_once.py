"""How often a submission validates its contract, checks the refusals and reads the training file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.preflight import data_files
from tests.support.builders import BASE, ROWS
from tests.support.counters import ALIAS, Counts, counting

LARGE = b'{"prompt": "a", "response": "b"}\n' * 600
"""Too many rows for the bounds of a small file."""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return counting(monkeypatch)


def upload(app: FastAPI, client: TestClient, content: bytes) -> tuple[str, Path]:
    file = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("rows.jsonl", content)}).json()
    services = app.state.services
    (blob,) = [path for path in (services.settings.storage_dir / "blobs").rglob("*") if path.is_file()]
    return file["id"], blob


def native(file_id: str, **more: Any) -> dict[str, Any]:
    contract = {"model": {"hf_repo": BASE}, "data": {"train_file": file_id}, "artifact": {"alias": ALIAS}}
    return {"kind": "finetune", "contract": contract, "name": "other"} | more


@pytest.mark.parametrize(
    ("content", "more", "validations", "refusal_runs"),
    [
        # The request, what an open precision became, and in the stored plan; before the base is opened, and with the rows.
        (LARGE, {}, 3, 2),
        (ROWS, {}, 4, 2),  # a small file bounds the warm-up: another contract
        (LARGE, {"preset": "tiny"}, 5, 3),  # what the preset decided is checked before the file is read
        (ROWS, {"preset": "tiny"}, 5, 3),
    ],
    ids=["plain", "small file", "preset", "preset and small file"],
)
def test_native_submission(
    app: FastAPI,
    client: TestClient,
    counts: Counts,
    content: bytes,
    more: dict[str, Any],
    validations: int,
    refusal_runs: int,
) -> None:
    file_id, blob = upload(app, client, content)
    counts.reset()
    assert client.post("/v1/jobs", json=native(file_id, **more)).status_code == 201
    assert (counts.validations, counts.refusal_runs, counts.reads(blob)) == (validations, refusal_runs, 1)


def test_openai_submission(app: FastAPI, client: TestClient, counts: Counts) -> None:
    """`auto` needs the number of lines before there is a contract, so the file is read once more."""
    file_id, blob = upload(app, client, LARGE)
    counts.reset()
    body = {"model": BASE, "training_file": file_id, "suffix": "other", "mens": {"artifact": {"alias": ALIAS}}}
    assert client.post("/v1/fine_tuning/jobs", json=body).status_code == 200
    assert (counts.validations, counts.refusal_runs, counts.reads(blob)) == (3, 2, 2)


def test_lines_of_a_large_file_are_counted_once_for_its_sample(
    app: FastAPI, client: TestClient, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "SAMPLED_ROWS", 10)
    file_id, blob = upload(app, client, LARGE)
    for path, body in (
        ("/v1/jobs", native(file_id)),
        ("/v1/fine_tuning/jobs", {"model": BASE, "training_file": file_id}),
    ):
        counts.reset()
        assert client.post(path, json=body).is_success
        assert counts.reads(blob) == 2
