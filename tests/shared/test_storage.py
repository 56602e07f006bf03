"""Storage: a name is complete or not there, whatever happens in the middle."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ArtifactInvalid, Code, NotFound, Unavailable
from shared.storage import Storage
from tests.shared.samples import at_once

MANIFEST = "manifest.json"
NAMES = ["a.safetensors", "config.json"]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with an artifact's files."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"content of {name}")
    (folder / MANIFEST).write_text(json.dumps(NAMES))
    return folder


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def files(storage: Storage) -> set[str]:
    """Every file under the storage's root."""
    return {str(path.relative_to(storage.root)) for path in storage.root.rglob("*") if not path.is_dir()}


def put(storage: Storage, source: Path) -> Path:
    return storage.put_folder("adapters", digest(source), source, NAMES, MANIFEST)


@given(st.lists(st.binary(max_size=20_000), max_size=5))
def test_blob_is_named_by_its_bytes(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]) -> None:
    storage = Storage(tmp_path_factory.getbasetemp() / "blobs")
    content = b"".join(chunks)
    with storage.writer() as writer:
        for chunk in chunks:
            writer.write(chunk)
        name = writer.commit()
    assert name == hashlib.sha256(content).hexdigest()
    assert writer.size == len(content)
    assert storage.open_blob(name).read_bytes() == content
    assert not list(storage.incoming.iterdir())


def test_same_content_twice_is_one_blob(storage: Storage, source: Path) -> None:
    first = storage.put_file(source / MANIFEST)
    assert storage.put_file(source / MANIFEST) == first
    assert files(storage) == {f"blobs/sha256/{first[:2]}/{first}"}


def test_same_content_from_many_threads_is_one_blob(storage: Storage, source: Path) -> None:
    assert len(set(at_once(8, lambda _: storage.put_file(source / MANIFEST)))) == 1
    assert len(files(storage)) == 1


def test_nothing_is_visible_before_commit(storage: Storage) -> None:
    with storage.writer() as writer:
        writer.write(b"x" * 100_000)
        assert {Path(name).parent.name for name in files(storage)} == {"incoming"}
    assert not files(storage)


def test_exception_in_the_middle_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(RuntimeError, match="client went away"), storage.writer() as writer:
        writer.write(b"half")
        raise RuntimeError("client went away")
    assert not files(storage)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_commit_leaves_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "disk died")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="disk died"), storage.writer() as writer:
        writer.write(b"content")
        writer.commit()
    assert not files(storage)


def test_blob_is_flushed_to_the_disk_before_it_has_its_name(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    fsync, name = os.fsync, hashlib.sha256(b"content").hexdigest()
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(("fsync", storage.blob_path(name).exists())), fsync(fd)))
    with storage.writer() as writer:
        writer.write(b"content")
        writer.commit()
    assert seen == [("fsync", False), ("fsync", True)]  # the file, and later the folder that names it


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["noticed at commit", "noticed at once"])
def test_full_disk_is_unavailable(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
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
    storage: Storage, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    put(storage, source)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    monkeypatch.setattr(shutil, "copyfile", fail)
    calls = {
        "writer": storage.writer,
        "put_folder": lambda: put(storage, source),
        "fetch_folder": lambda: storage.fetch_folder("adapters", digest(source), NAMES, tmp_path),
    }
    with pytest.raises(Unavailable) as caught:
        calls[verb]()
    assert caught.value.code is Code.STORAGE_FULL


def test_missing_blob_is_not_found(storage: Storage) -> None:
    with pytest.raises(NotFound) as caught:
        storage.open_blob("0" * 64)
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING


def test_delete_is_idempotent(storage: Storage, source: Path) -> None:
    name = storage.put_file(source / MANIFEST)
    storage.delete_blob(name)
    storage.delete_blob(name)
    assert not files(storage)


def test_artifact_comes_back_as_it_was_put_in(storage: Storage, source: Path, tmp_path: Path) -> None:
    folder = put(storage, source)
    assert folder == storage.folder("adapters", digest(source))
    assert storage.manifest_bytes("adapters", digest(source), MANIFEST) == (source / MANIFEST).read_bytes()
    target = tmp_path / "target"
    target.mkdir()
    storage.fetch_folder("adapters", digest(source), NAMES, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: (source / name).read_bytes() for name in NAMES
    }


def test_putting_an_artifact_again_is_harmless(storage: Storage, source: Path) -> None:
    put(storage, source)
    before = files(storage)
    at_once(4, lambda _: put(storage, source))
    assert files(storage) == before
    assert len(before) == len(NAMES) + 1


def test_shelves_are_apart(storage: Storage, source: Path) -> None:
    put(storage, source)
    with pytest.raises(NotFound):
        storage.manifest_bytes("models", digest(source), MANIFEST)


@pytest.mark.parametrize("copied", range(len(NAMES) + 1))
def test_copy_killed_midway_is_not_committed(
    storage: Storage, source: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """The process dies before the copy number `copied` ends: the manifest, which comes last, is not there."""
    copy, done = shutil.copyfileobj, 0

    def dying(*arguments: Any) -> None:
        nonlocal done
        if done == copied:
            raise KeyboardInterrupt
        done += 1
        copy(*arguments)

    monkeypatch.setattr(shutil, "copyfileobj", dying)
    with pytest.raises(KeyboardInterrupt):
        put(storage, source)
    assert files(storage) == {f"adapters/{digest(source)}/{name}" for name in NAMES[:copied]}
    with pytest.raises(NotFound) as caught:
        storage.manifest_bytes("adapters", digest(source), MANIFEST)
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING

    monkeypatch.undo()
    put(storage, source)
    assert storage.manifest_bytes("adapters", digest(source), MANIFEST)


def test_missing_source_leaves_no_open_file(storage: Storage, source: Path) -> None:
    # Fails while _copy_in makes its temporary file before it opens the source.
    (source / NAMES[0]).unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            put(storage, source)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not files(storage)


@pytest.mark.parametrize(
    "bad", ["", "..", "../adapters", "A" * 64, "0" * 63, "0" * 65, "g" * 64, "0" * 62 + "/0", "٣" * 64]
)
def test_artifact_name_must_be_a_digest(storage: Storage, source: Path, bad: str) -> None:
    calls = [
        lambda: storage.folder("adapters", bad),
        lambda: storage.manifest_bytes("adapters", bad, MANIFEST),
        lambda: storage.put_folder("adapters", bad, source, NAMES, MANIFEST),
        lambda: storage.fetch_folder("adapters", bad, NAMES, source),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    assert not files(storage)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/file", "sub/../a.safetensors", "./config.json"])
def test_traversal_is_refused(storage: Storage, source: Path, tmp_path: Path, name: str) -> None:
    folder = put(storage, source)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("x")
    (folder.parent / "secret").write_text("secret")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ArtifactInvalid) as caught:
        storage.fetch_folder("adapters", digest(source), [name], target)
    assert caught.value.code is Code.ADAPTER_MANIFEST_INVALID
    assert not list(target.iterdir())


@pytest.mark.parametrize("name", [".", "..", ""])
def test_name_of_a_folder_is_refused(storage: Storage, source: Path, tmp_path: Path, name: str) -> None:
    put(storage, source)
    with pytest.raises((ArtifactInvalid, NotFound)):
        storage.fetch_folder("adapters", digest(source), [name], tmp_path)


def test_symlink_is_refused(storage: Storage, source: Path, tmp_path: Path) -> None:
    folder = put(storage, source)
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ArtifactInvalid):
        storage.fetch_folder("adapters", digest(source), ["link"], target)
    assert not list(target.iterdir())


def test_missing_file_of_an_artifact_is_not_found(storage: Storage, source: Path, tmp_path: Path) -> None:
    put(storage, source)
    with pytest.raises(NotFound):
        storage.fetch_folder("adapters", digest(source), ["other.json"], tmp_path)


def test_reading_makes_no_folder(storage: Storage) -> None:
    with pytest.raises(NotFound):
        storage.open_blob("0" * 64)
    assert not storage.root.exists()


def test_oversized_manifest_is_cut_so_that_its_digest_cannot_fit(
    storage: Storage, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(storage, source)
    monkeypatch.setattr("shared.storage.MAX_MANIFEST_BYTES", 10)
    found = storage.manifest_bytes("adapters", digest(source), MANIFEST)
    assert hashlib.sha256(found).hexdigest() != digest(source)


def test_every_artifact_of_a_kind_is_listed(storage: Storage, source: Path) -> None:
    assert storage.digests("adapters") == []
    put(storage, source)
    (storage.root / "adapters" / "lost+found").mkdir()
    assert storage.digests("adapters") == [digest(source)]
    assert storage.digests("models") == []


def test_a_withdrawn_artifact_is_not_there_and_can_be_put_again(storage: Storage, source: Path) -> None:
    folder = put(storage, source)
    assert storage.holds("adapters", digest(source), MANIFEST)
    for _ in range(2):
        storage.withdraw("adapters", digest(source), MANIFEST)
        assert not storage.holds("adapters", digest(source), MANIFEST)
        with pytest.raises(NotFound):
            storage.manifest_bytes("adapters", digest(source), MANIFEST)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in source.iterdir() if path.name != MANIFEST
    )
    put(storage, source)
    assert storage.holds("adapters", digest(source), MANIFEST)
    storage.withdraw("adapters", "0" * 64, MANIFEST)


def test_a_discarded_artifact_is_gone_and_its_bytes_are_freed_later(storage: Storage, source: Path) -> None:
    folder = put(storage, source)
    storage.discard_folder("adapters", digest(source))
    storage.discard_folder("adapters", digest(source))
    assert not folder.exists()
    put(storage, source)
    storage.discard_folder("adapters", digest(source))
    assert len(list(storage.incoming.iterdir())) == 2
    with storage.writer() as writer:  # somebody else's upload is not swept away
        storage.free_discarded()
        assert len(list(storage.incoming.iterdir())) == 1
        writer.write(b"x")
        writer.commit()


def test_freeing_where_nothing_was_ever_stored(storage: Storage) -> None:
    storage.free_discarded()
    assert not storage.root.exists()
