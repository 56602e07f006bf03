"""Send hostile and careless requests, and print the statuses of the responses: ``python -m tests.support.hostile_load
URL COUNT MODEL KEY:JOB …``.

With a model, all requests are sent to that model, as by users with a key. With "", they are sent to all other routes,
together with event streams.

It is a separate process, so that it slows the tests' callers no more than real strangers would.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from urllib.parse import urlsplit

from tests.support.hostile_requests import READ_TO_THE_END, Tenant, of_nobody, of_tenant, of_user

CONCURRENT = 12
STREAMS = 100
"""Number of concurrent event streams for each key."""
SECONDS = 20.0
"""Time that a client waits for the first line of a response."""


FAILED = 599
"""Counted instead of the status if a response turned into an error of ours after it had begun."""


class Load:
    """Sends requests over separate connections, and counts the statuses; 0: no response."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._gate = asyncio.Semaphore(CONCURRENT)
        self.statuses: Counter[int] = Counter()

    async def send(self, request: bytes) -> None:
        """Send one request; incomplete ones are abandoned after a moment."""
        async with self._gate:
            await self._exchange(request, 0.5 if is_unfinished(request) else SECONDS)

    async def follow(self, tenant: Tenant, is_over: asyncio.Event) -> None:
        """Read one event stream as long as other requests are being sent."""
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
                status = status_of(await reader.readline())
                if READ_TO_THE_END.encode() in request and b"SERVING_" in await reader.read(-1):
                    status = FAILED
                self.statuses[status] += 1
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


async def run(url: str, count: int, model: str, tenants: list[Tenant]) -> Counter[int]:
    """Send this number of requests in random order."""
    load, is_over, chance = Load(url), asyncio.Event(), random.Random(1)
    if model:
        streams, requests = [], [request for tenant in tenants for request in of_user(tenant, model)]
    else:
        streams = [asyncio.create_task(load.follow(tenant, is_over)) for tenant in tenants for _ in range(STREAMS)]
        requests = of_nobody() + [request for tenant in tenants for request in of_tenant(tenant)]
    await asyncio.gather(*(load.send(chance.choice(requests)) for _ in range(count)))
    is_over.set()
    await asyncio.gather(*streams)
    return load.statuses


def main() -> None:
    """Entry point."""
    url, count, model, *pairs = sys.argv[1:]
    tenants = [Tenant(*pair.split(":")) for pair in pairs]
    print(json.dumps(asyncio.run(run(url, int(count), model, tenants))))


if __name__ == "__main__":
    main()
