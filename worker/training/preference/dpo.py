"""Direct preference optimisation, the training method: make the preferred answers more likely than the rejected ones,
relative to the reference's scores of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.contract.choices import MethodType
from shared.contract.plan import TrainingRun
from worker.run_folder import PREFERENCE_METRICS
from worker.training.data.dataset import Data
from worker.training.method import BatchLoss
from worker.training.metrics import Score
from worker.training.model.load import read_config
from worker.training.preference.compared import SQUARED_MARGIN, TOKENS, ComparedMethod
from worker.training.preference.data import read_preferences
from worker.training.preference.first_loss import check_first_loss
from worker.training.preference.losses import first_loss, preference_loss
from worker.training.preference.pairs import Pair, PairBatch, PreparedPairs, no_pairs, pair_batches
from worker.training.preference.scored_rows import answer_log_probs

if TYPE_CHECKING:
    from worker.training.trainer import TrainingContext

METRICS = tuple(name for name in PREFERENCE_METRICS if name != "kl")


class DirectPreference(ComparedMethod[Pair, PairBatch]):
    """`worker/training/method.py:Method` for pairs of answers."""

    type = MethodType.DPO
    sums = (*METRICS, TOKENS, SQUARED_MARGIN)

    def read(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[Pair]:
        """Encode the plan's files, or find them encoded in the cache.

        Raises:
            DatasetInvalid: ``NOTHING_SUPERVISED``, ``SKIP_RATE_EXCEEDED``.
        """
        # Linear attention carries a state from token to token, and the second answer would have to continue from the
        # state after the prompt.
        once = read_config(Path(run.inputs.base)).linear is None
        return read_preferences(run, tokenizer, vocab, cache, partial(PreparedPairs, once=once))

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
        policy = answer_log_probs(model, batch, device).view(-1, 2)
        reference = self._reference[batch.numbers].to(device)
        lengths = batch.lengths.to(device)
        preferred = preference_loss(self._section, policy, reference, lengths).sum()
        learnt = (-policy[:, 0] / lengths[:, 0]).sum()
        loss = (preferred + self._section.sft_weight * learnt) / divisor
        gained = (policy - reference).detach()
        margin = gained[:, 0] - gained[:, 1]
        is_right = (margin > 0).sum()
        rewards, scores = self._section.strength * gained.sum(0), policy.detach().sum(0)
        measures = (preferred, learnt, *rewards, rewards[0] - rewards[1], is_right, *scores)
        measures = (*measures, lengths.sum(), (margin**2).sum())
        sums = {name: value.detach().float() for name, value in zip(self.sums, measures, strict=True)}
        return BatchLoss(loss, is_right, sums)

    def preferred_before(self, pairs: Sequence[Pair]) -> list[bool]:
        """Return, for each pair, whether the reference finds the preferred answer more likely, per token."""
        scores = self._reference[[pair.number for pair in pairs]]
        lengths = torch.tensor([(pair.chosen.targets, pair.rejected.targets) for pair in pairs])
        chosen, rejected = (scores / lengths).unbind(1)
        return [bool(is_ahead) for is_ahead in chosen > rejected]

    def check_first_step(self, context: TrainingContext, score: Score, rows: int) -> None:
        """Check that a policy that has not been trained yet equals its reference."""
        loss, tokens, squares = (score.sums[name] / rows for name in ("preference_loss", TOKENS, SQUARED_MARGIN))
        check_first_loss(self._section, context.device, first_loss(self._section), loss, squares, tokens)

    def metrics(self, sums: Mapping[str, float], rows: int) -> dict[str, float]:
        """Return the means of a step by pair."""
        return {name: sums[name] / rows for name in METRICS}
