"""One attempt at a job: what every kind of job needs while it works, and how it hears that it must stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.catalog import load_catalog, verify_model_folder
from shared.errors import LeaseLost, Unavailable
from shared.hub import locate
from shared.job import NewEvent
from shared.jobstate import Stage
from shared.lease import Lease, LeaseLedger
from shared.planner import PlannedBase
from shared.storage import Storage
from worker.engine import Ending, Engine
from worker.lease_keeper import LeaseKeeper
from worker.progress import to_events, to_progress
from worker.settings import WorkerSettings

POLL_SECONDS = 0.2


class Stopped(Exception):
    """The attempt ended because it was asked to, and how far it got."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


@dataclass
class Attempt:
    """An attempt that holds a lease.

    Attributes:
        shutting_down: whether this worker was told to stop; the job then goes back to the queue with a checkpoint.
    """

    settings: WorkerSettings
    ledger: LeaseLedger
    storage: Storage
    lease: Lease
    keeper: LeaseKeeper
    shutting_down: Callable[[], bool]
    _unsent: list[NewEvent] = field(default_factory=list)

    @property
    def job_dir(self) -> Path:
        """Folder of all the job's attempts."""
        return self.settings.runs_dir / self.lease.job.id

    @property
    def run_dir(self) -> Path:
        """Folder of this attempt alone, so that a stale attempt can never write into it."""
        return self.job_dir / f"attempt-{self.lease.token:04d}"

    def earlier_runs(self) -> list[Path]:
        """Run folders of earlier attempts, newest first."""
        runs = sorted(self.job_dir.glob("attempt-*"), reverse=True)
        return [run for run in runs if run != self.run_dir]

    def locate_base(self, planned: PlannedBase) -> Path:
        """Folder of the planned base model, fetched if need be, with the very bytes that were planned.

        Raises:
            MensError: not in this worker's catalogue, not to be had, or changed since.
        """
        entry = load_catalog(self.settings.catalog_path).get(planned.name)
        folder = locate(entry, self.settings.catalog_path)
        verify_model_folder(entry.model_copy(update={"digests": planned.digests}), folder)
        return folder

    def enter(self, stage: Stage, message: str) -> None:
        """Tell that a stage begins.

        Raises:
            LeaseLost: stop.
        """
        self.report(stage=stage, events=[NewEvent(message=message)])

    def report(
        self,
        *,
        events: list[NewEvent] | None = None,
        progress: dict[str, Any] | None = None,
        preflight: dict[str, Any] | None = None,
        stage: Stage | None = None,
    ) -> None:
        """Write to the ledger. While the database is away, events wait and go with the next report.

        Raises:
            LeaseLost: stop.
        """
        self._unsent += events or []
        if not (self._unsent or progress or preflight or stage):
            return
        try:
            self.ledger.report(self.lease, stage=stage, progress=progress, preflight=preflight, events=self._unsent)
        except Unavailable:
            return
        self._unsent = []

    def heed(self) -> None:
        """Stop here, between two waits, if the job must stop.

        Raises:
            LeaseLost: another attempt owns the job. Stopped: cancelled, paused, or the worker stops.
        """
        if self.keeper.lost:
            raise self.keeper.lost
        if self.keeper.requested == "cancel":
            raise Stopped(Ending.CANCELLED)
        if self.keeper.requested == "pause" or self.shutting_down():
            raise Stopped(Ending.PAUSED)

    def follow(self, engine: Engine) -> None:
        """Watch an engine to its end, with its telemetry in the ledger.

        Raises:
            MensError: the engine failed, with its code. LeaseLost, Stopped: see :meth:`heed`.
        """
        try:
            while engine.wait(POLL_SECONDS) is None:
                self._forward(engine)
                self._pass_on_requests(engine)
            self._forward(engine)
            ending = engine.ending()
        except LeaseLost:
            engine.kill()
            raise
        finally:
            engine.close()
        if ending is not Ending.COMPLETE:
            raise Stopped(ending)

    def _forward(self, engine: Engine) -> None:
        telemetry = engine.new_telemetry()
        self.report(events=to_events(telemetry), progress=to_progress(telemetry))

    def _pass_on_requests(self, engine: Engine) -> None:
        grace = self.settings.stop_grace_seconds
        if self.keeper.lost:
            raise self.keeper.lost
        if self.keeper.requested == "cancel":
            engine.ask_to_stop(checkpoint=False, grace_seconds=grace)
        elif self.keeper.requested == "pause" or self.shutting_down():
            engine.ask_to_stop(checkpoint=True, grace_seconds=grace)
        engine.enforce_stop()
