"""the ends of failed attempts' logs

Additive.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "attempt_logs",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempt_logs_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_attempt_logs")),
    )


def downgrade() -> None:
    op.drop_table("attempt_logs")
