"""The tables. Rows stay inside `shared`; other tiers see the frozen values that the verbs return."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from shared.database.tenancy import BEFORE_TENANTS, SHARED

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC time, stored as whole milliseconds since 1970: the same order and value in every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value / 1000, UTC)


class OwnerTenant(TypeDecorator[str]):
    """The tenant of a job, in the column that was its owner: an API of the previous release writes and reads ``default``."""

    impl = String(64)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return BEFORE_TENANTS if value == SHARED else value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return SHARED if value == BEFORE_TENANTS else value


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON, datetime: UtcTime}


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner", "idempotency_key"),
        Index("ix_jobs_state_lease", "state", "lease_expires_at"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str | None] = mapped_column(String(16))
    tenant: Mapped[str] = mapped_column("owner", OwnerTenant)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str] = mapped_column(String(64))
    base_model: Mapped[str] = mapped_column(String(128))
    name: Mapped[str] = mapped_column(String(64))
    contract: Mapped[dict[str, Any]]
    plan: Mapped[dict[str, Any]]
    # Large, and read by one verb alone, so other queries do not load it.
    preflight: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    extra: Mapped[dict[str, Any]] = mapped_column(default=dict)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    requested: Mapped[str | None] = mapped_column(String(16))
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    failures: Mapped[int] = mapped_column(Integer, default=0)
    lease_owner: Mapped[str | None] = mapped_column(String(255))
    lease_expires_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    result: Mapped[dict[str, Any]] = mapped_column(default=dict)
    error: Mapped[dict[str, Any] | None]
    version: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    max_wall_seconds: Mapped[float | None] = mapped_column(Float)
    max_gpu_minutes: Mapped[float | None] = mapped_column(Float)
    traceparent: Mapped[str | None] = mapped_column(String(64))
    expected_seconds: Mapped[float | None] = mapped_column(Float)
    # Of its last submission or resumption; an API of the release before leaves it empty.
    queued_at: Mapped[datetime | None]
    # When it was expected to start, and when that was said: the first time that it was seen to wait.
    estimated_start_at: Mapped[datetime | None]
    estimated_at: Mapped[datetime | None]


class GpuTimeRow(Base):
    """GPU time of one attempt: held while it runs, then what it used. All amounts are GPU-seconds."""

    __tablename__ = "gpu_time"
    __table_args__ = (
        Index("ix_gpu_time_tenant_started_at", "tenant", "started_at"),
        Index("ix_gpu_time_kind_base_model", "kind", "base_model", "ended_at"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    base_model: Mapped[str] = mapped_column(String(128))
    gpus: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)
    held: Mapped[float] = mapped_column(Float)
    used: Mapped[float | None] = mapped_column(Float)
    outcome: Mapped[str | None] = mapped_column(String(16))


class TenantQuotaRow(Base):
    """What a tenant may queue, run and use; null is no limit."""

    __tablename__ = "tenant_quotas"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    running_jobs: Mapped[int | None] = mapped_column(Integer)
    queued_jobs: Mapped[int | None] = mapped_column(Integer)
    gpu_minutes_per_month: Mapped[float | None] = mapped_column(Float)


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index("ix_events_job_id_seq", "job_id", "seq"),)

    # SQLite counts up an INTEGER primary key only.
    seq: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[datetime]
    level: Mapped[str] = mapped_column(String(8))
    type: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(String(2000))
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


class FileRow(Base):
    __tablename__ = "files"
    __table_args__ = (Index("uq_files_tenant_idempotency_key", "tenant", "idempotency_key", unique=True),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    tenant: Mapped[str] = mapped_column(String(64), server_default=SHARED)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str | None] = mapped_column(String(64))


class UploadRow(Base):
    """An upload in parts. It takes them while it is pending, and keeps its row for a while afterwards."""

    __tablename__ = "uploads"
    __table_args__ = (Index("uq_uploads_tenant_idempotency_key", "tenant", "idempotency_key", unique=True),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    filename: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    file_seconds: Mapped[int | None] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(255))
    request_digest: Mapped[str | None] = mapped_column(String(64))
    file_id: Mapped[str | None] = mapped_column(String(40))
    completion_digest: Mapped[str | None] = mapped_column(String(64))


class UploadPartRow(Base):
    """A part of an upload, whose content is a blob. The same content is one part, however often it was sent."""

    __tablename__ = "upload_parts"
    __table_args__ = (Index("uq_upload_parts_upload_id_sha256", "upload_id", "sha256", unique=True),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id"))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    created_at: Mapped[datetime]


class AdapterRow(Base):
    """An adapter of a tenant. Two tenants that train the same adapter have a row each, and one stored folder.

    A deleted adapter keeps its row: no request is routed to it from ``deleting_at`` on, its files are removed at
    ``deleted_at``.
    """

    __tablename__ = "adapters"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True, server_default=SHARED)
    id: Mapped[str] = mapped_column(String(160), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), index=True)
    base_model: Mapped[str] = mapped_column(String(128))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    step: Mapped[int] = mapped_column(Integer)
    final: Mapped[bool] = mapped_column(Boolean)
    published: Mapped[bool] = mapped_column(Boolean)
    manifest: Mapped[dict[str, Any]]
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    certificates: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    deleting_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class CheckpointPermissionRow(Base):
    """One tenant's permission for another one to use its adapter; ``project`` is the other one, as OpenAI calls it."""

    __tablename__ = "checkpoint_permissions"
    __table_args__ = (UniqueConstraint("tenant", "adapter_id", "project"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    adapter_id: Mapped[str] = mapped_column(String(160))
    project: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class BaseCertificateRow(Base):
    """What was measured of one replica that serves a merged model as its base."""

    __tablename__ = "base_certificates"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    replica: Mapped[str] = mapped_column(String(64), primary_key=True)
    instance: Mapped[str | None] = mapped_column(String(64))
    certificate: Mapped[dict[str, Any]]
    measured_at: Mapped[datetime]


class AliasRow(Base):
    """A name that requests put into ``model``: an alias, which has an adapter, or a foreign name, which stands for another.

    A deleted one keeps its row, with neither, so that its version keeps counting.
    """

    __tablename__ = "aliases"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True, server_default=SHARED)
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    adapter_id: Mapped[str | None] = mapped_column(String(160))
    moved_at: Mapped[datetime]
    version: Mapped[int] = mapped_column(Integer, server_default="1")
    routing: Mapped[dict[str, Any] | None]
    stands_for: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class AliasMoveRow(Base):
    """One move of an alias or a foreign name: written with the move, never changed."""

    __tablename__ = "alias_moves"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True, server_default=SHARED)
    alias: Mapped[str] = mapped_column(String(256), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    moved_at: Mapped[datetime]
    verb: Mapped[str] = mapped_column(String(16))
    actor: Mapped[str] = mapped_column(String(64))
    actor_id: Mapped[str] = mapped_column(String(40))
    reason: Mapped[str] = mapped_column(String(500))
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    gate: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class PolicyRow(Base):
    """A policy as it was stored: never changed. The newest of a name is what the name means."""

    __tablename__ = "policies"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    policy: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(64))


class PolicyAssignmentRow(Base):
    """Which policy governs an alias, a tenant or the server. One that was removed keeps its row, so that its version counts on."""

    __tablename__ = "policy_assignments"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    scope: Mapped[str] = mapped_column(String(300), primary_key=True)
    policy: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    version: Mapped[int] = mapped_column(Integer)


class PolicyMoveRow(Base):
    """One change of an assignment: written with it, never changed."""

    __tablename__ = "policy_moves"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    scope: Mapped[str] = mapped_column(String(300), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    moved_at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(64))
    actor_id: Mapped[str] = mapped_column(String(40))
    reason: Mapped[str] = mapped_column(String(500))
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class ReceiptRow(Base):
    """What came of judging an adapter by a policy: written once, never changed. The columns are what a move asks for."""

    __tablename__ = "receipts"
    __table_args__ = (Index("ix_receipts_adapter_digest_policy_digest", "adapter_digest", "policy_digest"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    adapter_id: Mapped[str] = mapped_column(String(160), index=True)
    adapter_digest: Mapped[str] = mapped_column(String(64))
    incumbent_id: Mapped[str | None] = mapped_column(String(160))
    incumbent_digest: Mapped[str | None] = mapped_column(String(64))
    policy_digest: Mapped[str] = mapped_column(String(64))
    serving_digest: Mapped[str | None] = mapped_column(String(64))
    passed: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime]
    valid_until: Mapped[datetime]
    receipt: Mapped[dict[str, Any]]


class ShadowComparisonRow(Base):
    """How an adapter's answers to copies of requests compare with those that the callers got: counts, and no text."""

    __tablename__ = "shadow_comparisons"

    tenant: Mapped[str] = mapped_column(String(64), primary_key=True)
    alias: Mapped[str] = mapped_column(String(64), primary_key=True)
    incumbent_id: Mapped[str] = mapped_column(String(160), primary_key=True)
    candidate_id: Mapped[str] = mapped_column(String(160), primary_key=True)
    eval_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    wins: Mapped[int] = mapped_column(Integer, default=0)
    losses: Mapped[int] = mapped_column(Integer, default=0)
    ties: Mapped[int] = mapped_column(Integer, default=0)
    errored: Mapped[int] = mapped_column(Integer, default=0)
    last_error: Mapped[str | None] = mapped_column(String(64))
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    worse_at: Mapped[datetime | None]


class KeyRow(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    # The secret before the last rotation, accepted until then.
    previous_secret_sha256: Mapped[str | None] = mapped_column(String(64), unique=True, index=True)
    previous_secret_until: Mapped[datetime | None]
    # As of a minute ago or so.
    last_used_at: Mapped[datetime | None]
    tenant: Mapped[str] = mapped_column(String(64), server_default=SHARED)
    role: Mapped[str] = mapped_column(String(16), server_default="admin")
    requests_per_minute: Mapped[int | None]
    concurrent_requests: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    # Of the attempt that a key was made for; it is revoked when that has ended.
    job_id: Mapped[str | None] = mapped_column(String(40), index=True)
    attempt: Mapped[int | None] = mapped_column(Integer)


class EvalRow(Base):
    """An eval: a data source and the criteria that judge answers to it."""

    __tablename__ = "evals"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(256))
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class EvalRunRow(Base):
    """A run of an eval, which a job carries out; an ``evaluate`` job's run has the job's id."""

    __tablename__ = "eval_runs"
    __table_args__ = (Index("ix_eval_runs_eval_id_id", "eval_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    eval_id: Mapped[str] = mapped_column(ForeignKey("evals.id"))
    tenant: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(256))
    plan: Mapped[dict[str, Any]]
    totals: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]


class EvalItemRow(Base):
    """What came of one item of a run. ``position`` counts the run's items, or their answers where each has several."""

    __tablename__ = "eval_items"
    __table_args__ = (Index("ix_eval_items_run_id_status", "run_id", "status", "position"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("eval_runs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    status: Mapped[str] = mapped_column(String(8))
    result: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class WebhookEndpointRow(Base):
    """Where a tenant wants to be told of what ended. The secrets sign, so they are stored as they are."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(256))
    url: Mapped[str] = mapped_column(String(2048))
    event_types: Mapped[list[str]]
    secret: Mapped[str] = mapped_column(String(128))
    old_secret: Mapped[str | None] = mapped_column(String(128))
    old_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    last_delivered_at: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(String(500))

    @property
    def signing_secret_hint(self) -> str:
        """The secret's end, by which its owner knows it again."""
        return f"whsec_…{self.secret[-4:]}"


class WebhookDeliveryRow(Base):
    """The outbox: an event for an endpoint, written with what it tells of, kept for a while after it was delivered."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_status_next_attempt_at", "status", "next_attempt_at"),
        Index("ix_webhook_deliveries_endpoint_id_id", "endpoint_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("webhook_endpoints.id"))
    tenant: Mapped[str] = mapped_column(String(64))
    event_id: Mapped[str] = mapped_column(String(40))
    type: Mapped[str] = mapped_column(String(64))
    payload: Mapped[str] = mapped_column(Text)
    is_test: Mapped[bool] = mapped_column(Boolean)
    status: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(Integer)
    status_code: Mapped[int | None] = mapped_column(Integer)
    last_error: Mapped[str | None] = mapped_column(String(300))
    created_at: Mapped[datetime]
    next_attempt_at: Mapped[datetime | None]
    lease_expires_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime, index=True)


class UsageRow(Base):
    """Usage of a model by a key on a day (UTC)."""

    __tablename__ = "usage"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    model: Mapped[str] = mapped_column(String(160), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), index=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class ChangeRow(Base):
    """Counts changes of keys, aliases and adapters, which the request path caches (`api/inference/lookup_cache.py`)."""

    __tablename__ = "changes"

    what: Mapped[str] = mapped_column(String(16), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)
