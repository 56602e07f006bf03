"""The listener for Prometheus: ``GET /metrics`` on a port of its own, which no route of the API or Ingress reaches.

A scraper sees the activity of all tenants, so the port is on loopback unless a key is set, which no tenant has.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, make_wsgi_app
from pydantic import SecretStr

from shared.errors import Code, InvalidRequest

METRICS_PATH = "/metrics"
READ_SECONDS = 10.0
"""Time that a client may take to send its request."""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
logger = logging.getLogger(__name__)


class ListenerSettings(Protocol):
    """The settings of a listener (`shared/settings.py`)."""

    @property
    def metrics_host(self) -> str: ...
    @property
    def metrics_port(self) -> int | None: ...
    @property
    def metrics_key(self) -> SecretStr: ...


class MetricsListener:
    """Serves a registry from a thread of its own until it is closed.

    Attributes:
        port: port on which it listens; the system chooses it if 0 was requested.

    Args:
        registry: registry of this process.
        host: address to listen on.
        port: port to listen on; 0: the system chooses one.
        key: bearer token that a scraper has to send; empty: not required, on loopback only.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the address is not loopback and no key is set, or the port cannot be
            opened.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int, key: str = "") -> None:
        if not key and not _is_loopback(host):
            raise InvalidRequest(
                Code.SETTINGS_INVALID,
                f"MENS_METRICS_HOST: {host} is not loopback, so any client that reaches it could read the metrics of "
                "all tenants.",
                remedy="Set MENS_METRICS_KEY, and configure the scraper to send it as its bearer token.",
                param="MENS_METRICS_KEY",
            )
        try:
            self._server = _server_class(host)((host, port), _Handler)
        except OSError as error:
            raise InvalidRequest(
                Code.SETTINGS_INVALID,
                f"MENS_METRICS_PORT: the metrics cannot be served on {host}:{port} ({error.strerror or error}).",
                remedy="Use a different port for each process of a machine, or leave it out.",
                param="MENS_METRICS_PORT",
            ) from None
        self.port: int = self._server.server_address[1]
        self._server.set_app(keyed(make_wsgi_app(registry), key))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        logger.info("metrics on %s:%d", host, self.port)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def listen(registry: CollectorRegistry, settings: ListenerSettings) -> MetricsListener | None:
    """Start the listener of a process's settings; None if they request none.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``.
    """
    if settings.metrics_port is None:
        return None
    return MetricsListener(
        registry, settings.metrics_host, settings.metrics_port, settings.metrics_key.get_secret_value()
    )


def process_registry() -> CollectorRegistry:
    """Make a registry with the figures of the system and of Python on this process (``process_*``, ``python_gc_*``)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def keyed(application: Application, key: str) -> Application:
    """Return an application that answers ``GET /metrics`` requests that carry the key, and refuses all others."""
    expected = f"Bearer {key}".encode()

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        authorization = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
        if key and not hmac.compare_digest(authorization, expected):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
            return [b""]
        if environ["PATH_INFO"] != METRICS_PATH or environ["REQUEST_METHOD"] != "GET":
            start_response("404 Not Found", [("Content-Length", "0")])
            return [b""]
        return application(environ, start_response)

    return respond


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server_class(host: str) -> type[_MetricsServer]:
    return _ServerOnIPv6 if ":" in host else _MetricsServer


class _MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    # A scraper that keeps its connection open must not delay the end of the process.
    daemon_threads = True

    def server_bind(self) -> None:
        # HTTPServer's own method would look up the host's name in DNS, which takes long without a DNS server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  socketserver's
        logger.debug("a scrape from %s ended early", client_address)


class _ServerOnIPv6(_MetricsServer):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = READ_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log nothing: a scrape every few seconds does not need a line."""
