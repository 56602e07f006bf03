"""``x-ratelimit-…``: the state of a key's limits on every answer of a model route, including refusals."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.inference.gateway import LIMIT_HEADERS
from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.services import Services
from api.web.request_body import MODEL_PATHS
from shared.errors import TooMany


class LimitHeaders:
    """Middleware that adds rate limit headers. Requests refused before they were counted, such as too large a body, are
    counted here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in MODEL_PATHS:
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                present = {name for name, _ in headers}
                own = [(name.encode(), value.encode()) for name, value in (await _limits(scope)).items()]
                message["headers"] = headers + [header for header in own if header[0] not in present]
            await send(message)

        return await self._app(scope, receive, send_with_headers)


async def _limits(scope: Scope) -> Mapping[str, str]:
    """Return the headers of a request whose key is known; none for others."""
    authenticated: Authenticated | None = scope.get(AUTHENTICATED)
    state = scope.setdefault("state", {})
    if authenticated is not None and LIMIT_HEADERS not in state:
        services: Services = scope["app"].state.services
        try:
            await (await services.gateway.admit(Request(scope), authenticated.key)).release()
        except TooMany:  # the request already has its answer
            pass
    return {name: value for name, value in state.get(LIMIT_HEADERS, {}).items() if name.startswith("x-ratelimit-")}
