"""What an alias may point to: adapters that its tenant sees, that can be asked, and that are on one base."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.errors import Code, Conflict, InvalidRequest, NotFound
from shared.lookup import adapters_by_id
from shared.routing import Routing
from shared.tables import AdapterRow

CHOOSE_ANOTHER = "List what there is with GET /v1/adapters; an alias points to adapters, not to other aliases."


def check_targets(session: Session, tenants: Sequence[str], routing: Routing, remedy: str = CHOOSE_ANOTHER) -> None:
    """Refuse what an alias must not point to; what is found stays as it is until the caller's transaction ends.

    Args:
        remedy: what to do when an adapter is not there.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: an adapter is named twice; ``ALIAS_BASES_DIFFER``.
        NotFound: ``ADAPTER_NOT_FOUND``: unknown, or being deleted. Conflict: ``ADAPTER_NOT_SERVABLE``.
    """
    ids = routing.adapters
    if len(set(ids)) < len(ids):
        raise InvalidRequest(Code.REQUEST_INVALID, "An adapter is named twice, or is its own shadow.", param="targets")
    found = _kept(session, tenants, ids)
    for adapter_id in ids:
        _check_adapter(found.get(adapter_id), adapter_id, remedy)
    _check_bases(sorted({row.base_model for row in found.values()}))


def _kept(session: Session, tenants: Sequence[str], ids: Iterable[str]) -> dict[str, AdapterRow]:
    """Those of the adapters that are there and not being deleted, by id; they stay so until this transaction ends."""
    query = select(AdapterRow).where(
        AdapterRow.tenant.in_(tenants), AdapterRow.id.in_(list(ids)), AdapterRow.deleting_at.is_(None)
    )
    return adapters_by_id(
        session.scalars(query.order_by(AdapterRow.id, AdapterRow.tenant).with_for_update(read=True)), tenants
    )


def _check_adapter(row: AdapterRow | None, adapter_id: str, remedy: str) -> None:
    if row is None:
        raise NotFound(
            Code.ADAPTER_NOT_FOUND,
            f"There is no adapter {adapter_id!r}, or no more.",
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


def _check_bases(bases: Sequence[str]) -> None:
    if len(bases) > 1:
        raise InvalidRequest(
            Code.ALIAS_BASES_DIFFER,
            f"The adapters are on different bases: {', '.join(bases)}.",
            remedy="Use adapters of one base; an alias for each base keeps them apart.",
            param="targets",
        )
