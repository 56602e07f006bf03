"""Refusal of values that Python accepts as JSON and that cannot be stored, hashed or sent: ``NaN``, ``Infinity``,
numbers beyond a float, and half of a surrogate pair.

Model routes read their bodies with another parser, which refuses these itself; this module then names the fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

from shared.errors import Code, InvalidRequest
from shared.lone_surrogates import has_lone_surrogate

PERHAPS = re.compile(rb"NaN|Infinity|[0-9][eE]\+?[0-9]{3}|[0-9]{309}")
"""Pattern that every body with such a number matches, and few others."""
SURROGATE = re.compile("[\ud800-\udfff]")


class _NoNumber(str):
    """A number in the notation of the body."""

    __slots__ = ()


def refuse_loose_json(body: bytes) -> None:
    """Refuse a body with such a number or string, naming its field. Invalid JSON passes: its route reports the fault.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    if not (PERHAPS.search(body) or has_lone_surrogate(body)):
        return
    try:
        parsed = json.loads(body, parse_float=_float, parse_constant=_NoNumber)
    except (ValueError, RecursionError):
        return
    for path, text in _texts(parsed):
        if isinstance(text, _NoNumber):
            raise _refused(path, f"{text[:40]} is not a number in JSON", "Send null, or leave the field out.")
        if SURROGATE.search(text):
            reason = "has half of a surrogate pair (\\ud800 to \\udfff), which is not a character"
            raise _refused(path, reason, "Send characters outside the basic plane as they are, or as both halves.")


def _float(text: str) -> float | _NoNumber:
    number = float(text)
    return _NoNumber(text) if math.isinf(number) else number


def _texts(parsed: object) -> Iterator[tuple[str, str]]:
    """Iterate over all strings and keys, each with the path of its object, in the order of the body."""
    left: list[tuple[str, object]] = [("", parsed)]
    while left:
        path, value = left.pop()
        inner = f"{path}." if path else ""
        match value:
            case str():
                yield path, value
            case dict():
                for key in value:
                    yield path, key
                left += [(f"{inner}{key}", value[key]) for key in reversed(value)]
            case list():
                left += [(f"{inner}{index}", value[index]) for index in reversed(range(len(value)))]


def _refused(path: str, reason: str, remedy: str) -> InvalidRequest:
    message = f"{path or 'The request body'}: {reason}."
    return InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param=path or None)
