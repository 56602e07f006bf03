"""The pass over a file of preferences: counts, faults by line, and what is not kept in memory."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from shared.contract.choices import DataMode, MethodType
from shared.datasets.dataset_report import DatasetReport, Quarantine
from shared.datasets.preferences.reader import reading_of
from shared.datasets.reader import check_dataset
from shared.datasets.report import inspect_file, refusal
from shared.errors import DatasetInvalid
from tests.support.preference_rows import PAIRS, RATED, openai_row, plain_row, rated_chat, rated_row

read_pairs, read_rated = reading_of(MethodType.DPO), reading_of(MethodType.KTO)
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def write(folder: Path, *rows: object) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_bad_lines_are_counted_and_quarantined(tmp_path: Path) -> None:
    path, bad = write(tmp_path, plain_row(), CHAT, openai_row(note=1)), io.BytesIO()
    report = DatasetReport()
    with path.open("rb") as file:
        assert [line for line, _ in read_pairs(file, report, Quarantine(bad))] == [1, 3]
    assert dict(report.errors_by_code) == {"ROW_METHOD_MISMATCH": 1}
    assert dict(report.unused_keys) == {"note": 1}
    assert json.loads(bad.getvalue())["line"] == 2


def test_a_line_over_the_limit_is_one_bad_line(tmp_path: Path) -> None:
    path = write(tmp_path, plain_row(), plain_row("x" * 3_000_000), plain_row("b"))
    report = DatasetReport()
    with path.open("rb") as file:
        assert len(list(read_pairs(file, report, None))) == 2
    assert dict(report.errors_by_code) == {"ROW_TOO_LONG": 1}


def test_report_counts_pairs_and_their_findings(tmp_path: Path) -> None:
    path = write(tmp_path, *PAIRS, plain_row(), plain_row(), plain_row(chosen="No.", rejected="Because."))
    found = inspect_file(path, method=MethodType.DPO).training
    assert (found.rows, found.turns["assistant"], found.duplicates.exact_rows) == (11, 22, 1)
    assert found.preferences is not None
    assert (found.preferences.pairs, found.preferences.contradicting) == (11, 1)
    assert any("prefer the opposite" in warning for warning in inspect_file(path, method=MethodType.DPO).warnings)


@pytest.mark.parametrize(
    ("row", "method", "right", "option"),
    [
        (CHAT, MethodType.DPO, "supervised", ""),
        (plain_row(), MethodType.SUPERVISED, "dpo", "--as-supervised"),
        (rated_row(), MethodType.DPO, "kto", ""),
        (rated_chat(), MethodType.DPO, "kto", ""),
        (rated_chat(label=False), MethodType.DPO, "kto", ""),
        (plain_row(), MethodType.KTO, "dpo", "--as-rated"),
        (CHAT, MethodType.KTO, "supervised", ""),
    ],
)
def test_a_file_for_another_method_is_refused_as_such(
    tmp_path: Path, row: dict[str, object], method: MethodType, right: str, option: str
) -> None:
    error = refusal(inspect_file(write(tmp_path, row, row), method=method))
    assert error is not None
    assert error.code == "ROWS_OF_OTHER_METHOD"
    assert f"Set method.type to {right} " in error.remedy
    assert [name for name in ("--as-supervised", "--as-rated") if name in error.remedy] == [option][: len(option)]


def test_one_line_for_another_method_is_a_bad_line(tmp_path: Path) -> None:
    error = refusal(inspect_file(write(tmp_path, CHAT, plain_row()), method=MethodType.DPO))
    assert error is not None
    assert error.code == "DATASET_LINE_INVALID"
    assert (
        refusal(inspect_file(write(tmp_path, CHAT, plain_row()), method=MethodType.DPO, mode=DataMode.LENIENT)) is None
    )


def test_the_command_lines_check_reads_pairs(tmp_path: Path) -> None:
    path = write(tmp_path, *PAIRS)
    with path.open("rb") as file:
        assert check_dataset(file, read=read_pairs).trainable_rows == len(PAIRS)
    with path.open("rb") as file, pytest.raises(DatasetInvalid):
        check_dataset(file)


def test_a_label_that_contradicts_an_earlier_line_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, rated_row(), rated_row(), rated_row(label=False), rated_row("Who?", label=False))
    report = DatasetReport()
    with path.open("rb") as file:
        assert [line for line, _ in read_rated(file, report, None)] == [1, 2, 4]
    assert [(error.line, error.code, error.field) for error in report.errors] == [(3, "ROW_LABEL_CONTRADICTS", "label")]
    assert "line 1 rates the same answer" in report.errors[0].reason


def test_report_counts_rated_answers(tmp_path: Path) -> None:
    found = inspect_file(write(tmp_path, *RATED, rated_row()), method=MethodType.KTO).training
    assert found.rated is not None
    assert (found.rows, found.rated.good, found.rated.bad, found.preferences) == (17, 9, 8, None)


def test_an_unlisted_call_is_a_warning_of_the_answer_to_give_alone(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    def called(name: str) -> dict[str, object]:
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def pair(chosen: str, rejected: str) -> dict[str, object]:
        prompt = [{"role": "user", "content": "a"}]
        return {"prompt": prompt, "tools": tools, "chosen": [called(chosen)], "rejected": [called(rejected)]}

    found = inspect_file(write(tmp_path, pair("f", "g"), pair("g", "f")), method=MethodType.DPO).training
    place = "chosen[0].tool_calls[0].function.name"
    assert [(one.line, one.code, one.field) for one in found.warnings] == [(2, "ROW_TOOL_NOT_LISTED", place)]
    chats = [
        {"messages": [{"role": "user", "content": str(good)}, called("g")], "tools": tools, "label": good}
        for good in (False, True)
    ]
    found = inspect_file(write(tmp_path, *chats), method=MethodType.KTO).training
    assert [(one.line, one.field) for one in found.warnings] == [(2, "messages[1].tool_calls[0].function.name")]


def test_rows_of_another_program_are_named_with_the_command_that_converts_them(tmp_path: Path) -> None:
    turns = CHAT["messages"]
    log = {"request": {"messages": turns[:1]}, "response": {"choices": [{"message": turns[1]}]}}
    for method in (MethodType.DPO, MethodType.KTO):
        refused = refusal(inspect_file(write(tmp_path, log, log | {"id": 2}), method=method))
        assert refused is not None
        assert "has 2 rows in the form of a log" in refused.message
        assert "mens data convert FILE -o rows.jsonl" in refused.remedy
