"""The stored adapter that a name stands for: an id, an alias, a foreign name, or a checkpoint of one."""

from __future__ import annotations

from shared.database.adapters import Adapter, Adapters
from shared.database.names.foreign_names import ForeignNames
from shared.errors import Code, Conflict, NotFound


def find_to_continue(adapters: Adapters, names: ForeignNames, name: str, param: str) -> Adapter:
    """Return the adapter that a run may continue from; for a split alias, the adapter with the most weight.

    Args:
        param: the request's field that has the name.

    Raises:
        NotFound: ``ADAPTER_NOT_FOUND``.
        Conflict: ``CONTINUE_NOT_READY``: it is quarantined or being deleted.
    """
    adapter = _find(adapters, names, name)
    if adapter is None or adapter.state == "deleted":
        raise NotFound(
            Code.ADAPTER_NOT_FOUND,
            f"The adapter {name!r} {'does not exist' if adapter is None else 'was deleted'}.",
            remedy="List the available models with GET /v1/models; a base is named in model.hf_repo.",
            param=param,
        )
    reasons = {
        "quarantined": (
            "is quarantined, because one of its certificates failed",
            "Look at it with `mens models show ID`",
        ),
        "deleting": ("is being deleted", "List the available models with GET /v1/models"),
    }
    if reason := reasons.get(adapter.state):
        raise Conflict(
            Code.CONTINUE_NOT_READY,
            f"{adapter.id} {reason[0]}.",
            remedy=f"{reason[1]}, or continue from another adapter.",
            param=param,
        )
    return adapter


def first_comparison(adapters: Adapters, parent_id: str | None, base: str) -> str:
    """Return the model that a new alias's first adapter is compared with: its parent if that answers requests, else its base."""
    published = adapters.with_ids([parent_id], published_only=True) if parent_id else []
    return published[0].id if published else base


def _find(adapters: Adapters, names: ForeignNames, name: str) -> Adapter | None:
    try:
        return adapters.get(name, deleted=True)
    except NotFound:
        destination = names.resolve(name)
    return adapters.get(destination.routing.main) if destination and destination.routing else None
