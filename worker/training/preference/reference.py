"""The reference's scores: log-probabilities of both answers of every pair, or of every rated answer after its own and
after another prompt, computed by the model before the first step.

They are computed once and stay in the run folder and in every checkpoint, so that a resumed run, on any machine,
compares with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from shared.errors import Code, JobFailed
from shared.hashing import digest_file
from shared.host import disk_errors
from worker.checkpoints.folders import link_or_copy
from worker.run_folder import REFERENCE_NAME
from worker.training.checkpoint import carried_digest
from worker.training.method import Example
from worker.training.preference.pairs import PairBatch
from worker.training.preference.rated import RatedBatch
from worker.training.preference.scored_rows import SCORES, ScoredRows, answer_log_probs

if TYPE_CHECKING:
    from worker.training.trainer import TrainingContext

ROWS_AT_ONCE = 256
TENSOR, PLAN = "scores", "plan"


@torch.no_grad()
def score_reference(context: TrainingContext, working: Callable[[], None]) -> torch.Tensor:
    """Score every row with the model's current weights, and write the scores into the run folder.

    Args:
        working: called between micro-batches.

    Returns:
        (rows, 2), fp32, on the CPU; the same in every process.
    """
    context.model.eval()
    files = scored_files(context)
    scores = torch.zeros((sum(map(len, files)), SCORES))
    # A new adapter adds 0, so computing its products would only take time.
    with nullcontext() if context.plan.parent else context.model.disable_adapter():
        for rows in files:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                part = rows[start : start + ROWS_AT_ONCE]
                for batch in context.micro_batches([*part, *context.method.ahead(part)], context.budget.tokens):
                    assert isinstance(batch, PairBatch | RatedBatch)
                    log_probs = answer_log_probs(context.model, batch, context.device)
                    scores.view(-1)[batch.places] = log_probs.cpu()
                    working()
    if context.distributed.size > 1:  # each process has scored its share, and has 0 in the places of the other rows
        scores = torch.tensor(context.distributed.sum(scores.flatten().tolist())).float().view(-1, SCORES)
    if context.distributed.is_main:
        with disk_errors():
            save_file({TENSOR: scores}, context.run_dir / REFERENCE_NAME, metadata={PLAN: context.plan.digest})
    context.distributed.barrier()
    return scores


def load_reference(context: TrainingContext, checkpoint: Path) -> torch.Tensor:
    """Return the scores that a checkpoint carries, and copy them into this attempt's run folder.

    Raises:
        JobFailed: ``CHECKPOINT_MISMATCH``: they are missing, damaged, or from another run.
    """
    source, target = checkpoint / REFERENCE_NAME, context.run_dir / REFERENCE_NAME
    rows = sum(map(len, scored_files(context)))
    try:
        is_whole = digest_file(source) == carried_digest(checkpoint, REFERENCE_NAME)
        with safe_open(source, framework="pt") as file:
            belongs = (file.metadata() or {}).get(PLAN) == context.plan.digest
            scores: torch.Tensor = file.get_tensor(TENSOR)
    except (OSError, SafetensorError):
        is_whole = False
    if not (is_whole and belongs and scores.shape == (rows, SCORES)):
        raise JobFailed(
            Code.CHECKPOINT_MISMATCH,
            f"The checkpoint {checkpoint.name} does not have the reference's scores of this run ({REFERENCE_NAME}).",
            remedy="Remove the run folder's checkpoints to start from the beginning.",
        )
    if context.distributed.is_main:
        target.unlink(missing_ok=True)
        with disk_errors():
            link_or_copy(source, target)
    context.distributed.barrier()
    return scores


def scored_files(context: TrainingContext) -> Sequence[Sequence[Example]]:
    """Return the rows of the run's files, numbered from the first to the last."""
    data = context.data
    return [data.rows, data.validation] if isinstance(data.validation, ScoredRows) else [data.rows]
