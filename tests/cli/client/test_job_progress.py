"""Following a job: its events, and outages of the API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import typer

from cli.client import job_progress
from cli.client.connection import Connection, connect
from cli.client.job_progress import poll
from shared.database.leases import Leases
from shared.errors import Code, JobFailed
from tests.support.builders import claimed
from tests.support.cli_installation import CliInstallation

KILLED = JobFailed(Code.TRAINER_KILLED, "The trainer was killed.", retryable=True)


def test_each_event_is_yielded_once(installation: CliInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_progress, "POLL_SECONDS", 0.0)
    jobs = installation.services.jobs
    leases = Leases(installation.services.database, 60)
    lease = claimed(jobs, leases)
    versions = poll(lease.job.id, connect())
    seen = [event["message"] for event in next(versions)["events"]]
    leases.fail(lease, KILLED)
    seen += [event["message"] for event in next(versions)["events"]]
    jobs.cancel(lease.job.id)
    seen += [event["message"] for version in versions for event in version["events"]]
    assert seen == [event.message for event in jobs.events(lease.job.id)]


def test_short_outage_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    finished = {"state": "succeeded", "events": []}
    respond(monkeypatch, httpx.ConnectError("refused"), httpx.Response(503), job(finished))
    assert list(poll("ftjob-1", Connection("http://api", "key"))) == [finished]
    assert capsys.readouterr().err == "http://api does not respond; trying again\n"


def test_long_outage_ends_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(job_progress, "OUTAGE_SECONDS", -1.0)
    respond(monkeypatch, httpx.Response(503))
    with pytest.raises(typer.Exit):
        list(poll("ftjob-1", Connection("http://api", "key")))
    assert "`mens jobs watch ftjob-1`" in capsys.readouterr().err


def job(content: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, json=content, headers={"ETag": "1"})


def respond(monkeypatch: pytest.MonkeyPatch, *script: httpx.Response | Exception) -> None:
    """Let the API give these responses, one per request."""
    left = list(script)

    def respond_next(_request: httpx.Request) -> httpx.Response:
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return left.pop(0)

    monkeypatch.setattr(job_progress, "POLL_SECONDS", 0.0)
    client = httpx.Client(base_url="http://api", transport=httpx.MockTransport(respond_next))
    monkeypatch.setattr(Connection, "client", lambda _self: client)
