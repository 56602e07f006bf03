"""What strangers and careless tenants send: ``python -m tests.support.hostile_load URL COUNT KEY:JOB …`` prints its statuses.

A process of its own, so that it slows the tests' callers no more than strangers would.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.builders import BASE

CONCURRENT = 12
STREAMS = 100
"""Event streams that each key asks for at once."""
SECONDS = 20.0
"""How long a client waits for the first line of an answer."""
JSON = "Content-Type: application/json"
FORM = "Content-Type: multipart/form-data; boundary=x"


@dataclass(frozen=True)
class Tenant:
    """A tenant's key, and a job of its own."""

    secret: str
    job: str

    def request(self, method: str, path: str, body: bytes = b"", *lines: str, length: int | None = None) -> bytes:
        """A request with the key; ``length`` is declared where it is not the body's."""
        return http(method, path, body, f"Authorization: Bearer {self.secret}", *lines, length=length)


def http(method: str, path: str, body: bytes = b"", *lines: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


def upload(filename: bytes, content: bytes) -> bytes:
    purpose = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    disposition = b'--x\r\nContent-Disposition: form-data; name="file"; filename="' + filename + b'"\r\n\r\n'
    return purpose + disposition + content + b"\r\n--x--\r\n"


def of_nobody() -> list[bytes]:
    """Requests without a key that is known."""
    return [
        http("POST", "/v1/jobs", b"[" + b"[]," * 700_000, JSON),
        http("POST", "/v1/jobs", b"[[", JSON, length=48_000_000),
        http("POST", "/v1/files", b"x" * 100_000, FORM),
        http("GET", "/v1/models", b"", "Authorization: Bearer mens-guess"),
        http("GET", "/v1/models", b"", *["X: " + "a" * 1000] * 500),
        http("GET", "/" + "a" * 200_000),
        b"GET /v1/models HTTP/1.1\r\nX: ",
        b"\x16\x03\x01\x00\xff garbage\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        http("GET", "/v1/../../etc/passwd"),
        http("GET", "/health") * 50_000,
        http("POST", "/v1/jobs", b"", JSON, length=1_000_000),
        http("GET", "/v1/models", b"", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        b"",
    ]


def of_tenant(tenant: Tenant) -> list[bytes]:
    """Requests with a key, each wrong in its own way."""
    send = tenant.request
    huge = json.dumps({"model": "none", "messages": [], "options": {"top_k": 2**64}}).encode()
    filters = "&".join(f"metadata%5B{number}%5D=x" for number in range(1200))
    return [
        send("POST", "/v1/jobs", b"{" * 50_000, JSON),
        send("POST", "/v1/plans", b'{"contract":' * 5000 + b"1" + b"}" * 5000, JSON),
        send("POST", "/v1/plans", b"[" + b"[]," * 300_000 + b"[]]", JSON),
        send("POST", "/v1/keys", b" " * 2_000_000, JSON),
        send("POST", "/v1/keys", b"{", JSON, length=1000),
        send("POST", "/v1/chat/completions", b'{"model": 1, "messages": "x"}', JSON),
        send("POST", "/v1/chat/completions", b"[" * 100_000, JSON),
        send("POST", "/api/chat", huge, JSON),
        send("POST", "/v1/files", upload(b"\xff\xfe", b"{}"), FORM),
        send("POST", "/v1/files", upload(b"a", b""), FORM),
        send("POST", "/v1/files", b"--x\r\n", FORM, length=100_000),
        send("POST", "/v1/uploads", b'{"bytes": 1e400, "filename": "\\u0000", "mime_type": "", "purpose": []}', JSON),
        send("POST", "/v1/uploads", b'{"bytes": 9' + b"9" * 4000 + b"}", JSON),
        send("POST", "/v1/uploads/upload-1/parts", b"--x\r\n" * 10_000, FORM),
        send("POST", "/v1/uploads/%00/parts", b"", FORM, length=900_000_000),
        send("POST", "/v1/uploads/upload-1/complete", b'{"part_ids": ' + b"[" * 50_000, JSON),
        send("POST", "/v1/files", upload(b"a", b"{}"), FORM, "Idempotency-Key: " + "k" * 5000),
        send("POST", "/v1/files", upload(b"a", b"{}"), FORM, "Idempotency-Key: " + "\u00ff" * 9),
        send("GET", f"/v1/fine_tuning/jobs?{filters}"),
        send("GET", "/v1/usage?from=0&to=99999999999"),
        send("GET", "/v1/files/%00%ff"),
        send("GET", f"/v1/jobs/{tenant.job}/events", b"", "Last-Event-ID: x"),
        send("DELETE", "/v1/aliases/a", b"", "If-Match: " + "1" * 5000),
        send("GET", "/v1/models/" + "%2F" * 500),
        send("PATCH", "/v1/models", b"{}", JSON),
        send("OPTIONS", "/v1/jobs"),
        send("GET", "/v1/jobs?limit=99999999999999999999"),
        send("GET", "/v1/jobs", b"", "X-Mens-Tenant: shared"),
        *(send("POST", "/v1/chat/completions", bomb, JSON) for bomb in grammar_bombs()),
    ]


def grammar_bombs() -> list[bytes]:
    """Requests whose grammars would keep an engine busy for minutes."""
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    wanted: list[dict[str, Any]] = [
        {"structured_outputs": {"grammar": "root ::= " + "(a | b) " * 90_000}},
        {"structured_outputs": {"regex": "(a|b)*" * 90_000}},
        {"structured_outputs": {"choice": ["word"] * 90_000}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": deep}}},
    ]
    request = {"model": BASE, "messages": [{"role": "user", "content": "hello"}]}
    return [json.dumps(request | fields).encode() for fields in wanted]


class Load:
    """Sends requests over connections of their own, and counts the statuses of the answers; 0: there was none."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._gate = asyncio.Semaphore(CONCURRENT)
        self.statuses: Counter[int] = Counter()

    async def send(self, request: bytes) -> None:
        """One request; half-finished ones are abandoned after a moment."""
        async with self._gate:
            await self._exchange(request, 0.5 if is_unfinished(request) else SECONDS)

    async def follow(self, tenant: Tenant, is_over: asyncio.Event) -> None:
        """One event stream, as long as the others are at work."""
        async with self._gate:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            writer.write(tenant.request("GET", f"/v1/jobs/{tenant.job}/events"))
            self.statuses[status_of(await reader.readline())] += 1
        await is_over.wait()
        writer.close()

    async def _exchange(self, request: bytes, seconds: float) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.timeout(seconds):
                writer.write(request)
                self.statuses[status_of(await reader.readline())] += 1
        except (TimeoutError, ConnectionError):
            self.statuses[0] += 1
        finally:
            writer.close()


def is_unfinished(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    lengths = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
    return not end or bool(lengths and len(body) < int(lengths[0]))


def status_of(line: bytes) -> int:
    return int(line.split(b" ")[1]) if line.startswith(b"HTTP/1.1 ") else 0


async def run(url: str, count: int, tenants: list[Tenant]) -> Counter[int]:
    """Send so many requests in random order, with event streams all the while."""
    load, is_over, chance = Load(url), asyncio.Event(), random.Random(1)
    streams = [asyncio.create_task(load.follow(tenant, is_over)) for tenant in tenants for _ in range(STREAMS)]
    kinds: list[Callable[[], list[bytes]]] = [of_nobody, *(lambda t=tenant: of_tenant(t) for tenant in tenants)]
    requests = [request for kind in kinds for request in kind()]
    await asyncio.gather(*(load.send(chance.choice(requests)) for _ in range(count)))
    is_over.set()
    await asyncio.gather(*streams)
    return load.statuses


def main() -> None:
    """Entry point."""
    url, count, *pairs = sys.argv[1:]
    tenants = [Tenant(*pair.split(":")) for pair in pairs]
    print(json.dumps(asyncio.run(run(url, int(count), tenants))))


if __name__ == "__main__":
    main()
