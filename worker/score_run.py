"""What the publisher and the scoring process have agreed on: the ``plan.json`` of ``python -m worker.score``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from shared.contract import DeviceSection

SCORES_NAME = "scores.json"


class ScoreRun(BaseModel):
    """Score probes with an adapter on a full-precision base.

    Attributes:
        base: the base's folder.
        adapter: the adapter's folder.
        probes: the ``probes.json`` of its run.
        dtype: torch's name of the dtype to compute in: the one that is served.
        device: where the contract wanted to train.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    base: str
    adapter: str
    probes: str
    dtype: str
    device: DeviceSection
