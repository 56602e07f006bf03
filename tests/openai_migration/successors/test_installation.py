"""Requests to the installation on which successors are trained: what is sent again, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.client.connection import Connection
from openai_migration.successors.installation import Installation
from shared.errors import MensError
from tests.support.http_stub import http_stub


@pytest.mark.parametrize(("statuses", "requests"), [([200], 1), ([429, 429, 200], 3), ([500, 200], 1), ([404, 200], 1)])
def test_only_a_request_at_the_rate_limit_is_sent_again(
    statuses: list[int], requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("shared.http_retry.time.sleep", waits.append)
    seen: list[int] = []

    def respond(*_: object) -> tuple[int, object]:
        seen.append(statuses[len(seen)])
        return seen[-1], {"id": "file-1"}

    with http_stub(respond) as url, Installation(Connection(url, "key"), tmp_path) as installation:
        if statuses[requests - 1] == 200:
            assert installation.call("POST", "/v1/files", json={}) == {"id": "file-1"}
        else:
            with pytest.raises(MensError):
                installation.call("POST", "/v1/files", json={})
    assert seen == statuses[:requests]
    assert len(waits) == requests - 1


def test_installation_that_does_not_respond_is_named(tmp_path: Path) -> None:
    with (
        Installation(Connection("http://127.0.0.1:9", "key"), tmp_path) as installation,
        pytest.raises(MensError, match=r"127\.0\.0\.1") as caught,
    ):
        installation.call("GET", "/v1/jobs")
    assert caught.value.code == "API_UNAVAILABLE"
