"""Requests to OpenAI's API, with its conventions on keys, base URL and retries.

A key comes from an environment variable or a prompt. It appears only in the ``Authorization`` header, never in an
argument, an error, a log line or a file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import httpx
import msgspec

from shared.errors import Code, Unauthenticated, Unavailable
from shared.http_retry import Outcome, Retries, describe_outcome, is_temporary, retry_after

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT_SECONDS = 120.0
# With waits that double from a second, OpenAI has two minutes to recover.
ATTEMPTS = 8
LONGEST_WAIT_SECONDS = 900.0
"""A `Retry-After` beyond this ends the command; the next run continues where it stopped."""
NOT_WORTH_WAITING = ("insufficient_quota", "billing_hard_limit_reached")
"""Error codes of a 429 that waiting cannot resolve."""
SECRET = re.compile(r"\bsk-[A-Za-z0-9_*.-]{4,}")
"""Matches a key, whole or shortened as OpenAI quotes it."""

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
        # An HTTP library would quote a header that it cannot send, including the key.
        if not re.fullmatch(r"[\x21-\x7e]{8,}", self.secret):
            raise Unauthenticated(
                Code.OPENAI_KEY_INVALID,
                f"The value of {self.project} is not a valid OpenAI key.",
                remedy="Copy the key again: it begins with sk- and contains no spaces.",
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """Status of a response, and the code and message of OpenAI's error; both are empty without an error."""

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
        remedy = (
            "Set it to a key of the project. Keys cannot be passed as arguments, because other users of the machine "
            "could see them."
        )
        raise Unauthenticated(Code.OPENAI_KEY_INVALID, f"{variable} is not set.", remedy=remedy)
    return ProjectKey(variable, secret)


class OpenAIClient:
    """Requests with one project's key, retried as by OpenAI's own clients.

    Args:
        pause: function that waits for some seconds.
        note: called with a line of text at each long wait.
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
        outcome = Retries(
            ATTEMPTS,
            LONGEST_WAIT_SECONDS,
            is_temporary=lambda outcome: self._is_worth_waiting(outcome, target),
            pause=lambda seconds, outcome: self._wait(seconds, outcome, target),
        ).send(partial(self._stream, method, path, target, query, body))
        # One broken object must not end an export: a server's error is its reply.
        if isinstance(outcome, httpx.Response) and (
            outcome.is_server_error or not self._is_worth_waiting(outcome, target)
        ):
            return self._reply(outcome, target)
        raise _unavailable(
            f"OpenAI responded to {method} {path} with {self._failure(outcome, target)}, {ATTEMPTS} times."
        )

    def _stream(
        self, method: str, path: str, target: BinaryIO, query: Query | None, body: Mapping[str, Any] | None
    ) -> httpx.Response:
        with self._http.stream(method, path, params=query, json=body) as response:
            target.seek(0)
            target.truncate()
            target.writelines(response.iter_bytes())
        return response

    def _is_worth_waiting(self, outcome: Outcome, target: BinaryIO) -> bool:
        if isinstance(outcome, httpx.RequestError) or outcome.status_code != httpx.codes.TOO_MANY_REQUESTS:
            return is_temporary(outcome)
        return self._reply(outcome, target).code not in NOT_WORTH_WAITING

    def _failure(self, outcome: Outcome, target: BinaryIO) -> str:
        if isinstance(outcome, httpx.RequestError):
            return describe_outcome(outcome)
        return f"{outcome.status_code} {self._reply(outcome, target).code}".rstrip()

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

    def _wait(self, seconds: float, outcome: Outcome, target: BinaryIO) -> None:
        failure, requested = self._failure(outcome, target), retry_after(outcome) or 0.0
        if requested > LONGEST_WAIT_SECONDS:
            raise _unavailable(f"OpenAI responded with {failure} and asks to wait {requested:.0f} s.")
        if seconds >= 5:
            self._note(f"OpenAI responded with {failure}; waiting {seconds:.0f} s")
        self._pause(seconds)


def _error_of(body: bytes) -> tuple[str, str]:
    """Return the code and message of an error response; if it is not from OpenAI, the beginning of its body."""
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return "", body[:200].decode(errors="replace").strip()


def _unavailable(message: str) -> Unavailable:
    remedy = "Run the command again later: saved objects are not requested again."
    return Unavailable(Code.OPENAI_UNAVAILABLE, message, remedy=remedy)
