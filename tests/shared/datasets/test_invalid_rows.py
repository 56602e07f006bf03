"""Invalid rows: each is refused with its code and its line number, and no other exception is raised."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.datasets.reader import DatasetReport, check_dataset, parse_row, read_rows
from shared.datasets.rows import RowCode, RowError
from shared.errors import Code, DatasetInvalid
from tests.support.invalid_rows import ANSWER, CALL, USER, bad_rows, chat, pair

ROOT = Path(__file__).resolve().parents[3]
BAD = bad_rows()
GOOD = [
    pair(),
    pair(rating=5, difficulty=10, category="x", lane="l", response_mode="code_only", task_family="t"),
    pair(syntax_spans=[{"start": 0, "end": 5, "weight": 0, "kind": None}], tools=None),
    chat(USER, ANSWER),
    chat(USER, ANSWER | {"weight": 0}, USER, ANSWER | {"weight": 1}),
    chat(USER, ANSWER | {"content": "", "weight": 0}, USER, ANSWER),
    chat(USER, ANSWER, USER, ANSWER | {"content": " ", "weight": 0}),
    chat(
        USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": ""},
        ANSWER,
        tools=[{"name": "f"}],
    ),
]


def errors_of(*lines: bytes) -> DatasetReport:
    report = DatasetReport()
    list(read_rows(lines, report))
    return report


OF_PAIRS = {
    "ROW_ANSWER_COUNT",
    "ROW_ANSWER_ROLE",
    "ROW_PROMPT_ENDS_WITH_ANSWER",
    "ROW_PROMPTS_DIFFER",
    "ROW_ANSWERS_EQUAL",
    "ROW_METHOD_MISMATCH",
    "ROW_LABEL_INVALID",
    "ROW_LABEL_CONTRADICTS",
}
"""Codes of rows of preferences alone, which `preferences/test_rows.py`, `test_rated.py` and `test_reader.py` have."""


def test_invalid_rows_cover_every_code() -> None:
    assert len({content for content, _ in BAD}) >= 200
    assert {code for _, code in BAD} == set(RowCode) - OF_PAIRS - {
        RowCode.ROW_TOOL_NOT_LISTED,
        RowCode.ROW_TOOLS_MISSING,
    }


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_row_is_refused_with_its_code_and_its_line(number: int) -> None:
    content, code = BAD[number]
    [error] = errors_of(GOOD[0], content, GOOD[3]).errors
    assert (error.line, error.code) == (2, code), error.reason
    assert error.reason and not error.reason.endswith(".")


def test_bad_rows_of_a_file_have_their_line_numbers() -> None:
    lines = [(content, code) for content, code in BAD if b"\n" not in content]
    report = DatasetReport()
    file = io.BytesIO(b"".join(GOOD[0] + b"\r\n" + content + b"\n" for content, _ in lines))
    assert len(list(read_rows(file, report))) == len(lines)
    assert report.error_count == len(lines)
    assert report.errors_by_code == {str(code): sum(c is code for _, c in lines) for code in {c for _, c in lines}}
    assert [(error.line, error.code) for error in report.errors] == [
        (2 * index, code) for index, (_, code) in enumerate(lines[: len(report.errors)], start=1)
    ]


@pytest.mark.parametrize("row", GOOD)
def test_good_row_passes(row: bytes) -> None:
    assert parse_row(row, 1).messages


def test_one_bad_line_refuses_the_file() -> None:
    for content, code in BAD[::10]:
        with pytest.raises(DatasetInvalid) as caught:
            check_dataset([GOOD[0], content])
        assert caught.value.code is Code.DATASET_LINE_INVALID
        assert caught.value.details["errors"][0]["code"] == code
        assert caught.value.details["errors"][0]["line"] == 2


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_coded_errors(content: bytes) -> None:
    report = DatasetReport()
    rows = list(read_rows(io.BytesIO(content), report))
    lines = io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")).readlines()  # a byte order mark alone is not a line
    assert len(rows) + report.error_count == len(lines)
    assert sum(report.errors_by_code.values()) == report.error_count


@given(st.sampled_from(GOOD), st.data())
def test_mutated_row_is_a_row_or_a_coded_error(row: bytes, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(row)))
        length = data.draw(st.integers(0, 4))
        row = row[:start] + data.draw(st.binary(max_size=4)) + row[start + length :]
    try:
        parsed = parse_row(row, 1)
    except RowError as error:
        assert error.code in RowCode
        assert error.reason
    else:
        json.loads(row.removeprefix(b"\xef\xbb\xbf").decode(errors="replace"))
        assert parsed.messages[-1].role == "assistant"


@given(st.sampled_from(GOOD), st.integers(1, 10_000))
def test_cut_row_is_refused(row: bytes, length: int) -> None:
    cut = row[: length % len(row)]
    assert errors_of(cut).errors[0].code in {RowCode.ROW_NOT_JSON, RowCode.ROW_BLANK}


MEMORY = """
import sys
from pathlib import Path
from shared.datasets.reader import check_dataset, DatasetReport, read_rows
path = sys.argv[1]
def peak():  # of this program alone: ru_maxrss would count the parent's memory
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
with open(path, "rb") as file:
    report = check_dataset(file, strict=False)
print(report.rows, report.error_count, peak() - before)
"""


@pytest.mark.exhaustive
def test_memory_is_bounded_for_a_file_of_100_mb(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    block = pair(prompt="q" * 3000, response="a" * 3000) + b"\n" + chat(USER, ANSWER) + b"\n" + b"bad\n"
    blocks = 90_000_000 // len(block)
    with path.open("wb") as file:
        for _ in range(blocks // 1000):
            file.write(block * 1000)
        for _ in range(10):  # and a line of 10 MB
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + pair())
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    path.unlink()
    rows, errors, kilobytes = map(int, run.stdout.split())
    written = blocks // 1000 * 1000
    assert (rows, errors) == (2 * written + 1, written + 1)
    assert kilobytes < 40_000
