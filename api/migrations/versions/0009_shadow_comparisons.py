"""comparisons of shadow adapters; receipts are found by their job; revoked keys of attempts are removed

Additive: a process of the previous release copies requests to shadows without judging them. A downgrade deletes the
comparisons.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "shadow_comparisons",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("incumbent_id", sa.String(length=160), nullable=False),
        sa.Column("candidate_id", sa.String(length=160), nullable=False),
        sa.Column("eval_id", sa.String(length=40), nullable=False),
        sa.Column("wins", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("ties", sa.Integer(), nullable=False),
        sa.Column("errored", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.String(length=64), nullable=True),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("worse_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(
            "tenant", "alias", "incumbent_id", "candidate_id", "eval_id", name=op.f("pk_shadow_comparisons")
        ),
    )
    op.create_index("ix_receipts_job_id", "receipts", ["job_id"])
    # Keys that attempts at jobs created for themselves are no longer recorded.
    op.execute("DELETE FROM api_keys WHERE job_id IS NOT NULL AND revoked_at IS NOT NULL")


def downgrade() -> None:
    op.drop_index("ix_receipts_job_id", "receipts")
    op.drop_table("shadow_comparisons")
