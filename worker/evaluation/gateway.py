"""Requests to models through the API, sent like a client's: with a key, within its limits, and retried if that can
help.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakSet

import httpx
import msgspec

from shared.errors import Code, InvalidRequest, JobFailed, MensError, NotFound, Unavailable
from shared.http_retry import Retries, keyed_client

# With waits that double from a second: an API that restarts is back within half a minute.
ATTEMPTS = 6
LONGEST_WAIT_SECONDS = 60.0
LIMIT_PATIENCE_SECONDS = 900.0
"""How long to wait for a tenant limit before the attempt ends and the job returns to the queue."""
# The answer is not a stream: nothing arrives until the last token, which takes minutes on a CPU.
READ_SECONDS = 600.0
AWAY = frozenset({503})
"""Statuses that mean that part of the system is unavailable, as opposed to a request that cannot be served."""


class EvaluationEnded(Exception):
    """The evaluation has ended, and with it all requests that still wait for an answer."""


class GatewayClient:
    """A connection pool to the API. Safe to use from many threads.

    Args:
        url: the API's URL.
        key: API key of the tenant whose models are called.
        connections: largest number of concurrent connections.
    """

    def __init__(self, url: str, key: str, connections: int) -> None:
        self._client = keyed_client(url, key, read_seconds=READ_SECONDS, connections=connections)
        self._retries = Retries(
            ATTEMPTS,
            longest_wait=LONGEST_WAIT_SECONDS,
            limit_seconds=LIMIT_PATIENCE_SECONDS,
            pause=lambda seconds, _: self._closing.wait(seconds),
        )
        self._closing = threading.Event()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        # Guards `_sockets` and `_aborted`: a connection that opens while the others are aborted must not stay open.
        self._lock = threading.Lock()
        self._aborted = False

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; call it once no request is in flight."""
        self._closing.set()
        self._client.close()

    def stop_waiting(self) -> None:
        """Send no further requests; requests in flight still get their responses."""
        self._closing.set()

    def abort(self) -> None:
        """Send no further requests, and shut down the sockets of those in flight: closing a connection does not wake a
        thread that reads from it.
        """
        # Before the sockets: a thread whose request fails here must not send it again.
        self._closing.set()
        with self._lock:
            self._aborted = True
            for connected in self._sockets:
                _shut(connected)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the response's JSON object.

        Raises:
            Unavailable: the API or every replica is unavailable, or a limit persists; the same request can succeed
                later.
            NotFound: ``MODEL_NOT_FOUND``: no request for this model can succeed.
            MensError: this request is refused or fails, with the code that the API gave.
            EvaluationEnded: the evaluation ends.
        """
        outcome = self._retries.send(partial(self._send, path, body))
        if isinstance(outcome, httpx.RequestError):
            raise Unavailable(
                Code.EVAL_UNAVAILABLE,
                f"{self._client.base_url} does not respond ({type(outcome).__name__}).",
                remedy="Check MENS_API_URL and the API; stored answers are not requested again.",
            )
        if outcome.is_success:
            return _object(outcome)
        error = _error_of(outcome)
        if outcome.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unavailable(error.code, error.message, remedy="Raise the tenant's limits, or wait.")
        raise error

    def _send(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if self._closing.is_set():
            raise EvaluationEnded
        try:
            return self._client.post(
                path,
                content=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
                extensions={"trace": self._remember_socket},
            )
        except (httpx.TransportError, RuntimeError):  # RuntimeError: the client was closed
            if self._closing.is_set():
                raise EvaluationEnded from None
            raise

    def _remember_socket(self, event: str, facts: dict[str, Any]) -> None:
        """Remember a new connection's socket; httpcore calls this at each step of a request."""
        if event not in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            return
        connected = facts["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets.add(connected)
            if self._aborted:
                _shut(connected)


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # closed already
        connected.shutdown(socket.SHUT_RDWR)


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        raise JobFailed(
            Code.SERVING_FAILED, "The response is not a JSON object.", remedy="Read the API's log."
        ) from None


def _error_of(response: httpx.Response) -> MensError:
    """Convert an error response into the exception class that fits its cause."""
    status = response.status_code
    try:
        body = msgspec.json.decode(response.content)["error"]
        name, message, remedy = body["mens"]["code"], str(body["message"]), str(body["mens"].get("remedy") or "")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        name, message, remedy = "", f"The API returned the status {status}.", ""
    code = Code(name) if name in Code.__members__ else Code.SERVING_FAILED
    if status == httpx.codes.UNAUTHORIZED:
        return Unavailable(Code.EVAL_UNAVAILABLE, f"The API refuses the evaluation's key: {message}")
    if status in AWAY:
        return Unavailable(code, message, remedy=remedy)
    if code is Code.MODEL_NOT_FOUND:
        return NotFound(code, message, remedy=remedy, param="model")
    kind = JobFailed if status >= httpx.codes.INTERNAL_SERVER_ERROR else InvalidRequest
    return kind(code, message, remedy=remedy, details={"status": status})
