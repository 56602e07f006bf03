"""The option ``--json``: with it, a command's errors are JSON too, so that a program reads one format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any

import typer

UNSAID: Mapping[str, Any] = {"code": "", "message": "", "remedy": "", "param": None, "details": {}, "retryable": False}
"""All fields of an error, with empty values."""
_json: ContextVar[bool] = ContextVar("json", default=False)


def note_json(is_set: bool) -> bool:
    """Callback of ``--json``: from now on an error is JSON too."""
    _json.set(is_set)
    return is_set


Json = Annotated[bool, typer.Option("--json", callback=note_json, help="Print JSON.")]


def wants_json() -> bool:
    """Return whether the command has ``--json``."""
    return _json.get()


def print_json_error(error: Mapping[str, Any]) -> None:
    """Print the error that ended the command, with all fields of an error, including empty ones.

    Args:
        error: at least its code and message.
    """
    print(json.dumps({"error": {**UNSAID, **error}}, indent=2))
