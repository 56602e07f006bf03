"""Connections to receivers: each goes to a checked address, and all its operations share one deadline.

The host is resolved here, every address is checked, and the connection is made to the address that passed; the name is
not resolved again. TLS still requires a certificate for the host's name.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

from shared.webhooks.targets import Address, AllowedTargets, parse_address

logger = logging.getLogger(__name__)
Resolve = Callable[[str, int], list[Address]]


class ForbiddenAddress(httpcore.ConnectError):
    """The host resolves to an address that webhooks may not be sent to."""


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to checked addresses only.

    Args:
        allowed: addresses allowed besides public ones.
        seconds: total time for all operations on its connections, from now on.
        resolve: returns a host's addresses.
    """

    def __init__(self, allowed: AllowedTargets, seconds: float, resolve: Resolve | None = None) -> None:
        self._allowed = allowed
        self._deadline = time.monotonic() + seconds
        self._resolve = resolve or resolve_host
        self._tcp = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002  of the interface; never given
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        """Connect to a host at one of its addresses, after all of them were checked.

        Raises:
            ForbiddenAddress: the host has an address that is not allowed; one is enough, because retries could reach it.
            httpcore.ConnectError: the host has no address, or refuses.
        """
        try:
            addresses = self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error.strerror or error}") from error
        for address in addresses:
            if not self._allowed.permit(host, address):
                # The address goes to the log alone: a tenant reads this error, and could look up internal names with it.
                logger.warning("a webhook to %s was not sent: it resolves to %s", host, address)
                raise ForbiddenAddress(f"{host} does not resolve only to public addresses")
        failure: Exception = httpcore.ConnectError(f"{host} does not resolve to an address")
        for address in addresses:
            try:
                left = _left(self._deadline, timeout)
                return BoundedStream(self._tcp.connect_tcp(str(address), port, timeout=left), self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


class BoundedStream(httpcore.NetworkStream):
    """A connection whose operations all end by a deadline: httpcore's own timeouts restart with every byte received."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Return the same connection with TLS."""
        left = _left(self._deadline, timeout)
        return BoundedStream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """Return the information of the underlying connection."""
        return self._stream.get_extra_info(info)


def resolve_host(host: str, port: int) -> list[Address]:
    """Return a host's addresses, in the order of the resolver.

    Raises:
        OSError: it cannot be resolved.
    """
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    addresses = (parse_address(str(entry[4][0])) for entry in resolved)
    return list(dict.fromkeys(address for address in addresses if address is not None))


def _left(deadline: float, timeout: float | None) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the receiver took too long")
    return left if timeout is None else min(left, timeout)
