"""lists of jobs and files read a page, not the table

Additive.
"""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_index("ix_jobs_owner_id", "jobs", ["owner", "id"])
    op.create_index("ix_files_tenant_id", "files", ["tenant", "id"])


def downgrade() -> None:
    op.drop_index("ix_files_tenant_id", "files")
    op.drop_index("ix_jobs_owner_id", "jobs")
