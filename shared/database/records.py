"""Values read from the database, as other tiers see them: frozen, typed, free of database sessions."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, field_serializer
from ulid import ULID

from shared.database.job_states import JobState, Stage
from shared.job_progress import shown_progress
from shared.scheduling.types import HIGHEST_PRIORITY, LOWEST_PRIORITY

PARTS_WITH_TEXT = frozenset({"self_evaluation"})
"""Parts of a result and of an adapter's metrics that contain contents of rows. Only the job's tenant may see them, and
events never include them.
"""


class Kind(StrEnum):
    FINETUNE = "finetune"
    MERGE = "merge"
    IMPORT = "import"
    EVALUATE = "evaluate"
    JUDGE = "judge"


ULID_TIME_CHARS = 10
"""Number of characters of a ULID that encode its time."""


class Value(BaseModel):
    """A frozen value that can be read from a row."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Job(Value):
    """One job. ``attempt`` is the fencing token of the attempt that may write; ``version`` changes with every write."""

    id: str
    kind: Kind
    state: JobState
    stage: Stage | None
    base_model: str
    name: str
    contract: dict[str, Any]
    plan: dict[str, Any]
    extra: dict[str, Any]
    labels: dict[str, Any]
    requested: Literal["cancel", "pause"] | None
    attempt: int
    progress: dict[str, Any]
    result: dict[str, Any]
    error: dict[str, Any] | None
    tenant: str
    version: int
    created_at: datetime
    created_by: str | None = None
    """Name of the key that submitted it; None for jobs of an earlier release."""
    started_at: datetime | None
    finished_at: datetime | None
    priority: int = 0
    max_wall_seconds: float | None = None
    max_gpu_minutes: float | None = None

    @field_serializer("progress")
    def _without_reservations(self, progress: dict[str, Any]) -> dict[str, Any]:
        return shown_progress(progress)


class QueueTerms(Value):
    """A job's place in the queue and its limits, as its owner requests them."""

    priority: StrictInt = Field(
        0,
        ge=LOWEST_PRIORITY,
        le=HIGHEST_PRIORITY,
        description="Higher runs first: a level is worth 12 hours of waiting. Above 0 only for operators.",
    )
    max_wall_seconds: StrictFloat | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Total time of its attempts, after which it fails. Null: no limit of its own.",
    )
    max_gpu_minutes: StrictFloat | None = Field(
        None,
        gt=0,
        le=1e9,
        description=(
            "Total GPU-minutes of its attempts, after which it fails. They are also reserved from its tenant's quota."
        ),
    )


DEFAULT_TERMS = QueueTerms()


class Event(Value):
    """Something that happened to a job; ``seq`` grows with time within a job."""

    seq: int
    job_id: str
    created_at: datetime
    level: Literal["info", "warn", "error"]
    type: Literal["message", "metrics"]
    message: str
    data: dict[str, Any]


class NewEvent(Value):
    """An event that a worker reports."""

    level: Literal["info", "warn", "error"] = "info"
    type: Literal["message", "metrics"] = "message"
    message: str
    data: dict[str, Any] = {}


class Submission(Value):
    """A job to create, and its inputs."""

    model_config = ConfigDict(extra="forbid")
    kind: Kind
    base_model: str
    name: str
    contract: dict[str, Any]
    plan: dict[str, Any]
    preflight: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    idempotency_key: str | None = None
    request_digest: str = ""
    eval_id: str | None = None
    """The eval of an ``evaluate`` job."""
    run_name: str = ""
    """The run's name, which may be longer than a job's."""
    events: list[NewEvent] = []
    """Events to record right after the job's creation."""
    priority: int = 0
    max_wall_seconds: float | None = None
    max_gpu_minutes: float | None = None
    expected_seconds: float | None = None
    """Planned duration; None: the usual duration of similar jobs."""


class MemoryAccuracy(Value):
    """Errors of the memory estimates on one kind of device: (measured - predicted) / predicted, over jobs."""

    device: str
    jobs: int
    median_error: float
    p95_absolute_error: float
    worst_error: float


def new_id(prefix: str) -> str:
    """Return a sortable, unguessable id: prefix and a lower-case ULID."""
    return f"{prefix}-{str(ULID()).lower()}"


def first_id_of(prefix: str, moment: datetime) -> str:
    """Return a lower bound, in string order, of the ids that :func:`new_id` makes from a moment on."""
    milliseconds = max(0, round(moment.timestamp() * 1000))
    return f"{prefix}-{str(ULID.from_timestamp(milliseconds))[:ULID_TIME_CHARS].lower()}"
