"""Memory that plans predict, compared with the memory that the allocator took: ``python -m bench.acceptance.memory SIZE
DEVICE TOKENS…``.
"""

from __future__ import annotations

import gc
import math
from functools import partial

import torch

from bench.acceptance.results import Goal, PartResult, run_part
from bench.training.counted_model import UNSUPERVISED, config_of, counted_model, micro_batch
from bench.training.paper_step import DIVISOR
from bench.training.shapes import SHAPES
from bench.training.step_counter import Card, StepCounter
from shared.base_models.config import parse_model_config
from shared.contract.contracts import FineTuneContract
from shared.preflight.activations import Recompute
from shared.preflight.estimate import vram_parts
from shared.preflight.types import Configuration, Vram
from worker.training.model.load import trainable
from worker.training.optimizer import allocate_state, build_optimizer
from worker.training.supervised import SupervisedMethod

RANK, PASSES = 16, 2
ROW = {"cuda": 2048, "cpu": 256}
ERROR = 0.1
CUDA_BYTES = 1 << 30
"""Upper bound on the memory that CUDA takes for itself."""
CONTRACT = FineTuneContract.model_validate(
    {"model": {"hf_repo": "made"}, "data": {"train_file": "file-made"}, "adapter": {"rank": RANK}}
)


def measure(size: str, device: str, *tokens: str) -> PartResult:
    """Measure micro-batches of the given numbers of tokens, with saved and with recomputed activations.

    A case that is predicted not to fit is not tried, and one that is predicted to fit must.
    """
    figures: dict[str, float | str] = {}
    goals = []
    for recompute in Recompute:
        case = MemoryCase(size, device, recompute=recompute)
        for count in map(int, tokens):
            name = f"{count} tokens{f', {recompute} recomputed' if recompute is not Recompute.NONE else ''}"
            predicted = case.predicted(count)
            if device == "cuda" and predicted + CUDA_BYTES > torch.cuda.mem_get_info()[1]:
                figures[name] = f"{predicted / 1e9:.3g} GB predicted, not tried;"
                continue
            used = case.used(count)
            figures[name] = f"{predicted / 1e9:.3g} GB predicted, {used / 1e9:.3g} used;"
            facts = {"size": size, "tokens": count, "recompute": recompute, "predicted": predicted, "used": used}
            error = abs(predicted / used - 1) if used else math.inf
            goals.append(Goal("G4-estimate", error, ERROR, facts=facts))
        del case
        gc.collect()
        torch.cuda.empty_cache()
    return PartResult(figures, goals)


class MemoryCase:
    """A model with random weights.

    Args:
        recompute: activations that are recomputed in the backward pass.
    """

    def __init__(self, size: str, device: str, *, recompute: Recompute) -> None:
        self._config = config_of(SHAPES[size])
        self._device, self._recompute = torch.device(device), recompute
        self._model = counted_model(self._config, device=self._device, rank=RANK, recompute=recompute)
        self._optimizer = build_optimizer(trainable(self._model), CONTRACT)

    def predicted(self, tokens: int) -> int:
        """Return the memory that the plan predicts: on a GPU everything except CUDA's own memory, on a CPU the memory
        that a micro-batch adds.
        """
        row = min(tokens, ROW[self._device.type])
        configuration = Configuration(
            batch_size=tokens // row, grad_accum=PASSES, seq_len=row, recompute=self._recompute
        )
        on_gpu = self._device.type == "cuda"
        memory: Vram = vram_parts(
            CONTRACT, parse_model_config(self._config), configuration, on_gpu=on_gpu, supervised=1 - UNSUPERVISED
        )
        return memory.total - memory.runtime if on_gpu else memory.activations + memory.logits + memory.gradients

    def used(self, tokens: int) -> int:
        """Return the peak memory that the allocator reserved, 0 if it ran out; on a CPU, the counted peak of live
        bytes.
        """
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                self._train(tokens)
            except torch.OutOfMemoryError:
                return 0
            return int(torch.cuda.max_memory_reserved())
        with StepCounter(Card(1, 1, 1, 1)) as counter:
            self._train(tokens)
        return int(counter.peak)

    def _train(self, tokens: int) -> None:
        row = min(tokens, ROW[self._device.type])
        batch = micro_batch(tokens // row, row)
        for _ in range(PASSES):
            SupervisedMethod().loss(self._model, batch, self._device, DIVISOR).loss.backward()
        if self._device.type == "cuda":
            allocate_state(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)


PARTS = {size: partial(measure, size) for size in SHAPES}

if __name__ == "__main__":
    run_part(PARTS)
