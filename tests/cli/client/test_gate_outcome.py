"""A finished job shows the outcome of its gates and of its alias."""

from __future__ import annotations

from typing import Any

import pytest

from cli.client.gate_outcome import describe_gates, is_of_gates

ROWS: list[dict[str, Any]] = [
    {"name": "truncation", "status": "passed", "block": True, "message": "0; at most 0.5", "items_needed": None},
    {
        "name": "evals.q",
        "status": "missing_evidence",
        "block": True,
        "message": "0.9; 80 items would decide",
        "items_needed": 80,
    },
    {"name": "throughput", "status": "failed", "block": False, "message": "slow"},
]
NEXT = "`mens receipts show receipt-1` shows every gate; an admin may override with --override and --reason."
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
                "receipt  receipt-1: no evidence",
                "  truncation  passed: 0; at most 0.5",
                "  evals.q  no evidence: 0.9; 80 items would decide",
                "  throughput  failed (only warns): slow",
                f"alias    prod was not moved: GATE_FAILED. {NEXT}",
            ],
        ),
    ],
)
def test_a_line_for_each_gate_and_one_for_the_alias(result: dict[str, Any], said: list[str]) -> None:
    assert list(describe_gates(result)) == said


def test_a_refusal_that_is_of_no_gate_says_why() -> None:
    error = {
        "code": "GATE_STALE",
        "message": "It compares it with demo@0.",
        "remedy": "",
        "details": {"adapter": "demo@1", "alias": "prod"},
    }
    result = {
        "receipt": {"id": "receipt-1", "passed": True, "gates": ROWS[:1]},
        "alias": {"name": "prod", "moved": False, "error": error},
    }
    last = list(describe_gates(result))[-1]
    assert last.startswith(
        "alias    prod was not moved: GATE_STALE. It compares it with demo@0. Evaluate it again: `mens receipts create"
    )


def test_an_event_that_the_result_repeats_is_of_gates() -> None:
    assert is_of_gates({"data": {"gate": "truncation", "receipt": "receipt-1"}})
    assert is_of_gates({"data": {"error": REFUSED}})
    assert not is_of_gates({"data": {"error": {"code": "TRAINER_KILLED"}}})
    assert not is_of_gates({"data": {"receipt": "receipt-1"}})
    assert not is_of_gates({"message": "of an API that sends no data"})
