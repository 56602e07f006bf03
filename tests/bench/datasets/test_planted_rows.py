"""Rows with planted copies: a training file whose copies are counted when they are left out."""

from __future__ import annotations

import json

import pytest

from bench.datasets.planted_rows import LEAST_WORDS, digest_text, find_copies, write_rows
from shared.datasets.reader import check_dataset

ROWS = 5_000


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("planted") / "rows.jsonl"
    planted = write_rows(path, ROWS, 80)
    return (
        path,
        planted,
        [f"{row['prompt']} {row['response']}" for row in map(json.loads, path.read_bytes().splitlines())],
    )


def test_rows_are_a_training_file(written):
    path, _, texts = written
    with path.open("rb") as file:
        assert check_dataset(file).rows == ROWS
    assert min(len(text.split()) for text in texts) == LEAST_WORDS


def test_copies_are_as_many_as_planned(written):
    _, planted, _ = written
    assert len(planted.exact) == pytest.approx(0.02 * ROWS, rel=0.4)
    assert len(planted.near) == pytest.approx(0.1 * ROWS, rel=0.2)


def test_rows_without_copies_have_all_of_them_left_out(written):
    _, planted, texts = written
    near = {second for _, second in planted.near}
    alone = [text for text in dict.fromkeys(texts) if digest_text(text) not in near]
    assert find_copies(planted, ROWS, alone) == (1.0, 0)


def test_copies_that_stay_and_other_rows_that_do_not_are_counted(written):
    _, planted, texts = written
    assert find_copies(planted, ROWS, texts) == (0.0, 0)
    share, others = find_copies(planted, ROWS, dict.fromkeys(texts))
    assert (share, others) == (len(planted.exact) / (len(planted.exact) + len(planted.near)), 0)
    copied = {*planted.exact, *(digest for pair in planted.near for digest in pair)}
    single = next(text for text in texts if digest_text(text) not in copied)
    assert find_copies(planted, ROWS, [text for text in texts if text != single]) == (0.0, 1)


def test_a_near_copy_has_nearly_all_of_its_words(written):
    _, planted, texts = written
    words = {digest_text(text): text.split() for text in texts}
    for first, second in planted.near:
        changed = sum(one != other for one, other in zip(words[first], words[second], strict=True))
        assert 1 <= changed <= max(1, len(words[first]) // 100)
