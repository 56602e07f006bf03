"""Rows in the form in which vLLM passes a chat to a template: keys, their order, nulls and roles affect the output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.contract.choices import ThoughtsRule
from shared.datasets.rows import Message

_OURS = frozenset(("weight", "reasoning_content"))
"""Fields of a row that templates do not get, or get under other names."""


def served_roles(messages: Sequence[Message], template: str) -> list[Message]:
    """Return turns with the roles that vLLM passes to a template.

    A developer's turn is a system turn where the template does not know the role developer. Several system turns, or
    one that is not the first, are then joined into one at the beginning, without a name, because many templates accept
    no other form.
    """
    if not any(message.role == "developer" for message in messages) or _knows_developer(template):
        return list(messages)
    turns = [replace(message, role="system") if message.role == "developer" else message for message in messages]
    if [index for index, turn in enumerate(turns) if turn.role == "system"] == [0]:
        return turns
    system = [turn.content for turn in turns if turn.role == "system" and turn.content]
    return [Message("system", "\n\n".join(system)), *(turn for turn in turns if turn.role != "system")]


def _knows_developer(template: str) -> bool:
    """Return whether the template knows developers, by vLLM's own test."""
    return '"developer"' in template or "'developer'" in template


def trained_turns(messages: Sequence[Message], thoughts: ThoughtsRule) -> list[Message]:
    """Return a row's turns in the form that the contract chooses, with or without their thoughts."""
    if thoughts is not ThoughtsRule.DROP:
        return list(messages)
    return [replace(message, reasoning_content=None) if message.reasoning_content else message for message in messages]


def plain_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return turns as vLLM passes them to a template: content is a string, tool arguments are objects, thoughts have
    both of their names.
    """
    plain = []
    for message in messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.tool_calls is not None or message.name is not None or message.tool_call_id is not None:
            fields: dict[str, Any] = msgspec.to_builtins(message)
            turn |= {
                key: value for key, value in fields.items() if key not in _OURS and value is not None and value != []
            }
            if calls := turn.get("tool_calls"):
                turn["tool_calls"] = [_with_object_arguments(call) for call in calls]
        if message.reasoning_content:
            turn |= {"reasoning": message.reasoning_content, "reasoning_content": message.reasoning_content}
        plain.append(turn)
    return plain


def _with_object_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments if arguments.strip() else "{}")
    if arguments is None:  # left out, null, or the string "null"
        arguments = {}
    if not isinstance(function, dict) or not isinstance(arguments, dict):
        return call
    function = _ordered(function | {"arguments": arguments}, "arguments", "name")
    return _ordered(call | {"function": function}, "id", "function", "type")


def served_tools(tools: list[Any] | None) -> list[Any] | None:
    """Return tool definitions as vLLM passes them to a template: its keys, its order, null for missing ones."""
    served = []
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or "name" not in function:
            served.append(tool)  # a row with such a tool is refused or translated before (`datasets/forms/tools.py`)
            continue
        strict = {"strict": function["strict"]} if function.get("strict") is not None else {}
        described = {key: function.get(key) for key in ("name", "description", "parameters")}
        served.append({"type": "function", "function": described | strict})
    return served or None


def _ordered(content: dict[str, Any], *first: str) -> dict[str, Any]:
    """Move some keys to the front: a template may write a dict unchanged, so its order affects the output."""
    return {key: content[key] for key in first if key in content} | content
