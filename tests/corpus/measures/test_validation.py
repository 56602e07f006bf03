"""Validation: every row is in one of the two files; code that cannot be parsed is rejected, parts of programs are
accepted.
"""

from __future__ import annotations

import json
from pathlib import Path

from corpus.measures.validation import QUARANTINE_NAME, VALIDATED_NAME, validate
from corpus.provenance import read_provenance
from corpus.shards import StageWriter, sources_path
from shared.datasets.report import inspect_file
from tests.corpus.measures.answers import GOOD, row


def test_rows_are_divided_with_their_reasons_and_their_provenance(tmp_path: Path) -> None:
    rows = [
        row(GOOD),
        row("```python\ndef add(:\n```"),
        row("```python\ndef add(a, b):\n    # TODO: the sum\n    return a\n```"),
        row("total = left + right\nreturn total", response_mode="code_only", difficulty=2),
        row("return (", response_mode="code_only"),
        row("```sql\nnot python (\n```"),
        row("Only words, and no ( code."),
    ]
    with StageWriter(tmp_path, stage="x", key="k") as writer:
        for number, one in enumerate(rows):
            writer.write_line(
                json.dumps(one).encode(), json.dumps({"id": str(number), "source": "s", "locator": {}}).encode()
            )
        writer.write_line(b"not JSON", json.dumps({"id": "7", "source": "s", "locator": {}}).encode())
    out = tmp_path / "validated"
    report = validate(tmp_path / "part-00000.jsonl", out, ["python"])
    assert report.quarantined == {"NOT_COMPILING": 2, "ROW_NOT_JSON": 1, "STUB": 1}
    assert (report.rows, report.checked, report.difficulties) == (4, 5, 1)
    kept = [json.loads(line) for line in (out / VALIDATED_NAME).read_text().splitlines()]
    assert [one["response"] for one in kept] == [rows[number]["response"] for number in (0, 3, 5, 6)]
    assert [one.get("difficulty") for one in kept] == [kept[0]["difficulty"], 2, None, None]
    assert [one.id for one in read_provenance(sources_path(out / VALIDATED_NAME))] == ["0", "3", "5", "6"]
    bad = [json.loads(line) for line in (out / QUARANTINE_NAME).read_text().splitlines()]
    assert sorted((one["line"], one["code"]) for one in bad) == [
        (2, "NOT_COMPILING"), (3, "STUB"), (5, "NOT_COMPILING"), (8, "ROW_NOT_JSON")
    ]  # fmt: skip
    assert set(bad[0]) == {"line", "code", "field", "reason", "text"}
    assert not inspect_file(out / VALIDATED_NAME).training.error_count


def test_blocks_are_taken_by_other_names_of_a_language_and_without_a_name(tmp_path: Path) -> None:
    rows = [
        row("```py\n(\n```"),
        row("```Python3\n(\n```"),
        row("```\n(\n```"),
        row("```python\nprint('(')\n```\nIt prints:\n```\n(\n```"),
        row("```python\nprint("),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(content) + "\n" for content in rows))
    assert validate(path, tmp_path / "out", ["python"]).quarantined == {"NOT_COMPILING": 4}
    # With two languages, the language of a block without a name is unknown.
    assert validate(path, tmp_path / "out", ["python", "sql"]).quarantined == {"NOT_COMPILING": 3}


def test_without_a_language_only_rows_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row("```python\n(\n```")) + "\n{}\n")
    report = validate(tmp_path / "a.jsonl", tmp_path / "out", [])
    assert (report.rows, report.checked) == (1, 0)
    assert sum(report.quarantined.values()) == 1
    assert not sources_path(tmp_path / "out" / VALIDATED_NAME).exists()


def test_provenance_of_an_earlier_output_does_not_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with StageWriter(tmp_path, stage="x", key="k") as writer:
        writer.write_line(json.dumps(row("old")).encode(), b'{"id": "0", "source": "s", "locator": {}}')
    validate(tmp_path / "part-00000.jsonl", out, [])
    assert sources_path(out / VALIDATED_NAME).exists()
    (tmp_path / "a.jsonl").write_text(json.dumps(row("new")) + "\n")
    validate(tmp_path / "a.jsonl", out, [])
    assert not sources_path(out / VALIDATED_NAME).exists()
    # Also where a file is validated in its own place.
    assert validate(out / VALIDATED_NAME, out, []).rows == 1


def test_pairs_and_rated_answers_are_rows(tmp_path: Path) -> None:
    bad = "```python\ndef add(:\n```"
    pairs = [
        {"prompt": "q", "chosen": GOOD, "rejected": bad},
        {"prompt": "q", "chosen": bad, "rejected": GOOD},
        {"prompt": "q", "chosen": "same", "rejected": "same"},
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    report = validate(tmp_path / "pairs.jsonl", tmp_path / "out", ["python"])
    assert (report.rows, report.quarantined) == (1, {"NOT_COMPILING": 1, "ROW_ANSWERS_EQUAL": 1})
    [kept] = map(json.loads, (tmp_path / "out" / VALIDATED_NAME).read_text().splitlines())
    assert kept["chosen"] == GOOD
    rated = [{"prompt": "q", "completion": "a", "label": True}, {"prompt": "q", "completion": "b", "label": "no"}]
    (tmp_path / "rated.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rated))
    report = validate(tmp_path / "rated.jsonl", tmp_path / "out", [])
    assert (report.rows, sum(report.quarantined.values())) == (1, 1)
