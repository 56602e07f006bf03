"""The trainer: ``python -m worker.train plan.json run_dir/ [--resume CHECKPOINT] [--cache DIR]``.

It reads a plan, needs neither queue nor database, and writes everything that it makes into the run folder. In this
order: set up, resume, loop, save. ``torchrun --standalone --nproc-per-node N -m worker.train …`` does the same in
several processes that share each step, every one on its own GPU; the first one writes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Imported first, because it makes the import of the libraries faster.
import worker.libraries  # noqa: F401

# isort: split
from shared.contract.choices import Device
from shared.contract.epochs import phase_of
from shared.contract.plan import TrainingInputs, TrainingRun
from shared.errors import Code, JobFailed, Unavailable
from shared.hashing import digest_file
from shared.host import disk_errors
from worker.checkpoints.folders import adopt_checkpoints
from worker.child_runtime import (
    EXIT_CANCELLED,
    EXIT_PAUSED,
    StopRequested,
    StopSignals,
    announce,
    exit_with_worker,
    run_engine,
)
from worker.run_folder import ADAPTER_FOLDER, PREPARED_FOLDER, REFERENCE_NAME, read_json, write_json
from worker.training.adapter import save_adapter
from worker.training.checkpoint import (
    Occasion,
    Progress,
    checkpoint_at,
    keep_result,
    load_checkpoint,
    refuse_missing,
    save_checkpoint,
)
from worker.training.early_stopping import is_exhausted, score_at
from worker.training.loss import mean_score
from worker.training.method import Batch, Method
from worker.training.methods import method_of
from worker.training.model.load import own_gpus
from worker.training.probes import make_probes, write_probes
from worker.training.reporting.facts import new_run_id
from worker.training.reporting.report import write_reports
from worker.training.reporting.telemetry import Telemetry
from worker.training.reporting.trackers import Trackers, trackers_of
from worker.training.reproducibility import fix_order_of_sums, inexact_reasons
from worker.training.self_evaluation.evaluate import evaluate_run
from worker.training.self_evaluation.replay_risk import ReplayRisk
from worker.training.step import optimizer_step, validation_in_memory
from worker.training.trainer import TrainingContext, agree_on_memory, agree_to_start, describe, gather_facts, set_up

# One such step can be chance, and has changed nothing; a model that has diverged does not recover.
MAX_NON_FINITE_STEPS = 3
TRIES_NAME = "self_evaluation_tries.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of the trainer; return the exit code (`worker/child_runtime.py`)."""
    parser = argparse.ArgumentParser(prog="python -m worker.train", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan.json of a training run")
    parser.add_argument("run_dir", type=Path, help="folder for everything that the run makes")
    parser.add_argument("--resume", type=Path, help="checkpoint folder to resume from")
    parser.add_argument("--cache", type=Path, help="folder for encoded data files; default: inside the run folder")
    arguments = parser.parse_args(argv)
    exit_with_worker()
    fix_order_of_sums()
    stop, run_dir = StopSignals(), arguments.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    # After the handlers are set, because the launcher sends signals from here on.
    announce(run_dir)
    run = TrainingRun.model_validate_json(arguments.plan.read_bytes())
    return run_engine(lambda: train(run, run_dir, arguments.resume, stop, arguments.cache), run_dir)


def train(
    run: TrainingRun,
    run_dir: Path,
    resume: Path | None,
    stop: StopSignals,
    cache: Path | None = None,
    method: Method[Any, Any] | None = None,
) -> None:
    """Train an adapter as planned.

    Args:
        method: defines rows, batches and loss; the contract's by default.

    Raises:
        MensError: the run failed, with the code of the failure.
        StopRequested: a stop was requested and everything necessary is written.
    """
    chosen = method or method_of(run.plan.contract)
    context = set_up(run, run_dir, cache or run_dir / PREPARED_FOLDER, chosen)
    progress = resume_or_start(context, resume)
    agree_to_start(context, progress)
    with open_telemetry(context, progress) as telemetry:
        telemetry.emit("train_start", describe(context, progress))
        if run.plan.contract.device.device is Device.CUDA and context.device.type == "cpu":
            telemetry.gpu_fallback("trainer", "cuda", ["gpu_unusable" if own_gpus().fault else "no_cuda_device"])
        began = time.monotonic()
        context.method.prepare(context, resume, partial(telemetry.working, "reference"))
        if REFERENCE_NAME in context.method.carried and context.distributed.is_main:
            own_file = context.data.validation if context.data.validation_report else ()
            rows = len(context.data.rows) + len(own_file)
            scores = {
                "rows": rows,
                "reference_digest": digest_file(run_dir / REFERENCE_NAME),
                "computed": resume is None,
            }
            telemetry.emit("reference_scores", scores | {"seconds": time.monotonic() - began})
        train_loop(context, progress, telemetry, stop)
        finish(context, progress, telemetry, run.inputs, stop)
    context.distributed.leave()


def resume_or_start(context: TrainingContext, resume: Path | None) -> Progress:
    """Return the initial state of a run, or the state in which an earlier attempt left it."""
    refuse_missing(context.distributed, resume)
    if resume is None:
        reasons = inexact_reasons(context.environment, context.environment)
        return Progress(0, 0, [], token_budget=context.budget.tokens, run_id=new_run_id(), inexact_reasons=reasons)
    progress = load_checkpoint(
        resume, context.plan, context.model, context.optimizer, context.environment, context.base
    )
    if context.distributed.is_main:
        adopt_checkpoints(resume, context.run_dir)
    progress.token_budget = min(progress.token_budget, context.budget.tokens)  # this device may be a smaller one
    return progress


def open_telemetry(context: TrainingContext, progress: Progress) -> Telemetry:
    """Open telemetry and the trackers that the operator chose; the first of several processes reports for all."""
    is_main = context.distributed.is_main
    trackers = trackers_of(os.environ) if is_main else Trackers([])
    trackers.start(context.plan, context.run_dir, progress.run_id, context.used_values())
    report = context.data.report
    return Telemetry(
        context.run_dir,
        context.order.total_steps,
        progress.metrics,
        machine=context.machine(),
        skips=report.skipped,
        trajectory_clamped=report.trajectory_clamped,
        trackers=trackers,
        quiet=not is_main,
        work=context.planned_work(),
    )


def train_loop(context: TrainingContext, progress: Progress, telemetry: Telemetry, stop: StopSignals) -> None:
    """Make all remaining optimizer steps, with the checkpoints and validations between them."""
    exec_ = context.plan.contract.exec
    epoch, began, tokens_before = -1, time.monotonic(), progress.trained_tokens
    for step in context.order.after(progress.step, ReplayRisk(context, progress, telemetry, stop).before_epoch):
        if is_exhausted(progress.metrics, exec_.early_stopping_patience):
            if step.epoch == context.order.epoch_of(progress.step):
                end_epoch(context, progress, telemetry, step.epoch)  # cut short
            break
        if step.epoch != epoch:
            epoch = step.epoch
            telemetry.skipped(curriculum=context.order.left_out(epoch))
        report = optimizer_step(context, progress, step)
        telemetry.step(report)
        if warning := context.method.warning(report.extra):
            telemetry.emit("training_warning", warning)
        refuse_divergence(progress)
        if context.order.ends_epoch(step):
            end_epoch(context, progress, telemetry, epoch)
        elif step.number % exec_.checkpoint_every == 0:
            # Validated first, because a checkpoint contains the metrics by which a resumed run decides about early
            # stopping.
            validate(context, progress, telemetry)
            checkpoint(context, progress, telemetry, Occasion.STEP)
        stop_or_secure(stop, context, progress, telemetry)
    if progress.trained_tokens > tokens_before:
        progress.tokens_per_second = (progress.trained_tokens - tokens_before) / (time.monotonic() - began)
    telemetry.save_metrics()


def validate(context: TrainingContext, progress: Progress, telemetry: Telemetry) -> None:
    """Score the validation rows, unless this step has been validated."""
    if not score_at(progress.metrics, progress.step):
        sums = validation_in_memory(context, progress, partial(reporting_activity, telemetry=telemetry))
        agree_on_memory(context, progress)
        telemetry.validation(progress.step, mean_score(context.distributed.sum(sums)))


def reporting_activity(batches: Iterable[Batch], telemetry: Telemetry) -> Iterator[Batch]:
    """Yield a validation's micro-batches and report activity between them: a validation may take longer than a trainer
    may be silent.
    """
    for batch in batches:
        yield batch
        telemetry.working("validation")


def end_epoch(context: TrainingContext, progress: Progress, telemetry: Telemetry, epoch: int) -> None:
    """Validate, write a checkpoint unless the run is over, and report the epoch."""
    # Before the checkpoint, as in `train_loop`.
    validate(context, progress, telemetry)
    if progress.step < context.order.total_steps:
        checkpoint(context, progress, telemetry, Occasion.EPOCH_END)
    telemetry.epoch_complete(
        epoch,
        steps=context.order.steps_of(epoch),
        step=progress.step,
        score=score_at(progress.metrics, progress.step),
        val_steps=len(context.data.validation),
        checkpoint=checkpoint_at(context.run_dir, progress.step),
        phase=phase_of(context.plan.contract, epoch),
    )


def refuse_divergence(progress: Progress) -> None:
    """Raise an error if loss or gradient was not finite in several consecutive steps.

    Raises:
        JobFailed: ``LOSS_NOT_FINITE`` after several consecutive such steps.
    """
    if progress.non_finite >= MAX_NON_FINITE_STEPS:
        raise JobFailed(
            Code.LOSS_NOT_FINITE,
            f"Loss or gradient was not finite in {progress.non_finite} steps in a row, the last one step "
            f"{progress.step}.",
            remedy="Lower exec.learning_rate or raise exec.warmup_steps.",
        )


def checkpoint(
    context: TrainingContext,
    progress: Progress,
    telemetry: Telemetry,
    occasion: Occasion,
    *,
    optional: bool = False,
) -> None:
    """Write a checkpoint of this step and report it, unless it already exists.

    Args:
        optional: if the disk is full, continue without a checkpoint.

    Raises:
        Unavailable: ``STORAGE_FULL``.
    """
    probes = probes_now(context) if occasion is not Occasion.INTERIM else None
    # After the probes, for which a sharded base needs all processes.
    if context.distributed.is_main and not checkpoint_at(context.run_dir, progress.step):
        try:
            with disk_errors():
                folder = save_checkpoint(
                    context.run_dir,
                    context.plan,
                    context.model,
                    context.tokenizer,
                    context.optimizer,
                    progress,
                    context.environment,
                    context.base,
                    occasion=occasion,
                    carried=context.method.carried,
                    probes=probes,
                )
            telemetry.checkpoint(progress.step, folder)
        except Unavailable as full:
            if not optional:
                raise
            print(f"step {progress.step}: no checkpoint was written: {full}", file=sys.stderr)
    context.distributed.barrier()  # no process runs ahead of the disk
    progress.checkpointed_at = time.monotonic()


def probes_now(context: TrainingContext) -> list[dict[str, Any]] | None:
    """Return the probes with the model's current scores; None if the run is not published. With a sharded base every
    process has to take part.
    """
    if not context.plan.contract.artifact.publish:
        return None
    return make_probes(context.data.probe_rows, context.model, context.device)


def stop_or_secure(stop: StopSignals, context: TrainingContext, progress: Progress, telemetry: Telemetry) -> None:
    """Stop here if any process received a stop request, so that all stop after the same step: for a cancel at once, for
    a pause after a checkpoint.

    Otherwise write a checkpoint when the last one is ``exec.checkpoint_minutes`` old. The checkpoint is not validated,
    because validation would make early stopping depend on the clock.
    """
    overdue = time.monotonic() - progress.checkpointed_at >= 60 * context.plan.contract.exec.checkpoint_minutes
    cancel, pause, due = context.distributed.largest([stop.cancel_requested, stop.pause_requested, overdue])
    if cancel:
        raise StopRequested(EXIT_CANCELLED)
    if pause or (due and progress.step < context.order.total_steps):
        checkpoint(context, progress, telemetry, Occasion.INTERIM)
    if pause:
        raise StopRequested(EXIT_PAUSED)


def count_try(context: TrainingContext, progress: Progress) -> int:
    """Count the attempts at this run that reached the self-evaluation, including this one. The last step's checkpoint
    keeps the count.
    """
    tries = 0
    if context.distributed.is_main and (folder := checkpoint_at(context.run_dir, progress.step)):
        tries = (read_json(folder / TRIES_NAME) or {"tries": 0})["tries"] + 1
        write_json(folder / TRIES_NAME, {"tries": tries})
    return int(context.distributed.largest([tries])[0])


def finish(
    context: TrainingContext, progress: Progress, telemetry: Telemetry, inputs: TrainingInputs, stop: StopSignals
) -> None:
    """Write the adapter and the probes for the serving tier, measure the adapter against its base, and finally write
    the reports that mark the run as complete.
    """
    # A replica that scores a sequence also writes one token, which must fit into the base's context.
    window = context.plan.contract.exec.seq_len - 1
    probes = make_probes(context.data.probe_rows, context.model, context.device, window)
    folder = context.run_dir / ADAPTER_FOLDER
    if context.distributed.is_main:
        scores = context.run_dir / REFERENCE_NAME
        manifest = save_adapter(
            context.model,
            context.tokenizer,
            context.plan,
            progress.step,
            folder,
            context.base,
            digest_file(scores) if scores.exists() else None,
        )
        write_probes(context.run_dir, probes)
    # A kill after this loses no step. The adapter is written, so a full disk here does not harm the run.
    checkpoint(context, progress, telemetry, Occasion.INTERIM, optional=True)
    tries = count_try(context, progress)
    if not (context.distributed.is_main or context.budget.shard_base):
        return
    rate = progress.tokens_per_second  # empty if this attempt had no step left
    measured = evaluate_run(
        context,
        progress,
        inputs,
        stop,
        tries,
        working=partial(telemetry.working, "self_evaluation"),
        advance=telemetry.self_evaluation,
        training_seconds=progress.trained_tokens / rate if rate else 0.0,
    )
    # With a sharded base, the other processes have only computed their part of the answers.
    if not context.distributed.is_main:
        return
    telemetry.self_evaluated(measured.payload())
    write_reports(context.run_dir, gather_facts(context, manifest, progress, telemetry, measured.evaluation))
    keep_result(context.run_dir)  # the run is complete, so nothing resumes from its other checkpoints
    early = progress.step < context.order.total_steps
    done = {
        "run_id": progress.run_id,
        "global_step": progress.step,
        "optimizer_step": progress.step,
        "stopped_early": early,
    }
    telemetry.emit("train_complete", {**done, **telemetry.skip_fields(), "final_adapter": manifest.adapter_id})


if __name__ == "__main__":
    sys.exit(main())
