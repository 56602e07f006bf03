"""``mens receipts show``: the parts of a receipt other than its gates."""

from __future__ import annotations

from typing import Any

from cli.commands.gates.receipts import describe_receipt

RECEIPT: dict[str, Any] = {
    "policy": {"name": "strict", "digest": "d" * 64},
    "compared_with": "demo@0",
    "serving_base": None,
    "sandbox": None,
    "gates": [{"name": "evals.quality", "checks": [{"noise_floor": None}, {"noise_floor": 0.0833}]}],
}
STORED = {
    "id": "receipt-1",
    "passed": True,
    "adapter_id": "demo@1",
    "created_at": "2026-01-02T03:04:05Z",
    "valid_until": "2026-02-01T03:04:05Z",
}


def test_attempt_noise_and_code_that_is_not_repeatable_are_shown() -> None:
    more = {"attempt": 3, "alpha": 0.0033774, "unrepeatable": {"support": {"code": 2}}}
    said = list(describe_receipt(STORED | {"receipt": RECEIPT | more}))
    assert "attempt       3 of this pair under this policy: its comparisons may err by 0.00338 together" in said
    assert "noise floor   evals.quality: the incumbent differs from itself by 0.0833" in said
    assert "unrepeatable  support: different scores the second time by code (2 answers)" in said


def test_receipt_of_the_release_before_is_shown_as_it_is() -> None:
    said = list(describe_receipt(STORED | {"receipt": RECEIPT | {"gates": [{"name": "truncation"}]}}))
    assert not [line for line in said if line.startswith(("attempt", "noise", "unrepeatable"))]
