"""Digests that are kept: no change of a file is missed, and an old file is read once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corpus.file_digests import FileDigests
from shared.hashing import digest_file


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read, in order."""
    found: list[Path] = []

    def noted(path: Path) -> str:
        found.append(path)
        return digest_file(path)

    monkeypatch.setattr("corpus.file_digests.digest_file", noted)
    return found


def asked(folder: Path, *paths: Path) -> list[str]:
    digests = FileDigests(folder / "digests.json")
    found = [digests.of(path) for path in paths]
    digests.save()
    return found


def replaced(path: Path) -> None:
    (path.parent / "other").write_text("wxyz")
    (path.parent / "other").replace(path)


@pytest.mark.parametrize(
    "change",
    [lambda path: path.write_text("wxyz"), lambda path: path.write_text("more than before"), replaced],
    ids=["the same size", "another size", "another file"],
)
def test_a_changed_file_is_read_again(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    path = tmp_path / "a"
    path.write_text("abcd")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    first = asked(tmp_path, path)
    assert (asked(tmp_path, path), read) == (first, [path])
    change(path)
    # Who restores the time of a change cannot restore the time of that.
    os.utime(path, ns=times)
    assert asked(tmp_path, path) == [digest_file(path)] != first
    assert read == [path, path]


def test_a_file_that_was_just_written_is_not_trusted(tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_text("abcd")
    asked(tmp_path, path)
    asked(tmp_path, path)
    assert read == [path, path]


def test_only_files_that_are_asked_for_are_kept_and_a_broken_store_is_none(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    for name in "ab":
        (tmp_path / name).write_text(name)
    asked(tmp_path, tmp_path / "a", tmp_path / "b")
    asked(tmp_path, tmp_path / "b")
    asked(tmp_path, tmp_path / "a")
    assert [path.name for path in read] == ["a", "b", "a"]
    (tmp_path / "digests.json").write_text('{"a": [1]}')
    assert asked(tmp_path, tmp_path / "a") == [digest_file(tmp_path / "a")]
