"""lists of adapters read a page, not the table

Additive.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    kept = sa.text("deleting_at IS NULL")
    columns = ["tenant", "created_at", "step", "id"]
    op.create_index("ix_adapters_tenant_newest", "adapters", columns, sqlite_where=kept, postgresql_where=kept)


def downgrade() -> None:
    op.drop_index("ix_adapters_tenant_newest", "adapters")
