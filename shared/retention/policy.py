"""Decisions of the retention policy, with reasons. Pure: facts in, decisions out.

It keeps everything that an alias points to, that a rollback of one of its last moves would need, or that an unfinished
job needs; and a rule with an age keeps everything younger. Without a rule nothing is deleted at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Policy:
    """Retention periods and amounts; None means that they are kept permanently.

    Attributes:
        checkpoints: number of each job's newest checkpoints to keep.
        failed_checkpoints: a checkpoint of a job that failed or was cancelled is deleted this time after the job's end,
            or after an alias last pointed to it.
        unaliased: an adapter is deleted when no alias has pointed to it for this time.
        run_folders: a finished job's run folder is removed after this time.
        models: a merged model is deleted this time after the end of its job.
        unreferenced: stored folders that no job accounts for are removed after this time.
        prepared_bytes: prepared data is kept up to this size; the least recently used is removed first.
    """

    checkpoints: int | None = None
    failed_checkpoints: timedelta | None = None
    unaliased: timedelta | None = None
    run_folders: timedelta | None = None
    models: timedelta | None = None
    unreferenced: timedelta | None = None
    prepared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """A tenant's adapter that is not being deleted. ``final`` marks a job's result, the others are its checkpoints.

    Attributes:
        stopped_at: when its job failed or was cancelled; None: it did neither.
    """

    tenant: str
    id: str
    digest: str
    job_id: str
    step: int
    final: bool
    created_at: datetime
    stopped_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Uses:
    """Adapters that are needed, and since when others are not.

    Attributes:
        needed: ids that aliases point to or might be rolled back to, and those of unfinished jobs.
        left_at: last time at which an alias stopped pointing to an id.
    """

    needed: Collection[str] = frozenset()
    left_at: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PastJob:
    """A finished job; ``model`` is the digest of its merged model, unless that was deleted."""

    id: str
    finished_at: datetime
    model: str | None = None


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """An artifact's folder in the storage, complete or not."""

    digest: str
    written_at: datetime


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """An encoded data file in the cache, named by its content."""

    name: str
    bytes: int
    used_at: datetime


def days(number: float | None) -> timedelta | None:
    """Return a setting's days as a period; None: permanently."""
    return None if number is None else timedelta(days=number)


def adapters_to_delete(
    adapters: Iterable[StoredAdapter], uses: Uses, policy: Policy, now: datetime
) -> list[tuple[StoredAdapter, str]]:
    """Return the adapters to delete, each with the reason, in the order given."""
    stored = list(adapters)
    surplus = _surplus_checkpoints(stored, policy.checkpoints)
    deleted = []
    for adapter in stored:
        if adapter.id in uses.needed:
            continue
        if adapter in surplus:
            deleted.append((adapter, f"not among the job's last {policy.checkpoints} checkpoints"))
            continue
        stopped = _stopped_since(adapter, uses)
        if stopped and _is_older(stopped, policy.failed_checkpoints, now):
            deleted.append((adapter, f"its job failed or was cancelled; without an alias since {stopped:%Y-%m-%d}"))
            continue
        if _is_older(since := _unaliased_since(adapter, uses), policy.unaliased, now):
            left_at = uses.left_at.get(adapter.id)
            reason = f"no alias since {since:%Y-%m-%d}" if left_at else f"no alias since it was made, {since:%Y-%m-%d}"
            deleted.append((adapter, reason))
    return deleted


def adapter_ends(
    adapters: Iterable[StoredAdapter], uses: Uses, policy: Policy, now: datetime
) -> Iterator[tuple[StoredAdapter, datetime]]:
    """Yield the adapters that will be deleted if their uses do not change, each with the earliest time of its deletion."""
    stored = list(adapters)
    due = {adapter for adapter, _ in adapters_to_delete(stored, uses, policy, now)}
    for adapter in stored:
        if adapter in due:
            yield adapter, now
        elif adapter.id not in uses.needed:
            rules = [
                (_unaliased_since(adapter, uses), policy.unaliased),
                (_stopped_since(adapter, uses), policy.failed_checkpoints),
            ]
            ends = [since + kept for since, kept in rules if since and kept is not None]
            if ends:
                yield adapter, min(ends)


def run_folders_to_remove(jobs: Iterable[PastJob], policy: Policy, now: datetime) -> list[str]:
    """Return the ids of the finished jobs whose run folders are removed."""
    return [job.id for job in jobs if _is_older(job.finished_at, policy.run_folders, now)]


def models_to_delete(jobs: Iterable[PastJob], needed: Collection[str], policy: Policy, now: datetime) -> list[str]:
    """Return the digests of the merged models to delete; if several jobs made a model, its age counts from the last
    one.

    Args:
        jobs: all finished jobs.
        needed: digests that unfinished jobs might make again.
        policy: policy with the time for which models are kept.
        now: the time.
    """
    made: dict[str, datetime] = {}
    for job in jobs:
        if job.model is not None and job.model not in needed:
            made[job.model] = max(job.finished_at, made.get(job.model, job.finished_at))
    return [digest for digest, finished_at in made.items() if _is_older(finished_at, policy.models, now)]


def unreferenced_to_remove(
    stored: Iterable[StoredFolder], referenced: Collection[str], policy: Policy, now: datetime
) -> list[str]:
    """Return the digests of the stored folders to remove.

    Args:
        stored: all stored folders of a kind.
        referenced: digests that a job accounts for: it stored them, or is about to.
        policy: policy with the time for which unreferenced folders are kept.
        now: the time.
    """
    return [
        folder.digest
        for folder in stored
        if folder.digest not in referenced and _is_older(folder.written_at, policy.unreferenced, now)
    ]


def prepared_to_remove(files: Iterable[PreparedFile], in_use_since: datetime | None, policy: Policy) -> list[str]:
    """Return the names of the prepared files to remove so that the others fit.

    Args:
        files: all files in the cache.
        in_use_since: when the first of the running jobs began: it may read any file used since; None: no job runs.
        policy: policy with the bound on bytes.
    """
    if policy.prepared_bytes is None:
        return []
    by_use = sorted(files, key=lambda file: (file.used_at, file.name))
    left, removed = sum(file.bytes for file in by_use), []
    for file in by_use:
        if left <= policy.prepared_bytes or (in_use_since is not None and file.used_at >= in_use_since):
            break
        removed.append(file.name)
        left -= file.bytes
    return removed


def _surplus_checkpoints(adapters: Iterable[StoredAdapter], kept: int | None) -> set[StoredAdapter]:
    if kept is None:
        return set()
    by_job: dict[tuple[str, str], list[StoredAdapter]] = defaultdict(list)
    for adapter in adapters:
        if not adapter.final:
            by_job[adapter.tenant, adapter.job_id].append(adapter)
    ordered = (sorted(made, key=lambda adapter: adapter.step, reverse=True) for made in by_job.values())
    return {adapter for made in ordered for adapter in made[kept:]}


def _unaliased_since(adapter: StoredAdapter, uses: Uses) -> datetime:
    return max(adapter.created_at, uses.left_at.get(adapter.id, adapter.created_at))


def _stopped_since(adapter: StoredAdapter, uses: Uses) -> datetime | None:
    """Return since when a checkpoint belongs to a failed or cancelled job and no alias; None: it does not."""
    if adapter.final or adapter.stopped_at is None:
        return None
    return max(adapter.stopped_at, _unaliased_since(adapter, uses))


def _is_older(since: datetime, kept: timedelta | None, now: datetime) -> bool:
    return kept is not None and now - since > kept
