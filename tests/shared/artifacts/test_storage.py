"""The storage interface, tested on every implementation: a new one is added to ``IMPLEMENTATIONS`` and must pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.storage import Storage
from shared.errors import ArtifactInvalid, Code, NotFound
from tests.support.artifact_source import MANIFEST, NAMES, Source
from tests.support.builders import at_once
from tests.support.copying_storage import CopyingStorage

CONTENT = b"some bytes\nof a file\n"
NAME = hashlib.sha256(CONTENT).hexdigest()
ABSENT = "0" * 64
IMPLEMENTATIONS: dict[str, Callable[[Path], Storage]] = {
    "folder": lambda folder: FolderStorage(folder / "storage"),
    "copies": lambda folder: CopyingStorage(folder / "storage"),
}


@pytest.fixture(params=[*IMPLEMENTATIONS, pytest.param("s3", marks=pytest.mark.network)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        bucket: Storage = request.getfixturevalue("s3_storage")
        return bucket
    return IMPLEMENTATIONS[request.param](tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An empty folder to fetch into."""
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def put_blob(storage: Storage, content: bytes = CONTENT) -> str:
    with storage.writer() as writer:
        writer.write(content)
        return writer.commit()


def read_blob(storage: Storage, sha256: str) -> bytes:
    with storage.open_blob(sha256) as stream:
        return stream.read()


# -- blobs


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(chunks=st.lists(st.binary(max_size=20_000), max_size=5))
def test_blob_is_named_by_its_bytes(storage: Storage, chunks: list[bytes]) -> None:
    content = b"".join(chunks)
    with storage.writer() as writer:
        for chunk in chunks:
            writer.write(chunk)
        name = writer.commit()
    assert name == hashlib.sha256(content).hexdigest()
    assert writer.size == len(content)
    assert read_blob(storage, name) == content


def test_file_is_stored_as_a_blob(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    assert storage.put_file(tmp_path / "file") == NAME
    assert read_blob(storage, NAME) == CONTENT


def test_same_content_can_be_stored_twice(storage: Storage) -> None:
    assert put_blob(storage) == put_blob(storage) == NAME
    assert read_blob(storage, NAME) == CONTENT


def test_same_content_can_be_stored_from_many_threads(storage: Storage) -> None:
    assert set(at_once(8, lambda _: put_blob(storage))) == {NAME}
    assert read_blob(storage, NAME) == CONTENT


def test_blob_is_absent_before_commit(storage: Storage) -> None:
    with storage.writer() as writer:
        writer.write(CONTENT)
        assert not storage.has_blob(NAME)
        writer.commit()
        assert storage.has_blob(NAME)


def test_finished_writer_is_named_and_not_visible_yet(storage: Storage) -> None:
    with storage.writer() as writer:
        writer.write(CONTENT)
        assert writer.finish() == NAME
        assert not storage.has_blob(NAME)
        assert writer.commit() == NAME
    assert read_blob(storage, NAME) == CONTENT


def test_writer_left_without_commit_stores_nothing(storage: Storage) -> None:
    with storage.writer() as writer:
        writer.write(CONTENT)
    assert not storage.has_blob(NAME)


def test_exception_inside_the_writer_stores_nothing(storage: Storage) -> None:
    with pytest.raises(RuntimeError, match="client disconnected"), storage.writer() as writer:
        writer.write(CONTENT)
        raise RuntimeError("client disconnected")
    assert not storage.has_blob(NAME)


def test_stream_is_read_line_by_line(storage: Storage) -> None:
    put_blob(storage)
    with storage.open_blob(NAME) as lines:
        assert list(lines) == CONTENT.splitlines(keepends=True)


@pytest.mark.parametrize("verify", [False, True])
def test_local_file_has_the_bytes_of_the_blob(storage: Storage, verify: bool) -> None:
    put_blob(storage)
    with storage.local_file(NAME, verify=verify) as path:
        assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("verb", ["open_blob", "local_file", "local_file verified"])
def test_absent_blob_is_not_found(storage: Storage, verb: str) -> None:
    def read() -> object:
        if verb == "open_blob":
            return storage.open_blob(ABSENT)
        with storage.local_file(ABSENT, verify=verb.endswith("verified")) as path:
            return path

    with pytest.raises(NotFound) as caught:
        read()
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING


def test_deleted_blob_is_absent(storage: Storage) -> None:
    put_blob(storage)
    storage.delete_blob(NAME)
    assert not storage.has_blob(NAME)


def test_deleting_an_absent_blob_is_not_an_error(storage: Storage) -> None:
    storage.delete_blob(ABSENT)


# -- artifacts


def test_artifact_is_fetched_as_it_was_stored(storage: Storage, source: Source, target: Path) -> None:
    source.put(storage)
    assert storage.holds("adapters", source.digest, MANIFEST)
    assert storage.manifest_bytes("adapters", source.digest, MANIFEST) == (source.folder / MANIFEST).read_bytes()
    storage.fetch_folder("adapters", source.digest, NAMES, target)
    fetched = {path.name: path.read_bytes() for path in target.iterdir()}
    assert fetched == {name: (source.folder / name).read_bytes() for name in NAMES}


def test_file_of_an_artifact_is_a_stream(storage: Storage, source: Source) -> None:
    source.put(storage)
    with storage.open_file("adapters", source.digest, NAMES[0]) as stream:
        assert stream.read() == (source.folder / NAMES[0]).read_bytes()


def test_only_the_named_files_are_fetched(storage: Storage, source: Source, target: Path) -> None:
    source.put(storage)
    storage.fetch_folder("adapters", source.digest, NAMES[:1], target)
    assert [path.name for path in target.iterdir()] == NAMES[:1]


def test_same_artifact_can_be_stored_again(storage: Storage, source: Source) -> None:
    source.put(storage)
    at_once(4, lambda _: source.put(storage))
    assert storage.digests("adapters") == [source.digest]
    assert storage.holds("adapters", source.digest, MANIFEST)


def test_kinds_are_separate(storage: Storage, source: Source) -> None:
    source.put(storage)
    assert not storage.holds("models", source.digest, MANIFEST)
    assert storage.digests("models") == []
    with pytest.raises(NotFound):
        storage.manifest_bytes("models", source.digest, MANIFEST)


@pytest.mark.parametrize("stored", range(len(NAMES) + 1))
def test_artifact_with_a_missing_file_does_not_exist(storage: Storage, source: Source, stored: int) -> None:
    """Files are stored in order and the manifest last, so an error at any of them leaves no artifact."""
    missing = [*NAMES, MANIFEST][stored]
    content = (source.folder / missing).read_bytes()
    (source.folder / missing).unlink()
    with pytest.raises(FileNotFoundError):
        source.put(storage)
    assert not storage.holds("adapters", source.digest, MANIFEST)
    with pytest.raises(NotFound) as caught:
        storage.manifest_bytes("adapters", source.digest, MANIFEST)
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING

    (source.folder / missing).write_bytes(content)
    source.put(storage)
    assert storage.holds("adapters", source.digest, MANIFEST)


@pytest.mark.parametrize(
    "bad", ["", "..", "../adapters", "A" * 64, "0" * 63, "0" * 65, "g" * 64, "0" * 62 + "/0", "٣" * 64]
)
def test_artifact_name_must_be_a_digest(storage: Storage, source: Source, target: Path, bad: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: storage.manifest_bytes("adapters", bad, MANIFEST),
        lambda: storage.holds("adapters", bad, MANIFEST),
        lambda: storage.measure("adapters", bad),
        lambda: storage.put_folder("adapters", bad, source.folder, NAMES, MANIFEST),
        lambda: storage.fetch_folder("adapters", bad, NAMES, target),
        lambda: storage.open_file("adapters", bad, MANIFEST),
        lambda: storage.unpublish("adapters", bad, MANIFEST),
        lambda: storage.move_to_trash("adapters", bad),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    assert storage.digests("adapters") == []


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/file", "sub/../a.safetensors", "./config.json"])
def test_fetch_refuses_names_with_a_path(storage: Storage, source: Source, target: Path, name: str) -> None:
    source.put(storage)
    with pytest.raises(ArtifactInvalid) as caught:
        storage.fetch_folder("adapters", source.digest, [name], target)
    assert caught.value.code is Code.ADAPTER_MANIFEST_INVALID
    assert not list(target.iterdir())
    with pytest.raises(ArtifactInvalid):
        storage.open_file("adapters", source.digest, name)


@pytest.mark.parametrize("name", [".", "..", ""])
def test_fetch_refuses_names_of_folders(storage: Storage, source: Source, target: Path, name: str) -> None:
    source.put(storage)
    with pytest.raises((ArtifactInvalid, NotFound)):
        storage.fetch_folder("adapters", source.digest, [name], target)


def test_absent_file_of_an_artifact_is_not_found(storage: Storage, source: Source, target: Path) -> None:
    source.put(storage)
    with pytest.raises(NotFound) as caught:
        storage.fetch_folder("adapters", source.digest, ["other.json"], target)
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING
    with pytest.raises(NotFound):
        storage.open_file("adapters", source.digest, "other.json")


def test_artifact_without_a_manifest_is_listed(storage: Storage, source: Source) -> None:
    assert storage.digests("adapters") == []
    source.put(storage)
    storage.unpublish("adapters", source.digest, MANIFEST)
    assert storage.digests("adapters") == [source.digest]


def test_artifact_is_measured_with_and_without_its_manifest(storage: Storage, source: Source) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    source.put(storage)
    whole = storage.measure("adapters", source.digest)
    assert whole is not None
    assert whole.bytes == sum(path.stat().st_size for path in source.folder.iterdir())
    assert before < whole.written_at < datetime.now(UTC) + timedelta(seconds=5)
    storage.unpublish("adapters", source.digest, MANIFEST)
    rest = storage.measure("adapters", source.digest)
    assert rest is not None
    assert whole.bytes - rest.bytes == (source.folder / MANIFEST).stat().st_size


def test_absent_artifact_has_no_size(storage: Storage) -> None:
    assert storage.measure("adapters", ABSENT) is None


def test_unpublished_artifact_does_not_exist_and_keeps_its_files(
    storage: Storage, source: Source, target: Path
) -> None:
    source.put(storage)
    for _ in range(2):
        storage.unpublish("adapters", source.digest, MANIFEST)
        assert not storage.holds("adapters", source.digest, MANIFEST)
        with pytest.raises(NotFound):
            storage.manifest_bytes("adapters", source.digest, MANIFEST)
    storage.fetch_folder("adapters", source.digest, NAMES, target)
    assert len(list(target.iterdir())) == len(NAMES)


def test_unpublished_artifact_can_be_stored_again(storage: Storage, source: Source) -> None:
    source.put(storage)
    storage.unpublish("adapters", source.digest, MANIFEST)
    source.put(storage)
    assert storage.holds("adapters", source.digest, MANIFEST)


def test_unpublishing_an_absent_artifact_is_not_an_error(storage: Storage) -> None:
    storage.unpublish("adapters", ABSENT, MANIFEST)


def test_artifact_in_the_trash_is_absent(storage: Storage, source: Source, target: Path) -> None:
    source.put(storage)
    for _ in range(2):
        storage.move_to_trash("adapters", source.digest)
        assert storage.digests("adapters") == []
        assert storage.measure("adapters", source.digest) is None
        with pytest.raises(NotFound):
            storage.fetch_folder("adapters", source.digest, NAMES, target)


def test_purging_the_trash_keeps_an_artifact_that_was_stored_again(
    storage: Storage, source: Source, target: Path
) -> None:
    source.put(storage)
    storage.move_to_trash("adapters", source.digest)
    source.put(storage)
    storage.purge_trash()
    storage.fetch_folder("adapters", source.digest, NAMES, target)
    assert storage.holds("adapters", source.digest, MANIFEST)


def test_purging_the_trash_keeps_a_blob_that_is_being_written(storage: Storage) -> None:
    with storage.writer() as writer:
        writer.write(CONTENT)
        storage.purge_trash()
        assert writer.commit() == NAME
    assert read_blob(storage, NAME) == CONTENT


def test_purging_an_empty_trash_is_not_an_error(storage: Storage) -> None:
    storage.purge_trash()


def test_no_artifact_is_at_another_folder(storage: Storage, source: Source) -> None:
    source.put(storage)
    assert storage.digests_at("adapters", [source.folder]) == frozenset()
