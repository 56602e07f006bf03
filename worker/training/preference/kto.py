"""Kahneman-Tversky optimisation (KTO), the training method: make answers that are rated good more likely and answers
that are rated bad less likely, relative to the reference's scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.contract.choices import MethodType
from shared.contract.plan import TrainingRun
from shared.contract.sections import PreferenceSection
from worker.training.data.dataset import Data
from worker.training.method import BatchLoss
from worker.training.metrics import Score
from worker.training.preference.compared import SQUARED_MARGIN, TOKENS, ComparedMethod
from worker.training.preference.data import read_preferences
from worker.training.preference.first_loss import check_first_loss
from worker.training.preference.losses import rated_first_loss, rated_loss
from worker.training.preference.rated import (
    PreparedRatedAnswers,
    RatedAnswer,
    RatedBatch,
    no_answers,
    rated_batches,
)
from worker.training.preference.scored_rows import answer_log_probs

if TYPE_CHECKING:
    from worker.training.trainer import TrainingContext

LOSS, RIGHT = "preference_loss", "reward_accuracy"
KINDS = ("chosen", "rejected")
"""Names of the kinds of answers in metrics: rated good, and rated bad."""


class KahnemanTversky(ComparedMethod[RatedAnswer, RatedBatch]):
    """`worker/training/method.py:Method` for rated answers."""

    type = MethodType.KTO
    sums = (
        *(LOSS, RIGHT, TOKENS, SQUARED_MARGIN),
        *(f"{name}_{kind}" for name in ("answers", "rewards", "logps") for kind in KINDS),
    )

    def __init__(self, section: PreferenceSection) -> None:
        super().__init__(section)
        self._kl = 0.0

    def read(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[RatedAnswer]:
        """Encode the plan's files, or find them encoded in the cache.

        Raises:
            DatasetInvalid: ``NOTHING_SUPERVISED``, ``SKIP_RATE_EXCEEDED``.
        """
        return read_preferences(run, tokenizer, vocab, cache, PreparedRatedAnswers)

    def micro_batches(
        self, rows: Sequence[RatedAnswer], token_budget: int, *, pad_token: int, packed: bool
    ) -> list[RatedBatch]:
        """Pack answers end to end, best fit decreasing; or group answers of similar length, padded."""
        return rated_batches(rows, token_budget, pad_token=pad_token, packed=packed)

    def empty_batch(self) -> RatedBatch:
        """Return a batch of one token without an answer."""
        return no_answers()

    def ahead(self, rows: Sequence[RatedAnswer]) -> list[RatedAnswer]:
        """Return each prompt paired with another prompt's answer."""
        return [row.mismatched() for row in rows]

    def look_ahead(self, model: PeftModel, batches: Iterable[RatedBatch], device: torch.device) -> list[float]:
        """Return the sum of the log-probabilities that these answers have gained over the reference, in nats, and the
        number of answers.
        """
        gained = [(self._gained(model, batch, device)[1].sum(), len(batch.places)) for batch in batches]
        sums = torch.stack([gain for gain, _ in gained]).double().sum().item() if gained else 0.0
        return [sums, sum(count for _, count in gained)]

    def settle(self, sums: Sequence[float]) -> None:
        """Set the KL reference point: the mean, at least 0."""
        total, count = sums
        self._kl = max(0.0, total / count) if count else 0.0

    def loss(self, model: PeftModel, batch: RatedBatch, device: torch.device, divisor: float = 1.0) -> BatchLoss:
        """Return the sum of the answers' losses, and the number of answers on the right side of the reference point."""
        policy, gained = self._gained(model, batch, device)
        is_good = batch.is_good.to(device)
        losses = rated_loss(self._section, gained, is_good, self._kl)
        policy, gained = policy.detach(), gained.detach()
        is_right = (torch.where(is_good, gained - self._kl, self._kl - gained) > 0).sum()
        kinds = (is_good, ~is_good)
        measures = [losses.sum(), is_right, batch.lengths.sum().to(device), (gained**2).sum()]
        # Not gained[kind]: its size is known only after waiting for the GPU.
        measures += [kind.sum() for kind in kinds]
        measures += [self._section.strength * torch.where(kind, gained, 0).sum() for kind in kinds]
        measures += [torch.where(kind, policy, 0).sum() for kind in kinds]
        sums = {name: value.detach().float() for name, value in zip(self.sums, measures, strict=True)}
        return BatchLoss(losses.sum() / divisor, is_right, sums)

    def check_first_step(self, context: TrainingContext, score: Score, rows: int) -> None:
        """Check that a policy that has not been trained yet equals its reference."""
        loss, tokens, squares = (score.sums[name] / rows for name in (LOSS, TOKENS, SQUARED_MARGIN))
        expected = rated_first_loss(self._section, score.sums["answers_chosen"] / rows)
        check_first_loss(self._section, context.device, expected, loss, squares, tokens)

    def metrics(self, sums: Mapping[str, float], rows: int) -> dict[str, float]:
        """Return the means of a step; a kind of answers has its metrics only if the step has such answers."""
        means = {LOSS: sums[LOSS] / rows, RIGHT: sums[RIGHT] / rows, "kl": self._kl}
        for kind in KINDS:
            if count := sums[f"answers_{kind}"]:
                means |= {f"{name}_{kind}": sums[f"{name}_{kind}"] / count for name in ("rewards", "logps")}
        if all(f"rewards_{kind}" in means for kind in KINDS):
            means["reward_margin"] = means["rewards_chosen"] - means["rewards_rejected"]
        return means

    def _gained(self, model: PeftModel, batch: RatedBatch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities of the answers, and their gains over the reference, in nats."""
        policy = answer_log_probs(model, batch, device)
        return policy, policy - self._reference.view(-1)[batch.places].to(device)
