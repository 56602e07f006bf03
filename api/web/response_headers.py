"""Headers that a response gets on its way out: the request's id, OpenAI's, and the state of the key's limits."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import Scope

from api.errors import OPENAI_PATHS
from api.inference.gateway import LIMIT_HEADERS
from api.inference.lookup_cache import AUTHENTICATED, Authenticated
from api.services import Services
from api.web.request_body import MODEL_PATHS
from shared.errors import TooMany

ID_HEADER = b"x-request-id"
OWN_API = "/v1/"
FOR_BROWSERS: list[tuple[bytes, bytes]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
]
"""Headers of every answer of the API, so that a browser that opens an uploaded file does not run code in it."""
OPENAI_VERSION = b"2020-10-01"
"""The version of OpenAI's API that its own responses name."""

Headers = list[tuple[bytes, bytes]]


async def with_own_headers(headers: Headers, scope: Scope, request_id: bytes, started: float) -> Headers:
    """Return a response's headers with Mens's own: ``x-ratelimit-…`` on model routes, ``openai-version`` and
    ``openai-processing-ms`` on OpenAI's routes, the headers for browsers under ``/v1/``, and ``x-request-id``.

    Args:
        headers: the route's headers.
        scope: the request as routes see it.
        request_id: the id of the request, which replaces an id that the route has set.
        started: when the request began, by ``time.perf_counter``; OpenAI's time is until the response begins.
    """
    own = [pair for pair in headers if pair[0] != ID_HEADER]
    path: str = scope["path"]
    if scope["method"] == "POST" and path in MODEL_PATHS:
        present = {name for name, _ in headers}
        limits = [(name.encode(), value.encode()) for name, value in (await _limits(scope)).items()]
        own += [pair for pair in limits if pair[0] not in present]
    if path.startswith(OPENAI_PATHS):
        milliseconds = f"{(time.perf_counter() - started) * 1000:.0f}".encode()
        own += [(b"openai-version", OPENAI_VERSION), (b"openai-processing-ms", milliseconds)]
    if path.startswith(OWN_API):
        own += FOR_BROWSERS
    own.append((ID_HEADER, request_id))
    return own


async def _limits(scope: Scope) -> Mapping[str, str]:
    """Return the rate limit headers of a request whose key is known; none for others.

    Requests refused before they were counted, such as too large a body, are counted here.
    """
    authenticated: Authenticated | None = scope.get(AUTHENTICATED)
    state = scope["state"]
    if authenticated is not None and LIMIT_HEADERS not in state:
        services: Services = scope["app"].state.services
        try:
            await (await services.gateway.admit(Request(scope), authenticated.key)).release()
        except TooMany:  # the request already has its answer
            pass
    return {name: value for name, value in state.get(LIMIT_HEADERS, {}).items() if name.startswith("x-ratelimit-")}


def accepts_gzip(value: str) -> bool:
    """Return whether a value of Accept-Encoding permits gzip: it is listed, and not with the quality 0."""
    codings = (coding.partition(";") for coding in value.lower().split(","))
    qualities = {name.strip(): parameters.replace(" ", "") for name, _, parameters in codings}
    return "gzip" in qualities and not re.fullmatch(r"q=0(\.0*)?", qualities["gzip"])
