"""Following a job."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import typer

from cli import job_progress
from cli.connection import Connection, connect
from cli.job_progress import poll
from shared.errors import Code, JobFailed
from shared.lease import LeaseLedger
from tests.cli.conftest import Installation
from tests.shared.samples import claimed

KILLED = JobFailed(Code.TRAINER_KILLED, "The trainer was killed.", retryable=True)


def test_each_event_is_seen_once(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_progress, "POLL_SECONDS", 0.0)
    ledger = installation.services.ledger
    leases = LeaseLedger(installation.services.database, 60)
    lease = claimed(ledger, leases)
    versions = poll(lease.job.id, connect())
    seen = [event["message"] for event in next(versions)["events"]]
    leases.fail(lease, KILLED)
    seen += [event["message"] for event in next(versions)["events"]]
    ledger.cancel(lease.job.id)
    seen += [event["message"] for version in versions for event in version["events"]]
    assert seen == [event.message for event in ledger.events(lease.job.id)]


def test_a_database_that_is_away_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = {"state": "succeeded", "events": []}
    answers(monkeypatch, httpx.ConnectError("refused"), httpx.Response(503), job(over))
    assert list(poll("ftjob-1", Connection("http://api", "key"))) == [over]
    assert capsys.readouterr().err == "http://api does not answer; trying again\n"


def test_silence_ends_it_at_last(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(job_progress, "PATIENCE_SECONDS", -1.0)
    answers(monkeypatch, httpx.Response(503))
    with pytest.raises(typer.Exit):
        list(poll("ftjob-1", Connection("http://api", "key")))
    assert "`mens jobs watch ftjob-1`" in capsys.readouterr().err


def job(content: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json=content, headers={"ETag": "1"})


def answers(monkeypatch: pytest.MonkeyPatch, *script: httpx.Response | Exception) -> None:
    """What the API says, question by question."""
    left = list(script)

    def answer(_request: httpx.Request) -> httpx.Response:
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return left.pop(0)

    monkeypatch.setattr(job_progress, "POLL_SECONDS", 0.0)
    client = httpx.Client(base_url="http://api", transport=httpx.MockTransport(answer))
    monkeypatch.setattr(Connection, "client", lambda _self: client)
