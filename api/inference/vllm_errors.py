"""Converts a replica's error response into the API's error shape: vLLM's message, field and status, with a stable code.

An error that the caller's request did not cause must not look like the caller's fault: if the replica refuses the key,
this installation's key is wrong; if it does not find an adapter, the adapter is damaged, because only published
adapters are requested. `api/inference/vllm_messages.py` parses vLLM's messages in Python notation into fields and
reasons.
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from api.errors import UpstreamError
from api.inference.event_stream import DATA, ERROR_EVENT, EVENT_END
from api.inference.replicas.client import ReplicaDisconnected, ReplicaResponse
from api.inference.request_fields.grammars import grammars
from api.inference.vllm_messages import FIRST_WORD, PROMPT, ClientError, explain
from shared.errors import Code, MensError, Unavailable

MAX_CHARS = 2000
"""Characters of a replica's message that are read and passed on: vLLM repeats the caller's input in it, however long
that is."""
UNANSWERABLE = "Internal server error"
"""vLLM's whole message, with status 500, when it cannot choose a token: a grammar such as ``root ::= root`` allows
none, or a grammar has taken too much time (`serving/grammars/vllm_patch.py`).
"""
logger = logging.getLogger(__name__)


async def error_from_replica(response: ReplicaResponse, body: dict[str, Any], served: str) -> MensError:
    """Return the error for a replica's error response. The response is read and closed.

    Args:
        response: the replica's response.
        body: the request as the caller wrote it.
        served: the replica's name for the model.

    Returns:
        ``REQUEST_REJECTED``, ``CONTEXT_LENGTH_EXCEEDED``, ``SERVING_FAILED``, ``TASK_UNSUPPORTED``, ``SERVING_REFUSED`` or
        ``SERVING_UNAVAILABLE``.
    """
    try:
        error = _error_object(b"".join([chunk async for chunk in response]))
    except ReplicaDisconnected:
        error = {}
    finally:
        response.close()
    status, code, model = response.status, error.get("code"), body["model"]
    # A stream whose first event is an error began with 200: its status is then the event's code.
    if status < HTTPStatus.BAD_REQUEST:
        status = code if isinstance(code, int) and 400 <= code < 600 else HTTPStatus.INTERNAL_SERVER_ERROR
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Unavailable(
            Code.SERVING_UNAVAILABLE,
            "The serving replica does not accept the API's key.",
            remedy="Give both tiers the same MENS_SERVING_KEY.",
            retryable=False,
        )
    if status != HTTPStatus.NOT_FOUND:
        return _passed_on(status, error, body)
    # vLLM has only the routes for its model's tasks; the guard in front of it responds in the same way.
    if error.get("detail") == "Not Found" or code == Code.ROUTE_NOT_FOUND:
        return UpstreamError(
            Code.TASK_UNSUPPORTED,
            f"{model!r} cannot do this: its base generates text, and the serving tier does not have this route for it.",
            remedy="Choose a model that supports it, or send a chat completion.",
            param="model",
            status=HTTPStatus.BAD_REQUEST,
        )
    return Unavailable(
        Code.SERVING_REFUSED,
        f"The serving tier refuses to load {model!r} ({served}).",
        remedy="Its files may be damaged; the serving replica's log contains the error code.",
        retryable=False,
    )


def _error_object(content: bytes) -> dict[str, Any]:
    """Return the error object of a body, or of a stream's first event; empty if it has none."""
    if content.startswith(ERROR_EVENT):
        content = content.removeprefix(DATA).partition(EVENT_END)[0]
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    error = body.get("error", body) if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _passed_on(status: int, error: dict[str, Any], body: dict[str, Any]) -> UpstreamError:
    """Return vLLM's own error, explained; unchanged if its message has an unknown form."""
    if error.get("message") == UNANSWERABLE and (field := next(grammars(body), None)):
        return UpstreamError(
            Code.REQUEST_REJECTED,
            "The request's schema or grammar accepts no answer, or is so ambiguous that parsing takes too long.",
            remedy="Look for a rule or a `$ref` that refers only to itself, or for repetitions of an element that may be empty.",
            status=HTTPStatus.BAD_REQUEST,
            param=field[0],
        )
    failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    text = str(error.get("message") or f"The serving replica answered with status {status}.")
    text = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + " …"
    param = error["param"].removeprefix("body.") if isinstance(error.get("param"), str) else None
    try:
        explained = explain(text, param, body)
    except Exception:
        # A replica of another release may shape its errors in any way; its words still reach the caller.
        logger.exception("a replica's error message was not understood")
        explained = ClientError(text, param, {})
    return UpstreamError(
        Code.SERVING_FAILED if failed else explained.code,
        explained.message,
        remedy=explained.remedy or _default_remedy(explained.param, failed=failed),
        status=status,
        param=explained.param,
        details=explained.details,
        retryable=failed and status != HTTPStatus.NOT_IMPLEMENTED,
    )


def _default_remedy(param: str | None, *, failed: bool) -> str:
    """Return the remedy for an error for which only the field is known."""
    if failed:
        return "Try again; if it fails again, read the serving replica's log."
    if not param:
        return "Correct the request; docs/openai.md lists the supported fields."
    # A request needs its prompt, so the remedy must not suggest leaving it out.
    is_prompt = any(name in PROMPT for name in FIRST_WORD.findall(param))
    return f"Correct `{param}`." if is_prompt else f"Correct `{param}`, or leave it out."
