"""aliases are split, shadowed and versioned, and every move of one is recorded

Additive: a worker of the previous release may still move an alias by its ``adapter_id`` alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ALIASES = sa.table("aliases", sa.column("name"), sa.column("adapter_id"), sa.column("moved_at"))
WITHOUT_HISTORY = "It was there before moves were recorded."


def upgrade() -> None:
    with op.batch_alter_table("aliases", schema=None) as batch_op:
        batch_op.alter_column("adapter_id", existing_type=sa.String(length=160), nullable=True)
        batch_op.add_column(sa.Column("version", sa.Integer(), server_default="1", nullable=False))
        batch_op.add_column(sa.Column("routing", sa.JSON(), nullable=True))

    moves = op.create_table(
        "alias_moves",
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved_at", sa.BigInteger(), nullable=False),
        sa.Column("verb", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("actor_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("alias", "version", name=op.f("pk_alias_moves")),
    )
    for name, adapter_id, moved_at in op.get_bind().execute(sa.select(ALIASES)).all():
        move = {"alias": name, "version": 1, "moved_at": moved_at, "verb": "set", "reason": WITHOUT_HISTORY}
        move |= {"actor": "migration", "actor_id": "migration", "before": None}
        move |= {"after": {"targets": [{"adapter": adapter_id, "weight": 100}], "shadow": None}}
        op.bulk_insert(moves, [move])


def downgrade() -> None:
    op.drop_table("alias_moves")
    op.execute(sa.text("DELETE FROM aliases WHERE adapter_id IS NULL"))
    with op.batch_alter_table("aliases", schema=None) as batch_op:
        batch_op.drop_column("routing")
        batch_op.drop_column("version")
        batch_op.alter_column("adapter_id", existing_type=sa.String(length=160), nullable=False)
