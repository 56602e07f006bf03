"""permissions of one tenant for another one's adapter

Additive: a process of the previous release shows and routes to lent adapters like any others. A downgrade deletes the
lenders.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "checkpoint_permissions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("adapter_id", sa.String(length=160), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_permissions")),
        sa.UniqueConstraint(
            "tenant", "adapter_id", "project", name=op.f("uq_checkpoint_permissions_tenant_adapter_id_project")
        ),
    )


def downgrade() -> None:
    op.drop_table("checkpoint_permissions")
