"""vLLM's message about a refused request → the field of the caller's request, the reason in words, and a remedy. Pure.

vLLM's messages have three forms: pydantic's errors as Python literals, one per line; pydantic's errors as pydantic
prints them; and one sentence. It names settings by its own names, which may differ from the API's, and adds advice for
its operator. A message of any other form stays unchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from api.errors import describe_faults
from api.inference.request_fields.tool_schemas import tool_schema_fault
from shared.errors import Code

LISTED = re.compile(r"\d+ validation errors?:\n")
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
LISTED_FAULT = re.compile(rf"\{{'type': '(?P<type>\w+)', 'loc': (?P<loc>{_TEXT}), 'msg': (?P<msg>{_TEXT})[,}}]")
"""The beginning of a fault. The rest may be cut off, or not be a literal."""
PRINTED = re.compile(r"\d+ validation errors? for \w+\n")
PRINTED_FAULT = re.compile(r"^(?P<loc>\S.*)\n  (?P<msg>.+?) \[type=(?P<type>\w+), input_value=", re.MULTILINE)
PYTHON_TYPE_ERROR = re.compile(r"'\w+' object (?:is not|has no|does not) ")
"""A ``TypeError`` in vLLM's own code, as for ``"messages": null``."""
INDEX = re.compile(r"\.(\d+)(?=\.|$)")
DISCRIMINATORS = ("type", "role")
"""Fields whose value selects the branch of a union."""

PROMPT = ("messages", "prompt", "input")
"""Fields that may hold the prompt."""
FORMAT = ("response_format", "text", "structured_outputs", "tools")
"""Fields that may hold a JSON schema or another grammar."""
CALLERS_NAMES = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    "logprobs": ("top_logprobs", "logprobs"),
}
"""vLLM's setting, and the fields that become it; the first one present counts."""
FIRST_WORD = re.compile(r"\A`?(\w+)")
OPERATORS_ADVICE = re.compile(
    r" (?:To increase this limit, set|Set|Make sure that) [^.]{0,200}?(?:VLLM_|--|max_model_len)[^.]{0,200}\."
    r"| Please reduce the length of the input prompt\."
)
"""Advice for the operator of the server; and, for a prompt that is too long, text that duplicates the remedy here."""


class ClientError(NamedTuple):
    """A refusal in the form that the caller gets."""

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


class KnownSentence(NamedTuple):
    """A refusal in one sentence, recognised by its beginning."""

    beginning: re.Pattern[str]
    fields: tuple[str, ...] = ()
    remedy: str = ""
    code: Code = Code.REQUEST_REJECTED


INVALID_TAG = re.compile("Invalid structural tag specification")
"""Message about a forced call whose function's parameters cannot be compiled, or about a tag that the caller wrote."""
KNOWN_SENTENCES = (
    KnownSentence(
        re.compile(r"This model's maximum context length is|The decoder prompt \(length"),
        PROMPT,
        "Shorten the prompt, by the oldest turns of a chat for example.",
        Code.CONTEXT_LENGTH_EXCEEDED,
    ),
    KnownSentence(
        re.compile("Either prompt or prompt_embeds must be provided"),
        ("prompt",),
        "Put the prompt for the model into `prompt`.",
        Code.REQUEST_INVALID,
    ),
    KnownSentence(
        re.compile(r"The decoder prompt |Token id -?\d+ is out of vocabulary|At most [1-9]\d* \w+\(s\) may be"), PROMPT
    ),
    KnownSentence(
        re.compile(r".* is not a multimodal model|At most 0 \w+\(s\) may be"),
        PROMPT,
        "Send text only: this model accepts no other content.",
    ),
    KnownSentence(
        re.compile(r"Grammar error|Invalid (JSON )?grammar|Failed to transform|The (provided )?JSON schema"), FORMAT
    ),
    KnownSentence(
        INVALID_TAG,
        ("structured_outputs", "tools", "functions"),
        "Look in the schemas for a pattern, reference or range that cannot be satisfied: calls are constrained to "
        "them.",
    ),
    KnownSentence(
        re.compile("The schema or grammar takes more than"),
        FORMAT,
        "Lower its repetitions (`maxLength`, `maxItems`, `{1,1000}`), or make fewer of its parts optional.",
        Code.GRAMMAR_TOO_COSTLY,
    ),
    KnownSentence(
        re.compile("n must be 1 when using greedy sampling"),
        ("n",),
        "At temperature 0 all answers are the same: request one, or set `temperature` above 0.",
    ),
)
UNKNOWN_SENTENCE = KnownSentence(re.compile(""))


def explain(text: str, param: str | None, body: dict[str, Any]) -> ClientError:
    """Return vLLM's message in the terms of the caller's request.

    Args:
        text: its message.
        param: the field that it blames, without ``body.`` before it.
        body: the request as the caller wrote it.
    """
    if faults := _without_other_branches(_without_other_prompts(list(_parse_faults(text)), body)):
        return _explain_faults(faults, text, param, body)
    if PYTHON_TYPE_ERROR.match(text):
        message = "A field of the request has a value of the wrong type; vLLM does not say which."
        remedy = "Look for a null, or for a string in place of a list or an object."
        return ClientError(message, param, {"serving_message": text}, remedy)
    # An error that vLLM raises with its field ends with the field: "… must be set. (parameter=tool_choice, value=auto)".
    sentence, mark, _ = text.partition(f" (parameter={param}")
    error = explain_sentence(sentence if mark and text.endswith(")") else text, param, body)
    details = {} if error.message == text else {"serving_message": text}
    return error._replace(param=error.param and _bracketed(error.param), details=details)


def explain_sentence(message: str, param: str | None, body: dict[str, Any]) -> ClientError:
    """Return a refusal in one sentence, about the field that the caller wrote, without advice to the operator.

    Args:
        param: the field that vLLM blames, if it names one.
        body: the request as the caller wrote it.
    """
    if INVALID_TAG.match(message) and (fault := tool_schema_fault(body)):
        reason = f"`{fault.path}` {fault.reason}."
        return ClientError(
            reason, fault.path, {}, f"Write `{fault.path}` as JSON Schema defines it.", Code.REQUEST_INVALID
        )
    explanation = next(
        (sentence for sentence in KNOWN_SENTENCES if sentence.beginning.match(message)), UNKNOWN_SENTENCE
    )
    message = OPERATORS_ADVICE.sub("", message)
    candidates = explanation.fields or (CALLERS_NAMES.get(param, ()) if param else FIRST_WORD.findall(message))
    field = next((name for name in candidates if name in body), param)
    if param in CALLERS_NAMES and field:
        message = re.sub(rf"\b{param}\b", field, message)
    return ClientError(message, field, {}, explanation.remedy, explanation.code)


def _parse_faults(text: str) -> Iterator[Fault]:
    """Yield the faults of a list; none if the string is not a list. A line that is not a fault becomes a reason of its
    own.
    """
    if head := LISTED.match(text):
        for line in map(str.strip, text[head.end() :].splitlines()):
            if match := LISTED_FAULT.match(line):
                path = ast.literal_eval(match["loc"]).removeprefix("body").removeprefix(".")
                yield Fault(match["type"], tuple(path.split(".")) if path else (), ast.literal_eval(match["msg"]))
            elif line and not line.startswith(("{", "...")):
                yield Fault("other", (), line)
    elif PRINTED.match(text):
        for match in PRINTED_FAULT.finditer(text):
            yield Fault(match["type"], tuple(match["loc"].split(".")), match["msg"])


def _without_other_branches(faults: list[Fault]) -> list[Fault]:
    """Return the faults without the branches of unions that the request's own ``type`` or ``role`` rules out.

    If that rules out every branch, the faults that list the allowed values stay.
    """
    choices = [
        fault
        for fault in faults
        if fault.kind == "literal_error" and fault.path[-1:] and fault.path[-1] in DISCRIMINATORS
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


def _without_other_prompts(faults: list[Fault], body: dict[str, Any]) -> list[Fault]:
    """Drop the faults about missing prompt fields if the request has one: `/tokenize` takes one of two."""
    if not any(name in body for name in PROMPT):
        return faults
    others = [
        fault for fault in faults if not (fault.kind == "missing" and len(fault.path) == 1 and fault.path[0] in PROMPT)
    ]
    return others or faults


def _branches(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [path[: index + 1] for index, part in enumerate(path) if part[:1].isupper()]


def _explain_faults(faults: list[Fault], text: str, param: str | None, body: dict[str, Any]) -> ClientError:
    located = [{"type": fault.kind, "loc": _path_in_request(fault.path, body), "msg": fault.reason} for fault in faults]
    reasons = describe_faults(located, None)
    # Of each field of the body the deepest path is named: where vLLM tried the branches of a union, it is the one that the
    # caller meant.
    deepest: dict[str, str] = {}
    for path in reasons:
        field = path.partition(".")[0]
        if path.count(".") > deepest.get(field, "").count(".") or field not in deepest:
            deepest[field] = path
    named = list(deepest.values())
    first = named[0] or (param if param != "body" else None)
    return ClientError(
        "; ".join(f"{_bracketed(path) or 'The request body'}: {reasons[path].rstrip('.')}" for path in named) + ".",
        first and _bracketed(first),
        {
            "errors": [{"param": _bracketed(path), "reason": reason} for path, reason in reasons.items()],
            "serving_message": text,
        },
    )


def _path_in_request(path: tuple[str, ...], body: dict[str, Any]) -> list[str]:
    """Return a fault's path without branches of unions, from the body on.

    vLLM reads the lists inside messages (``content``, ``tool_calls``) separately: the path then begins with an index,
    and the message is searched for in the request. If that is ambiguous, the field is ``messages``.
    """
    fields = [part for part in path if not part[:1].isupper()]
    if not fields or not fields[0].isdecimal():
        return fields
    name, index, messages = "content", int(fields[0]), body.get("messages")
    if any("ToolCall" in part for part in path):
        name = "tool_calls"
    elements = {
        number: message[name][index]
        for number, message in enumerate(messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and isinstance(message.get(name), list) and index < len(message[name])
    }
    # vLLM stops at the first incomplete element. A complete one has the field that its type names, as
    # {"type": "text", "text": …} has.
    broken = [
        number
        for number, element in elements.items()
        if not (isinstance(element, dict) and isinstance(element.get("type"), str) and element["type"] in element)
    ]
    certain = broken or (list(elements) if len(elements) == 1 else [])
    return ["messages", str(certain[0]), name, *fields] if certain else ["messages"]


def _bracketed(path: str) -> str:
    return INDEX.sub(r"[\1]", path)
