"""Loss and token accuracy of the adapter and of its base, row by row on the same tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from shared.model_card.self_evaluation import PairedMeasure
from shared.statistics.paired import CONFIDENCE, PADDING
from shared.statistics.resampling import bca_interval
from worker.training.method import Example
from worker.training.model.load import packs
from worker.training.trainer import TrainingContext

MAX_ROWS = 128
MIN_ROWS = 8
"""So many are scored however long they are, and fewer give no interval."""
MIN_TOKENS = 2_048
MAX_TOKENS = 32_768
SHARE_OF_TRAINING = 10
"""Tokens of the scored rows are at most a tenth of those trained on: both passes cost less than a fifteenth of the run."""


class RowScore(NamedTuple):
    """Sums over a row's supervised tokens."""

    loss: float
    correct: float
    weight: float
    targets: int


def choose_rows(lengths: Callable[[int], int], rows: int, trained_tokens: int, seed: int) -> list[int]:
    """Which rows are scored, in the order of a shuffle that the seed decides.

    Args:
        lengths: tokens of a row by its number.
        rows: how many there are.
        trained_tokens: of the whole run.
    """
    limit = min(MAX_TOKENS, max(MIN_TOKENS, trained_tokens // SHARE_OF_TRAINING))
    chosen: list[int] = []
    tokens = 0
    for number in shuffled(rows, seed):
        tokens += lengths(number)
        if tokens > limit and len(chosen) >= MIN_ROWS:
            break
        chosen.append(number)
    return chosen


def shuffled(rows: int, seed: int, count: int = MAX_ROWS) -> list[int]:
    """The first so many row numbers of an order that the seed alone decides."""
    return random.Random(f"self-evaluation-{seed}").sample(range(rows), min(count, rows))


@torch.no_grad()
def score_rows(context: TrainingContext, rows: Sequence[Example], check: Callable[[], None]) -> list[RowScore]:
    """Score each row alone, as validation counts it. The adapter is as the caller has switched it.

    Args:
        check: called before each row; raises when a stop was requested.
    """
    context.model.eval()
    pad, packed = int(context.tokenizer.pad_token_id or 0), packs(context.model)
    scores = []
    for row in rows:
        check()
        batches = context.method.micro_batches([row.unweighted()], sum(row.lengths), pad_token=pad, packed=packed)
        parts = [context.method.loss(context.model, batch, context.device) for batch in batches]
        scores.append(
            RowScore(
                sum(loss.item() for loss, _ in parts),
                sum(correct.item() for _, correct in parts),
                sum(batch.weight_sum for batch in batches),
                sum(batch.target_count for batch in batches),
            )
        )
    return scores


def compare_losses(base: Sequence[RowScore], tuned: Sequence[RowScore]) -> PairedMeasure | None:
    """Nats per supervised token; None when a loss is not finite."""
    differences = [(new.loss - old.loss) / old.weight for old, new in zip(base, tuned, strict=True) if old.weight]
    weight = sum(score.weight for score in base)
    if not differences or not all(math.isfinite(score.loss) for score in (*base, *tuned)):
        return None
    return PairedMeasure(
        base=sum(score.loss for score in base) / weight,
        tuned=sum(score.loss for score in tuned) / weight,
        row_difference=sum(differences) / len(differences),
        interval=bca_interval(differences, CONFIDENCE) if len(differences) >= MIN_ROWS else None,
    )


def compare_accuracies(base: Sequence[RowScore], tuned: Sequence[RowScore]) -> PairedMeasure | None:
    """Share of supervised tokens that the arg-max predicts; None without any."""
    pairs = [(old, new) for old, new in zip(base, tuned, strict=True) if old.targets]
    if not pairs:
        return None
    targets = sum(old.targets for old, _ in pairs)
    differences = [(new.correct - old.correct) / old.targets for old, new in pairs]
    return PairedMeasure(
        base=sum(old.correct for old, _ in pairs) / targets,
        tuned=sum(new.correct for _, new in pairs) / targets,
        row_difference=sum(differences) / len(differences),
        interval=bca_interval([*differences, *PADDING], CONFIDENCE) if len(pairs) >= MIN_ROWS else None,
    )
