"""The order of examples and the tensors of a step: a pure function of seed, epoch and step, so a resume needs no cursor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.labels import IGNORED, Example


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one micro-batch, each of shape (rows, longest row), on the CPU."""

    ids: torch.Tensor
    labels: torch.Tensor
    attention_mask: torch.Tensor

    @property
    def targets(self) -> int:
        """Positions that carry loss."""
        return int((self.labels[:, 1:] != IGNORED).sum())

    @property
    def tokens(self) -> int:
        """Real tokens, padding left out."""
        return int(self.attention_mask.sum())


def split_validation(examples: list[Example], held_out: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Shuffle with the seed and hold out the tail; (training, validation)."""
    shuffled = list(examples)
    random.Random(f"split-{seed}").shuffle(shuffled)
    cut = len(shuffled) - held_out
    return shuffled[:cut], shuffled[cut:]


def epoch_steps(
    examples: Sequence[Example], epoch: int, seed: int, rows: int, grad_accum: int
) -> list[list[list[Example]]]:
    """One epoch's optimizer steps: each a list of micro-batches, each a list of examples."""
    order = list(examples)
    random.Random(f"epoch-{seed}-{epoch}").shuffle(order)
    micro_batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    return [micro_batches[start : start + grad_accum] for start in range(0, len(micro_batches), grad_accum)]


def collate(examples: Sequence[Example], pad_token: int) -> Batch:
    """Pad on the right to the longest example."""
    length = max(len(example.ids) for example in examples)
    ids = torch.full((len(examples), length), pad_token, dtype=torch.long)
    labels = torch.full((len(examples), length), IGNORED, dtype=torch.long)
    mask = torch.zeros((len(examples), length), dtype=torch.long)
    for row, example in enumerate(examples):
        size = len(example.ids)
        ids[row, :size] = torch.tensor(example.ids)
        labels[row, :size] = torch.tensor(example.labels)
        mask[row, :size] = 1
    return Batch(ids, labels, mask)
