"""Policies, receipts, and comparisons of copied requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Boolean, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base
from shared.database.tables.jobs import JobRow


class PolicyRow(Base):
    """A stored policy, which is never changed. A name refers to its newest one."""

    __tablename__ = "policies"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    policy: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(64))


class PolicyAssignmentRow(Base):
    """The policy that governs an alias, a tenant or the server. A removed one keeps its row, so that versions keep
    counting.
    """

    __tablename__ = "policy_assignments"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    scope: Mapped[str] = mapped_column(String(300), primary_key=True)
    policy: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    version: Mapped[int] = mapped_column(Integer)


class PolicyMoveRow(Base):
    """One change of an assignment: written with it, never changed."""

    __tablename__ = "policy_moves"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    scope: Mapped[str] = mapped_column(String(300), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    moved_at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(64))
    actor_id: Mapped[str] = mapped_column(String(40))
    reason: Mapped[str] = mapped_column(String(500))
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class ReceiptRow(Base):
    """Outcome of judging an adapter by a policy: written once, never changed. Moves are checked against its columns."""

    __tablename__ = "receipts"
    __table_args__ = (Index("ix_receipts_adapter_digest_policy_digest", "adapter_digest", "policy_digest"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey(JobRow.id), index=True)
    adapter_id: Mapped[str] = mapped_column(String(160), index=True)
    adapter_digest: Mapped[str] = mapped_column(String(64))
    incumbent_id: Mapped[str | None] = mapped_column(String(160))
    incumbent_digest: Mapped[str | None] = mapped_column(String(64))
    policy_digest: Mapped[str] = mapped_column(String(64))
    serving_digest: Mapped[str | None] = mapped_column(String(64))
    passed: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime]
    valid_until: Mapped[datetime]
    receipt: Mapped[dict[str, Any]]


class ShadowComparisonRow(Base):
    """Comparison of an adapter's answers to copied requests with those that the callers got: counts only."""

    __tablename__ = "shadow_comparisons"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    alias: Mapped[str] = mapped_column(String(64), primary_key=True)
    incumbent_id: Mapped[str] = mapped_column(String(160), primary_key=True)
    candidate_id: Mapped[str] = mapped_column(String(160), primary_key=True)
    eval_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    wins: Mapped[int] = mapped_column(Integer, default=0)
    losses: Mapped[int] = mapped_column(Integer, default=0)
    ties: Mapped[int] = mapped_column(Integer, default=0)
    errored: Mapped[int] = mapped_column(Integer, default=0)
    last_error: Mapped[str | None] = mapped_column(String(64))
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    worse_at: Mapped[datetime | None]
