"""A file that several processes read in parts: no line is lost or split, and the report is exactly the same."""

from __future__ import annotations

import gc
import io
import json
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.contract.choices import DataMode
from shared.datasets.file_parts import NEW_OBJECTS, reading_processes, seldom_collecting, split_file
from shared.datasets.filters import RowFilter
from shared.datasets.reader import BYTE_ORDER_MARK, MAX_LINE_BYTES
from shared.datasets.report import inspect_file

MANY = 150
"""More labels, keys and errors than are listed."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.datasets.file_parts.PART_BYTES", 2_000)
    monkeypatch.setattr("shared.datasets.file_parts._SCAN_BYTES", 700)


def line(number: int, **more: object) -> bytes:
    words = " ".join(f"w{number * 7919 % 1000 + place}" for place in range(40))
    return json.dumps({"prompt": f"{number}", "response": words, **more}).encode() + b"\n"


def varied_file(path: Path) -> Path:
    """Rows of every kind: labelled, converted, with unknown keys, bad, blank, too long, repeated exactly and nearly."""
    rows = [BYTE_ORDER_MARK + line(0)]
    rows += [line(number, category=f"c{number * 31 % MANY}", rating=number % 5 + 1) for number in range(1, MANY)]
    rows += [line(number, **{f"key{number * 37 % MANY}": 1, f"key{number}": 2}) for number in range(MANY, 2 * MANY)]
    rows += [b"{}\n", b"\r\n", BYTE_ORDER_MARK + line(1), b"x" * (MAX_LINE_BYTES + 9) + b"\n"] * 7
    rows += [json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}).encode() + b"\n"]
    rows += [line(3), line(MANY).upper().replace(b"PROMPT", b"prompt").replace(b"RESPONSE", b"response")]
    rows += [line(4).replace(b"w", b"other", 1), line(5)[:-1]]
    path.write_bytes(b"".join(rows))
    return path


@given(
    st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\n", b"")), max_size=40),
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 50),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_are_the_file_and_each_begins_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], ends: bool, part: int, scan: int
) -> None:
    monkeypatch.setattr("shared.datasets.file_parts.PART_BYTES", part)
    monkeypatch.setattr("shared.datasets.file_parts._SCAN_BYTES", scan)
    path, content = tmp_path / "rows.jsonl", b"\n".join(lines) + b"\n" * ends
    path.write_bytes(content)
    read = b""
    for found in split_file(path):
        assert found.first_line == read.count(b"\n") + 1
        assert not read or read.endswith(b"\n")
        with found.open() as file:
            read += file.read()
    assert read == content


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("mode", DataMode)
def test_report_in_parts_is_the_report(tmp_path: Path, near: bool, mode: DataMode) -> None:
    path, validation = varied_file(tmp_path / "rows.jsonl"), tmp_path / "validation.jsonl"
    validation.write_bytes(line(7) + line(9_000) + line(8).replace(b"w", b"other", 1))
    quarantined, progress = [], []

    def report(executor: Executor | None) -> object:
        target, read = io.BytesIO(), []
        found = inspect_file(
            path,
            validation=validation,
            filters=RowFilter(min_rating=2, categories=("c1", "c3")),
            mode=mode,
            near=near,
            quarantine=target,
            progress=read.append,
            executor=executor,
        )
        quarantined.append(target.getvalue())
        progress.append(sum(read))
        return found.model_dump_json()

    whole = report(None)
    with ThreadPoolExecutor(3) as executor:
        assert report(executor) == whole
    assert len(list(split_file(path))) > 20
    assert quarantined[0] == quarantined[1] != b""
    assert progress == [path.stat().st_size + validation.stat().st_size] * 2


@pytest.mark.usefixtures("small_parts")
def test_processes_read_large_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = varied_file(tmp_path / "rows.jsonl")
    monkeypatch.setattr("shared.datasets.file_parts._processors", lambda: 2)
    with reading_processes(3_000) as executor:
        assert executor is None
    with reading_processes(path.stat().st_size) as executor:
        assert executor is not None
        assert inspect_file(path, executor=executor) == inspect_file(path)


def test_garbage_is_collected_seldom_only_while_rows_are_read() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collecting():
        assert gc.get_threshold()[0] == NEW_OBJECTS
        raise KeyError
    assert gc.get_threshold() == before
