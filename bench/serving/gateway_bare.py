"""A proxy that only passes bytes on: the minimum that a gateway in Python adds to a request.

python -m bench.serving.gateway_bare PORT URL
"""

from __future__ import annotations

import sys
from typing import Any

import aiohttp

PASSED = (b"authorization", b"content-type")


class BareProxy:
    """Forwards every POST to one replica and the response to the caller. Other requests get an empty response."""

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
        body += message["body"]
        self._session = self._session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name in PASSED}
        async with self._session.post(self._url + scope["path"], data=body, headers=headers) as response:
            content_type = (b"content-type", response.headers["content-type"].encode())
            await send({"type": "http.response.start", "status": response.status, "headers": [content_type]})
            while chunk := await response.content.readany():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Entry point."""
    import uvicorn

    port, url = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(BareProxy(url), port=port, log_level="error", lifespan="off", access_log=False)


if __name__ == "__main__":
    main()
