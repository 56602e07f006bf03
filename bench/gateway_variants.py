"""The installation that ``python -m bench.gateway`` measures: a replica that only paces, and the API in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.loopback import free_port, wait

ROOT = Path(__file__).resolve().parents[1]
BASE, ADAPTER, ALIAS = "fake-base", f"helper@{'a' * 64}", "helper"
START_SECONDS = 30.0


class FakeReplica:
    """Streams ``max_tokens`` events in vLLM's shape, ``pace`` seconds apart, and does nothing else.

    Args:
        pace: seconds between two tokens of one stream.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        content = b"text/event-stream" if scope["method"] == "POST" else b"text/plain"
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content)]})
        if body:
            await self._stream(json.loads(body), send)
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, asked: dict[str, Any], send: Any) -> None:
        choice = {"index": 0, "text": " token", "logprobs": None, "finish_reason": None}
        event = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": asked["model"],
            "choices": [choice],
        }
        chunk = b"data: " + json.dumps(event).encode() + b"\n\n"
        due = time.perf_counter()
        for index in range(asked["max_tokens"]):
            if index:
                due += self._pace
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})


class FakeInstallation:
    """A fake replica and the API as processes, with a published adapter and an alias for it.

    Args:
        home: an empty folder.
        pace: see :class:`FakeReplica`.
    """

    def __init__(self, home: Path, pace: float) -> None:
        self.adapter, self.alias = ADAPTER, ALIAS
        self._ports = [free_port(), free_port()]
        self.replica_url, self.door_url = (f"http://127.0.0.1:{port}" for port in self._ports)
        self._home, self._pace = home, pace
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> FakeInstallation:
        self.key = self._prepare()
        replica, door = map(str, self._ports)
        settings = {"MENS_HOME": str(self._home), "MENS_API_PORT": door, "MENS_SERVING_URLS": self.replica_url}
        for command in (["bench.gateway_lanes", replica, str(self._pace)], ["api"]):
            self._processes.append(_start(*command, **settings))
        wait(f"{self.replica_url}/health", START_SECONDS)
        wait(f"{self.door_url}/ready", START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(20)

    def _prepare(self) -> str:
        """Database and catalogue; the secret of a key."""
        from api.migrate import migrate
        from shared.catalog import BaseModelEntry, Catalog, LocalSource, save_catalog
        from shared.db import Database
        from shared.job import Kind, Submission
        from shared.keys import Keys
        from shared.lease import LeaseLedger
        from shared.ledger import Ledger
        from shared.registry import NewAdapter
        from shared.settings import Settings

        settings = Settings(home=self._home)
        entry = BaseModelEntry(name=BASE, source=LocalSource(path=str(self._home)), digests={"config.json": "0" * 64})
        save_catalog(settings.catalog_path, Catalog(bases=[entry]))
        migrate(settings.database_url)
        database = Database(settings.database_url)
        asked = Submission(kind=Kind.FINETUNE, base_model=BASE, name=ALIAS, contract={}, plan={})
        leases = LeaseLedger(database, 60)
        lease = leases.claim(Ledger(database).submit(asked)[0].id, "bench")
        assert lease
        digest = ADAPTER.partition("@")[2]
        adapter = NewAdapter(
            id=ADAPTER, digest=digest, base_model=BASE, step=1, final=True, published=True, manifest={}
        )
        leases.finish(lease, {}, adapters=[adapter], alias=ALIAS)
        secret = Keys(database).create("bench")[1]
        database.close()
        return secret


@contextmanager
def bare_proxy(replica_url: str) -> Iterator[str]:
    """URL of a proxy in front of a replica that does nothing else."""
    port = free_port()
    process = _start("bench.gateway_bare", str(port), replica_url)
    try:
        wait(f"http://127.0.0.1:{port}/health", START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _start(*module: str, **settings: str) -> subprocess.Popen[bytes]:
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", *module], env={**os.environ, **settings}, cwd=ROOT, **quiet)


def main() -> None:
    """``python -m bench.gateway_lanes PORT PACE``: the fake replica."""
    import uvicorn

    port, pace = int(sys.argv[1]), float(sys.argv[2])
    uvicorn.run(FakeReplica(pace), port=port, log_level="error", lifespan="off", access_log=False)


if __name__ == "__main__":
    main()
