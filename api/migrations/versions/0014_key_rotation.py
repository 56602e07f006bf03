"""keys may expire, have a second secret for a while, and record when they were last used

Additive: a process of the previous release knows only a rotated key's new secret, and no expiry. A downgrade revokes
the keys that would expire, which the previous release would accept permanently, and ends the replaced secrets.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
COLUMNS = ("expires_at", "previous_secret_until", "last_used_at")


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as batch_op:
        for name in COLUMNS:
            batch_op.add_column(sa.Column(name, sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("previous_secret_sha256", sa.String(length=64), nullable=True))
    op.create_index("ix_api_keys_previous_secret_sha256", "api_keys", ["previous_secret_sha256"], unique=True)


def downgrade() -> None:
    op.execute("UPDATE api_keys SET revoked_at = expires_at WHERE expires_at IS NOT NULL AND revoked_at IS NULL")
    op.drop_index("ix_api_keys_previous_secret_sha256", "api_keys")
    with op.batch_alter_table("api_keys") as batch_op:
        for name in (*COLUMNS, "previous_secret_sha256"):
            batch_op.drop_column(name)
