"""Connections of unknown clients: large heads, slow heads, half-open connections, and responses to requests that are
still being sent.
"""

from __future__ import annotations

import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.connection import MAX_PIPELINED
from api.server import Server
from api.settings import ApiSettings
from shared.database.records import Kind, Submission
from tests.support.api_installation import settings_for
from tests.support.api_server import make_server
from tests.support.asgi_server import run_server
from tests.support.builders import BASE
from tests.support.raw_http import connect, head, read_response, read_to_end, send_all
from tests.support.waiting import eventually

pytestmark = pytest.mark.network

MANY = 10
"""Connections that the server takes."""
OPEN_BODY = b'{"messages": '


@pytest.fixture
def patience() -> float:
    """Seconds that a head and a body may take, and an idle connection stays open. More than a busy machine takes to send them."""
    return 60.0


SOON = pytest.mark.parametrize("patience", [1.0])
"""For tests of what comes too late."""


@pytest.fixture
def settings(tmp_path: Path, base_folder: Path, patience: float) -> ApiSettings:
    limits = {"max_connections": MANY, "head_seconds": patience, "body_seconds": patience}
    return settings_for(tmp_path, base_folder).model_copy(update=limits)


@pytest.fixture
def server(app: FastAPI, settings: ApiSettings) -> Server:
    server = make_server(app, settings)
    server.config.timeout_keep_alive = 60
    return server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    yield from run_server(server)


@pytest.fixture
def key(app: FastAPI) -> str:
    return str(app.state.services.keys.create("test")[1])


def memory() -> int:
    """Bytes of this process, which is the server's too."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_healthy(url: str) -> bool:
    return httpx.get(f"{url}/health", trust_env=False).status_code == 200


def test_body_of_a_stranger_is_not_read(url: str) -> None:
    with connect(url) as stranger:
        send_all(stranger, head("POST", "/v1/jobs", "Content-Type: application/json", "Content-Length: 48000000"))
        send_all(stranger, b"[" + b"[]," * 20_000)
        response = read_response(stranger)
        assert (response.status, "KEY_MISSING" in response.text) == (401, True), "48 MB are not waited for"
        assert is_healthy(url)


def test_answer_is_seen_by_clients_that_send_their_whole_body_first(url: str) -> None:
    piece, count = b"[]," * 350_000, 48
    before, largest = memory(), 0

    def body() -> Iterator[bytes]:
        nonlocal largest
        for _ in range(count):
            yield piece
            largest = max(largest, memory())

    headers = {"Content-Length": str(len(piece) * count)}
    response = httpx.post(f"{url}/v1/jobs", content=body(), headers=headers, trust_env=False, timeout=60)
    assert (response.status_code, response.json()["error"]["mens"]["code"]) == (401, "KEY_MISSING")
    assert largest - before < 10_000_000
    assert is_healthy(url)


def test_client_that_wants_the_connection_closed_sees_the_answer(url: str) -> None:
    request = urllib.request.Request(f"{url}/v1/jobs", data=b" " * 20_000_000)  # it sends `Connection: close`
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
    assert refusal.value.code == 401
    refusal.value.close()


def test_client_that_expects_100_continue_gets_the_refusal(url: str) -> None:
    with connect(url) as client:
        send_all(client, head("POST", "/v1/files", "Expect: 100-continue", "Content-Length: 1000000"))
        assert client.recv(100).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("lines", "total"), [(b"x-line: " + b"a" * 56 + b"\r\n", 40_000_000), (b"a" * 100_000, 40_000_000)]
)
def test_large_head_is_refused_before_it_has_come(url: str, lines: bytes, total: int) -> None:
    before = memory()
    with connect(url) as stranger:
        send_all(stranger, b"GET /health HTTP/1.1\r\nHost: a\r\nx: ")
        for _ in range(total // 1_000_000):
            send_all(stranger, lines * (1_000_000 // len(lines)))
        response = read_response(stranger)
    assert (response.status, "HEAD_TOO_LARGE" in response.text) == (431, True)
    assert memory() - before < 10_000_000
    assert is_healthy(url)


def test_large_head_in_one_piece_is_refused(url: str) -> None:
    with connect(url) as stranger:
        send_all(stranger, head("GET", "/health", *["x: " + "a" * 100] * 700))
        assert read_response(stranger).status == 431


def test_head_within_the_limit_is_read(url: str) -> None:
    response = httpx.get(f"{url}/health", headers={"x-long": "a" * 60_000}, trust_env=False)
    assert response.status_code == 200


def test_lines_after_a_chunked_body_are_counted_and_not_kept(url: str, key: str) -> None:
    with connect(url) as client:
        lines = f"Authorization: Bearer {key}", "Content-Type: application/json", "Transfer-Encoding: chunked"
        send_all(client, head("POST", "/v1/keys", *lines) + b"2\r\n{}\r\n0\r\n")
        send_all(client, (b"x: " + b"a" * 60 + b"\r\n") * 20_000)
        assert len(read_to_end(client)) < 1000, "refused while it comes"
    assert is_healthy(url)


@SOON
@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", 0), (b"GET /health", 408), (b"GET /health HTTP/1.1\r\nHost: a\r\n", 408), (b"\r\n\r\n", 0)],
)
def test_half_open_connection_is_closed(url: str, sent: bytes, status: int) -> None:
    with connect(url) as stranger:
        send_all(stranger, sent)
        assert read_response(stranger).status == status


@SOON
def test_second_head_has_to_come_in_time_too(url: str) -> None:
    with connect(url) as client:
        send_all(client, head("GET", "/health"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        send_all(client, b"GET /hea")
        assert read_response(client).status == 408


@SOON
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/chat/completions", "/v1/files"])
def test_body_that_stops_coming_is_refused(url: str, key: str, path: str) -> None:
    with connect(url) as client:
        kind = "multipart/form-data; boundary=x" if path == "/v1/files" else "application/json"
        lines = f"Authorization: Bearer {key}", f"Content-Type: {kind}", "Content-Length: 1000"
        send_all(client, head("POST", path, *lines) + OPEN_BODY)
        response = read_response(client)
    assert (response.status, "REQUEST_TIMEOUT" in response.text) == (408, True)


@SOON
def test_body_that_trickles_is_refused(url: str, key: str) -> None:
    lines = f"Authorization: Bearer {key}", "Content-Type: application/json", "Content-Length: 1000"
    with connect(url) as client:
        send_all(client, head("POST", "/v1/jobs", *lines))
        client.setblocking(False)
        began = time.monotonic()

        def answer() -> bytes | None:
            send_all(client, b"[")
            try:
                return client.recv(100)
            except BlockingIOError:
                return None

        assert (eventually(answer) or b"").startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 10


def test_pipelined_requests_are_taken_up_to_a_bound(url: str) -> None:
    before = memory()
    with connect(url) as stranger:
        for _ in range(20):
            send_all(stranger, head("GET", "/health") * (1_000_000 // len(head("GET", "/health"))))
            assert is_healthy(url)
        received = read_to_end(stranger)
    assert memory() - before < 10_000_000
    assert received.count(b"HTTP/1.1 200 OK") == 1 + MAX_PIPELINED, "one in progress, and those that waited for it"
    assert received.count(b"connection: close") == 1, "the last says that there are no others"


def test_pipelined_requests_within_the_bound_are_answered_in_their_order(url: str) -> None:
    paths = ["/health", "/nothing", "/v1/models"] * 5
    with connect(url) as client:
        send_all(client, b"".join(head("GET", path) for path in paths[:-1]))
        send_all(client, head("GET", paths[-1], "Connection: close"))
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", read_to_end(client))
    assert statuses == [b"200", b"404", b"401"] * 5


def test_request_in_progress_ends_with_the_connection_though_another_one_waits(
    url: str, key: str, app: FastAPI, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = Submission(kind=Kind.FINETUNE, base_model=BASE, name="helper", contract={}, plan={})
    job, _ = app.state.services.jobs.of("shared").submit(wanted)
    with caplog.at_level("INFO", "api.web.access_log"), connect(url) as client:
        stream = head("GET", f"/v1/jobs/{job.id}/events", f"Authorization: Bearer {key}")
        send_all(client, stream + head("GET", "/health") + b"no HTTP\r\n\r\n")
        eventually(lambda: f"GET /v1/jobs/{job.id}/events" in caplog.text)
        eventually(lambda: not server.server_state.tasks)
    assert "GET /health" not in caplog.text
    assert "Exception in ASGI application" not in caplog.text


def test_idle_connections_make_room_for_others(url: str, server: Server) -> None:
    with ExitStack() as strangers:
        for _ in range(5 * MANY):
            send_all(strangers.enter_context(connect(url)), b"GET /health HTTP/1.1\r\nx: ")
            assert is_healthy(url), "strangers wait, and keep nobody out"
        assert len(server.server_state.connections) <= MANY
    eventually(lambda: not server.server_state.connections)


def test_connections_that_were_answered_make_room_first(url: str, server: Server) -> None:
    with ExitStack() as strangers, connect(url) as client:
        send_all(client, head("GET", "/health"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        for _ in range(3 * MANY):
            stranger = strangers.enter_context(connect(url))
            send_all(stranger, head("POST", "/v1/jobs", "Content-Length: 1000000"))
            assert stranger.recv(65536).startswith(b"HTTP/1.1 401")
        assert is_healthy(url)
        send_all(client, head("GET", "/health"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200"), "it was idle, and nobody's place was needed"


def test_connections_over_the_limit_are_refused_while_none_is_idle(url: str, key: str, server: Server) -> None:
    lines = f"Authorization: Bearer {key}", "Content-Type: application/json", "Content-Length: 1000"
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(url)) for _ in range(MANY)]
        for connection in busy:
            send_all(connection, head("POST", "/v1/keys", *lines))
        eventually(lambda: len(server.server_state.tasks) == MANY, what="none is idle")

        def refused() -> str | None:
            with connect(url) as late:
                text = read_response(late).text
                return text if "CONNECTIONS_LIMITED" in text else None

        assert "503" in (eventually(refused) or "")
        busy[0].close()
        eventually(lambda: answers(url), what="there is room again")


def answers(url: str) -> Any:
    try:
        return is_healthy(url)
    except httpx.TransportError:
        return False


def test_client_that_leaves_in_the_middle_of_an_upload_is_not_an_error(
    url: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = f"Authorization: Bearer {key}", "Content-Type: multipart/form-data; boundary=x", "Content-Length: 1000"
    with caplog.at_level("INFO", "api.web.access_log"):
        with connect(url) as client:
            send_all(client, head("POST", "/v1/files", *lines) + b"--x\r\n")
        eventually(lambda: "POST /v1/files 499" in caplog.text)
    assert "unexpected error" not in caplog.text


def test_broken_body_ends_the_request_that_waits_for_it(url: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    with connect(url) as client:
        lines = f"Authorization: Bearer {key}", "Content-Type: application/json", "Transfer-Encoding: chunked"
        send_all(client, head("POST", "/v1/keys", *lines) + b"zz no length\r\n")
        read_to_end(client)
    assert is_healthy(url)
    assert "Exception in ASGI application" not in caplog.text


def test_websocket_is_no_way_around(url: str) -> None:
    with connect(url) as stranger:
        lines = (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZQ==",
            "Sec-WebSocket-Version: 13",
        )
        send_all(stranger, head("GET", "/v1/models", *lines))
        stranger.shutdown(socket.SHUT_WR)
        assert read_response(stranger).status in (0, 401)


def test_data_that_is_not_http_is_refused_in_the_same_form(url: str) -> None:
    with connect(url) as stranger:
        send_all(stranger, b"\x16\x03\x01 hello\r\n\r\n")
        response = read_response(stranger)
    assert (response.status, "REQUEST_INVALID" in response.text) == (400, True)
