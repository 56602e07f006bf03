"""evals, their runs, and the outcome of each item; keys that are made for an attempt at a job

Additive: the previous release keeps working, but does not revoke the keys of attempts.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.add_column(sa.Column("job_id", sa.String(length=40), nullable=True))
        batch_op.add_column(sa.Column("attempt", sa.Integer(), nullable=True))
    op.create_index("ix_api_keys_job_id", "api_keys", ["job_id"])
    op.create_table(
        "evals",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evals")),
    )
    op.create_index("ix_evals_tenant", "evals", ["tenant"])
    op.create_table(
        "eval_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("eval_id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("totals", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_eval_runs_job_id")),
        sa.ForeignKeyConstraint(["eval_id"], ["evals.id"], name=op.f("fk_eval_runs_eval_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_eval_runs")),
    )
    op.create_index("ix_eval_runs_job_id", "eval_runs", ["job_id"])
    op.create_index("ix_eval_runs_eval_id_id", "eval_runs", ["eval_id", "id"])
    op.create_table(
        "eval_items",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["eval_runs.id"], name=op.f("fk_eval_items_run_id")),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_eval_items")),
    )
    op.create_index("ix_eval_items_run_id_status", "eval_items", ["run_id", "status", "position"])


def downgrade() -> None:
    op.drop_table("eval_items")
    op.drop_table("eval_runs")
    op.drop_table("evals")
    # The previous release does not know that they end with their attempt.
    op.execute("UPDATE api_keys SET revoked_at = created_at WHERE job_id IS NOT NULL AND revoked_at IS NULL")
    op.drop_index("ix_api_keys_job_id", "api_keys")
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.drop_column("attempt")
        batch_op.drop_column("job_id")
