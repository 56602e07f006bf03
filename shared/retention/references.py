"""References from the database to the storage, each with the digest that its bytes must have."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.deletions import open_jobs
from shared.database.records import Kind, Value
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.files import FileRow, UploadPartRow, UploadRow
from shared.database.tables.jobs import JobRow
from shared.retention.checkpoints import STORED_CHECKPOINTS
from shared.retention.inventory import MODEL, MODEL_DELETED


class Reference(Value):
    """A stored object that a row names; ``name`` is the id of the row, or of the job that made it."""

    what: Literal["file", "part of an upload", "adapter", "merged model", "checkpoint"]
    name: str
    tenant: str
    digest: str


def references(database: Database) -> list[Reference]:
    """List the stored objects that rows of all tenants name, except adapters that are being deleted."""
    with database.read() as session:
        return [*_files(session), *_parts(session), *_adapters(session), *models(session), *_checkpoints(session)]


def models(session: Session) -> list[Reference]:
    """Return the merged models that jobs have made and that were not deleted."""
    merges = session.scalars(select(JobRow).where(JobRow.kind == Kind.MERGE).order_by(JobRow.id))
    return [
        Reference(what="merged model", name=job.id, tenant=job.tenant, digest=job.result[MODEL])
        for job in merges
        if MODEL in job.result and MODEL_DELETED not in job.result
    ]


def _files(session: Session) -> list[Reference]:
    rows = session.execute(select(FileRow.id, FileRow.tenant, FileRow.sha256).order_by(FileRow.id))
    return [Reference(what="file", name=name, tenant=tenant, digest=digest) for name, tenant, digest in rows]


def _parts(session: Session) -> list[Reference]:
    query = select(UploadPartRow.id, UploadRow.tenant, UploadPartRow.sha256).join(UploadRow).order_by(UploadPartRow.id)
    rows = session.execute(query)
    return [
        Reference(what="part of an upload", name=name, tenant=tenant, digest=digest) for name, tenant, digest in rows
    ]


def _adapters(session: Session) -> list[Reference]:
    stored = select(AdapterRow.id, AdapterRow.tenant, AdapterRow.digest).where(AdapterRow.deleting_at.is_(None))
    rows = session.execute(stored.order_by(AdapterRow.id, AdapterRow.tenant))
    return [Reference(what="adapter", name=name, tenant=tenant, digest=digest) for name, tenant, digest in rows]


def _checkpoints(session: Session) -> list[Reference]:
    return [
        Reference(what="checkpoint", name=f"{job.id}/{name}", tenant=job.tenant, digest=digest)
        for job in open_jobs(session)
        for name, digest in sorted(job.progress.get(STORED_CHECKPOINTS, {}).items())
    ]
