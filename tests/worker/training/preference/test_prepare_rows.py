"""Prepared pairs: both chats lose the same tokens, and a pair is left out as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import DatasetInvalid
from tests.support.preference_rows import PAIRS, plain_row
from worker.training.data.labelling import LabelledRows
from worker.training.preference.data import read_preferences
from worker.training.preference.pairs import PreparedPairs
from worker.training.preference.prepare_rows import cut_together

DPO = {"method": {"type": "dpo"}}


def read(tiny: Any, tokenizer: Any, folder: Path, rows: list[Any], **sections: Any) -> Any:
    run = tiny.plan_run(folder, rows, **DPO | sections)
    return read_preferences(run, tokenizer, 1 << 20, folder / "cache", PreparedPairs)


def test_pairs_have_one_prompt_and_their_own_answers(tiny: Any, tokenizer: Any, tmp_path: Path) -> None:
    data = read(tiny, tokenizer, tmp_path, PAIRS)
    assert len(data.rows) == len(PAIRS) == data.report.rows
    for number, pair in enumerate(data.rows):
        assert pair.number == number
        chosen, rejected = (int(np.flatnonzero(side.weights)[0]) for side in (pair.chosen, pair.rejected))
        assert chosen == rejected
        assert pair.chosen.ids[:chosen].tolist() == pair.rejected.ids[:chosen].tolist()
    assert "A bug is a word." in tokenizer.decode(data.rows[0].chosen.ids)
    assert [row.line for row in data.probe_rows] == list(range(1, len(PAIRS) + 1))


def test_the_cache_has_no_pairs_for_rows_and_no_rows_for_pairs(tiny: Any, tokenizer: Any, tmp_path: Path) -> None:
    first, again = (read(tiny, tokenizer, tmp_path, PAIRS) for _ in range(2))
    assert (first.report.cached, again.report.cached) == (False, True)
    assert first.key == again.key


def test_both_sides_are_cut_at_the_same_place() -> None:
    ids = np.arange(5 + 9, dtype=np.uint32)
    rows = LabelledRows(np.array([5, 9]), ids, np.ones(14, np.float32))
    cut = cut_together(rows, 7, 2)
    assert cut.lengths.tolist() == [3, 7]
    assert cut.ids.tolist() == [2, 3, 4, *range(7, 14)]


def test_a_pair_without_room_for_its_prompt_is_refused(tiny: Any, tokenizer: Any, tmp_path: Path) -> None:
    rows = [*PAIRS, plain_row("What?", "word " * 90, "No.")]
    with pytest.raises(DatasetInvalid) as refused:
        read(tiny, tokenizer, tmp_path, rows, exec={"seq_len": 64})
    assert refused.value.code == "NOTHING_SUPERVISED"


def test_such_a_pair_is_skipped_leniently_as_a_whole(tiny: Any, tokenizer: Any, tmp_path: Path) -> None:
    rows = [*PAIRS, plain_row("What?", "word " * 90, "No.")]
    data = read(tiny, tokenizer, tmp_path, rows, exec={"seq_len": 64}, data={"mode": "lenient"})
    assert len(data.rows) == len(PAIRS)
    assert data.report.skipped["no_supervised_positions"] == 1
    assert data.report.skipped_lines == [len(rows)]
