"""Refuse a base's name that other names already use, and the removal of a base that any tenant still needs."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from shared.database.connection import Database
from shared.database.deletions import open_jobs
from shared.database.tables.adapters import AdapterRow
from shared.database.tables.names import AliasRow
from shared.errors import Code, Conflict, InvalidRequest
from shared.replicas import TrainedWeights

SHOWN = 5


def refuse_taken_name(database: Database, name: str) -> None:
    """Refuse a name for a new base if requests of any tenant use it, or will use it once a job has ended: the base
    would answer them.

    Raises:
        InvalidRequest: ``NAME_INVALID``.
    """
    try:
        with database.read() as session:
            aliases, jobs = _aliases_of(session, name), _jobs_for(session, name)
    except ProgrammingError:
        return  # PostgreSQL without our tables: no names exist yet
    if aliases:
        kind, command = ("foreign name", "names remove") if aliases[0].stands_for else ("alias", "aliases delete")
        tenant = aliases[0].tenant
        raise InvalidRequest(
            Code.NAME_INVALID,
            f"{name!r} is {'an' if kind == 'alias' else 'a'} {kind} of the tenant {tenant!r}; a base of that name "
            "would answer its requests.",
            remedy=f"Choose another name, or first delete the {kind}: `MENS_TENANT={tenant} mens {command} {name}`.",
            param="name",
            details={"tenants": [alias.tenant for alias in aliases]},
        )
    if jobs:
        raise InvalidRequest(
            Code.NAME_INVALID,
            f"The job {jobs[0]} has not ended and will create the alias {name!r}.",
            remedy=f"Choose another name, or first cancel the job: `mens jobs cancel {jobs[0]}`.",
            param="name",
            details={"jobs": jobs},
        )


def refuse_needed_base(database: Database, name: str) -> None:
    """Refuse to remove a base that adapters, foreign names or unfinished jobs of any tenant need.

    Raises:
        Conflict: ``MODEL_IN_USE``; ``details`` names them.
    """
    with database.read() as session:
        tuned = select(AdapterRow.id).where(AdapterRow.base_model == name, AdapterRow.deleting_at.is_(None))
        adapters = list(session.scalars(tuned.distinct().order_by(AdapterRow.id)))
        mapped = select(AliasRow).where(AliasRow.stands_for.is_not(None), AliasRow.adapter_id.is_(None))
        names = [row.name for row in session.scalars(mapped) if row.stands_for == {"kind": "base", "name": name}]
        jobs = [job.id for job in open_jobs(session) if job.base_model == name]
    users = [f"the adapter {user}" for user in adapters] + [f"the foreign name {user!r}" for user in sorted(names)]
    users += [f"the job {user}" for user in jobs]
    if users:
        more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
        raise Conflict(
            Code.MODEL_IN_USE,
            f"The base {name} is needed by {', '.join(users[:SHOWN])}{more}.",
            remedy=(
                "Delete the adapters (`mens models delete ID`) and names, and cancel the jobs or wait until they "
                "have finished."
            ),
            param="model",
            details={"adapters": adapters, "names": sorted(names), "jobs": jobs},
        )


class Needed(NamedTuple):
    """A base that an adapter needs.

    Attributes:
        base: its name.
        original: whether its twin cannot serve the adapter.
    """

    base: str
    original: bool


def aliases_by_base(database: Database) -> dict[Needed, list[str]]:
    """Return every tenant's aliases by the base that their adapters need."""
    with database.read() as session:
        rows = session.execute(
            select(AdapterRow.base_model, AdapterRow.manifest, AliasRow.name)
            .join(AdapterRow, AdapterRow.id == AliasRow.adapter_id)
            .where(AdapterRow.deleting_at.is_(None))
            .order_by(AdapterRow.base_model, AliasRow.name)
        )
        names: dict[Needed, list[str]] = {}
        for base, manifest, alias in rows:
            trained = TrainedWeights.of(manifest)
            needed = Needed(base, trained is not None and trained.base_quant == "none")
            names[needed] = list(dict.fromkeys([*names.get(needed, []), alias]))
    return names


def _aliases_of(session: Session, name: str) -> list[AliasRow]:
    """Return every tenant's alias or foreign name with this name; aliases first."""
    exists = or_(AliasRow.adapter_id.is_not(None), AliasRow.stands_for.is_not(None))
    rows = session.scalars(select(AliasRow).where(AliasRow.name == name, exists).order_by(AliasRow.tenant))
    return sorted(rows, key=lambda row: row.adapter_id is None)


def _jobs_for(session: Session, alias: str) -> list[str]:
    """Return the ids of the unfinished jobs that move an alias of that name when they publish."""
    return [job.id for job in open_jobs(session) if (job.contract.get("artifact") or {}).get("alias") == alias]
