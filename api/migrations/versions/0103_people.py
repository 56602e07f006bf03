"""people who sign in through an identity provider, and sign-ins that have begun there

A process of the previous release treats a person's key like any other key; its secret is stored nowhere.
"""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("subject", sa.String(length=255), nullable=True))
    op.add_column("api_keys", sa.Column("person_sha256", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_api_keys_person_sha256"), "api_keys", ["person_sha256"])
    op.create_table(
        "pending_sign_ins",
        sa.Column("state_sha256", sa.String(length=64), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("code_verifier", sa.String(length=128), nullable=False),
        sa.Column("redirect_uri", sa.String(length=512), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("state_sha256", name=op.f("pk_pending_sign_ins")),
    )
    op.create_index(op.f("ix_pending_sign_ins_expires_at"), "pending_sign_ins", ["expires_at"])


def downgrade() -> None:
    raise NotImplementedError("a backup from before the upgrade is restored instead (docs/operations.md)")
