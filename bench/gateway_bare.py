"""The floor under the front door: a proxy of the same server and client that does nothing but pass bytes.

python -m bench.gateway_bare PORT URL
"""

from __future__ import annotations

import sys
from typing import Any

import aiohttp

PASSED = (b"authorization", b"content-type")


class BareProxy:
    """Passes every POST to one replica, and what comes back to its caller. Anything else is answered empty."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        await self._pass_on(scope, body + message["body"], send)

    async def _pass_on(self, scope: Any, body: bytes, send: Any) -> None:
        self._session = self._session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name in PASSED}
        async with self._session.post(self._url + scope["path"], data=body, headers=headers) as answer:
            content_type = answer.headers["content-type"].encode()
            await send(
                {"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", content_type)]}
            )
            while chunk := await answer.content.readany():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Entry point."""
    import uvicorn

    port, url = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(BareProxy(url), port=port, log_level="error", lifespan="off", access_log=False)


if __name__ == "__main__":
    main()
