"""Replicas over real sockets: connections that are kept, left alone in time, and told apart when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from api import replica_client
from api.replica_client import ENGINE_DEAD, BrokenOff, NotReached, ReplicaAnswer, ReplicaClient

pytestmark = pytest.mark.network

HEAD = b"HTTP/1.1 200 OK\r\nserver: x\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"5\r\nhello\r\n0\r\n\r\n"


class Server:
    """Answers every request alike.

    Attributes:
        heads: of the requests.
        bodies: of the requests.
        connections: how many there were. asked, closed: one more for every request, and for every connection
            that the client has closed.
    """

    def __init__(self, answer: bytes = ANSWER) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Semaphore(0)
        self.closed = asyncio.Semaphore(0)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(head.partition("Content-Length: ")[2].split()[0])))
                self.asked.release()
                writer.write(self.answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.release()
        finally:
            writer.close()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[str]:
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def whole(answer: ReplicaAnswer) -> bytes:
    body = b""
    while chunk := await answer.read_some():
        body += chunk
    answer.close()
    return body


async def client_and_server(
    test: Callable[[ReplicaClient, Server, str], Coroutine[Any, Any, None]], **made: Any
) -> None:
    server, client = Server(**made), ReplicaClient("secret", 5)
    async with listening(server) as url:
        try:
            await test(client, server, url)
        finally:
            await client.aclose()


def test_what_a_replica_is_told() -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        body = b"x" * 3_000_000
        answer = await client.post(f"{url}/v1/completions?a=b", body)
        assert (answer.status, answer.ok, answer.headers) == (200, True, {"content-type": "text/plain"})
        assert await whole(answer) == b"hello"
        await whole(await client.get(url))
        assert server.bodies == [body, b""]
        lines = server.heads[0].split("\r\n")
        assert lines[0] == "POST /v1/completions?a=b HTTP/1.1"
        assert server.heads[1].startswith("GET / HTTP/1.1\r\n")
        assert {f"Host: {url.removeprefix('http://')}", "Authorization: Bearer secret"} < set(lines)

    asyncio.run(client_and_server(test))


def test_a_connection_is_kept_while_it_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        for _ in range(3):
            assert await whole(await client.post(url, b"{}")) == b"hello"
        assert server.connections == 1
        monkeypatch.setattr(replica_client, "KEEPALIVE_SECONDS", 0.0)
        await whole(await client.post(url, b"{}"))
        assert server.connections == 2
        async with asyncio.timeout(5):
            await server.closed.acquire()

    asyncio.run(client_and_server(test))


def test_two_requests_at_once_have_a_connection_each() -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        first, second = await client.post(url, b"{}"), await client.post(url, b"{}")
        assert await whole(first) == await whole(second) == b"hello"
        assert server.connections == 2

    asyncio.run(client_and_server(test))


def test_those_that_were_many_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        for answer in [await client.post(url, b"{}") for _ in range(5)]:
            await whole(answer)
        monkeypatch.setattr(replica_client, "KEEPALIVE_SECONDS", 0.02)
        await asyncio.sleep(0.03)
        await whole(await client.post(url, b"{}"))
        async with asyncio.timeout(5):
            for _ in range(5):
                await server.closed.acquire()
        assert await whole(await client.post(url, b"{}")) == b"hello"
        assert server.connections == 6

    asyncio.run(client_and_server(test))


def test_an_answer_that_is_left_unread_is_no_longer_listened_to() -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        answer = await client.post(url, b"{}")
        answer.close()
        assert await answer.read_some() == b""
        async with asyncio.timeout(5):
            await server.closed.acquire()
        await client.aclose()

    asyncio.run(client_and_server(test, answer=HEAD))


def test_a_cancelled_request_ends_at_the_replica() -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        asking = asyncio.create_task(client.post(url, b"{}"))
        await server.asked.acquire()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(5):
            await server.closed.acquire()

    asyncio.run(client_and_server(test, answer=b""))


def test_a_replica_that_restarts_is_connected_to_again() -> None:
    async def test() -> None:
        client, server = ReplicaClient("", 5), Server(ANSWER.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        async with listening(server) as url:
            for _ in range(2):
                assert await whole(await client.post(url, b"{}")) == b"hello"
        assert server.connections == 2
        assert "Authorization" not in server.heads[0]

    asyncio.run(test())


def test_each_loop_has_its_own_connections() -> None:
    client = ReplicaClient("", 5)

    async def test() -> None:
        server = Server()
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
def test_what_is_never_reached(url: str) -> None:
    with pytest.raises(NotReached):
        asyncio.run(ReplicaClient("", 5).post(url, b"{}"))


def test_one_that_speaks_no_tls_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_client, "CONNECT_SECONDS", 0.2)

    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        with pytest.raises(NotReached):
            await client.post(url.replace("http:", "https:"), b"{}")

    asyncio.run(client_and_server(test))


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", HEAD + b"zz"])
def test_what_breaks(answer: bytes) -> None:
    async def test(client: ReplicaClient, server: Server, url: str) -> None:
        with pytest.raises(BrokenOff):
            await whole(await client.post(url, b"{}"))

    asyncio.run(client_and_server(test, answer=answer))


@pytest.mark.engine
def test_how_vllm_tells_that_its_engine_is_dead() -> None:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.v1.engine.exceptions import EngineDeadError

    told = create_error_response(EngineDeadError()).model_dump()
    for content in (json.dumps(told), json.dumps(told, separators=(",", ":"))):
        assert ENGINE_DEAD.search(content.encode())
    assert not ENGINE_DEAD.search(json.dumps({"got": '"message": "EngineCore encountered an issue"'}).encode())
