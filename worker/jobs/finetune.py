"""The fine-tune job: prepare, train in a child process, store the adapters, publish the result, finish."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from shared.artifacts.manifests import MANIFEST_NAME
from shared.base_models.catalog import BaseModelEntry, LocalSource
from shared.contract.plan import DataFile, ExecutionPlan, PlannedBase, TrainingInputs, TrainingRun
from shared.contract.sections import DeviceSection
from shared.counted_nouns import counted
from shared.database.adapters import Adapters, NewAdapter
from shared.database.job_results import CHECKPOINT_TIMES, ResultFile
from shared.database.job_states import Stage
from shared.database.records import NewEvent
from shared.errors import JobFailed
from shared.hashing import digest_file
from shared.model_card.self_evaluation import KEY as EVALUATION_KEY
from shared.preflight.machine import machine_of
from shared.preflight.pipeline import preflight
from shared.preflight.types import InputFile, JobRequest
from shared.replicas import TrainedWeights, discover
from worker.checkpoints.adapters import adapter_folders, sign_adapters, store_adapters
from worker.checkpoints.folders import adopt_checkpoints
from worker.checkpoints.stored import StoredCheckpoints
from worker.jobs.attempt import Attempt
from worker.jobs.certificates import CertificateLimits
from worker.jobs.child_process import ChildProcess, count_processes, trainer_threads
from worker.jobs.judge import judge_for_alias
from worker.jobs.live_checkpoints import LiveCheckpoints, checkpoint_metrics
from worker.jobs.publish import ProbeSet, certify
from worker.jobs.reference_scores import ReferenceScores
from worker.jobs.served_evaluation import evaluate_served
from worker.machine import describe_machine
from worker.run_folder import (
    CHECKPOINT_STATE_NAME,
    CHECKPOINTS_FOLDER,
    EVALUATION_NAME,
    METRICS_NAME,
    PARENT_FOLDER,
    PLAN_NAME,
    PREFLIGHT_NAME,
    PROBES_NAME,
    SUMMARY_NAME,
    list_checkpoints,
    read_json,
    write_json,
)
from worker.watchdog.idle import IdleWatch
from worker.watchdog.stall import StallWatch

PROGRAM = "worker.train"
# A try fails only if the earlier attempt removes this checkpoint at the same moment.
TAKE_OVER_TRIES = 5


def run_finetune(attempt: Attempt) -> None:
    """Run a fine-tune attempt from claim to success.

    Raises:
        MensError: the attempt failed, with its code.
        LeaseLost, Stopped: see `worker/jobs/attempt.py`.
    """
    plan = ExecutionPlan.model_validate(attempt.lease.job.plan)
    checkpoints = StoredCheckpoints(
        attempt.storage,
        attempt.leases,
        attempt.lease,
        attempt.run_dir,
        store=attempt.settings.stores_checkpoints,
    )
    # An attempt that trained to the end may have failed while it published: its result is used, not trained again.
    run_dir = next((run for run in attempt.earlier_runs() if read_json(run / SUMMARY_NAME)), None)
    if run_dir is None:
        run_dir = attempt.run_dir
        train(attempt, plan, checkpoints)
    # Before anything is stored: the same content may be in storage already and pending deletion, and must then be kept.
    folders = adapter_folders(run_dir, withdrawn(attempt))
    attempt.leases.keep_adapters(attempt.lease, [digest_file(folder / MANIFEST_NAME) for folder in folders])
    sign_adapters(attempt.settings.signing_key, folders)
    adapters = store_adapters(attempt.storage, folders)
    adapters[-1] = publish(attempt, plan, adapters[-1], run_dir)
    finish(attempt, plan, adapters, run_dir)
    # Last: until the job has finished, another attempt may have to continue from them.
    checkpoints.discard()


def withdrawn(attempt: Attempt) -> frozenset[str]:
    """Return the digests of the job's checkpoints that were deleted while it ran; its result does not restore them."""
    job = attempt.lease.job
    made = Adapters(attempt.leases.database, job.tenant).of_job(job.id, deleted=True)
    return frozenset(checkpoint.digest for checkpoint in made if checkpoint.deleting_at and not checkpoint.final)


def train(attempt: Attempt, plan: ExecutionPlan, checkpoints: StoredCheckpoints) -> None:
    """Prepare the run folder and train, from the newest checkpoint of earlier attempts if one exists."""
    attempt.enter(Stage.PREFLIGHT, f"Checking the base model {plan.base.name} and the training file.")
    attempt.run_dir.mkdir(parents=True, exist_ok=True)
    with locate_inputs(attempt, plan) as inputs:
        run = TrainingRun(plan=plan, inputs=inputs)
        (attempt.run_dir / PLAN_NAME).write_text(run.to_json())
        check_inputs(attempt, run)
        attempt.raise_if_stopped()
        attempt.enter(Stage.TRAINING, "Starting the trainer.")
        settings, earlier = attempt.settings, attempt.earlier_runs()
        resume = checkpoints.fetch_newer(newest_checkpoint(earlier)) or take_over_checkpoint(earlier, attempt.run_dir)
        child = ChildProcess(
            PROGRAM,
            attempt.run_dir,
            resume=resume,
            cache=settings.prepared_dir,
            threads=trainer_threads(settings.trainer_threads, Path(inputs.base)),
            processes=count_processes(settings.trainer_processes, plan.contract),
        )
        with checkpoints, LiveCheckpoints(attempt, plan, Path(inputs.base)):
            attempt.follow(
                child,
                stall=StallWatch(settings.trainer_start_seconds, settings.trainer_stall_seconds),
                idle=IdleWatch(child.pid, settings.trainer_idle_seconds),
            )


@contextmanager
def locate_inputs(attempt: Attempt, plan: ExecutionPlan) -> Iterator[TrainingInputs]:
    """Yield the paths of the plan's inputs on this machine. The paths of data files are valid only inside the block;
    the files' contents are checked while they are read.
    """
    with ExitStack() as local_files:

        def local(file: DataFile) -> str:
            return str(local_files.enter_context(attempt.storage.local_file(file.sha256)))

        yield TrainingInputs(
            base=str(attempt.locate_base(plan.base)),
            train=local(plan.train),
            validation=local(plan.validation) if plan.validation else None,
            replay=local(plan.replay) if plan.replay else None,
            parent=str(attempt.fetch_adapter(plan.parent.digest, PARENT_FOLDER)) if plan.parent else None,
        )


def check_inputs(attempt: Attempt, run: TrainingRun) -> None:
    """Repeat the preflight on every row and on this machine's own files; its findings replace the API's, but the API's
    notes stay.

    Raises:
        MensError: the job is impossible, with the code of the first reason.
    """
    plan, inputs = run.plan, run.inputs
    entry = BaseModelEntry(name=plan.base.name, source=LocalSource(path=inputs.base), digests=plan.base.digests)
    rate = attempt.training_rate(plan.base.name)
    checked = preflight(
        JobRequest(plan.contract, name=plan.adapter_name, accepted=True, parent=plan.parent),
        entry,
        Path(inputs.base),
        InputFile(plan.train.file_id, plan.train.sha256, Path(inputs.train), verify=True),
        _input_file(plan.validation, inputs.validation),
        machine_of(
            describe_machine(attempt.settings.trainer_processes, attempt.settings.trainer_gpu_share),
            origin="this worker",
            tokens_per_second=rate.tokens_per_second if rate else None,
            measured_by=rate.job if rate else None,
            other_seconds=rate.other_seconds if rate else None,
        ),
        _input_file(plan.replay, inputs.replay),
    )
    record = checked.record()
    write_json(attempt.run_dir / PREFLIGHT_NAME, record)
    supervision = checked.supervision
    # Counted on every row; the API may have seen only a sample.
    planned = checked.plan
    held_out = f"{planned.validation_rows} of {counted(planned.train.rows, 'row is', 'rows are')} held out to validate"
    message = (
        f"Preflight passed: {counted(supervision.rows, 'row')}, {supervision.supervised_tokens} of {supervision.tokens} tokens are supervised;"
        f" {held_out if planned.validation_rows else 'every row is trained on'}."
    )
    warnings = [NewEvent(level="warn", message=warning) for warning in checked.warnings]
    attempt.report(events=[NewEvent(message=message, data={"notes": checked.notes}), *warnings], preflight=record)


def take_over_checkpoint(runs: list[Path], run_dir: Path) -> Path | None:
    """Adopt the newest checkpoint of earlier attempts into this attempt's run folder; return None if none exists.

    This happens before the trainer starts, because an attempt that was considered dead may still be running and remove
    its older checkpoints.
    """
    for _ in range(TAKE_OVER_TRIES):
        checkpoint = newest_checkpoint(runs)
        if checkpoint is None:
            return None
        with suppress(FileNotFoundError):
            return adopt_checkpoints(checkpoint, run_dir)
    return None  # slower, with the same result


def newest_checkpoint(runs: list[Path]) -> Path | None:
    """Return the checkpoint with the most steps among run folders."""
    checkpoints = [checkpoint for run in runs for checkpoint in list_checkpoints(run)]
    return max(checkpoints, key=lambda checkpoint: checkpoint.name, default=None)


def publish(attempt: Attempt, plan: ExecutionPlan, adapter: NewAdapter, run_dir: Path) -> NewAdapter:
    """Certify the adapter on every serving replica, unless the contract requests training only; see
    :func:`publish_adapter`.
    """
    if not plan.contract.artifact.publish:
        return adapter
    published = publish_adapter(attempt, plan.base, plan.contract.device, adapter, run_dir)
    evaluate_served(attempt, published.id, published.certificates or {}, run_dir)
    return published


def publish_adapter(
    attempt: Attempt, base: PlannedBase, device: DeviceSection, adapter: NewAdapter, run_dir: Path
) -> NewAdapter:
    """Certify a stored adapter on every serving replica.

    Args:
        base: the base that it was trained on.
        device: device for the reference scores.
        run_dir: contains the adapter's folder and the probes.

    Raises:
        MensError: see `worker/jobs/publish.py`; an adapter whose certificates failed is quarantined.
    """
    attempt.enter(Stage.PUBLISHING, "Loading the adapter on the serving tier and measuring its certificates.")
    settings = attempt.settings
    arguments = adapter.manifest.get("template_arguments") or {}
    trainer = ReferenceScores(attempt, base, device, run_dir, arguments)
    probes = ProbeSet(
        adapter_id=adapter.id,
        base=base,
        probes=(read_json(run_dir / PROBES_NAME) or {"probes": []})["probes"],
        encode_chats=trainer.encode_chats,
        reference=trainer.scores if settings.parity == "full" else None,
        limits=CertificateLimits.of(settings),
        template_arguments=arguments,
        weights=TrainedWeights.of(adapter.manifest),
    )
    try:
        certificates = certify(
            discover(settings.serving_urls, settings.serving_dns),
            settings.serving_key.get_secret_value(),
            probes,
            timeout_seconds=settings.publish_timeout_seconds,
            raise_if_stopped=attempt.raise_if_stopped,
        )
    except JobFailed as error:
        if failed := error.details.get("certificates"):
            attempt.leases.register(attempt.lease, adapter.model_copy(update={"certificates": failed}))
        raise
    # Replicas of one base give the same warning.
    warnings = dict.fromkeys(
        warning for certificate in certificates.values() for warning in certificate.get("warnings", [])
    )
    attempt.report(events=[NewEvent(level="warn", message=warning) for warning in warnings])
    return adapter.model_copy(update={"published": True, "certificates": certificates})


def finish(attempt: Attempt, plan: ExecutionPlan, adapters: list[NewAdapter], run_dir: Path) -> None:
    """Store the result file and mark the job as succeeded, in one transaction; then drop the checkpoints, which are now
    in the storage.

    An adapter for an alias that a policy governs is judged first. If it does not pass, it stays published but the alias
    is not moved.
    """
    summary = read_json(run_dir / SUMMARY_NAME) or {}
    *checkpoints, final = adapters
    measured = read_json(run_dir / EVALUATION_NAME)  # absent if an earlier release trained it
    evaluation = {EVALUATION_KEY: measured} if measured else {}
    states = [read_json(folder / CHECKPOINT_STATE_NAME) or {} for folder in list_checkpoints(run_dir)]
    metrics = {step: row for folder in list_checkpoints(run_dir) for step, row in checkpoint_metrics(folder).items()}
    written = {state["step"]: state["written_at"] for state in states if "written_at" in state}
    registered = [
        # Checkpoints that were not measured during the training are published with the result.
        *(
            checkpoint.model_copy(update={"metrics": metrics.get(checkpoint.step, {}), "published": final.published})
            for checkpoint in checkpoints
        ),
        final.model_copy(update={"metrics": summary["metrics"] | evaluation}),
    ]
    result = {
        "adapter_id": final.id,
        "adapter_path": f"/v1/adapters/{final.id}",
        "trained_tokens": summary["trained_tokens"],
        "optimizer_steps": summary["optimizer_step_count"],
        "planned_steps": summary["planned_steps"],
        "last_train_loss": summary["last_train_loss"],
        "last_val_loss": summary["last_val_loss"],
        "memory": summary["memory"],
        "tokens_per_second": summary["tokens_per_second"],
        "resume": summary["resume"],
        CHECKPOINT_TIMES: {
            checkpoint.id: written[checkpoint.step] for checkpoint in checkpoints if checkpoint.step in written
        },
        **evaluation,
    }
    alias = plan.contract.artifact.alias if final.published else None
    table = run_dir / METRICS_NAME
    file = ResultFile(
        filename=f"step_metrics-{attempt.lease.job.id}.csv",
        bytes=table.stat().st_size,
        sha256=attempt.storage.put_file(table),
    )
    result, terms = judge_for_alias(attempt, registered, alias, result, [file])
    # Send events that waited for the database.
    attempt.report()
    attempt.leases.finish(attempt.lease, result, adapters=registered, alias=alias, files=[file], terms=terms)
    for run in [attempt.run_dir, *attempt.earlier_runs()]:
        shutil.rmtree(run / CHECKPOINTS_FOLDER, ignore_errors=True)


def _input_file(file: DataFile | None, path: str | None) -> InputFile | None:
    return InputFile(file.file_id, file.sha256, Path(path), verify=True) if file and path else None
