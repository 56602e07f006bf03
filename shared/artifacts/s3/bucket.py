"""A bucket's objects: put, get, list and delete, by keys below the installation's prefix.

The client is boto3's. It retries temporary errors a few times, finds its own credentials (environment, web identity,
instance role) and is created at the first use, because each process needs its own client. Every object is written with
the SHA-256 of its bytes, or of each of its parts, which the server compares with the received bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from boto3.s3.transfer import TransferConfig
from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import ClientError

from shared.artifacts.s3.failures import coded, to_error
from shared.errors import Unavailable
from shared.settings import Settings

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ATTEMPTS = 5
"""Attempts at one request, including the first; the random pauses between them grow up to 20 s."""
CONNECT_SECONDS, READ_SECONDS = 5, 60
CONNECTIONS = 32
TRANSFERS = 4
"""Number of parts of one file that are sent or fetched concurrently."""
PART_BYTES = 8 << 20
"""Largest size that is sent in one request, in bytes."""
# S3's limits: parts of an upload, and names in one request to delete.
MAX_PARTS = 10_000
DELETED_AT_ONCE = 1000
READ_BYTES = 1 << 20
TRANSFER = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=TRANSFERS)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing."""

    name: str
    bytes: int
    written_at: datetime


class S3Bucket:
    """The objects of an installation; their names are keys without the prefix. Safe to use from many threads.

    Every method raises the errors of :func:`shared.artifacts.s3.failures.coded`.
    """

    def __init__(self, settings: Settings) -> None:
        self.name = settings.s3_bucket
        self._prefix = f"{settings.s3_prefix.strip('/')}/" if settings.s3_prefix.strip("/") else ""
        self._settings = settings
        self._made: Any = None
        # The first requests of several threads must not make a client each: all share the connections of one.
        self._making = threading.Lock()

    def put(self, name: str, content: bytes | BinaryIO, sha256: str, *, only_if: dict[str, str] | None = None) -> None:
        """Write a small object in one request.

        Args:
            name: the object's name.
            content: its bytes, or a file that contains them from its beginning.
            sha256: digest of the content, 64 hexadecimal digits; the server refuses other bytes.
            only_if: a condition, ``{"IfNoneMatch": "*"}`` or ``{"IfMatch": etag}``.
        """
        with coded(self.name, name):
            self._client.put_object(**self._at(name), Body=content, ChecksumSHA256=_base64(sha256), **(only_if or {}))

    def put_file(self, name: str, source: Path) -> None:
        """Write an object from a local file, in several parts when it is large."""
        with coded(self.name, name):
            self._client.upload_file(
                str(source), self.name, self._prefix + name, {"ChecksumAlgorithm": "SHA256"}, Config=TRANSFER
            )

    def begin_upload(self, name: str) -> PartUpload:
        """Begin an object that is written in parts; it does not exist before :meth:`PartUpload.complete`."""
        with coded(self.name, name):
            made = self._client.create_multipart_upload(**self._at(name), ChecksumAlgorithm="SHA256")
        return self._upload(name, str(made["UploadId"]))

    def get(self, name: str, limit: int) -> tuple[bytes, str]:
        """Read an object up to a limit; return the bytes and the object's ETag."""
        with coded(self.name, name):
            reply = self._client.get_object(**self._at(name))
            with reply["Body"] as body:
                return body.read(limit), str(reply["ETag"])

    def open(self, name: str) -> BinaryIO:
        """Open an object as a stream; a broken connection is reopened at the same position."""
        get = partial(self._client.get_object, **self._at(name))
        return io.BufferedReader(_ObjectReader(get, self.name, name), READ_BYTES)

    def fetch(self, name: str, target: Path) -> None:
        """Copy an object into a local file, which appears once it is complete."""
        with coded(self.name, name):
            self._client.download_file(self.name, self._prefix + name, str(target), Config=TRANSFER)

    def holds(self, name: str) -> bool:
        """Return whether the object exists."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Return the size of an object; None if it does not exist."""
        with coded(self.name, name):
            try:
                return int(self._client.head_object(**self._at(name))["ContentLength"])
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    return None
                raise

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """List the objects whose names begin with a prefix."""
        for page in self._pages("list_objects_v2", prefix):
            for listed in page.get("Contents", ()):
                yield StoredObject(listed["Key"][len(self._prefix) :], listed["Size"], listed["LastModified"])

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; absent ones are ignored."""
        for start in range(0, len(names), DELETED_AT_ONCE):
            some = names[start : start + DELETED_AT_ONCE]
            keys = [{"Key": self._prefix + name} for name in some]
            with coded(self.name, some[0]):
                answer = self._client.delete_objects(Bucket=self.name, Delete={"Objects": keys, "Quiet": True})
            for failed in answer.get("Errors", ()):
                raise to_error(ClientError({"Error": failed}, "DeleteObjects"), self.name, failed["Key"])

    def abort_uploads(self, before: datetime) -> None:
        """Abort incomplete uploads that were started before a given time, which frees the storage of their parts."""
        for page in self._pages("list_multipart_uploads", ""):
            for upload in page.get("Uploads") or ():
                # Not every server applies the prefix here.
                if upload["Initiated"] < before and upload["Key"].startswith(self._prefix):
                    self._upload(upload["Key"][len(self._prefix) :], upload["UploadId"]).abort()

    def _upload(self, name: str, upload_id: str) -> PartUpload:
        return PartUpload(self._client, {**self._at(name), "UploadId": upload_id}, name)

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self.name, "Key": self._prefix + name}

    def _pages(self, verb: str, prefix: str) -> Iterator[dict[str, Any]]:
        with coded(self.name, prefix or self.name):
            yield from self._client.get_paginator(verb).paginate(Bucket=self.name, Prefix=self._prefix + prefix)

    @property
    def _client(self) -> Any:
        with self._making:
            if self._made is None:
                self._made = _make_client(self._settings)
            return self._made


class PartUpload:
    """An object that is being written in parts.

    Args:
        client: boto3's.
        upload: bucket, key and id, as its requests name them.
        name: the object's name.
    """

    def __init__(self, client: Any, upload: dict[str, str], name: str) -> None:
        self._client, self._upload = client, upload
        self._bucket, self._name = upload["Bucket"], name
        self._parts: list[dict[str, Any]] = []

    def send(self, file: BinaryIO, size: int) -> None:
        """Send all parts of a file, several at once; each is read just before it is sent."""
        part_bytes = max(PART_BYTES, -(-size // MAX_PARTS))
        # The threads share one file, which has one position.
        reading = threading.Lock()

        def send_part(number: int) -> dict[str, Any]:
            with reading:
                file.seek((number - 1) * part_bytes)
                content = file.read(part_bytes)
            checksum = _base64(hashlib.sha256(content).hexdigest())
            with coded(self._bucket, self._name):
                sent = self._client.upload_part(
                    **self._upload, PartNumber=number, Body=content, ChecksumSHA256=checksum
                )
            return {"PartNumber": number, "ETag": sent["ETag"], "ChecksumSHA256": checksum}

        with ThreadPoolExecutor(TRANSFERS) as pool:
            self._parts = list(pool.map(send_part, range(1, max(1, -(-size // part_bytes)) + 1)))

    def complete(self) -> None:
        """Make the complete object visible, with one quick request."""
        with coded(self._bucket, self._name):
            self._client.complete_multipart_upload(**self._upload, MultipartUpload={"Parts": self._parts})

    def abort(self) -> None:
        """Abort the upload; its parts are freed."""
        with coded(self._bucket, self._name):
            self._client.abort_multipart_upload(**self._upload)


class _ObjectReader(io.RawIOBase):
    """A stream of one object; it reconnects when a connection breaks.

    Args:
        get: requests the object; returns boto3's response.
        bucket: the bucket's name.
        name: the object's name.
    """

    def __init__(self, get: Callable[..., Any], bucket: str, name: str) -> None:
        self._get, self._bucket, self._name = get, bucket, name
        self._position = 0
        self._condition: dict[str, str] = {}
        self._body: Any = None
        # Opened here and not at the first read, so that a missing object is detected at once.
        self._open()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                content = self._read(len(memoryview(buffer)))
            except Unavailable:
                self._body = None
                if attempt == ATTEMPTS:
                    raise
            else:
                memoryview(buffer)[: len(content)] = content
                self._position += len(content)
                return len(content)
        raise AssertionError

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
        super().close()

    def _read(self, size: int) -> bytes:
        if self._body is None:
            self._open()
        with coded(self._bucket, self._name):
            return bytes(self._body.read(size))

    def _open(self) -> None:
        at = {"Range": f"bytes={self._position}-"} if self._position else {}
        with coded(self._bucket, self._name):
            reply = self._get(**at, **self._condition)
        # After a broken connection, the rest must come from the same object.
        self._condition = {"IfMatch": reply["ETag"]}
        self._body = reply["Body"]


def _make_client(settings: Settings) -> Any:
    with coded(settings.s3_bucket, settings.s3_bucket):
        return Session().client(
            "s3",
            endpoint_url=settings.s3_endpoint or None,
            region_name=settings.s3_region or None,
            config=Config(
                s3={"addressing_style": "path" if settings.s3_path_style else "auto"},
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                max_pool_connections=CONNECTIONS,
                # We send SHA-256 checksums; not every server supports others.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
