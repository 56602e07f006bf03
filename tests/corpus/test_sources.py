"""Sources: the files that belong to them, their fingerprints, and parts whose provenance has the same lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus.provenance import Provenance
from corpus.shards import StageWriter
from corpus.sources import find_files, split_source


def test_folder_of_files_leaves_provenance_out(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "a.sources.jsonl", "notes.txt"):
        (tmp_path / name).write_text(name)
    found = find_files(tmp_path)
    assert found
    assert [path.name for path in found.files] == ["a.jsonl", "b.jsonl"]
    (tmp_path / "notes.txt").write_text("other")
    again = find_files(tmp_path)
    assert again == found
    (tmp_path / "b.jsonl").write_text("other")
    assert find_files(tmp_path) != found


def test_missing_and_empty_folders_are_not_a_source(tmp_path: Path) -> None:
    assert find_files(tmp_path) is None
    assert find_files(tmp_path / "absent") is None


@pytest.mark.parametrize("part_bytes", [50, 400, 1 << 20])
def test_parts_of_rows_and_of_provenance_have_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr("shared.datasets.file_parts.PART_BYTES", part_bytes)
    monkeypatch.setattr("shared.datasets.file_parts._SCAN_BYTES", 40)
    monkeypatch.setattr("corpus.sources._SCAN_BYTES", 70)
    with StageWriter(tmp_path, stage="x", key="k") as writer:
        for number in range(40):
            row = {"prompt": "p" * (number % 7) + str(number), "response": "r"}
            writer.write_row(row, Provenance(id="", source="s" * (number % 5), locator={"line": number}))
    found = find_files(tmp_path)
    assert found
    rows, origins = [], []
    for part in split_source(found.files[0]):
        assert part.origins
        with part.rows.open() as one, part.origins.open() as other:
            rows.append(one.readlines())
            origins.append(other.readlines())
    assert [len(lines) for lines in rows] == [len(lines) for lines in origins]
    assert b"".join(line for lines in origins for line in lines) == (tmp_path / "part-00000.sources.jsonl").read_bytes()
    assert (len(rows) > 1) == (part_bytes < 1 << 20)
