"""The product's trainer on a GPU with less memory than it expects: ``python -m bench.acceptance.short_memory limit|inject PLAN RUN_DIR``.

Its micro-batches are planned for the whole memory, but torch's allocator gets only a fraction of the memory that the
first one needs. With ``inject``, on a CPU or for a base that is tiny next to the libraries' own memory, the first pass
fails with the allocator's error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from shared.base_models.config import ModelConfig
from shared.contract.contracts import FineTuneContract
from shared.preflight.estimate import vram_parts
from shared.preflight.types import Configuration
from worker import train
from worker.training import loss, step, trainer
from worker.training.model.memory_budget import Budget, choose_budget

SHARE = 1.25
"""Memory for activations, as a multiple of the need of the longest row: the smallest micro-batch, after all halvings,
is that row alone.
"""


def short_budget(
    contract: FineTuneContract, config: ModelConfig, device: torch.device, *others: Any, **more: Any
) -> Budget:
    """Choose the budget as on the whole device, then limit the allocator."""
    budget = replace(choose_budget(contract, config, device, *others, **more), cache_dequantised=False)
    configuration = Configuration(batch_size=1, grad_accum=1, seq_len=contract.exec.seq_len, recompute=budget.recompute)
    needed = vram_parts(contract, config, configuration)
    fixed = needed.total - needed.runtime - needed.activations - needed.logits
    limit = fixed + SHARE * (needed.activations + needed.logits)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info(device)[1], device)
    return budget


def failing_once(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the work, whose first call fails as the allocator does."""
    failures = iter([torch.OutOfMemoryError("CUDA out of memory: injected")])

    def call(*arguments: Any, **named: Any) -> Any:
        for failure in failures:
            raise failure
        return work(*arguments, **named)

    return call


def main() -> int:
    way, *arguments = sys.argv[1:]
    failing = patch.object(step, "accumulate_gradients", failing_once(loss.accumulate_gradients))
    short = patch.object(trainer, "choose_budget", short_budget)
    with failing if way == "inject" else short:
        return train.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
