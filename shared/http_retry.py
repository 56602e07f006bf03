"""Outgoing HTTP requests: the client for servers that get a key, and the rule by which requests are sent again.

Three kinds of requests do not use it: chat requests to replicas (`api/inference/replicas/client.py`) and webhooks
(`worker/webhooks/`) have their own clients and retries, and the hub's client retries on its own.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

FIRST_WAIT_SECONDS = 1.0
JITTER = 1.25
"""Every wait is multiplied by a random number from 1 to this one, so that not all callers retry at the same moment."""

Outcome = httpx.Response | httpx.RequestError


def keyed_client(
    url: str = "",
    key: str = "",
    *,
    read_seconds: float,
    connect_seconds: float = 10.0,
    connections: int = 100,
    tls: ssl.SSLContext | None = None,
) -> httpx.Client:
    """Return a client that ignores the environment's proxies and password files: they must not receive or replace the
    key.

    Args:
        key: sent as a bearer token; empty: none.
        connections: largest number of concurrent connections.
        tls: how the server's certificate is checked; None: against the public certificate authorities.
    """
    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(read_seconds, connect=min(connect_seconds, read_seconds)),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        trust_env=False,
        verify=tls or True,
    )


def authorities(bundle: str) -> ssl.SSLContext | None:
    """Return the context that checks a server's certificate against private certificate authorities; None if there are
    only the public ones.

    Args:
        bundle: a file of certificates in PEM form, or its text; empty: none.
    """
    bundle = bundle.strip()
    if not bundle:
        return None
    is_text = bundle.startswith("-----BEGIN")
    return ssl.create_default_context(cafile=None if is_text else bundle, cadata=bundle if is_text else None)


def is_temporary(outcome: Outcome) -> bool:
    """Return whether the same request may succeed later: no response, a busy server, or a failed one."""
    if isinstance(outcome, httpx.RequestError):
        return True
    status = outcome.status_code
    return status in {408, 409, 429} or (status >= 500 and status != httpx.codes.NOT_IMPLEMENTED)


def describe_outcome(outcome: Outcome) -> str:
    """Return the status of a response, or the kind of failure without one."""
    if isinstance(outcome, httpx.RequestError):
        return f"no response ({type(outcome).__name__})"
    return f"status {outcome.status_code}"


def retry_after(outcome: Outcome) -> float | None:
    """Return the seconds of ``retry-after-ms`` or ``Retry-After``, which is a number or a date; None without them."""
    if isinstance(outcome, httpx.RequestError):
        return None
    with suppress(KeyError, ValueError):
        return max(0.0, float(outcome.headers["retry-after-ms"]) / 1000)
    value = outcome.headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _sleep(seconds: float, _outcome: Outcome) -> None:
    time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeats requests after temporary failures. It waits as long as the server says, otherwise 1, 2, 4 … seconds.

    Attributes:
        attempts: number of failures after which the last outcome is returned.
        longest_wait: longest wait in seconds.
        limit_seconds: time during which a 429 does not count as a failure, because the caller's limit will be lifted.
        is_temporary: whether an outcome is worth another attempt.
        pause: waits for some seconds after an outcome; an exception that it raises ends the retries.
    """

    attempts: int
    longest_wait: float = 60.0
    limit_seconds: float = 0.0
    is_temporary: Callable[[Outcome], bool] = is_temporary
    pause: Callable[[float, Outcome], object] = _sleep

    def send(self, request: Callable[[], httpx.Response]) -> Outcome:
        """Send a request until its outcome is not temporary; return the last outcome, even a failure."""
        began, failures = time.monotonic(), 0
        while True:
            try:
                outcome: Outcome = request()
            except httpx.RequestError as error:
                outcome = error
            limited = self.limit_seconds and describe_outcome(outcome) == "status 429"
            failures += not limited
            is_over = time.monotonic() - began > self.limit_seconds if limited else failures >= self.attempts
            if is_over or not self.is_temporary(outcome):
                return outcome
            # If a server says 0, or a time that has passed, requests would otherwise follow each other without a pause.
            wait = retry_after(outcome) or FIRST_WAIT_SECONDS * 2.0 ** max(failures - 1, 0)
            self.pause(min(wait, self.longest_wait) * random.uniform(1.0, JITTER), outcome)
