"""The reference's scores: log-probabilities of both answers of every pair, by the model as it stands before the first step.

They are computed once and stay in the run folder and in every checkpoint, so that a resumed run, on any machine, compares
with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from shared.errors import Code, JobFailed
from shared.hashing import digest_file
from shared.host import disk_errors
from worker.checkpoints.folders import link_or_copy
from worker.run_folder import REFERENCE_NAME
from worker.training.checkpoint import carried_digest
from worker.training.preference.pairs import Pair, PairBatch, PreparedPairs

if TYPE_CHECKING:
    from worker.training.trainer import TrainingContext

ROWS_AT_ONCE = 256
TENSOR, PLAN = "scores", "plan"
LogProbs = Callable[[PeftModel, PairBatch, torch.device], torch.Tensor]


@torch.no_grad()
def score_reference(context: TrainingContext, log_probs: LogProbs, working: Callable[[], None]) -> torch.Tensor:
    """Score every pair by the model as it stands, and write the scores into the run folder.

    Args:
        log_probs: returns the log-probabilities of a micro-batch's answers, (pairs, 2).
        working: called between micro-batches.

    Returns:
        (pairs, 2), fp32, on the CPU; the same in every process.
    """
    context.model.eval()
    files = pair_files(context)
    scores = torch.zeros((sum(map(len, files)), 2))
    for pairs in files:
        for start in range(0, len(pairs), ROWS_AT_ONCE):
            for batch in context.micro_batches(pairs[start : start + ROWS_AT_ONCE], context.budget.tokens):
                assert isinstance(batch, PairBatch)
                scores[batch.numbers] = log_probs(context.model, batch, context.device).cpu()
                working()
    if context.distributed.size > 1:  # each process has scored its share, and the others' places are 0
        scores = torch.tensor(context.distributed.sum(scores.flatten().tolist())).float().view(-1, 2)
    if context.distributed.is_main:
        with disk_errors():
            save_file({TENSOR: scores}, context.run_dir / REFERENCE_NAME, metadata={PLAN: context.plan.digest})
    context.distributed.barrier()
    return scores


def load_reference(context: TrainingContext, checkpoint: Path) -> torch.Tensor:
    """Return the scores that a checkpoint carries, and give them to this attempt's run folder.

    Raises:
        JobFailed: ``CHECKPOINT_MISMATCH``: they are missing, damaged, or of another run.
    """
    source, target = checkpoint / REFERENCE_NAME, context.run_dir / REFERENCE_NAME
    pairs = sum(map(len, pair_files(context)))
    try:
        is_whole = digest_file(source) == carried_digest(checkpoint, REFERENCE_NAME)
        with safe_open(source, framework="pt") as file:
            belongs = (file.metadata() or {}).get(PLAN) == context.plan.digest
            scores: torch.Tensor = file.get_tensor(TENSOR)
    except (OSError, SafetensorError):
        is_whole = False
    if not (is_whole and belongs and scores.shape == (pairs, 2)):
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


def pair_files(context: TrainingContext) -> Sequence[PreparedPairs | Sequence[Pair]]:
    """Return the pairs of the run's files, numbered from the first to the last."""
    data = context.data
    return [data.rows, data.validation] if isinstance(data.validation, PreparedPairs) else [data.rows]
