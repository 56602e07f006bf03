"""How far a job is: one of a closed set of values, by kind of work. A job that has not reached such work has none.

A row of the database holds its fields together with what the job reserves in the storage, which is not progress:
:func:`shown_progress` leaves that out for whoever looks at the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

RESERVATIONS = frozenset({"storing", "stored_checkpoints"})
"""Keys of contents that the job keeps from deletion (`shared/database/deletions.py`, `shared/retention/checkpoints.py`)."""


class ProgressPart(BaseModel):
    """Progress of one kind; other kinds' fields may stand in the same row, and are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @property
    def done(self) -> int:
        """Steps, shards or items that are done."""
        return 0

    @property
    def total(self) -> int | None:
        """Of how many; None where it is not known."""
        return None


class TrainingProgress(ProgressPart):
    """Steps of a trainer; values that are not finite, and not yet known ones, are null."""

    kind: Literal["training"] = "training"
    step: int
    total_steps: int
    epoch: int | None = None
    loss: float | None = None
    token_accuracy: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    eta_seconds: float | None = None
    fraction: float | None = None

    @property
    def done(self) -> int:
        return self.step

    @property
    def total(self) -> int | None:
        return self.total_steps


class SelfEvaluationProgress(ProgressPart):
    """Parts of a finished run's self-evaluation: scored rows, sample answers, general questions."""

    kind: Literal["self_evaluation"] = "self_evaluation"
    activity: str
    items_done: int
    items_total: int

    @property
    def done(self) -> int:
        return self.items_done

    @property
    def total(self) -> int | None:
        return self.items_total


class MergeProgress(ProgressPart):
    """Shards that are merged."""

    kind: Literal["merging"] = "merging"
    shard: int | None = None
    of: int | None = None
    fraction: float

    @property
    def done(self) -> int:
        return self.shard or 0

    @property
    def total(self) -> int | None:
        return self.of


class EvaluationProgress(ProgressPart):
    """Output items of an evaluation."""

    kind: Literal["evaluating"] = "evaluating"
    items_done: int
    items_total: int
    items_errored: int = 0
    items_per_second: float | None = None
    eta_seconds: float | None = None

    @property
    def done(self) -> int:
        return self.items_done

    @property
    def total(self) -> int | None:
        return self.items_total


JobProgress = TrainingProgress | SelfEvaluationProgress | MergeProgress | EvaluationProgress
_KINDS: TypeAdapter[JobProgress] = TypeAdapter(Annotated[JobProgress, Field(discriminator="kind")])
_FIELD_OF_KIND = {"items_done": "evaluating", "step": "training", "fraction": "merging"}
"""The kind of progress that a worker of an earlier release has written without one, by the first of these fields it has."""


def read_progress(stored: Mapping[str, Any]) -> JobProgress | None:
    """The progress that a job's row or an API's answer holds; None for a job that has made none, or of a later release's kind."""
    kind = stored.get("kind") or next((kind for field, kind in _FIELD_OF_KIND.items() if field in stored), None)
    try:
        return _KINDS.validate_python({**stored, "kind": kind}) if kind else None
    except ValidationError:
        return None


def shown_progress(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that whoever looks at a job may see: all but its reservations."""
    return {name: value for name, value in stored.items() if name not in RESERVATIONS}
