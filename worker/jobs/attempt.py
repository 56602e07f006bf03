"""One attempt at a job: its folders, its reports to the database, its child process, and stop requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.artifacts.base_folders import locate_base
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.artifacts.storage import Storage
from shared.base_models.catalog import load_catalog, verify_model_folder
from shared.contract.plan import PlannedBase
from shared.database.job_states import Stage
from shared.database.jobs import Jobs, TrainingRate
from shared.database.leases import Lease, Leases
from shared.database.records import NewEvent
from shared.errors import JobFailed, LeaseLost, Unavailable
from shared.observability.tracing import begin_span
from worker.jobs.child_process import ChildProcess, ExitReason
from worker.jobs.heartbeat import LeaseKeeper
from worker.jobs.progress import SeriesBuffer, to_events, to_progress, to_stage
from worker.metrics.counters import WorkerMetrics
from worker.run_folder import read_log_end
from worker.settings import WorkerSettings
from worker.watchdog.rules import JobLimits, LimitWatch, OrphanWatch, Watch, check_all
from worker.watchdog.stall import StallWatch

POLL_SECONDS = 0.2
LOG_SECONDS = 15.0
"""Time between two writes of a running attempt's log."""


class Stopped(Exception):
    """The attempt ended because a stop was requested: its job was cancelled, or it wrote a checkpoint and stopped."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Attempt:
    """An attempt that holds a lease.

    Attributes:
        shutting_down: whether this worker is stopping; the job then goes back to the queue with a checkpoint.
    """

    settings: WorkerSettings
    leases: Leases
    storage: Storage
    lease: Lease
    keeper: LeaseKeeper
    shutting_down: Callable[[], bool]
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    _unsent: list[NewEvent] = field(default_factory=list)
    _unsent_progress: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        job, spent = self.lease.job, self.lease.spent
        self._stages = self.metrics.stages(job.kind)
        limits = JobLimits(self.settings.max_job_seconds, job.max_gpu_minutes, job.max_wall_seconds)
        self._limits = LimitWatch(limits, self.lease.gpus, spent.wall_seconds, spent.gpu_seconds)
        self._orphan = OrphanWatch(lambda: self.keeper.contact_at, self.settings.orphan_seconds)
        self._span: Any = None
        self._stage: Stage | None = None
        self._series = SeriesBuffer()
        self._log, self._log_at = "", time.monotonic() + LOG_SECONDS

    def end(self) -> None:
        """Record in the metrics that the attempt has ended."""
        self._enter(None)
        self.metrics.training.forget(self.lease.job.id)

    def _enter(self, stage: Stage | None) -> None:
        self._stage = stage
        self._stages.enter(stage)
        if self._span is not None:
            self._span.end()
        self._span = begin_span(f"stage {stage}") if stage else None

    @property
    def job_dir(self) -> Path:
        """Folder of all attempts at the job."""
        return self.settings.runs_dir / self.lease.job.id

    @property
    def run_dir(self) -> Path:
        """Folder that only this attempt uses, so that a stale attempt can never write into it."""
        return self.job_dir / f"attempt-{self.lease.token:04d}"

    def earlier_runs(self) -> list[Path]:
        """Run folders of earlier attempts, newest first."""
        runs = sorted(self.job_dir.glob("attempt-*"), reverse=True)
        return [run for run in runs if run != self.run_dir]

    def locate_base(self, planned: PlannedBase) -> Path:
        """Return the folder of the planned base model, fetched if necessary, with exactly the planned bytes.

        Raises:
            MensError: it is not in this worker's catalogue, cannot be fetched, or has changed since.
        """
        entry = load_catalog(self.settings.catalog_path).get(planned.name)
        folder = locate_base(entry, self.settings)
        # Compared with the plan's digests, because the catalogue may have changed since the job was submitted.
        verify_model_folder(entry.model_copy(update={"digests": planned.digests}), folder)
        return folder

    def fetch_adapter(self, digest: str, folder_name: str) -> Path:
        """Return a private copy of a stored adapter in the run folder, which the child process verifies first."""
        folder = self.run_dir / folder_name
        folder.mkdir(parents=True, exist_ok=True)
        self.storage.fetch_folder("adapters", digest, [WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME], folder)
        return folder

    def training_rate(self, base_model: str) -> TrainingRate | None:
        """Return the measured training speed with which the API plans this base's jobs; None if it is unknown or the
        database is unavailable.
        """
        with suppress(Unavailable):
            return Jobs(self.leases.database, self.lease.job.tenant).training_rate(base_model)
        return None

    def enter(self, stage: Stage, message: str) -> None:
        """Report that a stage begins."""
        self._enter(stage)
        self.report(stage=stage, events=[NewEvent(message=message)])

    def report(
        self,
        *,
        events: list[NewEvent] | None = None,
        progress: dict[str, Any] | None = None,
        preflight: dict[str, Any] | None = None,
        stage: Stage | None = None,
    ) -> None:
        """Write to the job's row, events and series. While the database is unavailable, everything except outdated
        progress waits for the next report.
        """
        self._unsent += events or []
        self._unsent_progress = progress or self._unsent_progress
        series = self._series.due()
        if not (self._unsent or self._unsent_progress or preflight or stage or series):
            return
        try:
            self.leases.report(
                self.lease,
                stage=stage,
                progress=self._unsent_progress,
                preflight=preflight,
                events=self._unsent,
                series=series,
            )
        except Unavailable:
            return
        self._unsent, self._unsent_progress = [], {}
        self._series.note_sent()

    def raise_if_stopped(self) -> None:
        """Stop here, between two steps, if the job must stop.

        Raises:
            Stopped: cancelled, paused, or the worker stops.
        """
        if self.keeper.lost:
            raise self.keeper.lost
        if self.keeper.requested == "cancel":
            raise Stopped(ExitReason.CANCELLED)
        if self.keeper.requested == "pause" or self.shutting_down():
            raise Stopped(ExitReason.PAUSED)
        self._limits.check()

    def follow(self, child: ChildProcess, *, stall: StallWatch | None = None, idle: Watch | None = None) -> None:
        """Wait for the end of a child process, report its telemetry, and pass stop requests on to it.

        Args:
            child: the process; it is killed if this raises.
            stall: watch that ends it when it makes no progress.
            idle: watch that ends it when it does nothing.

        Raises:
            MensError: the child failed, with its code.
            LeaseLost, Stopped: see :meth:`raise_if_stopped`.
        """
        try:
            while child.wait(POLL_SECONDS) is None:
                telemetry = self._report_telemetry(child)
                if time.monotonic() >= self._log_at:
                    self._keep_log()
                self._stop_if_requested(child)
                if not (self.keeper.requested or self.shutting_down()):  # these have their own timeout
                    self._watch(child, telemetry, stall, idle)
            self._series.hurry()
            self._report_telemetry(child)
            self._keep_log()
            reason = child.ending()
        except LeaseLost:
            # Killed at once, because another attempt is already working on the job.
            child.kill()
            raise
        finally:
            child.close()
        if reason is not ExitReason.COMPLETE:
            raise Stopped(reason)

    def _report_telemetry(self, child: ChildProcess) -> list[dict[str, Any]]:
        telemetry = child.new_telemetry()
        self.metrics.trained(self.lease.job.id, telemetry)
        self._series.add(telemetry)
        stage = to_stage(telemetry)
        if stage and stage is not self._stage:
            self._enter(stage)
        self.report(stage=stage, events=to_events(telemetry), progress=to_progress(telemetry))
        return telemetry

    def _keep_log(self) -> None:
        """Store the end of the log with the job if the log has grown; if the database is unavailable, the next call
        stores it.
        """
        self._log_at = time.monotonic() + LOG_SECONDS
        log = read_log_end(self.run_dir)
        if log and log != self._log:
            with suppress(Unavailable):
                self.leases.keep_log(self.lease, log)
                self._log = log

    def _watch(
        self, child: ChildProcess, telemetry: list[dict[str, Any]], stall: StallWatch | None, idle: Watch | None
    ) -> None:
        if stall:
            stall.note(telemetry)
        try:
            check_all([self._limits, stall, idle, self._orphan])
        except JobFailed:
            child.terminate(self.settings.terminate_seconds)
            raise

    def _stop_if_requested(self, child: ChildProcess) -> None:
        grace = self.settings.stop_grace_seconds
        if self.keeper.lost:
            raise self.keeper.lost
        if self.keeper.requested == "cancel":
            child.request_stop(checkpoint=False, grace_seconds=grace)
        elif self.keeper.requested == "pause" or self.shutting_down():
            child.request_stop(checkpoint=True, grace_seconds=grace)
        child.enforce_stop()
