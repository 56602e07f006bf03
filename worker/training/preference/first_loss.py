"""The check of a run's first loss: a policy that has not been trained must agree with its reference."""

from __future__ import annotations

import math

import torch

from shared.contract.choices import PreferenceLoss
from shared.contract.sections import PreferenceSection
from shared.errors import Code, JobFailed
from worker.training.model.load import compute_dtype_name

LOSS_BOUNDS = {"float32": 1e-4, "bfloat16": 1e-2}
MARGIN_BOUNDS = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest root mean square of the pairs' margins, in nats; in bfloat16 for answers of one token, because its rounding
errors depend on the micro-batch and add up over tokens.
"""


def check_first_loss(
    section: PreferenceSection,
    device: torch.device,
    expected: float,
    loss: float,
    squared_margin: float,
    tokens: float,
) -> None:
    """Check the first step's preference loss and its margins, before anything is changed.

    Args:
        section: the loss and its parameters.
        device: decides the precision.
        expected: loss of a policy that equals its reference.
        loss: mean over the step's rows.
        squared_margin: mean of the squared margins of pairs, or of what rated answers have gained, in nats.
        tokens: mean number of scored tokens per row.

    Raises:
        JobFailed: ``REFERENCE_MISMATCH``.
    """
    dtype = compute_dtype_name(device)
    largest = MARGIN_BOUNDS[dtype] * (math.sqrt(max(1.0, tokens)) if dtype == "bfloat16" else 1.0)
    bound = LOSS_BOUNDS[dtype] + (section.strength / 2 * largest if dtype == "bfloat16" else 0.0)
    # The weights of rated answers scale their loss.
    scales = {PreferenceLoss.IPO: expected, PreferenceLoss.KTO: max(1.0, 2 * expected)}
    bound *= scales.get(section.loss, 1.0)
    margin = math.sqrt(squared_margin) if math.isfinite(squared_margin) else squared_margin
    if abs(loss - expected) <= bound and margin <= largest:
        return
    raise JobFailed(
        Code.REFERENCE_MISMATCH,
        f"The first preference loss is {loss:.6g}; an adapter that is not trained yet gives {expected:.6g} (within "
        f"{bound:.2g}),"
        f" and margins of 0 nats (found {margin:.2g}, within {largest:.2g}). The reference's scores are not those of "
        "this model and"
        " these rows.",
        remedy="Submit the job again; if it happens again, report it with the trainer's log.",
        details={"loss": loss if math.isfinite(loss) else None, "expected": expected},
    )
