"""Four callers that send requests during a fault, and the answers that they get."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.system.loop import BASE, Installation

PAUSE_SECONDS = 0.5
TIMEOUT_SECONDS = 60.0
READY_SECONDS = 15.0
"""Limit for an answer of `/ready`, on a busy machine."""
LONGEST_ANSWER_SECONDS = 45.0
"""Limit for any other answer, including an error's: a statement may take thirty seconds."""
NO_CONNECTION, NO_ANSWER = "no connection", "no answer"
SECRETS = ("/tmp/", "/home/", "Traceback")
"""Words of messages that tell of the server's inside."""


@dataclass
class Witness:
    """Callers of an installation.

    Attributes:
        installation: the installation that gets their requests.
        answers: by what was asked for: statuses with the code of an error, counted.
        codes: codes of all errors, including those that `/ready` names for workers.
        wrong: answers that must not occur.
    """

    installation: Installation
    answers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    codes: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def asking(self, job_id: Callable[[], str | None]) -> Iterator[None]:
        """Ask until the block ends.

        Args:
            job_id: a job to look at, once there is one.
        """
        over = threading.Event()
        question = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        upload = {
            "data": {"purpose": "fine-tune"},
            "files": {"file": ("row.jsonl", b'{"prompt":"a","response":"b"}\n')},
        }

        def poll() -> None:
            if found := job_id():
                self._ask("poll", "GET", f"/v1/jobs/{found}")

        callers: list[Callable[[], None]] = [
            lambda: self._ask("/ready", "GET", "/ready"),
            lambda: self._ask("upload", "POST", "/v1/files", **upload),
            lambda: self._ask("chat", "POST", "/v1/chat/completions", json=question),
            poll,
        ]

        def keep_asking(ask: Callable[[], None]) -> None:
            while not over.wait(PAUSE_SECONDS):
                ask()

        threads = [threading.Thread(target=keep_asking, args=(caller,)) for caller in callers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _ask(self, what: str, method: str, path: str, **request: Any) -> None:
        began = time.monotonic()
        try:
            with self.installation.connection.client(timeout=TIMEOUT_SECONDS) as client:
                response = client.request(method, path, **request)
        except httpx.TimeoutException:
            self.answers[what][NO_ANSWER] += 1
            self.wrong.append(f"{what}: no answer within {TIMEOUT_SECONDS:.0f} s")
            return
        except httpx.TransportError:
            self.answers[what][NO_CONNECTION] += 1
            return
        self.note(what, response.status_code, response.text)
        longest = READY_SECONDS if what == "/ready" else LONGEST_ANSWER_SECONDS
        if (seconds := time.monotonic() - began) > longest:
            self.wrong.append(f"{what}: {response.status_code} after {seconds:.0f} s")

    def note(self, what: str, status: int, text: str) -> None:
        """Record an answer, and judge it if it is an error."""
        outcome, answer = str(status), _parsed(text)
        for fault in answer.get("worker_faults", ()):
            self.codes.add(fault["code"])
            outcome = f"a worker has `{fault['code']}`"
        if status >= 400:
            error = answer.get("error")
            error = error if isinstance(error, dict) else {}
            code, message = str(error.get("code")), str(error.get("message"))
            self.codes.add(code)
            outcome += f" `{code}`"
            if code in ("None", "INTERNAL_ERROR") or status < 500:
                self.wrong.append(f"{what}: {status} {code}: {message or text[:200]}")
            if any(secret in message for secret in SECRETS):
                self.wrong.append(f"{what}: {code} discloses details of the server: {message}")
        self.answers[what][outcome] += 1


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
