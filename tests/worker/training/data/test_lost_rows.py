"""Every row that the trainer would leave out is counted beforehand, with its line: by `mens data check`, plan and
preflight.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from shared.contract.contracts import FineTuneContract
from shared.errors import Code, DatasetInvalid
from shared.tokenization.supervision import supervise_file
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import FAMILIES, make_base
from worker.training.data.prepare import prepare

# It repeats the question after the answer, so that a cut can take all of the answer away; and an answer alone is one token.
TEMPLATE = (
    "{%- if messages | length == 1 %}{% generation %}{{ messages[0]['content'] }}{% endgeneration %}{% else %}"
    + FAMILIES["chatml_marked"].template
    + "{{- messages[0]['content'] }}{% endif %}"
)
ADDED = "<tool>"
WORDS = st.lists(st.sampled_from(["a", "the", "word", ADDED]), min_size=1, max_size=8).map(" ".join)
ROWS = st.one_of(
    st.fixed_dictionaries({"prompt": WORDS, "response": WORDS}),
    WORDS.map(lambda answer: {"messages": [{"role": "assistant", "content": answer}]}),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base whose tokenizer got a token, and whose embedding was not resized."""
    folder = make_base(tmp_path_factory.mktemp("base"), FAMILIES["chatml_marked"], TEMPLATE)
    backend = Tokenizer.load(folder).backend
    (folder / "config.json").write_text(json.dumps({"vocab_size": backend.get_vocab_size()}))
    backend.add_tokens([AddedToken(ADDED)])
    backend.save(str(folder / "tokenizer.json"))
    return folder


def contract(**data: Any) -> FineTuneContract:
    return FineTuneContract.model_validate({"exec": {"seq_len": 12}, "data": {"train_file": "f", **data}})


@given(rows=st.lists(ROWS, min_size=1, max_size=12))
def test_preflight_and_trainer_lose_the_same_rows(
    base: Path, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer, digest = Tokenizer.load(base), hashlib.sha256(path.read_bytes()).hexdigest()
    assert tokenizer.embedding_rows is not None
    report = supervise_file(path, base, seq_len=12)
    lost = sorted(note.line for notes in (report.nothing_supervised, report.without_embedding) for note in notes.first)

    def trained(**data: Any) -> Any:
        return prepare(path, digest, tokenizer, contract(**data), folder / "cache", tokenizer.embedding_rows)

    if len(lost) < len(rows):
        lenient = trained(mode="lenient")
        assert lenient.report.skipped_lines == lost
        assert lenient.report.skipped["token_id_oob"] == report.without_embedding.count
    else:
        with pytest.raises(DatasetInvalid):
            trained(mode="lenient")
    if lost:
        assert report.is_refused()
        with pytest.raises(DatasetInvalid) as refused:
            trained()
        assert refused.value.code in (Code.NOTHING_SUPERVISED, Code.EMBEDDING_ROW_MISSING)
    else:
        assert trained().report.rows == len(rows)


def test_refusal_names_line_and_token(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a", "response": word}) + "\n" for word in ("a", f"b {ADDED}")))
    report = supervise_file(path, base, seq_len=64)
    with pytest.raises(DatasetInvalid) as refused:
        report.refuse()
    error = refused.value
    assert error.code == Code.EMBEDDING_ROW_MISSING
    assert "line 2" in error.message
    assert repr(ADDED) in error.message
    assert "lenient" in error.remedy
    report.refuse(lenient=True)
    assert any("no row for" in warning and "line 2" in warning for warning in report.warnings(64))
    path.write_text(json.dumps({"prompt": "a", "response": ADDED}) + "\n")
    with pytest.raises(DatasetInvalid) as refused:
        supervise_file(path, base, seq_len=64).refuse(lenient=True)
    assert "lenient" not in refused.value.remedy, "no row would be left"
