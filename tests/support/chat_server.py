"""OpenAI's chat route on a loopback port: it counts requests, and a function computes the answers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from typing import Any

from tests.support.http_stub import http_stub

Answer = Callable[[dict[str, Any]], "str | dict[str, Any] | tuple[int, dict[str, Any]]"]
"""Maps the body of a request to the text of the answer, a whole choice, or a status and an error."""


class ChatServer:
    """A server that answers chats.

    Attributes:
        url: with ``/v1``.
        bodies: body of each request, in order.
        headers: headers of each request, in order.
        most_at_once: largest number of concurrent requests.
    """

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Message] = []
        self.most_at_once = 0
        self.answer = answer
        self._at_once = 0
        self._lock = threading.Lock()

    @property
    def repeated(self) -> int:
        """Number of requests before this one."""
        return sum(Counter(map(json.dumps, self.bodies)).values()) - len(set(map(json.dumps, self.bodies)))

    def respond(self, _method: str, target: str, content: bytes, headers: Message) -> tuple[int, object]:
        """Return the response to a request."""
        assert target == "/v1/chat/completions"
        body = json.loads(content)
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            found = self.answer(body)
        finally:
            with self._lock:
                self._at_once -= 1
        if isinstance(found, tuple):
            return found
        choice = {"message": {"role": "assistant", "content": found}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return 200, {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": body["model"] + "-0613",
            "system_fingerprint": "fp_1",
            "choices": [{"index": 0, **(found if isinstance(found, dict) else choice)}],
            "usage": usage,
        }


@contextmanager
def chat_server(answer: Answer) -> Iterator[ChatServer]:
    """A server that answers until the block ends."""
    server = ChatServer(answer)
    with http_stub(server.respond) as url:
        server.url = f"{url}/v1"
        yield server
