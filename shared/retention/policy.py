"""What may go, by the installation's retention policy. Pure: facts in, what goes and why out.

Nothing goes that an alias points to, that one of its last moves would go back to, or that an unfinished job needs; and no
rule that names an age touches what is younger. Without a policy nothing goes at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Policy:
    """How long things are kept; None is for ever.

    Attributes:
        checkpoints: of each job, so many of its newest checkpoints are kept.
        unaliased: an adapter to which no alias has pointed for so long goes.
        run_folders: a finished job's run folder goes after so long.
        models: a merged model goes so long after its job.
        leftovers: stored folders that no job has to show for go after so long.
        prepared_bytes: prepared data is kept up to so many bytes; what was used longest ago goes first.
    """

    checkpoints: int | None = None
    unaliased: timedelta | None = None
    run_folders: timedelta | None = None
    models: timedelta | None = None
    leftovers: timedelta | None = None
    prepared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter of a tenant that is not being deleted. ``final`` marks a job's result, the others are its checkpoints."""

    tenant: str
    id: str
    digest: str
    job_id: str
    step: int
    final: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Uses:
    """What needs adapters.

    Attributes:
        needed: ids that aliases point to or might go back to, and those of unfinished jobs.
        left_at: when an alias last ceased to point to an id.
    """

    needed: Collection[str] = frozenset()
    left_at: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PastJob:
    """A finished job; ``model`` is the digest of the merged model that it made and that is there still."""

    id: str
    finished_at: datetime
    model: str | None = None


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """An artifact's folder in the storage, whole or not."""

    digest: str
    written_at: datetime


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """An encoded data file in the cache, named by its content."""

    name: str
    bytes: int
    used_at: datetime


def adapters_to_delete(
    adapters: Iterable[StoredAdapter], uses: Uses, policy: Policy, now: datetime
) -> list[tuple[StoredAdapter, str]]:
    """Adapters that go, each with why, in the order given."""
    found = list(adapters)
    surplus = _surplus_checkpoints(found, policy.checkpoints)
    return [
        (adapter, reason)
        for adapter in found
        if adapter.id not in uses.needed and (reason := _why(adapter, adapter in surplus, uses, policy, now))
    ]


def run_folders_to_remove(jobs: Iterable[PastJob], policy: Policy, now: datetime) -> list[str]:
    """Ids of the finished jobs whose run folders go."""
    return [job.id for job in jobs if _is_over(job.finished_at, policy.run_folders, now)]


def models_to_delete(jobs: Iterable[PastJob], needed: Collection[str], policy: Policy, now: datetime) -> list[str]:
    """Digests of the merged models that go: a model that several jobs made goes by the last of them.

    Args:
        jobs: all finished ones.
        needed: digests that unfinished jobs might make again.
        policy: how long they are kept.
        now: the time.
    """
    made: dict[str, datetime] = {}
    for job in jobs:
        if job.model is not None and job.model not in needed:
            made[job.model] = max(job.finished_at, made.get(job.model, job.finished_at))
    return [digest for digest, finished_at in made.items() if _is_over(finished_at, policy.models, now)]


def leftovers_to_remove(
    stored: Iterable[StoredFolder], known: Collection[str], policy: Policy, now: datetime
) -> list[str]:
    """Digests of the stored folders that go.

    Args:
        stored: all of a shelf.
        known: digests that a job has to show for, or is about to.
        policy: how long the others are kept.
        now: the time.
    """
    return [
        folder.digest
        for folder in stored
        if folder.digest not in known and _is_over(folder.written_at, policy.leftovers, now)
    ]


def prepared_to_remove(files: Iterable[PreparedFile], in_use_since: datetime | None, policy: Policy) -> list[str]:
    """Names of the prepared files that go, until the others fit.

    Args:
        files: all that are there.
        in_use_since: when the first of the running jobs began: it may read whatever was used since; None: none runs.
        policy: how many bytes are kept.
    """
    if policy.prepared_bytes is None:
        return []
    found = sorted(files, key=lambda file: (file.used_at, file.name))
    left, going = sum(file.bytes for file in found), []
    for file in found:
        if left <= policy.prepared_bytes or (in_use_since is not None and file.used_at >= in_use_since):
            break
        going.append(file.name)
        left -= file.bytes
    return going


def _surplus_checkpoints(adapters: Iterable[StoredAdapter], kept: int | None) -> set[StoredAdapter]:
    if kept is None:
        return set()
    by_job: dict[tuple[str, str], list[StoredAdapter]] = defaultdict(list)
    for adapter in adapters:
        if not adapter.final:
            by_job[adapter.tenant, adapter.job_id].append(adapter)
    ordered = (sorted(made, key=lambda adapter: adapter.step, reverse=True) for made in by_job.values())
    return {adapter for made in ordered for adapter in made[kept:]}


def _why(adapter: StoredAdapter, is_surplus: bool, uses: Uses, policy: Policy, now: datetime) -> str | None:
    if is_surplus:
        return f"not among the job's last {policy.checkpoints} checkpoints"
    pointed_to = uses.left_at.get(adapter.id)
    since = max(adapter.created_at, pointed_to or adapter.created_at)
    if not _is_over(since, policy.unaliased, now):
        return None
    return f"no alias since {since:%Y-%m-%d}" if pointed_to else f"no alias since it was made, {since:%Y-%m-%d}"


def _is_over(since: datetime, kept: timedelta | None, now: datetime) -> bool:
    return kept is not None and now - since > kept
