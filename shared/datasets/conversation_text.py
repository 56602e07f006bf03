"""A conversation as one string, in the form in which conversations are compared (``fingerprints.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import msgspec
from xxhash import xxh3_64_intdigest

from shared.datasets.rows import Message, Role

_TAGS = {role: f"<{role}>" for role in get_args(Role)}


def written(messages: Iterable[Message]) -> str:
    """Join a conversation into one string: its roles, thoughts, contents and calls."""
    return " ".join(
        [
            _with_more(message)
            if message.tool_calls or message.reasoning_content
            else f"<{message.role}> {message.content or ''}"
            for message in messages
        ]
    )


def written_together(roles: Sequence[str], contents: Sequence[str], turns: Iterable[int], before: str) -> str:
    """Join conversations without calls into one string, with ``before`` in front of each.

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


def _with_more(message: Message) -> str:
    thoughts = f"<thoughts> {message.reasoning_content} " if message.reasoning_content else ""
    calls = f" {msgspec.json.encode(message.tool_calls).decode()}" if message.tool_calls else ""
    return f"{thoughts}<{message.role}> {message.content or ''}{calls}"


def digest64(text: str | bytes) -> int:
    """Return a 64-bit digest of a string. Among files of a million rows, about one in 30 million has a collision."""
    return xxh3_64_intdigest(text if isinstance(text, bytes) else text.encode(errors="replace"))
