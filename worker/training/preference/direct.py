"""Direct preference optimisation, the training method: raise the preferred answers over the rejected ones, by comparison
with what the reference says of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.contract.plan import TrainingRun
from shared.contract.sections import PreferenceSection
from worker.run_folder import PREFERENCE_METRICS, REFERENCE_NAME
from worker.training.data.dataset import Data
from worker.training.method import BatchLoss, Method
from worker.training.metrics import Score
from worker.training.model.lm_head import head_log_probs
from worker.training.preference.data import read_pairs
from worker.training.preference.first_loss import check_first_loss
from worker.training.preference.losses import preference_loss
from worker.training.preference.pairs import Pair, PairBatch, no_pairs, pair_batches
from worker.training.preference.reference import load_reference, score_reference
from worker.training.supervised import predicting_rows

if TYPE_CHECKING:
    from worker.training.trainer import TrainingContext

LIKELIHOOD_FALLS = "LIKELIHOOD_FALLS"
WATCHED_STEPS = 20
FALL_NATS, FALL_SHARE = 5.0, 0.1
"""Both answers' mean log-probability must have fallen by this much, and by this share of the reference's."""
TOKENS, SQUARED_MARGIN = "tokens", "squared_margin"


class DirectPreference(Method[Pair, PairBatch]):
    """`worker/training/method.py:Method` for pairs of answers.

    Args:
        section: the loss and its parameters.
    """

    sums = (*PREFERENCE_METRICS, TOKENS, SQUARED_MARGIN)
    carried = (REFERENCE_NAME,)

    def __init__(self, section: PreferenceSection) -> None:
        self._section = section
        self._reference = torch.zeros((0, 2))
        self._fallen: deque[bool] = deque(maxlen=WATCHED_STEPS)
        self._has_warned = False

    def read(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[Pair]:
        """Encode the plan's files, or find them encoded in the cache.

        Raises:
            DatasetInvalid: ``NOTHING_SUPERVISED``, ``SKIP_RATE_EXCEEDED``. JobFailed: ``TOKENIZER_MISMATCH``.
        """
        return read_pairs(run, tokenizer, vocab, cache)

    def micro_batches(
        self, rows: Sequence[Pair], token_budget: int, *, pad_token: int, packed: bool
    ) -> list[PairBatch]:
        """Pack pairs end to end, best fit decreasing; or group pairs of similar length, padded."""
        return pair_batches(rows, token_budget, pad_token=pad_token, packed=packed)

    def empty_batch(self) -> PairBatch:
        """Return a batch of one token without a pair."""
        return no_pairs()

    def loss(self, model: PeftModel, batch: PairBatch, device: torch.device, divisor: float = 1.0) -> BatchLoss:
        """Return the sum of the pairs' losses, and the number of pairs whose preferred answer has gained more."""
        policy = log_probs(model, batch, device)
        reference = self._reference[batch.numbers].to(device)
        lengths = batch.lengths.to(device)
        preferred = preference_loss(self._section, policy, reference, lengths).sum()
        learnt = (-policy[:, 0] / lengths[:, 0]).sum()
        loss = (preferred + self._section.sft_weight * learnt) / divisor
        gained = (policy - reference).detach()
        margin = gained[:, 0] - gained[:, 1]
        is_right = (margin > 0).sum()
        rewards, scores = self._section.strength * gained.sum(0), policy.detach().sum(0)
        found = (preferred, learnt, *rewards, rewards[0] - rewards[1], is_right, *scores)
        found = (*found, lengths.sum(), (margin**2).sum())
        sums = {name: value.detach().float() for name, value in zip(self.sums, found, strict=True)}
        return BatchLoss(loss, is_right, sums)

    def prepare(self, context: TrainingContext, resume: Path | None, working: Callable[[], None]) -> None:
        """Take the reference's scores of every pair, or those that the checkpoint carries.

        Raises:
            JobFailed: ``CHECKPOINT_MISMATCH``.
        """
        if resume is None:
            self._reference = score_reference(context, log_probs, working)
        else:
            self._reference = load_reference(context, resume)

    def check_first_step(self, context: TrainingContext, score: Score, rows: int) -> None:
        """Check that a policy that has not been trained yet equals its reference.

        Raises:
            JobFailed: ``REFERENCE_MISMATCH``.
        """
        loss, tokens, squares = (score.sums[name] / rows for name in ("preference_loss", TOKENS, SQUARED_MARGIN))
        check_first_loss(self._section, context.device, loss, squares, tokens)

    def metrics(self, sums: Mapping[str, float], rows: int) -> dict[str, float]:
        """Return the means of a step by pair."""
        return {name: sums[name] / rows for name in PREFERENCE_METRICS}

    def warning(self, metrics: Mapping[str, float]) -> dict[str, Any] | None:
        """Return a warning, once, if both answers have become much less likely than they are to the reference."""
        if self._has_warned or self._section.sft_weight:
            return None
        self._fallen.append(all(self._has_fallen(metrics, side) for side in ("chosen", "rejected")))
        self._has_warned = len(self._fallen) == WATCHED_STEPS and all(self._fallen)
        if not self._has_warned:
            return None
        names = ("logps_chosen", "logps_rejected", "rewards_chosen", "rewards_rejected")
        return {"code": LIKELIHOOD_FALLS, "steps": WATCHED_STEPS, **{name: metrics[name] for name in names}}

    def _has_fallen(self, metrics: Mapping[str, float], side: str) -> bool:
        lost = -metrics[f"rewards_{side}"] / self._section.strength
        return lost > max(FALL_NATS, FALL_SHARE * abs(metrics[f"logps_{side}"] + lost))


def log_probs(model: PeftModel, batch: PairBatch, device: torch.device) -> torch.Tensor:
    """Return the log-probability of each answer in nats, fp32, (pairs, 2)."""
    head, rows, there = predicting_rows(model, batch.chats, device)
    by_token = head_log_probs(head, rows, there.targets)
    answers = by_token.split(batch.lengths.flatten().tolist())
    # Not with index_add, whose order of additions differs from run to run on a GPU.
    return torch.stack([answer.sum() for answer in answers]).view(-1, 2) if answers else by_token.view(0, 2)
