"""Settings of the worker tier."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from shared.settings import RetentionSettings, TrainerShareSettings


class TrackerName(StrEnum):
    """The trackers that a run can report to."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


DEFAULT_TRACKERS = (TrackerName.TENSORBOARD,)


def parse_trackers(text: str) -> list[TrackerName]:
    """Parse a comma-separated list of tracker names; return each once, in order. ``none`` means no tracker."""
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    return [] if names == ["none"] else [TrackerName(name) for name in dict.fromkeys(names)]


TrackerNames = Annotated[
    list[TrackerName],
    NoDecode,
    BeforeValidator(lambda value: parse_trackers(value) if isinstance(value, str) else value),
]


class WorkerSettings(TrainerShareSettings, RetentionSettings):
    """Settings of a worker; `shared/settings.py` has the settings that all tiers share."""

    lease_seconds: float = Field(
        60.0, gt=0, description="A job is taken back if its worker sends no heartbeat for this long."
    )
    heartbeat_seconds: float = Field(10.0, gt=0, description="How often a worker extends its lease.")
    sweep_seconds: float = Field(
        10.0, gt=0, description="How often to look for expired leases and jobs without a queue message."
    )
    webhook_seconds: float = Field(2.0, gt=0, description="How often to look for webhooks that are due.")
    retention_seconds: float = Field(3600.0, gt=0, description="How often the retention policy is applied.")
    stop_grace_seconds: float = Field(60.0, gt=0, description="Time for the trainer to stop before it is killed.")
    trainer_start_seconds: float = Field(
        3600.0, gt=0, description="How long a trainer may be silent until it has completed its first step."
    )
    trainer_stall_seconds: float = Field(
        600.0,
        gt=0,
        description="How long a trainer may be silent after that, or 20 times its longest silence so far, if longer.",
    )
    live_checkpoints: bool = Field(
        True, description="Certify and publish the checkpoints of a job while it trains; otherwise with its result."
    )
    store_checkpoints: Literal["auto", "always", "never"] = Field(
        "auto",
        description=(
            "Store checkpoints while a job runs, so that any worker can resume it; auto: if storage is a bucket."
        ),
    )
    trainer_idle_seconds: float = Field(
        900.0, gt=0, description="How long a trainer may use less than 5 % of a processor and of its GPU."
    )
    max_job_seconds: float | None = Field(
        None, gt=0, description="Total time that all attempts at a job may run; null: no limit."
    )
    orphan_seconds: float = Field(
        1800.0, gt=0, description="Time without a connection to the database after which a worker ends its trainer."
    )
    terminate_seconds: float = Field(
        10.0, ge=0, description="Time between SIGTERM and SIGKILL for a trainer that the watchdog ends."
    )
    publish_timeout_seconds: float = Field(180.0, gt=0, description="How long a serving replica may be unavailable.")
    unload_patience_seconds: float = Field(
        3600.0, ge=0, description="How long an unavailable replica delays the deletion of an adapter's files."
    )
    trainer_threads: int | None = Field(
        None,
        ge=0,
        description=(
            "CPU threads of the trainer; null: one for a tiny base, every core for others; 0 leaves it to torch."
        ),
    )
    trainer_processes: int = Field(1, ge=0, description="Processes that share a fine-tune job; 0: one per GPU.")
    # Read by the trainer too.
    shard_base: Literal["auto", "always"] = Field(
        "auto", description="always: several processes shard the frozen base even if it fits on one device."
    )
    signing_key: Path | None = Field(
        None,
        description=(
            "PEM file of the Ed25519 key that signs adapters and merged models (`mens adapter keygen`); null: "
            "artifacts are not signed."
        ),
    )
    effect_floor: float = Field(1e-3, gt=0, description="Minimum effect of an adapter on the probes, in nats (RMS).")
    parity: Literal["full", "shift"] = Field(
        "full", description="full: publishing also scores the probes on the served base itself; shift: it does not."
    )
    base_shift_limit: float | None = Field(
        None,
        gt=0,
        description="Largest allowed distance of the served base from the NF4 base, in nats (RMS); null: only reported.",
    )
    shift_warning: float = Field(
        0.1, gt=0, description="A base shift of at least this share of an adapter's effect causes a warning."
    )
    # Read by the trainer too.
    sample_answers: int = Field(
        8,
        ge=0,
        le=32,
        description="Rows that base and adapter answer after a run, stored with their answers; 0: no rows.",
    )
    # Read by the trainer too, which gets the worker's environment; here so that a wrong name stops the worker at once.
    trackers: TrackerNames = Field(
        list(DEFAULT_TRACKERS), description="Trackers that runs report to: tensorboard, mlflow, wandb, or none."
    )
    api_url: str = Field(
        "",
        description="Address at which the worker reaches the API: evaluations send requests to models there, like any client.",
    )
    evaluation_concurrency: int = Field(
        16, ge=1, le=1024, description="Number of concurrent requests of an evaluation."
    )
    git_sha: str | None = Field(None, description="Commit of this installation's code, for training manifests.")

    @property
    def stores_checkpoints(self) -> bool:
        """Return true if checkpoints are stored while a job runs."""
        return self.store_checkpoints == "always" or (self.store_checkpoints == "auto" and bool(self.s3_bucket))
