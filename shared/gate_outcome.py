"""Outcomes of gates and receipts: shared by the database's refusals, by jobs' events and by the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any


class GateStatus(StrEnum):
    """Outcome of a gate, or of one of its checks."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING_EVIDENCE = "missing_evidence"
    NOT_APPLICABLE = "not_applicable"

    @property
    def word(self) -> str:
        """The outcome's word in messages."""
        return "no evidence" if self is GateStatus.MISSING_EVIDENCE else self.replace("_", " ")


def overall_outcome(passed: bool, gates: Iterable[Mapping[str, Any]]) -> GateStatus:
    """Return the outcome of a receipt: passed; failed if a blocking gate failed; otherwise evidence is missing.

    Args:
        passed: whether the receipt lets its adapter move.
        gates: its rows as they are stored.
    """
    if passed:
        return GateStatus.PASSED
    blocking = {row["status"] for row in gates if row["block"]}
    lacks_evidence = GateStatus.MISSING_EVIDENCE in blocking and GateStatus.FAILED not in blocking
    return GateStatus.MISSING_EVIDENCE if lacks_evidence else GateStatus.FAILED
