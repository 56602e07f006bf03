"""One step of the optimizer: gradients of all its rows, clipped, applied, told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from worker.training.batches import MicroBatch
from worker.training.checkpoint import Progress
from worker.training.loss import accumulate_gradients
from worker.training.memory import retry_on_out_of_memory
from worker.training.model import trainable
from worker.training.order import Step
from worker.training.prepared import Row
from worker.training.telemetry import Score, StepReport
from worker.training.trainer import Trainer, agree_on_memory
from worker.training.world import World


def optimizer_step(trainer: Trainer, progress: Progress, step: Step) -> StepReport:
    """One step of the optimizer. One whose loss or gradient is not finite changes nothing and is counted."""
    rows, rate = [trainer.data.row(number) for number in step.rows], trainer.rate_at(step.number)
    mass = sum(float(row.weights.sum(dtype=np.float64)) for row in rows)
    trainer.world.seed_step(trainer.plan.contract.exec.seed, step.number)
    score, batches = retry_on_out_of_memory(
        partial(trainer.micro_batches, rows),
        partial(gradients, trainer, mass=mass),
        progress,
        retry=not trainer.budget.shard_base,
    )
    score = trainer.world.total(score)
    trainer.world.sum_gradients(trainable(trainer.model))
    agree_on_memory(trainer, progress)
    norm = torch.nn.utils.clip_grad_norm_(trainable(trainer.model), trainer.plan.contract.exec.max_grad_norm).item()
    finite = math.isfinite(norm) and math.isfinite(score.loss)
    for group in trainer.optimizer.param_groups:
        group["lr"] = rate
    if finite:
        trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)
    progress.step, progress.trained_tokens = step.number, progress.trained_tokens + sum(len(row.ids) for row in rows)
    progress.non_finite = 0 if finite else progress.non_finite + 1
    return report_step(
        trainer.world,
        step,
        rows,
        batches,
        score=score,
        mass=mass,
        norm=norm,
        rate=rate,
        token_budget=progress.token_budget,
    )


def gradients(trainer: Trainer, batches: Sequence[MicroBatch], mass: float) -> Score:
    """Leave the gradients of a step's micro-batches, and nothing of an earlier try, in the parameters.

    Args:
        batches: this process's.
        mass: of all the step's rows: what the loss is divided by.
    """
    trainer.optimizer.zero_grad(set_to_none=True)
    return accumulate_gradients(trainer.model, batches, trainer.device, mass=mass)


def report_step(
    world: World,
    step: Step,
    rows: Sequence[Row],
    batches: Sequence[MicroBatch],
    *,
    score: Score,
    mass: float,
    norm: float,
    rate: float,
    token_budget: int,
) -> StepReport:
    """What telemetry says of a step, of which other processes may have micro-batches too."""
    positions, micro_batches = world.sum([sum(batch.size for batch in batches), len(batches)])
    return StepReport(
        epoch=step.epoch,
        step=step.number,
        score=score,
        norm=norm,
        rate=rate,
        rows=len(rows),
        tokens=sum(len(row.ids) for row in rows),
        positions=int(positions),
        micro_batches=int(micro_batches),
        token_budget=token_budget,
        weighted_rows=sum(row.weight != 1.0 for row in rows),
        syntax_weight_sum=mass,
        attended_keys=sum(len(row.ids) * (len(row.ids) + 1) // 2 for row in rows),
    )
