"""The rule of the queue: which job is claimed when a worker is free. docs/jobs.md explains it.

1. A tenant's first job is the one with the earliest ``queued_at - priority * 12 h``: one level of priority is worth
   twelve hours, so no job waits indefinitely, whatever its priority.
2. Among the tenants' first jobs, the one of the highest level comes first. A job's level is its priority, plus one for
   every twelve hours that it has waited while no job of its tenant ran.
3. Within a level, the job of the tenant that has used the least GPU time in the last 24 hours comes first; the holds of
   running jobs count as used.
4. Otherwise, the order of submission decides.

A tenant at its limit of running jobs is skipped, and so is a job that holds more than is left of its tenant's month.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shared.scheduling.types import PRIORITY_SECONDS, Allowance, Blocked, QueuedJob, QueueState, Share


class FairQueue:
    """A queue from which jobs are taken one after the other.

    Args:
        state: the queue's state; it is not modified.
    """

    def __init__(self, state: QueueState) -> None:
        self._shares = {
            tenant: Share(share.used, share.running, share.served_at) for tenant, share in state.shares.items()
        }
        self._allowances = {
            tenant: Allowance(allowance.running, allowance.gpu_seconds)
            for tenant, allowance in state.allowances.items()
        }
        self._waiting: dict[str, list[QueuedJob]] = defaultdict(list)
        for job in state.queued:
            self._waiting[job.tenant].append(job)
        for jobs in self._waiting.values():
            jobs.sort(key=_order_in_tenant)
        self._too_large: list[QueuedJob] = []  # too large for the rest of their tenant's month, which only shrinks

    def next(self, now: float) -> QueuedJob | None:
        """Return the job for a free worker; None if none may be taken now. It stays queued until :meth:`start`."""
        firsts = [self._first_of(tenant, now) for tenant in self._waiting]
        return min((job for job in firsts if job), key=lambda job: self._order(job, now), default=None)

    def start(self, job: QueuedJob) -> None:
        """Remove a job that runs now; its hold counts as used."""
        self.drop(job)
        share = self._shares.setdefault(job.tenant, Share())
        share.running += 1
        share.used += job.hold
        left = self._allowances.get(job.tenant)
        if left and left.gpu_seconds is not None:
            left.gpu_seconds -= job.hold

    def end(self, tenant: str, now: float) -> None:
        """Record that a job of a tenant has ended, and has used its hold."""
        share = self._shares.setdefault(tenant, Share())
        share.running, share.served_at = share.running - 1, now

    def drop(self, job: QueuedJob) -> None:
        """Remove a job that no longer waits."""
        self._waiting[job.tenant].remove(job)

    def blocked(self, job: QueuedJob) -> Blocked | None:
        """Return why a job cannot be taken now, regardless of other waiting jobs."""
        may = self._allowances.get(job.tenant)
        if may is None:
            return None
        if may.running is not None and self._share(job.tenant).running >= may.running:
            return Blocked.RUNNING_JOBS
        if may.gpu_seconds is not None and job.hold > may.gpu_seconds:
            return Blocked.GPU_MINUTES
        return None

    def level(self, job: QueuedJob, now: float) -> int:
        """Return the priority, plus one for every twelve hours that it has waited while no job of its tenant ran."""
        share = self._share(job.tenant)
        since = now if share.running else max(job.queued_at, share.served_at or 0.0)
        return job.priority + int(max(0.0, now - since) // PRIORITY_SECONDS)

    def used(self, tenant: str) -> float:
        """Return a tenant's GPU-seconds of the last 24 hours, holds included."""
        return self._share(tenant).used

    def waiting(self) -> Iterable[QueuedJob]:
        """Return the remaining jobs, in arbitrary order."""
        return [*self._too_large, *(job for jobs in self._waiting.values() for job in jobs)]

    def _first_of(self, tenant: str, now: float) -> QueuedJob | None:
        jobs, at = self._waiting[tenant], 0
        while at < len(jobs):
            blocked = self.blocked(jobs[at])
            if blocked is Blocked.RUNNING_JOBS:
                return None
            if blocked is Blocked.GPU_MINUTES:
                self._too_large.append(jobs.pop(at))
            elif jobs[at].ready_at <= now:
                return jobs[at]
            else:
                at += 1
        return None

    def _order(self, job: QueuedJob, now: float) -> tuple[float, float, float, str]:
        return -self.level(job, now), self.used(job.tenant), job.queued_at, job.id

    def _share(self, tenant: str) -> Share:
        return self._shares.get(tenant) or Share()


def _order_in_tenant(job: QueuedJob) -> tuple[float, float, str]:
    return job.queued_at - job.priority * PRIORITY_SECONDS, job.queued_at, job.id
