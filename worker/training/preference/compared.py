"""Common part of the methods that compare a policy with its reference: the stored scores, and the warning."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shared.contract.choices import MethodType
from shared.contract.sections import PreferenceSection
from worker.run_folder import REFERENCE_NAME
from worker.training.method import BatchT, Method, RowT
from worker.training.preference.reference import load_reference, score_reference
from worker.training.preference.scored_rows import SCORES

if TYPE_CHECKING:
    from worker.training.trainer import TrainingContext

LIKELIHOOD_FALLS = "LIKELIHOOD_FALLS"
WATCHED_STEPS = 20
FALL_NATS, FALL_SHARE = 5.0, 0.1
"""For a warning, the mean log-probability of both kinds of answers must have fallen by this much, and by this share of
the reference's.
"""
TOKENS, SQUARED_MARGIN = "tokens", "squared_margin"


class ComparedMethod(Method[RowT, BatchT]):
    """Base of the methods that learn preferences.

    Args:
        section: the loss and its parameters.

    Attributes:
        type: its name in contracts.
    """

    type: MethodType
    carried = (REFERENCE_NAME,)

    def __init__(self, section: PreferenceSection) -> None:
        self._section = section
        self._reference = torch.zeros((0, SCORES))
        self._fallen: deque[bool] = deque(maxlen=WATCHED_STEPS)
        self._has_warned = False

    def prepare(self, context: TrainingContext, resume: Path | None, working: Callable[[], None]) -> None:
        """Compute the reference's scores of every answer, or load those that the checkpoint carries."""
        self._reference = score_reference(context, working) if resume is None else load_reference(context, resume)

    def warning(self, metrics: Mapping[str, float]) -> dict[str, Any] | None:
        """Return a warning, once, if both kinds of answers have become much less likely than they are to the reference."""
        names = ("logps_chosen", "logps_rejected", "rewards_chosen", "rewards_rejected")
        # A step of rated answers may have only one kind of answer; then it does not count.
        if self._has_warned or self._section.sft_weight or any(name not in metrics for name in names):
            return None
        self._fallen.append(all(self._has_fallen(metrics, side) for side in ("chosen", "rejected")))
        self._has_warned = len(self._fallen) == WATCHED_STEPS and all(self._fallen)
        if not self._has_warned:
            return None
        likelihoods = {name: metrics[name] for name in names}
        return {"code": LIKELIHOOD_FALLS, "method": self.type.value, "steps": WATCHED_STEPS, **likelihoods}

    def _has_fallen(self, metrics: Mapping[str, float], side: str) -> bool:
        lost = -metrics[f"rewards_{side}"] / self._section.strength
        return lost > max(FALL_NATS, FALL_SHARE * abs(metrics[f"logps_{side}"] + lost))
