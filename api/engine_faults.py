"""vLLM's refusals in words: fields and reasons for the caller, its own notation among the details. Pure.

    2 validation errors:                                                           max_tokens: Input should be a valid
      {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input …', …}   ─►  integer; top_p: Input should be …
      {'type': 'float_parsing', 'loc': 'body.top_p', 'msg': 'Input …', …}

What it reads lazily, the parts of a message's content, it refuses in pydantic's own print, without the path to it:

    7 validation errors for ValidatorIterator
    0.ChatCompletionContentPartTextParam.text                                  ─►  messages[0].content[0].text: Field
      Field required [type=missing, input_value={'type': 'text'}, …]               required

Fields are written as OpenAI writes them: ``messages[0].role``. A sentence is told by `api/engine_fields.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from api.engine_fields import in_callers_words
from api.faults import describe_faults
from shared.errors import Code

LISTED = re.compile(r"\d+ validation errors?:\n")
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
FAULT = re.compile(rf"\{{'type': '(?P<type>\w+)', 'loc': (?P<loc>{_TEXT}), 'msg': (?P<msg>{_TEXT})[,}}]")
"""The beginning of a fault. What follows may be cut off, or be no literal."""

PRINTED = re.compile(r"\d+ validation errors? for \w+\n")
PRINTED_FAULT = re.compile(r"^(?P<loc>\S.*)\n  (?P<msg>.+?) \[type=(?P<type>\w+), input_value=", re.MULTILINE)

PYTHONS = re.compile(r"'\w+' object (?:is not|has no|does not) ")
"""A ``TypeError`` of vLLM's own code, as of ``"messages": null``."""
INDEX = re.compile(r"\.(\d+)(?=\.|$)")
CHOOSERS = ("type", "role")
"""Fields whose value says which branch of a union is meant."""


class Told(NamedTuple):
    """A refusal as the caller gets it."""

    message: str
    param: str | None
    details: dict[str, Any]
    remedy: str = ""
    code: Code = Code.REQUEST_REJECTED


class Fault(NamedTuple):
    """One of vLLM's reasons. A union's branch is a part of the path, named after vLLM's class."""

    kind: str
    path: tuple[str, ...]
    reason: str


def in_words(text: str, param: str | None, asked: dict[str, Any]) -> Told:
    """What vLLM said, in words.

    Args:
        text: its message.
        param: the field that it blames, without ``body.`` before it.
        asked: the request as the caller wrote it.
    """
    if faults := _meant(list(_faults(text))):
        return _told(text, _by_field(faults, asked), param)
    if PYTHONS.match(text):
        words = "A field of the request has a value of the wrong type; vLLM does not say which."
        remedy = "Look for a null, or a text where a list or an object belongs."
        return Told(words, param, {"serving_message": text}, remedy)
    # An error that was raised with its field says that once more: "… must be set. (parameter=tool_choice, value=auto)".
    words, mark, _ = text.partition(f" (parameter={param}")
    said = in_callers_words(words if mark and text.endswith(")") else text, param, asked)
    details = {} if said.message == text else {"serving_message": text}
    return Told(said.message, said.param and _bracketed(said.param), details, said.remedy, said.code)


def _faults(text: str) -> Iterator[Fault]:
    """The faults of a list; none if the text is none. A line that is no fault is a reason by itself."""
    if head := LISTED.match(text):
        for line in map(str.strip, text[head.end() :].splitlines()):
            if match := FAULT.match(line):
                path = ast.literal_eval(match["loc"]).removeprefix("body").removeprefix(".")
                yield Fault(match["type"], tuple(path.split(".")) if path else (), ast.literal_eval(match["msg"]))
            elif line and not line.startswith(("{", "...")):
                yield Fault("other", (), line)
    elif PRINTED.match(text):
        for match in PRINTED_FAULT.finditer(text):
            yield Fault(match["type"], tuple(match["loc"].split(".")), match["msg"])


def _branches(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [path[: index + 1] for index, part in enumerate(path) if part[:1].isupper()]


def _meant(faults: list[Fault]) -> list[Fault]:
    """Without the branches that the caller's ``type`` or ``role`` rules out; where it rules out all, what it may be."""
    choices = [
        fault for fault in faults if fault.kind == "literal_error" and fault.path[-1:] and fault.path[-1] in CHOOSERS
    ]
    wrong = {fault.path[:-1] for fault in choices}
    chosen = {branch[:-1] for fault in faults for branch in _branches(fault.path) if branch not in wrong}
    return [
        fault
        for fault in faults
        if not any(
            branch in wrong and (branch[:-1] in chosen or fault not in choices or fault.path[:-1] != branch)
            for branch in _branches(fault.path)
        )
    ]


def _by_field(faults: list[Fault], asked: dict[str, Any]) -> dict[str, str]:
    located = [{"type": each.kind, "loc": _fields(each.path, asked), "msg": each.reason} for each in faults]
    return describe_faults(located, None)


def _fields(path: tuple[str, ...], asked: dict[str, Any]) -> list[str]:
    """The path without branches, from the body on: it begins with an index where vLLM read a list by itself."""
    fields = [part for part in path if not part[:1].isupper()]
    if not fields or not fields[0].isdecimal():
        return fields
    name = "tool_calls" if any("ToolCall" in part for part in path) else "content"
    number = _message_with(name, int(fields[0]), asked.get("messages"))
    return ["messages"] if number is None else ["messages", str(number), name, *fields]


def _message_with(name: str, index: int, messages: Any) -> int | None:
    """The number of the message whose list ``name`` holds at ``index`` what vLLM refuses; None if that is not certain."""
    elements = {
        number: message[name][index]
        for number, message in enumerate(messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and isinstance(message.get(name), list) and index < len(message[name])
    }
    broken = [number for number, element in elements.items() if not _has_what_its_type_says(element)]
    certain = broken or (list(elements) if len(elements) == 1 else [])
    return certain[0] if certain else None  # vLLM stops at the first


def _has_what_its_type_says(element: Any) -> bool:
    """As ``{"type": "text", "text": …}`` has."""
    return isinstance(element, dict) and isinstance(element.get("type"), str) and element["type"] in element


def _told(text: str, faults: dict[str, str], param: str | None) -> Told:
    named = _one_of_each_field(faults)
    first = named[0] or (param if param != "body" else None)
    return Told(
        "; ".join(f"{_bracketed(path) or 'The request body'}: {faults[path].rstrip('.')}" for path in named) + ".",
        first and _bracketed(first),
        {
            "errors": [{"param": _bracketed(path), "reason": reason} for path, reason in faults.items()],
            "serving_message": text,
        },
    )


def _bracketed(path: str) -> str:
    return INDEX.sub(r"[\1]", path)


def _one_of_each_field(faults: dict[str, str]) -> list[str]:
    """Of each field of the body the deepest path: where branches of a union were tried, it is what the caller meant."""
    deepest: dict[str, str] = {}
    for path in faults:
        field = path.partition(".")[0]
        if path.count(".") > deepest.get(field, "").count(".") or field not in deepest:
            deepest[field] = path
    return list(deepest.values())
