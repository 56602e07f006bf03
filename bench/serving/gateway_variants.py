"""Variants of ``python -m bench.gateway``: a fake replica, the API in front of it, and the bare proxy.

python -m bench.serving.gateway_variants PORT PACE    the fake replica
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.harness.loopback import free_port, server

BASE, ADAPTER, ALIAS = "fake-base", f"helper@{'a' * 64}", "helper"
FOREIGN_NAME = "ft:gpt-4o-mini-2024-07-18:acme:helper:{number:08}"
START_SECONDS = 180.0


class FakeReplica:
    """Streams ``max_tokens`` events in vLLM's shape, ``pace`` seconds apart, and does nothing else.

    A chat that is not streamed is answered after ``pace`` seconds with its last message.

    Args:
        pace: seconds between two tokens of one stream, or for a whole chat.
    """

    def __init__(self, pace: float) -> None:
        self._pace = pace

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = json.loads(body) if body else {}
        if "messages" in request and not request.get("stream"):
            await self._answer(request, send)
            return
        content = b"text/event-stream" if body else b"text/plain"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content)]})
        if body:
            await self._stream(request, send)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, request: dict[str, Any], send: Any) -> None:
        message = {"role": "assistant", "content": request["messages"][-1]["content"]}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 8, "total_tokens": 12, "completion_tokens": 4},
        }
        await asyncio.sleep(self._pace)
        content_type = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": 200, "headers": [content_type]})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _stream(self, request: dict[str, Any], send: Any) -> None:
        choice = {"index": 0, "text": " token", "logprobs": None, "finish_reason": None}
        event = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": request["model"],
            "choices": [choice],
        }
        chunk = b"data: " + json.dumps(event).encode() + b"\n\n"
        due = time.perf_counter()
        for index in range(request["max_tokens"]):
            if index:
                # By the clock: sleeping for the pace each time would accumulate the excess of every sleep.
                due += self._pace
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})


class FakeInstallation:
    """A fake replica and the API as processes, with a published adapter and an alias for it.

    Args:
        home: an empty folder.
        pace: see :class:`FakeReplica`.
        foreign_names: number of another provider's model names that stand for the alias.
        settings: further settings of the API.
    """

    def __init__(
        self, home: Path, pace: float, foreign_names: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.adapter, self.alias = ADAPTER, ALIAS
        self.foreign_name = FOREIGN_NAME.format(number=foreign_names - 1)
        self.home, self._pace, self._foreign_names = home, pace, foreign_names
        self._settings, self._servers = settings or {}, ExitStack()

    def __enter__(self) -> FakeInstallation:
        self.key = self._prepare()
        replica, api = free_port(), free_port()
        self.replica_url, self.api_url = (f"http://127.0.0.1:{port}" for port in (replica, api))
        settings = {
            "MENS_HOME": str(self.home),
            "MENS_API_PORT": str(api),
            "MENS_SERVING_URLS": self.replica_url,
            **self._settings,
        }
        fake = ["-m", "bench.serving.gateway_variants", str(replica), str(self._pace)]
        with ExitStack() as servers:
            servers.enter_context(server(fake, f"{self.replica_url}/health", START_SECONDS, settings))
            servers.enter_context(server(["-m", "api"], f"{self.api_url}/ready", START_SECONDS, settings))
            self._servers = servers.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def _prepare(self) -> str:
        """Create database and catalogue; return the secret of a key."""
        from api.migrate import migrate
        from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, save_catalog
        from shared.database.adapters import NewAdapter
        from shared.database.callers.keys import Keys
        from shared.database.connection import Database
        from shared.database.jobs import Jobs
        from shared.database.leases import Leases
        from shared.database.names.aliases import Actor
        from shared.database.names.foreign_names import ForeignNames
        from shared.database.records import Kind, Submission
        from shared.database.routing import StandsFor
        from shared.settings import Settings

        settings = Settings(home=self.home)
        entry = BaseModelEntry(name=BASE, source=LocalSource(path=str(self.home)), digests={"config.json": "0" * 64})
        save_catalog(settings.catalog_path, Catalog(bases=[entry]))
        migrate(settings.database_url)
        database = Database(settings.database_url)
        submission = Submission(kind=Kind.FINETUNE, base_model=BASE, name=ALIAS, contract={}, plan={})
        leases = Leases(database, 60)
        lease = leases.claim(Jobs(database).submit(submission)[0].id, "bench")
        assert lease
        digest = ADAPTER.partition("@")[2]
        adapter = NewAdapter(
            id=ADAPTER, digest=digest, base_model=BASE, step=1, final=True, published=True, manifest={}
        )
        leases.finish(lease, {}, adapters=[adapter], alias=ALIAS)
        secret = Keys(database).create("bench")[1]
        names = ForeignNames(database)
        for number in range(self._foreign_names):
            names.set(
                FOREIGN_NAME.format(number=number),
                StandsFor(kind="alias", name=ALIAS),
                Actor(id="bench", name="bench"),
                bases=[BASE],
            )
        database.close()
        return secret


@contextmanager
def bare_proxy(replica_url: str) -> Iterator[str]:
    """Yield the URL of a proxy in front of a replica that only passes bytes on."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(["-m", "bench.serving.gateway_bare", str(port), replica_url], f"{url}/health", START_SECONDS, {}):
        yield url


def main() -> None:
    """Entry point: the fake replica."""
    import uvicorn

    port, pace = int(sys.argv[1]), float(sys.argv[2])
    uvicorn.run(FakeReplica(pace), port=port, log_level="error", lifespan="off", access_log=False)


if __name__ == "__main__":
    main()
