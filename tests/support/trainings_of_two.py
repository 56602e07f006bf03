"""Several trainings in the same two processes, one after another: starting the processes takes many times as long as
the tiny runs.

``python -m torch.distributed.run --nproc-per-node=2 -m tests.support.trainings_of_two FOLDER``, where the folder has
the plans :data:`PLAIN` and :data:`DROPOUT`; each training writes into its subfolder of that name.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import worker.train
from shared.contract.plan import TrainingRun
from shared.preflight.activations import Recompute
from tests.support.training_runs import NeverStop, PauseAfter, recomputing
from worker.child_runtime import StopRequested
from worker.run_folder import list_checkpoints
from worker.training.distributed import DistributedContext
from worker.training.model.fsdp import VARIABLE
from worker.training.reproducibility import fix_order_of_sums
from worker.training.supervised import SupervisedMethod

PLAIN, DROPOUT = "plain.json", "dropout.json"
WHOLE_BASE, IN_PARTS = "whole base", "base in parts"
RECOMPUTED_IN_PARTS = "recomputed, base in parts"
SCARCE_MEMORY = "scarce memory"
UNDISTURBED, PAUSED, RESUMED = "undisturbed", "paused", "resumed"
PAUSE_AFTER = 5
"""Number of steps after which only the second process is asked to pause."""


class SmallDevice:
    """Replaces the loss: in the second process, the second micro-batch of training runs out of memory."""

    def __init__(self, rank: int) -> None:
        self._real, self._rank, self._calls = SupervisedMethod().loss, rank, 0

    def __call__(self, model: Any, batch: Any, device: torch.device, divisor: float = 1.0) -> Any:
        if model.training and self._rank == 1:
            self._calls += 1
            if self._calls == 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self._real(model, batch, device, divisor)


def main(folder: Path) -> int:
    """Run all trainings, the last one with the trainer's own command line; return its exit code."""
    rank = int(os.environ["RANK"])
    plain, dropout = (TrainingRun.model_validate_json((folder / name).read_bytes()) for name in (PLAIN, DROPOUT))

    def train(name: str, run: TrainingRun, resume: Path | None = None, stop: Any = None) -> None:
        run_dir = folder / name
        run_dir.mkdir(exist_ok=True)
        signals: Any = stop or NeverStop()
        worker.train.train(run, run_dir, resume, signals)

    fix_order_of_sums()
    join = dist.init_process_group
    with (
        patch.object(DistributedContext, "leave", lambda _: None),
        patch.object(dist, "init_process_group", lambda *args, **more: dist.is_initialized() or join(*args, **more)),
    ):
        with patch.dict(os.environ, {VARIABLE: "always"}):
            train(IN_PARTS, plain)
            with recomputing(Recompute.MLPS):
                train(RECOMPUTED_IN_PARTS, plain)
        with patch.object(SupervisedMethod, "loss", staticmethod(SmallDevice(rank))):
            train(SCARCE_MEMORY, plain)
        train(UNDISTURBED, dropout)
        with suppress(StopRequested):
            train(PAUSED, dropout, stop=PauseAfter(PAUSE_AFTER) if rank == 1 else None)
        train(RESUMED, dropout, resume=list_checkpoints(folder / PAUSED)[-1])
        return worker.train.main([str(folder / PLAIN), str(folder / WHOLE_BASE)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
