"""What a finished job says of its gates and its alias."""

from __future__ import annotations

from typing import Any

import pytest

from cli.client.gate_outcome import describe_gates

ROWS: list[dict[str, Any]] = [
    {"name": "truncation", "status": "passed", "block": True, "message": "0; at most 0.5", "items_needed": None},
    {"name": "evals.q", "status": "missing_evidence", "block": True, "message": "too few", "items_needed": 80},
    {"name": "throughput", "status": "failed", "block": False, "message": "slow"},
]
NEXT = "`mens receipts show receipt-1` has every gate; an admin may go on with --override and --reason."
REFUSED = {"code": "GATE_FAILED", "remedy": "GET /v1/receipts/receipt-1 …", "details": {"receipt": "receipt-1"}}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({}, []),
        ({"alias": {"name": "prod", "moved": True}}, ["alias    prod points to it"]),
        (
            {
                "receipt": {"id": "receipt-1", "passed": False, "gates": ROWS},
                "alias": {"name": "prod", "moved": False, "error": REFUSED},
            },
            [
                "receipt  receipt-1: FAILED",
                "  truncation  passed: 0; at most 0.5",
                "  evals.q  no evidence: too few; 80 items would decide",
                "  throughput  FAILED (only warns): slow",
                f"alias    prod was not moved: GATE_FAILED. {NEXT}",
            ],
        ),
    ],
)
def test_a_line_for_each_gate_and_one_for_the_alias(result: dict[str, Any], said: list[str]) -> None:
    assert list(describe_gates(result)) == said
