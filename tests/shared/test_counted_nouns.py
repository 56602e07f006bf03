from __future__ import annotations

from shared.counted_nouns import counted


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(count, "row") for count in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert counted(2, "entry", "entries") == "2 entries"
