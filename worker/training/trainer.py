"""Objects that the training loop works with: model, optimizer, data and their order, and the facts to report about
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.artifacts.manifests import AdapterManifest, Precision
from shared.base_models.config import ModelConfig
from shared.contract.choices import BaseQuant
from shared.contract.plan import ExecutionPlan, TrainingRun, warmup_steps
from shared.model_card.self_evaluation import SelfEvaluation
from shared.preflight.training_time import dense_bf16_peak, workload
from worker.training.checkpoint import Progress
from worker.training.data.batches import Numbers
from worker.training.data.dataset import Data
from worker.training.data.prepared import PreparedRows
from worker.training.data.row_order import RowOrder
from worker.training.distributed import DistributedContext, digest_of, local_rank
from worker.training.method import Batch, Example, Method
from worker.training.model.fsdp import in_step, sharding_is_forced
from worker.training.model.load import (
    build_model,
    compute_dtype_name,
    load_tokenizer,
    packs,
    pick_device,
    read_config,
    trainable,
)
from worker.training.model.lora_fusion import FusionReport
from worker.training.model.memory_budget import Budget, choose_budget
from worker.training.model.parent import start_from
from worker.training.optimizer import build_optimizer
from worker.training.preference.scored_rows import ScoredRows
from worker.training.reporting.events import identifier
from worker.training.reporting.facts import FinishedRun
from worker.training.reporting.telemetry import TELEMETRY_SCHEMA_VERSION, Telemetry
from worker.training.reporting.throughput import MeasuredDevice, PlannedWork, peak_bytes
from worker.training.reproducibility import OUT_OF_MEMORY, environment
from worker.training.schedule import learning_rate


@dataclass(frozen=True)
class TrainingContext:
    """A run that is set up.

    Attributes:
        step_tokens: tokens of each optimizer step.
        environment: environment that a step's bits depend on in addition to the plan.
        base: the base model's folder.
        distributed: this process among those that share the run's steps.
    """

    plan: ExecutionPlan
    method: Method[Any, Any]
    run_dir: Path
    base: Path
    config: ModelConfig
    tokenizer: PreTrainedTokenizerBase
    model: PeftModel
    fused: FusionReport
    optimizer: torch.optim.Optimizer
    data: Data[Any]
    order: RowOrder
    step_tokens: list[int]
    device: torch.device
    budget: Budget
    environment: dict[str, str | int]
    distributed: DistributedContext

    @property
    def precision(self) -> Precision:
        """Precision in which the frozen base is held."""
        quantised = self.plan.contract.quant.base is BaseQuant.NF4
        return "nf4" if quantised else compute_dtype_name(self.device)

    @property
    def warmup(self) -> int:
        """Number of warm-up steps."""
        return warmup_steps(self.plan.contract.exec.warmup_steps, self.order.total_steps)

    def used_values(self) -> dict[str, int]:
        """Return the values of the plan that were determined from the rows, for trackers."""
        return {"optimizer_steps": self.order.total_steps, "exec.warmup_steps": self.warmup}

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a 1-based step."""
        return learning_rate(step - 1, self.order.total_steps, self.plan.contract.exec.learning_rate, self.warmup)

    def micro_batches(self, rows: Sequence[Example], token_budget: int) -> list[Batch]:
        """Return the tensors of this process's share of some rows, in micro-batches of at most `token_budget` tokens;
        may be empty.
        """
        share = [rows[index] for index in self.distributed.share([sum(row.lengths) for row in rows])]
        packed, pad = packs(self.model), int(self.tokenizer.pad_token_id or 0)  # masked: any id will do
        batches = self.method.micro_batches(share, token_budget, pad_token=pad, packed=packed) if share else []
        if not self.budget.shard_base:
            return batches
        return list(in_step(batches, self.distributed, self.method.empty_batch))

    def validation_batches(self, token_budget: int, *, ahead: bool = False) -> Iterator[Batch]:
        """Yield the tensors of this process's share of the validation rows, a step's number of rows at a time.

        Args:
            ahead: rows that must be scored before them.
        """
        size = self.plan.contract.exec.batch_size * self.plan.contract.exec.grad_accum * self.distributed.size
        for start in range(0, len(self.data.validation), size):
            stop = min(start + size, len(self.data.validation))
            rows = [self.data.validation[number].unweighted() for number in range(start, stop)]
            yield from self.micro_batches(self.method.ahead(rows) if ahead else rows, token_budget)

    def planned_work(self) -> PlannedWork:
        """Return facts about the steps to come, for telemetry."""
        every, total = self.plan.contract.exec.checkpoint_every, self.order.total_steps
        return PlannedWork(
            step_tokens=self.step_tokens,
            pauses=sorted({*self.order.last_steps, *range(every, total + 1, every)}),
            validation_tokens=int(tokens_of(self.data.validation).sum()),
        )

    def machine(self) -> MeasuredDevice:
        """Return the properties of the device that telemetry needs."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        work = workload(self.config, self.plan.contract.adapter, recompute=self.budget.recompute)
        peak = dense_bf16_peak(name)
        of_all = peak and peak * self.distributed.size
        return MeasuredDevice(work=work, peak_flops=of_all, peak_memory=lambda: peak_bytes(self.device))

    def engine(self) -> dict[str, object]:
        """Return the trainer's own decisions, for reports."""
        return {
            "layout": "packed" if packs(self.model) else "padded",
            **self.budget.as_dict(),
            "fused": asdict(self.fused),
            "tokenizer": self.data.report.tokenizer,
            "prepared_from_cache": self.data.report.cached,
            "environment": {name: identifier(str(value)) for name, value in self.environment.items()},
        }


def tokens_of(rows: Sequence[Example]) -> Numbers:
    """Return the number of tokens computed for each row, (rows,)."""
    if isinstance(rows, PreparedRows | ScoredRows):
        return rows.lengths
    return np.fromiter((sum(row.lengths) for row in rows), np.int64, len(rows))


def set_up(run: TrainingRun, run_dir: Path, cache: Path, method: Method[Any, Any]) -> TrainingContext:
    """Read the data as the training method does, load the base, attach the adapter.

    Raises:
        MensError: data, base or device do not fit the plan, with the code of the failure.
    """
    contract, base = run.plan.contract, Path(run.inputs.base)
    device, config, tokenizer = pick_device(contract.device, local_rank()), read_config(base), load_tokenizer(base)
    distributed = DistributedContext.join(device)
    data = distributed.main_process_first(lambda: method.read(run, tokenizer, config.vocab, cache))
    order = RowOrder(contract, data.difficulties, len(data.replay))
    lengths = np.concatenate([tokens_of(data.rows)[data.training], tokens_of(data.replay)])
    step_tokens = order.step_tokens(lengths)
    budget = choose_budget(
        contract,
        config,
        device,
        distributed.size,
        shard_base=sharding_is_forced(os.environ),
        smallest=distributed.smallest,
        # Each padded row takes as many tokens as the longest row.
        largest_step=None if config.linear else max(step_tokens, default=None),
    )
    model, fused = build_model(base, contract, device, budget, start_of(run))
    return TrainingContext(
        plan=run.plan,
        method=method,
        run_dir=run_dir,
        base=base,
        config=config,
        tokenizer=tokenizer,
        model=model,
        fused=fused,
        optimizer=build_optimizer(trainable(model), contract),
        data=data,
        order=order,
        step_tokens=step_tokens,
        device=device,
        budget=budget,
        environment=environment(device, distributed.size) | {"rows": data.key, "tokens": budget.tokens},
        distributed=distributed,
    )


def start_of(run: TrainingRun) -> Callable[[PeftModel], None] | None:
    """Return the function that loads the weights of the run's parent into its new layers; None for a run without a
    parent.
    """
    parent, inputs = run.plan.parent, run.inputs
    if parent is None:
        return None
    # A plan with a parent and no folder for it must not train from nothing.
    folder, adapter = Path(inputs.parent or ""), run.plan.contract.adapter
    return lambda model: start_from(model, parent, folder, Path(inputs.base), adapter)


def agree_to_start(context: TrainingContext, progress: Progress) -> None:
    """Check that all processes of the run start from the same state."""
    if context.distributed.size == 1:
        return
    facts = {
        "plan": context.plan.digest,
        "step": str(progress.step),
        "training rows": str(len(context.data.training)),
        "validation rows": str(len(context.data.validation)),
        "weights": digest_of(trainable(context.model)),
    }
    context.distributed.refuse_difference(facts)
    agree_on_memory(context, progress)


def agree_on_memory(context: TrainingContext, progress: Progress) -> None:
    """Make all processes, and runs resumed from here, use smaller micro-batches after one ran out of memory."""
    smallest, retries = context.distributed.largest([-progress.token_budget, progress.memory_retries])
    progress.token_budget, progress.memory_retries = -int(smallest), int(retries)
    # An equal run on a machine with more free memory adds the same numbers up in another order.
    if progress.memory_retries:
        progress.add_inexact_reasons(OUT_OF_MEMORY)


def describe(context: TrainingContext, progress: Progress) -> dict[str, object]:
    """Return the payload of the ``train_start`` event."""
    plan, exec_, report = context.plan, context.plan.contract.exec, context.data.report
    return {
        "telemetry_schema": TELEMETRY_SCHEMA_VERSION,
        "run_id": progress.run_id,
        "execution_kernel": plan.execution_kernel,
        "contract_digest": plan.contract_digest,
        "plan_digest": plan.digest,
        "base_model": plan.base.name,
        **({"parent": plan.parent.id} if plan.parent else {}),
        "train_file": plan.train.file_id,
        "seed": exec_.seed,
        "epochs": exec_.epochs,
        "grad_accum": exec_.grad_accum,
        "pairs_loaded": len(context.data.training),
        "validation_pairs": len(context.data.validation),
        "replayed_pairs": len(context.data.replay),
        **{f"skip_{reason}": count for reason, count in report.skipped.items()},
        "trajectory_weighted_pairs": report.trajectory_weighted,
        "trajectory_clamped_pairs": report.trajectory_clamped,
        "planned_optimizer_steps_total": context.order.total_steps,
        "warmup_steps": context.warmup,
        "n_heads": context.config.heads,
        "n_kv_heads": context.config.kv_heads,
        "compute_device": context.device.type,
        "base_precision": context.precision,
        "processes": context.distributed.size,
        "resumed_from_step": progress.step,
        "guarantee": progress.guarantee,
        "layout": "packed" if packs(context.model) else "padded",
        "budget": context.budget.as_dict(),
    }


def gather_facts(
    context: TrainingContext,
    manifest: AdapterManifest,
    progress: Progress,
    telemetry: Telemetry,
    evaluation: SelfEvaluation,
) -> FinishedRun:
    """Gather everything that the reports of a finished run need."""
    return FinishedRun(
        run_id=progress.run_id,
        plan=context.plan,
        config=context.config,
        manifest=manifest,
        progress=progress,
        summary=telemetry.summary(),
        training=context.data.report,
        training_rows=len(context.data.training),
        validation=context.data.validation_report,
        validation_rows=len(context.data.validation),
        skips=telemetry.skips,
        rate_at=context.rate_at,
        last_epoch_steps=context.order.steps_of(context.order.epoch_of(progress.step)),
        planned_steps=context.order.total_steps,
        memory={
            "device": context.device.type,
            "predicted_bytes": context.budget.predicted_bytes,
            "peak_bytes": peak_bytes(context.device),
        },
        device=context.device.type,
        device_name=torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else None,
        resumed_from_step=progress.resumed_from[-1] if progress.resumed_from else 0,
        engine=context.engine(),
        evaluation=evaluation,
    )
