"""What Python's parser takes for JSON and nothing can store, hash or answer: ``NaN``, ``Infinity``, numbers that no float can
hold, and half of a surrogate pair.

Model routes read their bodies with another parser, which refuses these by itself, and the gateway counts what it refuses.
"""

from __future__ import annotations

import json
import math
import re

from shared.errors import Code, InvalidRequest
from shared.lone_surrogates import has_lone_surrogate

PERHAPS = re.compile(rb"NaN|Infinity|[0-9][eE]\+?[0-9]{3}|[0-9]{309}")
"""What every body with such a number has, and few others."""


def refuse_loose_json(body: bytes) -> None:
    """Refuse a body with such a number or text. One that is no JSON passes: its route says where the fault is.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    _refuse_non_numbers(body)
    if has_lone_surrogate(body):
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            "The request body has half of a surrogate pair (\\ud800 to \\udfff), which is no character.",
            remedy="Send characters outside the basic plane as they are, or as both halves.",
        )


def _refuse_non_numbers(body: bytes) -> None:
    if not PERHAPS.search(body):
        return
    found: list[str] = []

    def parse(text: str) -> float:
        number = float(text)
        if math.isinf(number):
            found.append(text)
        return number

    try:
        json.loads(body, parse_float=parse, parse_constant=found.append)
    except (ValueError, RecursionError):
        return
    if found:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"The request body is not JSON: {found[0][:40]} is no number in it.",
            remedy="Send null, or leave the field out.",
        )
