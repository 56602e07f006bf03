"""Checkpoints as models: while a run trains, its checkpoints are certified one by one and can then be called.

    trainer writes checkpoints/step-… with its scores of the probes ─► a thread stores it by its digest ─► measured on every replica
    ─► one transaction: row and event ─► callable; the trainer drops it ─► deleted, unless a name or a job needs it

A checkpoint without `probes.json` (an interim one, or one of an earlier release) waits for the end of the job.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any

from shared.artifacts.manifests import MANIFEST_NAME
from shared.contract.plan import ExecutionPlan
from shared.database.adapters import Adapters, NewAdapter
from shared.database.deletions import Deletions
from shared.database.records import NewEvent
from shared.errors import Code, Conflict, JobFailed, LeaseLost, MensError, NotFound, Unavailable
from shared.hashing import digest_file
from shared.replicas import TrainedWeights, discover
from shared.retention.inventory import needed_adapters
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.checkpoints.adapters import sign_adapters, store_adapter
from worker.checkpoints.folders import link_or_copy
from worker.jobs.attempt import Attempt
from worker.jobs.certificates import CertificateLimits, Scores, ServedBase
from worker.jobs.publish import ProbeSet, certify
from worker.probe_chats import encode_chats
from worker.run_folder import CHECKPOINT_STATE_NAME, PROBES_NAME, checkpoint_name, list_checkpoints, read_json

POLL_SECONDS = 1.0
RETRY_SECONDS = 15.0
PATIENCE_SECONDS = 5.0
"""How long one attempt waits for a replica that does not respond; the next round tries again."""
JOIN_SECONDS = 10.0
"""How long the end of the training waits for a measurement in progress."""
REFUSED = "refused"
"""Key with the reason, in place of the replicas' names, if no certificate was made."""
MOST_FAILURES = 2
"""Number of consecutive equal failures after which the remaining checkpoints wait for the end of the job."""

logger = logging.getLogger(__name__)


class RunEnded(Exception):
    """The training has ended, so the thread does not publish further checkpoints."""


class LiveCheckpoints:
    """Context manager: publishes a run's checkpoints from a separate thread while its block runs.

    Its failures never affect the training.

    Args:
        attempt: the attempt that trains.
        plan: the attempt's plan.
        base: folder of the verified base.
    """

    def __init__(self, attempt: Attempt, plan: ExecutionPlan, base: Path) -> None:
        self._attempt, self._plan, self._base = attempt, plan, base
        self._job, database = attempt.lease.job, attempt.leases.database
        self._adapters = Adapters(database, self._job.tenant)
        self._deletions = Deletions(database, self._job.tenant)
        self._tried: set[str] = set()
        self._present: list[Path] = []
        self._withdraw_at = math.inf
        self._failures: list[str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"live-checkpoints-{self._job.id}", daemon=True)

    @property
    def is_on(self) -> bool:
        """Return true if the job publishes its adapter and this worker publishes checkpoints during training."""
        settings = self._attempt.settings
        has_replicas = bool(settings.serving_urls or settings.serving_dns)
        return self._plan.contract.artifact.publish and settings.live_checkpoints and has_replicas

    def __enter__(self) -> LiveCheckpoints:
        if self.is_on:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_on:
            return
        self._done.set()
        self._thread.join(JOIN_SECONDS)
        # The trainer may have dropped one since the last round. A result brings its own checkpoints.
        with suppress(MensError):
            self.withdraw_dropped(keep_callable=kind is not None)

    def _watch(self) -> None:
        pause = POLL_SECONDS
        while not self._done.wait(pause):
            try:
                self.publish_next()
                present = list_checkpoints(self._attempt.run_dir)
                if present != self._present or time.monotonic() >= self._withdraw_at:
                    is_left = self.withdraw_dropped()
                    self._withdraw_at = time.monotonic() + RETRY_SECONDS if is_left else math.inf
                    self._present = present
                pause = POLL_SECONDS
            except (LeaseLost, RunEnded):
                return
            except Exception as error:
                # Training continues, and a later round tries again.
                pause = RETRY_SECONDS
                logger.warning("a checkpoint of %s could not be published: %s", self._job.id, error)

    def publish_next(self) -> None:
        """Publish or quarantine the newest checkpoint that was not tried yet; do nothing if none is left.

        Raises:
            LeaseLost: another attempt owns the job.
            RunEnded: the training has ended.
            MensError: a replica, the storage or the database did not respond; the next round tries again.
        """
        if len(self._failures) >= MOST_FAILURES and len(set(self._failures[-MOST_FAILURES:])) == 1:
            return
        untried = (folder for folder in reversed(list_checkpoints(self._attempt.run_dir)) if self._is_untried(folder))
        if (folder := next(untried, None)) is None:
            return
        # The trainer removes its older checkpoints while it runs.
        with (
            suppress(FileNotFoundError),
            tempfile.TemporaryDirectory(dir=self._attempt.run_dir, prefix=".live-") as private,
        ):
            copy = Path(private)
            for path in sorted(folder.iterdir()):
                link_or_copy(path, copy / path.name)
            self._publish(copy)
            # Last, so that an outage leaves the checkpoint untried.
            self._tried.add(folder.name)

    def withdraw_dropped(self, *, keep_callable: bool = True) -> bool:
        """Delete the job's published checkpoints that its trainer has dropped, because they are not part of its result.

        An attempt that was killed may have left some, so the adapters in the job's row are compared with the run
        folder. Checkpoints of later steps are kept, because this attempt will make them again.

        Args:
            keep_callable: keep the newest published checkpoint until a later one is published, so that a run that
                writes checkpoints faster than they are measured always has a callable one, also after a cancel.

        Returns:
            whether some are left because a name, a permission, a job or ``keep_callable`` needs them; a later call may
            delete them.

        Raises:
            MensError: the database did not respond.
        """
        # Another attempt may own the job by now, and have taken the checkpoints over.
        if self._attempt.keeper.lost:
            return False
        try:
            present = {
                digest_file(checkpoint / MANIFEST_NAME): checkpoint
                for checkpoint in list_checkpoints(self._attempt.run_dir)
            }
        except FileNotFoundError:  # the trainer is removing one; a later round sees it
            return True
        newest = max((folder.name for folder in present.values()), default="")
        # An equal checkpoint of an earlier job is that job's own.
        made = [checkpoint for checkpoint in self._adapters.of_job(self._job.id) if not checkpoint.final]
        dropped = {
            checkpoint.id
            for checkpoint in made
            if checkpoint.digest not in present and checkpoint_name(checkpoint.step) <= newest
        }
        if not dropped:
            return False
        # A rollback may lead to a former target of an alias.
        needed = needed_adapters(self._attempt.leases.database, self._attempt.settings.retain_alias_moves)
        if keep_callable:
            published = [checkpoint for checkpoint in made if checkpoint.state == "published"]
            newest_first = sorted(
                published, key=lambda checkpoint: (checkpoint.step, checkpoint.digest in present), reverse=True
            )
            needed |= {checkpoint.id for checkpoint in newest_first[:1]}
        for adapter_id in dropped - needed:
            try:
                self._deletions.begin(adapter_id)
            except NotFound:
                continue
            except Conflict:  # needed since they were read
                needed.add(adapter_id)
        return bool(dropped & needed)

    def _is_untried(self, folder: Path) -> bool:
        return folder.name not in self._tried and (folder / PROBES_NAME).is_file()

    def _publish(self, folder: Path) -> None:
        """Store and certify a private copy of a checkpoint, unless an earlier attempt did."""
        digest = digest_file(folder / MANIFEST_NAME)
        earlier = [
            checkpoint
            for checkpoint in self._adapters.of_job(self._job.id, deleted=True)
            if checkpoint.digest == digest
        ]
        if earlier and earlier[0].state != "stored":
            return
        leases, lease, settings = self._attempt.leases, self._attempt.lease, self._attempt.settings
        self._raise_if_ended()
        # Before it is stored, as in `run_import`: the same content may be stored already, and pending deletion.
        leases.keep_adapters(lease, [digest])
        sign_adapters(settings.signing_key, [folder])
        stored = store_adapter(self._attempt.storage, folder, final=False)
        adapter = stored.model_copy(update={"metrics": checkpoint_metrics(folder).get(stored.step, {})})
        # With a row it can be deleted, whether or not a replica ever measures it.
        leases.register(lease, adapter)
        try:
            certificates = certify(
                discover(settings.serving_urls, settings.serving_dns),
                settings.serving_key.get_secret_value(),
                self._probes(adapter, folder),
                timeout_seconds=PATIENCE_SECONDS,
                raise_if_stopped=self._raise_if_ended,
            )
        except (LeaseLost, Unavailable):
            raise
        except MensError as error:
            self._quarantine(adapter, error)
        else:
            self._failures.clear()
            event = NewEvent(
                message=f"The checkpoint of step {adapter.step} can be called as {adapter.id}.",
                data={"checkpoint": adapter.id, "step": adapter.step},
            )
            published = adapter.model_copy(update={"published": True, "certificates": certificates})
            leases.register(lease, published, event)
        # It has a row now: the reservation would only keep its owner from deleting it.
        self._raise_if_ended()
        leases.keep_adapters(lease, [])

    def _quarantine(self, adapter: NewAdapter, error: MensError) -> None:
        """Keep the record of a checkpoint whose certificates failed, and add an event for the job's owner; training
        continues.
        """
        if error.code != Code.ADAPTER_NO_EFFECT:  # the first steps of a warm-up change little, the later ones more
            self._failures.append(str(error.code))
        details = error.details if isinstance(error, JobFailed) else {}
        # Without certificates, the row would say that it was never measured, and the result would publish it.
        refused = {
            REFUSED: {
                "passed": False,
                "failed": [REFUSED],
                "warnings": [f"{error.code}: {error.message}"],
                "parity": {},
            }
        }
        failed = adapter.model_copy(update={"certificates": details.get("certificates") or refused})
        event = NewEvent(
            level="warn",
            message=f"The checkpoint of step {adapter.step} cannot be called: {error.code}: {error.message}",
            data={"checkpoint": adapter.id, "step": adapter.step, "error": error.as_dict()},
        )
        self._attempt.leases.register(self._attempt.lease, failed, event)

    def _probes(self, adapter: NewAdapter, folder: Path) -> ProbeSet:
        probes: list[dict[str, Any]] = (read_json(folder / PROBES_NAME) or {})["probes"]
        settings = self._attempt.settings
        return ProbeSet(
            adapter_id=adapter.id,
            base=self._plan.base,
            probes=probes,
            # Encoded again for every replica, because some templates write the date.
            encode_chats=lambda: encode_chats(self._tokenizer),
            reference=partial(own_scores, probes, adapter.manifest) if settings.parity == "full" else None,
            limits=CertificateLimits.of(settings),
            template_arguments=self._plan.contract.data.template_arguments,
            weights=TrainedWeights.of(adapter.manifest),
        )

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self._base, ChatOptions(self._plan.contract.data.template_arguments))

    def _raise_if_ended(self) -> None:
        if self._attempt.keeper.lost:
            raise self._attempt.keeper.lost
        if self._done.is_set():
            raise RunEnded


def own_scores(probes: list[dict[str, Any]], manifest: Mapping[str, Any], served: ServedBase) -> Scores | None:
    """Return the trainer's own scores as the reference for a replica's engine error, if the replica computes with the
    same weights in the same dtype; otherwise None. This avoids a second model in the trainer's memory.
    """
    weights = TrainedWeights.of(manifest)
    is_original = weights is not None and weights.base_quant == "none" and served.twin_of is None
    is_same = is_original and served.dtype == manifest.get("trained_dtype")
    return [probe["trained"] for probe in probes] if is_same else None


def checkpoint_metrics(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of ``metrics.csv`` up to a checkpoint, by step."""
    state = read_json(folder / CHECKPOINT_STATE_NAME) or {}
    return {int(row["step"]): row for row in state.get("metrics", [])}
