"""Point an alias to a finished job's adapter, unless a policy prevents it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shared.database.names.aliases import Actor, move_alias
from shared.database.names.move_evidence import Standing, Terms
from shared.database.records import NewEvent
from shared.database.routing import Routing
from shared.database.tables.names import AliasRow
from shared.errors import Conflict


@dataclass(frozen=True, slots=True)
class Publication:
    """Outcome of moving the alias.

    Attributes:
        message: message of the job's last event.
        refusal: why the alias stays, if it does.
    """

    alias: str
    message: str
    refusal: Conflict | None = None

    def result(self) -> dict[str, Any]:
        """Return the part of the job's result about the alias."""
        moved = {"name": self.alias, "moved": self.refusal is None}
        return moved if self.refusal is None else moved | {"error": self.refusal.as_dict()}

    def warnings(self) -> list[NewEvent]:
        """Return the warning to the job's owner about a refusal."""
        if self.refusal is None:
            return []
        message = f"{self.refusal.code}: {self.refusal.message}"
        return [NewEvent(level="warn", message=message, data={"error": self.refusal.as_dict()})]


def publish_to_alias(
    session: Session, alias: AliasRow, before: Standing, adapter_id: str, job_id: str, now: datetime, terms: Terms
) -> Publication:
    """Point a job's alias, which is locked, to its adapter.

    Args:
        before: state of the alias until now.
    """
    to = Routing.to(adapter_id)
    try:
        hidden = move_alias(session, alias, before, to, Actor.job(job_id), "The job succeeded.", now, terms)
    except Conflict as refusal:
        stays = f"stays at {before.incumbent.id}" if before.incumbent else "does not point to it"
        return Publication(alias.name, f" The alias {alias.name} {stays}: {refusal.code}.", refusal)
    hides = f" and hides {hidden}'s alias {alias.name} from {alias.tenant}, until it is deleted." if hidden else "."
    return Publication(alias.name, f" The alias {alias.name} points to it{hides}")
