"""Storage in a folder: an object is complete or absent, wherever a write is interrupted."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.open_storage import open_storage
from shared.errors import ArtifactInvalid, Code, NotFound, Unavailable
from shared.settings import Settings
from tests.support.artifact_source import MANIFEST, NAMES, Source
from tests.support.builders import at_once


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path / "storage")


def files(storage: FolderStorage) -> set[str]:
    """Every file under the storage's root."""
    return {str(path.relative_to(storage.root)) for path in storage.root.rglob("*") if not path.is_dir()}


def test_storage_of_the_settings_is_their_folder(tmp_path: Path) -> None:
    storage = open_storage(Settings(home=tmp_path))
    assert isinstance(storage, FolderStorage)
    assert storage.root == tmp_path / "storage"


def test_paths_of_stored_files(storage: FolderStorage, source: Source) -> None:
    sha256 = storage.put_file(source.folder / MANIFEST)
    source.put(storage)
    blob = {f"blobs/sha256/{sha256[:2]}/{sha256}"}
    assert files(storage) == blob | {f"adapters/{source.digest}/{name}" for name in [*NAMES, MANIFEST]}


def test_same_content_is_one_file(storage: FolderStorage, source: Source) -> None:
    at_once(8, lambda _: storage.put_file(source.folder / MANIFEST))
    assert len(files(storage)) == 1


def test_local_file_is_not_a_copy(storage: FolderStorage, source: Source) -> None:
    sha256 = storage.put_file(source.folder / MANIFEST)
    with storage.local_file(sha256) as path:
        assert path == storage.blob_path(sha256)


def test_blob_that_was_changed_on_disk_fails_verification(storage: FolderStorage, source: Source) -> None:
    sha256 = storage.put_file(source.folder / MANIFEST)
    storage.blob_path(sha256).write_text("other")
    with pytest.raises(ArtifactInvalid) as caught, storage.local_file(sha256, verify=True):
        pass
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING


def test_folder_below_the_storage_is_found_by_its_path(storage: FolderStorage, source: Source, tmp_path: Path) -> None:
    source.put(storage)
    link = tmp_path / "link"
    link.symlink_to(storage.folder("adapters", source.digest))
    for folder in (storage.folder("adapters", source.digest), link):
        assert storage.digests_at("adapters", [tmp_path, folder]) == {source.digest}
        assert storage.digests_at("models", [folder]) == frozenset()


def test_uncommitted_blob_is_a_temporary_file(storage: FolderStorage) -> None:
    with storage.writer() as writer:
        writer.write(b"x" * 100_000)
        assert {Path(name).parent.name for name in files(storage)} == {"incoming"}
    assert not files(storage)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_commit_leaves_no_file(storage: FolderStorage, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), fail)
    with pytest.raises(Unavailable) as caught, storage.writer() as writer:
        writer.write(b"content")
        writer.commit()
    assert caught.value.code is Code.STORAGE_UNAVAILABLE
    assert not files(storage)


def test_blob_is_flushed_to_disk_before_it_has_its_name(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    fsync, name = os.fsync, hashlib.sha256(b"content").hexdigest()
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(("fsync", storage.blob_path(name).exists())), fsync(fd)))
    with storage.writer() as writer:
        writer.write(b"content")
        writer.commit()
    assert seen == [("fsync", False), ("fsync", True)]  # the file, and later the folder that names it


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["noticed at commit", "noticed at once"])
def test_full_disk_is_unavailable(
    storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # Fails while __exit__ lets the second flush's OSError out, and then forgets the temporary file.
    temporary = tmp_path / "temporary"
    temporary.touch()
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (full, str(temporary)))
    with pytest.raises(Unavailable) as caught, storage.writer() as writer:
        writer.write(b"x" * size)
        writer.commit()
    assert caught.value.code is Code.STORAGE_FULL
    assert caught.value.retryable
    assert not temporary.exists()
    assert not files(storage)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("verb", ["writer", "put_folder", "fetch_folder"])
def test_full_disk_is_unavailable_in_every_verb(
    storage: FolderStorage, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    source.put(storage)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    monkeypatch.setattr(shutil, "copyfile", fail)
    calls = {
        "writer": storage.writer,
        "put_folder": lambda: source.put(storage),
        "fetch_folder": lambda: storage.fetch_folder("adapters", source.digest, NAMES, tmp_path),
    }
    with pytest.raises(Unavailable) as caught:
        calls[verb]()
    assert caught.value.code is Code.STORAGE_FULL


@pytest.mark.parametrize("copied", range(len(NAMES) + 1))
def test_copy_killed_midway_leaves_no_manifest(
    storage: FolderStorage, source: Source, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """The process dies before the copy number `copied` ends: the manifest, which comes last, is absent."""
    copy, done = shutil.copyfileobj, 0

    def dying(*arguments: Any) -> None:
        nonlocal done
        if done == copied:
            raise KeyboardInterrupt
        done += 1
        copy(*arguments)

    monkeypatch.setattr(shutil, "copyfileobj", dying)
    with pytest.raises(KeyboardInterrupt):
        source.put(storage)
    assert files(storage) == {f"adapters/{source.digest}/{name}" for name in NAMES[:copied]}
    with pytest.raises(NotFound) as caught:
        storage.manifest_bytes("adapters", source.digest, MANIFEST)
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING

    monkeypatch.undo()
    source.put(storage)
    assert storage.manifest_bytes("adapters", source.digest, MANIFEST)


def test_missing_source_leaves_no_open_file(storage: FolderStorage, source: Source) -> None:
    # Fails while _copy_in makes its temporary file before it opens the source.
    (source.folder / NAMES[0]).unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            source.put(storage)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not files(storage)


def test_fetch_refuses_a_path_that_exists(storage: FolderStorage, source: Source, tmp_path: Path) -> None:
    source.put(storage)
    folder = storage.folder("adapters", source.digest)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("x")
    (folder.parent / "secret").write_text("secret")
    target = tmp_path / "target"
    target.mkdir()
    for name in ("../secret", "sub/file", "sub/../a.safetensors"):
        with pytest.raises(ArtifactInvalid):
            storage.fetch_folder("adapters", source.digest, [name], target)
    assert not list(target.iterdir())


def test_fetch_refuses_a_symlink(storage: FolderStorage, source: Source, tmp_path: Path) -> None:
    source.put(storage)
    (tmp_path / "secret").write_text("secret")
    (storage.folder("adapters", source.digest) / "link").symlink_to(tmp_path / "secret")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ArtifactInvalid):
        storage.fetch_folder("adapters", source.digest, ["link"], target)
    assert not list(target.iterdir())


def test_reading_makes_no_folder(storage: FolderStorage) -> None:
    with pytest.raises(NotFound):
        storage.open_blob("0" * 64)
    storage.purge_trash()
    assert storage.digests("adapters") == []
    assert not storage.root.exists()


def test_oversized_manifest_is_cut_so_that_its_digest_cannot_fit(
    storage: FolderStorage, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(storage)
    monkeypatch.setattr("shared.artifacts.folder_storage.MAX_MANIFEST_BYTES", 10)
    found = storage.manifest_bytes("adapters", source.digest, MANIFEST)
    assert hashlib.sha256(found).hexdigest() != source.digest


def test_folder_that_is_not_a_digest_is_not_listed(storage: FolderStorage, source: Source) -> None:
    source.put(storage)
    (storage.root / "adapters" / "lost+found").mkdir()
    assert storage.digests("adapters") == [source.digest]


def test_trash_keeps_the_bytes_until_it_is_purged(storage: FolderStorage, source: Source) -> None:
    for _ in range(2):
        source.put(storage)
        storage.move_to_trash("adapters", source.digest)
    assert len(list(storage.incoming.iterdir())) == 2
    storage.purge_trash()
    assert not list(storage.incoming.iterdir())


def test_what_a_killed_process_was_writing_is_purged_a_day_later(storage: FolderStorage) -> None:
    with storage.writer() as writer:
        writer.write(b"half")
        (old,) = storage.incoming.iterdir()
        copy = shutil.copy(old, storage.incoming / "blob-left")
        os.utime(copy, (1, 1))
        storage.purge_trash()
        assert list(storage.incoming.iterdir()) == [old], "the other is still being written"
        writer.commit()
    assert storage.has_blob(hashlib.sha256(b"half").hexdigest())
