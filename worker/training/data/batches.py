"""The rows that a step trains on, and their tensors: pure functions of seed, epoch and step.

A step is defined in rows: ``batch_size * grad_accum`` of them, as in every other trainer. Its layout is defined in
tokens: the rows are packed, best fit decreasing, into micro-batches of at most ``token_budget`` tokens, each one
sequence without padding. Models that cannot keep documents apart in a sequence get rows of similar length together,
padded on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker.training.data.device_copy import on_device
from worker.training.data.packing import pack
from worker.training.data.prepared import Row

Numbers = npt.NDArray[np.int64]
"""Row numbers."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward and backward pass, on the CPU until :meth:`on`.

    Attributes:
        ids: (rows, length), int64; if packed, one row that holds all documents.
        positions: (rows, length), int64; begin at 0 in every document, or after its prefix.
        boundaries: cumulative document lengths, with their prefixes, int32, (documents + 1,); None when rows are padded
            instead.
        mask: 1 for tokens, 0 for padding, (rows, length); None when packed.
        predictors: positions in the flattened batch whose hidden rows predict a target, (targets,).
        targets: the token ids they must predict, (targets,).
        weights: weight of each target in the loss: its token's weight times its row's, fp32, (targets,).
        weight_sum: sum of the tokens' weights, without the rows' own: the divisor of the loss.
        tokens: number of tokens, without padding.
        prefixes: number of tokens at the beginning of each document that are stored only once, in the document before
            it; empty: no document shares any.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    boundaries: torch.Tensor | None
    mask: torch.Tensor | None
    predictors: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    weight_sum: float
    tokens: int
    prefixes: tuple[int, ...] = ()

    def on(self, device: torch.device) -> MicroBatch:
        """Return the same micro-batch on a device."""
        names = ("ids", "positions", "boundaries", "mask", "predictors", "targets", "weights")
        there: dict[str, Any] = {
            **on_device({name: tensor for name in names if (tensor := getattr(self, name)) is not None}, device)
        }
        return replace(self, **there)

    @property
    def size(self) -> int:
        """Positions computed, padding included."""
        return self.ids.numel()

    @property
    def target_count(self) -> int:
        """Number of targets."""
        return len(self.targets)


def plan_micro_batches(lengths: Sequence[int], token_budget: int, *, packed: bool) -> list[list[int]]:
    """Divide a step's rows into micro-batches, each a list of positions in ``lengths``.

    A row longer than the budget gets its own micro-batch.
    """
    capacity = max(token_budget, *lengths)
    return pack(lengths, capacity) if packed else _similar_lengths(lengths, capacity)


def _similar_lengths(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Group rows by length, longest first; no group exceeds the capacity when all its rows are padded to the longest."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= capacity:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def collate(rows: Sequence[Row], pad_token: int, *, packed: bool) -> MicroBatch:
    """Return the tensors of some rows."""
    return pack_rows(rows) if packed else pad_rows(rows, pad_token)


def pack_rows(rows: Sequence[Row], prefixes: Sequence[int] = ()) -> MicroBatch:
    """Lay rows end to end in one sequence.

    Args:
        prefixes: number of tokens that each row shares with the beginning of the row before it, whose own prefix must
            be 0. They are stored once. Empty: no row shares any.
    """
    lengths = np.array([len(row.ids) for row in rows])
    common = np.array(prefixes) if any(prefixes) else np.zeros_like(lengths)
    starts = _cumulative(lengths)
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    lies = positions >= np.repeat(common, lengths)
    # A shared token is as far from the beginning of the row before, which stores it, as from that of its own row.
    source = np.arange(starts[-1]) - np.where(lies, 0, np.repeat(np.roll(lengths, 1), lengths))
    batch = _micro_batch(
        rows,
        ids=np.concatenate([row.ids for row in rows])[lies][None].astype(np.int64),
        positions=positions[lies][None],
        places=(np.cumsum(lies) - 1)[source],
        boundaries=torch.from_numpy(starts.astype(np.int32)),
        mask=None,
    )
    return replace(batch, prefixes=tuple(common.tolist())) if common.any() else batch


def _cumulative(lengths: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(lengths)])


def pad_rows(rows: Sequence[Row], pad_token: int) -> MicroBatch:
    """Stack rows, padded on the right to the longest."""
    length = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), length), pad_token, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        mask[index, : len(row.ids)] = 1
    return _micro_batch(
        rows,
        ids=ids,
        positions=np.broadcast_to(np.arange(length), ids.shape).copy(),
        places=np.flatnonzero(mask),
        boundaries=None,
        mask=torch.from_numpy(mask),
    )


def empty_batch() -> MicroBatch:
    """Return a batch of one token without a target."""
    return MicroBatch(
        ids=torch.zeros((1, 1), dtype=torch.int64),
        positions=torch.zeros((1, 1), dtype=torch.int64),
        boundaries=None,
        mask=None,
        predictors=torch.zeros(0, dtype=torch.int64),
        targets=torch.zeros(0, dtype=torch.int64),
        weights=torch.zeros(0),
        weight_sum=0.0,
        tokens=0,
    )


def _micro_batch(
    rows: Sequence[Row],
    *,
    ids: Numbers,
    positions: Numbers,
    places: Numbers,
    boundaries: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> MicroBatch:
    """Return a micro-batch; ``places`` are the places of the rows' tokens in the flattened ids, row by row."""
    starts = _cumulative(np.array([len(row.ids) for row in rows]))[:-1]
    supervised = [np.flatnonzero(row.weights) for row in rows]
    token_weights = [row.weights[at] for row, at in zip(rows, supervised, strict=True)]
    return MicroBatch(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        boundaries=boundaries,
        mask=mask,
        predictors=torch.from_numpy(
            places[np.concatenate([at + start - 1 for at, start in zip(supervised, starts, strict=True)])]
        ),
        targets=torch.from_numpy(
            np.concatenate([row.ids[at] for row, at in zip(rows, supervised, strict=True)]).astype(np.int64)
        ),
        weights=torch.from_numpy(
            np.concatenate([weights * row.weight for row, weights in zip(rows, token_weights, strict=True)]).astype(
                np.float32
            )
        ),
        weight_sum=float(sum(weights.sum(dtype=np.float64) for weights in token_weights)),
        tokens=sum(len(row.ids) for row in rows),
    )
