"""Storage in a bucket of a real S3 server: large blobs in parts, conditional manifests, faults with codes."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.standalone.ports import free_port
from shared.artifacts.open_storage import open_storage
from shared.artifacts.s3 import bucket as bucket_module
from shared.artifacts.s3.bucket import PART_BYTES
from shared.artifacts.s3.storage import S3Storage, blob_name
from shared.errors import ArtifactInvalid, Code, NotFound, Unavailable
from shared.settings import Settings
from tests.support.artifact_source import MANIFEST, NAMES, Source
from tests.support.builders import at_once
from tests.support.s3_server import BUCKET, READER, S3Server

pytestmark = pytest.mark.network
LARGE = os.urandom(1 << 20) * 18 + b"the end"
"""Two whole parts and a rest."""


def names(storage: S3Storage) -> set[str]:
    """Every object of the installation."""
    return {found.name for found in storage.bucket.list("")}


def uploads(server: S3Server, settings: Settings) -> list[str]:
    """Keys that are being sent in parts, of this test."""
    found = server.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads") or []
    return [one["Key"] for one in found if one["Key"].startswith(settings.s3_prefix)]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    return path


def test_bucket_of_the_settings_is_the_storage(s3_settings: Settings) -> None:
    assert isinstance(open_storage(s3_settings), S3Storage)


def test_keys_of_stored_files(s3_storage: S3Storage, source: Source) -> None:
    sha256 = s3_storage.put_file(source.folder / MANIFEST)
    source.put(s3_storage)
    assert names(s3_storage) == {f"blobs/sha256/{sha256[:2]}/{sha256}"} | {
        f"adapters/{source.digest}/{name}" for name in [*NAMES, MANIFEST]
    }


def test_installations_in_one_bucket_see_nothing_of_each_other(
    s3_settings: Settings, s3_storage: S3Storage, source: Source
) -> None:
    source.put(s3_storage)
    other = S3Storage(s3_settings.model_copy(update={"s3_prefix": f"{s3_settings.s3_prefix}-2"}))
    assert other.digests("adapters") == []
    assert not other.holds("adapters", source.digest, MANIFEST)


# -- large blobs


def test_large_blob_is_sent_in_parts_and_visible_at_commit(
    s3_server: S3Server, s3_settings: Settings, s3_storage: S3Storage, large: Path
) -> None:
    with s3_storage.writer() as writer:
        writer.write(LARGE)
        name = writer.finish()
        assert uploads(s3_server, s3_settings) == [f"{s3_settings.s3_prefix}/{blob_name(name)}"]
        assert not s3_storage.has_blob(name)
        assert writer.commit() == name == hashlib.sha256(LARGE).hexdigest()
    found = s3_server.client().head_object(Bucket=BUCKET, Key=f"{s3_settings.s3_prefix}/{blob_name(name)}")
    assert found["ETag"].strip('"').endswith("-3"), "it came in three parts"
    with s3_storage.open_blob(name) as stream, s3_storage.local_file(name, verify=True) as path:
        assert stream.read() == path.read_bytes() == LARGE


def test_large_blob_that_is_not_committed_is_given_up(
    s3_server: S3Server, s3_settings: Settings, s3_storage: S3Storage
) -> None:
    with s3_storage.writer() as writer:
        writer.write(LARGE)
        writer.finish()
    assert uploads(s3_server, s3_settings) == []
    assert names(s3_storage) == set()


def test_what_a_killed_process_was_sending_is_given_up_a_day_later(
    s3_server: S3Server, s3_settings: Settings, s3_storage: S3Storage
) -> None:
    s3_storage.bucket.begin_upload("blobs/half")
    s3_storage.purge_trash()
    assert uploads(s3_server, s3_settings) == [f"{s3_settings.s3_prefix}/blobs/half"], "it may still be sent"
    s3_storage.bucket.abort_uploads(datetime.now(UTC) + timedelta(minutes=1))
    assert uploads(s3_server, s3_settings) == []


def test_large_file_of_an_artifact_is_stored_and_fetched(s3_storage: S3Storage, source: Source, tmp_path: Path) -> None:
    (source.folder / NAMES[0]).write_bytes(LARGE)
    source.put(s3_storage)
    (tmp_path / "target").mkdir()
    s3_storage.fetch_folder("adapters", source.digest, NAMES, tmp_path / "target")
    assert (tmp_path / "target" / NAMES[0]).read_bytes() == LARGE


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1])
def test_blob_at_the_border_of_one_part(s3_storage: S3Storage, size: int) -> None:
    content = LARGE[:size]
    with s3_storage.writer() as writer:
        writer.write(content)
        name = writer.commit()
    with s3_storage.open_blob(name) as stream:
        assert stream.read() == content


def test_server_refuses_bytes_of_another_digest(s3_storage: S3Storage) -> None:
    with pytest.raises(Unavailable):
        s3_storage.bucket.put("blobs/wrong", b"bytes", hashlib.sha256(b"other bytes").hexdigest())
    assert names(s3_storage) == set()


# -- manifests


def test_manifest_that_is_there_is_not_written_again(
    s3_server: S3Server, s3_settings: Settings, s3_storage: S3Storage, source: Source
) -> None:
    source.put(s3_storage)
    key = f"{s3_settings.s3_prefix}/adapters/{source.digest}/{MANIFEST}"
    with pytest.raises(Exception, match="PreconditionFailed"):
        s3_server.client().put_object(Bucket=BUCKET, Key=key, Body=b"other", IfNoneMatch="*")
    before = s3_server.client().head_object(Bucket=BUCKET, Key=key)["LastModified"]
    at_once(8, lambda _: source.put(s3_storage))
    assert s3_server.client().head_object(Bucket=BUCKET, Key=key)["LastModified"] == before


def test_damaged_manifest_is_replaced(
    s3_server: S3Server, s3_settings: Settings, s3_storage: S3Storage, source: Source
) -> None:
    source.put(s3_storage)
    key = f"{s3_settings.s3_prefix}/adapters/{source.digest}/{MANIFEST}"
    s3_server.client().put_object(Bucket=BUCKET, Key=key, Body=b"damaged")
    source.put(s3_storage)
    raw = s3_storage.manifest_bytes("adapters", source.digest, MANIFEST)
    assert hashlib.sha256(raw).hexdigest() == source.digest


def test_deletion_that_is_cut_short_leaves_no_manifest(
    s3_storage: S3Storage, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(s3_storage)
    delete, calls = s3_storage.bucket.delete, []

    def dying(found: list[str]) -> None:
        if calls:
            raise KeyboardInterrupt
        calls.append(found)
        delete(found)

    monkeypatch.setattr(s3_storage.bucket, "delete", dying)
    with pytest.raises(KeyboardInterrupt):
        s3_storage.move_to_trash("adapters", source.digest)
    assert not s3_storage.holds("adapters", source.digest, MANIFEST)
    assert s3_storage.digests("adapters") == [source.digest], "what is left can be found"


def test_more_objects_than_a_request_may_delete_are_deleted(
    s3_storage: S3Storage, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    monkeypatch.setattr(bucket_module, "DELETED_AT_ONCE", 2)
    stored = [s3_storage.put_file(path) for path in source.folder.iterdir()]
    assert len(stored) == 3
    s3_storage.bucket.delete([blob_name(sha256) for sha256 in stored])
    assert names(s3_storage) == set()


# -- local copies


def test_blob_is_fetched_once(s3_storage: S3Storage, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = s3_storage.put_file(source.folder / MANIFEST)
    with s3_storage.local_file(sha256) as path:
        content = path.read_bytes()
    monkeypatch.setattr(s3_storage.bucket, "fetch", lambda *_: pytest.fail("it was fetched again"))
    with s3_storage.local_file(sha256) as path:
        assert path.read_bytes() == content


def test_blob_that_was_changed_in_the_bucket_is_refused(
    s3_server: S3Server, s3_settings: Settings, s3_storage: S3Storage, source: Source
) -> None:
    sha256 = s3_storage.put_file(source.folder / MANIFEST)
    key = f"{s3_settings.s3_prefix}/{blob_name(sha256)}"
    s3_server.client().put_object(Bucket=BUCKET, Key=key, Body=b"changed")
    with pytest.raises(ArtifactInvalid) as caught, s3_storage.local_file(sha256):
        pass
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING


# -- faults


@contextmanager
def cut_connections(target: str, after: int) -> Iterator[tuple[str, list[int]]]:
    """A proxy that breaks each connection after this many bytes of answers; yields its address, and bytes by
    connection.
    """
    host, _, port = target.removeprefix("http://").partition(":")
    listener, passed = socket.create_server(("127.0.0.1", 0)), list[int]()

    def serve(client: socket.socket) -> None:
        number = len(passed)
        passed.append(0)
        with client, socket.create_connection((host, int(port))) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            while passed[number] < after and (data := server.recv(65536)):
                passed[number] += len(data)
                client.sendall(data)
            for end in (client, server):
                # A mere close would wait for the thread that reads from it.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", passed


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def test_stream_continues_where_its_connection_broke(s3_server: S3Server, s3_settings: Settings, large: Path) -> None:
    sha256 = S3Storage(s3_settings).put_file(large)
    with cut_connections(s3_server.url, after=7 << 20) as (url, passed):
        through = S3Storage(s3_settings.model_copy(update={"s3_endpoint": url}))
        with through.open_blob(sha256) as stream:
            assert stream.read() == LARGE
    assert len(passed) == 3
    assert sum(passed) < len(LARGE) + (1 << 20), "no byte was sent twice"


def test_stream_of_an_object_that_was_replaced_does_not_mix_the_two(
    s3_server: S3Server, s3_settings: Settings, large: Path
) -> None:
    storage = S3Storage(s3_settings)
    sha256 = storage.put_file(large)
    with cut_connections(s3_server.url, after=7 << 20) as (url, _):
        through = S3Storage(s3_settings.model_copy(update={"s3_endpoint": url}))
        with through.open_blob(sha256) as stream:
            stream.read(100)
            storage.bucket.put(blob_name(sha256), b"x" * len(LARGE), hashlib.sha256(b"x" * len(LARGE)).hexdigest())
            with pytest.raises(Exception, match=r"STORAGE_PRECONDITION_FAILED"):
                stream.read()


def calls(storage: S3Storage, source: Source, target: Path) -> dict[str, Any]:
    """Every verb that asks the bucket."""
    return {
        "put_file": lambda: storage.put_file(source.folder / MANIFEST),
        "put_folder": lambda: source.put(storage),
        "has_blob": lambda: storage.has_blob("0" * 64),
        "open_blob": lambda: storage.open_blob("0" * 64),
        "local_file": lambda: storage.local_file("0" * 64).__enter__(),
        "delete_blob": lambda: storage.delete_blob("0" * 64),
        "fetch_folder": lambda: storage.fetch_folder("adapters", source.digest, NAMES, target),
        "manifest_bytes": lambda: storage.manifest_bytes("adapters", source.digest, MANIFEST),
        "holds": lambda: storage.holds("adapters", source.digest, MANIFEST),
        "digests": lambda: storage.digests("adapters"),
        "measure": lambda: storage.measure("adapters", source.digest),
        "unpublish": lambda: storage.unpublish("adapters", source.digest, MANIFEST),
        "move_to_trash": lambda: storage.move_to_trash("adapters", source.digest),
        "purge_trash": storage.purge_trash,
    }


def faults(storage: S3Storage, source: Source, target: Path) -> set[tuple[str, Code, bool]]:
    found = set()
    for verb, call in calls(storage, source, target).items():
        with pytest.raises(Unavailable) as caught:
            call()
        found.add((verb, caught.value.code, caught.value.retryable))
        assert "secret" not in str(caught.value)
    return found


def test_store_that_does_not_respond_is_unavailable_in_every_verb(
    s3_settings: Settings, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "ATTEMPTS", 1)
    storage = S3Storage(s3_settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{free_port()}"}))
    assert {(code, retryable) for _, code, retryable in faults(storage, source, tmp_path)} == {
        (Code.STORAGE_UNAVAILABLE, True)
    }


def test_attempts_of_a_request_are_bounded(
    s3_server: S3Server, s3_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.random.random", lambda: 0.0)
    with cut_connections(s3_server.url, after=0) as (url, passed):
        storage = S3Storage(s3_settings.model_copy(update={"s3_endpoint": url}))
        with pytest.raises(Unavailable):
            storage.has_blob("0" * 64)
    assert len(passed) == bucket_module.ATTEMPTS


@pytest.mark.parametrize("credentials", [{"AWS_ACCESS_KEY_ID": "owner", "AWS_SECRET_ACCESS_KEY": "wrong secret"}, None])
def test_wrong_or_no_credentials_are_denied_in_every_verb(
    s3_settings: Settings,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    credentials: dict[str, str] | None,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    for name, value in (credentials or {}).items():
        monkeypatch.setenv(name, value)
    denied = {code for _, code, _ in faults(S3Storage(s3_settings), source, tmp_path)}
    assert denied == {Code.STORAGE_DENIED}


def test_reader_may_fetch_and_not_write(
    s3_settings: Settings, s3_storage: S3Storage, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(s3_storage)
    for name, value in READER.items():
        monkeypatch.setenv(name, value)
    reader = S3Storage(s3_settings)
    reader.fetch_folder("adapters", source.digest, NAMES, tmp_path)
    assert not reader.has_blob("0" * 64), "an absent object is absent, and not denied"
    with pytest.raises(Unavailable) as caught:
        source.put(reader)
    assert caught.value.code is Code.STORAGE_DENIED
    with pytest.raises(Unavailable) as caught:
        reader.delete_blob("0" * 64)
    assert caught.value.code is Code.STORAGE_DENIED


def test_missing_bucket_is_named(s3_settings: Settings, source: Source) -> None:
    storage = S3Storage(s3_settings.model_copy(update={"s3_bucket": "no-such-bucket"}))
    for call in (lambda: source.put(storage), lambda: storage.digests("adapters")):
        with pytest.raises(Unavailable) as caught:
            call()
        assert (caught.value.code, "no-such-bucket" in str(caught.value)) == (Code.STORAGE_BUCKET_NOT_FOUND, True)


def test_absent_object_is_not_found(s3_storage: S3Storage, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        s3_storage.fetch_folder("models", "0" * 64, ["config.json"], tmp_path)
    assert caught.value.code is Code.STORAGE_OBJECT_MISSING
    assert not list(tmp_path.glob("config*"))
