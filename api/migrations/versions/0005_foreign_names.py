"""names of another provider stand for aliases, adapters and bases

Additive: for a process of the previous release, a foreign name is an alias that was deleted.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

ALIAS_LENGTH, NAME_LENGTH = 64, 256


def upgrade() -> None:
    with op.batch_alter_table("aliases") as batch_op:
        batch_op.alter_column("name", type_=sa.String(NAME_LENGTH), existing_nullable=False)
        batch_op.add_column(sa.Column("stands_for", sa.JSON(), nullable=True))
    with op.batch_alter_table("alias_moves") as batch_op:
        batch_op.alter_column("alias", type_=sa.String(NAME_LENGTH), existing_nullable=False)


def downgrade() -> None:
    """Delete foreign names, and the moves of names that once were foreign: the previous release cannot read them."""
    names = sa.table(
        "aliases", sa.column("tenant"), sa.column("name"), sa.column("stands_for"), sa.column("adapter_id")
    )
    moves = sa.table("alias_moves", sa.column("tenant"), sa.column("alias"))
    connection = op.get_bind()
    was_foreign = sa.text(
        "SELECT DISTINCT tenant, alias FROM alias_moves"
        " WHERE CAST(before AS TEXT) LIKE '%\"kind\"%' OR CAST(after AS TEXT) LIKE '%\"kind\"%'"
    )
    for tenant, name in connection.execute(was_foreign).all():
        connection.execute(moves.delete().where(moves.c.tenant == tenant, moves.c.alias == name))
        gone = names.delete().where(names.c.tenant == tenant, names.c.name == name, names.c.adapter_id.is_(None))
        connection.execute(gone)
    with op.batch_alter_table("alias_moves") as batch_op:
        batch_op.alter_column("alias", type_=sa.String(ALIAS_LENGTH), existing_nullable=False)
    with op.batch_alter_table("aliases") as batch_op:
        batch_op.drop_column("stands_for")
        batch_op.alter_column("name", type_=sa.String(ALIAS_LENGTH), existing_nullable=False)
