"""Translates ``functions`` and ``function_call``, OpenAI's API before tools, to tools and back. Pure."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec

from api.inference.event_stream import DATA, EVENT_END
from shared.errors import Code, InvalidRequest, MensError

JsonObject = dict[str, Any]
TRANSLATED = (
    (re.compile(r"^tools(\[\d+\])\.function\b"), r"functions\1"),
    (re.compile(r"^tools\b"), "functions"),
    (re.compile(r"^tool_choice(\.function)?\b"), "function_call"),
)
"""Prefixes of a field's path in a translated body, and in the caller's."""
TRANSLATED_CALL = re.compile(r"^messages\[(\d+)\]\.tool_calls(?:\[0\](?:\.function\b)?)?")


def uses_functions(body: JsonObject) -> bool:
    """Return whether a chat describes functions in the old form, and so expects ``function_call`` in the answer."""
    return body.get("functions") is not None or body.get("function_call") is not None


def with_tools(body: JsonObject) -> JsonObject:
    """Return the same chat with tools in place of functions; the body itself if it has none.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: both are present, or one has the wrong type.
    """
    messages = body.get("messages")
    is_old = isinstance(messages, list) and any(map(_is_old, messages))
    if not is_old and not body.keys() & {"functions", "function_call"}:
        return body
    changed = {name: value for name, value in body.items() if name not in ("functions", "function_call")}
    if isinstance(messages, list) and is_old:
        changed["messages"] = list(_messages(messages))
    if not uses_functions(body):
        return changed
    for name in ("tools", "tool_choice"):
        if changed.get(name) is not None:
            raise _invalid("functions", f"`functions` and `{name}` cannot be combined.", "Use `tools` alone.")
    if (functions := body.get("functions")) is not None:
        changed["tools"] = _tools(functions)
    if (choice := body.get("function_call")) is not None:
        changed["tool_choice"] = _tool_choice(choice)
    # `function_call` can hold only one call.
    return changed | {"parallel_tool_calls": False}


def in_callers_names(error: MensError, body: JsonObject) -> MensError:
    """Rewrite an error about a translated body to name the caller's fields in its message, ``param`` and details.

    Args:
        error: is changed.
        body: the caller's body.
    """
    if error.param and (written := callers_field(error.param, body)) != error.param:
        error.message = error.message.replace(error.param, written)
        error.param = written
    for fault in error.details.get("errors", ()):
        fault["param"] = callers_field(fault["param"], body)
    return error


def callers_field(path: str, body: JsonObject) -> str:
    """Return the path in the caller's body of a field that :func:`with_tools` moved to another path."""
    if uses_functions(body):
        for translated, written in TRANSLATED:
            if translated.match(path):
                return translated.sub(written, path)
    call, messages = TRANSLATED_CALL.match(path), body.get("messages")
    if call is None or not isinstance(messages, list) or not any(map(_is_old, messages[int(call[1]) :][:1])):
        return path
    return f"messages[{call[1]}].function_call{path[call.end() :]}"


def _tools(functions: Any) -> list[JsonObject]:
    if not isinstance(functions, list) or not functions:
        raise _invalid("functions", "`functions` is not a list with functions.", "Use `tools`, or leave it out.")
    for index, function in enumerate(functions):
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            param = f"functions[{index}].name"
            raise _invalid(param, f"`{param}` is not a non-empty string.", "Give the function a name.")
    return [{"type": "function", "function": function} for function in functions]


def _tool_choice(choice: Any) -> Any:
    if choice in ("none", "auto"):
        return choice
    if isinstance(choice, dict) and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise _invalid("function_call", "`function_call` is wrong.", 'Make it "none", "auto" or {"name": …}.')


def _is_old(message: Any) -> bool:
    """Return whether a message is a function's result, or an assistant's message with a call."""
    role = message.get("role") if isinstance(message, dict) else None
    return role == "function" or (role == "assistant" and bool(message.get("function_call")))


def _messages(messages: Iterable[Any]) -> Iterator[Any]:
    """Yield the messages with calls and results in the form for tools; a result belongs to the call before it."""
    for index, message in enumerate(messages):
        if not _is_old(message):
            yield message
        elif message["role"] == "function":
            rest = {name: value for name, value in message.items() if name != "name"}
            yield rest | {"role": "tool", "tool_call_id": f"call_{index - 1}"}
        else:
            rest = {name: value for name, value in message.items() if name != "function_call"}
            call = {"id": f"call_{index}", "type": "function", "function": message["function_call"]}
            yield rest if message.get("tool_calls") else rest | {"tool_calls": [call]}


def _invalid(param: str, message: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(Code.REQUEST_INVALID, message, remedy=remedy, param=param)


async def whole_with_function_call(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a chat completion with ``function_call`` in place of ``tool_calls``."""
    completion = msgspec.json.decode(b"".join([chunk async for chunk in content]))
    yield msgspec.json.encode(_with_function_call(completion, "message"))


async def events_with_function_call(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the events of a chat completion with ``function_call`` in place of ``tool_calls``; others are unchanged."""
    begun = b""
    async for chunk in content:
        *events, begun = (begun + chunk).split(EVENT_END)
        if events:
            yield b"".join(_event(event) + EVENT_END for event in events)
    if begun:
        yield begun


def _event(event: bytes) -> bytes:
    # Most events have neither; other beginnings, such as [DONE], are not JSON.
    if not event.startswith(DATA + b"{") or b'"tool_calls"' not in event:
        return event
    return DATA + msgspec.json.encode(_with_function_call(msgspec.json.decode(event[len(DATA) :]), "delta"))


def _with_function_call(completion: JsonObject, field: str) -> JsonObject:
    for choice in completion.get("choices", ()):
        message = choice.get(field) or {}
        if calls := message.pop("tool_calls", None):
            message["function_call"] = calls[0]["function"]
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "function_call"
    return completion
