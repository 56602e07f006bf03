"""The database, storage and disk on which a retention policy works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME
from shared.database.adapters import Adapters
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Lease, Leases
from shared.database.names.aliases import Aliases
from shared.database.records import Kind
from shared.database.tenancy import SHARED
from shared.retention.cleanup import Finding, RetentionRunner
from shared.settings import RetentionSettings
from tests.support.builders import claimed, new_adapter
from tests.support.clock import Clock


class Home:
    """An installation with a clock that the test sets."""

    def __init__(self, folder: Path, database: Database, clock: Clock) -> None:
        self.folder, self.database, self.clock = folder, database, clock
        self.jobs, self.leases = Jobs(database), Leases(database, 1e9)
        self.storage, self.aliases = FolderStorage(folder / "storage"), Aliases(database)

    def keep(self, **policy: Any) -> RetentionRunner:
        return RetentionRunner(self.database, RetentionSettings(home=self.folder, **policy))

    def train(self, *letters: str, tenant: str = SHARED, run_bytes: int = 0) -> str:
        """A finished job with one adapter for each letter; all but the last are its checkpoints."""
        lease = claimed(self.jobs.of(tenant), self.leases)
        made = [
            new_adapter(f"demo@{letter * 64}", digest=letter * 64, step=number, final=letter == letters[-1])
            for number, letter in enumerate(letters)
        ]
        for adapter in made:
            self.store("adapters", adapter.digest, MANIFEST_NAME)
        if run_bytes:
            self.write(self.folder / "runs" / lease.job.id / "attempt-0001" / "engine.log", run_bytes)
        self.leases.finish(lease, {}, adapters=made)
        return lease.job.id

    def merging(self, letter: str) -> Lease:
        """A running merge."""
        plan = {"adapter_id": f"demo@{letter * 64}", "adapter_digest": letter * 64}
        return claimed(self.jobs, self.leases, kind=Kind.MERGE, plan=plan)

    def merge(self, letter: str, digest: str) -> str:
        """A finished merge; return the job's id."""
        lease = self.merging(letter)
        self.store("models", digest, MODEL_MANIFEST_NAME)
        self.leases.finish(lease, {"model_digest": digest})
        return lease.job.id

    def store(self, kind: Any, digest: str, manifest: str) -> None:
        made = self.folder / "made"
        for name in ("weights", manifest):
            self.write(made / name, 100)
        self.storage.put_folder(kind, digest, made, ["weights"], manifest)
        for path in self.storage.folder(kind, digest).iterdir():
            self.date(path)

    def prepare(self, name: str, size: int) -> None:
        """Encoded data that was used just now."""
        self.write(self.folder / "prepared" / name / "ids.bin", size)

    def write(self, path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        self.date(path)

    def date(self, path: Path) -> None:
        """Mark a file as written just now."""
        moment = self.clock.now.timestamp()
        os.utime(path, (moment, moment))

    def prepared(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "prepared").iterdir())

    def states(self, *letters: str) -> list[str]:
        adapters = Adapters(self.database)
        return [adapters.get(f"demo@{letter * 64}", deleted=True).state for letter in letters]


def named(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.what, finding.name.partition("@")[2][:1] or finding.name) for finding in found]
