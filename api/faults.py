"""From pydantic's errors to field paths that a caller finds in what he sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

OUTSIDE = ("path", "query", "header")
"""Where a field may be that is no part of the body."""


def describe_faults(errors: Iterable[Mapping[str, Any]], sent: object) -> dict[str, str]:
    """Reason by field path, in pydantic's order.

    Pydantic's locations also name the branches of a union that it tried; those are no fields, so they are left out, and
    the reasons of all branches are told together.
    """
    faults: dict[str, list[str]] = {}
    for error in errors:
        location = [part for part in error["loc"] if part != "body"]
        if location and location[0] in OUTSIDE:  # the body has neither the field nor branches to it
            path = ".".join(map(str, location[1:]))
        else:
            path = _path(location, sent, keep_last=error["type"] == "missing")
        faults.setdefault(path, []).append(error["msg"].removeprefix("Value error, "))
    return {path: "; or ".join(dict.fromkeys(reasons)) for path, reasons in faults.items()}


def _path(location: list[Any], sent: object, *, keep_last: bool) -> str:
    found: list[str] = []
    for index, part in enumerate(location):
        if (isinstance(sent, dict) and part in sent) or (
            isinstance(sent, list) and isinstance(part, int) and part < len(sent)
        ):
            sent = sent[part]
        elif not (sent is None or (keep_last and index == len(location) - 1)):
            continue
        found.append(str(part))
    return ".".join(found)
