"""Job polls: unchanged jobs cause no query, and no caller sees another tenant's job or a state older than its own
change.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.server import Server
from api.settings import ApiSettings
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.database.records import Job, Kind, NewEvent, Submission
from shared.errors import Code, Unavailable
from tests.support.api_server import make_server
from tests.support.asgi_server import run_server
from tests.support.builders import BASE
from tests.support.waiting import eventually

pytestmark = pytest.mark.network


@dataclass
class Polled:
    """A served API with a queued job; ``reads`` are the reads of the job by routes."""

    app: FastAPI
    server: Server
    client: httpx.Client
    job: Job
    reads: list[str]

    def poll(self, etag: str, secret: str = "", **params: Any) -> httpx.Response:
        headers = {"If-None-Match": etag} | ({"Authorization": f"Bearer {secret}"} if secret else {})
        return self.client.get(f"/v1/jobs/{self.job.id}", headers=headers, params=params)

    def etag(self) -> str:
        """The job's ETag, once a queued job has its place, which a busy machine reads only after the first answer."""

        def placed() -> httpx.Response | None:
            answer = self.client.get(f"/v1/jobs/{self.job.id}")
            return answer if answer.json()["queue"] or answer.json()["state"] != "queued" else None

        answer = eventually(placed)
        assert answer is not None
        return answer.headers["etag"]

    def until_known(self) -> str:
        """The ETag, once polls with it reach no route."""
        etag = self.etag()

        def is_known() -> bool:
            self.reads.clear()
            assert self.poll(etag).status_code == 304
            return not self.reads

        eventually(is_known)
        return etag


@pytest.fixture
def polled(app: FastAPI, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Polled]:
    services, reads, read = app.state.services, [], Jobs.get
    _, secret = services.keys.create("k", "acme")
    job, _ = services.jobs.of("acme").submit(
        Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    )
    monkeypatch.setattr(Jobs, "get", lambda *arguments: (reads.append("job"), read(*arguments))[1])
    made = make_server(app, settings)
    made.config.timeout_keep_alive = 1
    server = run_server(made)
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=next(server), headers=headers, timeout=20, trust_env=False) as client:
        yield Polled(app, made, client, job, reads)
    next(server, None)


def test_unchanged_job_costs_the_database_nothing(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    etag = polled.until_known()
    # What is known grows old in a second or two, which a busy machine may need for twenty polls.
    monkeypatch.setattr("api.polling.queue_places.REFRESH_SECONDS", math.inf)
    polled.app.state.services.job_versions._longest_age = math.inf
    polled.reads.clear()
    answers = [polled.poll(etag, after="0") for _ in range(20)]
    assert {(answer.status_code, answer.content, answer.headers["etag"]) for answer in answers} == {(304, b"", etag)}
    assert polled.reads == []


def test_change_by_another_process_is_seen(polled: Polled) -> None:
    etag = polled.until_known()
    leases = Leases(polled.app.state.services.database, 60)
    lease = leases.claim(polled.job.id, "w")
    assert lease
    leases.report(lease, events=[NewEvent(message="one")])
    answers: list[httpx.Response] = []

    def has_changed() -> bool:
        answers.append(polled.poll(etag, after="0"))
        return answers[-1].status_code == 200

    eventually(has_changed)
    assert answers[-1].json()["events"][-1]["message"] == "one"


def test_own_change_is_seen_at_once(polled: Polled) -> None:
    for verb, state in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        etag = polled.until_known()
        polled.client.post(f"/v1/jobs/{polled.job.id}/{verb}")
        changed = polled.poll(etag)
        assert (changed.status_code, changed.json()["state"]) == (200, state)


def test_other_tenants_learn_nothing(polled: Polled) -> None:
    etag = polled.until_known()
    _, other = polled.app.state.services.keys.create("k", "other")
    assert polled.poll(etag, other).status_code == 404
    assert polled.poll(etag, "unknown").status_code == 401
    _, operator = polled.app.state.services.keys.create("k")
    named = polled.client.get(
        f"/v1/jobs/{polled.job.id}",
        headers={"If-None-Match": etag, "Authorization": f"Bearer {operator}", "X-Mens-Tenant": "other"},
    )
    assert named.status_code == 404


@pytest.mark.parametrize("etag", ["W/", '"1"', 'W/"x"', 'W/"²"', 'W/"' + "9" * 5000 + '"', ""])
def test_no_etag_of_ours_is_a_200(polled: Polled, etag: str) -> None:
    polled.until_known()
    headers = [(b"if-none-match", etag.encode())]
    assert polled.client.get(f"/v1/jobs/{polled.job.id}", headers=headers).status_code == 200


def test_outage_is_reported_once_cached_values_are_old(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    etag = polled.until_known()

    def fail(*_: Any) -> Any:
        raise Unavailable(Code.DATABASE_UNAVAILABLE, "away")

    monkeypatch.setattr("api.polling.job_versions.job_versions", fail)
    monkeypatch.setattr(Jobs, "get", fail)
    eventually(lambda: polled.poll(etag).status_code == 503)


def test_nothing_is_read_once_nobody_asks(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.polling.job_versions.FOLLOWED_SECONDS", 0.05)
    versions = polled.app.state.services.job_versions
    polled.poll(polled.etag())
    eventually(versions._polling.done)
    assert polled.poll(polled.etag()).status_code == 304, "from the route"


def test_jobs_over_the_limit_are_answered_by_the_database(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.polling.job_versions.MAX_REQUESTED_JOBS", 0)
    etag = polled.etag()
    polled.reads.clear()
    assert [polled.poll(etag).status_code for _ in range(3)] == [304] * 3
    assert len(polled.reads) == 3


def talk(polled: Polled, sent: bytes) -> bytes:
    """Return the response to raw bytes, until the server closes the connection or one second passes without a request."""
    url = polled.client.base_url
    received = b""
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(sent)
        while piece := connection.recv(65_536):
            received += piece
    return received


def request(polled: Polled, *headers: str, method: str = "GET", version: str = "1.1", path: str = "") -> bytes:
    authorization = f"Authorization: {polled.client.headers['authorization']}"
    lines = [f"{method} {path or f'/v1/jobs/{polled.job.id}'} HTTP/{version}", "Host: x", authorization, *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def test_polls_and_other_requests_share_a_connection(polled: Polled) -> None:
    held = f"If-None-Match: {polled.until_known()}"
    poll, models = request(polled, held, "X-Request-Id: mine"), request(polled, path="/v1/models")
    answer = talk(polled, poll + poll + models + poll + models)
    assert [answer.count(status) for status in (b"HTTP/1.1 304", b"HTTP/1.1 200")] == [3, 2]
    assert answer.startswith(b"HTTP/1.1 304")
    assert answer.index(b"HTTP/1.1 200") > answer.index(b"HTTP/1.1 304", 1), "in the order in which they were sent"
    assert answer.count(b"x-request-id: mine") == 3
    assert answer.count(b"date: ") == 5


def test_polls_before_a_stream_leave_no_timer_that_would_end_it(polled: Polled) -> None:
    poll = request(polled, f"If-None-Match: {polled.until_known()}")
    url = polled.client.base_url
    polled.client.close()
    eventually(lambda: not polled.server.server_state.connections)
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(poll + poll + request(polled, path=f"/v1/jobs/{polled.job.id}/events"))
        received = b""
        while b"HTTP/1.1 200" not in received:
            received += connection.recv(65_536)
        (served,) = polled.server.server_state.connections
        assert served.timeout_keep_alive_task is None


@pytest.mark.parametrize(
    ("more", "method", "version"),
    [
        (("Connection: close",), "GET", "1.1"),
        ((), "GET", "1.0"),
        ((), "HEAD", "1.1"),
        (("Content-Length: 2",), "GET", "1.1"),
        (("Transfer-Encoding: chunked",), "GET", "1.1"),
    ],
)
def test_unusual_polls_are_the_application_s(polled: Polled, more: tuple[str, ...], method: str, version: str) -> None:
    held = f"If-None-Match: {polled.until_known()}"
    body = b"{}" if more == ("Content-Length: 2",) else b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in str(more) else b""
    answer = talk(polled, request(polled, held, *more, method=method, version=version) + body + request(polled, held))
    assert answer.startswith(b"HTTP/1.1 304")
    closes = more == ("Connection: close",) or version == "1.0"
    assert answer.count(b"HTTP/1.1 304") == (1 if closes else 2)
    assert polled.reads, "by the route"


def test_idle_connection_is_closed_after_a_poll(polled: Polled) -> None:
    held = f"If-None-Match: {polled.until_known()}"
    url = polled.client.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(request(polled, held))
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    assert received.count(b"HTTP/1.1 304") == 1
