"""The archive: a folder of raw response bodies, readable only by its owner, and the index that describes each one.

A body is written to a temporary file and renamed; then a line of the journal records it. At the end, the journal is
merged into the manifest. So a run that is killed at any point leaves an archive that the next run completes; except for
its times, the result equals that of an uninterrupted run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import quote

import msgspec

from shared.errors import ArtifactInvalid, Code, Conflict
from shared.hashing import CHUNK_BYTES

MANIFEST, JOURNAL, INVENTORY, RAW = "manifest.json", "journal.jsonl", "inventory.json", "raw"
_PARTIAL, _LOCK = ".partial", ".lock"
SECRECY = (
    "It contains unchanged prompts, answers and training rows, so it is as confidential as your training data. Only "
    "you can read "
    "its files on this machine; protect copies equally. It contains no keys."
)


class ArchiveEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request and its outcome.

    Attributes:
        file: path of the body in the archive; empty if the request was refused.
        code: OpenAI's code of a refusal, or ``not_json`` for a body that is not JSON.
    """

    project: str
    method: str
    path: str
    query: dict[str, str]
    status: int
    fetched_at: str
    file: str = ""
    sha256: str = ""
    bytes: int = 0
    code: str = ""
    message: str = ""

    @property
    def key(self) -> str:
        return request_key(self.project, self.method, self.path, self.query)

    @property
    def is_refused(self) -> bool:
        return not self.file


class Manifest(msgspec.Struct, frozen=True):
    """The index of an archive, by request.

    Attributes:
        unfinished: by project, the reason why it could not be read completely; empty if everything was read.
    """

    finished_at: str
    unfinished: dict[str, str]
    requests: list[ArchiveEntry]
    format: Literal["mens-openai-archive/1"] = "mens-openai-archive/1"


def request_key(project: str, method: str, path: str, query: Mapping[str, str]) -> str:
    """Return the key that identifies equal requests."""
    return " ".join([project, method, path, *(f"{name}={query[name]}" for name in sorted(query))])


def safe_name(name: str) -> str:
    """Return a file name for an id that OpenAI chose: it cannot leave the folder and is not hidden."""
    return re.sub(r"^\.", "%2E", quote(name, safe=""))


def file_name(*names: str) -> str:
    """Return the path of a body in the archive."""
    return "/".join([RAW, *map(safe_name, names)])


class Archive:
    """An archive that is being written; a context manager, because only one process may write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, ArchiveEntry] = {}

    def __enter__(self) -> Archive:
        if self.folder.exists() and any(self.folder.iterdir()) and not is_archive(self.folder):
            raise ArtifactInvalid(
                Code.ARCHIVE_INVALID,
                f"{self.folder} contains other files.",
                remedy="Name a new folder, or an existing archive.",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._lock = os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Conflict(
                Code.ARCHIVE_INVALID, f"Another process is writing to {self.folder}.", remedy="Wait until it has ended."
            ) from None
        self._entries = read_entries(self.folder)
        self._journal = _open_journal(self.folder / JOURNAL)
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        os.close(self._lock)

    def find(self, key: str) -> ArchiveEntry | None:
        """Return the entry of a request whose body is here; None if the request was never sent or was refused, or its
        body is lost.
        """
        entry = self._entries.get(key)
        if entry is None or entry.is_refused:
            return None
        path = self.folder / entry.file
        return entry if path.is_file() and path.stat().st_size == entry.bytes else None

    def entries(self) -> list[ArchiveEntry]:
        """Return every request, by project, path and page."""
        return sorted(self._entries.values(), key=lambda entry: (entry.key, entry.file))

    @contextmanager
    def body(self) -> Iterator[BinaryIO]:
        """Yield an empty private file for a body that is being received."""
        path = self.folder / _PARTIAL
        try:
            with open_private(path) as file:
                yield file
        finally:
            # A refusal may quote a part of the key.
            path.unlink(missing_ok=True)

    def add(self, entry: ArchiveEntry, body: BinaryIO | None) -> ArchiveEntry:
        """Store a body under the entry's file name, and then the entry with the body's size and digest."""
        if body is not None:
            body.flush()
            os.fsync(body.fileno())
            path = self.folder / entry.file
            make_private(path.parent, self.folder)
            (self.folder / _PARTIAL).replace(path)
            entry = msgspec.structs.replace(entry, bytes=path.stat().st_size, sha256=_digest(body))
        self._journal.write(msgspec.json.encode(entry) + b"\n")
        # Not synced: an entry that a power cut loses is fetched again.
        self._journal.flush()
        self._entries[entry.key] = entry
        return entry

    def finish(self, unfinished: Mapping[str, str] | None = None) -> None:
        """Write the manifest, merging the journal into it.

        Args:
            unfinished: as in :class:`Manifest`; None keeps the current value.
        """
        remaining = _read_manifest(self.folder).unfinished if unfinished is None else dict(unfinished)
        manifest = Manifest(now(), remaining, self.entries())
        write_private(self.folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        self._journal.seek(0)
        self._journal.truncate()


def is_archive(folder: Path) -> bool:
    """Return whether a folder is a finished or unfinished archive."""
    return any((folder / name).is_file() for name in (MANIFEST, JOURNAL, INVENTORY, _LOCK))


def is_finished(folder: Path) -> bool:
    """Return whether the last run on an archive read every project completely."""
    journal = folder / JOURNAL
    if not (folder / MANIFEST).is_file() or (journal.is_file() and journal.stat().st_size):
        return False
    return not _read_manifest(folder).unfinished


def read_entries(folder: Path) -> dict[str, ArchiveEntry]:
    """Return the entries of an archive by request; the journal is newer than the manifest.

    Raises:
        ArtifactInvalid: manifest or journal cannot be read.
    """
    entries = _read_manifest(folder).requests
    if (folder / JOURNAL).is_file():
        # A line without its end was being written when its process was killed.
        lines = (folder / JOURNAL).read_bytes().rpartition(b"\n")[0].splitlines()
        try:
            entries += [msgspec.json.decode(line, type=ArchiveEntry) for line in lines]
        except msgspec.DecodeError as error:
            raise _unreadable(folder / JOURNAL, error) from None
    return {entry.key: entry for entry in entries}


def _read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an archive; return an empty one if no run has finished yet."""
    if not (folder / MANIFEST).is_file():
        return Manifest("", {}, [])
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise _unreadable(folder / MANIFEST, error) from None


def _unreadable(path: Path, error: Exception) -> ArtifactInvalid:
    message = f"The index {path} cannot be read: {error}."
    return ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Use a copy, or export into a new folder.")


def open_private(path: Path) -> BinaryIO:
    """Open a new empty file that only its owner can read, replacing an existing one."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b")


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner."""
    partial = path.with_name(f".{path.name}.partial")
    with open_private(partial) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with :func:`write_private`."""
    write_private(path, msgspec.json.format(msgspec.json.encode(value)) + b"\n")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _open_journal(path: Path) -> BinaryIO:
    file = os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+b")
    content = file.read()
    # The next line must not continue an incomplete one.
    file.seek(content.rfind(b"\n") + 1)
    file.truncate()
    return file


def make_private(folder: Path, root: Path) -> None:
    """Create a folder inside an archive, with its parents, readable only by their owner."""
    for path in reversed([folder, *folder.parents]):
        if path.is_relative_to(root):
            path.mkdir(mode=0o700, exist_ok=True)


def _digest(file: BinaryIO) -> str:
    sha256 = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        sha256.update(chunk)
    return sha256.hexdigest()
