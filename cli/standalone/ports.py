"""Ports of this machine: finds a free one, and tests whether a program responds on its port.

The ports are tested many times a second while everything else starts, so a test must cost almost nothing.
"""

from __future__ import annotations

import errno
import secrets
import socket
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path

TIMEOUT_SECONDS = 2.0
FIRST_PORT, PORTS = 10_000, 1 << 16
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux's range of ephemeral ports."""


def free_port() -> int:
    """Return a loopback port that no program has bound at the moment.

    It is outside the ranges that the kernel gives to clients and to servers on port 0: a program may take seconds until
    it listens, or be restarted, and meanwhile any connection of this machine could take its port.

    Raises:
        OSError: listening on loopback is not possible here.
    """
    while True:
        port = secrets.choice(_fixed_ports())  # not from `random`, which tests seed
        with socket.socket() as probe:
            # Without SO_REUSEADDR, which would bind next to a server that has bound the port and listens later: vLLM.
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port


@cache
def _fixed_ports() -> range:
    """Return the larger side of the ports that the kernel does not assign; all ports if it leaves hardly any."""
    first, last = (int(end) for end in EPHEMERAL.read_text().split()) if EPHEMERAL.exists() else (49_152, PORTS - 1)
    larger = max(range(FIRST_PORT, first), range(last + 1, PORTS), key=len)
    return larger if len(larger) > 1000 else range(FIRST_PORT, PORTS)


def takes_connections(port: int) -> bool:
    """Return whether a program listens on the port."""
    with socket.socket() as client:
        client.settimeout(TIMEOUT_SECONDS)
        return client.connect_ex(("127.0.0.1", port)) == 0


def responds(port: int, path: str) -> bool:
    """Return whether a GET gets 200.

    HTTPX is not used: for each new client it reads the authorities' certificates, 30 ms of computing, and uses a proxy
    of the environment.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
