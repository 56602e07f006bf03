"""Values of ``auto`` hyper-parameters: pure rules, documented in docs/openai.md. Responses show the resolved values.

- ``batch_size``: a 16th of the rows, rounded down to a power of two, between 1 and 8.
- ``learning_rate``: the base's in the catalogue, else 2e-4.
- ``epochs``: enough for about 200 optimizer steps; from 1 to 3, or to 10 if the base's own rate is 1e-3 or more.

For preferences (method.type dpo or kto) the rate is a tenth of that, and the epochs are enough for about 100 steps,
from 1 to 3.

A base with such a high rate is a small one that was trained for seconds: it has little to forget, and needs many steps.
A real base already has the skills for a task, and forgets others with each further epoch (decision 0075).
"""

from __future__ import annotations

import math

DEFAULT_LEARNING_RATE = 2e-4
TARGET_STEPS = 200
PAIR_STEPS = 100
PAIR_RATE_DIVISOR = 10
MAX_BATCH_SIZE = 8
MAX_EPOCHS = 3
HIGH_RATE = 1e-3
MAX_EPOCHS_AT_HIGH_RATE = 10
LOW_RATE = 1e-4
"""Below this rate a few passes cost a base nothing that was measured: decision 0075."""
MEASURED_FORGETTING = (
    "with 48 rows, default runs of SmolLM2-135M kept 6 of 32 general answers, and two with --replay kept 16 of 16"
)
"""The result of decision 0075's table that a user should know before the job."""


def auto_batch_size(rows: int) -> int:
    """Return the rows per optimizer step for a training file with this many rows."""
    return min(MAX_BATCH_SIZE, 1 << int(math.log2(max(1, rows // 16))))


def auto_epochs(rows: int, batch_size: int, rate_of_base: float | None) -> int:
    """Return the number of epochs; ``rate_of_base`` is the catalogue's learning rate, None if the base has none there."""
    most = MAX_EPOCHS_AT_HIGH_RATE if auto_learning_rate(rate_of_base) >= HIGH_RATE else MAX_EPOCHS
    return max(1, min(most, math.ceil(TARGET_STEPS * batch_size / max(1, rows))))


def auto_exec(rows: int, rate_of_base: float | None, *, pairs: bool = False) -> dict[str, float]:
    """Return the contract's ``exec`` section according to the auto rules; explicit values override it.

    Args:
        rows: number of rows of the training file.
        rate_of_base: the catalogue's learning rate; None if the base has none there.
        pairs: whether the rows are pairs of answers, or rated answers.
    """
    batch_size = auto_batch_size(rows)
    return {
        "batch_size": batch_size,
        "grad_accum": 1,
        "epochs": auto_pair_epochs(rows, batch_size) if pairs else auto_epochs(rows, batch_size, rate_of_base),
        "learning_rate": auto_learning_rate(rate_of_base, pairs=pairs),
    }


def auto_pair_epochs(pairs: int, batch_size: int) -> int:
    """Return the number of epochs over a file of pairs: enough for about 100 steps, from 1 to 3."""
    return max(1, min(MAX_EPOCHS, math.ceil(PAIR_STEPS * batch_size / max(1, pairs))))


def auto_learning_rate(of_base: float | None, *, pairs: bool = False) -> float:
    """Return the peak learning rate; ``of_base`` is the catalogue's, None if the base has none there.

    For pairs it is a tenth of the usual rate, because their loss rewards every step away from the reference.
    """
    return (of_base or DEFAULT_LEARNING_RATE) / (PAIR_RATE_DIVISOR if pairs else 1)


def note_on_default_rate(
    rate: float, *, is_default: bool, base: str, rate_of_base: float | None, pairs: bool = False
) -> list[str]:
    """Return a note if a job uses the contract's default learning rate but the base learns well at a different one.

    Args:
        rate: learning rate that the job trains with.
        is_default: whether it is the default, not set by caller, rule or preset.
        base: name of the base.
        rate_of_base: the catalogue's; None when it has none for the base.
        pairs: the rows are pairs of answers, or rated ones.
    """
    if is_default and pairs:
        default = f"exec.learning_rate is the contract's default, {rate:g}, which suits supervised training"
        return [f"{default}; set it to {auto_learning_rate(rate_of_base, pairs=True):g}, the rate for preferences."]
    if not is_default or rate_of_base is None or rate_of_base == rate:
        return []
    default = f"exec.learning_rate is the contract's default, {rate:g}"
    return [f"{default}; set it to {rate_of_base:g}, the rate in the catalogue's entry for {base}."]


def note_on_forgetting(
    epochs: int, rate: float, rate_of_base: float | None, *, has_replay: bool, pairs: bool = False
) -> list[str]:
    """Return a note if several passes over the rows would cost a real base general skills; none if rows are replayed.

    Args:
        epochs: the job's epochs.
        rate: the job's learning rate.
        rate_of_base: the catalogue's; None when it has none for the base.
        has_replay: whether the job has a replay file.
        pairs: the rows are pairs of answers, or rated ones, which nothing can be mixed into.
    """
    is_real = auto_learning_rate(rate_of_base) < HIGH_RATE
    if has_replay or pairs or not is_real or epochs < 2 or rate < LOW_RATE:
        return []
    many = f"exec.epochs is {epochs}, and each pass over the same rows costs the base some of its other skills"
    few = f"{epochs} passes over the same rows may cost the base some of its other skills"
    return [
        (
            f"{many if epochs > MAX_EPOCHS else few}: {MEASURED_FORGETTING}. To keep them, mix general chats into each "
            f"epoch: --replay FILE (data.replay_file)."
        )
    ]
