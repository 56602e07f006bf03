"""Tenant view: the jobs, files, evals, adapters, aliases, names, policies, receipts and webhook endpoints that a caller sees and may change.

Routes reach these only through the view, so that every result is limited to the caller's tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from fastapi import Depends

from api.inference.lookup_cache import LookupCache
from api.polling.job_versions import JobVersions
from api.services import Services, ServicesDep
from api.web.auth import Caller, CallerDep
from shared.database.adapters import Adapter, Adapters, PublishedAdapter
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
from shared.retention.shutdown_dates import ShutdownDates, shutdown_dates


class TenantView:
    """The database's operations, limited to one tenant. Each repository is created when a route first uses it.

    Attributes:
        lookup: the gateway's cache of names.
        job_versions: versions of the jobs that this process knows.
    """

    __slots__ = ("_services", "_tenant", "job_versions", "lookup")

    def __init__(self, services: Services, tenant: str) -> None:
        self._services = services
        self._tenant = tenant
        self.lookup: LookupCache = services.lookup
        self.job_versions: JobVersions = services.job_versions

    @property
    def jobs(self) -> Jobs:
        """The tenant's jobs."""
        return self._services.jobs.of(self._tenant)

    @property
    def files(self) -> Files:
        """The tenant's files."""
        return self._services.files.of(self._tenant)

    @property
    def uploads(self) -> Uploads:
        """The tenant's uploads in parts."""
        return self._services.uploads.of(self._tenant)

    def checkpoints(self, job: Job) -> list[Adapter]:
        """Return a job's checkpoints and its result, newest first, without those whose certificates failed."""
        named = job.result.get("adapters", [])
        made = self.adapters.of_job(job.id, named)
        shown = [
            checkpoint
            for checkpoint in made
            if checkpoint.published or (checkpoint.id in named and checkpoint.state != "quarantined")
        ]
        # A later checkpoint may have been registered before an earlier one.
        return sorted(shown, key=lambda checkpoint: (checkpoint.final, checkpoint.step), reverse=True)

    def shutdown_dates(self, adapters: Iterable[Adapter | PublishedAdapter]) -> ShutdownDates:
        """Return the days on which retention deletes these adapters, by tenant and id."""
        jobs = {adapter.job_id for adapter in adapters}
        return shutdown_dates(self._services.database, self._services.settings, jobs)

    @property
    def adapters(self) -> Adapters:
        """The adapters that the tenant sees."""
        return self._services.adapters.of(self._tenant)

    @property
    def aliases(self) -> Aliases:
        """The aliases that the tenant sees."""
        return self._services.aliases.of(self._tenant)

    @property
    def names(self) -> ForeignNames:
        """The tenant's foreign names."""
        return ForeignNames(self._services.database, self._tenant)

    @property
    def deletions(self) -> Deletions:
        """Deletions of the tenant's objects."""
        return Deletions(self._services.database, self._tenant)

    @property
    def policies(self) -> Policies:
        """The tenant's gate policies."""
        return Policies(self._services.database, self._tenant)

    @property
    def receipts(self) -> Receipts:
        """Receipts of the tenant's gates."""
        return Receipts(self._services.database, self._tenant)

    @property
    def shadow_comparisons(self) -> ShadowComparisons:
        """The tenant's shadow comparisons."""
        return ShadowComparisons(self._services.database, self._tenant)

    @property
    def evals(self) -> Evals:
        """The tenant's evals."""
        return Evals(self._services.database, self._tenant)

    @property
    def eval_runs(self) -> EvalRuns:
        """Runs of the tenant's evals."""
        return EvalRuns(self._services.database, self._tenant)

    @property
    def webhook_endpoints(self) -> Endpoints:
        """The tenant's webhook endpoints."""
        return Endpoints(self._services.database, self._tenant)

    @property
    def eval_items(self) -> EvalItems:
        """Items of eval runs; the route has found the run in the view before."""
        return EvalItems(self._services.database)

    def job(self, job_id: str) -> Job:
        """Return a job. A caller who reads that the job succeeded finds its alias moved in the next request."""
        job = self.jobs.get(job_id)
        if job.state is JobState.SUCCEEDED:
            self.lookup.invalidate()  # the worker has moved the alias, in another process
        return job

    def change_job(self, change: Callable[[str], Job], job_id: str) -> Job:
        """Return the job after an operation of :attr:`jobs`. Callers who poll the job in this process see the change at once.

        Raises:
            MensError: from the verb.
        """
        job = change(job_id)
        self.job_versions.forget(job_id)
        return job


def tenant_view(services: Services, caller: Caller) -> TenantView:
    """Return the view of the tenant that a caller acts for."""
    return TenantView(services, caller.tenant)


async def caller_tenant_view(services: ServicesDep, caller: CallerDep) -> TenantView:
    """Return the view of the tenant that the request's caller acts for."""
    return tenant_view(services, caller)


TenantViewDep = Annotated[TenantView, Depends(caller_tenant_view)]
