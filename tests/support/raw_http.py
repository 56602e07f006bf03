"""HTTP written by hand over a socket, for requests that no client library would send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit


class RawResponse(NamedTuple):
    """The bytes received until the server closed the connection."""

    status: int
    text: str


@contextmanager
def connect(url: str, seconds: float = 20.0) -> Iterator[socket.socket]:
    """A connection to a server."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=seconds) as connection:
        yield connection


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send as much as the server reads."""
    try:
        connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def read_to_end(connection: socket.socket) -> bytes:
    """Read everything until the server closes the connection."""
    received = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def read_response(connection: socket.socket) -> RawResponse:
    """Read the only response of a connection that the server then closes."""
    text = read_to_end(connection).decode()
    return RawResponse(int(text.split(" ", 2)[1]), text) if text else RawResponse(0, "")


def head(method: str, path: str, *lines: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()
