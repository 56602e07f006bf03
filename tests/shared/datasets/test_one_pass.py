"""Other work in the single pass over a file: counting its lines, hashing it, and an observer of its rows."""

from __future__ import annotations

from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from shared.contract.choices import DataMode
from shared.datasets.reader import READ_BYTES, count_lines
from shared.datasets.report import inspect_file
from shared.datasets.rows import Record

ROW = b'{"prompt": "a", "response": "b"}\n'
LONG = b'{"prompt": "' + b"x" * READ_BYTES + b'", "response": "b"}\n'


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", 0), (ROW, 1), (ROW[:-1], 1), (ROW * 3, 3), (ROW * 2 + b"broken", 3), (b"\n\n", 2), (LONG + ROW, 2)],
    ids=["empty", "one", "no newline", "three", "broken last", "blank", "long"],
)
def test_lines_are_counted_and_hashed(tmp_path: Path, content: bytes, lines: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    hasher = sha256()
    assert count_lines(BytesIO(content)) == count_lines(BytesIO(content), hasher) == lines
    assert hasher.hexdigest() == sha256(content).hexdigest()
    report = inspect_file(path, mode=DataMode.LENIENT).training
    assert report.rows + report.error_count == lines


@pytest.mark.parametrize("content", [b"", ROW * 20_000, b"\xef\xbb\xbf" + ROW + LONG + ROW, ROW + b"broken"])
def test_bytes_are_hashed_while_they_are_read(tmp_path: Path, content: bytes) -> None:
    training, validation = tmp_path / "training.jsonl", tmp_path / "validation.jsonl"
    training.write_bytes(content)
    validation.write_bytes(content + ROW)
    hashers = sha256(), sha256()
    found = inspect_file(training, validation=validation, near=False, hashers=hashers)
    assert [hasher.hexdigest() for hasher in hashers] == [
        sha256(path.read_bytes()).hexdigest() for path in (training, validation)
    ]
    assert found == inspect_file(training, validation=validation, near=False)


@pytest.mark.parametrize(
    ("mode", "expected"), [(DataMode.STRICT, [1]), (DataMode.LENIENT, [1, 3])], ids=["strict", "lenient"]
)
def test_observer_sees_the_valid_rows_of_a_usable_file(tmp_path: Path, mode: DataMode, expected: list[int]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROW + b"broken\n" + ROW)
    seen: list[tuple[str | None, int]] = []

    def observe(record: Record, line: int) -> None:
        seen.append((record.prompt, line))

    inspect_file(path, mode=mode, observer=observe)
    assert seen == [("a", line) for line in expected]
