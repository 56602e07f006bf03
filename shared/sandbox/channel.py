"""Messages over a stream socket: a length of four bytes, then JSON, for both ends. Messages from inside are limited in size."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
MAX_MESSAGE_BYTES = 64 << 20
"""Size limit of a message to a process inside, such as an item with a long answer."""


class ChannelClosed(Exception):
    """The other end is gone, or sends something that is not a message."""


def send(end: socket.socket, message: Any) -> None:
    """Send a message; wait while the other end does not read.

    Raises:
        ChannelClosed: the other end is gone, or has not read within the socket's timeout.
    """
    content = json.dumps(message).encode()
    try:
        end.sendall(_LENGTH.pack(len(content)) + content)
    except OSError as error:
        raise ChannelClosed(str(error)) from None


def receive(end: socket.socket, limit: int = MAX_MESSAGE_BYTES) -> Any:
    """Receive the next message.

    Raises:
        ChannelClosed: the other end is gone or silent beyond the socket's timeout, the message is longer than the
            limit, or not JSON.
    """
    (length,) = _LENGTH.unpack(_read(end, _LENGTH.size))
    if length > limit:
        raise ChannelClosed(f"a message of {length} bytes")
    try:
        return json.loads(_read(end, length))
    except (ValueError, RecursionError) as error:
        raise ChannelClosed(f"no JSON: {error}") from None


def _read(end: socket.socket, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        try:
            piece = end.recv(min(count - len(pieces), 1 << 20))
        except OSError as error:
            raise ChannelClosed(str(error)) from None
        if not piece:
            raise ChannelClosed("the other end has closed")
        pieces += piece
    return bytes(pieces)
