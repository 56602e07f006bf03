"""A replica's own refusals in the one error shape: vLLM's message, parameter and status, with a code that stays.

What is no fault of the caller's request does not look like one: a key that the replica does not take is ours, and an
adapter that it does not find is damaged, for it is asked for published ones only. What vLLM's validation says in Python's
notation is told as fields and reasons (`api/engine_faults.py`, `api/engine_fields.py`).
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from api.engine_faults import Told, in_words
from api.replica_client import ERROR_EVENT, Begun, BrokenOff
from shared.errors import Code, MensError, Unavailable

MAX_CHARS = 2000
"""What is read and passed on of a replica's message: vLLM repeats in it what the caller wrote, however long that is."""
KEY_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


logger = logging.getLogger(__name__)


class Rejection(MensError):
    """What a replica answered instead of an answer; ``status`` is the replica's."""

    def __init__(self, code: Code, message: str, *, status: int, **more: Any) -> None:
        super().__init__(code, message, **more)
        self.status = status


async def rejection(begun: Begun, asked: dict[str, Any], served: str) -> MensError:
    """The error for a replica's answer that is one. The answer is read and closed.

    Args:
        begun: the replica's answer.
        asked: the request as the caller wrote it.
        served: what the replica was asked for.

    Returns:
        ``REQUEST_REJECTED``, ``CONTEXT_LENGTH_EXCEEDED``, ``SERVING_FAILED``, ``TASK_UNSUPPORTED``, ``SERVING_REFUSED`` or
        ``SERVING_UNAVAILABLE``.
    """
    try:
        said = _said(b"".join([chunk async for chunk in begun]))
    except BrokenOff:
        said = {}
    finally:
        begun.close()
    status = begun.status if begun.status >= HTTPStatus.BAD_REQUEST else _status_within(said)
    if status in KEY_STATUSES:
        return _key_refused()
    if status == HTTPStatus.NOT_FOUND:
        return _task_unsupported(asked["model"]) if _has_no_route(said) else _adapter_refused(asked["model"], served)
    return _passed_on(status, said, asked)


def broken_off() -> Unavailable:
    """What a caller is told whose answer had begun when the replica broke off."""
    return Unavailable(
        Code.SERVING_FAILED, "The serving replica broke off in the middle of the answer.", remedy="Ask again."
    )


def _said(content: bytes) -> dict[str, Any]:
    """The error object of a body, or of a stream's first event; empty when there is none."""
    if content.startswith(ERROR_EVENT):
        content = content.removeprefix(b"data: ").partition(b"\n\n")[0]
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    error = body.get("error", body) if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _status_within(said: dict[str, Any]) -> int:
    """The status that a stream's error would have had."""
    code = said.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else HTTPStatus.INTERNAL_SERVER_ERROR


def _has_no_route(said: dict[str, Any]) -> bool:
    """vLLM has the routes of what its model can do, and no others; the wall answers so for them too."""
    return said.get("detail") == "Not Found" or said.get("code") == Code.ROUTE_NOT_FOUND


def _passed_on(status: int, said: dict[str, Any], asked: dict[str, Any]) -> Rejection:
    failed = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    param = said.get("param")
    text = str(said.get("message") or f"The serving replica answered with status {status}.")
    text = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + " …"
    told = _told(text, param.removeprefix("body.") if isinstance(param, str) else None, asked)
    return Rejection(
        Code.SERVING_FAILED if failed else told.code,
        told.message,
        remedy=told.remedy,
        status=status,
        param=told.param,
        details=told.details,
        retryable=failed and status != HTTPStatus.NOT_IMPLEMENTED,
    )


def _told(text: str, param: str | None, asked: dict[str, Any]) -> Told:
    """What vLLM said in words; as it said it where its text is of a form that nobody has seen yet."""
    try:
        return in_words(text, param, asked)
    except Exception:
        logger.exception("a replica's refusal was not understood")
        return Told(text, param, {})


def _task_unsupported(asked: str) -> Rejection:
    return Rejection(
        Code.TASK_UNSUPPORTED,
        f"{asked!r} cannot do this: its base generates text, and the serving tier has no such route for it.",
        remedy="Name a model that can, or ask for a chat completion.",
        param="model",
        status=HTTPStatus.BAD_REQUEST,
    )


def _adapter_refused(asked: str, served: str) -> Unavailable:
    return Unavailable(
        Code.SERVING_REFUSED,
        f"The serving tier refuses to load {asked!r} ({served}).",
        remedy="Its files may be damaged; the serving replica's log has the reason's code.",
        retryable=False,
    )


def _key_refused() -> Unavailable:
    return Unavailable(
        Code.SERVING_UNAVAILABLE,
        "The serving tier does not take the front door's key.",
        remedy="Give both tiers the same MENS_SERVING_KEY.",
        retryable=False,
    )
