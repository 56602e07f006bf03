"""One optimizer step: gradients of all its rows, clipped, applied, reported."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from worker.child_runtime import is_out_of_memory
from worker.training.checkpoint import Progress
from worker.training.data.row_order import Step
from worker.training.distributed import DistributedContext
from worker.training.loss import StepSums, accumulate_gradients, validation_sums
from worker.training.method import Batch, Example
from worker.training.metrics import Score, StepReport
from worker.training.model.load import trainable
from worker.training.optimizer import allocate_state
from worker.training.trainer import TrainingContext, agree_on_memory


def optimizer_step(context: TrainingContext, progress: Progress, step: Step) -> StepReport:
    """Make one optimizer step. A step whose loss or gradient is not finite changes nothing and is counted.

    Raises:
        JobFailed: the training method refuses the first step.
    """
    rows, rate = [context.data.row(number) for number in step.rows], context.rate_at(step.number)
    weight_sum = sum(row.weight_sum for row in rows)
    context.distributed.seed_step(context.plan.contract.exec.seed, step.number)
    look_ahead(context, progress, rows)
    sums, batches = retry_on_out_of_memory(
        partial(context.micro_batches, rows),
        partial(gradients, context, weight_sum=weight_sum),
        progress,
        retry=not context.budget.shard_base,
    )
    context.distributed.sum_gradients(trainable(context.model))
    agree_on_memory(context, progress)
    # After the sum, because the norm is that of the whole step.
    clipped = torch.nn.utils.clip_grad_norm_(trainable(context.model), context.plan.contract.exec.max_grad_norm)
    # The step's only wait for the device.
    score, (norm,) = sums.read(clipped)
    score = context.distributed.total(score)
    if step.number == 1:
        context.method.check_first_step(context, score, len(rows))
    finite = math.isfinite(norm) and math.isfinite(score.loss)
    for group in context.optimizer.param_groups:
        group["lr"] = rate
    if finite:
        context.optimizer.step()
    context.optimizer.zero_grad(set_to_none=True)
    progress.step, progress.trained_tokens = (
        step.number,
        progress.trained_tokens + sum(sum(row.lengths) for row in rows),
    )
    progress.non_finite = 0 if finite else progress.non_finite + 1
    return report_step(
        context.distributed,
        step,
        rows,
        batches,
        score=score,
        weight_sum=weight_sum,
        norm=norm,
        rate=rate,
        token_budget=progress.token_budget,
        extra=context.method.metrics(score.sums, len(rows)),
    )


def look_ahead(context: TrainingContext, progress: Progress, rows: Sequence[Example]) -> None:
    """Let the training method score the rows on which a step's losses depend, in all processes."""
    if not (ahead := context.method.ahead(rows)):
        return
    sums, _ = retry_on_out_of_memory(
        partial(context.micro_batches, ahead),
        partial(_sums_ahead, context),
        progress,
        retry=not context.budget.shard_base,
    )
    # Outside the retry, because all processes take part in this sum, but not all of them may repeat the pass.
    context.method.settle(context.distributed.sum(sums))


@torch.no_grad()
def _sums_ahead(context: TrainingContext, batches: Iterable[Batch]) -> list[float]:
    context.model.eval()
    return context.method.look_ahead(context.model, batches, context.device)


def gradients(context: TrainingContext, batches: Sequence[Batch], weight_sum: float) -> StepSums:
    """Compute the gradients of a step's micro-batches into the parameters, after clearing those of an earlier attempt.

    Also allocate the optimizer's state, so that the step itself needs no further memory.

    Args:
        batches: this process's micro-batches.
        weight_sum: sum of the weights of all rows of the step; the loss is divided by it.
    """
    context.optimizer.zero_grad(set_to_none=True)
    sums = accumulate_gradients(context.method, context.model, batches, context.device, weight_sum=weight_sum)
    allocate_state(context.optimizer)
    return sums


def report_step(
    distributed: DistributedContext,
    step: Step,
    rows: Sequence[Example],
    batches: Sequence[Batch],
    *,
    score: Score,
    weight_sum: float,
    norm: float,
    rate: float,
    token_budget: int,
    extra: Mapping[str, float] | None = None,
) -> StepReport:
    """Return the telemetry report of a step, whose micro-batches may be shared with other processes."""
    lengths = [length for row in rows for length in row.lengths]
    positions, micro_batches = distributed.sum([sum(batch.size for batch in batches), len(batches)])
    return StepReport(
        epoch=step.epoch,
        step=step.number,
        score=score,
        norm=norm,
        rate=rate,
        rows=len(rows),
        tokens=sum(lengths),
        positions=int(positions),
        micro_batches=int(micro_batches),
        token_budget=token_budget,
        weighted_rows=sum(row.weight != 1.0 for row in rows),
        syntax_weight_sum=weight_sum,
        attended_keys=sum(length * (length + 1) // 2 for length in lengths),
        extra=extra or {},
    )


T = TypeVar("T")


def retry_on_out_of_memory(
    plan_micro_batches: Callable[[int], list[Batch]],
    work: Callable[[list[Batch]], T],
    progress: Progress,
    *,
    retry: bool = True,
) -> tuple[T, list[Batch]]:
    """Run a step's forward and backward pass; each time memory runs out, repeat it with half the micro-batch, down to
    single rows.

    The step has the same rows in either case, and so the same gradient up to rounding. The smaller micro-batch size
    stays for the rest of the run, and is part of its checkpoints. The random generators are reset for each repetition.

    Args:
        plan_micro_batches: cuts the step's rows into micro-batches of at most the given number of tokens.
        work: the pass over micro-batches; begins without gradients.
        retry: whether to repeat; false if other processes are in the middle of the same pass and could not repeat it.

    Raises:
        RuntimeError, MemoryError: the allocator's own error, if not even the longest row fits alone.
    """
    batches = plan_micro_batches(progress.token_budget)
    on_cpu = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # only of this process's device
    while True:
        try:
            return work(batches), batches
        except (RuntimeError, MemoryError) as error:
            if not (retry and is_out_of_memory(error)):
                raise
            largest = max(batch.size for batch in batches)
            smaller = plan_micro_batches(max(1, largest // 2))
            if max(batch.size for batch in smaller) >= largest:  # it has only the longest row
                raise
        _free_memory()  # not above, where the exception's frames still hold the failed pass's tensors
        torch.set_rng_state(on_cpu)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
        batches, progress.token_budget = smaller, max(1, largest // 2)
        progress.memory_retries += 1


def validation_in_memory(
    context: TrainingContext, progress: Progress, observed: Callable[[Iterable[Batch]], Iterable[Batch]]
) -> list[float]:
    """Return :func:`worker.training.loss.validation_sums` of this process's validation rows; each time memory runs out,
    begin again with half the micro-batch, down to single rows.

    Args:
        observed: passes micro-batches on and reports that the process is still working.

    Raises:
        RuntimeError, MemoryError: the allocator's own error, if not even the longest row fits alone.
    """
    if len(context.data.validation) and context.method.ahead(context.data.validation[:1]):
        sums = _over_validation(context, progress, observed, partial(_sums_ahead, context), ahead=True)
        context.method.settle(context.distributed.sum(sums))
    score = partial(validation_sums, context.method, context.model, device=context.device)
    return _over_validation(context, progress, observed, score)


def _over_validation(
    context: TrainingContext,
    progress: Progress,
    observed: Callable[[Iterable[Batch]], Iterable[Batch]],
    work: Callable[[Iterable[Batch]], list[float]],
    *,
    ahead: bool = False,
) -> list[float]:
    budget, last = progress.token_budget, 0

    def batches() -> Iterator[Batch]:
        nonlocal last
        for batch in observed(context.validation_batches(budget, ahead=ahead)):
            last = batch.size
            yield batch

    while True:
        try:
            return work(batches())
        except (RuntimeError, MemoryError) as error:
            splits = 1 < last <= budget  # a batch over the budget is a single row
            if context.budget.shard_base or not (splits and is_out_of_memory(error)):
                raise
        _free_memory()
        budget, last = last // 2, 0
        progress.memory_retries += 1


def _free_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
