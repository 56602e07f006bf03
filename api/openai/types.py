"""OpenAI's shapes of fine-tuning jobs, files and models, as its clients validate them.

Our own keys are in one block, ``mens``; OpenAI's keys contain only what OpenAI's documentation describes.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StringConstraints,
    field_validator,
    model_validator,
)

from shared.database.records import QueueTerms

Auto = Literal["auto"]
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=16),
]
Status = Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]


class ClosedObject(BaseModel):
    """Part of a request that refuses unknown keys, because a misspelt setting that is ignored costs a GPU-hour."""

    model_config = ConfigDict(extra="forbid")


class Hyperparameters(ClosedObject):
    """OpenAI's hyperparameters. ``auto`` is resolved by the rules of docs/openai.md, and returned resolved."""

    batch_size: Auto | Annotated[StrictInt, Field(ge=1, le=256)] = "auto"
    learning_rate_multiplier: Auto | Annotated[StrictFloat, Field(gt=0)] = "auto"
    n_epochs: Auto | Annotated[StrictInt, Field(ge=1, le=50)] = "auto"


class Supervised(ClosedObject):
    hyperparameters: Hyperparameters = Hyperparameters()


class PreferenceHyperparameters(Hyperparameters):
    """Hyperparameters of preference tuning (DPO)."""

    beta: Auto | Annotated[StrictFloat, Field(gt=0, le=2)] = "auto"


class Preference(ClosedObject):
    hyperparameters: PreferenceHyperparameters = PreferenceHyperparameters()


class TrainingMethod(ClosedObject):
    """The training method, and the block that is named after it; the other block has no effect and must be left out."""

    type: Literal["supervised", "dpo"]
    supervised: Supervised | None = None
    dpo: Preference | None = None

    @model_validator(mode="after")
    def _has_its_own_block(self) -> Self:
        other = "dpo" if self.type == "supervised" else "supervised"
        if getattr(self, other) is not None:
            raise ValueError(f"the type is {self.type}, so the block {other} must be left out")
        return self

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Hyperparameters of the method's own block; ``auto`` where they are left out."""
        if self.type == "dpo":
            return (self.dpo or Preference()).hyperparameters
        return (self.supervised or Supervised()).hyperparameters


class ContractOverrides(ClosedObject):
    """Sections of the fine-tune contract (GET /v1/contract/schema) that OpenAI's request has no fields for."""

    provenance: dict[str, Any] = {}
    data: dict[str, Any] = {}
    adapter: dict[str, Any] = {}
    quant: dict[str, Any] = {}
    exec: dict[str, Any] = {}
    artifact: dict[str, Any] = {}
    device: dict[str, Any] = {}
    trajectory: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    curriculum: dict[str, Any] = {}
    chatml: dict[str, Any] = {}
    reward: dict[str, Any] = {}
    method: dict[str, Any] = {}
    preference: dict[str, Any] = {}


class MensBlock(ContractOverrides, QueueTerms):
    """Mens's block in OpenAI's request: sections of the contract, and the job's priority and limits."""

    def sections(self) -> dict[str, Any]:
        """Return the sections of the contract that were sent."""
        return self.model_dump(exclude_unset=True, exclude=set(QueueTerms.model_fields))

    def terms(self) -> QueueTerms:
        """The job's priority and limits."""
        return QueueTerms.model_validate(self.model_dump(include=set(QueueTerms.model_fields)))


class CreateFineTuningJob(ClosedObject):
    """Request for a fine-tuning job (POST /v1/fine_tuning/jobs)."""

    model: str | None = Field(
        None,
        description=(
            "The base, or a tuned model to continue from: its id, an alias, or a foreign name. If it is left out: "
            "the default base, otherwise the catalogue's only base, otherwise the only served one."
        ),
    )
    training_file: str
    validation_file: str | None = None
    hyperparameters: Hyperparameters | None = Field(
        None, description="Deprecated by OpenAI in favour of `method`; older clients send it."
    )
    method: TrainingMethod | None = None
    suffix: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    integrations: list[Any] | None = Field(None, description="Not supported in this release: null or an empty list.")
    mens: MensBlock = MensBlock()

    @property
    def requested(self) -> Hyperparameters:
        """The hyperparameters that were sent, in either of the two places."""
        return self.method.hyperparameters if self.method else self.hyperparameters or Hyperparameters()

    @property
    def method_type(self) -> str:
        """The training method: OpenAI's field, else ours, else supervised."""
        return self.method.type if self.method else str(self.mens.method.get("type", "supervised"))

    @field_validator("integrations")
    @classmethod
    def _no_integrations(cls, value: list[Any] | None) -> list[Any] | None:
        if value:
            raise ValueError("integrations are not supported by this release; leave them out")
        return value


class JobError(BaseModel):
    code: str
    message: str
    param: str | None = None


class FineTuningJob(BaseModel):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: JobError | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: dict[str, Any]
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: Status
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    estimated_finish: int | None
    integrations: list[Any] = []
    metadata: dict[str, str]
    method: dict[str, Any] | None
    mens: dict[str, Any]


class FineTuningEvent(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any]


class FineTuningCheckpoint(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: dict[str, float]


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
    expires_at: int | None = Field(None, exclude_if=lambda moment: moment is None)


class Deleted(BaseModel):
    id: str
    object: str
    deleted: bool = True


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    shutdown_date: date | None = None
    mens: dict[str, Any]


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class EvalApiError(BaseModel):
    """Reason why a run of an eval, or an answer in it, has failed."""

    code: str
    message: str


def unix_seconds(moment: datetime) -> int:
    """Convert a time to OpenAI's format: whole seconds since 1970."""
    return int(moment.timestamp())
