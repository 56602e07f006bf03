"""Types of the fields that vLLM reads before it checks them: a wrong type makes it fail instead of refusing the
request.

vLLM answers such a request with 500 and closes the connection. It checks all other fields itself, and reports the
fault. `tests/vllm/test_malformed_fields.py` looks for more of them in the installed vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.inference.request_fields.grammars import grammars
from shared.errors import Code, InvalidRequest

SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""Integers beyond these cannot be sent to vLLM's engine."""
TRANSFERS = ("kv_transfer_params", "ec_transfer_params")
"""Names in ``vllm_xargs`` that vLLM interprets as its own settings, and then fails."""


def check_types(body: dict[str, Any]) -> None:
    """Refuse values of types on which vLLM fails.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    outputs, extra = body.get("structured_outputs"), body.get("vllm_xargs")
    if outputs is not None and not isinstance(outputs, dict):
        raise _wrong("structured_outputs", "an object")
    for name, value in body.items():
        if type(value) is int:
            _refuse_long_integers(name, value)
    for name in ("repetition_detection", "vllm_xargs"):
        _refuse_long_integers(name, body.get(name))
    for name, grammar in grammars(body):
        _refuse_long_integers(name, grammar)
    for name in TRANSFERS:
        if isinstance(extra, dict) and name in extra:
            raise InvalidRequest(
                Code.REQUEST_INVALID,
                f"`vllm_xargs` cannot have `{name}`.",
                remedy=f"Use the field `{name}`.",
                param=f"vllm_xargs.{name}",
            )


def _refuse_long_integers(path: str, value: Any) -> None:
    try:
        msgspec.msgpack.encode(value)  # which is faster than checking each part
    except OverflowError:
        raise _wrong(next(_long_integers(path, value)), "a number of 64 bits") from None


def _long_integers(path: str, value: Any) -> Iterator[str]:
    """Yield the paths of integers that are too large for vLLM's engine."""
    if type(value) is int and not SMALLEST <= value <= LARGEST:
        yield path
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _long_integers(f"{path}.{key}", part)
    for index, part in enumerate(value if isinstance(value, list) else ()):
        yield from _long_integers(f"{path}[{index}]", part)


def check_chat_tools(body: dict[str, Any]) -> None:
    """Check ``tools`` of a chat: functions with names.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        raise _wrong("tools", "a list")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise _wrong(f"tools[{index}]", "an object")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _wrong(f"tools[{index}].function", "an object")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _wrong(f"tools[{index}].function.name", "a non-empty string")


def _wrong(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        Code.REQUEST_INVALID,
        f"`{param}` is not {expected}.",
        remedy=f"Make it {expected}, or leave it out.",
        param=param,
    )
