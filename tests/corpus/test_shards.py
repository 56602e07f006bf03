"""Shards: bounded in size, complete or absent after a kill at any rename, and verified when they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corpus.provenance import Provenance
from corpus.shards import StageWriter, checked_shards, read_index, read_lines, rows_with_sources, sources_path
from shared.errors import ArtifactInvalid, Code, MensError, NotFound
from tests.support.killed_renames import each_kill


def write(folder: Path, rows: int = 9, max_bytes: int = 400) -> None:
    with StageWriter(folder, stage="pairs", key="k" * 64, max_bytes=max_bytes) as writer:
        for number in range(rows):
            row = {"prompt": f"Question {number}", "response": "Answer", "category": "x"}
            writer.write_row(row, Provenance(id="", source="file:a", locator={"line": number}))
        writer.report["dropped"] = {"STUB": 1}


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_rows_come_back_in_order_with_their_provenance(tmp_path: Path) -> None:
    write(tmp_path)
    index = read_index(tmp_path)
    assert index is not None
    assert (index.rows, index.report) == (9, {"dropped": {"STUB": 1}})
    assert len(index.shards) > 1
    assert all(shard.bytes == (tmp_path / shard.name).stat().st_size <= 400 for shard in index.shards)
    lines = list(read_lines(checked_shards(tmp_path)))
    for number, (row, source) in enumerate(lines):
        assert f"Question {number}".encode() in row
        assert source and f'"line":{number}'.encode() in source
        assert row[7:23] == source[7:23]  # the id is the first key of both


def test_line_over_the_limit_is_a_shard_of_its_own(tmp_path: Path) -> None:
    with StageWriter(tmp_path, stage="x", key="k", max_bytes=10) as writer:
        for line in (b"a" * 50, b"b", b"c"):
            writer.write_line(line)
    assert [shard.rows for shard in writer.index.shards] == [1, 2]  # type: ignore[union-attr]


def test_shorter_output_leaves_no_earlier_shard(tmp_path: Path) -> None:
    write(tmp_path, rows=9)
    write(tmp_path, rows=1)
    assert sorted(content(tmp_path)) == ["index.json", "part-00000.jsonl", "part-00000.sources.jsonl"]


def test_exception_leaves_no_index_and_no_partial_file(tmp_path: Path) -> None:
    def fail() -> None:
        with StageWriter(tmp_path, stage="x", key="k") as writer:
            writer.write_line(b"{}", b"{}")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert content(tmp_path) == {}


def test_killed_at_any_rename_the_next_run_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    expected, kills = content(tmp_path / "whole"), 0
    for folder in each_kill(tmp_path, write):
        kills += 1
        index = read_index(folder)
        assert index is None or checked_shards(folder)
        write(folder)
        assert content(folder) == expected
    assert kills == len(expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
        lambda path: path.unlink(),
        lambda path: sources_path(path).write_bytes(b""),
    ],
)
def test_changed_shard_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    write(tmp_path)
    change(tmp_path / "part-00001.jsonl")
    with pytest.raises(ArtifactInvalid) as raised:
        checked_shards(tmp_path)
    assert raised.value.code == Code.CORPUS_SHARD_CHANGED
    assert "part-00001" in raised.value.message


@pytest.mark.parametrize("added", [b'{"prompt": "q", "response": "a"}\n', None])
def test_rows_that_are_not_those_of_the_provenance_are_refused(tmp_path: Path, added: bytes | None) -> None:
    write(tmp_path)
    path = tmp_path / "part-00000.jsonl"
    path.write_bytes(path.read_bytes() + added if added else b"")
    with pytest.raises(ArtifactInvalid, match="same number") as raised:
        list(read_lines([path]))
    assert raised.value.code == Code.CORPUS_SHARD_CHANGED


def test_blank_line_at_the_end_is_not_a_row(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "part-00000.jsonl"
    count = len(list(read_lines([path])))
    path.write_bytes(path.read_bytes() + b"\n")
    assert len(list(read_lines([path]))) == count + 1


def test_rows_never_lie_next_to_the_provenance_of_others(tmp_path: Path) -> None:
    def run(folder: Path, content: bytes = b"new") -> None:
        with rows_with_sources(folder / "a.jsonl") as (rows, sources):
            assert sources
            rows.write(content)
            sources.write(content)

    def over_old(folder: Path) -> None:
        run(folder, b"old")
        run(folder)

    seen = set()
    for folder in each_kill(tmp_path, over_old):
        rows, sources = (folder / name for name in ("a.jsonl", "a.sources.jsonl"))
        if rows.exists():
            assert rows.read_bytes() == sources.read_bytes()
        seen.add((rows.exists(), sources.exists()))
    assert seen == {(False, False), (False, True), (True, True)} - {(True, True)}
    run(tmp_path, b"old")
    with rows_with_sources(tmp_path / "a.jsonl", has_sources=False) as (rows_file, sources_file):
        rows_file.write(b"new")
        assert sources_file is None
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.jsonl"]


@pytest.mark.parametrize("fails", [1, 2])
def test_full_disk_keeps_the_earlier_rows_with_their_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    def write_pair(content: bytes) -> None:
        with rows_with_sources(tmp_path / "a.jsonl") as (rows, sources):
            assert sources
            rows.write(content)
            sources.write(content)

    real, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fails:
            raise OSError(28, "No space left on device")
        real(descriptor)

    write_pair(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MensError) as raised:
        write_pair(b"new")
    assert raised.value.code == Code.STORAGE_FULL
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.jsonl": b"old",
        "a.sources.jsonl": b"old",
    }


def test_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "index.json").unlink()
    with pytest.raises(NotFound) as raised:
        checked_shards(tmp_path)
    assert raised.value.code == Code.CORPUS_SOURCE_MISSING


def test_full_disk_has_its_code_and_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MensError) as raised:
        write(tmp_path)
    assert raised.value.code == Code.STORAGE_FULL
    assert read_index(tmp_path) is None
