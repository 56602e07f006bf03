"""The access log: ids of requests, and their lines."""

from __future__ import annotations

import logging

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "api.web.access_log")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "api.web.access_log"]


def test_request_is_one_line_with_its_id(anonymous: TestClient, log: pytest.LogCaptureFixture) -> None:
    response = anonymous.get("/v1/models?key=secret", headers={"X-Request-Id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    (line,) = lines(log)
    assert line.split()[1:4] == ["GET", "/v1/models", "401"]
    assert line.endswith(" ms 'mine'")


def test_request_without_an_id_gets_one(anonymous: TestClient, log: pytest.LogCaptureFixture) -> None:
    ids = [anonymous.get("/health").headers["x-request-id"] for _ in range(2)]
    assert len(set(ids)) == 2
    assert [line.split()[-1] for line in lines(log)] == [repr(request_id) for request_id in ids]


def test_unexpected_error_has_an_id_and_a_line_too(
    app: FastAPI, client: TestClient, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(app.state.services.files), "list", lambda *_, **__: 1 / 0)
    response = client.get("/v1/files", headers={"X-Request-Id": "mine"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine")
    assert response.headers["openai-version"]
    (line,) = lines(log)
    assert line.split()[3] == "500"
    assert "ZeroDivisionError" in log.text
    assert "division" not in response.text


@pytest.mark.parametrize("given", ["a b", "ü", "x" * 129, ""])
def test_id_of_other_characters_or_too_long_is_not_kept(anonymous: TestClient, given: str) -> None:
    response = anonymous.get("/health", headers={"X-Request-Id": given.encode()})
    assert response.headers["x-request-id"].startswith("req_")


def test_caller_cannot_write_a_log_line(anonymous: TestClient, log: pytest.LogCaptureFixture) -> None:
    anonymous.get("/v1/%0Afake%20line", headers={"X-Request-Id": "a'b"})
    (line,) = lines(log)
    assert "/v1/%0Afake%20line" in line
    assert line.endswith('"a\'b"')
