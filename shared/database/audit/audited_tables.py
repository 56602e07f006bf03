"""Audited tables, with the names of their changes and the logged fields.

The list is closed: a table that is not here is not audited, and a field that is not named here is never logged, so that
no event holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from shared.database.audit.changes import Change, Values
from shared.database.job_states import JobState
from shared.database.tables.adapters import AdapterRow, CheckpointPermissionRow
from shared.database.tables.base import Base
from shared.database.tables.evaluation import EvalRow, EvalRunRow
from shared.database.tables.files import FileRow, UploadRow
from shared.database.tables.gates import PolicyMoveRow, PolicyRow
from shared.database.tables.jobs import JobRow, TenantQuotaRow
from shared.database.tables.keys import KeyRow, SignInCodeRow, SignInRow
from shared.database.tables.names import AliasMoveRow
from shared.database.tables.webhooks import WebhookEndpointRow

MOVES = {"set": "moved", "rollback": "rolled_back", "delete": "deleted"}
"""Logged verb for each move of a name."""
CONCEALED: Values = {"before": "concealed", "after": "concealed"}
"""Logged in place of a changed secret."""


def _id(row: Any) -> str:
    return str(row.id)


@dataclass(frozen=True)
class AuditedTable:
    """Rules for auditing a table's rows.

    Attributes:
        action: name of a change, ``object.verb``; None: it is not audited.
        fields: fields of a row; changes of other fields are not audited.
        concealed: the fields whose values are secrets.
        shortened: functions that remove secrets from values that may hold one.
        object_id: the id that the API gives to a row's object.
        recorded: the changes that a row records, if it is a history line; None: those of the row's fields.
    """

    action: Callable[[Any, Change], str | None]
    fields: tuple[str, ...]
    concealed: frozenset[str] = frozenset()
    shortened: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    object_id: Callable[[Any], str] = _id
    recorded: Callable[[Any], dict[str, Values]] | None = None

    def changes(self, row: Any, change: Change) -> dict[str, Values]:
        """Return a change in the log's form: field by field, the values before and after."""
        if self.recorded:
            return self.recorded(row)
        hidden = self.concealed if change.kind != "changed" else frozenset()
        names = [name for name in self.fields if name not in hidden and name in {*change.before, *change.after}]
        return {name: self._shown(name, change) for name in names}

    def _shown(self, name: str, change: Change) -> Values:
        if name in self.concealed:
            return CONCEALED
        values = {"before": change.before.get(name), "after": change.after.get(name)}
        shorten = self.shortened.get(name, _json)
        return {when: None if value is None else shorten(value) for when, value in values.items()}


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _plain(object_type: str) -> Callable[[Any, Change], str]:
    return lambda _, change: f"{object_type}.{change.kind}"


def _key_action(_: KeyRow, change: Change) -> str:
    if change.kind == "deleted" or change.after.get("revoked_at"):
        return "key.revoked"
    return "key.rotated" if change.kind == "changed" and "secret_sha256" in change.after else f"key.{change.kind}"


def _sign_in_action(_: SignInRow, change: Change) -> str:
    return "sign_in.ended" if change.kind == "deleted" else f"sign_in.{change.kind}"


def _code_action(_: SignInCodeRow, change: Change) -> str:
    return "sign_in_code.used" if change.kind == "deleted" else f"sign_in_code.{change.kind}"


def _job_action(_: JobRow, change: Change) -> str | None:
    """Name the owner's change of a job; workers' changes are in the job's events."""
    if change.kind != "changed":
        return f"job.{change.kind}"
    if requested := change.after.get("requested"):
        return f"job.{requested}_requested"
    state = change.after.get("state")
    if state and JobState.RUNNING not in (state, change.before["state"]):
        return "job.resumed" if state == JobState.QUEUED else f"job.{state}"
    return "job.changed" if "priority" in change.after else None


def _upload_action(_: UploadRow, change: Change) -> str:
    return f"upload.{change.after.get('status') if change.kind == 'changed' else change.kind}"


def _adapter_action(_: AdapterRow, change: Change) -> str:
    return "adapter.deleted" if change.after.get("deleting_at") else f"adapter.{change.kind}"


def _run_action(_: EvalRunRow, change: Change) -> str | None:
    """Do not log the creation of a run, because the creation of its job is logged."""
    return "eval_run.deleted" if change.kind == "deleted" else None


def _webhook_action(_: WebhookEndpointRow, change: Change) -> str:
    if change.kind == "changed" and "secret" in change.after:
        return "webhook_endpoint.rotated"
    return f"webhook_endpoint.{'disabled' if change.after.get('disabled_at') else change.kind}"


def _move_action(row: AliasMoveRow, _: Change) -> str:
    is_foreign = "kind" in (row.after or row.before or {})
    return f"{'name' if is_foreign else 'alias'}.{MOVES[row.verb]}"


def _assignment_action(row: PolicyMoveRow, _: Change) -> str:
    return f"policy_assignment.{'set' if row.after else 'removed'}"


def _recorded(values: str) -> Callable[[Any], dict[str, Values]]:
    """Make a reader of the changes that a history row records; ``values`` is the field's name in the log."""

    def changes_of(row: Any) -> dict[str, Values]:
        changes = {values: {"before": row.before, "after": row.after}}
        details = {"reason": row.reason, "gate": getattr(row, "gate", None)}
        return changes | {name: {"before": None, "after": value} for name, value in details.items() if value}

    return changes_of


def _host(url: str) -> str:
    """Return a URL without its path and query, which hold a secret for some receivers."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.hostname}"


AUDITED: dict[type[Base], AuditedTable] = {
    KeyRow: AuditedTable(
        _key_action,
        (
            "name",
            "role",
            "requests_per_minute",
            "concurrent_requests",
            "tokens_per_minute",
            "expires_at",
            "revoked_at",
            "previous_secret_until",
            "secret_sha256",
            "job_id",
            "subject",
        ),
        concealed=frozenset({"secret_sha256"}),
    ),
    SignInRow: AuditedTable(_sign_in_action, ("key_id",)),
    SignInCodeRow: AuditedTable(_code_action, ("key_id",)),
    TenantQuotaRow: AuditedTable(
        lambda *_: "quota.changed",
        ("running_jobs", "queued_jobs", "gpu_minutes_per_month"),
        object_id=lambda row: row.tenant,
    ),
    JobRow: AuditedTable(
        _job_action,
        ("kind", "name", "base_model", "state", "requested", "priority", "max_wall_seconds", "max_gpu_minutes"),
    ),
    FileRow: AuditedTable(_plain("file"), ("filename", "purpose", "bytes", "sha256", "expires_at")),
    UploadRow: AuditedTable(_upload_action, ("filename", "purpose", "bytes", "status", "file_id")),
    AdapterRow: AuditedTable(_adapter_action, ("base_model", "job_id", "published", "deleting_at")),
    CheckpointPermissionRow: AuditedTable(_plain("permission"), ("adapter_id", "project")),
    AliasMoveRow: AuditedTable(
        _move_action, ("version",), object_id=lambda row: row.alias, recorded=_recorded("points_to")
    ),
    # A policy that is stored again becomes the newest policy of its name.
    PolicyRow: AuditedTable(_plain("policy"), ("created_at",), object_id=lambda row: f"{row.name}@{row.digest}"),
    PolicyMoveRow: AuditedTable(
        _assignment_action, ("version",), object_id=lambda row: row.scope, recorded=_recorded("policy")
    ),
    EvalRow: AuditedTable(_plain("eval"), ("name", "labels")),
    EvalRunRow: AuditedTable(_run_action, ("name", "eval_id")),
    WebhookEndpointRow: AuditedTable(
        _webhook_action,
        ("name", "url", "event_types", "secret", "old_secret_until", "disabled_at", "disabled_reason"),
        concealed=frozenset({"secret"}),
        shortened={"url": _host},
    ),
}
"""Rules of auditing, by the class of the rows."""
