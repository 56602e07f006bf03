"""index of jobs by tenant and state, from which the tabs of the job list are counted

A process of the previous release keeps it up to date without knowing it.
"""

from alembic import op

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    op.create_index("ix_jobs_owner_state", "jobs", ["owner", "state"])


def downgrade() -> None:
    raise NotImplementedError("a backup from before the upgrade is restored instead (docs/operations.md)")
