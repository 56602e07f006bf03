"""Settings of the worker tier."""

from __future__ import annotations

from pydantic import Field

from shared.settings import Settings


class WorkerSettings(Settings):
    """See `shared/settings.py` for what all tiers share."""

    lease_seconds: float = Field(60.0, gt=0, description="A job whose worker is silent this long is taken back.")
    heartbeat_seconds: float = Field(10.0, gt=0, description="How often a worker extends its lease.")
    sweep_seconds: float = Field(10.0, gt=0, description="How often expired leases and unrung jobs are looked for.")
    stop_grace_seconds: float = Field(60.0, gt=0, description="Time for the engine to stop before it is killed.")
    publish_timeout_seconds: float = Field(180.0, gt=0, description="How long a serving replica may be away.")
    trainer_threads: int = Field(0, ge=0, description="CPU threads of the engine; 0 leaves it to torch.")
    effect_floor: float = Field(1e-3, gt=0, description="Nats (RMS) by which an adapter must move the probes.")
