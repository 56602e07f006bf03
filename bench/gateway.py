"""Time that the API adds to a request (goal C7): time to the first token, and streamed tokens per second, both directly
and through the API.

    python -m bench.gateway [--rounds 5] [--vllm] [--base smollm2] [--foreign-names 1000]

A replica (a paced fake, or with ``--vllm`` a real one), the API as ``python -m api``, and one raw-socket client with as
little overhead as possible. Requests are sent in turns, directly, through the API and through a proxy that only passes
bytes (`bench/serving/gateway_bare.py`), so all are measured under the same conditions; the proxy shows the minimum that
any gateway in Python adds here. With ``--base smollm2``, the replica and a plain vLLM (``plain``), with the same engine
options and without Mens, serve SmolLM2-135M-Instruct, and the streaming speed is compared with that of plain vLLM, for
one stream and for sixteen. With ``--running``, replica and API are those of a running installation that the environment
names.

With ``--foreign-names``, a second installation with this many names of another provider's models takes part: requests
for its alias (``names``) and for one of the names (``foreign``) are compared with those to the installation without
such names.
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
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.harness.bases import BASES, TINY
from bench.harness.command import BenchFailed, PeerMissing, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import require
from bench.harness.smollm2 import SMOLLM2
from bench.serving.gateway_variants import FakeInstallation, bare_proxy
from shared.statistics.resampling import bca_interval

MAX_ADDED_MS_P50, MAX_ADDED_MS_P99, MIN_KEPT = 1.0, 3.0, 0.97
MAX_NAMES_MS_P50 = 0.05
"""Largest time that foreign names may add to a request, in milliseconds."""
SMOKE = {
    "rounds": 1,
    "requests": 3,
    "tokens": 4,
    "streams": [2],
    "warm_up": 1,
    "foreign_names": 3,
}
REAL = {"rounds": 5, "requests": 40, "warm_up": 10, "tokens": 128, "streams": [1, 16]}
RUNNING = ("MENS_API_URL", "MENS_API_KEY", "MENS_SERVING_URLS", "MENS_SERVING_KEY", "MENS_SERVING_BASE")
"""Variables that identify a running installation: its API and a key, its only replica and the replica's key, and its
base.
"""
LAST_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class MeasuredEndpoint:
    """URL, key and model of requests."""

    url: str
    key: str
    model: str


class KeptConnection:
    """One persistent HTTP/1.1 connection that reads chunked responses."""

    async def open(self, endpoint: MeasuredEndpoint) -> KeptConnection:
        address = urlsplit(endpoint.url)
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        return self

    async def post(self, endpoint: MeasuredEndpoint, path: str, body: bytes) -> AsyncIterator[bytes]:
        """Yield the response's chunks as they arrive.

        Raises:
            BenchFailed: the status is not 200.
        """
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {endpoint.key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        response = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in response.partition(b"\r\n")[0]:
            raise BenchFailed(response.decode(errors="replace"))
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def close(self) -> None:
        self._writer.close()


async def stream(endpoint: MeasuredEndpoint, tokens: int, connection: KeptConnection) -> tuple[float, int, float]:
    """Request one streamed completion.

    Returns:
        Seconds to the first event, number of events, seconds to the last event.

    Raises:
        BenchFailed: the stream was refused or aborted.
    """
    body = {"model": endpoint.model, "prompt": "Mens", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    started = time.perf_counter()
    first, events, end = 0.0, 0, b""
    async for chunk in connection.post(endpoint, "/v1/completions", json.dumps(body).encode()):
        first = first or time.perf_counter() - started
        events += chunk.count(b"data: ")
        end = (end + chunk)[-len(LAST_EVENT) :]
    seconds = time.perf_counter() - started
    if end != LAST_EVENT or events < 2:
        raise BenchFailed(f"a stream of {endpoint.url} ended early after {events} events: {end!r}")
    return first, events - 1, seconds


class GatewayComparison:
    """Measures the same requests at several endpoints.

    Args:
        endpoints: endpoints by variant: ``direct``, ``gateway``, ``bare`` and further ones.
        options: options of the command line.
    """

    def __init__(self, endpoints: dict[str, MeasuredEndpoint], options: argparse.Namespace) -> None:
        self._endpoints, self._options = endpoints, options

    async def measure(self) -> bool:
        """Run all rounds and report; return whether the goal is met."""
        firsts: dict[str, list[float]] = {name: [] for name in self._endpoints}
        speeds: dict[int, dict[str, list[float]]] = {
            streams: {name: [] for name in self._endpoints} for streams in self._options.streams
        }
        for number in range(self._options.rounds):
            for name, values in (await self.first_tokens()).items():
                firsts[name] += values
            for streams, by_name in speeds.items():
                for name in self._in_turn(number):
                    by_name[name].append(await self.throughput(self._endpoints[name], streams))
        return self.report(firsts, speeds)

    def _in_turn(self, number: int) -> list[str]:
        # Forward and reverse order alternately, so that after-effects hit a different variant each time.
        return list(self._endpoints)[:: 1 if number % 2 else -1]

    async def first_tokens(self) -> dict[str, list[float]]:
        """Measure milliseconds to the first token, one request at a time."""
        connections = {name: await KeptConnection().open(endpoint) for name, endpoint in self._endpoints.items()}
        milliseconds: dict[str, list[float]] = {name: [] for name in self._endpoints}
        for number in range(self._options.requests + self._options.warm_up):
            for name in self._in_turn(number):
                seconds, _, _ = await stream(self._endpoints[name], 1, connections[name])
                if number >= self._options.warm_up:
                    milliseconds[name].append(seconds * 1000)
        for connection in connections.values():
            connection.close()
        return milliseconds

    async def throughput(self, endpoint: MeasuredEndpoint, streams: int) -> float:
        """Measure tokens per second of several concurrent streams."""
        connections = [await KeptConnection().open(endpoint) for _ in range(streams)]
        started = time.perf_counter()
        counts = await asyncio.gather(*(stream(endpoint, self._options.tokens, kept) for kept in connections))
        seconds = time.perf_counter() - started
        for connection in connections:
            connection.close()
        return sum(count for _, count, _ in counts) / seconds

    def report(self, firsts: dict[str, list[float]], speeds: dict[int, dict[str, list[float]]]) -> bool:
        """Print the table and the goal; return whether the goal is met."""
        titles = "".join(f"{f'tokens/s of {streams}':>16}" for streams in speeds)
        print(f"{'variant':<8}{'first token ms p50':>20}{'p99':>8}{titles}   load {os.getloadavg()[0]:.1f}")
        for name, values in firsts.items():
            p50, p99 = (percentile(values, at) for at in (50, 99))
            medians = "".join(f"{statistics.median(by_name[name]):>16.0f}" for by_name in speeds.values())
            print(f"{name:<8}{p50:>20.2f}{p99:>8.2f}{medians}")
        added = {at: percentile(firsts["gateway"], at) - percentile(firsts["direct"], at) for at in (50, 99)}
        kept = {streams: share_kept(by_name, "direct") for streams, by_name in speeds.items()}
        facts = {f"ttft_added_ms_p{at}": round(value, 2) for at, value in added.items()}
        if "bare" in firsts:
            floor = {at: percentile(firsts["bare"], at) - percentile(firsts["direct"], at) for at in (50, 99)}
            facts |= {f"bare_added_ms_p{at}": round(value, 2) for at, value in floor.items()}
        if "plain" in speeds[self._options.streams[0]]:
            return self.report_real(speeds, facts | {f"kept_of_direct_{at}": round(kept[at], 3) for at in kept})
        least = min(kept.values())
        met = added[50] <= MAX_ADDED_MS_P50 and added[99] <= MAX_ADDED_MS_P99 and least >= MIN_KEPT
        met = print_goal("C7", ratio=round(least, 3), **facts, target=MIN_KEPT, met=met, smoke=self._options.smoke)
        return self.report_names(firsts) and met if "names" in firsts else met

    def report_real(self, speeds: dict[int, dict[str, list[float]]], facts: dict[str, Any]) -> bool:
        """Print the goal on the real base: the smallest share of a plain vLLM's speed."""
        kept = {f"kept_{streams}": round(share_kept(by_name, "plain"), 3) for streams, by_name in speeds.items()}
        least = min(kept.values())
        if self._options.rounds > 1:
            kept_between = {
                streams: bca_interval(shares(by_name, "plain"), 0.95) for streams, by_name in speeds.items()
            }
            facts |= {f"mean_{at}_between": [round(end, 3) for end in ends] for at, ends in kept_between.items()}
        smoke = self._options.smoke
        return print_goal("C7-real", ratio=least, **kept, **facts, target=MIN_KEPT, met=least >= MIN_KEPT, smoke=smoke)

    def report_names(self, firsts: dict[str, list[float]]) -> bool:
        """Print the effect of foreign names on the time to the first token, for a request with an alias and for one
        with a foreign name.
        """
        added = {
            f"{name}_ms_p{at}": round(percentile(firsts[name], at) - percentile(firsts["gateway"], at), 3)
            for name in ("names", "foreign")
            for at in (50, 99)
        }
        met = added["names_ms_p50"] <= MAX_NAMES_MS_P50
        names = self._options.foreign_names
        return print_goal("C7-names", names=names, **added, target=MAX_NAMES_MS_P50, met=met, smoke=self._options.smoke)


def share_kept(speeds: dict[str, list[float]], whole: str) -> float:
    """Return the gateway's speed as a share of another variant's, compared within rounds, so that a slow moment of the
    machine affects both.
    """
    return statistics.median(shares(speeds, whole))


def shares(speeds: dict[str, list[float]], whole: str) -> list[float]:
    """Return the gateway's speed as a share of another variant's, by rounds."""
    return [through / other for through, other in zip(speeds["gateway"], speeds[whole], strict=True)]


def percentile(values: list[float], at: int) -> float:
    """Return the smallest value that at least ``at`` percent of the values do not exceed."""
    return sorted(values)[math.ceil(len(values) * at / 100) - 1]


@contextmanager
def fake_endpoints(pace: float, foreign_names: int) -> Iterator[dict[str, MeasuredEndpoint]]:
    """Yield the fake replica, the API in front of it, called with an alias, the bare proxy, and an API with foreign
    names.
    """
    with ExitStack() as stack:
        made, *named = (
            stack.enter_context(
                FakeInstallation(Path(stack.enter_context(tempfile.TemporaryDirectory())), pace, foreign_names=names)
            )
            for names in ([0, foreign_names] if foreign_names else [0])
        )
        direct = MeasuredEndpoint(made.replica_url, "", made.adapter)
        endpoints = {
            "direct": direct,
            "gateway": MeasuredEndpoint(made.api_url, made.key, made.alias),
            "bare": replace(direct, url=stack.enter_context(bare_proxy(made.replica_url))),
        }
        for other in named:
            endpoints["names"] = MeasuredEndpoint(other.api_url, other.key, other.alias)
            endpoints["foreign"] = replace(endpoints["names"], model=other.foreign_name)
        yield endpoints


@contextmanager
def vllm_endpoints(base: str, *, smoke: bool) -> Iterator[dict[str, MeasuredEndpoint]]:
    """Run a new installation around one of ``BASES``, and the bare proxy; with the real base, a plain vLLM replaces the
    proxy, because every further variant makes a round longer.
    """
    from bench.serving.hotload_variants import cache_of, installation, plain_vllm

    with ExitStack() as started:
        home = Path(started.enter_context(tempfile.TemporaryDirectory()))
        stack = started.enter_context(installation(home, base, cache_of(base), smoke=smoke))
        environment = stack.settings | {"MENS_API_KEY": stack.connection.key}
        endpoints = started.enter_context(running_endpoints(environment))
        if base != TINY:
            key = endpoints["direct"].key
            plain = started.enter_context(plain_vllm(home, base, key, cache_of(base)))
            del endpoints["bare"]
            endpoints["plain"] = replace(endpoints["direct"], url=plain)
        yield endpoints


@contextmanager
def running_endpoints(environment: Mapping[str, str]) -> Iterator[dict[str, MeasuredEndpoint]]:
    """Yield a running installation, and the bare proxy.

    Args:
        environment: contains ``RUNNING``.
    """
    api, key, replica, replica_key, base = (environment[name] for name in RUNNING)
    direct = MeasuredEndpoint(replica, replica_key, base)
    with bare_proxy(replica) as url:
        yield {"direct": direct, "gateway": MeasuredEndpoint(api, key, base), "bare": replace(direct, url=url)}


def running_installation(*more: str) -> dict[str, str]:
    """Return the variables that identify a running installation, including ``more``.

    Raises:
        PeerMissing: a variable is not set.
    """
    names = (*RUNNING, *more)
    if missing := [name for name in names if name not in os.environ]:
        raise PeerMissing(f"not set: {', '.join(missing)}")
    return {name: os.environ[name] for name in names}


def started(options: argparse.Namespace) -> AbstractContextManager[dict[str, MeasuredEndpoint]]:
    """Start the servers that the command line requests.

    Raises:
        PeerMissing: the environment does not name a running installation.
    """
    if options.running:
        return running_endpoints(running_installation())
    if options.vllm:
        return vllm_endpoints(BASES[options.base], smoke=options.smoke)
    return fake_endpoints(options.pace / 1000, options.foreign_names)


def measure(options: argparse.Namespace) -> bool:
    """Start everything and measure; return whether the goal is met."""
    require("aiohttp", "uvicorn", *(["vllm"] if options.vllm else []))
    with started(options) as endpoints:
        return asyncio.run(GatewayComparison(endpoints, options).measure())


def main() -> int:
    """Entry point."""
    parser = bench_parser("bench.gateway", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="first-token requests per round and variant")
    parser.add_argument("--warm-up", type=int, default=30, help="uncounted warm-up requests")
    parser.add_argument("--tokens", type=int, default=300, help="tokens per concurrent stream")
    parser.add_argument(
        "--streams",
        type=int,
        nargs="+",
        default=[8],
        help="number of concurrent streams; several numbers are measured one after the other",
    )
    parser.add_argument(
        "--pace", type=float, default=5.0, help="milliseconds between the fake replica's tokens; 0: no pause"
    )
    parser.add_argument(
        "--foreign-names", type=int, default=0, help="foreign names in a second installation with a fake replica"
    )
    parser.add_argument("--vllm", action="store_true", help="a real replica instead of the fake")
    parser.add_argument("--base", choices=BASES, default="tiny", help="base of the replica; smollm2 implies --vllm")
    parser.add_argument(
        "--running",
        action="store_true",
        help=f"use the running installation that these variables name: {', '.join(RUNNING)}",
    )
    real = BASES[parser.parse_args().base] == SMOLLM2
    parser.set_defaults(**(REAL if real else {}))
    options = parse_options(parser, SMOKE)
    options.vllm = options.vllm or real
    return run_bench(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
