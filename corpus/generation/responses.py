"""Store of the responses of models: no request is sent twice, in any number of runs, and a kill loses only requests in
flight.

    responses/responses-00000.jsonl  one response per line
    responses/failed.jsonl           possible cost of requests without a response

A response is one line, written before its row is used. Each response takes 100 bytes of memory; its text stays on disk.
Responses pass the filters for secrets and personal data before they are stored; only a keyed digest of the request is
stored.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from shared.durable_files import sync
from shared.host import disk_errors

FAILED_NAME = "failed.jsonl"
SEGMENT_BYTES = 64 << 20
SYNC_SECONDS = 1.0
"""After a power cut, the responses of the last seconds, up to this many, may be lost; after a kill, none are."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Response of a model to a request.

    Attributes:
        key: digest of the request, with its address and the number of the sample (:meth:`ModelRequest.key`).
        name: the model's name, in the recipe.
        model: name that the server returned.
        revision: digest or version of the model, if the server returned it: the adapter's for an installation of Mens,
            otherwise ``system_fingerprint``.
        text: text without personal data; empty for a response with a secret.
        fault: verdict code that says why the response cannot be used.
        redactions: number of replaced values by kind.
        requests: number of times that the request was sent until it was answered.
    """

    key: str
    name: str
    model: str = ""
    revision: str = ""
    text: str = ""
    fault: str = ""
    redactions: dict[str, int] = {}
    prompt_tokens: int = 0
    answer_tokens: int = 0
    requests: int = 1


class FailedRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests to a model that gave no usable response, and their possible cost: the server may have processed them.

    Attributes:
        requests: number of these; 0 if they are counted with the response that finally arrived.
    """

    name: str
    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0


class ResponseStore:
    """The responses of a folder. Used by many threads of one process, which claims the folder (`claims.py`).

    Raises:
        Unavailable: ``STORAGE_FULL``, ``STORAGE_UNAVAILABLE``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[bytes, tuple[int, int, int]] = {}
        # Guards the end of the newest segment: a response is written as one line, whose place is recorded.
        self._lock = threading.Lock()
        self._synced = time.monotonic()
        self._segments: list[int] = []
        self._size = 0
        with disk_errors():
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("responses-*.jsonl")):
                self._open(path)
            if not self._segments:
                self._open(self._path(0))
            self._failed = os.open(folder / FAILED_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            sync(folder)

    def __enter__(self) -> ResponseStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with disk_errors():
            for descriptor in (self._segments[-1], self._failed):
                os.fsync(descriptor)
        for descriptor in (*self._segments, self._failed):
            os.close(descriptor)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._places

    def __iter__(self) -> Iterator[StoredResponse]:
        for segment, begin, size in [*self._places.values()]:
            yield self._read(segment, begin, size)

    @property
    def failed(self) -> Iterator[FailedRequests]:
        """Requests without a response, from all runs."""
        with disk_errors():
            lines = (self._folder / FAILED_NAME).read_bytes().splitlines()
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # a line that a kill has cut
                yield _decode_failed(line)

    def add_failed(self, failed: FailedRequests) -> None:
        """Store the possible cost of requests that gave no response."""
        with self._lock, disk_errors():
            # On a separate line, even after one that was cut off.
            _write(self._failed, b"\n" + msgspec.json.encode(failed) + b"\n")

    def get(self, key: str) -> StoredResponse | None:
        """Return the response to a request; None if it was not stored."""
        place = self._places.get(bytes.fromhex(key))
        return self._read(*place) if place else None

    def add(self, response: StoredResponse) -> None:
        """Store a response."""
        line = msgspec.json.encode(response) + b"\n"
        with self._lock, disk_errors():
            if self._size and self._size + len(line) > SEGMENT_BYTES:
                os.fsync(self._segments[-1])
                self._open(self._path(len(self._segments)))
            segment, begin = len(self._segments) - 1, self._size
            try:
                _write(self._segments[segment], line)
            except OSError:
                # A part of a line would corrupt the next one.
                os.ftruncate(self._segments[segment], begin)
                raise
            self._size += len(line)
            self._places[bytes.fromhex(response.key)] = (segment, begin, len(line))
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._segments[segment])
                self._synced = time.monotonic()

    def _path(self, number: int) -> Path:
        return self._folder / f"responses-{number:05d}.jsonl"

    def _open(self, path: Path) -> None:
        """Open a segment as the last one, and index its responses."""
        is_new = not path.exists()
        self._segments.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        if is_new:
            sync(self._folder)
        self._size = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                # If a line is not a response, e.g. after disk damage, its request is sent again.
                if key := _key_of(line):
                    self._places[key] = (len(self._segments) - 1, self._size, len(line))
                self._size += len(line)
        # A kill in the middle of a line leaves its beginning.
        os.ftruncate(self._segments[-1], self._size)

    def _read(self, segment: int, begin: int, size: int) -> StoredResponse:
        with disk_errors():
            return _decode(os.pread(self._segments[segment], size, begin))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _key_of(line: bytes) -> bytes | None:
    try:
        return bytes.fromhex(_decode(line).key)
    except (msgspec.DecodeError, ValueError):
        return None


_decode = msgspec.json.Decoder(StoredResponse).decode
_decode_failed = msgspec.json.Decoder(FailedRequests).decode
