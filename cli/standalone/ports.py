"""Ports of this machine: a free one, and whether a program answers on its own.

They are asked many times a second while everything else starts, so asking must cost next to nothing.
"""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPException

TIMEOUT_SECONDS = 2.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def takes_connections(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as client:
        client.settimeout(TIMEOUT_SECONDS)
        return client.connect_ex(("127.0.0.1", port)) == 0


def responds(port: int, path: str) -> bool:
    """Whether a GET gets 200.

    Not by HTTPX: it reads the authorities' certificates for each new client, 30 ms of computing, and asks a proxy of the environment.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
