"""Where the serving replicas are: a static list of URLs, the addresses behind a DNS name, or both.

The front door and the publisher look here, so that what is routed to is also what was proved.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence

from shared.errors import Code, Unavailable


def discover(urls: Sequence[str], dns: str = "") -> list[str]:
    """Base URLs of every replica, each once: the static ones as given, then one for every address of the name.

    Blocks for as long as the resolver takes.

    Args:
        urls: the static ones.
        dns: ``host:port`` whose host has one address a replica, as a headless service has; empty: there is none.

    Raises:
        Unavailable: ``SERVING_UNAVAILABLE``: the name has no address now.
    """
    found = [url.rstrip("/") for url in urls]
    if dns:
        found += [f"http://{address}:{dns.rpartition(':')[2]}" for address in _addresses(dns)]
    return list(dict.fromkeys(found))


def replica_name(url: str) -> str:
    """What a replica is called wherever its address is not told: always the same, and nothing to connect to."""
    return f"replica-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _addresses(dns: str) -> list[str]:
    """Addresses in a stable order. A replica with IPv4 and IPv6 is one replica, so IPv6 counts only without IPv4."""
    host, _, port = dns.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            Code.SERVING_UNAVAILABLE,
            f"{host}, the name of the serving replicas, has no address ({error.strerror or error}).",
            remedy="Is a replica ready? Only ready ones have an address behind MENS_SERVING_DNS.",
        ) from error
    by_family = {
        family: sorted({str(address[0]) for kind, *_, address in found if kind == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return by_family[socket.AF_INET] or [f"[{address}]" for address in by_family[socket.AF_INET6]]
