"""What a run trains on, once rows are held out and skipped."""

from __future__ import annotations

import pytest

from shared.contract.plan import validation_split
from shared.errors import Code, DatasetInvalid
from tests.support.training_runs import ROWS
from worker.training.data.batches import split_validation
from worker.training.data.dataset import read_data, refuse_weightless

VOCABULARY, SEED = 1 << 20, 7
WEIGHTLESS = {"enabled": True, "tool_trace_boost": 0.0}
TRACE = ROWS[0] | {"category": "tool_trace"}


def read(tiny, tokenizer, folder, rows, **sections):
    return read_data(tiny.plan_run(folder, rows, **sections), tokenizer, VOCABULARY, folder / "cache")


def read_with_one_that_weighs(tiny, tokenizer, folder, number):
    rows = [TRACE] * 21
    rows[int(number)] = ROWS[0]
    wanted = {"data": {"validation_split_ratio": 0.05}, "trajectory": WEIGHTLESS}
    return read(tiny, tokenizer, folder, rows, **wanted)


def test_the_only_row_that_weighs_may_not_be_held_out(tiny, tokenizer, tmp_path):
    training, held_out = split_validation(21, validation_split(21, 0.05), SEED)
    assert len(read_with_one_that_weighs(tiny, tokenizer, tmp_path, training[0]).training) == len(training)
    with pytest.raises(DatasetInvalid) as refused:
        read_with_one_that_weighs(tiny, tokenizer, tmp_path, held_out[0])
    assert refused.value.code == Code.NOTHING_SUPERVISED


def test_the_only_row_that_weighs_may_not_be_skipped(tiny, tokenizer, tmp_path):
    question, answer = ROWS[2]["messages"][1:3]
    cut_off = {"messages": [question, answer, question, answer | {"content": "It takes values. " * 8, "weight": 0}]}
    with pytest.raises(DatasetInvalid) as refused:
        read(tiny, tokenizer, tmp_path, [TRACE, TRACE, cut_off], exec={"seq_len": 24}, trajectory=WEIGHTLESS)
    assert refused.value.code == Code.NOTHING_SUPERVISED


def test_replayed_rows_that_weigh_are_something_to_learn():
    refuse_weightless([0.0, 0.0], [0.0, 0.5])
    with pytest.raises(DatasetInvalid):
        refuse_weightless([0.0, 0.0], [0.0])
