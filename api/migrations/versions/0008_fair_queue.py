"""priorities and limits of jobs, GPU time of attempts, quotas of tenants

Additive. A worker of the previous release claims the job that its message names, whatever its place and its tenant's
quota; its run time is not counted. A downgrade deletes priorities, quotas and counts.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def job_columns() -> tuple["sa.Column[Any]", ...]:
    """Return the new columns of jobs, created for each use: a column belongs to one table."""
    return (
        sa.Column("priority", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("max_wall_seconds", sa.Float(), nullable=True),
        sa.Column("max_gpu_minutes", sa.Float(), nullable=True),
        sa.Column("expected_seconds", sa.Float(), nullable=True),
        sa.Column("queued_at", sa.BigInteger(), nullable=True),
        sa.Column("estimated_start_at", sa.BigInteger(), nullable=True),
        sa.Column("estimated_at", sa.BigInteger(), nullable=True),
    )


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch_op:
        for column in job_columns():
            batch_op.add_column(column)
    op.create_table(
        "gpu_time",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("base_model", sa.String(length=128), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("held", sa.Float(), nullable=False),
        sa.Column("used", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_gpu_time_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_gpu_time")),
    )
    op.create_index("ix_gpu_time_tenant_started_at", "gpu_time", ["tenant", "started_at"])
    op.create_index("ix_gpu_time_kind_base_model", "gpu_time", ["kind", "base_model", "ended_at"])
    op.create_index("ix_gpu_time_ended_at", "gpu_time", ["ended_at"])
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("running_jobs", sa.Integer(), nullable=True),
        sa.Column("queued_jobs", sa.Integer(), nullable=True),
        sa.Column("gpu_minutes_per_month", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_tenant_quotas")),
    )


def downgrade() -> None:
    op.drop_table("tenant_quotas")
    op.drop_table("gpu_time")
    with op.batch_alter_table("jobs") as batch_op:
        for column in job_columns():
            batch_op.drop_column(column.name)
