"""Tables of evals, their runs and their items' results."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from shared.database.tables.base import Base
from shared.database.tables.jobs import JobRow


class EvalRow(Base):
    """An eval: a data source and the criteria that judge answers to it."""

    __tablename__ = "evals"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(256))
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class EvalRunRow(Base):
    """A run of an eval, which a job carries out; an ``evaluate`` job's run has the job's id."""

    __tablename__ = "eval_runs"
    __table_args__ = (Index("ix_eval_runs_eval_id_id", "eval_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey(JobRow.id), index=True)
    eval_id: Mapped[str] = mapped_column(ForeignKey("evals.id"))
    tenant: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(256))
    plan: Mapped[dict[str, Any]]
    totals: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]


class EvalItemRow(Base):
    """Result of one item of a run. ``position`` counts the run's items, or their answers if an item has several."""

    __tablename__ = "eval_items"
    __table_args__ = (Index("ix_eval_items_run_id_status", "run_id", "status", "position"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("eval_runs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    status: Mapped[str] = mapped_column(String(8))
    result: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
