"""Checkpoint permissions: a tenant lets the aliases of another tenant point to its adapter.

The other tenant then has a record of the adapter, as if it had trained the adapter itself; lookups, names and routes
use that record. Records of several tenants share one stored folder (`shared/database/deletions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.database.adapters import is_lent
from shared.database.connection import Database
from shared.database.deletions import lock_contents
from shared.database.lending.lent_adapters import lend, take_back
from shared.database.records import Value, new_id
from shared.database.tables.adapters import AdapterRow, CheckpointPermissionRow
from shared.database.tenancy import SHARED, TenantName, check_owner, visible_to
from shared.database.visibility import adapter_row
from shared.errors import Code, Conflict, Forbidden, InvalidRequest, NotFound

Order = Literal["ascending", "descending"]


class CheckpointPermission(Value):
    """A permission for one tenant, OpenAI's project, to use an adapter."""

    id: str
    adapter_id: str
    project: TenantName
    created_at: datetime


class CheckpointPermissions:
    """Permissions for the adapters of one tenant. Each operation runs in one transaction.

    Every operation raises NotFound ``MODEL_NOT_FOUND`` where the tenant sees no such adapter, and Forbidden
    ``TENANT_FORBIDDEN`` where it is another tenant's: ``shared``'s, or one that was lent.
    """

    def __init__(self, database: Database, tenant: TenantName = SHARED) -> None:
        self._db = database
        self._tenant = tenant

    def of_adapter(
        self, adapter_id: str, order: Order = "descending", project: str | None = None
    ) -> list[CheckpointPermission]:
        """Return the permissions for an adapter, ordered by time: all, or that of one tenant."""
        with self._db.read() as session:
            self._own(session, adapter_id)
            return [CheckpointPermission.model_validate(row) for row in self._rows(session, adapter_id, order, project)]

    def grant(self, adapter_id: str, projects: Sequence[TenantName]) -> list[CheckpointPermission]:
        """Let tenants use an adapter; existing permissions stay.

        The samples of the owner's rows in the adapter's metrics are not lent.

        Raises:
            InvalidRequest: ``REQUEST_INVALID``: the tenant would permit itself.
            Conflict: ``ADAPTER_NOT_SERVABLE``.
        """
        if self._tenant in projects:
            message = f"The adapter is {self._tenant!r}'s own, which does not need a permission."
            raise InvalidRequest(Code.REQUEST_INVALID, message, param="project_ids")
        with self._db.write() as session:
            row = self._own(session, adapter_id, lock=True)
            if not row.published:
                raise Conflict(
                    Code.ADAPTER_NOT_SERVABLE,
                    f"{row.id} is not published, so requests cannot be routed to it.",
                    remedy="Read its certificates, or train it with artifact.publish = true.",
                    param="model",
                )
            now = self._db.now(session)
            by_project = {permission.project: permission for permission in self._rows(session, adapter_id)}
            for project in sorted(set(projects)):
                if project not in by_project:
                    by_project[project] = CheckpointPermissionRow(
                        id=new_id("cp"), tenant=self._tenant, adapter_id=adapter_id, project=project, created_at=now
                    )
                    session.add(by_project[project])
                lend(session, row, project, now)
            session.flush()
            return [CheckpointPermission.model_validate(by_project[project]) for project in dict.fromkeys(projects)]

    def revoke(self, adapter_id: str, permission_id: str) -> None:
        """Revoke a permission; requests of that tenant are no longer routed to the adapter, unless it trained the same
        itself.

        Raises:
            NotFound: ``PERMISSION_NOT_FOUND``.
        """
        with self._db.write() as session:
            self._own(session, adapter_id, lock=True)
            matching = [row for row in self._rows(session, adapter_id) if row.id == permission_id]
            if not matching:
                raise NotFound(
                    Code.PERMISSION_NOT_FOUND,
                    f"The permission {permission_id!r} for {adapter_id} does not exist.",
                    remedy="List them with GET /v1/fine_tuning/checkpoints/MODEL/permissions.",
                )
            session.delete(matching[0])
            session.flush()
            # Another tenant that trained the same may have lent it too.
            others = select(CheckpointPermissionRow.id).where(
                CheckpointPermissionRow.adapter_id == adapter_id, CheckpointPermissionRow.project == matching[0].project
            )
            if session.scalars(others).first() is None:
                take_back(session, matching[0].project, adapter_id, self._db.now(session))

    def _own(self, session: Session, adapter_id: str, *, lock: bool = False) -> AdapterRow:
        seen = visible_to(self._tenant)
        row = adapter_row(session, seen, adapter_id)
        if row is not None and lock:
            # Together with every tenant's record of the same content, in one order: two tenants may lend it to each
            # other.
            lock_contents(session, [row.digest])
            # The rows may have changed before they were locked, and the session would return its earlier copies.
            session.expire_all()
            row = adapter_row(session, seen, adapter_id)
        if row is None:
            raise NotFound(
                Code.MODEL_NOT_FOUND,
                f"The model {adapter_id!r} does not exist.",
                remedy="List the available models with GET /v1/models.",
                param="model",
            )
        check_owner(f"The model {adapter_id}", row.tenant, self._tenant)
        if is_lent(session, row):
            raise Forbidden(
                Code.TENANT_FORBIDDEN,
                f"The model {adapter_id} was lent to {self._tenant!r}, which may use it, but not lend it to others.",
                remedy="Ask the tenant that trained it to create a permission for the other tenant.",
            )
        return row

    def _rows(
        self, session: Session, adapter_id: str, order: Order = "ascending", project: str | None = None
    ) -> Sequence[CheckpointPermissionRow]:
        row = CheckpointPermissionRow
        query = select(row).where(row.tenant == self._tenant, row.adapter_id == adapter_id)
        if project is not None:
            query = query.where(row.project == project)
        keys = (row.created_at, row.id)
        return session.scalars(query.order_by(*(key.desc() if order == "descending" else key for key in keys))).all()
