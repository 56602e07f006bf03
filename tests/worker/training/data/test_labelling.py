"""Labels computed without offsets equal those computed with offsets, whatever the text, the template and the tokenizer."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from shared.datasets.reader import Message, TrainingRow
from shared.datasets.rows import SyntaxSpan
from shared.errors import InvalidRequest
from shared.tokenization.assistant_spans import find_assistant_spans
from shared.tokenization.chat_template import ChatTemplate
from shared.tokenization.labels import IGNORED
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_row
from tests.support.template_families import CASES, FAMILIES, make_base
from worker.training.data.fast_encoding import HARD_TEXTS, Encoder, EncodersDiffer, byte_lengths
from worker.training.data.labelling import LabelledRows, Labeller, by_offsets

LONG = 100_000
PLAIN_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{{- '\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("families")
    return {name: Tokenizer.load(make_base(folder / name, family)) for name, family in FAMILIES.items()}


@pytest.fixture(scope="session")
def tokenizer(tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers["chatml_marked"]


def chat(*turns: tuple[str, str], line: int = 1, spans: list[SyntaxSpan] | None = None) -> TrainingRow:
    return TrainingRow(line, [Message(role, content) for role, content in turns], syntax_spans=spans)


def same(one: LabelledRows, other: LabelledRows) -> bool:
    pairs = [(one.lengths, other.lengths), (one.ids, other.ids), (one.weights, other.weights)]
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def reference(tokenizer: Tokenizer, rows: list[TrainingRow]) -> LabelledRows:
    return by_offsets(tokenizer, rows, [find_assistant_spans(tokenizer, row) for row in rows])


def accepted(tokenizer: Tokenizer) -> list[TrainingRow]:
    """The cases that a template takes, one after another."""
    rows = []
    for number, case in enumerate(CASES.values(), start=1):
        row = TrainingRow(number, [Message(**turn) for turn in case["messages"]], tools=case.get("tools"))
        try:
            find_assistant_spans(tokenizer, row)
        except InvalidRequest:
            continue
        rows.append(row)
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_s_cases_in_one_batch(tokenizers, family):
    rows = accepted(tokenizers[family])
    assert len(rows) > 5
    assert same(Labeller(tokenizers[family]).label(rows), reference(tokenizers[family], rows))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_slow_way_is_the_label_builder_s(tokenizers, family):
    rows = accepted(tokenizers[family])
    found = reference(tokenizers[family], rows)
    examples = [encode_row(tokenizers[family], row, LONG) for row in rows]
    assert found.ids.tolist() == [id_ for example in examples for id_ in example.ids]
    assert (found.weights > 0).tolist() == [label != IGNORED for example in examples for label in example.labels]


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30) | st.sampled_from(
    ["e\u0301 a\u030a", "<|im_end|>", "a<|im_start|>b", "  two  ", "\n\n", "数据 🙂", "\u0958", *HARD_TEXTS[1:5]]
)
SPAN = st.tuples(st.integers(0, 20), st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]))


@st.composite
def conversation(draw: Any) -> TrainingRow:
    turns = [Message("system", draw(TEXT))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        turns += [
            Message("user", draw(TEXT)),
            Message("assistant", draw(TEXT), weight=draw(st.sampled_from([None, 0]))),
        ]
    turns[-1] = Message("assistant", draw(TEXT))
    spans = [SyntaxSpan(start, start + size, weight) for start, size, weight in draw(st.lists(SPAN, max_size=3))]
    return TrainingRow(1, turns, syntax_spans=spans)


def make_tokenizers(tokenizer: Tokenizer) -> dict[str, Tokenizer]:
    """The same vocabulary, made up in all the ways that change a text or its borders."""
    import tokenizers as library

    nfc, prefix, removed = (library.Tokenizer.from_str(tokenizer.backend.to_str()) for _ in range(3))
    nfc.normalizer = normalizers.NFC()
    prefix.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    removed.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), byte_level])
    plain = ChatTemplate(PLAIN_TEMPLATE, {})
    return {
        "marks": tokenizer,
        "plain": replace(tokenizer, template=plain),
        "nfc": replace(tokenizer, backend=nfc),
        "prefix": replace(tokenizer, backend=prefix),
        "removed": replace(tokenizer, backend=removed),
    }


@pytest.fixture(scope="session")
def labellers(tokenizers: dict[str, Tokenizer], tokenizer: Tokenizer) -> dict[str, tuple[Tokenizer, Labeller]]:
    kinds = {**make_tokenizers(tokenizer), "rstrip": tokenizers["phi3"]}
    return {kind: (one, Labeller(one)) for kind, one in kinds.items()}


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(rows=st.lists(conversation(), min_size=1, max_size=5), kind=st.sampled_from(["marks", "plain", "nfc", "rstrip"]))
def test_any_rows_in_any_batch(labellers, rows, kind):
    chosen, labeller = labellers[kind]
    try:
        expected = reference(chosen, rows)
    except InvalidRequest:
        return
    assert same(labeller.label(rows), expected)


def test_only_tokens_that_are_the_text_s_bytes_are_summed(tokenizer):
    known = {name: byte_lengths(one.backend) is not None for name, one in make_tokenizers(tokenizer).items()}
    assert known == {"marks": True, "plain": True, "nfc": True, "prefix": False, "removed": False}
    for chosen in make_tokenizers(tokenizer).values():
        rows = [chat(("user", "Hi you"), ("assistant", " e\u0301 there ")), chat(("user", "A"), ("assistant", "B"))]
        assert same(Labeller(chosen).label(rows), reference(chosen, rows))


def test_a_vocabulary_without_every_byte_is_not_summed(tokenizer):
    content = json.loads(tokenizer.backend.to_str())
    del content["model"]["vocab"]["Ā"]
    content["model"]["merges"] = []
    content["model"]["vocab"] = {key: id_ for key, id_ in content["model"]["vocab"].items() if len(key) == 1}
    import tokenizers as library

    assert byte_lengths(library.Tokenizer.from_str(json.dumps(content))) is None


# -- spans that weigh more


def weights_of(tokenizer: Tokenizer, row: TrainingRow) -> list[tuple[str, float]]:
    found = Labeller(tokenizer).label([row])
    assert same(found, reference(tokenizer, [row]))
    return [
        (tokenizer.decode([id_]), weight)
        for id_, weight in zip(found.ids.tolist(), found.weights.tolist(), strict=True)
        if weight
    ]


def test_tokens_that_overlap_a_span_take_its_weight_if_it_is_more(tokenizer):
    spans = [SyntaxSpan(0, 1, 2.0), SyntaxSpan(2, 6, 0.5), SyntaxSpan(5, 6, 3.0)]
    found = weights_of(tokenizer, chat(("user", "Q"), ("assistant", "x yz é"), spans=spans))
    assert "".join(text for text, _ in found[:-1]).startswith("x")
    assert found[0] == ("x", 2.0)
    assert {weight for _, weight in found[1:-1]} == {1.0, 3.0}
    assert found[-1] == ("<|im_end|>", 1.0)


def test_spans_are_those_of_the_last_turn(tokenizer):
    turns = [("user", "a b"), ("assistant", "a b"), ("user", "a b"), ("assistant", "a b")]
    found = weights_of(tokenizer, chat(*turns, spans=[SyntaxSpan(0, 1, 4.0)]))
    assert [weight for _, weight in found if weight > 1] == [4.0]
    assert [weight for _, weight in found].index(4.0) >= len(found) // 2


def test_spans_of_content_that_is_not_found_count_nothing(tokenizer):
    spread = replace(
        tokenizer,
        template=ChatTemplate(
            tokenizer.template.text.replace("message['content'] }}", "message['content'] | replace(' ', '  ') }}"), {}
        ),
    )
    row = chat(("user", "q"), ("assistant", "ab c"), spans=[SyntaxSpan(0, 3, 4.0)])
    assert "ab  c" in find_assistant_spans(spread, row).text
    assert {weight for _, weight in weights_of(spread, row)} == {1.0}


# -- cutting


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(conversation(), min_size=1, max_size=4), seq_len=st.integers(1, 60), last_k=st.sampled_from([0, 1, 3])
)
def test_cut_as_the_label_builder_cuts(labellers, rows, seq_len, last_k):
    tokenizer, labeller = labellers["marks"]
    found = labeller.label(rows).last_supervised(last_k).last_tokens(seq_len)
    examples = [encode_row(tokenizer, row, seq_len, last_k) for row in rows]
    assert found.lengths.tolist() == [len(example.ids) for example in examples]
    assert found.ids.tolist() == [id_ for example in examples for id_ in example.ids]
    assert found.targets().tolist() == [example.targets for example in examples]
    learnt = [label != IGNORED and index > 0 for example in examples for index, label in enumerate(example.labels)]
    assert (found.weights > 0).tolist() == learnt
    chosen = np.arange(len(rows)) % 2 == 0
    part = found.select(chosen)
    assert part.ids.tolist() == [id_ for example in examples[::2] for id_ in example.ids]


# -- the faster library


class Liar:
    """Stands in for a library that is wrong about some texts."""

    def __init__(self, backend: Any, wrong: str) -> None:
        self._backend, self._wrong = backend, wrong

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        ids = [self._backend.encode(text, add_special_tokens=False).ids for text in texts]
        ids = [found[::-1] if self._wrong in text else found for text, found in zip(texts, ids, strict=True)]
        flat = [id_ for found in ids for id_ in found]
        starts = np.cumsum([0, *(len(found) for found in ids)])
        return np.array(flat, "<u4").tobytes(), starts.astype("<u8").tobytes()


def install(monkeypatch: pytest.MonkeyPatch, backend: Any, wrong: str) -> None:
    module = types.ModuleType("fastokens")
    module.Tokenizer = types.SimpleNamespace(from_json_str=lambda _: Liar(backend, wrong))
    monkeypatch.setitem(sys.modules, "fastokens", module)


def test_a_library_that_is_right_is_used(monkeypatch, tokenizer):
    install(monkeypatch, tokenizer.backend, "never said")
    rows = accepted(tokenizer)
    labeller = Labeller(tokenizer)
    assert labeller.library == "fastokens"
    assert same(labeller.label(rows), reference(tokenizer, rows))
    assert Labeller(tokenizer, fast=False).library == "tokenizers"


def test_a_library_that_is_wrong_about_hard_texts_is_not_used(monkeypatch, tokenizer):
    install(monkeypatch, tokenizer.backend, "数据")
    assert Encoder(tokenizer.backend, fast=True).library == "tokenizers"


def test_a_library_that_is_wrong_about_the_data_is_found_out(monkeypatch, tokenizer):
    install(monkeypatch, tokenizer.backend, "zebra")
    encoder = Encoder(tokenizer.backend, fast=True)
    assert encoder.library == "fastokens"
    assert encoder.encode(["a horse"])[1].sum() > 0
    with pytest.raises(EncodersDiffer):
        encoder.encode(["two zebras in a row"])


def test_the_library_itself_makes_the_same_ids(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    pytest.importorskip("fastokens")
    for chosen in tokenizers.values():
        encoder = Encoder(chosen.backend, fast=True)
        rows = accepted(chosen)
        texts = [find_assistant_spans(chosen, row).text for row in rows] + list(HARD_TEXTS)
        ids, lengths = encoder.encode(texts)
        expected = [chosen.encode(text).ids for text in texts]
        assert lengths.tolist() == [len(one) for one in expected]
        assert ids.tolist() == [id_ for one in expected for id_ in one]
