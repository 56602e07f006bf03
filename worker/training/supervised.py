"""Supervised fine-tuning, the training method: learn the supervised tokens of each row by cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.contract.plan import TrainingRun
from worker.training.data.batches import MicroBatch, collate, empty_batch, plan_micro_batches
from worker.training.data.dataset import Data, read_data
from worker.training.data.prepared import Row
from worker.training.method import BatchLoss, Method
from worker.training.model.lm_head import head_loss


class SupervisedMethod(Method[Row, MicroBatch]):
    """`worker/training/method.py:Method` for rows of token ids, in which each token has a weight as a target."""

    def read(self, run: TrainingRun, tokenizer: PreTrainedTokenizerBase, vocab: int, cache: Path) -> Data[Row]:
        """Encode the plan's files, or find them encoded in the cache.

        Raises:
            DatasetInvalid: ``NOTHING_SUPERVISED``.
            JobFailed: ``TOKENIZER_MISMATCH``.
        """
        return read_data(run, tokenizer, vocab, cache)

    def micro_batches(
        self, rows: Sequence[Row], token_budget: int, *, pad_token: int, packed: bool
    ) -> list[MicroBatch]:
        """Pack rows end to end, best fit decreasing; or group rows of similar length, padded."""
        groups = plan_micro_batches([len(row.ids) for row in rows], token_budget, packed=packed)
        return [collate([rows[index] for index in group], pad_token, packed=packed) for group in groups]

    def empty_batch(self) -> MicroBatch:
        """Return a batch of one token without a target."""
        return empty_batch()

    def loss(self, model: PeftModel, batch: MicroBatch, device: torch.device, divisor: float = 1.0) -> BatchLoss:
        """Return the weighted sum of cross-entropies in nats, and the number of targets that the arg-max predicts.

        Args:
            divisor: divisor of the loss; it is applied to the weights, which are fp32: a gradient in bf16 would round
                it.
        """
        head, rows, there = predicting_rows(model, batch, device)
        return BatchLoss(*head_loss(head, rows, there.targets, there.weights / divisor))


def predicting_rows(
    model: PeftModel, batch: MicroBatch, device: torch.device
) -> tuple[torch.nn.Module, torch.Tensor, MicroBatch]:
    """Run the decoder on a micro-batch; return the head, the hidden rows that predict a target, and the batch on the
    device.
    """
    base, there = model.get_base_model(), batch.on(device)
    hidden = base.get_decoder()(
        input_ids=there.ids,
        attention_mask=there.mask,
        position_ids=there.positions,
        use_cache=False,
        **_documents(batch, there),
    ).last_hidden_state
    rows = hidden.flatten(0, 1).index_select(0, there.predictors)
    return base.get_output_embeddings(), rows, there


def _documents(batch: MicroBatch, there: MicroBatch) -> dict[str, object]:
    """Return the arguments that `worker/training/model/attention.py` needs to keep documents apart."""
    if batch.boundaries is None:
        return {}
    # From the batch on the CPU: reading `there`, which is on the device, would wait for it.
    lengths = batch.boundaries.diff().tolist()
    split = [(prefix, length - prefix) for prefix, length in zip(batch.prefixes, lengths, strict=False)]
    return {"cu_seq_lens_q": there.boundaries, "max_length_q": max(lengths), "document_lengths": split}
