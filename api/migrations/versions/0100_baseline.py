"""the baseline of 0.1.0: every table

The development before it had revisions 0001 to 0021. Its databases are refused (`api/migrate.py:migrate`).

Triggers refuse to change rows of the audit log, and to delete rows that no event ``audit.pruned`` covers: the object of
such an event is the number up to which the log was pruned. A later migration that recreates the table, as SQLite's
batch operations do, must recreate the triggers too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None

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
    _create_keys()
    _create_files()
    _create_jobs()
    _create_adapters()
    _create_names()
    _create_evaluation()
    _create_policies()
    _create_webhooks()
    _create_changes()
    _create_audit_log()


def _create_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("tenant", sa.String(length=64), server_default="shared", nullable=False),
        sa.Column("role", sa.String(length=16), server_default="admin", nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("concurrent_requests", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("previous_secret_until", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("previous_secret_sha256", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_api_keys_secret_sha256")),
    )
    op.create_index(op.f("ix_api_keys_job_id"), "api_keys", ["job_id"])
    op.create_index(op.f("ix_api_keys_previous_secret_sha256"), "api_keys", ["previous_secret_sha256"], unique=True)
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
    op.create_index(op.f("ix_usage_tenant"), "usage", ["tenant"])
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("running_jobs", sa.Integer(), nullable=True),
        sa.Column("queued_jobs", sa.Integer(), nullable=True),
        sa.Column("gpu_minutes_per_month", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_tenant_quotas")),
    )


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("tenant", sa.String(length=64), server_default="shared", nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index(op.f("ix_files_sha256"), "files", ["sha256"])
    op.create_index("ix_files_tenant_id", "files", ["tenant", "id"])
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
    op.create_index(op.f("ix_uploads_expires_at"), "uploads", ["expires_at"])
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
    op.create_index(op.f("ix_upload_parts_sha256"), "upload_parts", ["sha256"])
    op.create_index("uq_upload_parts_upload_id_sha256", "upload_parts", ["upload_id", "sha256"], unique=True)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("base_model", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("contract", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("preflight", sa.JSON(), nullable=False),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("requested", sa.String(length=16), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=255), nullable=True),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_wall_seconds", sa.Float(), nullable=True),
        sa.Column("max_gpu_minutes", sa.Float(), nullable=True),
        sa.Column("expected_seconds", sa.Float(), nullable=True),
        sa.Column("queued_at", sa.BigInteger(), nullable=True),
        sa.Column("estimated_start_at", sa.BigInteger(), nullable=True),
        sa.Column("estimated_at", sa.BigInteger(), nullable=True),
        sa.Column("traceparent", sa.String(length=64), nullable=True),
        sa.Column("outages", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=True),
        sa.Column("changed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("owner", "idempotency_key", name=op.f("uq_jobs_owner_idempotency_key")),
    )
    op.create_index("ix_jobs_changed_at", "jobs", ["changed_at"])
    op.create_index("ix_jobs_owner_id", "jobs", ["owner", "id"])
    op.create_index("ix_jobs_state_lease", "jobs", ["state", "lease_expires_at"])
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.String(length=8), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("message", sa.String(length=2000), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job_id_seq", "events", ["job_id", "seq"])
    op.create_table(
        "attempt_logs",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempt_logs_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_attempt_logs")),
    )
    op.create_table(
        "gpu_time",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("base_model", sa.String(length=128), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("held", sa.Float(), nullable=False),
        sa.Column("used", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_gpu_time_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_gpu_time")),
    )
    op.create_index(op.f("ix_gpu_time_ended_at"), "gpu_time", ["ended_at"])
    op.create_index("ix_gpu_time_kind_base_model", "gpu_time", ["kind", "base_model", "ended_at"])
    op.create_index("ix_gpu_time_tenant_started_at", "gpu_time", ["tenant", "started_at"])


def _create_adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.String(length=160), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("base_model", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("published", sa.Boolean(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("certificates", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=64), server_default="shared", nullable=False),
        sa.Column("deleting_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_adapters_job_id")),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_adapters")),
    )
    op.create_index(op.f("ix_adapters_digest"), "adapters", ["digest"])
    op.create_index(op.f("ix_adapters_job_id"), "adapters", ["job_id"])
    op.create_index(
        "ix_adapters_tenant_newest",
        "adapters",
        ["tenant", "created_at", "step", "id"],
        unique=False,
        sqlite_where=sa.text("deleting_at IS NULL"),
        postgresql_where=sa.text("deleting_at IS NULL"),
    )
    op.create_table(
        "base_certificates",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("replica", sa.String(length=64), nullable=False),
        sa.Column("instance", sa.String(length=64), nullable=True),
        sa.Column("certificate", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "replica", name=op.f("pk_base_certificates")),
    )
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


def _create_names() -> None:
    op.create_table(
        "aliases",
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("adapter_id", sa.String(length=160), nullable=True),
        sa.Column("moved_at", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("routing", sa.JSON(), nullable=True),
        sa.Column("tenant", sa.String(length=64), server_default="shared", nullable=False),
        sa.Column("stands_for", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_aliases")),
    )
    op.create_table(
        "alias_moves",
        sa.Column("alias", sa.String(length=256), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved_at", sa.BigInteger(), nullable=False),
        sa.Column("verb", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("actor_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.Column("tenant", sa.String(length=64), server_default="shared", nullable=False),
        sa.Column("gate", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "alias", "version", name=op.f("pk_alias_moves")),
    )
    op.create_table(
        "shadow_comparisons",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("incumbent_id", sa.String(length=160), nullable=False),
        sa.Column("candidate_id", sa.String(length=160), nullable=False),
        sa.Column("eval_id", sa.String(length=40), nullable=False),
        sa.Column("wins", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("ties", sa.Integer(), nullable=False),
        sa.Column("errored", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.String(length=64), nullable=True),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("worse_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(
            "tenant", "alias", "incumbent_id", "candidate_id", "eval_id", name=op.f("pk_shadow_comparisons")
        ),
    )


def _create_evaluation() -> None:
    op.create_table(
        "evals",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evals")),
    )
    op.create_index(op.f("ix_evals_tenant"), "evals", ["tenant"])
    op.create_table(
        "eval_runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("eval_id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("totals", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["eval_id"], ["evals.id"], name=op.f("fk_eval_runs_eval_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_eval_runs_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_eval_runs")),
    )
    op.create_index("ix_eval_runs_eval_id_id", "eval_runs", ["eval_id", "id"])
    op.create_index(op.f("ix_eval_runs_job_id"), "eval_runs", ["job_id"])
    op.create_table(
        "eval_items",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["eval_runs.id"], name=op.f("fk_eval_items_run_id")),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_eval_items")),
    )
    op.create_index("ix_eval_items_run_id_status", "eval_items", ["run_id", "status", "position"])


def _create_policies() -> None:
    op.create_table(
        "policies",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", "digest", name=op.f("pk_policies")),
    )
    op.create_table(
        "policy_assignments",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=300), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", name=op.f("pk_policy_assignments")),
    )
    op.create_table(
        "policy_moves",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=300), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("actor_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "scope", "version", name=op.f("pk_policy_moves")),
    )
    op.create_table(
        "receipts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("adapter_id", sa.String(length=160), nullable=False),
        sa.Column("adapter_digest", sa.String(length=64), nullable=False),
        sa.Column("incumbent_id", sa.String(length=160), nullable=True),
        sa.Column("incumbent_digest", sa.String(length=64), nullable=True),
        sa.Column("policy_digest", sa.String(length=64), nullable=False),
        sa.Column("serving_digest", sa.String(length=64), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("valid_until", sa.BigInteger(), nullable=False),
        sa.Column("receipt", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_receipts_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_receipts")),
    )
    op.create_index("ix_receipts_adapter_digest_policy_digest", "receipts", ["adapter_digest", "policy_digest"])
    op.create_index(op.f("ix_receipts_adapter_id"), "receipts", ["adapter_id"])
    op.create_index(op.f("ix_receipts_job_id"), "receipts", ["job_id"])


def _create_webhooks() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("event_types", sa.JSON(), nullable=False),
        sa.Column("secret", sa.String(length=128), nullable=False),
        sa.Column("old_secret", sa.String(length=128), nullable=True),
        sa.Column("old_secret_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("last_delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.Column("disabled_reason", sa.String(length=500), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index(op.f("ix_webhook_endpoints_tenant"), "webhook_endpoints", ["tenant"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("endpoint_id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("is_test", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.String(length=300), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["webhook_endpoints.id"], name=op.f("fk_webhook_deliveries_endpoint_id_webhook_endpoints")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index(op.f("ix_webhook_deliveries_ended_at"), "webhook_deliveries", ["ended_at"])
    op.create_index("ix_webhook_deliveries_endpoint_id_id", "webhook_deliveries", ["endpoint_id", "id"])
    op.create_index("ix_webhook_deliveries_status_next_attempt_at", "webhook_deliveries", ["status", "next_attempt_at"])


def _create_changes() -> None:
    op.create_table(
        "changes",
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("what", name=op.f("pk_changes")),
    )
    # Locked by moves of aliases and by changes of policies, so it must exist before the first of either.
    op.execute("INSERT INTO changes (what, count) VALUES ('policies', 0)")


def _create_audit_log() -> None:
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
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit_events")),
    )
    op.create_index("ix_audit_events_action_seq", "audit_events", ["action", "seq"])
    op.create_index("ix_audit_events_object_id_seq", "audit_events", ["object_id", "seq"])
    op.create_index("ix_audit_events_tenant_seq", "audit_events", ["tenant", "seq"])
    for statement in ON_SQLITE if op.get_bind().dialect.name == "sqlite" else ON_POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("no release is older than the baseline")
