"""The chat proxy: resolves a model name to what a replica serves, and passes bytes both ways without holding a stream.

A client that goes away cancels its request at the replica. A replica that cannot be reached is passed over for the next.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from api.services import Services
from shared.errors import Code, InvalidRequest, NotFound, TooLarge, Unavailable

CLIENT_GONE = 499
"""Status in the log for a caller that left; nobody receives it."""
PASSED_HEADERS = ("content-type", "x-request-id", "retry-after")

logger = logging.getLogger(__name__)


async def proxy(services: Services, request: Request, path: str) -> Response:
    """Answer a chat or completion request from a serving replica.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``. TooLarge: ``BODY_TOO_LARGE``. NotFound: ``MODEL_NOT_FOUND``.
        Unavailable: ``SERVING_UNAVAILABLE``.
    """
    try:
        body = await read_body(request, services.settings.max_body_bytes)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    model, served = body.get("model"), await run_in_threadpool(resolve_model, services, body.get("model"))
    content = json.dumps({**body, "model": served}).encode()
    upstream = await _unless_gone(request, _send(services, path, content, served))
    if upstream is None:
        return Response(status_code=CLIENT_GONE)
    if upstream.status_code == 404:
        await upstream.aclose()
        raise Unavailable(
            Code.SERVING_REFUSED,
            f"The serving tier refuses to load {model!r} ({served}).",
            remedy="Its files may be damaged; the serving replica's log has the reason's code.",
            retryable=False,
        )
    return _streamed(upstream)


async def read_body(request: Request, limit: int) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        TooLarge: ``BODY_TOO_LARGE``. InvalidRequest: ``REQUEST_INVALID``: not a JSON object.
    """
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > limit:
            raise TooLarge(Code.BODY_TOO_LARGE, f"The request body is larger than {limit} bytes.")
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise InvalidRequest(Code.REQUEST_INVALID, f"The request body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InvalidRequest(Code.REQUEST_INVALID, "The request body is not a JSON object.")
    return body


def resolve_model(services: Services, model: object) -> str:
    """What the serving tier calls a model: a base by its name, an adapter or alias by the adapter's immutable id.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``. InvalidRequest: ``REQUEST_INVALID``: no name.
    """
    if not isinstance(model, str) or not model:
        raise InvalidRequest(Code.REQUEST_INVALID, "`model` must be a name.", param="model")
    if any(base.name == model for base in services.catalog().bases):
        return model
    try:
        adapter = services.registry.adapter(model)
    except NotFound:
        adapter = None
    if adapter is None or not adapter.published:
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"There is no model {model!r}.",
            remedy="List what there is with GET /v1/models.",
            param="model",
        )
    return adapter.id


def replicas_for(urls: list[str], served: str) -> list[str]:
    """Replicas by rendezvous hashing: the same model goes to the same replica first, so its adapter stays warm."""
    return sorted(urls, key=lambda url: hashlib.sha256(f"{url} {served}".encode()).digest())


async def _send(services: Services, path: str, content: bytes, served: str) -> httpx.Response:
    """The first answer of a replica that can be reached, its body still unread."""
    reason = "none is configured"
    for url in replicas_for(services.settings.serving_urls, served):
        request = services.upstream.build_request(
            "POST", url.rstrip("/") + path, content=content, headers={"Content-Type": "application/json"}
        )
        try:
            return await services.upstream.send(request, stream=True)
        except httpx.TransportError as error:
            reason = f"{url}: {error or type(error).__name__}"
            logger.warning("replica passed over: %s", reason)
    raise Unavailable(
        Code.SERVING_UNAVAILABLE,
        f"No serving replica answers ({reason}).",
        remedy="Try again shortly; if it stays so, look at the serving tier.",
    )


async def _unless_gone(request: Request, answer: Any) -> httpx.Response | None:
    """Await the replica's answer, or give it up when the client disconnects first."""
    result: httpx.Response | None = None

    async def wait_for_answer() -> None:
        nonlocal result
        result = await answer
        group.cancel_scope.cancel()

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_disconnect)
            group.start_soon(wait_for_answer)
    except ExceptionGroup as errors:  # the group wraps what _send raises
        raise errors.exceptions[0] from None
    return result


def _streamed(upstream: httpx.Response) -> StreamingResponse:
    headers = {name: upstream.headers[name] for name in PASSED_HEADERS if name in upstream.headers}
    return StreamingResponse(_body(upstream), upstream.status_code, headers)


async def _body(upstream: httpx.Response) -> AsyncIterator[bytes]:
    """The replica's bytes as they come; leaving this generator early closes the connection, which stops the engine."""
    try:
        async for chunk in upstream.aiter_raw():
            yield chunk
    finally:
        with anyio.CancelScope(shield=True):
            await upstream.aclose()
