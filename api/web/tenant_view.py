"""Tenant view: the jobs, files, evals, adapters, aliases, names, policies, receipts and webhook endpoints that a caller sees and may change.

Routes reach these only through the view, so that none can forget to limit its results to the caller's tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends

from api.inference.lookup_cache import LookupCache
from api.polling.job_versions import JobVersions
from api.services import Services, ServicesDep
from api.web.auth import Caller, CallerDep
from shared.database.adapters import Adapters
from shared.database.deletions import Deletions
from shared.database.evaluation.evals import Evals
from shared.database.evaluation.items import EvalItems
from shared.database.evaluation.runs import EvalRuns
from shared.database.files.files import Files
from shared.database.files.uploads import Uploads
from shared.database.gates.policies import Policies
from shared.database.gates.receipts import Receipts
from shared.database.gates.shadow_comparisons import ShadowComparisons
from shared.database.job_states import JobState
from shared.database.jobs import Jobs
from shared.database.names.aliases import Aliases
from shared.database.names.foreign_names import ForeignNames
from shared.database.records import Job
from shared.database.webhooks.endpoints import Endpoints


@dataclass(frozen=True, slots=True)
class TenantView:
    """The verbs of the database, limited to one tenant."""

    jobs: Jobs
    files: Files
    uploads: Uploads
    adapters: Adapters
    aliases: Aliases
    names: ForeignNames
    deletions: Deletions
    policies: Policies
    receipts: Receipts
    shadow_comparisons: ShadowComparisons
    lookup: LookupCache
    job_versions: JobVersions
    evals: Evals
    eval_runs: EvalRuns
    eval_items: EvalItems
    webhook_endpoints: Endpoints

    def job(self, job_id: str) -> Job:
        """Return a job. A caller who reads that it succeeded finds its alias moved in the next request.

        Raises:
            NotFound: ``JOB_NOT_FOUND``.
        """
        job = self.jobs.get(job_id)
        if job.state is JobState.SUCCEEDED:
            self.lookup.invalidate()  # the worker has moved the alias, in another process
        return job

    def change_job(self, change: Callable[[str], Job], job_id: str) -> Job:
        """Return the job after a verb of :attr:`jobs`. Callers who poll the job in this process see the change at once.

        Raises:
            MensError: from the verb.
        """
        job = change(job_id)
        self.job_versions.forget(job_id)
        return job


def tenant_view(services: Services, caller: Caller) -> TenantView:
    """Return the view of the tenant that a caller acts for."""
    tenant = caller.tenant
    return TenantView(
        jobs=services.jobs.of(tenant),
        files=services.files.of(tenant),
        uploads=services.uploads.of(tenant),
        adapters=services.adapters.of(tenant),
        aliases=services.aliases.of(tenant),
        names=ForeignNames(services.database, tenant),
        deletions=Deletions(services.database, tenant),
        policies=Policies(services.database, tenant),
        receipts=Receipts(services.database, tenant),
        shadow_comparisons=ShadowComparisons(services.database, tenant),
        lookup=services.lookup,
        job_versions=services.job_versions,
        evals=Evals(services.database, tenant),
        eval_runs=EvalRuns(services.database, tenant),
        eval_items=EvalItems(services.database),
        webhook_endpoints=Endpoints(services.database, tenant),
    )


async def caller_tenant_view(services: ServicesDep, caller: CallerDep) -> TenantView:
    """Return the view of the tenant that the request's caller acts for."""
    return tenant_view(services, caller)


TenantViewDep = Annotated[TenantView, Depends(caller_tenant_view)]
