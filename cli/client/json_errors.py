"""Whether the command was given ``--json``: then what ends it is JSON too, so that a program reads one format."""

from __future__ import annotations

from contextvars import ContextVar

_json: ContextVar[bool] = ContextVar("json", default=False)


def note_json(wanted: bool) -> bool:
    """Callback of ``--json``: from now on an error is JSON too."""
    _json.set(wanted)
    return wanted


def wants_json() -> bool:
    """Whether the command was given ``--json``."""
    return _json.get()
