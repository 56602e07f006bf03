"""keys have a tenant, a role and limits; files, jobs, adapters and aliases have a tenant; usage; deleted adapters

Existing rows become the tenant ``shared``'s, and its keys become admins: one team sees no difference. A worker of the
previous release keeps working: its rows belong to ``shared``.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TENANT = {"type_": sa.String(length=64), "server_default": "shared", "nullable": False}


def upgrade() -> None:
    with op.batch_alter_table("aliases") as batch_op:
        batch_op.drop_constraint("fk_aliases_adapter_id", type_="foreignkey")
        batch_op.add_column(sa.Column("tenant", **TENANT))
        batch_op.drop_constraint("pk_aliases", type_="primary")
        batch_op.create_primary_key("pk_aliases", ["tenant", "name"])
    with op.batch_alter_table("alias_moves") as batch_op:
        batch_op.add_column(sa.Column("tenant", **TENANT))
        batch_op.drop_constraint("pk_alias_moves", type_="primary")
        batch_op.create_primary_key("pk_alias_moves", ["tenant", "alias", "version"])
    with op.batch_alter_table("adapters") as batch_op:
        batch_op.add_column(sa.Column("tenant", **TENANT))
        batch_op.add_column(sa.Column("deleting_at", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("deleted_at", sa.BigInteger(), nullable=True))
        batch_op.drop_constraint("pk_adapters", type_="primary")
        batch_op.create_primary_key("pk_adapters", ["tenant", "id"])
        batch_op.create_index("ix_adapters_digest", ["digest"])
    with op.batch_alter_table("files") as batch_op:
        batch_op.add_column(sa.Column("tenant", **TENANT))
    with op.batch_alter_table("jobs") as batch_op:  # a job's owner, never set before, is its tenant now (`OwnerTenant`)
        batch_op.alter_column("owner", type_=sa.String(length=64), existing_nullable=False)
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.add_column(sa.Column("tenant", **TENANT))
        batch_op.add_column(sa.Column("role", sa.String(length=16), server_default="admin", nullable=False))
        batch_op.add_column(sa.Column("requests_per_minute", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("concurrent_requests", sa.Integer(), nullable=True))
    _make_new_tables()


def _make_new_tables() -> None:
    op.create_table(
        "usage",
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=160), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "key_id", "model", name=op.f("pk_usage")),
    )
    op.create_index("ix_usage_tenant", "usage", ["tenant"])
    op.create_table(
        "changes",
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("what", name=op.f("pk_changes")),
    )


def downgrade() -> None:
    op.drop_table("changes")
    op.drop_index("ix_usage_tenant", "usage")
    op.drop_table("usage")
    op.execute(sa.text("DELETE FROM api_keys WHERE tenant <> 'shared' OR role <> 'admin'"))  # any key could do anything
    op.execute(sa.text("UPDATE adapters SET published = false WHERE deleting_at IS NOT NULL"))
    # Another tenant's data must not become public; its jobs stay because of the adapters' foreign key, but are inert.
    op.execute(
        sa.text(
            "UPDATE jobs SET state = 'cancelled', lease_owner = NULL WHERE owner <> 'default' AND finished_at IS NULL"
        )
    )
    for table in ("alias_moves", "aliases", "adapters", "files"):
        tenants = sa.table(table, sa.column("tenant"))
        op.execute(tenants.delete().where(tenants.c.tenant != "shared"))
    with op.batch_alter_table("api_keys") as batch_op:
        for column in ("concurrent_requests", "requests_per_minute", "role", "tenant"):
            batch_op.drop_column(column)
    with op.batch_alter_table("files") as batch_op:
        batch_op.drop_column("tenant")
    with op.batch_alter_table("adapters") as batch_op:
        batch_op.drop_index("ix_adapters_digest")
        batch_op.drop_constraint("pk_adapters", type_="primary")
        for column in ("deleted_at", "deleting_at", "tenant"):
            batch_op.drop_column(column)
        batch_op.create_primary_key("pk_adapters", ["id"])
    with op.batch_alter_table("alias_moves") as batch_op:
        batch_op.drop_constraint("pk_alias_moves", type_="primary")
        batch_op.drop_column("tenant")
        batch_op.create_primary_key("pk_alias_moves", ["alias", "version"])
    with op.batch_alter_table("aliases") as batch_op:
        batch_op.drop_constraint("pk_aliases", type_="primary")
        batch_op.drop_column("tenant")
        batch_op.create_primary_key("pk_aliases", ["name"])
        batch_op.create_foreign_key("fk_aliases_adapter_id", "adapters", ["adapter_id"], ["id"])
