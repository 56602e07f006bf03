"""Requests to OpenAI's API, with its conventions on keys, base URL and retries.

A key comes from an environment variable or a prompt. It appears only in the ``Authorization`` header: not in an
argument, an error, a log line or a file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO

import httpx
import msgspec

from shared.errors import Code, Unauthenticated, Unavailable

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT_SECONDS = 120.0
ATTEMPTS = 8
LONGEST_BACKOFF_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 900.0
"""A `Retry-After` beyond this ends the command; the next run continues where it stopped."""
NOT_WORTH_WAITING = ("insufficient_quota", "billing_hard_limit_reached")
"""Codes of a 429 that waiting cannot resolve."""
SECRET = re.compile(r"\bsk-[A-Za-z0-9_*.-]{4,}")
"""A key, whole or shortened as OpenAI quotes it."""

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProjectKey:
    """A key of one OpenAI project.

    Attributes:
        project: the project's name in the archive: the environment variable of the key.
    """

    project: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        # An HTTP library would quote a header that it cannot send, key and all.
        if not re.fullmatch(r"[\x21-\x7e]{8,}", self.secret):
            raise Unauthenticated(
                Code.OPENAI_KEY_INVALID,
                f"The value of {self.project} is not a valid OpenAI key.",
                remedy="Copy the key again: it begins with sk- and contains no spaces.",
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """Status of a response, and the code and message of OpenAI's error, both empty without an error."""

    status: int
    code: str = ""
    message: str = ""


def read_key(variable: str, prompt: Callable[[str], str] | None) -> ProjectKey:
    """Read the key of one project, from an environment variable or else from a prompt.

    Raises:
        Unauthenticated: the key is missing or malformed.
    """
    secret = os.environ.get(variable, "").strip() or (prompt(variable).strip() if prompt else "")
    if not secret:
        remedy = "Set it to a key of the project. Keys are not taken as arguments, which other users of the machine could see."
        raise Unauthenticated(Code.OPENAI_KEY_INVALID, f"{variable} is not set.", remedy=remedy)
    return ProjectKey(variable, secret)


class OpenAIClient:
    """Requests of one project's key, retried as OpenAI's own clients would.

    Args:
        pause: waits for some seconds.
        note: called with a line on each long wait.
    """

    def __init__(
        self,
        key: ProjectKey,
        base_url: str | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.project = key.project
        self._key, self._pause, self._note = key, pause, note
        self._http = httpx.Client(
            base_url=base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or DEFAULT_BASE_URL,
            headers={"Authorization": f"Bearer {key.secret}"},
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=15.0),
        )

    def __enter__(self) -> OpenAIClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        target: BinaryIO,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send one request; the response's body is written to ``target``, which is emptied before each attempt.

        Raises:
            Unauthenticated: the key was refused.
            Unavailable: no response, or only temporary refusals, after all retries.
        """
        failure = ""
        for attempt in range(ATTEMPTS):
            wait = min(2.0**attempt, LONGEST_BACKOFF_SECONDS)
            try:
                with self._http.stream(method, path, params=query, json=body) as response:
                    _refill(target, response)
                reply = self._reply(response, target)
            except httpx.TransportError as error:
                failure = f"no response ({type(error).__name__})"
            else:
                if not _is_worth_waiting(reply):
                    return reply
                if response.is_server_error and attempt == ATTEMPTS - 1:
                    # One broken object must not end an export.
                    return reply
                failure = f"{reply.status} {reply.code}".rstrip()
                wait = self._told_wait(response) or wait
            if attempt < ATTEMPTS - 1:
                self._wait(wait, failure)
        raise _unavailable(f"OpenAI answered {method} {path} with {failure}, {ATTEMPTS} times.")

    def _reply(self, response: httpx.Response, target: BinaryIO) -> Reply:
        if response.is_success:
            return Reply(response.status_code)
        target.seek(0)
        code, message = _error_of(target.read(1 << 16))
        message = self.without_key(message)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise Unauthenticated(
                Code.OPENAI_KEY_INVALID,
                f"OpenAI refused the key in {self.project}: {message or code}",
                remedy="Set it to a valid key with read permission for the project.",
            )
        return Reply(response.status_code, code, message)

    def without_key(self, text: str) -> str:
        """Return a string without the key, whole or shortened as OpenAI quotes it."""
        return SECRET.sub("(key)", text.replace(self._key.secret, "(key)"))

    def _wait(self, seconds: float, failure: str) -> None:
        if seconds > LONGEST_WAIT_SECONDS:
            raise _unavailable(f"OpenAI answered with {failure} and requests a wait of {seconds:.0f} s of patience.")
        if seconds >= 5:
            self._note(f"OpenAI answered with {failure}; waiting for {seconds:.0f} s")
        self._pause(seconds)

    def _told_wait(self, response: httpx.Response) -> float | None:
        """Return the seconds of ``retry-after-ms`` or ``Retry-After``, which is a number or a date."""
        with suppress(KeyError, ValueError):
            return max(0.0, float(response.headers["retry-after-ms"]) / 1000)
        value = response.headers.get("retry-after", "")
        with suppress(ValueError):
            return max(0.0, float(value))
        with suppress(ValueError, TypeError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        return None


def _refill(target: BinaryIO, response: httpx.Response) -> None:
    target.seek(0)
    target.truncate()
    target.writelines(response.iter_bytes())


def _is_worth_waiting(reply: Reply) -> bool:
    if reply.status == httpx.codes.TOO_MANY_REQUESTS:
        return reply.code not in NOT_WORTH_WAITING
    return reply.status in {httpx.codes.REQUEST_TIMEOUT, httpx.codes.CONFLICT} or reply.status >= 500


def _error_of(body: bytes) -> tuple[str, str]:
    """Return code and message of an error response; for another program's, the beginning of its body."""
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return "", body[:200].decode(errors="replace").strip()


def _unavailable(message: str) -> Unavailable:
    remedy = "Run the command again later: saved objects are not requested again."
    return Unavailable(Code.OPENAI_UNAVAILABLE, message, remedy=remedy)
