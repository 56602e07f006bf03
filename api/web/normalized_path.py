"""Paths and methods as routes know them: a trailing slash is removed; HEAD is answered like GET, without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class NormalizedPath:
    """Middleware that strips a trailing slash from the path, and answers HEAD as GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path: str = scope["path"]
        given = scope
        if path.endswith("/") and path != "/":
            scope = {**scope, "path": path.rstrip("/") or "/"}
        try:
            await self._respond(scope, receive, send)
        finally:  # the access log, outside, names the route
            given["route"] = scope.get("route")

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        is_sent = False

        async def send_head(message: Message) -> None:
            nonlocal is_sent
            if message["type"] == "http.response.start":
                await send(message)
            elif not is_sent:  # an endless body ends here too, because its client counts as gone then
                is_sent = True
                await send({"type": "http.response.body", "body": b""})

        async def receive_until_sent() -> Message:
            return {"type": "http.disconnect"} if is_sent else await receive()

        asked = {**scope, "method": "GET"}
        try:
            return await self._app(asked, receive_until_sent, send_head)
        finally:
            scope["route"] = asked.get("route")
