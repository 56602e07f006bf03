"""Rows by the names that a tenant's callers use: the tenant's own rows first, then the rows of ``shared``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, and_, case, or_, select, true
from sqlalchemy.orm import Session, aliased

from shared.database.tables.adapters import AdapterRow
from shared.database.tables.names import AliasRow
from shared.database.tables.storable import storable


def is_preferred(tenants: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that a row is not hidden by another adapter with the same id, as in :func:`adapters_by_id`."""
    if len(tenants) == 1:
        return true()
    other = aliased(AdapterRow)
    places = {tenant: place for place, tenant in enumerate(tenants)}
    is_earlier = case(places, value=other.tenant) < case(places, value=AdapterRow.tenant)
    is_better = or_(
        and_(other.published, AdapterRow.published.is_(False)),
        and_(other.published == AdapterRow.published, is_earlier),
    )
    same = select(other.id).where(other.tenant.in_(tenants), other.id == AdapterRow.id, other.deleting_at.is_(None))
    return ~same.where(is_better).exists()


def adapters_by_id(rows: Iterable[AdapterRow], tenants: Sequence[str]) -> dict[str, AdapterRow]:
    """Index adapters by id, in the order given. If several have the same id, a published one is preferred, then
    the first tenant's.
    """
    by_id: dict[str, AdapterRow] = {}
    for row in rows:
        preferred = by_id.setdefault(row.id, row)
        if _rank(row, tenants) < _rank(preferred, tenants):
            by_id[row.id] = row
    return by_id


def adapter_row(
    session: Session, tenants: Sequence[str], adapter_id: str, *, deleted: bool = False
) -> AdapterRow | None:
    """Return an adapter, or None; with ``deleted`` also one whose deletion has begun, if no other has the id."""
    query = select(AdapterRow).where(AdapterRow.tenant.in_(tenants), AdapterRow.id == storable(adapter_id))
    if not deleted:
        query = query.where(AdapterRow.deleting_at.is_(None))
    return next(iter(adapters_by_id(session.scalars(query), tenants).values()), None)


def alias_rows(session: Session, tenants: Sequence[str], name: str | None = None) -> list[AliasRow]:
    """Return aliases that are not deleted, all or only those with a given name, ordered by name; of each name, the
    first tenant's alias.
    """
    return [rows[0] for rows in aliases_by_name(session, tenants, name).values()]


def aliases_by_name(session: Session, tenants: Sequence[str], name: str | None = None) -> dict[str, list[AliasRow]]:
    """Group aliases that are not deleted by name, all or only those with a given name. In each group the first tenant's
    alias comes first, then the aliases that it hides.
    """
    query = select(AliasRow).where(AliasRow.tenant.in_(tenants), AliasRow.adapter_id.is_not(None))
    if name is not None:
        query = query.where(AliasRow.name == storable(name))
    by_name: dict[str, list[AliasRow]] = {}
    for row in sorted(session.scalars(query), key=lambda row: (row.name, tenants.index(row.tenant))):
        by_name.setdefault(row.name, []).append(row)
    return by_name


def foreign_name_rows(session: Session, tenants: Sequence[str], name: str | None = None) -> list[AliasRow]:
    """Return foreign names, all or one, ordered by name; of each name, the first tenant's entry."""
    query = select(AliasRow).where(
        AliasRow.tenant.in_(tenants), AliasRow.stands_for.is_not(None), AliasRow.adapter_id.is_(None)
    )
    if name is not None:
        query = query.where(AliasRow.name == storable(name))
    by_name: dict[str, AliasRow] = {}
    for row in sorted(session.scalars(query), key=lambda row: (row.name, tenants.index(row.tenant))):
        by_name.setdefault(row.name, row)
    return list(by_name.values())


def _rank(row: AdapterRow, tenants: Sequence[str]) -> tuple[bool, bool, int]:
    return row.deleting_at is not None, not row.published, tenants.index(row.tenant)
