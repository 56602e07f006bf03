"""The check of a run's first loss: a policy that has not been trained must agree with its reference."""

from __future__ import annotations

import math

import torch

from shared.contract.choices import PreferenceLoss
from shared.contract.sections import PreferenceSection
from shared.errors import Code, JobFailed
from worker.training.model.load import compute_dtype_name
from worker.training.preference.losses import first_loss

LOSS_BOUNDS = {"float32": 1e-4, "bfloat16": 1e-2}
MARGIN_BOUNDS = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest root mean square of the pairs' margins in nats; in bfloat16 for answers of one token, since its rounding differs
with the micro-batch and adds up over tokens."""


def check_first_loss(
    section: PreferenceSection, device: torch.device, loss: float, squared_margin: float, tokens: float
) -> None:
    """Check the first step's preference loss and its margins, before anything is changed.

    Args:
        section: the loss and its parameters.
        device: decides the precision.
        loss: mean over the step's pairs.
        squared_margin: mean of the squared margins, in nats.
        tokens: mean of both answers' tokens.

    Raises:
        JobFailed: ``REFERENCE_MISMATCH``.
    """
    expected, dtype = first_loss(section), compute_dtype_name(device)
    largest = MARGIN_BOUNDS[dtype] * (math.sqrt(max(1.0, tokens)) if dtype == "bfloat16" else 1.0)
    bound = LOSS_BOUNDS[dtype] + (section.strength / 2 * largest if dtype == "bfloat16" else 0.0)
    bound *= expected if section.loss is PreferenceLoss.IPO else 1.0
    margin = math.sqrt(squared_margin) if math.isfinite(squared_margin) else squared_margin
    if abs(loss - expected) <= bound and margin <= largest:
        return
    raise JobFailed(
        Code.REFERENCE_MISMATCH,
        f"The first preference loss is {loss:.6g}; an adapter that is not trained yet gives {expected:.6g} (within {bound:.2g}),"
        f" and margins of 0 nats (found {margin:.2g}, within {largest:.2g}). The reference's scores are not those of this model and"
        " these rows.",
        remedy="Submit the job again; if it happens again, report it with the trainer's log.",
        details={"loss": loss if math.isfinite(loss) else None, "expected": expected},
    )
