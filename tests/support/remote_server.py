"""Models on another server for graders: a judge and an embedding model, served by `http_stub`."""

from __future__ import annotations

import json
from email.message import Message

VECTORS = {"north": [0.0, 2.0], "east": [3.0, 0.0], "north-east": [1.0, 1.0]}


class RemoteServer:
    """A server of models; ``answers`` are statuses and bodies that it returns before its own."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, dict[str, object]]] = []
        self.answers: list[tuple[int, object]] = []

    def respond(self, _method: str, target: str, body: bytes, headers: Message) -> tuple[int, object]:
        request = json.loads(body)
        self.asked.append((target, headers.get("Authorization"), request))
        if self.answers:
            return self.answers.pop(0)
        if target.endswith("/embeddings"):
            rows = [{"index": place, "embedding": VECTORS[text]} for place, text in enumerate(request["input"])]
            return 200, {"data": rows[::-1]}
        content = json.dumps({"steps": [], "result": 0.75})
        return 200, {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": 9}}
