"""The supervision report on pairs: tokens of both sides, one truncation for both, and pairs without a difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.datasets.filters import RowFilter
from shared.tokenization.preference_supervision import supervise_preferences
from tests.support.preference_rows import PAIRS, plain_row
from tests.support.tiny_base import write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "tiny")


def write(folder: Path, *rows: object) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tokens_of_both_sides_are_counted(base: Path, tmp_path: Path) -> None:
    found = supervise_preferences(write(tmp_path, *PAIRS), base, seq_len=512, filters=RowFilter())
    assert (found.rows, found.lines, found.lost, found.truncated_rows) == (8, 8, 0, 0)
    assert found.longest_row < found.tokens / found.rows < 2 * found.longest_row + 1
    assert 0 < found.supervised_tokens < found.tokens


def test_a_cut_takes_the_same_from_both(base: Path, tmp_path: Path) -> None:
    row = plain_row("word " * 40, "Yes.", "No, never.")
    whole = supervise_preferences(write(tmp_path, row), base, seq_len=512, filters=RowFilter())
    cut = supervise_preferences(write(tmp_path, row), base, seq_len=whole.longest_row - 5, filters=RowFilter())
    assert (cut.truncated_tokens, cut.truncated_rows, cut.lost) == (10, 1, 0)
    assert cut.supervised_tokens == whole.supervised_tokens


def test_an_answer_without_room_for_its_prompt_is_lost(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path, plain_row(), plain_row("q", "word " * 90, "No.", difficulty=3))
    found = supervise_preferences(path, base, seq_len=64, filters=RowFilter())
    assert (found.nothing_supervised.count, found.lost_difficulties) == (1, {3: 1})
    assert "leaves no room for its prompt" in found.nothing_supervised.first[0].reason


def test_a_sample_still_knows_the_longest(base: Path, tmp_path: Path) -> None:
    rows = [plain_row(f"q{number}") for number in range(30)]
    rows[17] = plain_row("long " * 60)
    path = write(tmp_path, *rows)
    whole, sampled = (
        supervise_preferences(path, base, seq_len=512, filters=RowFilter(), limit_rows=limit) for limit in (None, 3)
    )
    assert (sampled.sampled, sampled.rows) == (True, 3)
    assert sampled.longest_row == whole.longest_row


def test_filters_leave_pairs_out(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path, plain_row(rating=1), plain_row(rating=5))
    found = supervise_preferences(path, base, seq_len=64, filters=RowFilter(min_rating=3))
    assert (found.rows, found.filtered_rows) == (1, 1)
