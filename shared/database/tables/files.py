"""Files, and uploads in parts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base
from shared.database.tenancy import SHARED


class FileRow(Base):
    __tablename__ = "files"
    __table_args__ = (
        Index("uq_files_tenant_idempotency_key", "tenant", "idempotency_key", unique=True),
        Index("ix_files_tenant_id", "tenant", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    tenant: Mapped[str] = mapped_column(String(64), server_default=SHARED)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str | None] = mapped_column(String(64))


class UploadRow(Base):
    """An upload in parts. It accepts parts while it is pending, and keeps its row for a while afterwards."""

    __tablename__ = "uploads"
    __table_args__ = (Index("uq_uploads_tenant_idempotency_key", "tenant", "idempotency_key", unique=True),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    filename: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    file_seconds: Mapped[int | None] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str | None] = mapped_column(String(64))
    file_id: Mapped[str | None] = mapped_column(String(40))
    completion_digest: Mapped[str | None] = mapped_column(String(64))


class UploadPartRow(Base):
    """A part of an upload, whose content is a blob. The same content is one part, however often it was sent."""

    __tablename__ = "upload_parts"
    __table_args__ = (Index("uq_upload_parts_upload_id_sha256", "upload_id", "sha256", unique=True),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id"))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime]
