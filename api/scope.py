"""What a caller sees and may change: the ledger, registry and aliases as the tenant that they act for sees them.

Routes reach jobs, files, adapters and aliases through this alone, so that none can forget whom it answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends

from api.authentication import Caller, CallerDep
from api.directory import Directory
from api.services import Services, ServicesDep
from shared.aliases import Aliases
from shared.deletion import Deletions
from shared.job import Job
from shared.jobstate import State
from shared.ledger import Ledger
from shared.registry import Registry


@dataclass(frozen=True, slots=True)
class Scope:
    """The verbs of one tenant."""

    ledger: Ledger
    registry: Registry
    aliases: Aliases
    deletions: Deletions
    directory: Directory

    def job(self, job_id: str) -> Job:
        """A job as its caller shall see it: whoever is told that it succeeded finds its alias moved.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
        """
        job = self.ledger.get(job_id)
        if job.state is State.SUCCEEDED:
            self.directory.expect_change()  # the worker, another process, has moved it
        return job


def scope_of(services: Services, caller: Caller) -> Scope:
    """The verbs of the tenant that a caller acts for."""
    tenant = caller.tenant
    return Scope(
        ledger=services.ledger.of(tenant),
        registry=services.registry.of(tenant),
        aliases=services.aliases.of(tenant),
        deletions=Deletions(services.database, tenant),
        directory=services.directory,
    )


async def callers_scope(services: ServicesDep, caller: CallerDep) -> Scope:
    """The verbs of the tenant that the request's caller acts for."""
    return scope_of(services, caller)


ScopeDep = Annotated[Scope, Depends(callers_scope)]
