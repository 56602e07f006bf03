"""Check the adapters that an alias may point to: they are visible to its tenant, published, and of one base."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.database.routing import Routing
from shared.database.tables.adapters import AdapterRow
from shared.database.visibility import adapters_by_id
from shared.errors import Code, Conflict, InvalidRequest, NotFound

CHOOSE_ANOTHER = "List the adapters with GET /v1/adapters; an alias points to adapters, not to other aliases."
FURTHER_BACK = (
    "An alias cannot be rolled back to a deleted adapter. To roll back further, "
    "name the version (to_version) of a move whose adapters still exist."
)
"""Remedies for an adapter that does not exist: in a normal move, and in a rollback."""


def check_targets(session: Session, tenants: Sequence[str], routing: Routing, remedy: str = CHOOSE_ANOTHER) -> None:
    """Refuse a routing with adapters that an alias must not point to.

    The adapters' rows are locked against change until the caller's transaction ends.

    Args:
        remedy: what to do when an adapter does not exist.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: an adapter is named twice; ``ALIAS_BASES_DIFFER``.
        NotFound: ``ADAPTER_NOT_FOUND``: unknown, or being deleted.
        Conflict: ``ADAPTER_NOT_SERVABLE``.
    """
    ids = routing.adapters
    if len(set(ids)) < len(ids):
        raise InvalidRequest(Code.REQUEST_INVALID, "An adapter is named twice, or is its own shadow.", param="targets")
    query = select(AdapterRow).where(
        AdapterRow.tenant.in_(tenants), AdapterRow.id.in_(ids), AdapterRow.deleting_at.is_(None)
    )
    # A shared lock: other aliases may be moved to the same adapters meanwhile, but no deletion of one can begin.
    locked = query.order_by(AdapterRow.id, AdapterRow.tenant).with_for_update(read=True)
    adapters = adapters_by_id(session.scalars(locked), tenants)
    for adapter_id in ids:
        _check_adapter(adapters.get(adapter_id), adapter_id, remedy)
    bases = sorted({row.base_model for row in adapters.values()})
    if len(bases) > 1:
        raise InvalidRequest(
            Code.ALIAS_BASES_DIFFER,
            f"The adapters are on different bases: {', '.join(bases)}.",
            remedy="Use adapters of one base; an alias for each base keeps them apart.",
            param="targets",
        )


def _check_adapter(row: AdapterRow | None, adapter_id: str, remedy: str) -> None:
    if row is None:
        raise NotFound(
            Code.ADAPTER_NOT_FOUND,
            f"The adapter {adapter_id!r} does not exist, or it was deleted.",
            remedy=remedy,
            param="targets",
        )
    if not row.published:
        raise Conflict(
            Code.ADAPTER_NOT_SERVABLE,
            f"{adapter_id} {'is quarantined: a certificate failed' if row.certificates else 'was not published'}.",
            remedy="Read its certificates." if row.certificates else "Train it with artifact.publish = true.",
            param="targets",
        )
