"""vLLM's validation texts in words: fields and reasons for the caller, its own notation among the details. Pure.

    2 validation errors:                                                           max_tokens: Input should be a valid
      {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input …', …}   ─►  integer; top_p: Input should be …
      {'type': 'float_parsing', 'loc': 'body.top_p', 'msg': 'Input …', …}

A text of another form stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from api.faults import describe_faults

HEAD = re.compile(r"\d+ validation errors?:\n")
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
FAULT = re.compile(rf"\{{'type': '(?P<type>\w+)', 'loc': (?P<loc>{_TEXT}), 'msg': (?P<msg>{_TEXT})[,}}]")
"""The beginning of a fault. What follows may be cut off, or be no literal."""

PYTHONS = re.compile(r"'\w+' object (?:is not|has no|does not) ")
"""A ``TypeError`` of vLLM's own code, as of ``"messages": null``."""


class Told(NamedTuple):
    """A refusal as the caller gets it."""

    message: str
    param: str | None
    details: dict[str, Any]


def in_words(text: str, param: str | None) -> Told:
    """What vLLM said, in words.

    Args:
        text: its message.
        param: the field that it blames, without ``body.`` before it.
    """
    if head := HEAD.match(text):
        faults = describe_faults(_faults(text[head.end() :]), None)
        if faults:
            return _told(text, faults, param)
    if PYTHONS.match(text):
        words = "A field of the request has a value of the wrong type; vLLM does not say which."
        return Told(words, param, {"serving_message": text})
    # An error that was raised with its field says that once more: "… must be set. (parameter=tool_choice, value=auto)".
    words, mark, _ = text.partition(f" (parameter={param}")
    if mark and text.endswith(")"):
        return Told(words, param, {"serving_message": text})
    return Told(text, param, {})


def _faults(text: str) -> Iterator[dict[str, Any]]:
    """The faults as pydantic has them; a line that is none of its own is a reason by itself."""
    for line in map(str.strip, text.splitlines()):
        if match := FAULT.match(line):
            path = ast.literal_eval(match["loc"]).split(".")
            # A union's branch is named after vLLM's class: messages.0.ChatCompletionUserMessageParam.role.
            fields = [part for part in path if not part[:1].isupper()]
            yield {"type": match["type"], "loc": fields, "msg": ast.literal_eval(match["msg"])}
        elif line and not line.startswith(("{", "...")):
            yield {"type": "other", "loc": [], "msg": line}


def _told(text: str, faults: dict[str, str], param: str | None) -> Told:
    named = _one_of_each_field(faults)
    return Told(
        "; ".join(f"{path or 'The request body'}: {faults[path].rstrip('.')}" for path in named) + ".",
        named[0] or (param if param != "body" else None),
        {"errors": [{"param": path, "reason": reason} for path, reason in faults.items()], "serving_message": text},
    )


def _one_of_each_field(faults: dict[str, str]) -> list[str]:
    """Of each field of the body the deepest path: where branches of a union were tried, it is what the caller meant."""
    deepest: dict[str, str] = {}
    for path in faults:
        field = path.partition(".")[0]
        if path.count(".") > deepest.get(field, "").count(".") or field not in deepest:
            deepest[field] = path
    return list(deepest.values())
