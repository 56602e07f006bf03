"""Guard against lost parts: a row is refused unless every part of it is in the chat that the base's template renders.

A template omits a role, a part or a place that it does not know, without a warning. Two checks find that:

- **by words**: each turn's text, each call's function, each tool and its parameters must occur in the row's own chat;
- **by shape**: for each sequence of roles and parts, a chat of that shape is rendered once, with words that occur
  nowhere else. This finds a lost part that is short and also occurs elsewhere, and lost arguments of calls and
  parameters of tools.

Two kinds of parts may be left out with only a note: a speaker's ``name``, and an answer's thoughts, which many
templates drop from earlier turns on purpose, in training and in serving. The last answer's thoughts must not be left
out if they have a separate field: they would be lost from every row, and the model would learn not to think.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shared.datasets.rows import END_OF_THOUGHTS
from shared.errors import Code, InvalidRequest
from shared.tokenization.tokenizer import Tokenizer

LeftOut = Literal["thoughts", "names"]
Part = tuple[str, str]
"""Description of a part, for a message; and the string that must be found."""
THOUGHTS = "reasoning_content"
_LAST_THOUGHTS = "the thoughts of the last answer"
MAX_SHAPES = 4_096
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class _Omissions:
    """Parts that a template leaves out of chats of one shape: the first part for which a row is refused, and the parts
    that may be left out.
    """

    part: str | None = None
    may_be: frozenset[LeftOut] = frozenset()


def check_complete(
    tokenizer: Tokenizer, messages: Sequence[dict[str, Any]], tools: list[Any] | None, text: str
) -> frozenset[LeftOut]:
    """Refuse a row if a part of it is not in the rendered chat.

    Args:
        messages, tools: arguments of the template.
        text: its output.

    Returns:
        Parts that were left out, and that may be left out.

    Raises:
        InvalidRequest: ``TEMPLATE_UNSUPPORTED``.
    """
    left_out: set[LeftOut] = set()
    for noun, part in _parts(messages, tools):
        if _is_written(part, text):
            continue
        thoughts, end, answer = part.rpartition(END_OF_THOUGHTS)
        if not end or not _is_written(answer, text):
            raise _leaves_out(f"{noun} {_excerpt(part)}")
        if not _is_written(thoughts.strip().removeprefix("<think>"), text):
            left_out.add("thoughts")
    for message in messages:
        if (own := message.get(THOUGHTS)) and not _is_written(own, text):
            if message is messages[-1]:
                raise _leaves_out(_LAST_THOUGHTS)
            left_out.add("thoughts")
    omissions = _omissions(tokenizer, messages, tools)
    if omissions.part:
        raise _leaves_out(omissions.part)
    return omissions.may_be | left_out


def _parts(messages: Sequence[dict[str, Any]], tools: list[Any] | None) -> Iterator[Part]:
    for message in messages:
        if content := message["content"]:
            yield f"the {message['role']} turn", content
        for function in _functions(message.get("tool_calls")):
            yield "the call of", function["name"]
    for function in _functions(tools):
        yield "the tool", function["name"]
        if isinstance(description := function.get("description"), str):
            yield "the description of a tool", description
        for name, about in _properties(function).items():
            yield "the parameter of a tool", name
            yield "the description of a parameter", _description(about)


def _functions(calls: Any) -> Iterator[dict[str, Any]]:
    """Yield the functions of tool calls or tools."""
    for call in calls or ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function


def _properties(function: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a tool's parameters, by name."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties if isinstance(properties, dict) else {}


def _description(about: Any) -> str:
    """Return the description of one parameter; empty without one."""
    description = about.get("description") if isinstance(about, dict) else None
    return description if isinstance(description, str) else ""


def _is_written(part: str, text: str) -> bool:
    """Return whether a template wrote a part: as it is, trimmed, as JSON, or with other white space."""
    bare = part.strip()
    return (
        bare in text
        or json.dumps(bare, ensure_ascii=False)[1:-1] in text
        or json.dumps(bare)[1:-1] in text
        or " ".join(bare.split()) in " ".join(text.split())
    )


def _omissions(tokenizer: Tokenizer, messages: Sequence[dict[str, Any]], tools: list[Any] | None) -> _Omissions:
    """Return the parts that the template leaves out of chats of this shape; computed once."""
    cache: dict[Hashable, _Omissions] = tokenizer.omissions
    shape = (*map(_shape, messages), bool(tools), *map(any, zip(*map(_tool_shape, _functions(tools)), strict=True)))
    if shape not in cache:
        if len(cache) >= MAX_SHAPES:
            cache.clear()
        cache[shape] = _find_omissions(tokenizer, messages, tools)
    return cache[shape]


def _shape(message: dict[str, Any]) -> Hashable:
    calls = [bool(function.get("arguments")) for function in _functions(message.get("tool_calls"))]
    return (message["role"], bool(message["content"]), *calls, "name" in message, THOUGHTS in message)


def _tool_shape(function: dict[str, Any]) -> tuple[bool, ...]:
    properties = _properties(function)
    return bool(function.get("description")), bool(properties), any(map(_description, properties.values()))


def _find_omissions(tokenizer: Tokenizer, messages: Sequence[dict[str, Any]], tools: list[Any] | None) -> _Omissions:
    """Render a chat of the same shape with words that occur nowhere else, and find the missing ones."""
    marked = [_marked_turn(message, f"q{index}z") for index, message in enumerate(messages)]
    marked_tools = [_marked_tool(tool, f"q{index}t") for index, tool in enumerate(tools or ())] or None
    try:
        text = tokenizer.render(marked, marked_tools).text
    except InvalidRequest:
        # The template only accepts specific strings; the original row rendered.
        return _Omissions()
    for original, message in zip(messages, marked, strict=True):
        for noun, mark in _marks(message):
            if mark not in text:
                return _Omissions(f"{noun} ({original['role']})")
    for noun, mark in _tool_marks(marked_tools):
        if mark not in text:
            return _Omissions(noun)
    lost = [message for message in marked if THOUGHTS in message and message[THOUGHTS] not in text]
    if lost and lost[-1] is marked[-1]:
        return _Omissions(_LAST_THOUGHTS)
    loses_names = any(message["name"] not in text for message in marked if "name" in message)
    may_be: list[LeftOut] = [*(["thoughts"] if lost else []), *(["names"] if loses_names else [])]  # type: ignore[list-item]
    return _Omissions(may_be=frozenset(may_be))


def _marks(message: dict[str, Any]) -> Iterator[Part]:
    if message["content"]:
        yield "the content of a turn", message["content"]
    for function in _functions(message.get("tool_calls")):
        yield "a call's function", function["name"]
        if isinstance(arguments := function.get("arguments"), dict):
            yield from (("a call's arguments", str(mark)) for pair in arguments.items() for mark in pair)


def _tool_marks(tools: list[Any] | None) -> Iterator[Part]:
    for function in _functions(tools):
        yield "the tools", function["name"]
        if properties := _properties(function):
            name, about = [*properties.items()][-1]
            yield "a tool's parameters", name
            yield "the descriptions of a tool's parameters", _description(about)


def _marked_turn(message: dict[str, Any], mark: str) -> dict[str, Any]:
    turn = dict(message)
    if message["content"]:
        turn["content"] = f"Wc{mark}"
    if "name" in message:
        turn["name"] = f"Wn{mark}"
    if THOUGHTS in message:
        turn |= dict.fromkeys(("reasoning", THOUGHTS), f"Wt{mark}")
    if calls := message.get("tool_calls"):
        turn["tool_calls"] = [_marked_call(call, f"{index}{mark}") for index, call in enumerate(calls)]
    return turn


def _marked_call(call: Any, mark: str) -> Any:
    """Return a call with another name, and other arguments if it has any."""
    if (function := _named_function(call)) is None:
        return call
    marked: dict[str, Any] = {"name": f"Wf{mark}"}
    if isinstance(arguments := function.get("arguments"), dict) and arguments:
        marked["arguments"] = {f"Wk{mark}": f"Wv{mark}"}
    return call | {"function": function | marked}


def _marked_tool(tool: Any, mark: str) -> Any:
    """Return a tool with another name and, if it has parameters, one more parameter, with a description if another has
    one.
    """
    if (function := _named_function(tool)) is None:
        return tool
    marked: dict[str, Any] = {"name": f"Wf{mark}"}
    if properties := _properties(function):
        about = {"type": "string"}
        if any(map(_description, properties.values())):
            about["description"] = f"Wd{mark}"
        marked["parameters"] = function["parameters"] | {"properties": properties | {f"Wp{mark}": about}}
    return tool | {"function": function | marked}


def _named_function(call: Any) -> dict[str, Any] | None:
    """Return the function of a call or tool in the clients' form; None for another form, which is left as it is."""
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) and "name" in function else None


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _leaves_out(part: str) -> InvalidRequest:
    if part == _LAST_THOUGHTS:
        return InvalidRequest(
            Code.TEMPLATE_UNSUPPORTED,
            f"The base's chat template leaves out {part}; data.thoughts = drop leaves thoughts out on purpose.",
            remedy="Set data.template_arguments so that the template writes thoughts, or data.thoughts = drop.",
            param="data.thoughts",
        )
    return InvalidRequest(
        Code.TEMPLATE_UNSUPPORTED,
        f"The base's chat template leaves out {part}.",
        remedy="Remove it from the row, or give the base a chat_template.jinja that writes it.",
        param="model.hf_repo",
    )
