"""The registry: uploaded files, adapters and API keys. Aliases have a module of their own."""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import computed_field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shared.db import Database, whole_milliseconds
from shared.errors import Code, Conflict, NotFound, Unauthenticated
from shared.job import Value, new_id
from shared.jobstate import FINAL
from shared.tables import AdapterRow, AliasRow, FileRow, JobRow, KeyRow

KEY_PREFIX = "mens-"


class File(Value):
    """An uploaded or produced file."""

    id: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None


class Adapter(Value):
    """A stored adapter. ``final`` marks a job's result, the others are its checkpoints."""

    id: str
    digest: str
    base_model: str
    job_id: str
    step: int
    final: bool
    published: bool
    manifest: dict[str, Any]
    metrics: dict[str, Any]
    certificates: dict[str, Any]
    created_at: datetime

    @computed_field(description="published; stored: never certified; quarantined: certified, and a certificate failed.")  # type: ignore[prop-decorator]
    @property
    def state(self) -> Literal["published", "stored", "quarantined"]:
        if self.published:
            return "published"
        return "quarantined" if self.certificates else "stored"


class NewAdapter(Value):
    """An adapter that a job registers as it finishes."""

    id: str
    digest: str
    base_model: str
    step: int
    final: bool
    published: bool
    manifest: dict[str, Any]
    metrics: dict[str, Any] = {}
    certificates: dict[str, Any] = {}


class Key(Value):
    """An API key, without its secret."""

    id: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


class Registry:
    """Verbs of the registry; each is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    # -- files ----------------------------------------------------------------------------------------------------

    def add_file(self, filename: str, purpose: str, size: int, sha256: str, expires_at: datetime | None = None) -> File:
        """Record a stored blob of ``size`` bytes as a file."""
        with self._db.write() as session:
            row = add_file(session, filename, purpose, size, sha256, expires_at)
            return File.model_validate(row)

    def file(self, file_id: str) -> File:
        """Raises:
        NotFound: ``FILE_NOT_FOUND``.
        """
        with self._db.read() as session:
            return File.model_validate(_file_row(session, file_id))

    def files(self, *, after: str | None, limit: int, purpose: str | None, newest_first: bool) -> list[File]:
        """A page of files; ``after`` is the last id of the page before. One more than ``limit`` means there is more."""
        order = FileRow.id.desc() if newest_first else FileRow.id.asc()
        query = select(FileRow).order_by(order).limit(limit + 1)
        if after:
            query = query.where(FileRow.id < after if newest_first else FileRow.id > after)
        if purpose:
            query = query.where(FileRow.purpose == purpose)
        with self._db.read() as session:
            return [File.model_validate(row) for row in session.scalars(query)]

    def delete_file(self, file_id: str) -> str | None:
        """Forget a file.

        Returns:
            SHA-256 of its blob when no other file has the same content, so that the caller may delete it.

        Raises:
            NotFound: ``FILE_NOT_FOUND``. Conflict: ``FILE_IN_USE`` by a job that is not final.
        """
        with self._db.write() as session:
            row = _file_row(session, file_id, lock=True)
            _refuse_file_in_use(session, file_id)
            session.delete(row)
            session.flush()
            others = session.scalar(select(func.count()).select_from(FileRow).where(FileRow.sha256 == row.sha256))
            return None if others else row.sha256

    def delete_expired_files(self) -> list[str]:
        """Forget files whose time is over and that no unfinished job needs; returns their blobs' SHA-256 to delete."""
        query = select(FileRow.id).where(FileRow.expires_at < datetime.now(UTC))
        with self._db.read() as session:
            expired = list(session.scalars(query))
        blobs = []
        for file_id in expired:
            try:
                blobs.append(self.delete_file(file_id))
            except (Conflict, NotFound):  # still needed, or gone meanwhile
                continue
        return [sha256 for sha256 in blobs if sha256]

    # -- adapters -------------------------------------------------------------------------------------------------

    def adapter(self, name: str) -> Adapter:
        """An adapter by its id or by an alias: of several that share an alias, the one with the most weight.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``.
        """
        with self._db.read() as session:
            alias = session.get(AliasRow, name)
            row = session.get(AdapterRow, (alias.adapter_id if alias else None) or name)
            if row is None:
                raise NotFound(
                    Code.ADAPTER_NOT_FOUND,
                    f"There is no adapter or alias {name!r}.",
                    remedy="List what there is with GET /v1/models.",
                    param="model",
                )
            return Adapter.model_validate(row)

    def adapters(self, *, ids: list[str] | None = None, published_only: bool = False) -> list[Adapter]:
        """Adapters, newest first: all of them, or those with the given ids."""
        query = select(AdapterRow).order_by(AdapterRow.created_at.desc(), AdapterRow.step.desc())
        if ids is not None:
            query = query.where(AdapterRow.id.in_(ids))
        if published_only:
            query = query.where(AdapterRow.published)
        with self._db.read() as session:
            return [Adapter.model_validate(row) for row in session.scalars(query)]

    # -- keys -----------------------------------------------------------------------------------------------------

    def create_key(self, name: str) -> tuple[Key, str]:
        """Make an API key.

        Returns:
            the key's record, and the secret, which is stored only as a hash and can never be shown again.
        """
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        with self._db.write() as session:
            row = KeyRow(
                id=new_id("key"),
                name=name,
                secret_sha256=_hash(secret),
                created_at=whole_milliseconds(datetime.now(UTC)),
            )
            session.add(row)
            session.flush()
            return Key.model_validate(row), secret

    def all_keys(self) -> list[Key]:
        """All keys, oldest first."""
        with self._db.read() as session:
            return [Key.model_validate(row) for row in session.scalars(select(KeyRow).order_by(KeyRow.id))]

    def revoke_key(self, key_id: str) -> Key:
        """Raises:
        NotFound: ``KEY_INVALID``.
        """
        with self._db.write() as session:
            row = session.get(KeyRow, key_id)
            if row is None:
                raise NotFound(Code.KEY_INVALID, f"There is no key {key_id!r}.", remedy="List them: mens keys list.")
            row.revoked_at = row.revoked_at or whole_milliseconds(datetime.now(UTC))
            return Key.model_validate(row)

    def authenticate(self, secret: str) -> Key:
        """The key of a secret.

        Raises:
            Unauthenticated: ``KEY_INVALID``: unknown or revoked.
        """
        with self._db.read() as session:
            row = session.scalar(select(KeyRow).where(KeyRow.secret_sha256 == _hash(secret)))
            if row is None or row.revoked_at is not None:
                raise Unauthenticated(
                    Code.KEY_INVALID,
                    "The API key is not known, or it was revoked.",
                    remedy="Make one with `mens keys create NAME`.",
                )
            return Key.model_validate(row)


def add_file(
    session: Session, filename: str, purpose: str, size: int, sha256: str, expires_at: datetime | None = None
) -> FileRow:
    """Add a file inside the caller's transaction."""
    row = FileRow(
        id=new_id("file"),
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        created_at=whole_milliseconds(datetime.now(UTC)),
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row


def register_adapters(session: Session, job_id: str, adapters: list[NewAdapter], now: datetime) -> None:
    """Add a job's adapters inside the caller's transaction.

    One that is already there stays as it is, unless it is published or quarantined now and was not published before.
    """
    for adapter in adapters:
        row = session.get(AdapterRow, adapter.id, with_for_update=True)
        if row is None:
            session.add(AdapterRow(job_id=job_id, created_at=now, **adapter.model_dump()))
        elif not row.published and (adapter.published or adapter.certificates):
            row.published, row.certificates = adapter.published, adapter.certificates
    session.flush()


def _file_row(session: Session, file_id: str, *, lock: bool = False) -> FileRow:
    row = session.get(FileRow, file_id, with_for_update=lock)
    if row is None:
        raise NotFound(
            Code.FILE_NOT_FOUND,
            f"There is no file {file_id!r}.",
            remedy="Upload it with POST /v1/files and use the id it returns.",
            param="file_id",
        )
    return row


def _refuse_file_in_use(session: Session, file_id: str) -> None:
    open_jobs = session.scalars(select(JobRow).where(JobRow.state.not_in([str(state) for state in FINAL])))
    for job in open_jobs:
        if file_id in [job.extra.get(role) for role in ("training_file", "validation_file", "replay_file")]:
            raise Conflict(
                Code.FILE_IN_USE,
                f"The job {job.id} still needs the file {file_id}.",
                remedy="Wait until it is done, or cancel it.",
            )


def _hash(secret: str) -> str:
    """Keys are 256 random bits, so a plain hash is enough: there is no dictionary to guess from."""
    return hashlib.sha256(secret.encode()).hexdigest()
