"""The outcome of a receipt: passed, failed or no evidence."""

from __future__ import annotations

import pytest

from shared.gate_outcome import GateStatus, overall_outcome


@pytest.mark.parametrize(
    ("passed", "gates", "word"),
    [
        (True, [("passed", True), ("failed", False)], "passed"),
        (False, [("failed", True), ("missing_evidence", True)], "failed"),
        (False, [("passed", True), ("missing_evidence", True), ("failed", False)], "no evidence"),
        (False, [("missing_evidence", False)], "failed"),
    ],
)
def test_only_a_gate_that_blocks_and_failed_is_a_failure(
    passed: bool, gates: list[tuple[str, bool]], word: str
) -> None:
    assert overall_outcome(passed, [{"status": status, "block": block} for status, block in gates]).word == word


def test_each_status_has_a_word() -> None:
    assert [status.word for status in GateStatus] == ["passed", "failed", "no evidence", "not applicable"]
