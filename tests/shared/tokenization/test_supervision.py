"""The supervision report: which tokens of a file would be trained on, and when it is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from shared.datasets.reader import parse_row
from shared.errors import Code, DatasetInvalid, InvalidRequest
from shared.tokenization.labels import IGNORED
from shared.tokenization.supervision import supervise_file
from shared.tokenization.supervision_counts import MAX_LISTED
from shared.tokenization.supervision_report import LineNote, SupervisionReport
from shared.tokenization.tokenizer import Tokenizer
from tests.support.encoding import encode_row, sample_view
from tests.support.template_families import FAMILIES, make_base

ROWS = [
    {"prompt": "One?", "response": "First."},
    {"prompt": "Two?", "response": "Second answer, and a longer one."},
    {"prompt": "a b c d e f g h i j k l m n o p q r s t", "response": "A"},
]

# It repeats the question after the answer, so that a cut can take all of the answer away.
REPEATING = FAMILIES["chatml_marked"].template + "{{- messages[0]['content'] }}"
CUT = 12
TURNS = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B."}]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    return {name: make_base(folder / name, family) for name, family in FAMILIES.items()}


@pytest.fixture
def base(bases: dict[str, Path]) -> Path:
    return bases["chatml_marked"]


@pytest.fixture
def repeating(tmp_path: Path) -> Path:
    return make_base(tmp_path / "repeating", FAMILIES["chatml_marked"], REPEATING)


@pytest.fixture
def write(tmp_path: Path):
    def to_file(rows: list[dict[str, Any]]) -> Path:
        path = tmp_path / "train.jsonl"
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    return to_file


def test_counts_equal_those_of_the_trainer(write, base):
    path, tokenizer = write(ROWS[:2]), Tokenizer.load(base)
    lines = path.read_bytes().splitlines()
    for seq_len, last_k in ((1000, 0), (12, 0), (12, 3)):
        examples = [encode_row(tokenizer, parse_row(line, n), seq_len, last_k) for n, line in enumerate(lines, 1)]
        report = supervise_file(path, base, seq_len=seq_len, last_k=last_k)
        assert (report.rows, report.lines, report.sampled) == (2, 2, False)
        assert report.supervised_tokens == sum(example.targets for example in examples)
        assert report.tokens == sum(len(example.ids) for example in examples)
        assert report.truncated_tokens == sum(example.truncated for example in examples)
        assert [row.supervised for row in report.row_table] == [example.targets for example in examples]
        assert [row.end_learnt for row in report.row_table] == [True, True]
        share = report.truncated_tokens / (report.tokens + report.truncated_tokens)
        assert report.truncation_fraction == pytest.approx(share)


def test_good_file_is_not_refused_and_has_a_sample(write, base):
    report = supervise_file(write(ROWS[:2]), base, seq_len=100)
    report.refuse()
    assert report.method == "marks"
    assert report.end_token == "<|im_end|>"
    assert report.template_digest == Tokenizer.load(base).template.digest
    assert [(piece.text, piece.learnt) for piece in report.sample] == [
        ("<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n", False),
        ("First.<|im_end|>", True),
        ("\n", False),
    ]
    assert SupervisionReport.model_validate_json(report.model_dump_json()) == report


def test_rows_without_supervised_tokens_are_refused_by_line(write, repeating):
    report = supervise_file(write([ROWS[0], ROWS[2], ROWS[1], ROWS[2]]), repeating, seq_len=CUT)
    assert [note.line for note in report.nothing_supervised.first] == [2, 4]
    assert [row.end_learnt for row in report.row_table] == [True, False, True, False]
    assert report.end_not_learnt.count == 0, "such rows are noted once"
    with pytest.raises(DatasetInvalid) as refused:
        report.refuse("data.validation_file")
    assert refused.value.code == Code.NOTHING_SUPERVISED
    assert "2 of the file's rows" in refused.value.message
    assert "line 2" in refused.value.message
    assert refused.value.param == "data.validation_file"
    assert [line["line"] for line in refused.value.details["lines"]] == [2, 4]


def test_rows_that_the_template_refuses_are_refused_by_line(write, bases):
    first_by_assistant = {"messages": [{"role": "assistant", "content": "I begin."}]}
    report = supervise_file(write([ROWS[0], first_by_assistant]), bases["llama2"], seq_len=100)
    assert report.rows == 2
    assert report.unsupported.first[0].line == 2
    assert "roles must alternate" in report.unsupported.first[0].reason
    with pytest.raises(DatasetInvalid) as refused:
        report.refuse()
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED


def test_lists_are_capped_and_counts_are_not(write, repeating):
    report = supervise_file(write([ROWS[2]] * 50), repeating, seq_len=CUT)
    assert report.nothing_supervised.count == 50
    assert len(report.nothing_supervised.first) == len(report.row_table) == MAX_LISTED


def test_histograms_count_every_row_in_powers_of_two(write, repeating):
    rows = [{"prompt": "Q", "response": "word " * count} for count in (1, 1, 3, 300)]
    report = supervise_file(write([*rows, ROWS[2]]), repeating, seq_len=CUT)
    for histogram in (report.token_histogram, report.supervised_histogram):
        sizes = [bucket.up_to for bucket in histogram]
        assert sizes == sorted(set(sizes))
        assert all(size & (size - 1) == 0 for size in sizes)
        assert sum(bucket.rows for bucket in histogram) == 5
    assert report.supervised_histogram[0].up_to == 0
    assert report.supervised_histogram[0].rows == 1


MARKS_THEN_TEXT = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %} |<|im_end|>{% endfor %}"
)
NO_END = "{% for m in messages %}{{ '<|im_start|>' + m.role + ': ' + m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (MARKS_THEN_TEXT, "after the answer the template writes ' |<|im_end|>', not an end token"),
        (NO_END, "the template writes no end token after the answer"),
    ],
)
def test_row_without_a_supervised_end_token_is_noted(write, tmp_path, template, reason):
    base = make_base(tmp_path / "base", FAMILIES["chatml_marked"], template)
    report = supervise_file(write(ROWS[:1]), base, seq_len=100)
    assert report.end_not_learnt.first == [LineNote(line=1, reason=reason)]
    assert report.row_table[0].end_learnt is False
    report.refuse()


@pytest.mark.parametrize(
    ("family", "last_only", "differs"), [("qwen3", 1, 0), ("deepseek_r1", 0, 2), ("qwen25", 0, 0), ("harmony", 1, 0)]
)
def test_rewritten_answers_are_noted(write, bases, family, last_only, differs):
    turns = [("user", "A?"), ("assistant", "B."), ("user", "C?"), ("assistant", "D.")]
    two = {"messages": [{"role": role, "content": content} for role, content in turns]}
    report = supervise_file(write([ROWS[0], two]), bases[family], seq_len=100)
    assert (report.last_turn_only.count, report.prompt_differs.count) == (last_only, differs)
    assert report.method == "offsets"


def test_prompt_that_differs_from_training_is_noted(write, tmp_path):
    base = make_base(tmp_path / "base", FAMILIES["chatml_marked"], REPEATING)
    assert supervise_file(write(ROWS[:1]), base, seq_len=100).prompt_differs.count == 1


@pytest.mark.parametrize(("family", "told"), [("qwen25", [2]), ("harmony", [])])
def test_developers_turns_that_become_the_systems_are_reported(write, bases, family, told):
    rules = {"messages": [{"role": "developer", "content": "Be brief."}, *TURNS]}
    report = supervise_file(write([ROWS[0], rules]), bases[family], seq_len=100)
    assert [note.line for note in report.developer_as_system.first] == told
    assert any("which the base's template knows as the system's" in said for said in report.warnings(100)) is bool(told)


def test_rows_are_filtered_by_rating(write, base):
    rows = [{**ROWS[0], "rating": rating} for rating in (1, 3, 5)]
    report = supervise_file(write([*rows, ROWS[0]]), base, seq_len=100, min_rating=3)
    assert (report.rows, report.filtered_rows, report.lines) == (3, 1, 4)


def test_sample_is_reported_and_reproducible(write, base):
    path = write([{"prompt": f"Q{n}", "response": f"A{n}"} for n in range(200)])
    report = supervise_file(path, base, seq_len=100, limit_rows=10)
    assert (report.sampled, report.rows, report.lines) == (True, 10, 200)
    assert supervise_file(path, base, seq_len=100, limit_rows=10) == report
    lines = [row.line for row in report.row_table]
    assert max(lines) > 10, "not only the file's beginning"
    whole = supervise_file(path, base, seq_len=100, limit_rows=200)
    assert (whole.sampled, whole.rows) == (False, 200)
    by_line = {row.line: row for row in whole.row_table}
    assert all(row == by_line[row.line] for row in report.row_table if row.line in by_line)


@pytest.mark.parametrize("limit", [None, 2])
def test_bad_line_is_refused(write, base, limit):
    path = write(ROWS[:1])
    path.write_bytes(path.read_bytes() + b"{\n" * 4)
    with pytest.raises(DatasetInvalid) as refused:
        supervise_file(path, base, seq_len=100, limit_rows=limit)
    assert refused.value.code == Code.DATASET_LINE_INVALID
    assert refused.value.details["errors"][0]["line"] in range(2, 6)


def test_empty_file_has_an_empty_report(write, base):
    report = supervise_file(write([]), base, seq_len=100)
    assert (report.rows, report.tokens, report.truncation_fraction, report.sample) == (0, 0, 0.0, [])
    report.refuse()


def test_base_without_a_tokenizer_is_refused(write, tmp_path):
    with pytest.raises(InvalidRequest) as refused:
        supervise_file(write(ROWS[:1]), tmp_path, seq_len=100)
    assert refused.value.code == Code.TOKENIZER_NOT_FOUND


@pytest.mark.parametrize("seq_len", [1, 5, 9, 1000])
@pytest.mark.parametrize("last_k", [0, 2])
def test_view_has_the_kept_text_and_marks_supervised_pieces(base, seq_len, last_k):
    tokenizer = Tokenizer.load(base)
    row = parse_row(json.dumps({"prompt": "Sag 🙂", "response": "Żółć 数据."}).encode(), 1)
    view, example = (
        sample_view(tokenizer, row, seq_len=seq_len, last_k=last_k),
        encode_row(tokenizer, row, seq_len, last_k),
    )
    assert all(a[1] != b[1] for a, b in itertools.pairwise(view))
    assert any(supervised for _, supervised in view) == any(label != IGNORED for label in example.labels)
    if not last_k and seq_len > 9:
        assert "".join(text for text, _ in view) == tokenizer.decode(example.ids)
