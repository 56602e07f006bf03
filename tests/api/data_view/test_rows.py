"""Pages of rows are limited in bytes, time and tokens, whatever the lines are, and each page continues where the last
one ended.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.data_view.rows import LAST_TOKENS, MAX_CHARACTERS, MAX_PAGE_BYTES, MAX_TOKENS, RowReader
from shared.tokenization.tokenizer import Tokenizer
from tests.support.tiny_base import write_base

HUGE = json.dumps({"prompt": "word " * 19_000, "response": "x"})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_base(tmp_path_factory.mktemp("bases") / "tiny"))


def lines_seen(reader: RowReader, limit: int) -> list[int]:
    """Numbers of all lines, by pages of which none is larger than it may be."""
    seen, after = list[int](), 0
    while True:
        page = reader.page(after, limit, "all", 100_000, None)
        assert len(page.model_dump_json()) < 1.5 * MAX_PAGE_BYTES
        seen += [row.line for row in page.data]
        after = page.next_after
        if not page.has_more:
            return seen


def test_large_lines_make_short_pages(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(['"' + "a" * 3_000_000 + '"', *[HUGE] * 30, HUGE]))
    reader = RowReader(path, tokenizer, 100_000)
    assert lines_seen(reader, 50) == list(range(1, 33))
    first, second = reader.page(0, 2, "all", 100_000, None).data
    assert first.error
    assert (first.bytes, first.error.code, first.text_is_cut, len(first.text)) == (
        3_000_003, "ROW_TOO_LONG", True, MAX_CHARACTERS,
    )  # fmt: skip
    assert second.trained
    ids = [len(piece.ids) for piece in second.trained.pieces]
    assert sum(ids) == MAX_TOKENS
    omitted = [piece.kind for piece in second.trained.pieces].index("omitted")
    assert sum(ids[omitted:]) == LAST_TOKENS
    assert second.trained.tokens > MAX_TOKENS
    assert second.trained.pieces[-1].kind in ("end", "special", "context")


def test_page_that_runs_out_of_time_is_short_and_continues(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(n), "response": "x"}) for n in range(5)))
    reader = RowReader(path, tokenizer, 100, seconds=0.0)
    assert lines_seen(reader, 50) == [1, 2, 3, 4, 5]
    assert len(reader.page(0, 50, "all", None, None).data) == 1


def test_filter_that_nothing_passes_ends(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"prompt": "a", "response": "b"}\n\n' * 2)
    reader = RowReader(path, tokenizer, 100)
    assert [row.line for row in reader.page(0, 50, "errors", None, None).data] == [2, 3, 4]
    assert not reader.page(0, 50, "cut", None, None).data
