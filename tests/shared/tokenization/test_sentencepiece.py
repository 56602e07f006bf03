"""Chats in a tokenizer with a mark before each word and bytes as tokens: labels, lengths and pieces are those of the
text, although several tokens share a character and no token is a word's own bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.reader import Message, TrainingRow
from shared.tokenization.agreement import first_difference
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.labels import IGNORED, label_chats
from shared.tokenization.supervision_counts import text_pieces
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_row, sample_view
from tests.support.sentencepiece import BEGIN, END, UNKNOWN, train_sentencepiece
from tests.support.template_families import CASES, CORPUS, TEMPLATES
from worker.training.data.fast_encoding import byte_lengths

SUPPORTED = ("single", "multi", "system_multi", "unicode", "white_space", "weight_0")
"""Cases that the template accepts."""
ANSWERS = ["Hello there.", "数据 🙂", "e\u0301 Żółć", '{\n  "a": 1\n}', "a  b", "def f():\n\treturn 1", "\u200b!"]  # fmt: skip


def row(question: str, answer: str) -> TrainingRow:
    return TrainingRow(1, [Message("user", question), Message("assistant", answer)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sentencepiece")
    train_sentencepiece(CORPUS.read_text(encoding="utf-8").splitlines()).save(str(path / "tokenizer.json"))
    named = {"bos_token": BEGIN, "eos_token": END, "unk_token": UNKNOWN}
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "legacy": True, **named})
    )
    (path / "chat_template.jinja").write_text((TEMPLATES / "llama2.jinja").read_text())
    (path / "config.json").write_text(json.dumps({"model_type": "mistral", "vocab_size": 2048}))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def test_characters_outside_the_vocabulary_are_bytes_and_no_token_is_unknown(tokenizer: Tokenizer) -> None:
    found = [tokenizer.backend.id_to_token(id_) for id_ in tokenizer.encode("数\n").ids]
    assert found == ["▁", "<0xE6>", "<0x95>", "<0xB0>", "<0x0A>"]
    assert tokenizer.encode(" ".join(ANSWERS)).ids.count(tokenizer.backend.token_to_id(UNKNOWN)) == 0


@pytest.mark.parametrize("answer", ANSWERS)
def test_labels_are_the_answer_and_its_end(tokenizer: Tokenizer, answer: str) -> None:
    example = encode_row(tokenizer, row("Hi 数 é", answer), 10_000)
    supervised = [label for label in example.labels if label != IGNORED]
    assert tokenizer.backend.decode(supervised) == f"{answer.strip()} "
    assert tokenizer.end_token == END
    assert supervised[-1] == tokenizer.backend.token_to_id(END)
    assert sample_view(tokenizer, row("Hi 数 é", answer), seq_len=10_000) == [
        (f"{BEGIN}[INST] Hi 数 é [/INST]", False),
        (f" {answer.strip()} {END}", True),
    ]


@given(question=st.text(max_size=20), answer=st.text(min_size=1, max_size=20), seq_len=st.integers(8, 40))
def test_any_text_is_cut_at_its_beginning_and_keeps_its_end(
    tokenizer: Tokenizer, question: str, answer: str, seq_len: int
) -> None:
    [labelled] = label_chats(tokenizer, [find_assistant_spans(tokenizer, row(question, answer))])
    example = labelled.example(seq_len)
    assert example.truncated == max(0, len(labelled.ids) - seq_len)
    assert example.ids[-1] == example.labels[-1] == tokenizer.backend.token_to_id(END)
    assert labelled.chat.text.endswith("".join(text for text, _ in text_pieces(labelled, example)))


@pytest.mark.torch
def test_ids_of_chats_are_those_of_transformers(tokenizer: Tokenizer, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [tokenizer.render(case["messages"]).text for name, case in CASES.items() if name in SUPPORTED]
    assert len(texts) == len(SUPPORTED)
    assert first_difference(tokenizer, lambda text: theirs.encode(text, add_special_tokens=False), texts) is None


def test_no_row_is_encoded_by_its_bytes(tokenizer: Tokenizer) -> None:
    assert byte_lengths(tokenizer.backend) is None
