"""OpenAI's responses in Ollama's shape. Pure.

Each chunk of a stream is converted to lines as soon as it arrives. The last line has the token counts, which are vLLM's
own, and durations in nanoseconds as the API measured them.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from api.errors import interrupted_response
from api.openai.types import Model
from shared.errors import Code, Unavailable

DONE = b"[DONE]"
JsonObject = dict[str, Any]
Shape = Callable[[JsonObject], JsonObject]


def as_chat(piece: JsonObject) -> JsonObject:
    """Return a piece of a response in the shape of POST /api/chat."""
    logprobs = {"logprobs": piece["logprobs"]} if "logprobs" in piece else {}
    message = {name: value for name, value in piece.items() if name != "logprobs"}
    return {"message": {"role": "assistant", "content": "", **message}, **logprobs}


def as_generate(piece: JsonObject) -> JsonObject:
    """Return a piece of a response in the shape of POST /api/generate."""
    return {"response": piece.get("content", ""), **{name: value for name, value in piece.items() if name != "content"}}


class ResponseBuilder:
    """Builds one response in Ollama's shape. Its durations are counted from its construction.

    Args:
        model: its name in the request.
        shape: converts a piece: :func:`as_chat` or :func:`as_generate`.
        clock: monotonic nanoseconds.
    """

    def __init__(self, model: str, shape: Shape, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._model = model
        self._shape = shape
        self._clock = clock
        self._started = clock()
        self._first: int | None = None
        self._reason = "stop"
        self._usage: JsonObject = {}
        self._calls = ToolCalls()

    def lines(self, chunk: JsonObject) -> Iterator[JsonObject]:
        """Yield the lines for one chunk of a stream: none, one, or one for each newly complete tool call."""
        if self._first is None:
            self._first = self._clock()
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", []):
            delta = choice.get("delta") or choice
            if piece := _piece(delta, choice):
                yield self._line(piece)
            calls = self._calls.add(delta.get("tool_calls") or [])
            if choice.get("finish_reason"):
                self._reason = _done_reason(choice)
                calls += self._calls.finish()
            yield from (self._line({"tool_calls": [call]}) for call in calls)

    def last(self) -> JsonObject:
        """Return the line that ends a stream."""
        return self._line({}) | self._end()

    def whole(self, completion: JsonObject) -> JsonObject:
        """Return a response that is not streamed."""
        (choice,) = completion["choices"]
        message = choice.get("message") or choice
        self._usage, self._reason = completion.get("usage") or {}, _done_reason(choice)
        numbered = [{**call, "index": index} for index, call in enumerate(message.get("tool_calls") or [])]
        calls = self._calls.add(numbered) + self._calls.finish()
        return self._line(_piece(message, choice) | ({"tool_calls": calls} if calls else {})) | self._end()

    def loaded(self) -> JsonObject:
        """Return the response to a request that only loads the model."""
        return self._line({}) | {"done": True, "done_reason": "load"}

    def _line(self, piece: JsonObject) -> JsonObject:
        created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self._model, "created_at": created_at, **self._shape(piece), "done": False}

    def _end(self) -> JsonObject:
        ended = self._clock()
        first = self._started if self._first is None else self._first
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": ended - self._started,
            "load_duration": 0,
            "prompt_eval_count": self._usage.get("prompt_tokens", 0),
            "prompt_eval_duration": first - self._started,
            "eval_count": self._usage.get("completion_tokens", 0),
            "eval_duration": ended - first,
        }


class ToolCalls:
    """Collects tool calls, whose arguments arrive as pieces of JSON; Ollama's arrive complete, as objects."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[str, str]] = {}

    def add(self, deltas: Iterable[JsonObject]) -> list[JsonObject]:
        """Add pieces; return the calls that are complete now, because another has begun."""
        complete: list[JsonObject] = []
        for delta in deltas:
            if delta["index"] not in self._begun:
                complete += self.finish()
            name, arguments = self._begun.get(delta["index"], ("", ""))
            function = delta.get("function") or {}
            name, arguments = name + (function.get("name") or ""), arguments + (function.get("arguments") or "")
            self._begun[delta["index"]] = name, arguments
        return complete

    def finish(self) -> list[JsonObject]:
        """Return the calls that have begun, without one whose arguments were cut off: ``done_reason`` is ``length``
        then.
        """
        begun, self._begun = self._begun, {}
        calls: list[JsonObject] = []
        for name, text in begun.values():
            try:
                arguments = json.loads(text or "{}")
            except ValueError:
                continue
            if isinstance(arguments, dict):
                calls.append({"function": {"name": name, "arguments": arguments}})
        return calls


async def chunks(stream: AsyncIterable[bytes]) -> AsyncIterator[JsonObject]:
    """Yield the chunks of OpenAI's stream, each as soon as it arrives. The stream is read to its end.

    Raises:
        Unavailable: ``SERVING_FAILED``: the stream has an error event, or ends before its end mark.
    """
    rest, ended = b"", False
    async for piece in stream:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            ended = ended or data == DONE
            if data and not ended:
                chunk = json.loads(data)
                if error := chunk.get("error"):
                    message = str(error.get("message", error) if isinstance(error, dict) else error)
                    raise Unavailable(Code.SERVING_FAILED, message, remedy="Try again.")
                yield chunk
    if not ended:
        raise interrupted_response()


def tag(model: Model) -> JsonObject:
    """Return an entry of GET /api/tags. The API knows neither a model's size nor its family."""
    mens = model.mens or {}
    adapter_id = mens.get("adapter_id") or model.id
    return {
        "name": model.id,
        "model": model.id,
        "modified_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "size": 0,
        "digest": mens.get("digest") or adapter_id.partition("@")[2],
        "details": {
            "parent_model": mens.get("base_model") or "",
            "format": "safetensors",
            "family": "",
            "families": None,
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def _piece(message: JsonObject, choice: JsonObject) -> JsonObject:
    """Return the parts of a choice that are not empty. A text completion has ``text`` instead of ``content``."""
    fields = {
        "content": message.get("content") or message.get("text"),
        "thinking": message.get("reasoning") or message.get("reasoning_content"),
        "logprobs": (choice.get("logprobs") or {}).get("content"),
    }
    return {name: value for name, value in fields.items() if value}


def _done_reason(choice: JsonObject) -> str:
    return "length" if choice.get("finish_reason") == "length" else "stop"
