"""Cached digests: no change of a file is missed, and an old file is read once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from corpus.file_digests import FileDigests
from shared.hashing import digest_file, digest_stream


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read, in order."""
    found: list[Path] = []

    def noted(file: BinaryIO) -> str:
        found.append(Path(file.name))
        return digest_stream(file)

    monkeypatch.setattr("corpus.file_digests.digest_stream", noted)
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


def test_digests_stay_until_their_file_is_missing(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    for name in "ab":
        (tmp_path / name).write_text(name)
    asked(tmp_path, tmp_path / "a", tmp_path / "b")
    asked(tmp_path, tmp_path / "b")
    asked(tmp_path, tmp_path / "a")
    assert [path.name for path in read] == ["a", "b"]
    (tmp_path / "a").unlink()
    asked(tmp_path, tmp_path / "b")
    assert list(json.loads((tmp_path / "digests.json").read_bytes())) == [str(tmp_path / "b")]


@pytest.mark.parametrize("content", [b'{"a": [1]}', b'{"\xff": [1, 2, 3, 4, "a"]}', b"\xff"])
def test_broken_store_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "digests.json").write_bytes(content)
    assert asked(tmp_path, tmp_path / "a") == [digest_file(tmp_path / "a")]


def test_file_in_a_folder_whose_name_is_not_utf8_is_read_once(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "a").write_text("a")
    assert asked(folder, folder / "a") == asked(folder, folder / "a")
    assert len(read) == 1


def test_state_is_that_of_the_file_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link may lead to another file for a moment."""
    monkeypatch.setattr("corpus.file_digests.QUIET_NANOSECONDS", -1)
    link, opened = tmp_path / "link", Path.open
    for name in "ab":
        (tmp_path / name).write_text(name)

    def lead_to(name: str) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def open_other(self: Path, *options: Any, **more: Any) -> Any:
        if self == link:
            lead_to("b")
        file = opened(self, *options, **more)
        if self == link:
            lead_to("a")
        return file

    lead_to("a")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_other)
        asked(tmp_path, link)
    assert asked(tmp_path, link) == [digest_file(tmp_path / "a")]
