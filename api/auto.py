"""What OpenAI's ``"auto"`` hyper-parameters mean here: pure rules, documented in docs/openai.md, echoed resolved.

- ``batch_size``: a 16th of the rows, rounded down to a power of two, between 1 and 8.
- ``n_epochs``: as many as give about 200 optimizer steps, between 1 and 10.
- ``learning_rate_multiplier``: 1.0, of the contract's default rate of 2e-4.
"""

from __future__ import annotations

import math

from api.openai_types import Hyperparameters

BASE_LEARNING_RATE = 2e-4
TARGET_STEPS = 200


def resolve_auto(asked: Hyperparameters, rows: int) -> dict[str, float]:
    """All three as numbers, for a training file of so many rows."""
    batch_size = auto_batch_size(rows) if asked.batch_size == "auto" else asked.batch_size
    epochs = auto_epochs(rows, batch_size) if asked.n_epochs == "auto" else asked.n_epochs
    multiplier = 1.0 if asked.learning_rate_multiplier == "auto" else asked.learning_rate_multiplier
    return {"batch_size": batch_size, "learning_rate_multiplier": multiplier, "n_epochs": epochs}


def auto_batch_size(rows: int) -> int:
    """Rows per optimizer step."""
    return min(8, 1 << int(math.log2(max(1, rows // 16))))


def auto_epochs(rows: int, batch_size: int) -> int:
    """Passes over the file."""
    return max(1, min(10, math.ceil(TARGET_STEPS * batch_size / max(1, rows))))
