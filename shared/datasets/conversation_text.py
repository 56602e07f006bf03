"""A conversation as one text, and as the text that conversations are compared by."""

from __future__ import annotations

import string
from collections.abc import Iterable

import msgspec
from xxhash import xxh3_64_intdigest

from shared.datasets.rows import Message

_BREAKS = "".join(filter(str.isspace, map(chr, range(128)))).replace(" ", "")
_PLAIN = bytes.maketrans(
    (string.ascii_uppercase + _BREAKS).encode(), (string.ascii_lowercase + "\n" * len(_BREAKS)).encode()
)
"""Writes ASCII letters in lower case, and ASCII white space other than the space as line breaks."""
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


def normalised(messages: Iterable[Message]) -> bytes:
    """The conversation as it is compared: in lower case, with single spaces, in UTF-8."""
    text = written(messages)
    # Lower case and words of a whole text cost more than decoding its row did, so they are for the texts that need them.
    raw = text.encode(errors="replace")
    if not text.isascii():
        other = raw.translate(None, ASCII).decode()
        if other != other.lower() or not other.isprintable():
            return " ".join(text.lower().split()).encode(errors="replace")
    # Most of the runs of white space have a line break, which is found in a fourth of the time of two spaces.
    plain = b" ".join([line for line in map(bytes.strip, raw.translate(_PLAIN).split(b"\n")) if line])
    while b"  " in plain:
        plain = b" ".join(plain.split(b"  "))  # half as many; `replace` takes three times as long
    return plain


def digest64(text: str | bytes) -> int:
    """A 64-bit digest of a text: in a file of a million rows two collide by chance once in 30 million files."""
    return xxh3_64_intdigest(text if isinstance(text, bytes) else text.encode(errors="replace"))
