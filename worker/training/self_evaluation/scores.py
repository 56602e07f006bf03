"""Loss and token accuracy of the adapter and of its base, row by row on the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from shared.model_card.evaluation_rows import MIN_ROWS, RowScore
from worker.training.data.prepared import Row
from worker.training.model.load import packs
from worker.training.supervised import SupervisedMethod
from worker.training.trainer import TrainingContext

ANSWERS = SupervisedMethod()
MAX_ROWS = 128
MIN_TOKENS = 1_024
MAX_TOKENS = 32_768
SHARE_OF_TRAINING = 10
"""The scored rows have at most a tenth of the trained tokens, so that both passes cost less than a fifteenth of the
run.
"""


def choose_rows(lengths: Callable[[int], int], rows: int, trained_tokens: int, seed: int) -> list[int]:
    """Return the numbers of the rows to score, in an order that the seed determines.

    Args:
        lengths: returns the tokens of a row by its number.
        rows: number of rows.
        trained_tokens: tokens of the whole run.
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
    """Return the first `count` row numbers of an order that depends only on the seed."""
    return random.Random(f"self-evaluation-{seed}").sample(range(rows), min(count, rows))


@torch.no_grad()
def score_rows(context: TrainingContext, rows: Sequence[Row], check: Callable[[], None]) -> list[RowScore]:
    """Score the answers of each row alone, for any training method. The caller switches the adapter on or off.

    Args:
        check: called before each row; raises when a stop was requested.
    """
    context.model.eval()
    pad, packed = int(context.tokenizer.pad_token_id or 0), packs(context.model)
    scores = []
    for row in rows:
        check()
        batches = ANSWERS.micro_batches([row.unweighted()], sum(row.lengths), pad_token=pad, packed=packed)
        losses = [ANSWERS.loss(context.model, batch, context.device) for batch in batches]
        scores.append(
            RowScore(
                sum(batch.loss.item() for batch in losses),
                sum(batch.correct.item() for batch in losses),
                sum(batch.weight_sum for batch in batches),
                sum(batch.target_count for batch in batches),
            )
        )
    return scores
