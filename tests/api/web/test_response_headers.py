"""Every response of a route to models has the state of the key's limits, whichever layer refused it, and no other
response has it.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.web.request_body import MODEL_PATHS
from api.web.response_headers import accepts_gzip
from shared.database.records import new_id
from shared.database.tenancy import KeyLimits, Role

LIMIT = 50


def post(app: FastAPI, client: TestClient, path: str, role: Role = Role.TRAINER, **request: Any) -> list[Any]:
    """Status, limit and what remains of it, of a request by a new key."""
    _, secret = app.state.services.keys.create(new_id("k"), role=role, limits=KeyLimits(requests_per_minute=LIMIT))
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"} | request.pop("headers", {})
    response = client.post(path, headers=headers, **request)
    names = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests")
    return [response.status_code, *(response.headers.get_list(name) for name in names)]


@pytest.mark.parametrize("path", sorted(MODEL_PATHS))
def test_every_refusal_has_the_limits_and_counts_once(app: FastAPI, client: TestClient, path: str) -> None:
    counted = [[str(LIMIT)], [str(LIMIT - 1)]]
    unknown = {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}
    prompt = unknown if path.endswith(("chat", "chat/completions")) else {"model": "nobody", "prompt": "x"}
    assert post(app, client, path, json=prompt) == [404, *counted]
    for status, content in ((400, b"{"), (400, b"[]"), (413, b"x" * 10_001), (413, iter([b"x" * 6_000] * 2))):
        assert post(app, client, path, content=content) == [status, *counted]
    if path.endswith("tokenize"):
        assert post(app, client, path, Role.VIEWER, json=prompt) == [403, *counted]


def test_slow_body_counts_too(app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from api.web import request_guard
    from shared.errors import Code, TooSlow

    async def limited_receive(*_: Any) -> None:
        raise TooSlow(Code.REQUEST_TIMEOUT, "The request's body did not come.")

    monkeypatch.setattr(request_guard, "limited_receive", limited_receive)
    assert post(app, client, "/v1/completions", json={}) == [408, [str(LIMIT)], [str(LIMIT - 1)]]


def test_key_that_has_reached_its_limit_is_reported_once(app: FastAPI, client: TestClient) -> None:
    _, secret = app.state.services.keys.create("k", limits=KeyLimits(requests_per_minute=1))
    headers = {"Authorization": f"Bearer {secret}"}
    for status, body in ((404, {"model": "nobody", "prompt": "x"}), (429, {"model": "nobody", "prompt": "x"})):
        response = client.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == status
        assert response.headers.get_list("x-ratelimit-remaining-requests") == ["0"]
    large = client.post("/v1/completions", content=b"x" * 10_001, headers=headers)
    assert (large.status_code, large.headers["x-ratelimit-remaining-requests"]) == (413, "0")
    assert "retry-after" not in large.headers


def test_other_answers_have_none(app: FastAPI, client: TestClient) -> None:
    assert post(app, client, "/v1/jobs", json={})[1:] == [[], []]
    assert post(app, client, "/v1/completions", headers={"Authorization": "Bearer x"})[1:] == [[], []]
    assert "x-ratelimit-limit-requests" not in client.get("/v1/completions").headers


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip; q=0", False),
        ("gzip;q=0.00, br", False),
        ("x-gzip-like", False),
        ("", False),
    ],
)
def test_gzip_is_accepted_where_it_is_listed_with_a_quality(value: str, accepted: bool) -> None:
    assert accepts_gzip(value) is accepted
