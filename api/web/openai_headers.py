"""OpenAI's headers: ``openai-version`` and ``openai-processing-ms`` on all answers of its routes, even refusals."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import OPENAI_PATHS

OPENAI_VERSION = b"2020-10-01"
"""The version of OpenAI's API that its own responses name."""


class OpenAIHeaders:
    """Middleware that adds OpenAI's headers; the time is until the answer began."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond."""
        if scope["type"] != "http" or not scope["path"].startswith(OPENAI_PATHS):
            return await self._app(scope, receive, send)
        started = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                milliseconds = f"{(time.perf_counter() - started) * 1000:.0f}".encode()
                own = [(b"openai-version", OPENAI_VERSION), (b"openai-processing-ms", milliseconds)]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        return await self._app(scope, receive, send_with_headers)
