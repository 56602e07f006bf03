"""jobs have the time of their last change, for one stream of all of them

Additive: a change by a process of the previous release has no event in that stream.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch_op:
        batch_op.add_column(sa.Column("changed_at", sa.BigInteger()))
        batch_op.create_index("ix_jobs_changed_at", ["changed_at"])


def downgrade() -> None:
    with op.batch_alter_table("jobs") as batch_op:
        batch_op.drop_index("ix_jobs_changed_at")
        batch_op.drop_column("changed_at")
