"""Verdicts of filters on rows, and the interface of a filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class VerdictCode(StrEnum):
    """Reasons why a row is left out or changed. They are counted in reports; they are not errors."""

    DUPLICATE_EXACT = "DUPLICATE_EXACT"
    DUPLICATE_NEAR = "DUPLICATE_NEAR"
    CONTAMINATED = "CONTAMINATED"
    SECRET = "SECRET"  # noqa: S105
    PERSONAL_DATA = "PERSONAL_DATA"
    LICENSE = "LICENSE"
    NOT_COMPILING = "NOT_COMPILING"
    STUB = "STUB"
    GENERATED_FILE = "GENERATED_FILE"
    TOO_SHORT = "TOO_SHORT"
    TOO_LONG = "TOO_LONG"
    LANE = "LANE"
    CHECK_FAILED = "CHECK_FAILED"
    CUT_OFF = "CUT_OFF"
    EMPTY = "EMPTY"
    JUDGED_BAD = "JUDGED_BAD"
    MODEL_REFUSED = "MODEL_REFUSED"
    NOT_NEW = "NOT_NEW"
    NOT_JUDGED = "NOT_JUDGED"
    NO_PREFERENCE = "NO_PREFERENCE"
    REQUEST_REFUSED = "REQUEST_REFUSED"
    LONE_SURROGATE = "LONE_SURROGATE"
    TESTS_FAILED = "TESTS_FAILED"


@dataclass(slots=True)
class RowVerdict:
    """Outcome of a filter for a row.

    Attributes:
        row: the row to write, changed or not; None if it is left out.
        code: why it was left out or changed; None for a row that is kept unchanged.
        redactions: number of replaced values by kind, for the provenance.
        reason: a few words for reports; never a part of the row.
    """

    row: dict[str, Any] | None
    code: VerdictCode | None = None
    redactions: dict[str, int] = field(default_factory=dict)
    reason: str = ""


class CorpusFilter(Protocol):
    """Judges rows in batches. It can be pickled and keeps no state between calls, so that processes can share the work.

    Attributes:
        name: its key in a recipe's ``filters``.
        version: increased when the same rows would get different verdicts.
    """

    name: str
    version: int

    def judge(self, rows: Sequence[dict[str, Any]]) -> list[RowVerdict]:
        """Return a verdict for each row, in order."""
        ...
