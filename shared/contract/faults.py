"""Pydantic's faults of a contract or a request: their reasons in plain words, and their order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

UNKNOWN_FIELD = "extra_forbidden"
MISSING_FIELD = "missing"
"""Pydantic's types of the two faults that one misspelt name causes together."""

_REASONS = {UNKNOWN_FIELD: "this field does not exist"}
FaultT = TypeVar("FaultT", bound=Mapping[str, Any])


def reason_of(fault: Mapping[str, Any]) -> str:
    """Return the reason of a fault in plain words, without the field.

    Args:
        fault: one of pydantic's.
    """
    return _REASONS.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ")


def unknown_before_missing(faults: Sequence[FaultT]) -> list[FaultT]:
    """Order the faults as pydantic does, except that an unknown field next to or below a missing one comes first,
    because it is the mistake.

    Args:
        faults: pydantic's; at least one.
    """
    first = faults[0]
    if first["type"] == MISSING_FIELD:
        parent = tuple(first["loc"][:-1])
        unknown = [
            fault for fault in faults if fault["type"] == UNKNOWN_FIELD and tuple(fault["loc"][: len(parent)]) == parent
        ]
        # If several fit, take the one in the same object: it is the missing field's own name, misspelt.
        unknown.sort(key=lambda fault: len(fault["loc"]))
        if unknown:
            return [unknown[0], *(fault for fault in faults if fault is not unknown[0])]
    return list(faults)
