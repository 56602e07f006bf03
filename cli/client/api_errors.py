"""Converts errors in an API's response to the form of our own errors, for programs and for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from cli.client.remedies import our_code, to_cli_remedy
from cli.output import line_ranges
from shared.errors import Code

SHOWN_CHARS = 300
"""Characters shown of another program's response."""


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the API's error with the fields of :meth:`shared.errors.MensError.as_dict`, its remedy as a command.

    A response of another program, such as a proxy in front of an API that is down, becomes ``API_UNAVAILABLE``.
    """
    may_pass = response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS
    try:
        error: dict[str, Any] = response.json()["error"]
        text = str(error["message"])
    except (ValueError, KeyError, TypeError):
        return {
            "code": str(Code.API_UNAVAILABLE),
            "message": f"The response is not from a Mens API: {response.status_code}: {response.text[:SHOWN_CHARS]}",
            "remedy": "Check MENS_API_URL, and any proxy between here and the API.",
            "param": None,
            "details": {},
            "retryable": may_pass,
        }
    mens = error.get("mens", {})
    return {
        "code": our_code(error),
        # OpenAI's clients show the message alone, so the API appends the remedy to it.
        "message": _for_cli(text.removesuffix(str(mens.get("remedy", ""))).rstrip()),
        "remedy": _for_cli(to_cli_remedy(error)),
        "param": error.get("param"),
        "details": mens.get("details", {}),
        "retryable": mens.get("retryable", may_pass),
    }


def describe_error(error: Mapping[str, Any]) -> str:
    """Return an error's lines for a terminal: code, message and remedy; then the invalid lines and fields that the message
    does not name, those with the same reason together.
    """
    first = f"{error['code']}: {error['message']} {error['remedy']}".rstrip()
    numbers: dict[str, list[int]] = {}
    places = []
    for fault in error["details"].get("errors", []):
        reason = _for_cli(fault["reason"])
        if f"{_place(fault)}: {reason}" in first:
            continue
        if "line" in fault:
            numbers.setdefault(reason, []).append(fault["line"])
        else:
            places.append(f"  {_place(fault)}: {reason}")
    groups = (
        f"  line{'s' * (len(lines) > 1)} {line_ranges(lines)}: {'the same' if reason in first else reason}"
        for reason, lines in numbers.items()
    )
    return "\n".join([first, *groups, *places])


def _place(fault: Mapping[str, Any]) -> str:
    return f"line {fault['line']}" if "line" in fault else fault.get("param", "")


def _for_cli(text: str) -> str:
    return text.replace("X-Mens-Tenant", "MENS_TENANT")
