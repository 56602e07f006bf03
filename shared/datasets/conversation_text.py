"""A conversation as one text, as conversations are compared by (``fingerprints.py``)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from xxhash import xxh3_64_intdigest

from shared.datasets.rows import Message

ASCII = bytes(range(128))


def written(messages: Iterable[Message]) -> str:
    """A conversation as one text: its roles, contents and calls."""
    return " ".join(
        [
            f"<{message.role}> {message.content or ''}" if not message.tool_calls else _with_calls(message)
            for message in messages
        ]
    )


def _with_calls(message: Message) -> str:
    return f"<{message.role}> {message.content or ''} {msgspec.json.encode(message.tool_calls).decode()}"


def digest64(text: str | bytes) -> int:
    """A 64-bit digest of a text: in a file of a million rows two collide by chance once in 30 million files."""
    return xxh3_64_intdigest(text if isinstance(text, bytes) else text.encode(errors="replace"))
