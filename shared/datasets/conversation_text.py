"""A conversation as one text, as conversations are compared by (``fingerprints.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import msgspec
from xxhash import xxh3_64_intdigest

from shared.datasets.rows import Message, Role

_TAGS = {role: f"<{role}>" for role in get_args(Role)}


def written(messages: Iterable[Message]) -> str:
    """A conversation as one text: its roles, contents and calls."""
    return " ".join(
        [
            f"<{message.role}> {message.content or ''}" if not message.tool_calls else _with_calls(message)
            for message in messages
        ]
    )


def written_together(roles: Sequence[str], contents: Sequence[str], turns: Iterable[int], before: str) -> str:
    """Conversations without calls as one text, with ``before`` in front of each.

    Args:
        turns: how many of the roles and contents each conversation has.
    """
    pieces: list[str] = [""] * (2 * len(roles))
    pieces[::2] = map(_TAGS.__getitem__, roles)
    pieces[1::2] = contents
    begin = 0
    for count in turns:
        pieces[begin] = before + pieces[begin]
        begin += 2 * count
    return " ".join(pieces)


def _with_calls(message: Message) -> str:
    return f"<{message.role}> {message.content or ''} {msgspec.json.encode(message.tool_calls).decode()}"


def digest64(text: str | bytes) -> int:
    """A 64-bit digest of a text: in a file of a million rows two collide by chance once in 30 million files."""
    return xxh3_64_intdigest(text if isinstance(text, bytes) else text.encode(errors="replace"))
