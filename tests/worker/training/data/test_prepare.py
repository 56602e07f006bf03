"""Encoding a file: the rows that are kept, skipped with a count, or refused, and a cache that is never outdated."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.contract.contracts import FineTuneContract
from shared.datasets.reader import read_rows
from shared.errors import Code, DatasetInvalid, InvalidRequest
from shared.tokenization.labels import IGNORED
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_rows
from tests.support.template_families import FAMILIES, make_base
from worker.training.data import prepare as preparation
from worker.training.data.prepare import PreparedRows, content_key, prepare
from worker.training.data.prepared import ABANDONED_SECONDS, INDEX_NAME, open_prepared

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples" / "support.jsonl"
VOCAB = 5000
Preparing = Callable[..., PreparedRows]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("bases") / "marked", FAMILIES["chatml_marked"])


@pytest.fixture(scope="session")
def tokenizer(base: Path) -> Tokenizer:
    return Tokenizer.load(base)


@pytest.fixture
def preparing(tokenizer: Tokenizer, tmp_path: Path) -> Preparing:
    """Prepares lines, with a contract's sections given by name."""

    def run(lines: list[Any], vocab_size: int = VOCAB, chosen: Tokenizer = tokenizer, **sections: Any) -> PreparedRows:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return prepare(path, digest(path), chosen, contract(**sections), tmp_path / "cache", vocab_size)

    return run


def contract(**sections: Any) -> FineTuneContract:
    sections = {"exec": {"seq_len": 512}, **sections}
    return FineTuneContract.model_validate({**sections, "data": {"train_file": "f", **sections.get("data", {})}})


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pair(prompt: str, response: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "response": response, **more}


# -- rows


@pytest.mark.parametrize(("seq_len", "last_k"), [(512, 0), (24, 0), (24, 3), (9, 1)])
def test_rows_are_the_label_builder_s(tokenizer, tmp_path, seq_len, last_k):
    wanted = contract(exec={"seq_len": seq_len, "qlora_ce_last_k": last_k})
    rows = prepare(EXAMPLES, digest(EXAMPLES), tokenizer, wanted, tmp_path, VOCAB)
    with EXAMPLES.open("rb") as lines:
        examples, skipped = encode_rows(tokenizer, read_rows(lines), seq_len, last_k)
    assert len(rows) == len(examples) == rows.report.rows
    for row, example in zip(rows, examples, strict=True):
        assert (row.line, row.ids.tolist()) == (example.line, example.ids)
        assert (row.ids.dtype, row.weights.dtype) == (np.uint32, np.float32)
        learnt = [0.0 if label == IGNORED or not index else 1.0 for index, label in enumerate(example.labels)]
        assert row.weights.tolist() == learnt
        assert row.targets == example.targets
    report = rows.report
    assert report.tokens == sum(len(example.ids) for example in examples) == rows.lengths.sum()
    assert report.supervised_tokens == sum(example.targets for example in examples)
    assert report.truncated_tokens == sum(example.truncated for example in examples)
    assert report.truncated_rows == sum(example.truncated > 0 for example in examples)
    assert report.skipped_lines == skipped


def test_batches_do_not_show(tokenizer, tmp_path, monkeypatch):
    whole = prepare(EXAMPLES, digest(EXAMPLES), tokenizer, contract(), tmp_path / "one", VOCAB)
    monkeypatch.setattr(preparation, "BATCH_ROWS", 7)
    parts = prepare(EXAMPLES, digest(EXAMPLES), tokenizer, contract(), tmp_path / "two", VOCAB)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert len(whole) == len(parts)


def files(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("*/*.bin")}


def test_rows_are_a_sequence(preparing):
    rows = preparing([pair("a", "b"), pair("c", "d"), pair("e", "f")])
    assert [row.line for row in rows] == [1, 2, 3]
    assert rows[-1].line == 3
    assert [row.line for row in rows[1:]] == [2, 3]
    with pytest.raises(IndexError):
        rows[3]


def test_difficulty_is_five_where_the_row_has_none(preparing):
    rows = preparing([pair("a", "b", difficulty=9), pair("c", "d")])
    assert rows.difficulties.tolist() == [9, 5] == [row.difficulty for row in rows]


def test_filtered_rows_are_neither_prepared_nor_skipped(preparing):
    rows = preparing([pair("a", "b", rating=1), pair("c", "d", rating=5)], data={"min_rating": 3})
    assert [row.line for row in rows] == [2]
    assert sum(rows.report.skipped.values()) == 0


def test_trajectory_weights(preparing):
    lines = [pair("a", "b", category="tool_trace"), pair("c", "d"), pair("e", "f", category="tool_trace_error")]
    assert [row.weight for row in preparing(lines)] == [1.0, 1.0, 1.0]
    boosts = {"enabled": True, "tool_trace_boost": 2.0, "failure_category_boost": 100.0}
    rows = preparing(lines, trajectory=boosts)
    assert [row.weight for row in rows] == [2.0, 1.0, 8.0]
    assert (rows.report.trajectory_weighted, rows.report.trajectory_clamped) == (2, 1)


def test_syntax_spans_weigh_tokens(preparing, tokenizer):
    rows = preparing([pair("a", "x yz", syntax_spans=[{"start": 0, "end": 1, "weight": 2.5}])])
    learnt = [
        (tokenizer.decode([id_]), weight) for id_, weight in zip(rows[0].ids, rows[0].weights, strict=True) if weight
    ]
    assert learnt[0] == ("x", 2.5)
    assert {weight for _, weight in learnt[1:]} == {1.0}


# -- what is left out


APPENDING = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}{% generation %}{{- message['content'] }}{% endgeneration %}"
    "{%- else %}{{- message['content'] }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}{{- messages[0]['content'] }}"
)
"""Writes the prompt again after the answer, so that a long prompt pushes the answer out."""


@pytest.fixture(scope="session")
def appending(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bases") / "appending"
    return Tokenizer.load(make_base(folder, FAMILIES["chatml_marked"], APPENDING))


def test_rows_with_nothing_to_learn_are_counted_with_their_lines(preparing, appending):
    lines = [pair("a b c d e f g h i j", "A"), pair("Q", "A"), pair("k l m n o p q r s t", "B")]
    rows = preparing(lines, chosen=appending, exec={"seq_len": 8}, data={"mode": "lenient"})
    assert [row.line for row in rows] == [2]
    assert rows.report.skipped == {
        "no_supervised_positions": 2, "short_seq": 0, "token_id_oob": 0, "template_refused": 0,
    }  # fmt: skip
    assert rows.report.skipped_lines == [1, 3]


def test_ids_that_the_model_does_not_have(preparing, tokenizer):
    lines = [pair("a", "b"), pair("a", "the the the")]
    most = max(*preparing(lines[:1])[0].ids.tolist(), tokenizer.encode("<|im_end|>").ids[0])
    assert len(preparing(lines, most + 1)) >= 1
    with pytest.raises(DatasetInvalid) as refused:
        preparing(lines, most)
    assert refused.value.code == Code.EMBEDDING_ROW_MISSING
    assert refused.value.details["skipped"]["token_id_oob"] == 2
    assert f"'<|im_end|>' (id {most})" in refused.value.message
    assert "seq_len" not in refused.value.remedy


@pytest.mark.parametrize("rate", [None, 0.9])
def test_strict_rows_are_never_skipped_without_a_word(preparing, appending, rate):
    """Unless the contract states how many may be."""
    lines = [pair("Q", "A"), pair("a b c d e f g h i j", "A"), pair("Q", "B")]
    exec_ = {"seq_len": 8, "qlora_max_skip_rate": rate}
    if rate is not None:
        assert len(preparing(lines, chosen=appending, exec=exec_)) == 2
    with pytest.raises(DatasetInvalid) as refused:
        preparing(lines, chosen=appending, exec={"seq_len": 8})
    assert (refused.value.code, refused.value.details["lines"]) == (Code.NOTHING_SUPERVISED, [2])
    assert "lines 2" in refused.value.message


BARE = "{% generation %}{{ messages[-1]['content'] }}{% endgeneration %}"


def test_short_rows(preparing, tmp_path):
    folder = make_base(tmp_path / "bare", FAMILIES["chatml_marked"], BARE)
    alone = {"messages": [{"role": "assistant", "content": "a"}]}
    rows = preparing(
        [alone, alone | {"messages": [{"role": "assistant", "content": "a longer answer"}]}],
        chosen=Tokenizer.load(folder),
        data={"mode": "lenient"},
    )
    assert [row.line for row in rows] == [2]
    assert rows.report.skipped["short_seq"] == 1


def test_too_many_skipped_rows_refuse_the_file(preparing, appending):
    lines = [pair("a b c d e f g h i j", "A"), pair("Q", "A"), pair("Q", "B"), pair("Q", "C")]
    for rate, refused in [(0.25, False), (0.2, True), (0.0, True)]:
        exec_ = {"seq_len": 8, "qlora_max_skip_rate": rate}
        if not refused:
            assert len(preparing(lines, chosen=appending, exec=exec_)) == 3
            continue
        with pytest.raises(DatasetInvalid) as found:
            preparing(lines, chosen=appending, exec=exec_)
        assert found.value.code == Code.SKIP_RATE_EXCEEDED
        assert found.value.details["lines"] == [1]
        assert found.value.details["attempted"] == 4
        assert found.value.param == "exec.qlora_max_skip_rate"


def test_nothing_left(preparing, appending):
    with pytest.raises(DatasetInvalid) as refused:
        preparing([pair("a b c d e f g h i j", "A")], chosen=appending, exec={"seq_len": 8})
    assert refused.value.code == Code.NOTHING_SUPERVISED
    assert "lines 1" in refused.value.message


def test_bad_lines_refuse_or_are_passed_over(preparing):
    lines = [pair("a", "b"), "no json", pair("c", "d")]
    with pytest.raises(DatasetInvalid) as refused:
        preparing(lines)
    assert refused.value.code == Code.DATASET_LINE_INVALID
    assert [row.line for row in preparing(lines, data={"mode": "lenient"})] == [1, 3]


def test_a_template_that_does_not_take_a_row_says_which(preparing, tmp_path):
    turns = [{"role": role, "content": "x"} for role in ("user", "tool", "assistant")]
    without_tools = Tokenizer.load(make_base(tmp_path / "gemma", FAMILIES["gemma"]))
    with pytest.raises(InvalidRequest, match="line 2") as refused:
        preparing([pair("a", "b"), {"messages": turns}], chosen=without_tools)
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED


@pytest.mark.parametrize("others", [1, 3])
def test_lenient_rows_that_the_template_refuses_are_skipped(preparing, tmp_path, others):
    turns = [{"role": role, "content": "x"} for role in ("user", "tool", "assistant")]
    without_tools = Tokenizer.load(make_base(tmp_path / "gemma", FAMILIES["gemma"]))
    lines = [{"messages": turns}, *[pair("a", "b")] * others, {"messages": turns}]
    rows = preparing(lines, chosen=without_tools, data={"mode": "lenient"})
    assert [row.line for row in rows] == list(range(2, 2 + others))
    assert (rows.report.skipped["template_refused"], rows.report.skipped_lines) == (2, [1, others + 2])
    with pytest.raises(DatasetInvalid) as refused:
        preparing([{"messages": turns}], chosen=without_tools, data={"mode": "lenient"})
    assert refused.value.code == Code.NOTHING_SUPERVISED


# -- the cache


def test_the_second_time_it_is_found(preparing, tmp_path):
    first, second = preparing([pair("a", "b")]), preparing([pair("a", "b")])
    assert (first.report.cached, second.report.cached) == (False, True)
    assert first[0].ids.tolist() == second[0].ids.tolist()
    assert second.report.tokens == first.report.tokens
    assert not second[0].ids.flags.writeable
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_all_that_decides_the_rows_is_in_the_name(tokenizer, appending):
    plain = contract()
    others = [
        contract(exec={"seq_len": 511}),
        contract(exec={"seq_len": 512, "qlora_ce_last_k": 1}),
        contract(data={"mode": "lenient"}),
        contract(data={"min_rating": 1}),
        contract(data={"context_filter": {"categories": ["x"]}}),
        contract(trajectory={"enabled": True}),
    ]
    names = [content_key("f", tokenizer, one, VOCAB) for one in [plain, *others]]
    names += [content_key("g", tokenizer, plain, VOCAB), content_key("f", tokenizer, plain, VOCAB + 1)]
    names += [content_key("f", appending, plain, VOCAB)]
    assert len(set(names)) == len(names)
    same = [contract(exec={"seq_len": 512, "epochs": 9}), contract(data={"train_file": "g"}), contract()]
    assert {content_key("f", tokenizer, one, VOCAB) for one in same} == {names[0]}


@pytest.mark.parametrize("harm", ["cut", "longer", "gone", "no index", "torn index", "other version", "empty"])
def test_a_broken_entry_is_made_again(preparing, tmp_path, harm):
    lines = [pair("a", "b"), pair("c", "d")]
    good = preparing(lines)
    ids = [row.ids.tolist() for row in good]
    [folder] = (tmp_path / "cache").iterdir()
    if harm == "cut":
        (folder / "ids.bin").write_bytes((folder / "ids.bin").read_bytes()[:-1])
    elif harm == "longer":
        (folder / "weights.bin").write_bytes((folder / "weights.bin").read_bytes() + b"0000")
    elif harm == "gone":
        (folder / "starts.bin").unlink()
    elif harm == "no index":
        (folder / INDEX_NAME).unlink()
    elif harm == "torn index":
        (folder / INDEX_NAME).write_text((folder / INDEX_NAME).read_text()[:-5])
    elif harm == "other version":
        index = json.loads((folder / INDEX_NAME).read_text())
        (folder / INDEX_NAME).write_text(json.dumps({**index, "version": 0}))
    else:
        for path in folder.iterdir():
            path.unlink()
    assert open_prepared(folder) is None
    again = preparing(lines)
    assert not again.report.cached
    assert [row.ids.tolist() for row in again] == ids
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_a_cached_file_says_when_it_was_last_used(preparing, tmp_path):
    lines = [pair("a", "b")]
    preparing(lines)
    [folder] = (tmp_path / "cache").iterdir()
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    before = time.time()
    preparing(lines)
    assert max(path.stat().st_mtime for path in folder.iterdir()) >= before - 1


def test_a_refused_file_leaves_nothing(preparing, tmp_path):
    with pytest.raises(DatasetInvalid):
        preparing(["no json"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_process_left_goes_after_a_day(preparing, tmp_path):
    old, new = tmp_path / "cache" / ".a.1.x", tmp_path / "cache" / ".b.2.y"
    for folder in (old, new):
        folder.mkdir(parents=True)
    long_ago = time.time() - ABANDONED_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    preparing([pair("a", "b")])
    assert not old.exists()
    assert new.exists()


PREPARING = """
import sys
from pathlib import Path
from shared.contract.contracts import FineTuneContract
from shared.tokenization.tokenizer import Tokenizer
from worker.training.data.prepare import prepare
contract = FineTuneContract.model_validate_json(sys.argv[1])
base, cache, path = map(Path, sys.argv[2:5])
rows = prepare(path, sys.argv[5], Tokenizer.load(base), contract, cache, int(sys.argv[6]))
print(len(rows), rows.report.tokens)
"""


@pytest.mark.exhaustive
def test_processes_that_prepare_the_same_at_once(base, tmp_path):
    arguments = [contract().model_dump_json(), base, tmp_path / "cache", EXAMPLES, digest(EXAMPLES), VOCAB]
    command = [sys.executable, "-c", PREPARING, *map(str, arguments)]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = {process.communicate(timeout=120)[0] for process in started}
    assert [process.returncode for process in started] == [0] * 4
    assert len(outputs) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


# -- the faster library


def test_a_library_that_errs_in_the_middle_changes_nothing(preparing, tokenizer, tmp_path, monkeypatch):
    """Encoded rows are discarded, and the whole file is encoded with the other library."""
    monkeypatch.setattr(preparation, "BATCH_ROWS", 4)
    monkeypatch.setattr(preparation, "FAST_BYTES", 0)
    lines = [pair(f"question {number}", "an answer" if number < 9 else "a zebra") for number in range(12)]
    right = preparing(lines)
    expected, encoded = [row.ids.tolist() for row in right], []

    class Wrong:
        def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
            encoded.append(len(texts))
            ids = [tokenizer.backend.encode(text, add_special_tokens=False).ids for text in texts]
            ids = [[*found[:-1], 5] if "zebra" in text else found for text, found in zip(texts, ids, strict=True)]
            starts = np.cumsum([0, *(len(found) for found in ids)])
            flat = np.array([id_ for found in ids for id_ in found], "<u4")
            return flat.tobytes(), starts.astype("<u8").tobytes()

    module = types.ModuleType("fastokens")
    module.Tokenizer = types.SimpleNamespace(from_json_str=lambda _: Wrong())
    monkeypatch.setitem(sys.modules, "fastokens", module)
    [folder] = (tmp_path / "cache").iterdir()
    (folder / INDEX_NAME).unlink()
    again = preparing(lines)
    assert len(encoded) == 4  # the hard texts, and three batches
    assert again.report.tokenizer == "tokenizers"
    assert [row.ids.tolist() for row in again] == expected
