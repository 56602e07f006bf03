"""The rows of a receipt's table: the ends of an interval have a sign if they belong to a difference."""

from __future__ import annotations

from openai_migration.gate.comparisons import Margins, compared, rate
from openai_migration.gate.receipt_page import _row


def test_only_differences_have_signs() -> None:
    share = _row(rate("alike", 24, 24, 0.9, Margins(0.03), block=True))
    assert "0.899 … 1.000" in share
    difference = _row(compared("score", [0.5] * 24, [0.5] * 24, Margins(0.03)))
    assert any(cell.startswith("-0.") and " … +0." in cell for cell in difference)
