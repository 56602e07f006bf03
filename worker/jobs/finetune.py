"""The fine-tune job: prepare, train in a child process, store the adapter, prove it, finish."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from shared.catalog import BaseModelEntry, LocalSource
from shared.digest import digest_file
from shared.errors import ArtifactInvalid, Code, JobFailed
from shared.job import NewEvent
from shared.jobstate import Stage
from shared.lease import ResultFile
from shared.manifest import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest, parse_manifest, verify_adapter
from shared.planner import ExecutionPlan, TrainingInputs, TrainingRun
from shared.preflight import Asked, InputFile, Machine, preflight
from shared.registry import NewAdapter
from shared.replicas import discover
from shared.storage import Storage
from worker.attempt import Attempt
from worker.certificates import Limits
from worker.engine import Engine, count_processes
from worker.parity import TrainerSide
from worker.publish import Proof, certify
from worker.rundir import (
    ADAPTER_FOLDER,
    CHECKPOINTS_FOLDER,
    METRICS_NAME,
    PLAN_NAME,
    PREFLIGHT_NAME,
    PROBES_NAME,
    SUMMARY_NAME,
    list_checkpoints,
    read_json,
    write_json,
)

ENGINE = "worker.train"


def run_finetune(attempt: Attempt) -> None:
    """Run a fine-tune attempt from claim to success.

    Raises:
        MensError: the attempt failed, with its code. LeaseLost, Stopped: see `worker/attempt.py`.
    """
    plan = ExecutionPlan.model_validate(attempt.lease.job.plan)
    run_dir = next((run for run in attempt.earlier_runs() if read_json(run / SUMMARY_NAME)), None)
    if run_dir is None:
        run_dir = attempt.run_dir
        train(attempt, plan)
    # The same content may be there and just being deleted: it must not be removed under our feet.
    attempt.ledger.keep_adapters(
        attempt.lease, [digest_file(folder / MANIFEST_NAME) for folder in adapter_folders(run_dir)]
    )
    adapters = store_adapters(attempt.storage, run_dir)
    adapters[-1] = publish(attempt, plan, adapters[-1], run_dir)
    finish(attempt, plan, adapters, run_dir)


def train(attempt: Attempt, plan: ExecutionPlan) -> None:
    """Prepare the run folder and train, from the newest checkpoint of earlier attempts if there is one."""
    attempt.enter(Stage.PREFLIGHT, f"Checking the base model {plan.base.name} and the training file.")
    attempt.run_dir.mkdir(parents=True, exist_ok=True)
    run = TrainingRun(plan=plan, inputs=locate_inputs(attempt, plan))
    (attempt.run_dir / PLAN_NAME).write_text(run.model_dump_json(indent=2))
    check_inputs(attempt, run)
    attempt.heed()
    attempt.enter(Stage.TRAINING, "Starting the engine.")
    resume = newest_checkpoint(attempt.earlier_runs())
    settings = attempt.settings
    engine = Engine(
        ENGINE,
        attempt.run_dir,
        resume=resume,
        cache=settings.prepared_dir,
        threads=settings.trainer_threads,
        processes=count_processes(settings.trainer_processes, plan.contract),
    )
    attempt.follow(engine)


def locate_inputs(attempt: Attempt, plan: ExecutionPlan) -> TrainingInputs:
    """Paths of the plan's inputs on this machine, their contents checked."""
    validation, replay = plan.validation, plan.replay
    return TrainingInputs(
        base=str(attempt.locate_base(plan.base)),
        train=str(open_verified(attempt.storage, plan.train.sha256)),
        validation=str(open_verified(attempt.storage, validation.sha256)) if validation else None,
        replay=str(open_verified(attempt.storage, replay.sha256)) if replay else None,
    )


def check_inputs(attempt: Attempt, run: TrainingRun) -> None:
    """The whole preflight once more, on every row and on this machine's own files; its record replaces the API's.

    Raises:
        MensError: the code of the first thing that makes the job impossible.
    """
    plan, inputs = run.plan, run.inputs
    entry = BaseModelEntry(name=plan.base.name, source=LocalSource(path=inputs.base), digests=plan.base.digests)
    validation, replay = plan.validation, plan.replay
    checked = preflight(
        Asked(plan.contract.model_dump(mode="json"), name=plan.adapter_name),
        entry,
        Path(inputs.base),
        InputFile(plan.train.file_id, plan.train.sha256, Path(inputs.train)),
        InputFile(validation.file_id, validation.sha256, Path(inputs.validation or "")) if validation else None,
        Machine(),
        InputFile(replay.file_id, replay.sha256, Path(inputs.replay or "")) if replay else None,
    )
    record = checked.record()
    write_json(attempt.run_dir / PREFLIGHT_NAME, record)
    learnt = checked.supervision
    message = f"Preflight passed: {learnt.rows} rows, {learnt.supervised_tokens} of {learnt.tokens} tokens are learnt."
    attempt.report(events=[NewEvent(message=message, data={"notes": checked.notes})], preflight=record)


def open_verified(storage: Storage, sha256: str) -> Path:
    """Path of a blob whose bytes still are what its name says.

    Raises:
        NotFound: ``STORAGE_OBJECT_MISSING``. ArtifactInvalid: it was changed behind the storage's back.
    """
    path = storage.open_blob(sha256)
    if digest_file(path) != sha256:
        raise ArtifactInvalid(
            Code.STORAGE_OBJECT_MISSING,
            f"The stored file {sha256} is not what was uploaded.",
            remedy="Upload it again, or restore the storage from a backup.",
        )
    return path


def newest_checkpoint(runs: list[Path]) -> Path | None:
    """The checkpoint with the most steps among run folders."""
    checkpoints = [checkpoint for run in runs for checkpoint in list_checkpoints(run)]
    return max(checkpoints, key=lambda checkpoint: checkpoint.name, default=None)


def adapter_folders(run_dir: Path) -> list[Path]:
    """The run's checkpoints and, last, its result."""
    return [*list_checkpoints(run_dir), run_dir / ADAPTER_FOLDER]


def store_adapters(storage: Storage, run_dir: Path) -> list[NewAdapter]:
    """Put the run's checkpoints and, last, its result into storage, each under its manifest's digest."""
    adapters = {}
    for folder in adapter_folders(run_dir):
        adapter = store_adapter(storage, folder, final=folder.name == ADAPTER_FOLDER)
        adapters[adapter.id] = adapter
    return sorted(adapters.values(), key=lambda adapter: (adapter.final, adapter.step))


def store_adapter(storage: Storage, folder: Path, *, final: bool) -> NewAdapter:
    """Verify one adapter folder against its own manifest and store it; files first, manifest last."""
    digest = digest_file(folder / MANIFEST_NAME)
    manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), digest)
    verify_adapter(folder, manifest)
    storage.put_folder("adapters", digest, folder, [WEIGHTS_NAME, CONFIG_NAME], MANIFEST_NAME)
    return _new_adapter(manifest, final=final)


def publish(attempt: Attempt, plan: ExecutionPlan, adapter: NewAdapter, run_dir: Path) -> NewAdapter:
    """Certify the adapter on every serving replica, unless the contract asks for training only.

    Raises:
        MensError: see `worker/publish.py`; an adapter whose certificates did not hold is quarantined.
    """
    if not plan.contract.artifact.publish:
        return adapter
    attempt.enter(Stage.PUBLISHING, "Loading the adapter on the serving tier and measuring its certificates.")
    settings = attempt.settings
    trainer = TrainerSide(attempt, plan.base, plan.contract.device, run_dir)
    proof = Proof(
        adapter_id=adapter.id,
        probes=(read_json(run_dir / PROBES_NAME) or {"probes": []})["probes"],
        encode_chats=trainer.encode_chats,
        reference=trainer.scores if settings.parity == "full" else None,
        limits=Limits(settings.effect_floor, settings.base_shift_limit),
    )
    try:
        certificates = certify(
            discover(settings.serving_urls, settings.serving_dns),
            settings.serving_key.get_secret_value(),
            proof,
            timeout_seconds=settings.publish_timeout_seconds,
            heed=attempt.heed,
        )
    except JobFailed as error:
        if failed := error.details.get("certificates"):
            attempt.ledger.quarantine(attempt.lease, adapter.model_copy(update={"certificates": failed}))
        raise
    return adapter.model_copy(update={"published": True, "certificates": certificates})


def finish(attempt: Attempt, plan: ExecutionPlan, adapters: list[NewAdapter], run_dir: Path) -> None:
    """Store the result file and succeed, in one transaction; then drop the checkpoints, which storage now holds."""
    summary = read_json(run_dir / SUMMARY_NAME) or {}
    final = adapters[-1]
    with_metrics = [*_with_metrics(adapters[:-1], run_dir), final.model_copy(update={"metrics": summary["metrics"]})]
    if final.published:
        with_metrics = [adapter.model_copy(update={"published": True}) for adapter in with_metrics]
    result = {
        "adapter_id": final.id,
        "trained_tokens": summary["trained_tokens"],
        "optimizer_steps": summary["optimizer_step_count"],
        "last_train_loss": summary["last_train_loss"],
        "last_val_loss": summary["last_val_loss"],
        "memory": summary["memory"],
        "tokens_per_second": summary["tokens_per_second"],
        "resume": summary["resume"],
    }
    alias = plan.contract.artifact.alias if final.published else None
    attempt.report()
    files = [_metrics_file(attempt, run_dir)]
    attempt.ledger.finish(attempt.lease, result, adapters=with_metrics, alias=alias, files=files)
    for run in [attempt.run_dir, *attempt.earlier_runs()]:
        shutil.rmtree(run / CHECKPOINTS_FOLDER, ignore_errors=True)


def _new_adapter(manifest: AdapterManifest, *, final: bool) -> NewAdapter:
    return NewAdapter(
        id=manifest.adapter_id,
        digest=manifest.digest,
        base_model=manifest.base_model,
        step=manifest.step,
        final=final,
        published=False,
        manifest=manifest.model_dump(mode="json", exclude_none=True),
    )


def _with_metrics(adapters: list[NewAdapter], run_dir: Path) -> list[NewAdapter]:
    """Checkpoints with the metrics of their step, from the engine's state files."""
    metrics: dict[int, dict[str, Any]] = {}
    for folder in list_checkpoints(run_dir):
        state = read_json(folder / "trainer_state.json") or {"metrics": []}
        metrics |= {int(row["step"]): row for row in state["metrics"]}
    return [adapter.model_copy(update={"metrics": metrics.get(adapter.step, {})}) for adapter in adapters]


def _metrics_file(attempt: Attempt, run_dir: Path) -> ResultFile:
    path = run_dir / METRICS_NAME
    filename = f"step_metrics-{attempt.lease.job.id}.csv"
    return ResultFile(filename=filename, bytes=path.stat().st_size, sha256=attempt.storage.put_file(path))
