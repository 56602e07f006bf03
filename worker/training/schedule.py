"""The learning-rate schedule: a pure function of the step, so a resume needs no scheduler state."""

from __future__ import annotations

import math


def learning_rate(step: int, total: int, peak: float, warmup: int) -> float:
    """Return the rate of the 0-based optimizer step: linear warm-up ``peak·(step+1)/warmup``, then a cosine to 0."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
