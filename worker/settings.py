"""Settings of the worker tier."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from shared.settings import RetentionSettings
from worker.training.trackers import DEFAULT_TRACKERS, TrackerName, parse_trackers


def _tracker_names(value: object) -> object:
    return parse_trackers(value) if isinstance(value, str) else value


class WorkerSettings(RetentionSettings):
    """See `shared/settings.py` for what all tiers share."""

    lease_seconds: float = Field(60.0, gt=0, description="A job whose worker is silent this long is taken back.")
    heartbeat_seconds: float = Field(10.0, gt=0, description="How often a worker extends its lease.")
    sweep_seconds: float = Field(10.0, gt=0, description="How often expired leases and unrung jobs are looked for.")
    retention_seconds: float = Field(
        3600.0, gt=0, description="How often what may go by the retention policy is removed."
    )
    stop_grace_seconds: float = Field(60.0, gt=0, description="Time for the engine to stop before it is killed.")
    publish_timeout_seconds: float = Field(180.0, gt=0, description="How long a serving replica may be away.")
    unload_patience_seconds: float = Field(
        3600.0, ge=0, description="A replica that is away for longer is not waited for before an adapter's files go."
    )
    trainer_threads: int = Field(0, ge=0, description="CPU threads of the engine; 0 leaves it to torch.")
    trainer_processes: int = Field(1, ge=0, description="Processes that share a fine-tune job; 0: one per GPU.")
    # Read by the engine too.
    shard_base: Literal["auto", "always"] = Field(
        "auto", description="always: several processes hold the frozen base in parts even where it would fit whole."
    )
    effect_floor: float = Field(1e-3, gt=0, description="Nats (RMS) by which an adapter must move the probes.")
    parity: Literal["full", "shift"] = Field(
        "full", description="full: publishing also scores the probes on the served base itself; shift: it does not."
    )
    base_shift_limit: float | None = Field(
        None, gt=0, description="Nats (RMS) that the served base may be from the NF4 base; null: only reported."
    )
    # Read by the engine too, which gets the worker's environment; here so that a wrong name stops the worker at once.
    trackers: Annotated[list[TrackerName], NoDecode, BeforeValidator(_tracker_names)] = Field(
        list(DEFAULT_TRACKERS), description="Where runs can be followed: tensorboard, mlflow, wandb, or none."
    )
    git_sha: str | None = Field(None, description="Commit of this installation's code, for training manifests.")
