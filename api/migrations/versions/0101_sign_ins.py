"""sign-ins to the console, and codes for them

A process of the previous release does not know these tables, and refuses requests of people who are signed in as it refuses all
requests without a key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"


def upgrade() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("cookie_sha256", sa.String(length=64), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_ins")),
        sa.UniqueConstraint("cookie_sha256", name=op.f("uq_sign_ins_cookie_sha256")),
    )
    op.create_index(op.f("ix_sign_ins_tenant"), "sign_ins", ["tenant"])
    op.create_index(op.f("ix_sign_ins_key_id"), "sign_ins", ["key_id"])
    op.create_index(op.f("ix_sign_ins_expires_at"), "sign_ins", ["expires_at"])
    op.create_table(
        "sign_in_codes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("code_sha256", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_in_codes")),
        sa.UniqueConstraint("code_sha256", name=op.f("uq_sign_in_codes_code_sha256")),
    )
    op.create_index(op.f("ix_sign_in_codes_expires_at"), "sign_in_codes", ["expires_at"])


def downgrade() -> None:
    raise NotImplementedError("a backup from before the upgrade is restored instead (docs/operations.md)")
