"""Progress of a job: one class of values for each kind of work. A job that has not begun such work has no progress.

In the database, these fields are stored together with the job's reservations in the storage, which are not progress:
:func:`shown_progress` leaves them out for readers of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

RESERVATIONS = frozenset({"storing", "stored_checkpoints"})
"""Fields that name stored contents which the job protects from deletion (`shared/database/deletions.py`,
`shared/retention/checkpoints.py`).
"""


class ProgressPart(BaseModel):
    """Progress of one kind; other kinds' fields may be in the same row, and are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @property
    def done(self) -> int:
        """Number of steps, shards or items that are done."""
        return 0

    @property
    def total(self) -> int | None:
        """Total number of steps, shards or items; None if unknown."""
        return None


class TrainingProgress(ProgressPart):
    """Steps of a trainer; a value that is not finite or not yet known is null."""

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
"""Kinds of progress by a field of rows from an earlier release, which have no kind; the first field found decides."""


def read_progress(stored: Mapping[str, Any]) -> JobProgress | None:
    """Read the progress in a job's row or an API's answer; None if it has none, or one of a kind that a later release
    added.
    """
    kind = stored.get("kind") or next((kind for field, kind in _FIELD_OF_KIND.items() if field in stored), None)
    try:
        return _KINDS.validate_python({**stored, "kind": kind}) if kind else None
    except ValidationError:
        return None


def shown_progress(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that readers of a job may see: all but its reservations."""
    return {name: value for name, value in stored.items() if name not in RESERVATIONS}
