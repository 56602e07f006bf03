"""the audit log, to which rows are only added

Triggers refuse to change a row, and to delete one that no event ``audit.pruned`` names: its object is the number up to
which the log was pruned. A later migration that recreates the table, as SQLite's batch operations do, must recreate the
triggers too.

Additive: changes by a process of the previous release are not in the log. A downgrade drops the log; export it first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

PRUNED = "SELECT 1 FROM audit_events WHERE action = 'audit.pruned' AND CAST(object_id AS BIGINT) >= OLD.seq"
NO_UPDATE = """
CREATE TRIGGER audit_events_are_not_changed BEFORE UPDATE ON audit_events
BEGIN SELECT RAISE(ABORT, 'events of the audit log are not changed'); END
"""
NO_DELETE = f"""
CREATE TRIGGER audit_events_are_kept BEFORE DELETE ON audit_events WHEN NOT EXISTS ({PRUNED})
BEGIN SELECT RAISE(ABORT, 'events of the audit log are deleted by pruning alone'); END
"""
KEEP = f"""
CREATE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN
    IF EXISTS ({PRUNED}) THEN RETURN OLD; END IF;
    RAISE EXCEPTION 'events of the audit log are deleted by pruning alone';
  END IF;
  RAISE EXCEPTION 'events of the audit log are not changed';
END $$
"""
EACH_ROW = """
CREATE TRIGGER audit_events_are_kept BEFORE UPDATE OR DELETE ON audit_events FOR EACH ROW EXECUTE FUNCTION keep_audit_events()
"""
ALL_ROWS = """
CREATE TRIGGER audit_events_are_not_truncated BEFORE TRUNCATE ON audit_events EXECUTE FUNCTION keep_audit_events()
"""
ON_SQLITE, ON_POSTGRESQL = (NO_UPDATE, NO_DELETE), (KEEP, EACH_ROW, ALL_ROWS)


def upgrade() -> None:
    op.create_table(
        "audit_events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("actor_kind", sa.String(length=16), nullable=False),
        sa.Column("actor_id", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=320), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("object_type", sa.String(length=32), nullable=False),
        sa.Column("object_id", sa.String(length=320), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_events"),
    )
    for column in ("tenant", "object_id", "action"):
        op.create_index(f"ix_audit_events_{column}_seq", "audit_events", [column, "seq"])
    for statement in ON_SQLITE if op.get_bind().dialect.name == "sqlite" else ON_POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("audit_events")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION keep_audit_events()")
