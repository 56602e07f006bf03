"""Checks for which OpenAI has no grader: regular expressions, JSON Schema, tool calls. Their expressions may be
hostile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs
import regex

from shared.errors import Code, InvalidRequest
from shared.graders.types import ExpectedCall

# A user's expression may take exponential time.
REGEX_SECONDS = 1.0


def matches(pattern: str, text: str) -> bool:
    """Return whether a regular expression matches somewhere in a string.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: it is not a valid expression. ``GRADER_TIMEOUT``: it takes longer than a
            second.
    """
    try:
        return regex.search(pattern, text, timeout=REGEX_SECONDS, concurrent=True) is not None
    except regex.error as error:
        raise InvalidRequest(
            Code.GRADER_INVALID, f"{pattern[:200]!r} is not a valid expression: {error}.", param="pattern"
        ) from None
    except TimeoutError:
        message = f"The expression {pattern[:200]!r} took longer than {REGEX_SECONDS:g} s."
        raise InvalidRequest(Code.GRADER_TIMEOUT, message, remedy="Make it simpler.", param="pattern") from None


def is_json(text: str) -> bool:
    """Return whether a string is exactly one JSON value."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def parse_json(text: str) -> Any:
    """Parse a JSON string; NaN and infinities are refused.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Schema:
    """A compiled JSON Schema. References to other documents are not followed.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: it is not a valid schema.
    """

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(
                schema if isinstance(schema, bool) else dict(schema), offline=True
            )
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidRequest(
                Code.GRADER_INVALID, f"The JSON Schema is invalid: {reason}", param="json_schema"
            ) from None

    def accepts(self, value: Any) -> bool:
        """Return whether a JSON value is valid."""
        return bool(self._validator.is_valid(value))

    def fault(self, value: Any) -> str | None:
        """Return where and why a JSON value is invalid; None if it is valid."""
        for error in self._validator.iter_errors(value):
            place = ".".join(map(str, error.instance_path))
            return f"{place}: {error.message}" if place else str(error.message)
        return None

    def accepts_text(self, text: str) -> bool:
        """Return whether a string is JSON with a valid value."""
        try:
            return self.accepts(parse_json(text))
        except ValueError:
            return False


def tool_calls_are_valid(calls: Iterable[Any], tools: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether each call names one of the tools, with JSON arguments that are valid by the tool's schema.

    Args:
        calls: ``tool_calls`` of a message.
        tools: the tools of a chat request.

    Raises:
        InvalidRequest: ``GRADER_INVALID``: a tool's parameters are not a JSON Schema.
    """
    functions = [tool.get("function") or {} for tool in tools]
    schemas = {function.get("name"): function.get("parameters") or {} for function in functions}
    for name, arguments in map(_parts, calls):
        if name not in schemas or not Schema(schemas[name]).accepts_text(arguments):
            return False
    return True


def tool_calls_equal(calls: Iterable[Any], expected: Iterable[ExpectedCall]) -> bool:
    """Return whether calls have these names in this order, and these arguments, compared as JSON."""
    actual, wanted_calls = list(map(_parts, calls)), list(expected)
    return len(actual) == len(wanted_calls) and all(
        name == call.name and (call.arguments is None or _arguments_equal(arguments, call.arguments))
        for (name, arguments), call in zip(actual, wanted_calls, strict=True)
    )


def _arguments_equal(text: str, expected: Mapping[str, Any]) -> bool:
    try:
        value = parse_json(text)
    except ValueError:
        return False
    # Compared as JSON strings, because Python treats 1, 1.0 and True as equal.
    return json.dumps(value, sort_keys=True) == json.dumps(expected, sort_keys=True)


def _parts(call: Any) -> tuple[str, str]:
    """Return name and arguments of a call; empty strings for a malformed one."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return "", ""
    name, arguments = function.get("name"), function.get("arguments")
    return (name if isinstance(name, str) else ""), (arguments if isinstance(arguments, str) else json.dumps(arguments))
