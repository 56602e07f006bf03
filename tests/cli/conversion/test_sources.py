"""Files in every format: each row is found once with its line, and equals the row of independent readers; memory stays
bounded.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conversion.convert import Rules, convert_file
from cli.conversion.sources import open_source, read_rows
from shared.datasets.forms.files import FileForm
from shared.errors import InvalidRequest, Unavailable
from tests.support.foreign_rows import CALLED, HI, TOOL, said

ROWS = [{"prompt": f"Question {number}", "response": f"Antwort ü {number}"} for number in range(5)]
CHATS = [{"messages": said(row["prompt"], row["response"])} for row in ROWS]


def write_table(path: Path, delimiter: str) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ["prompt", "response"], delimiter=delimiter)
        table.writeheader()
        table.writerows(ROWS)


def write_parquet(path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(ROWS), path, row_group_size=2)


def write_arrow(path: Path, writer: str = "new_stream") -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_pylist(ROWS)
    with path.open("wb") as file, getattr(arrow.ipc, writer)(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)


WRITERS: dict[str, tuple[FileForm, Callable[[Path], object]]] = {
    "lines": (FileForm.JSON_LINES, lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))),
    "array": (FileForm.JSON_ARRAY, lambda path: path.write_text(json.dumps(ROWS))),
    "indented array": (FileForm.JSON_ARRAY, lambda path: path.write_text(json.dumps(ROWS, indent=2))),
    "documents": (FileForm.JSON_DOCUMENTS, lambda path: path.write_text("\n".join(json.dumps(r, indent=2) for r in ROWS))),
    "wrapped": (FileForm.JSON_WRAPPED, lambda path: path.write_text(json.dumps({"version": 1, "data": ROWS}))),
    "csv": (FileForm.TABLE, lambda path: write_table(path, ",")),
    "tsv": (FileForm.TABLE, lambda path: write_table(path, "\t")),
    "parquet": (FileForm.PARQUET, write_parquet),
    "stream": (FileForm.ARROW, write_arrow),
    "arrow file": (FileForm.ARROW, lambda path: write_arrow(path, "new_file")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ""])
def test_file_is_read_by_its_content_and_not_by_its_name(name: str, suffix: str, tmp_path: Path) -> None:
    form, write = WRITERS[name]
    path, output = tmp_path / f"in{suffix}", tmp_path / "out.jsonl"
    write(path)
    assert open_source(path).form is form
    assert [row.value for row in read_rows(open_source(path))] == ROWS
    report = convert_file(path, output, Rules())
    assert (report.lines, report.rows, report.dropped) == (5, 5, 0)
    written = output.read_bytes()
    convert_file(path, output, Rules())
    assert output.read_bytes() == written
    assert [json.loads(line) for line in written.splitlines()] in (ROWS, CHATS)


@pytest.mark.parametrize("form", ["array", "documents", "table"])
def test_rows_have_the_line_where_they_begin(form: str, tmp_path: Path) -> None:
    path = tmp_path / "in"
    texts = {
        "array": '[\n{"prompt": "a",\n "response": "b"},\n\n{"prompt": "c", "response": "d"}, 5\n]\n',
        "documents": '{\n"prompt": "a",\n"response": "b"}\n{\n"prompt": "c"}\n7',
        "table": 'prompt,response\n"two\nlines",b\nc,d\n\ne,f,g\n',
    }
    path.write_text(texts[form])
    found = [(row.line, row.fault) for row in read_rows(open_source(path))]
    expected = {
        "array": [(1, ""), (2, ""), (3, "ROW_NOT_OBJECT")],
        "documents": [(1, ""), (4, ""), (6, "ROW_NOT_OBJECT")],
        "table": [(2, ""), (4, ""), (5, "ROW_BLANK"), (6, "columns_differ")],
    }
    assert found == expected[form]


@pytest.mark.parametrize(
    "text", ['[{"prompt": "a"}, {"prompt": ', '[{"prompt": "a"} oops]', '{\n"prompt": 1\n}\n{\n"a"', "[" * 9999]
)
def test_broken_json_is_named_with_its_line_and_nothing_is_written(text: str, tmp_path: Path) -> None:
    path, output = tmp_path / "in", tmp_path / "out"
    path.write_text(text)
    try:
        convert_file(path, output, Rules())
    except InvalidRequest as error:
        assert "is not valid JSON from line" in error.message
    assert sorted(tmp_path.iterdir()) == [path]


def test_open_quote_of_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text('prompt,response\na,"b\n')
    with pytest.raises(InvalidRequest, match="is not a table from line 2 on"):
        convert_file(path, tmp_path / "out", Rules())


def test_table_equals_what_pandas_reads(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "in.csv"
    cells = ["plain", 'say "hi"', "two\nlines", "a,b", " spaced ", "ü", "NA", "1"]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["question", "answer"], *([cell, cell[::-1]] for cell in cells)])
    expected = pandas.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    assert [row.value for row in read_rows(open_source(path))] == expected


@pytest.mark.parametrize("answer", ['{"who": "Ana", "euros": 3}', "[1, 2]", '[{"a": 1}]', "{}", "[", "{x}"])
@pytest.mark.parametrize("columns", [("instruction", "output"), ("question", "answer"), ("prompt", "response")])
def test_answer_that_is_json_stays_text_in_a_table(tmp_path: Path, answer: str, columns: tuple[str, str]) -> None:
    path, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, ["Turn it into JSON: Ana paid 3 euros", answer]])
    convert_file(path, output, Rules())
    row = json.loads(output.read_text())
    assert (row.get("response") or row["messages"][-1]["content"]) == answer


def test_turns_in_a_cell_are_read(tmp_path: Path) -> None:
    path, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "messages"], ["1", json.dumps(HI)]])
    convert_file(path, output, Rules())
    assert json.loads(output.read_text())["messages"] == HI


def test_parquet_equals_what_pandas_reads_and_has_no_nulls_of_the_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path, output = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    rows: list[dict[str, Any]] = [{"messages": [dict(turn) for turn in CALLED], "tools": [TOOL]}, {"messages": HI}]
    pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    assert pandas.read_parquet(path)["messages"][1][0]["tool_calls"] is None  # the table has the key in every turn
    convert_file(path, output, Rules())
    del rows[0]["messages"][1]["content"]
    assert [json.loads(line) for line in output.read_bytes().splitlines()] == rows


def saved_dataset(folder: Path, **state: Any) -> Path:
    """A folder as `datasets.Dataset.save_to_disk` writes it, in two files."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for name in names:
        write_arrow(folder / name)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]} | state))
    return folder


def test_saved_folder_of_datasets_is_read_in_its_order(tmp_path: Path) -> None:
    assert [row.value for row in read_rows(open_source(saved_dataset(tmp_path / "one")))] == ROWS * 2
    for split in ("train", "test"):
        saved_dataset(tmp_path / "several" / split)
    (tmp_path / "several" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InvalidRequest, match="has the parts train, test"):
        list(read_rows(open_source(tmp_path / "several")))
    assert len(list(read_rows(open_source(tmp_path / "several", "test")))) == 10


@pytest.mark.parametrize(
    "state",
    [
        {"_data_files": [{"filename": "../other.arrow"}]},
        {"_data_files": [{"filename": "/etc/passwd"}]},
        {"_data_files": [{"filename": 1}]},
        {"_data_files": 5},
        {"_indices_data_files": [{"filename": "i.arrow"}]},
    ],
)
def test_state_that_leads_out_of_its_folder_is_refused(state: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        list(read_rows(open_source(saved_dataset(tmp_path / "one", **state))))


@pytest.mark.parametrize("content", [b"PAR1 broken", b"ARROW1 broken", b"\xff\xff\xff\xff broken"])
def test_broken_binary_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        list(read_rows(open_source(path)))


def test_missing_pyarrow_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "in"
    path.write_bytes(b"PAR1")
    with pytest.raises(Unavailable) as caught:
        list(read_rows(open_source(path)))
    assert "mens[parquet]" in caught.value.remedy


@pytest.mark.parametrize(("content", "words"), [(b"\x1f\x8b\x08", "compressed"), (b"\xff\xfe{\x00", "UTF-16")])
def test_form_that_is_not_read_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=words):
        open_source(path)


def test_lists_of_a_json_object_are_never_dropped_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text(json.dumps({"train": ROWS, "test": ROWS[:1]}))
    with pytest.raises(InvalidRequest, match="has the parts test, train"):
        list(read_rows(open_source(path)))
    assert len(list(read_rows(open_source(path, "test")))) == 1


@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused_with_a_code(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "in"
    path.write_bytes(content)
    try:
        for row in read_rows(open_source(path)):
            assert row.line >= 1
            assert (row.value is None) == bool(row.fault)
    except InvalidRequest as error:
        assert error.remedy


@given(
    rows=st.lists(
        st.dictionaries(st.text(max_size=3), st.text(max_size=9) | st.integers() | st.lists(st.none()), max_size=3)
    ),
    indent=st.integers(0, 3),
    size=st.integers(1, 40),
)
def test_json_values_are_those_of_the_json_module(
    rows: list[Any], indent: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However the text falls into pieces."""
    from cli.conversion import sources

    text = json.dumps(rows, indent=indent or None, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_READ_CHARACTERS", size)
        found = [row.value for row in sources._json_values(io.StringIO(text), Path("in"), is_array=True)]
    assert found == rows


PROGRAM = """
import sys
from pathlib import Path
from cli.conversion.convert import Rules, convert_file
report = convert_file(Path(sys.argv[1]), Path(sys.argv[2]), Rules())
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # ru_maxrss would count the parent's memory
print(report.rows, peak)
"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["lines", "array", "csv", "parquet"])
def test_memory_does_not_grow_with_the_file(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of ten times as many rows takes at most a few megabytes more memory."""
    peaks = []
    for count in (2_000, 20_000):
        rows = [{"question": f"{number} " + "q" * 500, "answer": "a" * 500} for number in range(count)]
        path = tmp_path / f"{form}-{count}"
        if form == "csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([["question", "answer"], *(row.values() for row in rows)])
        elif form == "parquet":
            table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
            pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=1_000)
        else:
            text = json.dumps(rows) if form == "array" else "".join(json.dumps(row) + "\n" for row in rows)
            path.write_text(text)
        command = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "out")]
        written, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(written) == count
        peaks.append(int(peak))
    assert peaks[1] - peaks[0] < 12_000, peaks
