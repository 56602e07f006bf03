"""Values read from the database, as other tiers see them: frozen, typed, free of database sessions."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from ulid import ULID

from shared.database.job_states import JobState, Stage


class Kind(StrEnum):
    FINETUNE = "finetune"
    MERGE = "merge"
    IMPORT = "import"
    EVALUATE = "evaluate"
    JUDGE = "judge"


class Value(BaseModel):
    """A frozen value, which can be read from a row."""

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
    started_at: datetime | None
    finished_at: datetime | None


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
    """What a job is made from."""

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
    """The eval that an ``evaluate`` job is a run of."""
    run_name: str = ""
    """The run's name, which may be longer than a job's."""
    events: list[NewEvent] = []
    """What is known already and should be said, after that the job was created."""


class MemoryAccuracy(Value):
    """How far the memory estimates were off on one kind of device: (measured - predicted) / predicted, over jobs."""

    device: str
    jobs: int
    median_error: float
    p95_absolute_error: float
    worst_error: float


def new_id(prefix: str) -> str:
    """A sortable, unguessable id: prefix and a lower-case ULID."""
    return f"{prefix}-{str(ULID()).lower()}"
