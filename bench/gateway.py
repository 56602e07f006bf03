"""What the front door costs (goal C7): time to the first token and streamed tokens per second, direct and through it.

    python -m bench.gateway [--rounds 5] [--vllm]

A replica (a paced fake, or with ``--vllm`` the real one), the API as ``python -m api``, and one raw-socket client that adds
as little of its own as it can. Requests go in turns, direct, through the door and through a proxy that does nothing
(`bench/gateway_bare.py`), so all see the same machine; the last is the floor of what any front door in Python adds here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from bench.gateway_lanes import FakeInstallation, bare_proxy

MAX_ADDED_MS_P50, MAX_ADDED_MS_P99, MIN_KEPT = 1.0, 3.0, 0.97
STREAMS = 8
WARM_UP = 30


@dataclass(frozen=True)
class Lane:
    """Where requests go and what they ask for."""

    url: str
    key: str
    model: str


async def stream(lane: Lane, tokens: int, connection: Connection) -> tuple[float, int, float]:
    """One streamed completion.

    Returns:
        Seconds to the first event, events, seconds to the last.
    """
    body = {"model": lane.model, "prompt": "Mens", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    started = time.perf_counter()
    first, events = 0.0, 0
    async for chunk in connection.post(lane, "/v1/completions", json.dumps(body).encode()):
        first = first or time.perf_counter() - started
        events += chunk.count(b"data: ")
    return first, events - 1, time.perf_counter() - started


class Connection:
    """One kept-alive HTTP/1.1 connection that reads chunked answers."""

    async def open(self, lane: Lane) -> Connection:
        address = urlsplit(lane.url)
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        return self

    async def post(self, lane: Lane, path: str, body: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """The answer's chunks as they come.

        Raises:
            RuntimeError: the status is not 200.
        """
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {lane.key}\r\ncontent-type: application/json\r\n"
        )
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(answer.decode(errors="replace"))
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def close(self) -> None:
        self._writer.close()


async def first_tokens(lanes: dict[str, Lane], requests: int) -> dict[str, list[float]]:
    """Milliseconds to the first token, one request at a time, the lanes in turns."""
    connections = {name: await Connection().open(lane) for name, lane in lanes.items()}
    found: dict[str, list[float]] = {name: [] for name in lanes}
    for index in range(requests + WARM_UP):
        for name in list(lanes) if index % 2 else list(lanes)[::-1]:
            seconds, _, _ = await stream(lanes[name], 1, connections[name])
            if index >= WARM_UP:
                found[name].append(seconds * 1000)
    for connection in connections.values():
        connection.close()
    return found


async def throughput(lane: Lane, tokens: int) -> float:
    """Tokens per second of several streams at once."""
    connections = [await Connection().open(lane) for _ in range(STREAMS)]
    started = time.perf_counter()
    counts = await asyncio.gather(*(stream(lane, tokens, connection) for connection in connections))
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return sum(count for _, count, _ in counts) / seconds


async def measure(lanes: dict[str, Lane], rounds: int, requests: int, tokens: int) -> bool:
    """All rounds; prints the table and the goal."""
    firsts: dict[str, list[float]] = {name: [] for name in lanes}
    speeds: dict[str, list[float]] = {name: [] for name in lanes}
    for index in range(rounds):
        for name, values in (await first_tokens(lanes, requests)).items():
            firsts[name] += values
        for name in list(lanes) if index % 2 else list(lanes)[::-1]:
            speeds[name].append(await throughput(lanes[name], tokens))
    return report(firsts, speeds)


def report(firsts: dict[str, list[float]], speeds: dict[str, list[float]]) -> bool:
    """Print the table and the JSON line of the goal."""
    print(f"{'lane':<8}{'first token ms p50':>20}{'p99':>8}{'tokens/s':>12}   load {os.getloadavg()[0]:.1f}")
    for name, values in firsts.items():
        p50, p99 = (percentile(values, at) for at in (50, 99))
        print(f"{name:<8}{p50:>20.2f}{p99:>8.2f}{statistics.median(speeds[name]):>12.0f}")
    added, floor = (
        {at: percentile(firsts[name], at) - percentile(firsts["direct"], at) for at in (50, 99)}
        for name in ("door", "bare")
    )
    kept = statistics.median(door / direct for door, direct in zip(speeds["door"], speeds["direct"], strict=True))
    passed = added[50] <= MAX_ADDED_MS_P50 and added[99] <= MAX_ADDED_MS_P99 and kept >= MIN_KEPT
    facts = {
        f"{what}_added_ms_p{at}": round(value, 2)
        for what, by in (("ttft", added), ("bare", floor))
        for at, value in by.items()
    }
    print(json.dumps({"goal": "C7", "ratio": round(kept, 3), **facts, "target": MIN_KEPT, "pass": passed}))
    return passed


def percentile(values: list[float], at: int) -> float:
    """The smallest value that at least ``at`` percent do not exceed."""
    return sorted(values)[math.ceil(len(values) * at / 100) - 1]


@contextmanager
def fake_lanes(pace: float) -> Iterator[dict[str, Lane]]:
    """The fake replica, and the API in front of it, asked for an alias."""
    with tempfile.TemporaryDirectory() as folder, FakeInstallation(Path(folder), pace) as made:
        direct = Lane(made.replica_url, "", made.adapter)
        with bare_proxy(made.replica_url) as url:
            yield {
                "direct": direct,
                "door": Lane(made.door_url, made.key, made.alias),
                "bare": replace(direct, url=url),
            }


@contextmanager
def vllm_lanes() -> Iterator[dict[str, Lane]]:
    """The whole installation around the tiny base."""
    from cli.bases import build
    from cli.stack import Stack, running_stack
    from shared.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        build(Settings(home=Path(folder)), "mens-tiny")
        with running_stack(Stack(Path(folder), "mens-tiny")) as stack:
            direct = Lane(stack.settings["MENS_SERVING_URLS"], stack.settings["MENS_SERVING_KEY"], "mens-tiny")
            door = Lane(stack.connection.url, stack.connection.key, "mens-tiny")
            with bare_proxy(direct.url) as url:
                yield {"direct": direct, "door": door, "bare": replace(direct, url=url)}


def main() -> int:
    """Entry point; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="for the first token, in a round and lane")
    parser.add_argument("--tokens", type=int, default=300, help="of each of the streams at once")
    parser.add_argument("--pace", type=float, default=5.0, help="milliseconds between the fake's tokens; 0: none")
    parser.add_argument("--vllm", action="store_true", help="a real replica instead of the fake")
    options = parser.parse_args()
    with vllm_lanes() if options.vllm else fake_lanes(options.pace / 1000) as lanes:
        return 0 if asyncio.run(measure(lanes, options.rounds, options.requests, options.tokens)) else 1


if __name__ == "__main__":
    sys.exit(main())
