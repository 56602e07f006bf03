"""Values that both databases accept: strings, and JSON columns as text.

The name of a tensor or a file may contain half of a surrogate pair or a NUL. PostgreSQL refuses both, and a response
cannot contain half of a surrogate pair.
"""

from __future__ import annotations

import json
from typing import Any

_REFUSED = ("\\u0000", "\\ud8", "\\ud9", "\\uda", "\\udb", "\\udc", "\\udd", "\\ude", "\\udf")
"""Beginnings of escapes that may stand for a refused character; characters above U+FFFF also contain some of them."""


def storable(text: str) -> str:
    """Return a string without the characters that values and queries cannot contain: NUL (in PostgreSQL), and half of a
    surrogate pair.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def to_json(value: Any) -> str:
    """Return a value as JSON in ASCII, with every refused character replaced."""
    text = json.dumps(value)
    if any(escape in text for escape in _REFUSED):
        return json.dumps(_replaced(value))
    return text


def _replaced(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(key) if isinstance(key, str) else key: _replaced(member) for key, member in value.items()}
        case list() | tuple():
            return [_replaced(member) for member in value]
        case _:
            return value
