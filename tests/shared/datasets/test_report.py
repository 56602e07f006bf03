"""The data report: counts, duplicates, leakage, and when a file is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from shared.contract.choices import DataMode
from shared.datasets.report import RowFilter, inspect_file, refusal
from shared.datasets.report_types import DataReport
from shared.errors import Code

LONG = " ".join(f"word{number}" for number in range(100))


def write(path: Path, *rows: dict[str, Any] | bytes) -> Path:
    path.write_bytes(b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows))
    return path


def pair(prompt: str = "Hi", response: str = "Hello", **labels: Any) -> dict[str, Any]:
    return {"prompt": prompt, "response": response, **labels}


def test_rows_and_labels_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        pair("1", rating=2, category="c", lane="l", difficulty=3),
        pair("2", rating=5, category="c"),
        pair("3", "x" * 1000),
    )
    report = inspect_file(path, filters=RowFilter(min_rating=3))
    found = report.training
    assert report.usable
    assert (found.rows, found.trainable_rows, found.error_count) == (3, 2, 0)
    assert found.bytes == path.stat().st_size
    assert found.ratings == {"unrated": 1, "2": 1, "5": 1}
    assert found.categories == {"c": 2, "(none)": 1}
    assert found.lanes == {"l": 1, "(none)": 2}
    assert found.difficulties == {"(none)": 2, "3": 1}
    assert found.turns == {"user": 3, "assistant": 3}
    assert (found.lengths.longest, found.lengths.longest_line, sum(found.lengths.counts)) == (1001, 3, 3)
    assert "1 of 3 rows are left out by data.min_rating or data.context_filter." in report.notes


def test_strict_report_is_refused_for_a_bad_line_and_a_lenient_one_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair("1"), b"{}\n", pair("2"), b"[]")
    strict, lenient = inspect_file(path), inspect_file(path, mode=DataMode.LENIENT)
    assert [(error.line, error.code) for error in strict.training.errors] == [
        (2, "ROW_FIELD_MISSING"),
        (4, "ROW_NOT_OBJECT"),
    ]
    error = refusal(strict)
    assert error is not None
    assert (error.code, error.param) == (Code.DATASET_LINE_INVALID, "data.train_file")
    assert "The training file has 2 bad lines" in error.message
    assert refusal(lenient) is None
    assert (strict.usable, lenient.usable) == (False, True)


def test_file_without_trainable_rows_is_refused_in_both_modes(tmp_path: Path) -> None:
    good, empty = write(tmp_path / "a.jsonl", pair()), write(tmp_path / "b.jsonl", pair(rating=1))
    for mode in DataMode:
        report = inspect_file(good, validation=empty, filters=RowFilter(min_rating=3), mode=mode)
        error = refusal(report)
        assert error is not None
        assert (error.code, error.param) == (Code.DATASET_EMPTY, "data.validation_file")
        assert error.message.startswith("The validation file has no row")


def test_bad_lines_go_to_quarantine_as_they_were(tmp_path: Path) -> None:
    target = io.BytesIO()
    inspect_file(write(tmp_path / "a.jsonl", pair(), b'{"prompt": "\xff"}\r\n', pair("2")), quarantine=target)
    [entry] = map(json.loads, target.getvalue().splitlines())
    assert (entry["line"], entry["code"], entry["field"]) == (2, "ROW_NOT_UTF8", "")
    assert entry["text"] == '{"prompt": "\ufffd"}'
    assert entry["reason"]


def test_duplicates_and_leakage_are_reported_by_line(tmp_path: Path) -> None:
    near = LONG.replace("word50", "another")
    training = write(tmp_path / "a.jsonl", pair("1"), pair("q", LONG), pair(" 1 "), pair("q", near))
    validation = write(tmp_path / "b.jsonl", pair("new"), pair("1"), pair("q", LONG.replace("word9 ", "new ")))
    report = inspect_file(training, validation=validation)
    repeats, leakage = report.training.duplicates, report.leakage
    assert leakage is not None
    assert [(pair.first, pair.second) for pair in repeats.exact_pairs] == [(1, 3)]
    assert [(pair.first, pair.second) for pair in repeats.near_pairs] == [(2, 4)]
    assert [(pair.first, pair.second) for pair in leakage.exact_pairs] == [(1, 2)]
    assert [(pair.first, pair.second) for pair in leakage.near_pairs] == [(2, 3)]
    assert any("2 of 3 validation rows" in note for note in report.notes)


def test_near_duplicates_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", pair("q", LONG), pair("q", LONG.replace("word50", "another")), pair("q", LONG))
    repeats = inspect_file(path, near=False).training.duplicates
    assert (repeats.exact_rows, repeats.near_rows) == (1, 0)


def test_labels_beyond_the_limit_are_counted_as_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *(pair(str(number), category=f"c{number}") for number in range(100)))
    categories = inspect_file(path).training.categories
    assert len(categories) == 51
    assert categories["(other)"] == 50


@pytest.mark.parametrize("rows", [0, 1, 4_500])
def test_progress_adds_up_to_the_file(tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "a.jsonl", *(pair(str(number)) for number in range(rows)))
    reported: list[int] = []
    inspect_file(path, progress=reported.append, near=False)
    assert sum(reported) == path.stat().st_size


def test_report_survives_json(tmp_path: Path) -> None:
    report = inspect_file(
        write(tmp_path / "a.jsonl", pair(), pair(), b"{}"), validation=write(tmp_path / "b.jsonl", pair())
    )
    assert DataReport.model_validate_json(report.model_dump_json()) == report
