"""A retention policy's database, storage and disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shared.aliases import Aliases
from shared.db import Database
from shared.housekeeping import Finding, Housekeeping
from shared.job import Kind
from shared.lease import Lease, LeaseLedger
from shared.ledger import Ledger
from shared.manifest import MANIFEST_NAME
from shared.model_manifest import MODEL_MANIFEST_NAME
from shared.registry import Registry
from shared.settings import RetentionSettings
from shared.storage import Storage
from shared.tenancy import SHARED
from tests.shared.conftest import Clock
from tests.shared.samples import claimed, new_adapter


class Home:
    """An installation whose clock we move."""

    def __init__(self, folder: Path, database: Database, clock: Clock) -> None:
        self.folder, self.database, self.clock = folder, database, clock
        self.ledger, self.leases = Ledger(database), LeaseLedger(database, 1e9)
        self.storage, self.aliases = Storage(folder / "storage"), Aliases(database)

    def keep(self, **policy: Any) -> Housekeeping:
        return Housekeeping(self.database, RetentionSettings(home=self.folder, **policy))

    def train(self, *letters: str, tenant: str = SHARED, run_bytes: int = 0) -> str:
        """A finished job whose adapters are named by letters; all but the last are its checkpoints."""
        lease = claimed(self.ledger.of(tenant), self.leases)
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
        """A merge that runs."""
        plan = {"adapter_id": f"demo@{letter * 64}", "adapter_digest": letter * 64}
        return claimed(self.ledger, self.leases, kind=Kind.MERGE, plan=plan)

    def merge(self, letter: str, digest: str) -> str:
        """A merge that is over; the job's id."""
        lease = self.merging(letter)
        self.store("models", digest, MODEL_MANIFEST_NAME)
        self.leases.finish(lease, {"model_digest": digest})
        return lease.job.id

    def store(self, kind: Any, digest: str, manifest: str) -> None:
        made = self.folder / "made"
        for name in ("weights", manifest):
            self.write(made / name, 100)
        for path in self.storage.put_folder(kind, digest, made, ["weights"], manifest).iterdir():
            self.date(path)

    def prepare(self, name: str, size: int) -> None:
        """Encoded data that was used now."""
        self.write(self.folder / "prepared" / name / "ids.bin", size)

    def write(self, path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        self.date(path)

    def date(self, path: Path) -> None:
        """A file was written now."""
        moment = self.clock.now.timestamp()
        os.utime(path, (moment, moment))

    def prepared(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "prepared").iterdir())

    def states(self, *letters: str) -> list[str]:
        registry = Registry(self.database)
        return [registry.adapter(f"demo@{letter * 64}", deleted=True).state for letter in letters]


def named(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.what, finding.name.partition("@")[2][:1] or finding.name) for finding in found]
