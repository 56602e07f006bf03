"""Free loopback ports for servers that tests start."""

from __future__ import annotations

import secrets
import socket
from functools import cache
from pathlib import Path

FIRST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where the kernel says which ports it gives to whoever asks for any."""


def free_port() -> int:
    """A loopback port that no process listens on just now.

    None of those that the kernel gives to clients and to servers on port 0: a server may take seconds until it listens,
    or be stopped and started again, and meanwhile hundreds of connections are made on this machine.
    """
    while True:
        port = secrets.choice(_fixed_ports())  # not of `random`, which tests seed
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one may have ended there
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@cache
def _fixed_ports() -> range:
    """The larger side of those that the kernel does not give away."""
    first, last = (int(end) for end in RANGE.read_text().split()) if RANGE.exists() else (49_152, 65_535)
    below, above = range(FIRST, first), range(last + 1, 1 << 16)
    ports = max(below, above, key=len)
    return ports if len(ports) > 1000 else range(FIRST, 1 << 16)
