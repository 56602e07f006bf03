"""The registry: uploaded files and adapters. Keys and aliases have modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import computed_field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shared.changes import bump
from shared.db import Database, whole_milliseconds
from shared.errors import Code, Conflict, NotFound
from shared.job import Value, new_id
from shared.jobstate import FINAL
from shared.lookup import adapter_row, adapters_by_id, alias_rows, storable
from shared.tables import AdapterRow, FileRow, JobRow
from shared.tenancy import SHARED, TenantName, check_owner, visible_to


class File(Value):
    """An uploaded or produced file."""

    id: str
    filename: str
    purpose: str
    bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None
    tenant: str


class Adapter(Value):
    """A stored adapter. ``final`` marks a job's result, the others are its checkpoints."""

    id: str
    tenant: str
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
    deleting_at: datetime | None
    deleted_at: datetime | None

    @computed_field(  # type: ignore[prop-decorator]
        description="published; stored: never certified; quarantined: certified, and a certificate failed; "
        "deleting: nobody is routed to it any more; deleted: its files are gone."
    )
    @property
    def state(self) -> Literal["published", "stored", "quarantined", "deleting", "deleted"]:
        if self.deleting_at:
            return "deleted" if self.deleted_at else "deleting"
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


class Registry:
    """The registry as a tenant sees it: its own files and adapters, and those of ``shared``. Each verb is one transaction."""

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant
        self._tenants = visible_to(tenant)

    def of(self, tenant: TenantName) -> Registry:
        """The registry as another tenant sees it."""
        return Registry(self._db, tenant)

    # -- files ----------------------------------------------------------------------------------------------------

    def add_file(self, filename: str, purpose: str, size: int, sha256: str, expires_at: datetime | None = None) -> File:
        """Record a stored blob of ``size`` bytes as a file."""
        with self._db.write() as session:
            row = add_file(session, self._tenant, filename, purpose, size, sha256, expires_at)
            return File.model_validate(row)

    def file(self, file_id: str, field: str = "file_id") -> File:
        """A file, by its id.

        Args:
            field: where the caller wrote the id.

        Raises:
            NotFound: ``FILE_NOT_FOUND``.
        """
        with self._db.read() as session:
            return File.model_validate(self._file_row(session, file_id, field))

    def files(self, *, after: str | None, limit: int, purpose: str | None, newest_first: bool) -> list[File]:
        """A page of files; ``after`` is the last id of the page before. One more than ``limit`` means there is more."""
        order = FileRow.id.desc() if newest_first else FileRow.id.asc()
        query = select(FileRow).where(FileRow.tenant.in_(self._tenants)).order_by(order).limit(limit + 1)
        if after:
            query = query.where(FileRow.id < after if newest_first else FileRow.id > after)
        if purpose:
            query = query.where(FileRow.purpose == purpose)
        with self._db.read() as session:
            return [File.model_validate(row) for row in session.scalars(query)]

    def delete_file(self, file_id: str, remove: Callable[[str], object] = lambda _: None) -> str | None:
        """Forget a file.

        Args:
            remove: called with the SHA-256 of its blob when no other file has the same content; whoever adds one meanwhile
                waits. It must be quick.

        Returns:
            that SHA-256; None when the blob stays.

        Raises:
            NotFound: ``FILE_NOT_FOUND``. Forbidden: ``TENANT_FORBIDDEN``. Conflict: ``FILE_IN_USE`` by a job that is not
                final, of whatever tenant.
        """
        with self._db.write() as session:
            row = self._file_row(session, file_id, lock=True)
            check_owner(f"The file {file_id}", row.tenant, self._tenant)
            self._refuse_file_in_use(session, file_id)
            _hold_content(session, row.sha256)
            session.delete(row)
            session.flush()
            if session.scalar(select(func.count()).select_from(FileRow).where(FileRow.sha256 == row.sha256)):
                return None
            remove(row.sha256)
            return row.sha256

    def delete_expired_files(self, remove: Callable[[str], object] = lambda _: None) -> list[str]:
        """Forget every tenant's files whose time is over and that no unfinished job needs.

        Args:
            remove: see :meth:`delete_file`.

        Returns:
            SHA-256 of the blobs that no file needs any more.
        """
        query = select(FileRow.id, FileRow.tenant).where(FileRow.expires_at < datetime.now(UTC))
        with self._db.read() as session:
            expired = list(session.execute(query))
        blobs = []
        for file_id, tenant in expired:
            try:
                blobs.append(self.of(tenant).delete_file(file_id, remove))
            except (Conflict, NotFound):  # still needed, or gone meanwhile
                continue
        return [sha256 for sha256 in blobs if sha256]

    # -- adapters -------------------------------------------------------------------------------------------------

    def adapter(self, name: str, *, deleted: bool = False) -> Adapter:
        """An adapter by its id or by an alias: of several that share an alias, the one with the most weight.

        Args:
            deleted: whether one that is being deleted or was is found too: its record stays.

        Raises:
            NotFound: ``ADAPTER_NOT_FOUND``.
        """
        with self._db.read() as session:
            aliased = [alias.adapter_id for alias in alias_rows(session, self._tenants, name)]
            row = adapter_row(session, self._tenants, next(iter(aliased), None) or name, deleted=deleted)
            if row is None:
                raise NotFound(
                    Code.ADAPTER_NOT_FOUND,
                    f"There is no adapter or alias {name!r}.",
                    remedy="List what there is with GET /v1/models.",
                    param="model",
                )
            return Adapter.model_validate(row)

    def adapters(self, *, ids: list[str] | None = None, published_only: bool = False) -> list[Adapter]:
        """Adapters, newest first: all of them, or those with the given ids; none that is being deleted."""
        query = select(AdapterRow).where(AdapterRow.tenant.in_(self._tenants), AdapterRow.deleting_at.is_(None))
        query = query.order_by(AdapterRow.created_at.desc(), AdapterRow.step.desc())
        if ids is not None:
            query = query.where(AdapterRow.id.in_(ids))
        if published_only:
            query = query.where(AdapterRow.published)
        with self._db.read() as session:
            rows = adapters_by_id(session.scalars(query), self._tenants)
            return [Adapter.model_validate(row) for row in rows.values()]

    def _file_row(self, session: Session, file_id: str, field: str = "file_id", *, lock: bool = False) -> FileRow:
        row = session.get(FileRow, storable(file_id), with_for_update=lock)
        if row is None or row.tenant not in self._tenants:
            raise NotFound(
                Code.FILE_NOT_FOUND,
                f"There is no file {file_id!r}.",
                remedy="Upload it with POST /v1/files and use the id it returns.",
                param=field,
            )
        return row

    def _refuse_file_in_use(self, session: Session, file_id: str) -> None:
        open_jobs = select(JobRow).where(JobRow.state.not_in([str(state) for state in FINAL]))
        for job in session.scalars(open_jobs):
            if file_id in [job.extra.get(role) for role in ("training_file", "validation_file", "replay_file")]:
                who = f"The job {job.id}" if job.tenant in self._tenants else "A job of another tenant"
                raise Conflict(
                    Code.FILE_IN_USE,
                    f"{who} still needs the file {file_id}.",
                    remedy="Wait until it is done, or cancel it.",
                )


def add_file(
    session: Session,
    tenant: TenantName,
    filename: str,
    purpose: str,
    size: int,
    sha256: str,
    expires_at: datetime | None = None,
) -> FileRow:
    """Add a file inside the caller's transaction. Its blob may have been removed just before, so look at it afterwards."""
    _hold_content(session, sha256)
    row = FileRow(
        id=new_id("file"),
        tenant=tenant,
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


def register_adapters(
    session: Session, tenant: TenantName, job_id: str, adapters: list[NewAdapter], now: datetime
) -> None:
    """Add a job's adapters to its tenant's, inside the caller's transaction.

    One that is already there stays as it is, unless it is published or quarantined now and was not published before. One
    that was deleted is there again.
    """
    for adapter in sorted(adapters, key=lambda adapter: adapter.id):  # rows are locked in the order of their ids
        row = session.get(AdapterRow, (tenant, adapter.id), with_for_update=True)
        if row is not None and row.deleting_at is not None:
            session.delete(row)
            session.flush()
            row = None
        if row is None:
            session.add(AdapterRow(tenant=tenant, job_id=job_id, created_at=now, **adapter.model_dump()))
        elif not row.published and (adapter.published or adapter.certificates):
            row.published, row.certificates = adapter.published, adapter.certificates
    session.flush()
    if adapters:
        bump(session, "adapters")


def _hold_content(session: Session, sha256: str) -> None:
    """Adding and removing files of one content wait for each other until the transaction ends; on SQLite all writers do."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(sha256, 0))))
