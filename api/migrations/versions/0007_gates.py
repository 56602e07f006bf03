"""policies, their assignments, and receipts; alias moves record the evidence that they rest on

Additive: a process of the previous release moves aliases without requiring receipts, so policies are assigned only
after all processes are upgraded. A downgrade deletes policies and receipts.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "policies",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", "digest", name=op.f("pk_policies")),
    )
    op.create_table(
        "policy_assignments",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=300), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", name=op.f("pk_policy_assignments")),
    )
    op.create_table(
        "policy_moves",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=300), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("actor_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "scope", "version", name=op.f("pk_policy_moves")),
    )
    op.create_table(
        "receipts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("adapter_id", sa.String(length=160), nullable=False),
        sa.Column("adapter_digest", sa.String(length=64), nullable=False),
        sa.Column("incumbent_id", sa.String(length=160), nullable=True),
        sa.Column("incumbent_digest", sa.String(length=64), nullable=True),
        sa.Column("policy_digest", sa.String(length=64), nullable=False),
        sa.Column("serving_digest", sa.String(length=64), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("valid_until", sa.BigInteger(), nullable=False),
        sa.Column("receipt", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_receipts_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_receipts")),
    )
    op.create_index("ix_receipts_adapter_id", "receipts", ["adapter_id"])
    op.create_index("ix_receipts_adapter_digest_policy_digest", "receipts", ["adapter_digest", "policy_digest"])
    with op.batch_alter_table("alias_moves") as batch_op:
        batch_op.add_column(sa.Column("gate", sa.JSON(), nullable=True))
    # Locked by moves and by changes of policies, so it must exist before the first of either.
    op.execute("INSERT INTO changes (what, count) VALUES ('policies', 0)")


def downgrade() -> None:
    op.execute("DELETE FROM changes WHERE what = 'policies'")
    with op.batch_alter_table("alias_moves") as batch_op:
        batch_op.drop_column("gate")
    for table in ("receipts", "policy_moves", "policy_assignments", "policies"):
        op.drop_table(table)
