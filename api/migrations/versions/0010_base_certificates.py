"""certificates of merged models that replicas serve as their base

Additive: a process of the previous release offers every base of the catalogue. A downgrade deletes the certificates,
which are then measured again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "base_certificates",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("replica", sa.String(length=64), nullable=False),
        sa.Column("instance", sa.String(length=64), nullable=True),
        sa.Column("certificate", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "replica", name=op.f("pk_base_certificates")),
    )


def downgrade() -> None:
    op.drop_table("base_certificates")
