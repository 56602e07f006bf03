"""Create or delete a tenant's record of an adapter that another tenant lent, inside the caller's transaction."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from shared.counted_nouns import counted
from shared.database.adapters import NewAdapter, is_lent, register_adapters
from shared.database.deletions import users_of, withdraw
from shared.database.records import PARTS_WITH_TEXT
from shared.database.tables.adapters import AdapterRow
from shared.database.tenancy import TenantName
from shared.errors import Code, Conflict


def lend(session: Session, row: AdapterRow, project: TenantName, now: datetime) -> None:
    """Give a tenant a record of another tenant's adapter, without the contents of rows; an existing record is kept.

    Args:
        row: the owner's row, locked with all of the same content.
        project: the tenant that gets the record.
    """
    fields = {name: getattr(row, name) for name in NewAdapter.model_fields}
    metrics = {name: value for name, value in row.metrics.items() if name not in PARTS_WITH_TEXT}
    lent = NewAdapter.model_validate(fields | {"metrics": metrics})
    register_adapters(session, project, row.job_id, [lent], now)


def take_back(session: Session, project: TenantName, adapter_id: str, now: datetime) -> None:
    """Delete a tenant's record of a lent adapter, unless the tenant trained it itself or has deleted the record.

    Raises:
        Conflict: ``MODEL_IN_USE``: aliases or unfinished jobs that see the record need the adapter.
    """
    row = session.get(AdapterRow, (project, adapter_id))
    if row is None or row.deleting_at is not None or not is_lent(session, row):
        return
    aliases, jobs = users_of(session, row)
    if aliases or jobs:
        raise Conflict(
            Code.MODEL_IN_USE,
            f"{row.id} is needed by {counted(len(aliases), 'alias', 'aliases')} and "
            f"{counted(len(jobs), 'unfinished job')} of the tenant {project!r}.",
            remedy="Ask that tenant to move its aliases and to wait for its jobs, or an operator to do it.",
            param="model",
        )
    withdraw(session, row, now)
