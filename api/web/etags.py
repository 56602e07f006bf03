"""ETags: answers a repeated GET with 304 and no body if the JSON is the same as before.

A route that knows whether anything has changed sets the ETag itself (`api/routes/jobs.py`); for all others it is the
digest of the body. So every list can be polled with If-None-Match.
"""

from __future__ import annotations

import hashlib
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

JSON = "application/json"
OF_THE_BODY = ("content-length", "content-type")
"""Headers that are left out of a response without a body."""


def with_etags(scope: Scope, send: Send) -> Send:
    """Return the function that sends the response to a GET: it adds the ETag, and compares it with the ETags that the
    caller has.
    """
    known_etags, held = Headers(scope=scope).get("if-none-match", ""), list[Message]()

    async def send_tagged(message: Message) -> None:
        if message["type"] == "http.response.start" and _is_whole_json(message):
            held.append(message)  # the start is held back until the body is known
            return
        if held:
            start = held.pop()
            if not message.get("more_body"):
                message = _tagged(start, message, known_etags)
            await send(start)
        await send(message)

    return send_tagged


def is_known(etag: str, known_etags: str) -> bool:
    """Return whether an ETag is among those of a value of If-None-Match; a weak ETag equals a strong one with the same
    value.
    """
    return known_etags == "*" or etag.removeprefix("W/") in (
        tag.strip().removeprefix("W/") for tag in known_etags.split(",")
    )


def _is_whole_json(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == HTTPStatus.OK and headers.get("content-type") == JSON and "content-length" in headers


def _tagged(start: Message, message: Message, known_etags: str) -> Message:
    """Add the ETag to a response's start; return its only body, or an empty one if the caller knows it."""
    headers = MutableHeaders(raw=list(start["headers"]))
    digest = hashlib.blake2b(message.get("body", b""), digest_size=16)
    etag = headers.setdefault("etag", f'W/"{digest.hexdigest()}"')
    if is_known(etag, known_etags):
        start["status"] = int(HTTPStatus.NOT_MODIFIED)
        for name in OF_THE_BODY:
            del headers[name]
        message = {**message, "body": b""}
    start["headers"] = headers.raw
    return message
