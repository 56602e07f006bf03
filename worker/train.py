"""The trainer: ``python -m worker.train plan.json run_dir/ [--resume CHECKPOINT]``.

Reads a plan, needs neither queue nor database, and writes everything it makes into the run folder. The story, top to
bottom: set up, resume, loop, save.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from shared.contract import DataMode
from shared.dataset import DatasetReport, read_rows
from shared.errors import Code, DatasetInvalid, JobFailed
from shared.labels import Example, count_lines, encode_rows
from shared.manifest import AdapterManifest
from shared.planner import ExecutionPlan, TrainingRun, optimizer_steps, validation_split, warmup_steps
from shared.row_filters import RowFilter
from shared.tokenizer import Tokenizer
from worker.process import EXIT_CANCELLED, EXIT_PAUSED, StopRequested, StopSignals, die_with_worker, run_engine
from worker.rundir import ADAPTER_FOLDER
from worker.training.adapter import save_adapter
from worker.training.batches import collate, epoch_steps, split_validation
from worker.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from worker.training.loss import accumulate_gradients, evaluate
from worker.training.memory import memory_report
from worker.training.model import attach_lora, load_quantised, load_tokenizer, pick_device, trainable
from worker.training.probes import write_probes
from worker.training.report import write_reports
from worker.training.schedule import learning_rate
from worker.training.telemetry import Score, Telemetry

MAX_NON_FINITE_STEPS = 3
COMPARED_ROWS = 8
COMPARED_TEXT = " Two  words\n\n\tand Ångström, e\u0301, 数据 🙂, don't 12345 x_y(): \n"
"""Where tokenizers differ: case, white space, accents, scripts, digits."""
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Trainer:
    """What the loop works with."""

    plan: ExecutionPlan
    run_dir: Path
    tokenizer: PreTrainedTokenizerBase
    model: PeftModel
    optimizer: torch.optim.Optimizer
    training: list[Example]
    validation: list[Example]
    skipped_lines: list[int]
    device: torch.device
    base: Path

    @property
    def total_steps(self) -> int:
        return optimizer_steps(len(self.training), self.plan.contract)

    @property
    def pad_token(self) -> int:
        return int(self.tokenizer.pad_token_id)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the trainer; returns the exit code (`worker/process.py`)."""
    parser = argparse.ArgumentParser(prog="python -m worker.train", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan.json of a training run")
    parser.add_argument("run_dir", type=Path, help="folder that receives everything the run makes")
    parser.add_argument("--resume", type=Path, help="checkpoint folder to go on from")
    arguments = parser.parse_args(argv)
    die_with_worker()
    stop = StopSignals()
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    run = TrainingRun.model_validate_json(arguments.plan.read_bytes())
    return run_engine(lambda: train(run, arguments.run_dir, arguments.resume, stop), arguments.run_dir)


def train(run: TrainingRun, run_dir: Path, resume: Path | None, stop: StopSignals) -> None:
    """Train an adapter as planned.

    Raises:
        MensError: with the code of what went wrong. StopRequested: asked to stop, and what was written before.
    """
    trainer = set_up(run, run_dir)
    progress = Progress(step=0, trained_tokens=0, metrics=[])
    if resume:
        progress = load_checkpoint(resume, run.plan, trainer.model, trainer.optimizer)
    with Telemetry(run_dir, trainer.total_steps, progress.metrics) as telemetry:
        telemetry.emit("train_start", describe(trainer, progress))
        train_loop(trainer, progress, telemetry, stop)
        finish(trainer, progress, telemetry)


def set_up(run: TrainingRun, run_dir: Path) -> Trainer:
    """Read the data, load the base in NF4, attach the adapter."""
    contract, base = run.plan.contract, Path(run.inputs.base)
    tokenizer, labeller, device = load_tokenizer(base), Tokenizer.load(base), pick_device()
    training, skipped_lines = encode_file(Path(run.inputs.train), labeller, run.plan)
    refuse_other_tokens(labeller, tokenizer, training)
    if run.inputs.validation:
        validation, _ = encode_file(Path(run.inputs.validation), labeller, run.plan)
    else:
        held_out = validation_split(len(training), contract.data.validation_split_ratio)
        training, validation = split_validation(training, held_out, contract.exec.seed)
    model = attach_lora(load_quantised(base, contract.quant, device), contract.adapter, contract.exec.seed)
    optimizer = torch.optim.AdamW(trainable(model), betas=BETAS, weight_decay=contract.exec.weight_decay)
    return Trainer(run.plan, run_dir, tokenizer, model, optimizer, training, validation, skipped_lines, device, base)


def encode_file(path: Path, tokenizer: Tokenizer, plan: ExecutionPlan) -> tuple[list[Example], list[int]]:
    """Examples of a data file, and the line numbers of rows in which nothing would be learnt.

    Raises:
        DatasetInvalid: ``NOTHING_SUPERVISED``: no row has a token to learn within ``seq_len``.
    """
    exec_, filters = plan.contract.exec, RowFilter.of(plan.contract.data)
    with path.open("rb") as lines:
        skipped = DatasetReport() if plan.contract.data.mode is DataMode.LENIENT else None
        rows = (row for row in read_rows(lines, skipped) if filters.admits(row))
        examples, skipped_lines = encode_rows(tokenizer, rows, exec_.seq_len, exec_.qlora_ce_last_k)
    if not examples:
        raise DatasetInvalid(
            Code.NOTHING_SUPERVISED,
            f"No row has an assistant token to learn within {exec_.seq_len} tokens: lines {count_lines(skipped_lines)}.",
            remedy="Raise exec.seq_len, or give the assistant's turns content.",
            param="data.train_file",
        )
    return examples, skipped_lines


def refuse_other_tokens(labeller: Tokenizer, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]) -> None:
    """The serving tier reads the base with transformers; what it will say of a text must be what is trained on.

    Raises:
        JobFailed: ``TOKENIZER_MISMATCH``.
    """
    texts = [labeller.decode(example.ids) for example in examples[:COMPARED_ROWS]]
    for text in [COMPARED_TEXT, labeller.template.text, *texts]:
        if labeller.encode(text).ids != tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise JobFailed(
                Code.TOKENIZER_MISMATCH,
                "transformers makes other tokens of a text than the base's tokenizer.json says.",
                remedy="Save the tokenizer with transformers' save_pretrained and register the base again.",
                param="model.hf_repo",
            )


def train_loop(trainer: Trainer, progress: Progress, telemetry: Telemetry, stop: StopSignals) -> None:
    """All optimizer steps that are still to do, with checkpoints and validation between them."""
    contract, non_finite, last_epoch = trainer.plan.contract, 0, 0
    began, tokens_before = time.monotonic(), progress.trained_tokens
    for epoch, step, micro_batches in remaining_steps(trainer, progress.step):
        if epoch != last_epoch:
            telemetry.validation(progress.step, validate(trainer))
            last_epoch = epoch
        score, norm, rate = optimizer_step(trainer, micro_batches, step)
        non_finite = 0 if math.isfinite(score.loss) and math.isfinite(norm) else non_finite + 1
        refuse_divergence(non_finite, step)
        tokens = sum(len(example.ids) for examples in micro_batches for example in examples)
        progress.step, progress.trained_tokens = step, progress.trained_tokens + tokens
        telemetry.step(step, epoch, score, norm=norm, rate=rate, tokens=tokens)
        if step % contract.exec.checkpoint_every == 0 and step < trainer.total_steps:
            checkpoint(trainer, progress, telemetry)
        obey(stop, trainer, progress, telemetry)
    telemetry.validation(progress.step, validate(trainer))
    progress.tokens_per_second = (progress.trained_tokens - tokens_before) / max(time.monotonic() - began, 1e-9)
    telemetry.save_metrics()


def remaining_steps(trainer: Trainer, done: int) -> Iterator[tuple[int, int, list[list[Example]]]]:
    """(epoch, 1-based step, micro-batches) of every optimizer step after ``done``."""
    exec_, step = trainer.plan.contract.exec, 0
    for epoch in range(exec_.epochs):
        for micro_batches in epoch_steps(trainer.training, epoch, exec_.seed, exec_.batch_size, exec_.grad_accum):
            step += 1
            if step > done:
                yield epoch, step, micro_batches


def optimizer_step(trainer: Trainer, micro_batches: list[list[Example]], step: int) -> tuple[Score, float, float]:
    """One AdamW step; returns (score, gradient norm before clipping, learning rate).

    A step whose loss or gradient is not finite changes nothing.
    """
    exec_, total = trainer.plan.contract.exec, trainer.total_steps
    rate = learning_rate(step - 1, total, exec_.learning_rate, warmup_steps(exec_.warmup_steps, total))
    batches = [collate(examples, trainer.pad_token) for examples in micro_batches]
    score = accumulate_gradients(trainer.model, batches, trainer.device)
    norm = torch.nn.utils.clip_grad_norm_(trainable(trainer.model), exec_.max_grad_norm).item()
    for group in trainer.optimizer.param_groups:
        group["lr"] = rate
    if math.isfinite(norm) and math.isfinite(score.loss):
        trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)
    return score, norm, rate


def validate(trainer: Trainer) -> Score | None:
    """Score on the validation examples; None when there are none."""
    rows = trainer.plan.contract.exec.batch_size
    return evaluate(trainer.model, trainer.validation, rows, trainer.pad_token, trainer.device)


def refuse_divergence(non_finite: int, step: int) -> None:
    """Raises:
    JobFailed: ``LOSS_NOT_FINITE`` after several such steps in a row.
    """
    if non_finite >= MAX_NON_FINITE_STEPS:
        raise JobFailed(
            Code.LOSS_NOT_FINITE,
            f"Loss or gradient was not finite in {non_finite} steps in a row, the last one step {step}.",
            remedy="Lower exec.learning_rate or raise exec.warmup_steps.",
        )


def checkpoint(trainer: Trainer, progress: Progress, telemetry: Telemetry) -> None:
    """Validate, write a checkpoint, tell."""
    telemetry.validation(progress.step, validate(trainer))
    folder = save_checkpoint(
        trainer.run_dir, trainer.plan, trainer.model, trainer.tokenizer, trainer.optimizer, progress
    )
    telemetry.checkpoint(progress.step, folder)


def obey(stop: StopSignals, trainer: Trainer, progress: Progress, telemetry: Telemetry) -> None:
    """Stop here if the process was asked to: a cancel at once, a pause after a checkpoint."""
    if stop.cancel_requested:
        raise StopRequested(EXIT_CANCELLED)
    if stop.pause_requested:
        checkpoint(trainer, progress, telemetry)
        raise StopRequested(EXIT_PAUSED)


def finish(trainer: Trainer, progress: Progress, telemetry: Telemetry) -> AdapterManifest:
    """Write the adapter, the probes for the serving tier, and last the reports that mark the run as complete."""
    folder = trainer.run_dir / ADAPTER_FOLDER
    manifest = save_adapter(trainer.model, trainer.tokenizer, trainer.plan, progress.step, folder)
    write_probes(trainer.run_dir, trainer.validation or trainer.training)
    config, rows = trainer.model.config, len(trainer.training)
    memory = memory_report(trainer.plan.contract, trainer.base, rows, trainer.device)
    write_reports(trainer.run_dir, trainer.plan, config, manifest, progress, trainer.skipped_lines, memory)
    telemetry.emit("train_complete", {"global_step": progress.step, "final_adapter": manifest.adapter_id})
    return manifest


def describe(trainer: Trainer, progress: Progress) -> dict[str, object]:
    """Payload of the ``train_start`` event."""
    exec_, total = trainer.plan.contract.exec, trainer.total_steps
    return {
        "execution_kernel": trainer.plan.execution_kernel,
        "contract_digest": trainer.plan.contract_digest,
        "train_file": trainer.plan.train.file_id,
        "seed": exec_.seed,
        "epochs": exec_.epochs,
        "grad_accum": exec_.grad_accum,
        "pairs_loaded": len(trainer.training),
        "validation_pairs": len(trainer.validation),
        "skip_no_supervised_positions": len(trainer.skipped_lines),
        "planned_optimizer_steps_total": total,
        "warmup_steps": warmup_steps(exec_.warmup_steps, total),
        "compute_device": trainer.device.type,
        "resumed_from_step": progress.step,
    }


if __name__ == "__main__":
    sys.exit(main())
