"""A replica on a bare socket, with which a test can break a connection at any point."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from typing import Any

from cli.standalone.ports import free_port
from shared.replicas import ReplicaCapabilities


class RawReplica:
    """Listens on its own port, which it keeps when it is stopped and started again.

    Attributes:
        mode: the response to a completion: ``answer``, ``stream``, ``held`` (a stream that ends once the mode changes),
            ``503``, ``500``, ``500 and close`` (without announcing the close), ``drop`` (before any byte), ``dead``
            (the engine is dead), ``dies`` (this completion kills the engine: from now on the mode is ``dead``, and
            ``health`` 503), ``headers`` (then drop), ``one`` (one event, then drop), ``short`` (half of an answer, then
            drop), ``hang``.
        health: status of the health route.
        serves: the capabilities that it reports; None: none.
        asked: bodies of completions, in order.
    """

    def __init__(
        self, name: str, host: str = "127.0.0.1", port: int = 0, serves: ReplicaCapabilities | None = None
    ) -> None:
        self.name, self.host, self.port, self.serves = name, host, port or free_port(), serves
        self.mode, self.health = "answer", 200
        self.asked: list[dict[str, Any]] = []
        self.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def models(self) -> list[str]:
        return [body["model"] for body in self.asked]

    def start(self) -> None:
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        self.port = ready.result(60)

    def stop(self) -> None:
        """Refuse new connections from now on, and reset open ones."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(60)

    async def _run(self, ready: Future[int]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._connection, self.host, self.port)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._end.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("get"):
            said = self.serves.model_dump_json() if self.serves and head.startswith("get /mens/limits ") else ""
            writer.write(f"HTTP/1.1 {self.health} x\r\ncontent-length: {len(said)}\r\n\r\n{said}".encode())
            return True
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        self.asked.append(body)
        return await self._complete(body, reader, writer)

    async def _complete(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        mode = self.mode
        if mode == "dies":
            mode = self.mode = "dead"
            self.health = 503
        if mode == "drop":
            return False
        if mode == "dead":
            writer.write(_engine_dead(streams=body.get("stream", False)))
            return True
        if mode == "hang":
            await reader.read(1)  # until the caller goes
            return False
        if mode in ("answer", "short", "503", "500", "500 and close"):
            status = int(mode[:3]) if mode[0] == "5" else 200
            content = json.dumps({"by": self.name, "served": body["model"]}).encode()
            whole = f"HTTP/1.1 {status} x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
            writer.write(whole[:-10] if mode == "short" else whole)
            return mode not in ("short", "500 and close")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range({"headers": 0, "one": 1}.get(mode, 20)):
            event = f"data: {self.name}\n\n".encode()
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        while mode == "held" == self.mode:  # noqa: ASYNC110  set by a test, in another thread
            await asyncio.sleep(0.01)
        ends = mode in ("stream", "held")
        if ends:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return ends


def _engine_dead(*, streams: bool) -> bytes:
    """Respond like vLLM, whose streams have sent their status already."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    content = json.dumps({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})
    if streams:
        content = f"data: {content}\n\ndata: [DONE]\n\n"
    status, kind = (200, "text/event-stream") if streams else (500, "application/json")
    head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    return (head + content).encode()
