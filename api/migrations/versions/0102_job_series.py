"""series of jobs: every step of learning rate, losses, speed and memory

A worker of the previous release sends none, so the curves of its jobs come from their events.
"""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    op.create_table(
        "job_series",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("chunk", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first_step", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("values", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_series_job_id")),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", "chunk", name=op.f("pk_job_series")),
    )


def downgrade() -> None:
    raise NotImplementedError("a backup from before the upgrade is restored instead (docs/operations.md)")
