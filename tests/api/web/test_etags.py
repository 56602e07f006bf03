"""A list that has not changed is a 304 without a body."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.web.etags import is_known
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from tests.support.builders import claimed, new_adapter, submission

LISTS = ["/v1/jobs", "/v1/jobs?view=summary", "/v1/adapters", "/v1/models", "/api/tags", "/v1/files", "/v1/aliases"]


@pytest.mark.parametrize("path", LISTS)
def test_unchanged_list_is_a_304_until_it_changes(app: FastAPI, client: TestClient, path: str) -> None:
    database = app.state.services.database
    first = client.get(path)
    etag = first.headers["etag"]
    again = client.get(path, headers={"If-None-Match": f'W/"other", {etag}'})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert again.headers["etag"] == etag
    assert again.headers["x-request-id"]
    assert "content-length" not in again.headers
    leases = Leases(database, 600.0)
    leases.finish(claimed(Jobs(database), leases), {}, adapters=[new_adapter()], alias="prod")
    client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("a.jsonl", b'{"prompt": "a"}\n')})
    changed = client.get(path, headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


def test_page_of_jobs_changes_with_each_of_its_jobs(app: FastAPI, client: TestClient) -> None:
    jobs: Jobs = app.state.services.jobs
    made = [jobs.submit(submission())[0].id for _ in range(3)]
    etags = {client.get("/v1/jobs?limit=2").headers["etag"]}
    jobs.cancel(made[1])
    etags.add(client.get("/v1/jobs?limit=2").headers["etag"])
    jobs.submit(submission())
    etags.add(client.get("/v1/jobs?limit=2").headers["etag"])
    assert len(etags) == 3


def test_errors_and_streams_have_no_etag(client: TestClient, train_file: str) -> None:
    assert "etag" not in client.get("/v1/jobs/none").headers
    assert "etag" not in client.post("/v1/plans", json={}).headers
    content = client.get(f"/v1/files/{train_file}/content")
    assert content.status_code == 200
    assert content.content


@pytest.mark.parametrize(
    ("known", "expected"),
    [("", False), ("*", True), ('"a"', True), ('W/"a"', True), ('"b", W/"a"', True), ('"b"', False), ("a", False)],
)
def test_etags_are_compared_weakly(known: str, *, expected: bool) -> None:
    assert is_known('W/"a"', known) is expected
