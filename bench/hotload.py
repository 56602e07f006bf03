"""From a job that has finished to the first token of its model (goal C6), against a plain vLLM that loads and answers.

    python -m bench.hotload [--adapters 100] [--rank 16]

A whole installation and a plain vLLM with the same engine options run side by side on the tiny base. Adapters that neither
has seen take turns:

    direct     POST /v1/load_lora_adapter, then ask, at the plain vLLM
    door       the job's last transaction, then ask for the new model at the front door; no replica has seen it
    certified  the same of an adapter that the replica was asked for before, as the worker does before a job may succeed

Each is streamed; what counts is the time to the first token, for ``door`` from the moment of the commit. All along, other
adapters are asked for at both places, and each of their answers must come whole. More adapters than have room are used, so
each load also puts another one out.
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

from bench.gateway import Connection, Lane, percentile, stream
from bench.hotload_lanes import Stored, Trainer, Worker, installation, plain_vllm
from shared.settings import Settings

MAX_SHARE_MS = 50.0
ROOM = {"serving_max_loras": 4, "serving_max_cpu_loras": 8}
WARM_UP = 4
NEIGHBOURS, NEIGHBOUR_TOKENS, NEIGHBOUR_SECONDS = 3, 4, 0.25
"""Other adapters that are asked for meanwhile, for so many tokens, each so often, at each place."""
ALIAS = "latest"
KNOWN_SECONDS = 5.0


class Direct(Connection):
    """A connection to a replica, on which more is sent than completions."""

    async def call(self, lane: Lane, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer that is not streamed.

        Raises:
            RuntimeError: the status is not 200.
        """
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {lane.key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(f"{path}: {answer + content!r}")
        return content


@dataclass
class Neighbours:
    """What became of the requests to other adapters."""

    asked: int = 0
    failures: list[str] = field(default_factory=list)

    async def keep_asking(self, lane: Lane) -> None:
        """Ask one adapter again and again, until cancelled."""
        while True:
            self.asked += 1
            try:
                connection = await Connection().open(lane)
                try:
                    while True:
                        await stream(lane, NEIGHBOUR_TOKENS, connection)
                        await asyncio.sleep(NEIGHBOUR_SECONDS)
                        self.asked += 1
                finally:
                    connection.close()
            except (OSError, EOFError, RuntimeError, ValueError) as error:
                self.failures.append(f"{lane.url} {error!r}")


@dataclass
class Bench:
    """The places and who works there."""

    door: Lane
    replica: Lane
    plain: Lane
    trainer: Trainer
    worker: Worker
    times: dict[str, list[float]] = field(default_factory=dict)

    async def open(self) -> None:
        """Connect to every place, once, as a client with a connection pool."""
        self._at_door, self._at_replica, self._at_plain = Connection(), Direct(), Direct()
        await self._at_door.open(self.door)
        await self._at_replica.open(self.replica)
        await self._at_plain.open(self.plain)

    def note(self, name: str, seconds: float) -> None:
        """Keep a time, in milliseconds."""
        self.times.setdefault(name, []).append(seconds * 1000)

    async def direct(self, name: str) -> None:
        """Load at the plain vLLM and ask."""
        stored = self.trainer.make(name)
        began = time.perf_counter()
        await self.load(self._at_plain, stored)
        first, _, _ = await stream(replace(self.plain, model=stored.adapter_id), 1, self._at_plain)
        self.note("direct", time.perf_counter() - began if first else 0.0)

    async def load(self, connection: Direct, stored: Stored) -> None:
        """vLLM's own way of loading an adapter."""
        body = {"lora_name": stored.adapter_id, "lora_path": str(stored.folder)}
        await connection.call(self.plain, "POST", "/v1/load_lora_adapter", json.dumps(body).encode())

    async def published(self, name: str) -> None:
        """Finish a job whose adapter no replica has seen, and ask at the door."""
        await self._finish_and_ask("door", name, self.trainer.make(name))

    async def certified(self, name: str) -> None:
        """The same after the replica was asked to verify the adapter, and for a token of it."""
        stored = self.trainer.make(name)
        began = time.perf_counter()
        await self._at_replica.call(self.replica, "GET", f"/mens/adapters/{stored.adapter_id}")
        self.note("replica verifies", time.perf_counter() - began)
        first, _, _ = await stream(replace(self.replica, model=stored.adapter_id), 1, self._at_replica)
        self.note("replica loads", first)
        await self._finish_and_ask("certified", name, stored)

    async def _finish_and_ask(self, lane: str, name: str, stored: Stored) -> None:
        lease = await asyncio.to_thread(self.worker.begin, name)
        done, took = await asyncio.to_thread(self.worker.finish, lease, stored, ALIAS)
        asked = time.perf_counter()
        first, _, _ = await stream(replace(self.door, model=stored.adapter_id), 1, self._at_door)
        self.note(lane, asked - done + first)
        self.note("transaction", took)
        self.note("alias", await self._alias_known(stored) - done)

    async def _alias_known(self, stored: Stored) -> float:
        """When the alias, which pointed to another adapter before, was first answered by this one."""
        deadline = time.perf_counter() + KNOWN_SECONDS
        body = json.dumps({"model": ALIAS, "prompt": "Mens", "max_tokens": 1, "stream": True}).encode()
        while time.perf_counter() < deadline:
            answer = b"".join([chunk async for chunk in self._at_door.post(self.door, "/v1/completions", body)])
            if stored.adapter_id.encode() in answer:
                return time.perf_counter()
        raise RuntimeError(f"{ALIAS} still does not mean {stored.adapter_id}")


async def measure(bench: Bench, adapters: int) -> Neighbours:
    """All lanes in turns, with neighbours asking meanwhile."""
    await bench.open()
    neighbours = Neighbours()
    tasks = [asyncio.create_task(neighbours.keep_asking(lane)) for lane in await neighbouring_lanes(bench)]
    lanes = [bench.direct, bench.published, bench.certified]
    for number in range(adapters + WARM_UP):
        if number == WARM_UP:
            bench.times.clear()
        for at in range(len(lanes)):
            await lanes[(at + number) % len(lanes)](f"new-{number}-{at}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return neighbours


async def neighbouring_lanes(bench: Bench) -> list[Lane]:
    """Other adapters, published, known to the front door and loaded at the plain vLLM."""
    connection = Direct()
    await connection.open(bench.plain)
    lanes = []
    for number in range(NEIGHBOURS):
        stored = bench.trainer.make(f"neighbour-{number}")
        bench.worker.finish(bench.worker.begin("neighbour"), stored, f"neighbour-{number}")
        await bench.load(connection, stored)
        lanes += [replace(lane, model=stored.adapter_id) for lane in (bench.door, bench.plain)]
    connection.close()
    return lanes


ROWS = {
    "direct": "direct: load and ask",
    "door": "door: job finished, ask",
    "certified": "door, certified before",
    "transaction": "  job's last transaction",
    "replica verifies": "  replica fetches and verifies",
    "replica loads": "  replica loads and answers",
    "alias": "  moved alias means the new one",
}


def report(times: dict[str, list[float]], neighbours: Neighbours, size: int) -> bool:
    """Print the table and the goal's JSON line."""
    print(f"{'milliseconds':<34}{'p50':>8}{'p95':>8}{'p99':>8}   load {os.getloadavg()[0]:.1f}")
    for name, title in ROWS.items():
        print(f"{title:<34}" + "".join(f"{percentile(times[name], at):>8.1f}" for at in (50, 95, 99)))
    for failure in neighbours.failures[:5]:
        print(f"failed: {failure}")
    ratio = share(times, "door", 95)
    passed = ratio <= MAX_SHARE_MS and not neighbours.failures
    facts = figures(times) | {"adapters": len(times["door"]), "adapter_bytes": size}
    others = {"others_asked": neighbours.asked, "others_failed": len(neighbours.failures)}
    print(json.dumps({"goal": "C6", "ratio": ratio, "target": MAX_SHARE_MS, **facts, **others, "pass": passed}))
    return passed


def share(times: dict[str, list[float]], lane: str, at: int) -> float:
    """Our own share of a percentile (ms): what a lane takes more than the plain vLLM."""
    return round(percentile(times[lane], at) - percentile(times["direct"], at), 1)


def figures(times: dict[str, list[float]]) -> dict[str, float]:
    """What the JSON line says beside the goal's number, in milliseconds."""
    pairs = zip(times["door"], times["direct"], strict=True)
    return {
        "share_ms_p50": share(times, "door", 50),
        "share_ms_p99": share(times, "door", 99),
        "paired_share_ms_p50": round(statistics.median(door - direct for door, direct in pairs), 1),
        "certified_share_ms_p95": share(times, "certified", 95),
        "alias_known_ms_p95": round(percentile(times["alias"], 95), 1),
    }


@contextmanager
def running(rank: int) -> Iterator[Bench]:
    """Everything, started."""
    room = ROOM | {"serving_max_lora_rank": rank}
    with (
        tempfile.TemporaryDirectory() as folder,
        installation(Path(folder), room) as stack,
        plain_vllm(stack, room) as plain,
    ):
        settings = Settings(home=Path(folder))
        key, urls = stack.settings["MENS_SERVING_KEY"], stack.settings["MENS_SERVING_URLS"]
        worker = Worker(settings)
        door = Lane(stack.connection.url, stack.connection.key, ALIAS)
        yield Bench(door, Lane(urls, key, ""), Lane(plain, key, ""), Trainer(settings, rank), worker)
        worker.close()


def main() -> int:
    """Entry point; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", type=int, default=100, help="for each lane; 3 is a quick look")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters, 1 to 512: their size")
    options = parser.parse_args()
    with running(options.rank) as bench:
        size = bench.trainer.make("measured").bytes
        neighbours = asyncio.run(measure(bench, options.adapters))
        return 0 if report(bench.times, neighbours, size) else 1


if __name__ == "__main__":
    sys.exit(main())
