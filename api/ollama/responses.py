"""OpenAI's answers as Ollama's clients read them. Pure.

Each chunk of a stream becomes its lines at once. The last line carries the counts, which are the engine's own, and
durations in nanoseconds as the front door saw them.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from api.openai_types import Model
from api.rejections import broken_off
from shared.errors import Code, Unavailable

DONE = b"[DONE]"
JsonObject = dict[str, Any]
Shape = Callable[[JsonObject], JsonObject]


def as_chat(piece: JsonObject) -> JsonObject:
    """A piece of an answer as POST /api/chat gives it."""
    logprobs = {"logprobs": piece["logprobs"]} if "logprobs" in piece else {}
    said = {name: value for name, value in piece.items() if name != "logprobs"}
    return {"message": {"role": "assistant", "content": "", **said}, **logprobs}


def as_generate(piece: JsonObject) -> JsonObject:
    """A piece of an answer as POST /api/generate gives it."""
    return {"response": piece.get("content", ""), **{name: value for name, value in piece.items() if name != "content"}}


class Answering:
    """One answer on its way into Ollama's shape. Its time runs from now.

    Args:
        model: as the caller named it.
        shape: of a piece: :func:`as_chat` or :func:`as_generate`.
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
        """What one chunk of a stream becomes: no line, one, or one for each call that is whole now."""
        if self._first is None:
            self._first = self._clock()
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", []):
            said = choice.get("delta") or choice
            if piece := _piece(said, choice):
                yield self._line(piece)
            calls = self._calls.add(said.get("tool_calls") or [])
            if choice.get("finish_reason"):
                self._reason = _done_reason(choice)
                calls += self._calls.finish()
            yield from (self._line({"tool_calls": [call]}) for call in calls)

    def last(self) -> JsonObject:
        """The line that ends a stream."""
        return self._line({}) | self._end()

    def whole(self, completion: JsonObject) -> JsonObject:
        """An answer that was not streamed."""
        (choice,) = completion["choices"]
        said = choice.get("message") or choice
        self._usage, self._reason = completion.get("usage") or {}, _done_reason(choice)
        numbered = [{**call, "index": index} for index, call in enumerate(said.get("tool_calls") or [])]
        calls = self._calls.add(numbered) + self._calls.finish()
        return self._line(_piece(said, choice) | ({"tool_calls": calls} if calls else {})) | self._end()

    def loaded(self) -> JsonObject:
        """The answer to a question that asked nothing."""
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
    """Calls whose arguments come as pieces of JSON text; Ollama's come whole, as objects."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[str, str]] = {}

    def add(self, deltas: Iterable[JsonObject]) -> list[JsonObject]:
        """Take pieces in; the calls that are whole now, because another has begun."""
        whole: list[JsonObject] = []
        for delta in deltas:
            if delta["index"] not in self._begun:
                whole += self.finish()
            name, arguments = self._begun.get(delta["index"], ("", ""))
            function = delta.get("function") or {}
            name, arguments = name + (function.get("name") or ""), arguments + (function.get("arguments") or "")
            self._begun[delta["index"]] = name, arguments
        return whole

    def finish(self) -> list[JsonObject]:
        """The calls that have begun. One that was cut off is none; the answer's ``done_reason`` is ``length`` then."""
        begun, self._begun = self._begun, {}
        calls = [_whole_call(name, arguments) for name, arguments in begun.values()]
        return [call for call in calls if call]


async def chunks(stream: AsyncIterable[bytes]) -> AsyncIterator[JsonObject]:
    """The chunks of OpenAI's stream, each as soon as it is there. The stream is read to its end.

    Raises:
        Unavailable: ``SERVING_FAILED``: the replica says so in the stream, or the stream ends before its end mark.
    """
    rest, ended = b"", False
    async for piece in stream:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            ended = ended or data == DONE
            if data and not ended:
                yield _sound(json.loads(data))
    if not ended:
        raise broken_off()


def tag(model: Model) -> JsonObject:
    """An entry of GET /api/tags. The front door does not know how large a model is, nor its family."""
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


def _piece(said: JsonObject, choice: JsonObject) -> JsonObject:
    """What one choice says; nothing is left out but what is empty. A completion without a chat has ``text``."""
    found = {
        "content": said.get("content") or said.get("text"),
        "thinking": said.get("reasoning") or said.get("reasoning_content"),
        "logprobs": (choice.get("logprobs") or {}).get("content"),
    }
    return {name: value for name, value in found.items() if value}


def _whole_call(name: str, arguments: str) -> JsonObject | None:
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        return None
    return {"function": {"name": name, "arguments": given}} if isinstance(given, dict) else None


def _done_reason(choice: JsonObject) -> str:
    return "length" if choice.get("finish_reason") == "length" else "stop"


def _sound(chunk: JsonObject) -> JsonObject:
    if error := chunk.get("error"):
        raise _failed(str(error.get("message", error) if isinstance(error, dict) else error))
    return chunk


def _failed(message: str) -> Unavailable:
    return Unavailable(Code.SERVING_FAILED, message, remedy="Ask again.")
