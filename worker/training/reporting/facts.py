"""Facts about a finished run, from which its reports and its model card are written. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ulid import ULID

from shared.artifacts.manifests import AdapterManifest
from shared.base_models.config import ModelConfig
from shared.contract.plan import ExecutionPlan, warmup_steps
from shared.model_card.self_evaluation import SelfEvaluation
from worker.training.checkpoint import Progress
from worker.training.data.prepared import PreparationReport
from worker.training.metrics import mean
from worker.training.reporting.telemetry import TrainingSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run.

    Attributes:
        training, validation: outcome of preparing the files; ``validation`` is None without a file of its own.
        training_rows, validation_rows: rows trained on and validated on, after the split.
        skips: rows left out, by reason, over the whole run (`Telemetry.skips`).
        rate_at: learning rate of a 1-based step.
        last_epoch_steps: optimizer steps of the last epoch.
        planned_steps: optimizer steps of the whole run; more than were made if it stopped early.
        device: ``cpu`` or ``cuda``; ``device_name`` is the accelerator's own name.
        engine: the trainer's own decisions as plain values, e.g. layout, token budget, recompute.
        evaluation: the adapter measured against its base.
    """

    run_id: str
    plan: ExecutionPlan
    config: ModelConfig
    manifest: AdapterManifest
    progress: Progress
    summary: TrainingSummary
    training: PreparationReport
    training_rows: int
    validation: PreparationReport | None
    validation_rows: int
    skips: Mapping[str, int]
    rate_at: Callable[[int], float]
    last_epoch_steps: int
    planned_steps: int
    memory: Mapping[str, object]
    device: str
    device_name: str | None = None
    resumed_from_step: int = 0
    engine: Mapping[str, object] = field(default_factory=dict)
    evaluation: SelfEvaluation | None = None

    @property
    def warmup(self) -> int:
        """Number of warm-up steps that were used."""
        return warmup_steps(self.plan.contract.exec.warmup_steps, self.planned_steps)

    @property
    def stopped_early(self) -> bool:
        """Return true if the validation loss has not improved for as long as the contract's patience."""
        return self.progress.step < self.planned_steps

    def series(self, column: str) -> list[tuple[int, float]]:
        """Return (step, value) of a metrics column, in the order of the steps."""
        return [(int(row["step"]), row[column]) for row in self.progress.metrics if column in row]

    @property
    def last_epoch_validation_loss(self) -> float | None:
        """Mean of the last epoch's validations."""
        first = self.progress.step - self.last_epoch_steps
        return mean([loss for step, loss in self.series("valid_loss") if step > first])


def new_run_id() -> str:
    """Return a new ULID, which sorts by time and is unique. Checkpoints contain it, so a resumed run keeps it."""
    return str(ULID())


def artifacts(run_dir: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Return name → path relative to the run folder, of existing files."""
    return {name: path for name, path in names.items() if (run_dir / path).exists()}
