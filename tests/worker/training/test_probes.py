"""Probes: a few rows by token id, and the positions that an adapter was trained to change."""

from __future__ import annotations

import json

from shared.labels import IGNORED, Example
from worker.training.probes import MAX_PROBES, MAX_TOKENS, write_probes


def example(length: int, learnt: range) -> Example:
    ids = list(range(1000, 1000 + length))
    return Example(1, ids, [id_ if index in learnt else IGNORED for index, id_ in enumerate(ids)], 0)


def written(folder, examples):
    write_probes(folder, examples)
    return json.loads((folder / "probes.json").read_text())["probes"]


def test_positions_are_the_learnt_tokens(tmp_path):
    assert written(tmp_path, [example(6, range(3, 5))]) == [
        {"token_ids": [1000, 1001, 1002, 1003, 1004, 1005], "positions": [3, 4]}
    ]


def test_first_token_has_no_probability_so_it_is_no_position(tmp_path):
    assert written(tmp_path, [example(3, range(3))])[0]["positions"] == [1, 2]


def test_long_rows_keep_their_end_and_positions_move_along(tmp_path):
    length = MAX_TOKENS + 50
    probe = written(tmp_path, [example(length, range(length - 5, length))])[0]
    assert len(probe["token_ids"]) == MAX_TOKENS
    assert probe["positions"] == list(range(MAX_TOKENS - 5, MAX_TOKENS))
    assert [probe["token_ids"][position] for position in probe["positions"]] == list(
        range(1000 + length - 5, 1000 + length)
    )


def test_few_rows_are_enough_and_rows_without_positions_are_left_out(tmp_path):
    assert len(written(tmp_path, [example(5, range(2, 4))] * 9)) == MAX_PROBES
    assert written(tmp_path, [example(5, range(1))]) == []


def test_a_run_writes_probes_of_its_validation_rows(finished, tokenizer):
    probes = json.loads((finished.run_dir / "probes.json").read_text())["probes"]
    answers = [tokenizer.decode([probe["token_ids"][at] for at in probe["positions"]]) for probe in probes]
    assert answers == ["A mistake in a program.<|im_end|>", "It runs code and compares the result.<|im_end|>"]
