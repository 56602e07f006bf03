"""A job's checkpoints in the storage, so that a worker on another machine can resume from them.

    trainer writes checkpoints/step-… ─► a thread copies it into the storage ─► the job's row names it
    next attempt, anywhere: the row's newest is newer than any on this disk? ─► fetched, every digest checked ─► resumed

The row is authoritative: a checkpoint that it does not name is never resumed from and is removed by the retention
sweep, as are the checkpoints of finished jobs (`shared/retention/checkpoints.py`). Only the attempt that holds the
lease can change it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.artifacts.manifests import FileName
from shared.artifacts.storage import Storage
from shared.base_models.catalog import Sha256
from shared.database.leases import Lease, Leases
from shared.database.records import NewEvent
from shared.errors import ArtifactInvalid, Code, LeaseLost, MensError, NotFound
from shared.hashing import canonical_json, digest_file
from shared.retention.checkpoints import CHECKPOINT_MANIFEST_NAME as MANIFEST_NAME
from shared.retention.checkpoints import KIND, STORED_CHECKPOINTS
from worker.checkpoints.folders import appearing_whole, link_or_copy
from worker.run_folder import CHECKPOINTS_FOLDER, list_checkpoints

POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class CheckpointManifest(BaseModel):
    """``checkpoint_manifest.json``, whose SHA-256 names a stored checkpoint; it contains the job's id, so that no two
    jobs share a checkpoint.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["mens_checkpoint"] = "mens_checkpoint"
    version: Literal[1] = 1
    job: str
    files: dict[FileName, Sha256]

    def to_bytes(self) -> bytes:
        """Return the manifest file's bytes: canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))


class StoredCheckpoints:
    """The stored checkpoints of one attempt's job.

    As a context manager it stores each new checkpoint of the run folder while its block runs, from a thread of its own.

    Args:
        storage: the storage that keeps them.
        leases: writes the job's row.
        lease: the attempt's lease.
        run_dir: the attempt's run folder.
        store: whether new ones are stored; checkpoints stored by earlier attempts are used in any case.
    """

    def __init__(self, storage: Storage, leases: Leases, lease: Lease, run_dir: Path, *, store: bool) -> None:
        self._storage = storage
        self._leases = leases
        self._lease = lease
        self._run_dir = run_dir
        self._store = store
        self._named: dict[str, str] = dict(lease.job.progress.get(STORED_CHECKPOINTS, {}))
        self._fetched: dict[str, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"checkpoints-{lease.job.id}", daemon=True)

    def fetch_newer(self, than: Path | None) -> Path | None:
        """Fetch the newest stored checkpoint and those before it into the run folder; return None if no checkpoint is
        newer than the given one.

        A lost or damaged checkpoint is skipped, and an older one is used.
        """
        newest = None
        for name in sorted(self._named, reverse=True):
            if newest is None and than is not None and name <= than.name:
                return None
            folder = self._run_dir / CHECKPOINTS_FOLDER / name
            try:
                self._fetch(self._named[name], folder)
            except (NotFound, ArtifactInvalid) as error:
                logger.warning("the stored checkpoint %s of %s cannot be used: %s", name, self._lease.job.id, error)
                continue
            self._fetched[name] = self._named[name]
            newest = newest or folder
        return newest

    def store_new(self) -> None:
        """Store the checkpoints that the storage lacks, newest first; drop those that the trainer has removed.

        Raises:
            MensError: the storage or the database did not respond; nothing is lost.
        """
        present: dict[str, str] = {}
        for folder in reversed(list_checkpoints(self._run_dir)):
            # The trainer removes its older checkpoints while it runs.
            with suppress(FileNotFoundError):
                present[folder.name] = self._fetched.get(folder.name) or self._put(folder)
                self._fetched[folder.name] = present[folder.name]
                if present.keys() - self._named.keys():
                    # At once, because storing the next may take a while.
                    self._name(self._named | present)
        if present and present != self._named:
            old = set(self._named.values()) - set(present.values())
            # Before the old ones go: a job must never name a checkpoint that is no longer stored.
            self._name(present)
            for digest in old:
                self._storage.move_to_trash(KIND, digest)

    def discard(self) -> None:
        """Remove all stored checkpoints, because the job has succeeded. The retention sweep removes those that cannot
        be removed now.
        """
        for digest in self._named.values():
            with suppress(MensError):
                self._storage.move_to_trash(KIND, digest)

    def __enter__(self) -> StoredCheckpoints:
        if self._store:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread. If the block was left early, store the last checkpoint first, so that another worker can
        resume from it.
        """
        if not self._store:
            return
        self._done.set()
        # The thread first, because two rounds at the same time would each drop what only the other one names.
        self._thread.join()
        # If the lease is lost, another attempt decides which checkpoints the job has.
        if kind is not None and not isinstance(error, LeaseLost):
            self._try_to_store()

    def _watch(self) -> None:
        while not self._done.wait(POLL_SECONDS):
            if not self._try_to_store():
                return

    def _try_to_store(self) -> bool:
        """Store new checkpoints; return False once another attempt owns the job."""
        try:
            self.store_new()
        except LeaseLost:
            return False
        except Exception as error:
            # Training continues, and the next round tries again.
            logger.warning("a checkpoint of %s could not be stored: %s", self._lease.job.id, error)
        return True

    def _name(self, checkpoints: dict[str, str]) -> None:
        events = []
        if newest := max(checkpoints.keys() - self._named.keys(), default=None):
            events = [
                NewEvent(level="info", message=f"The checkpoint {newest} is stored.", data={"checkpoint": newest})
            ]
        self._leases.report(self._lease, progress={STORED_CHECKPOINTS: checkpoints}, events=events)
        self._named = checkpoints

    def _put(self, folder: Path) -> str:
        # A folder of links, because the trainer may remove the original during the upload.
        with tempfile.TemporaryDirectory(dir=self._run_dir, prefix=".storing-") as private:
            copy = Path(private)
            for path in sorted(folder.iterdir()):
                link_or_copy(path, copy / path.name)
            files = {path.name: digest_file(path) for path in copy.iterdir()}
            raw = CheckpointManifest(job=self._lease.job.id, files=files).to_bytes()
            (copy / MANIFEST_NAME).write_bytes(raw)
            digest = hashlib.sha256(raw).hexdigest()
            self._storage.put_folder(KIND, digest, copy, sorted(files), MANIFEST_NAME)
            return digest

    def _fetch(self, digest: str, target: Path) -> None:
        raw = self._storage.manifest_bytes(KIND, digest, MANIFEST_NAME)
        if hashlib.sha256(raw).hexdigest() != digest:
            raise _damaged(MANIFEST_NAME)
        try:
            manifest = CheckpointManifest.model_validate_json(raw)
        except ValidationError:
            raise _damaged(MANIFEST_NAME) from None
        # Left by an interrupted round.
        shutil.rmtree(target, ignore_errors=True)
        with appearing_whole(target) as temporary:
            self._storage.fetch_folder(KIND, digest, sorted(manifest.files), temporary)
            for name, expected in manifest.files.items():
                if digest_file(temporary / name) != expected:
                    raise _damaged(name)


def _damaged(name: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.STORAGE_OBJECT_MISSING,
        f"{name} of a stored checkpoint differs from the stored one.",
        remedy="No action is needed: training continues from an older checkpoint, or from the beginning.",
        param=name,
    )
