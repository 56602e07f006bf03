"""The texts and chats that benches make are training files that the product accepts."""

from __future__ import annotations

import io
import json

import pytest

from bench.datasets.chats import chat_mix, corpus, example_texts
from bench.datasets.corpora import CORPORA, write_file
from bench.datasets.preparation_corpus import make_base, paragraphs, write_chats
from shared.datasets.reader import check_dataset


def test_messages_that_only_call_tools_are_not_text():
    texts = example_texts()
    assert "What is the weather like in Paris today?" in texts
    assert all(isinstance(text, str) and text for text in texts)


@pytest.mark.parametrize("texts", [corpus, lambda: paragraphs(library=False)], ids=["training", "preparation"])
def test_corpus_is_text(texts):
    found = texts()
    assert len(found) > 500
    assert all(isinstance(text, str) and text.strip() for text in found)


def test_chat_mix_is_a_valid_training_file():
    chats = chat_mix(lambda text: len(text.split()), rows=50)
    report = check_dataset(io.BytesIO("".join(json.dumps(chat) + "\n" for chat in chats).encode()), strict=True)
    assert report.rows == 50
    assert not report.error_count


def test_preparation_chats_are_a_valid_training_file(tmp_path):
    texts = paragraphs(library=False)[:300]
    make_base(tmp_path / "base", texts, vocabulary=600)
    write_chats(tmp_path / "chats.jsonl", tmp_path / "base", texts, rows=20)
    with (tmp_path / "chats.jsonl").open("rb") as file:
        assert check_dataset(file, strict=True).rows == 20


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_file_is_valid(tmp_path, name):
    path = tmp_path / "good.jsonl"
    lines = write_file(path, CORPORA[name], 300_000)
    with path.open("rb") as file:
        report = check_dataset(file, strict=True)
    assert (report.rows, report.error_count) == (lines, 0)


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_file_with_bad_lines_has_one_in_so_many(tmp_path, name):
    path = tmp_path / "bad.jsonl"
    lines = write_file(path, CORPORA[name], 300_000, bad_every=10)
    with path.open("rb") as file:
        report = check_dataset(file, strict=False)
    assert report.error_count == lines // 10
    assert report.rows + report.error_count == lines
