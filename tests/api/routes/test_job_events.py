"""Event streams: limited by key, authenticated again while they last, and cheap for the other callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.polling.event_feed import EventFeed
from api.settings import ApiSettings
from shared.database import jobs
from shared.database.callers.key_records import Key
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Job, Kind, NewEvent, Submission
from shared.errors import Code, Unavailable
from tests.support.api_server import make_server
from tests.support.asgi_server import run_server
from tests.support.builders import BASE
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

LIMIT, STREAMS = 30, 400


@dataclass
class Installation:
    """A served API with a running job."""

    app: FastAPI
    client: httpx.Client
    key: Key
    job: Job

    def report(self, message: str) -> None:
        """Write an event of the job."""
        services = self.app.state.services
        leases = Leases(services.database, 60)
        lease = leases.claim(self.job.id, "w")
        assert lease
        leases.report(lease, events=[NewEvent(message=message)])

    def events(self) -> Any:
        """A stream of the job's events."""
        return self.client.stream("GET", f"/v1/jobs/{self.job.id}/events")


@pytest.fixture
def installation(app: FastAPI, settings: ApiSettings) -> Iterator[Installation]:
    services = app.state.services
    feed = EventFeed(LIMIT, 2 * LIMIT)
    object.__setattr__(services, "event_feed", feed)
    key, secret = services.keys.create("k", "acme")
    submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    job, _ = services.jobs.of("acme").submit(submission)
    server = run_server(make_server(app, settings))
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=next(server), headers=headers, timeout=20, trust_env=False) as client:
        yield Installation(app, client, key, job)
    next(server, None)


def read_until(pieces: Iterator[str], wanted: str) -> str:
    text = ""
    while wanted not in text:
        text += next(pieces)
    return text


def test_events_come_while_the_job_runs(installation: Installation) -> None:
    with installation.events() as response:
        pieces = response.iter_text()
        read_until(pieces, "created and queued")
        installation.report("the first")
        assert "created and queued" not in read_until(pieces, "the first"), "no event twice"


def test_streams_of_a_key_are_limited(installation: Installation) -> None:
    with ExitStack() as stack:
        for _ in range(LIMIT):
            assert stack.enter_context(installation.events()).status_code == 200
        refused = installation.client.get(f"/v1/jobs/{installation.job.id}/events")
        assert (refused.status_code, refused.json()["error"]["mens"]["code"]) == (429, "CONCURRENCY_LIMITED")
        assert refused.headers["Retry-After"]
        _, other = installation.app.state.services.keys.create("other", "acme")
        with installation.client.stream(
            "GET", f"/v1/jobs/{installation.job.id}/events", headers={"Authorization": f"Bearer {other}"}
        ) as response:
            assert response.status_code == 200, "another key has its own"

    def is_admitted() -> bool:
        with installation.events() as response:
            return response.status_code == 200

    eventually(is_admitted, what="a stream that was closed makes room")


def test_streams_of_a_tenant_are_limited(installation: Installation) -> None:
    keys, path = installation.app.state.services.keys, f"/v1/jobs/{installation.job.id}/events"
    secrets = [keys.create(f"k{number}", "acme")[1] for number in range(3)]
    with ExitStack() as stack:

        def follow(secret: str) -> int:
            stream = installation.client.stream("GET", path, headers={"Authorization": f"Bearer {secret}"})
            return stack.enter_context(stream).status_code

        assert {follow(secret) for secret in secrets[:2] for _ in range(LIMIT)} == {200}
        assert follow(secrets[2]) == 429
        job, _ = installation.app.state.services.jobs.of("other").submit(
            Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
        )
        headers = {"Authorization": f"Bearer {keys.create('k', 'other')[1]}"}
        with installation.client.stream("GET", f"/v1/jobs/{job.id}/events", headers=headers) as response:
            assert response.status_code == 200, "another tenant has its own"


def test_many_streams_of_a_key_cost_another_tenant_no_read(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 400 streams of one key once made another tenant wait for 10 s: each of them read the database for itself.
    services, path = installation.app.state.services, f"/v1/jobs/{installation.job.id}/events"
    other = {"Authorization": f"Bearer {services.keys.create('k', 'other')[1]}"}
    reads: list[str] = []
    read_job = Jobs.get
    monkeypatch.setattr(Jobs, "get", lambda *arguments: (reads.append("job"), read_job(*arguments))[1])

    async def follow() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        more: Any = {"base_url": installation.client.base_url, "trust_env": False, "timeout": 60, "limits": limits}
        async with httpx.AsyncClient(**more, headers=installation.client.headers) as client, AsyncExitStack() as stack:

            async def open_one() -> int:
                return (await stack.enter_async_context(client.stream("GET", path))).status_code

            opening = [asyncio.create_task(open_one()) for _ in range(STREAMS)]
            async with httpx.AsyncClient(**more, headers=other) as calm:
                assert (await calm.get("/v1/models")).status_code == 200, "while they are being opened"
                statuses = await asyncio.gather(*opening)
                reads.clear()
                for _ in range(10):
                    assert (await calm.get("/v1/models")).status_code == 200
            return statuses

    statuses = asyncio.run(follow())
    assert (statuses.count(200), statuses.count(429)) == (LIMIT, STREAMS - LIMIT)
    assert len(reads) < LIMIT / 3, "streams that have nothing new read nothing"


def test_revoked_key_gets_no_more_events(installation: Installation) -> None:
    with installation.events() as response:
        pieces = response.iter_text()
        read_until(pieces, "created and queued")
        installation.app.state.services.keys.revoke(installation.key.id)
        installation.report("not for everybody")
        rest = "".join(pieces)
    assert "not for everybody" not in rest
    error = next(line for line in rest.splitlines() if line.startswith("data: "))
    assert json.loads(error.removeprefix("data: "))["error"]["mens"]["code"] == "KEY_INVALID"
    assert "event: error" in rest


def test_many_streams_read_the_database_together(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read_events, read_versions = Jobs.events, jobs.job_versions

    def events(self: Jobs, job_id: str, **more: Any) -> Any:
        reads.append("events")
        return read_events(self, job_id, **more)

    def versions(*arguments: Any) -> Any:
        reads.append("versions")
        return read_versions(*arguments)

    monkeypatch.setattr("shared.database.jobs.Jobs.events", events)
    monkeypatch.setattr("api.polling.job_versions.job_versions", versions)
    with ExitStack() as stack:
        streams = [stack.enter_context(installation.events()).iter_text() for _ in range(LIMIT)]
        for pieces in streams:
            read_until(pieces, "created and queued")

        def polls() -> int:
            return reads.count("versions")

        eventually(lambda: polls() > 2)
        reads.clear()
        eventually(lambda: polls() > 5)
        assert "events" not in reads, "nothing has changed"
        reads.clear()
        installation.report("the first")
        for pieces in streams:
            read_until(pieces, "the first")
        assert reads.count("events") < LIMIT / 3


def test_stream_outlives_an_outage_of_the_database(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    outages: list[int] = []

    def fail(*_: Any) -> Any:
        outages.append(1)
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "away")

    with installation.events() as response:
        pieces = response.iter_text()
        read_until(pieces, "created and queued")
        with monkeypatch.context() as away:
            away.setattr("api.polling.job_versions.job_versions", fail)
            eventually(lambda: len(outages) > 2)
        installation.report("the first")
        read_until(pieces, "the first")


def test_one_stream_has_the_changes_of_all_jobs(installation: Installation) -> None:
    services = installation.app.state.services
    new = Submission(kind=Kind.FINETUNE, base_model=BASE, name="second", contract={}, plan={})
    with installation.client.stream("GET", "/v1/events") as response:
        pieces = response.iter_text()
        read_until(pieces, installation.job.id)  # it is younger than ten seconds
        second, _ = services.jobs.of("acme").submit(new)
        services.jobs.of("other").submit(new.model_copy(update={"name": "not for everybody"}))
        text = read_until(pieces, second.id)
        installation.report("the first")
        text += read_until(pieces, '"state":"running"')
        assert "event: job" in text
        assert "not for everybody" not in text
        cursor = next(line for line in text.splitlines() if line.startswith("id: ")).removeprefix("id: ")
    with installation.client.stream("GET", "/v1/events", headers={"Last-Event-ID": cursor}) as response:
        read_until(response.iter_text(), second.id)
    wrong = installation.client.get("/v1/events", headers={"Last-Event-ID": "x"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs?view=summary", "/v1/jobs/{job}"])
@pytest.mark.parametrize("is_followed", [False, True], ids=["no other stream", "another stream"])
def test_stream_continues_where_a_list_or_a_job_ends(installation: Installation, path: str, is_followed: bool) -> None:
    client = installation.client
    with ExitStack() as stack:
        if is_followed:
            next(stack.enter_context(client.stream("GET", "/v1/events")).iter_text())
        answer = client.get(path.format(job=installation.job.id))
        assert '"state":"queued"' in answer.text
        installation.report("between the answer and the stream")
        headers = {"Last-Event-ID": answer.headers["X-Mens-Last-Event-ID"]}
        with client.stream("GET", "/v1/events", headers=headers) as response:
            read_until(response.iter_text(), '"state":"running"')


def test_stream_of_changes_begins_at_once(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its first bytes a client knows that no proxy holds it back."""
    monkeypatch.setattr("api.routes.job_events.SILENT_SECONDS", 10**9)
    with installation.client.stream("GET", "/v1/events", params={"types": "alias"}) as response:
        assert next(response.iter_text()).startswith(":")


def test_streams_of_changes_whose_clients_went_make_room_for_others(installation: Installation) -> None:
    with ExitStack() as stack:
        for _ in range(LIMIT):
            stack.enter_context(installation.client.stream("GET", "/v1/events"))
        assert installation.client.get("/v1/events").status_code == 429

    def follow() -> bool:
        with installation.client.stream("GET", "/v1/events") as response:
            return response.status_code == 200

    eventually(follow)


def test_stream_of_changes_ends_with_its_key(installation: Installation) -> None:
    with installation.client.stream("GET", "/v1/events") as response:
        pieces = response.iter_text()
        read_until(pieces, installation.job.id)
        installation.app.state.services.keys.revoke(installation.key.id)
        assert "KEY_INVALID" in "".join(pieces)
