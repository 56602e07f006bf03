"""States of a name's row: adapters that answer, the target of a foreign name, or deleted."""

from __future__ import annotations

from typing import Any

from shared.database.routing import Routing, StandsFor
from shared.database.tables.names import AliasRow


def state_of(row: AliasRow) -> Routing | StandsFor | None:
    """Return the routing of an alias, or the target of a foreign name; None when the name is deleted."""
    if row.adapter_id is None:
        return StandsFor.model_validate(row.stands_for) if row.stands_for else None
    # A worker of the previous release changes only `adapter_id`, so the routing counts only if it names that adapter.
    stored = Routing.model_validate(row.routing) if row.routing else None
    return stored if stored and stored.main == row.adapter_id else Routing.to(row.adapter_id)


def stored_state(state: Routing | StandsFor | None) -> dict[str, Any] | None:
    """Convert a state to its stored form."""
    return state.model_dump(mode="json") if state else None
