"""A blob that is being received: a temporary file that is hashed while it is written. Shared by the writers of all
storages.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, Self

from shared.host import disk_errors


class TemporaryBlob(ABC):
    """The common part of a writer of one blob (:class:`shared.artifacts.storage.BlobWriter`): everything except where
    the bytes are finally stored.

    Args:
        file: local temporary file, open for writing; it is closed at the end of the block.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        with disk_errors():
            self._file.write(chunk)
        self._sha256.update(chunk)
        self.size += len(chunk)

    @abstractmethod
    def finish(self) -> str: ...

    @abstractmethod
    def commit(self) -> str: ...

    @abstractmethod
    def _discard(self) -> None:
        """Remove the file unless it was committed; called once, at the end of the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing flushes the buffer again, so a disk that is full fails here a second time.
        with suppress(OSError):
            self._file.close()
        self._discard()
