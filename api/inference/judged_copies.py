"""Inputs for judging a copied request: the answer that was sent to the caller, and the request for the shadow adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.inference.event_stream import DATA, EVENT_END
from shared.database.gates.shadow_comparisons import ShadowPair

CHAT = "/v1/chat/completions"
MAX_ANSWER_BYTES = 512 << 10
"""Largest answer that is kept as it passes by; a longer one is not judged."""


class PassingAnswer:
    """The bytes of a response, kept as they pass to the caller: a reference to each chunk, up to a limit."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Keep a chunk; beyond the limit, nothing is kept."""
        self._size += len(chunk)
        if self._size <= MAX_ANSWER_BYTES:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def completion(self) -> dict[str, Any] | None:
        """Return the chat completion, also from a stream; None if it was too long or cannot be judged."""
        raw = b"".join(self._chunks)
        try:
            return _from_stream(raw) if raw.startswith(DATA) else json.loads(raw)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class JudgedCopy:
    """A request whose copy is judged against the caller's answer.

    Attributes:
        tenant: tenant that sent the request.
        messages: messages of the request.
        answer: the caller's answer, complete by the time that the copy is sent.
    """

    tenant: str
    pair: ShadowPair
    messages: list[Any]
    answer: PassingAnswer


def is_judgeable(path: str, body: Mapping[str, Any]) -> bool:
    """Return whether answers to a request can be judged: a chat with one answer."""
    return path == CHAT and body.get("n") in (None, 1) and isinstance(body.get("messages"), list)


def without_stream(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same request for a complete answer instead of a stream."""
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _from_stream(raw: bytes) -> dict[str, Any] | None:
    """Return the completion in a stream's events; None if it calls tools, whose parts are not assembled here."""
    texts: list[str] = []
    for event in raw.split(EVENT_END):
        data = event.strip().removeprefix(DATA)
        if not data or data == b"[DONE]":
            continue
        for choice in json.loads(data)["choices"]:
            if choice["delta"].get("tool_calls"):
                return None
            texts.append(choice["delta"].get("content") or "")
    return {"choices": [{"message": {"content": "".join(texts)}}]}
