"""Apply the retention policy: find what it covers, and delete it. The worker tier and `mens retention` do the same.

By the time of its deletion, a finding may be needed again, so each deletion checks once more and keeps it in that case.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Literal

from sqlalchemy import select

from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import ArtifactKind
from shared.database.connection import Database
from shared.database.deletions import Deletions, open_jobs
from shared.database.jobs import add_events
from shared.database.records import Kind, NewEvent, Value
from shared.database.tables.jobs import JobRow
from shared.errors import Conflict, NotFound
from shared.host import measure_folder
from shared.retention.inventory import (
    MODEL,
    MODEL_DELETED,
    Inventory,
    models_that_are_bases,
    prepared_files,
    run_folders,
    take_inventory,
)
from shared.retention.job_records import JobRecord, measure_records, remove_records
from shared.retention.policy import (
    Policy,
    adapters_to_delete,
    days,
    models_to_delete,
    prepared_to_remove,
    run_folders_to_remove,
)
from shared.retention.unreferenced import remove_unreferenced, unreferenced_folders
from shared.settings import RetentionSettings

What = Literal[
    "adapter",
    "checkpoint",
    "run folder",
    "job log",
    "job series",
    "merged model",
    "leftover adapter",
    "leftover model",
    "prepared data",
]
UNREFERENCED: dict[ArtifactKind, What] = {"adapters": "leftover adapter", "models": "leftover model"}

logger = logging.getLogger(__name__)


class Finding(Value):
    """Something that the policy deletes. An adapter's ``bytes`` are freed once every replica has unloaded it."""

    what: What
    name: str
    tenant: str = ""
    bytes: int
    reason: str


class RetentionRunner:
    """The policy of the settings, on one database, storage and disk."""

    def __init__(self, database: Database, settings: RetentionSettings) -> None:
        self._db = database
        self._settings = settings
        self._storage = open_storage(settings)
        self._policy = policy_of(settings)

    def find(self) -> list[Finding]:
        """List the policy's current findings; nothing is changed."""
        inventory = take_inventory(self._db, self._settings.retain_alias_moves)
        in_database = [
            *self._adapters(inventory),
            *self._run_folders(inventory),
            *self._job_records(inventory, "job log"),
            *self._job_records(inventory, "job series"),
            *self._models(inventory),
        ]
        return [*in_database, *self._unreferenced(), *self._prepared(inventory)]

    def remove(self, finding: Finding) -> bool:
        """Delete a finding, or begin to; return False if something needs it now, or it is gone already."""
        match finding.what:
            case "merged model" | "leftover model" if finding.name in self._bases():
                return False
            case "adapter" | "checkpoint":
                return self._delete_adapter(finding)
            case "merged model":
                return self._delete_model(finding.name)
            case "leftover adapter" | "leftover model":
                kind: ArtifactKind = "adapters" if finding.what == UNREFERENCED["adapters"] else "models"
                return remove_unreferenced(self._db, self._storage, kind, finding.name)
            case "job log" | "job series":
                return remove_records(self._db, finding.what, finding.name)
            case "run folder" | "prepared data":
                of_jobs = finding.what == "run folder"
                return _discard((self._settings.runs_dir if of_jobs else self._settings.prepared_dir) / finding.name)

    def apply(self) -> list[Finding]:
        """Delete everything that the policy covers now; return the deleted findings."""
        return self._remove(self.find())

    def apply_on_this_machine(self) -> list[Finding]:
        """Delete what the policy covers on this machine's own disk: run folders and encoded data files.

        A worker calls this if the control worker cannot access its disk.
        """
        inventory = take_inventory(self._db, self._settings.retain_alias_moves)
        return self._remove([*self._run_folders(inventory), *self._prepared(inventory)])

    def _remove(self, findings: list[Finding]) -> list[Finding]:
        removed = [finding for finding in findings if self.remove(finding)]
        for finding in removed:
            logger.info("retention: %s %s (%s)", finding.what, finding.name, finding.reason)
        return removed

    def _adapters(self, inventory: Inventory) -> list[Finding]:
        return [
            Finding(
                what="adapter" if adapter.final else "checkpoint",
                name=adapter.id,
                tenant=adapter.tenant,
                bytes=self._stored_bytes("adapters", adapter.digest),
                reason=reason,
            )
            for adapter, reason in adapters_to_delete(inventory.adapters, inventory.uses, self._policy, inventory.now)
        ]

    def _run_folders(self, inventory: Inventory) -> list[Finding]:
        runs, existing = self._settings.runs_dir, set(run_folders(self._settings.runs_dir))
        reason = f"its job has been over for {self._settings.retain_run_days} days"
        return [
            Finding(what="run folder", name=job, bytes=measure_folder(runs / job)[0], reason=reason)
            for job in run_folders_to_remove(inventory.jobs, self._policy, inventory.now)
            if job in existing
        ]

    def _job_records(self, inventory: Inventory, what: JobRecord) -> list[Finding]:
        reason = f"its job has been over for {self._settings.retain_run_days} days"
        sizes = measure_records(self._db, what, run_folders_to_remove(inventory.jobs, self._policy, inventory.now))
        return [Finding(what=what, name=job, bytes=size, reason=reason) for job, size in sizes.items()]

    def _models(self, inventory: Inventory) -> list[Finding]:
        if self._policy.models is None:
            return []
        reason = f"its job has been over for {self._settings.retain_model_days} days"
        needed = inventory.models_needed | self._bases()
        return [
            Finding(what="merged model", name=digest, bytes=self._stored_bytes("models", digest), reason=reason)
            for digest in models_to_delete(inventory.jobs, needed, self._policy, inventory.now)
        ]

    def _unreferenced(self) -> list[Finding]:
        reason = f"no job uses it, and it was stored more than {self._settings.retain_leftover_days} days ago"
        folders = unreferenced_folders(self._db, self._storage, self._policy)
        bases = self._bases() if any(kind == "models" for kind, _ in folders) else frozenset()
        return [
            Finding(what=UNREFERENCED[kind], name=digest, bytes=self._stored_bytes(kind, digest), reason=reason)
            for kind, digest in folders
            if digest not in bases
        ]

    def _prepared(self, inventory: Inventory) -> list[Finding]:
        files = {file.name: file for file in prepared_files(self._settings.prepared_dir)}
        return [
            Finding(
                what="prepared data",
                name=name,
                bytes=files[name].bytes,
                reason=f"last used {files[name].used_at:%Y-%m-%d %H:%M}, and the cache exceeds its limit",
            )
            for name in prepared_to_remove(files.values(), inventory.in_use_since, self._policy)
        ]

    def _bases(self) -> frozenset[str]:
        return models_that_are_bases(self._settings.catalog_path, self._storage)

    def _delete_adapter(self, finding: Finding) -> bool:
        try:
            Deletions(self._db, finding.tenant).begin(finding.name)
        except (Conflict, NotFound):
            return False
        return True

    def _stored_bytes(self, kind: ArtifactKind, digest: str) -> int:
        size = self._storage.measure(kind, digest)
        return size.bytes if size else 0

    def _delete_model(self, digest: str) -> bool:
        """Delete a merged model, and record that in the jobs that made it."""
        with self._db.write() as session:
            merges = session.scalars(select(JobRow).where(JobRow.kind == Kind.MERGE).with_for_update()).all()
            made = [job for job in merges if job.result.get(MODEL) == digest and MODEL_DELETED not in job.result]
            adapters = {job.plan["adapter_digest"] for job in made}
            if not made or any(job.plan.get("adapter_digest") in adapters for job in open_jobs(session)):
                return False
            now = self._db.now(session)
            self._storage.move_to_trash("models", digest)
            for job in made:
                job.result = {**job.result, MODEL_DELETED: now.isoformat()}
                job.version += 1
                add_events(session, job, now, NewEvent(message="The merged model was deleted by the retention policy."))
        # After the commit: removing a model's files takes longer than a transaction may.
        self._storage.purge_trash()
        return True


def policy_of(settings: RetentionSettings) -> Policy:
    """Return the policy of the settings."""
    return Policy(
        checkpoints=settings.retain_checkpoints,
        failed_checkpoints=days(settings.retain_failed_checkpoint_days),
        unaliased=days(settings.retain_unaliased_days),
        run_folders=days(settings.retain_run_days),
        models=days(settings.retain_model_days),
        unreferenced=days(settings.retain_leftover_days),
        prepared_bytes=settings.prepared_bytes,
    )


def _discard(folder: Path) -> bool:
    """Remove a folder, and remains that a killed process left next to it; return whether the folder existed."""
    existed = folder.is_dir()
    # Renamed first, so that no reader finds half a folder.
    with suppress(FileNotFoundError):
        folder.rename(folder.with_name(f".discarded-{uuid.uuid4().hex}"))
    for discarded in folder.parent.glob(".discarded-*"):
        shutil.rmtree(discarded, ignore_errors=True)
    return existed
