"""The HTTP client for replicas over real sockets: which connections are kept, and the error for each failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from api.inference.replicas import client as replica_client
from api.inference.replicas.client import (
    ReplicaClient,
    ReplicaDisconnected,
    ReplicaResponse,
    ReplicaUnreachable,
)
from tests.support.socket_replica import RawReplica

pytestmark = pytest.mark.network

HEAD = b"HTTP/1.1 200 OK\r\nserver: x\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
RESPONSE = HEAD + b"5\r\nhello\r\n0\r\n\r\n"


class FixedServer:
    """A server with one response to every request.

    Attributes:
        heads: headers of each request.
        bodies: body of each request.
        connections: number of connections.
        received: released at every request.
        closed: released at every connection that the client has closed.
    """

    def __init__(self, response: bytes = RESPONSE) -> None:
        self.response = response
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.received = asyncio.Semaphore(0)
        self.closed = asyncio.Semaphore(0)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(head.partition("Content-Length: ")[2].split()[0])))
                self.received.release()
                writer.write(self.response)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.release()
        finally:
            writer.close()

    async def ended(self) -> None:
        """End the connections that are still open, so that their loop can close."""
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def listening(server: FixedServer) -> AsyncIterator[str]:
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await server.ended()


async def whole(response: ReplicaResponse) -> bytes:
    body = b""
    while chunk := await response.read_some():
        body += chunk
    response.close()
    return body


async def client_and_server(
    test: Callable[[ReplicaClient, FixedServer, str], Coroutine[Any, Any, None]], **made: Any
) -> None:
    server, client = FixedServer(**made), ReplicaClient("secret", 5)
    async with listening(server) as url:
        try:
            await test(client, server, url)
        finally:
            await client.aclose()


def test_request_has_host_key_and_body() -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        body = b"x" * 3_000_000
        response = await client.post(f"{url}/v1/completions?a=b", body)
        assert (response.status, response.ok, response.headers) == (200, True, {"content-type": "text/plain"})
        assert await whole(response) == b"hello"
        await whole(await client.get(url))
        assert server.bodies == [body, b""]
        lines = server.heads[0].split("\r\n")
        assert lines[0] == "POST /v1/completions?a=b HTTP/1.1"
        assert server.heads[1].startswith("GET / HTTP/1.1\r\n")
        assert {f"Host: {url.removeprefix('http://')}", "Authorization: Bearer secret"} < set(lines)

    asyncio.run(client_and_server(test))


def test_connection_is_kept_until_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        for _ in range(3):
            assert await whole(await client.post(url, b"{}")) == b"hello"
        assert server.connections == 1
        monkeypatch.setattr(replica_client, "KEEPALIVE_SECONDS", 0.0)
        await whole(await client.post(url, b"{}"))
        assert server.connections == 2
        async with asyncio.timeout(5):
            await server.closed.acquire()

    asyncio.run(client_and_server(test))


def test_concurrent_requests_have_a_connection_each() -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        first, second = await client.post(url, b"{}"), await client.post(url, b"{}")
        assert await whole(first) == await whole(second) == b"hello"
        assert server.connections == 2

    asyncio.run(client_and_server(test))


def test_idle_connections_that_are_too_old_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        for response in [await client.post(url, b"{}") for _ in range(5)]:
            await whole(response)
        with monkeypatch.context() as patch:
            patch.setattr(replica_client, "KEEPALIVE_SECONDS", 0.02)
            await asyncio.sleep(0.03)
            response = await client.post(url, b"{}")
        monkeypatch.setattr(replica_client, "KEEPALIVE_SECONDS", 60.0)  # the new one is kept, however long this takes
        await whole(response)
        async with asyncio.timeout(5):
            for _ in range(5):
                await server.closed.acquire()
        assert await whole(await client.post(url, b"{}")) == b"hello"
        assert server.connections == 6

    asyncio.run(client_and_server(test))


def test_closing_an_unread_response_closes_the_connection() -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        response = await client.post(url, b"{}")
        response.close()
        assert await response.read_some() == b""
        async with asyncio.timeout(5):
            await server.closed.acquire()
        await client.aclose()

    asyncio.run(client_and_server(test, response=HEAD))


def test_cancelled_request_closes_the_connection() -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        sending = asyncio.create_task(client.post(url, b"{}"))
        await server.received.acquire()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        async with asyncio.timeout(5):
            await server.closed.acquire()

    asyncio.run(client_and_server(test, response=b""))


def test_connection_closed_by_the_replica_is_made_again() -> None:
    async def test() -> None:
        client, server = (
            ReplicaClient("", 5),
            FixedServer(RESPONSE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)),
        )
        async with listening(server) as url:
            for _ in range(2):
                assert await whole(await client.post(url, b"{}")) == b"hello"
        assert server.connections == 2
        assert "Authorization" not in server.heads[0]

    asyncio.run(test())


@pytest.mark.parametrize("mode", ["500", "500 and close"])
def test_connection_is_not_reused_after_a_server_error(mode: str) -> None:
    replica = RawReplica("a")

    async def test() -> None:
        client = ReplicaClient("", 5)
        for replica.mode, status in ((mode, 500), ("answer", 200)) * 20:
            response = await client.post(replica.url, b'{"model": "m"}')
            await whole(response)
            assert response.status == status
        await client.aclose()

    asyncio.run(test())
    replica.stop()
    assert len(replica.asked) == 40, "none was sent twice"


class ClosingServer(FixedServer):
    """Closes a connection at its second request, after the last words.

    Attributes:
        last_words: what it sends before.
        serves: how many connections get a response at all.
    """

    last_words = b""
    serves = 100

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        for last in (self.connections > self.serves, True):
            await reader.readuntil(b"\r\n\r\n{}")
            self.received.release()
            writer.write(self.last_words if last else self.response)
            if last:
                break
        writer.close()


async def closed_at_the_second_request(server: ClosingServer) -> bytes:
    """The response to a second request on the connection of the first."""
    client = ReplicaClient("", 5)
    async with listening(server) as url:
        try:
            await whole(await client.post(url, b"{}"))
            return await whole(await client.post(url, b"{}"))
        finally:
            await client.aclose()


def test_request_that_a_reused_connection_lost_is_sent_once_more() -> None:
    server = ClosingServer()
    assert asyncio.run(closed_at_the_second_request(server)) == b"hello"
    assert server.connections == 2


def test_request_is_not_sent_again_once_a_byte_has_come() -> None:
    server = ClosingServer()
    server.last_words = b"HTTP/1.1"
    with pytest.raises(ReplicaDisconnected):
        asyncio.run(closed_at_the_second_request(server))
    assert server.connections == 1


def test_request_is_sent_once_more_and_not_again() -> None:
    server = ClosingServer()
    server.serves = 1
    with pytest.raises(ReplicaDisconnected):
        asyncio.run(closed_at_the_second_request(server))
    assert server.connections == 2


def test_replica_that_ended_at_a_request_is_not_unreachable() -> None:
    """It may have ended because of the request, which then must not go to every other replica."""

    async def test() -> None:
        client, server = ReplicaClient("", 5), ClosingServer()
        listener = await asyncio.start_server(server, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        await whole(await client.post(url, b"{}"))
        listener.close()
        with pytest.raises(ReplicaDisconnected):
            await client.post(url, b"{}")
        await client.aclose()
        await server.ended()

    asyncio.run(test())


def test_each_loop_has_its_own_connections() -> None:
    client = ReplicaClient("", 5)

    async def test() -> None:
        server = FixedServer()
        async with listening(server) as url:
            assert await whole(await client.post(url, b"{}")) == b"hello"
            assert server.connections == 1
            await client.aclose()

    asyncio.run(test())
    asyncio.run(test())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://replica.invalid",
        "ftp://127.0.0.1/",
        "http://",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:1/a b",
        "http://127.0.0.1:1/\r\nX: y",
        f"http://{'a' * 70}.invalid/",
    ],
)
def test_no_connection_is_unreachable(url: str) -> None:
    with pytest.raises(ReplicaUnreachable):
        asyncio.run(ReplicaClient("", 5).post(url, b"{}"))


def test_replica_without_tls_is_unreachable_by_https(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_client, "CONNECT_SECONDS", 0.2)

    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        with pytest.raises(ReplicaUnreachable):
            await client.post(url.replace("http:", "https:"), b"{}")

    asyncio.run(client_and_server(test))


@pytest.mark.parametrize("response", [b"nonsense\r\n\r\n", HEAD + b"zz"])
def test_broken_response_is_a_disconnect(response: bytes) -> None:
    async def test(client: ReplicaClient, server: FixedServer, url: str) -> None:
        with pytest.raises(ReplicaDisconnected):
            await whole(await client.post(url, b"{}"))

    asyncio.run(client_and_server(test, response=response))
