"""Unexpected errors: an unhandled exception becomes a response like any other, with its headers and its line in the
log.

Starlette's own handler is outside every middleware, so its responses have no request id, and the access log does not
see them.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response_at, unexpected_error


class UnexpectedErrors:
    """Middleware that answers 500 if the application fails before it has begun to answer; later, the connection is
    closed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception as error:
            if has_begun:
                raise
            known = unexpected_error(scope["method"], scope["path"], error)
            await error_response_at(scope["path"], known)(scope, receive, send)
