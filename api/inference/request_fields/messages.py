"""Messages of a request: parts that vLLM fails on or leaves out are refused, or translated to a form that it reads.
Pure.

vLLM validates messages loosely, to allow roles that OpenAI does not have, and then reads some parts as if it had
validated them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.errors import Code, InvalidRequest

JsonObject = dict[str, Any]


def check_messages(messages: Any) -> None:
    """Check the calls and the content parts of a chat's messages. Values that are not messages at all are left for vLLM
    to refuse.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``.
    """
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            _check_calls(f"messages[{index}]", message)
            _check_parts(f"messages[{index}].content", message.get("content"))


def _check_calls(path: str, message: JsonObject) -> None:
    if (call := message.get("function_call")) is not None:
        if message.get("role") != "assistant":
            raise _invalid(f"{path}.function_call", "is not in a message of the assistant", "Leave it out.")
        _check_function(f"{path}.function_call", call)
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        if not isinstance(call, dict):
            raise _invalid(f"{path}.tool_calls[{index}]", "is not an object", "Make it a call of a function.")
        _check_function(f"{path}.tool_calls[{index}].function", call.get("function"))


def _check_function(path: str, function: Any) -> None:
    if not isinstance(function, dict):
        raise _invalid(path, "is not an object", 'Make it {"name": …, "arguments": …}.')
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise _invalid(f"{path}.name", "is not a non-empty string", "Give the function's name.")


def _check_parts(path: str, content: Any) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, str):
            continue
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise _invalid(f"{path}[{index}].type", "is not a string", 'Make it "text".')
        audio = part.get("input_audio")
        if audio is not None and not isinstance(audio, dict):
            raise _invalid(f"{path}[{index}].input_audio", "is not an object", "Send text only.")


def with_refusals(messages: list[Any]) -> list[Any]:
    """Return a chat's messages with an assistant's refusal as its content, as in training rows: vLLM leaves refusals
    out.

    Returns the list itself if no message has a refusal.
    """
    return _translated(messages, _refused)


def _refused(message: JsonObject) -> JsonObject:
    refusal = message.get("refusal")
    if message.get("role") != "assistant" or not refusal or message.get("content"):
        return message
    return {**message, "content": refusal}


def with_whole_texts(items: list[Any]) -> list[Any]:
    """Return a response's input items with each assistant message's text parts joined into one: vLLM reads only the
    first.

    vLLM fails if a message has no text, or if its first part is a refusal. Returns the list itself if nothing changes.
    """
    return _translated(items, _whole)


def _whole(item: JsonObject) -> JsonObject:
    parts = item.get("content")
    if item.get("role") != "assistant" or not isinstance(parts, list):
        return item
    contents = [part.get("text", part.get("refusal")) if isinstance(part, dict) else None for part in parts]
    texts = [text for text in contents if isinstance(text, str)]
    if len(texts) < len(parts):
        return item  # vLLM refuses it
    whole = {"type": "output_text", "text": "".join(texts), "annotations": []}
    return {**item, "type": "message", "content": [whole]}


def _translated(messages: list[Any], translate: Callable[[JsonObject], JsonObject]) -> list[Any]:
    translated = [translate(message) if isinstance(message, dict) else message for message in messages]
    is_same = all(new is old for new, old in zip(translated, messages, strict=True))
    return messages if is_same else translated


def _invalid(path: str, fault: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(Code.REQUEST_INVALID, f"`{path}` {fault}.", remedy=remedy, param=path)
