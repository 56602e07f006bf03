"""Names that requests put into ``model``, and their moves."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base
from shared.database.tenancy import SHARED


class AliasRow(Base):
    """A name for a request's ``model``: an alias, which has an adapter, or a foreign name, which maps to another name.

    A deleted one keeps its row, with neither, so that its version keeps counting.
    """

    __tablename__ = "aliases"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True, server_default=SHARED)
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    adapter_id: Mapped[str | None] = mapped_column(String(160))
    moved_at: Mapped[datetime]
    version: Mapped[int] = mapped_column(Integer, server_default="1")
    routing: Mapped[dict[str, Any] | None]
    stands_for: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class AliasMoveRow(Base):
    """One move of an alias or a foreign name: written with the move, never changed."""

    __tablename__ = "alias_moves"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True, server_default=SHARED)
    alias: Mapped[str] = mapped_column(String(256), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    moved_at: Mapped[datetime]
    verb: Mapped[str] = mapped_column(String(16))
    actor: Mapped[str] = mapped_column(String(64))
    actor_id: Mapped[str] = mapped_column(String(40))
    reason: Mapped[str] = mapped_column(String(500))
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    gate: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
