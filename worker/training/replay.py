"""Replay: each epoch mixes in rows of a second file, so that tuning does not cost the model what it could do before.

The replay file is walked in one shuffled order, epoch after epoch and round again, so within an epoch no row comes
twice, and over a run none comes more than once more often than another. All of it is a pure function of sizes, contract
and epoch: a resumed run needs no cursor.
"""

from __future__ import annotations

import random

import numpy as np

from shared.contract import FineTuneContract
from shared.epochs import admitted_per_epoch, replayed_rows
from worker.training.curriculum import Difficulties, Indices, epoch_order, histogram, shuffled


def mixed_order(difficulties: Difficulties, replay: int, contract: FineTuneContract, epoch: int) -> Indices:
    """Indices of the epoch's rows as they are trained on.

    Args:
        difficulties: of the training rows, shape (rows,).
        replay: rows of the replay file; 0 when there is none.
        contract: curriculum, replay ratio, seed.
        epoch: from 0.

    Returns:
        Indices into the training rows followed by the replay rows: ``i < len(difficulties)`` is a training row, the
        rest is replay row ``i - len(difficulties)``. The training rows keep their curriculum order.
    """
    order = epoch_order(difficulties, contract, epoch)
    if not replay:
        return order
    drawn = replay_draw(difficulties, replay, contract, epoch)
    places = random.Random(f"replay-places-{contract.exec.seed}-{epoch}").sample(
        range(len(order) + len(drawn)), len(drawn)
    )
    mixed = np.empty(len(order) + len(drawn), dtype=np.int64)
    is_replay = np.zeros(len(mixed), dtype=np.bool_)
    is_replay[places] = True
    mixed[is_replay] = drawn + len(difficulties)
    mixed[~is_replay] = order
    return mixed


def replay_contract(contract: FineTuneContract) -> FineTuneContract:
    """The contract under which the replay file is prepared: its context filter is about what is to be learnt now."""
    return contract.model_copy(update={"data": contract.data.model_copy(update={"context_filter": None})})


def replay_draw(difficulties: Difficulties, replay: int, contract: FineTuneContract, epoch: int) -> Indices:
    """Rows of the replay file that this epoch mixes in: indices into that file, each once."""
    counts = [
        replayed_rows(rows, replay, contract.data.replay_ratio)
        for rows in admitted_per_epoch(histogram(difficulties), contract)
    ]
    walk = shuffled(np.arange(replay, dtype=np.int64), f"replay-{contract.exec.seed}")
    start = sum(counts[:epoch])
    drawn: Indices = walk[np.arange(start, start + counts[epoch]) % replay]
    return drawn
