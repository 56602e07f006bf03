"""One delivery attempt of a webhook: a signed POST, judged by its response status. No redirects, no proxies."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime

import httpcore

from shared.database.webhooks.deliveries import ClaimedDelivery, Outcome
from shared.errors import InvalidRequest
from shared.webhooks.signatures import signed_headers
from shared.webhooks.targets import AllowedTargets, check_url
from worker.webhooks.pinned_network import PinnedBackend, Resolve

ATTEMPT_SECONDS = 15.0
"""Time limit for connecting, sending and receiving the response's headers together, after the host was resolved;
Standard Webhooks recommends 15 to 30 s.
"""
READ_BYTES = 512
"""Number of bytes that are read of a refusal's body, for the tenant; the bodies of other responses are not read."""
USER_AGENT = "Mens-Webhooks/1"


class WebhookSender:
    """Sends webhooks, each on a connection of its own."""

    def __init__(
        self, allowed: AllowedTargets, *, seconds: float = ATTEMPT_SECONDS, resolve: Resolve | None = None
    ) -> None:
        self._allowed = allowed
        self._seconds = seconds
        self._resolve = resolve
        self._tls = ssl.create_default_context()

    def send(self, delivery: ClaimedDelivery) -> Outcome:
        """Send one delivery once. Any failure is in the outcome."""
        try:
            check_url(delivery.url, self._allowed)  # the allowed targets may have changed since it was stored
        except InvalidRequest as error:
            return Outcome(None, error.message)
        headers = signed_headers(delivery.event_id, datetime.now(UTC), delivery.payload, delivery.signing_secrets)
        headers |= {"content-type": "application/json", "user-agent": USER_AGENT, "accept-encoding": "identity"}
        backend = PinnedBackend(self._allowed, self._seconds, self._resolve)
        try:
            with (
                httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend, http2=False) as pool,
                pool.stream(
                    "POST",
                    delivery.url,
                    headers=list(headers.items()),
                    content=delivery.payload.encode(),
                    extensions={"timeout": {"pool": self._seconds}},
                ) as response,
            ):
                return _outcome(response)
        except (httpcore.TimeoutException, TimeoutError):
            return Outcome(None, f"no response within {self._seconds:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
            return Outcome(None, f"{type(error).__name__}: {error}")


def _outcome(response: httpcore.Response) -> Outcome:
    if 200 <= response.status < 300:
        return Outcome(response.status, None)
    if 300 <= response.status < 400:
        return Outcome(response.status, f"HTTP {response.status}: redirects are not followed; store the final URL")
    return Outcome(response.status, f"HTTP {response.status}{_beginning(response)}")


def _beginning(response: httpcore.Response) -> str:
    """Return the beginning of a refusal's body, as one line of printable characters."""
    body = b""
    # The status has arrived and decides; the body is only recorded.
    with suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError):
        for chunk in response.iter_stream():
            body += chunk
            if len(body) >= READ_BYTES:
                break
    text = body[:READ_BYTES].decode(errors="replace")
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return f": {line}" if line else ""
