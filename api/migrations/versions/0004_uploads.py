"""uploads in parts; requests that made a file can be repeated; keys have a limit of tokens

Additive: the previous release keeps working, without parts. A downgrade deletes uploads and their parts, whose blobs
stay.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("files") as batch_op:
        batch_op.add_column(sa.Column("idempotency_key", sa.String(length=255), nullable=True))
        batch_op.add_column(sa.Column("request_digest", sa.String(length=64), nullable=True))
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.add_column(sa.Column("tokens_per_minute", sa.Integer(), nullable=True))
    op.create_index("uq_files_tenant_idempotency_key", "files", ["tenant", "idempotency_key"], unique=True)
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_seconds", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=True),
        sa.Column("file_id", sa.String(length=40), nullable=True),
        sa.Column("completion_digest", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index("ix_uploads_expires_at", "uploads", ["expires_at"])
    op.create_index("uq_uploads_tenant_idempotency_key", "uploads", ["tenant", "idempotency_key"], unique=True)
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("upload_id", sa.String(length=40), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["uploads.id"], name=op.f("fk_upload_parts_upload_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload_parts")),
    )
    op.create_index("ix_upload_parts_sha256", "upload_parts", ["sha256"])
    op.create_index("uq_upload_parts_upload_id_sha256", "upload_parts", ["upload_id", "sha256"], unique=True)


def downgrade() -> None:
    op.drop_table("upload_parts")
    op.drop_table("uploads")
    op.drop_index("uq_files_tenant_idempotency_key", "files")
    with op.batch_alter_table("files") as batch_op:
        batch_op.drop_column("request_digest")
        batch_op.drop_column("idempotency_key")
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.drop_column("tokens_per_minute")
