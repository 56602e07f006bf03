"""Writes the files that a finished run leaves for people and programs. ``run_summary.json`` is written last: it marks a
complete run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.base_models.families import FULL, LINEAR
from shared.base_models.tensors import linear_layers
from shared.contract.choices import AdapterTargets, DeploymentTarget
from shared.contract.contracts import FineTuneContract
from shared.contract.refusals import infer_kernel
from worker.run_folder import (
    ADAPTER_FOLDER,
    EVALUATION_NAME,
    METRICS_NAME,
    PLAN_NAME,
    PREFLIGHT_NAME,
    PROBES_NAME,
    SUMMARY_NAME,
    TELEMETRY_NAME,
    TRAINING_MANIFEST_NAME,
    write_json,
)
from worker.training.data.prepared import PreparationReport
from worker.training.lineage import git_sha, package_versions
from worker.training.metrics import mean
from worker.training.reporting.events import SKIP_REASONS
from worker.training.reporting.facts import FinishedRun, artifacts
from worker.training.reporting.model_card import CARD_NAME, CURVES_NAME, write_model_card
from worker.training.reporting.tracker_clients import TENSORBOARD_FOLDER

SUMMARY_SCHEMA = "vox_mens_run_summary_v1"
SKIP_STATS_SCHEMA = "vox_mens_training_skip_stats_v1"
TRAINING_MANIFEST_VERSION = 5
SKIP_STATS_NAME = "training_skip_stats.json"
MOBILE_NOTE = "Trained off the device; converting it for the device is up to the operator."

ARTIFACTS = {
    "plan": PLAN_NAME,
    "preflight": PREFLIGHT_NAME,
    "adapter": f"{ADAPTER_FOLDER}/{WEIGHTS_NAME}",
    "adapter_config": f"{ADAPTER_FOLDER}/{CONFIG_NAME}",
    "adapter_manifest": f"{ADAPTER_FOLDER}/{MANIFEST_NAME}",
    "probes": PROBES_NAME,
    "telemetry": TELEMETRY_NAME,
    "metrics": METRICS_NAME,
    "tensorboard": TENSORBOARD_FOLDER,
    "training_skip_stats": SKIP_STATS_NAME,
    "training_manifest": TRAINING_MANIFEST_NAME,
    "model_card": CARD_NAME,
    "curves": CURVES_NAME,
    "self_evaluation": EVALUATION_NAME,
}


def write_reports(run_dir: Path, facts: FinishedRun) -> None:
    """Write skip statistics, ``training_manifest.json``, the model card, the self-evaluation, and last ``run_summary.json``."""
    packages = package_versions()
    write_json(run_dir / SKIP_STATS_NAME, skip_stats(facts))
    write_json(run_dir / TRAINING_MANIFEST_NAME, training_manifest(facts, packages))
    write_model_card(run_dir, facts, packages)
    if facts.evaluation:
        write_json(run_dir / EVALUATION_NAME, facts.evaluation.model_dump(mode="json"))
    write_json(run_dir / SUMMARY_NAME, run_summary(facts) | {"artifacts": artifacts(run_dir, ARTIFACTS)})


def skip_stats(facts: FinishedRun) -> dict[str, Any]:
    """Return which rows were left out and why, by line number and without their content."""
    return {
        "schema": SKIP_STATS_SCHEMA,
        "run_id": facts.run_id,
        "train_file": facts.plan.train.file_id,
        **_file_stats(facts.training, facts.skips),
        "validation": _file_stats(facts.validation, facts.validation.skipped) if facts.validation else None,
    }


def training_manifest(facts: FinishedRun, packages: Mapping[str, str]) -> dict[str, Any]:
    """Describe the run, with the original schema's field names where they apply and Mens' own fields in addition."""
    plan, contract = facts.plan, facts.plan.contract
    return {
        "manifest_schema_version": TRAINING_MANIFEST_VERSION,
        "run_id": facts.run_id,
        "git_sha": git_sha(os.environ),
        "packages": dict(packages),
        "finished_at": datetime.now(UTC).isoformat(),
        "device_profile": facts.device_name or facts.device,
        "engine": dict(facts.engine),
        **_model_fields(facts),
        **{f"provenance_{key}": value for key, value in contract.provenance.model_dump().items()},
        "parent": facts.manifest.parent.model_dump() if facts.manifest.parent else None,
        **_data_fields(facts),
        **_recipe_fields(contract),
        "warmup_steps": facts.warmup,
        **_trajectory_fields(contract),
        "adapter_id": facts.manifest.adapter_id,
        # The original's names of kernels, and one more for plain LoRA; the plan has its shorter ones.
        "execution_kernel": infer_kernel(contract).value,
        "finetune_contract_digest": plan.contract_digest,
        "plan_digest": plan.digest,
        **_run_fields(facts),
        "training_objective_note": objective_note(contract),
        "training_deployment_target": contract.artifact.deployment_target,
        "training_deployment_note": MOBILE_NOTE
        if contract.artifact.deployment_target is DeploymentTarget.MOBILE_EDGE
        else None,
        "eval_baseline_delta_note": _delta_note(facts),
    }


def run_summary(facts: FinishedRun) -> dict[str, Any]:
    """Return the run's results: measured values, or null where none was measured."""
    progress, summary = facts.progress, facts.summary
    losses = [loss for _, loss in facts.series("train_loss")]
    validations = [loss for _, loss in facts.series("valid_loss")]
    return {
        "schema": SUMMARY_SCHEMA,
        "run_id": facts.run_id,
        "base_model": facts.plan.base.name,
        "adapter_tag": facts.plan.contract.exec.adapter_tag,
        "adapter_id": facts.manifest.adapter_id,
        "adapter_digest": facts.manifest.digest,
        "global_step": progress.step,
        "optimizer_step_count": progress.step,
        "planned_steps": facts.planned_steps,
        "stopped_early": facts.stopped_early,
        "resume": {
            "guarantee": progress.guarantee,
            "inexact_reasons": progress.inexact_reasons,
            "resumed_from_steps": progress.resumed_from,
            "memory_retries": progress.memory_retries,
        },
        "total_tokens": progress.trained_tokens,
        "trained_tokens": progress.trained_tokens,
        "avg_train_loss": mean(losses),
        "last_train_loss": losses[-1] if losses else None,
        "avg_val_loss_last_epoch": facts.last_epoch_validation_loss,
        "last_val_loss": validations[-1] if validations else None,
        "metrics": progress.metrics[-1] if progress.metrics else {},
        "memory": dict(facts.memory),
        "tokens_per_second": progress.tokens_per_second,
        "training_summary": {
            "wall_secs": summary.wall_secs,
            "total_steps": summary.total_steps,
            "total_tokens": summary.total_tokens,
            "ms_per_step": summary.ms_per_step,
        },
    }


def objective_note(contract: FineTuneContract) -> str:
    """Describe the loss in a sentence."""
    last = contract.exec.qlora_ce_last_k
    where = f"the last {last} assistant tokens of a row" if last else "all assistant tokens"
    weighted = ", rows weighted by their metadata" if contract.trajectory.enabled else ""
    return f"Cross-entropy on {where}{weighted}; prompts carry no loss."


def _file_stats(report: PreparationReport, skips: Mapping[str, int]) -> dict[str, Any]:
    left_out = sum(report.skipped.values())  # a curriculum postpones rows, it does not lose them
    return {
        "rows": report.rows,
        "rows_seen": report.rows + left_out,
        **{f"skip_{reason}": skips.get(reason, 0) for reason in SKIP_REASONS},
        "skip_rate": left_out / max(report.rows + left_out, 1),
        "skipped_lines": report.skipped_lines,
        "truncated_rows": report.truncated_rows,
        "truncated_tokens": report.truncated_tokens,
        "trajectory_weighted_pairs": report.trajectory_weighted,
        "trajectory_clamped_pairs": report.trajectory_clamped,
    }


def _model_fields(facts: FinishedRun) -> dict[str, Any]:
    config, targets = facts.config, facts.plan.contract.adapter.targets
    adapted = len(facts.manifest.layer_order)
    layers = {match[1] for name in facts.manifest.layer_order if (match := re.match(r"l(\d+)\.", name))}
    return {
        "base_model": facts.plan.base.name,
        "base_digests": facts.plan.base.digests,
        "tokenizer_path": "tokenizer.json",
        "vocab_size": config.vocab,
        "d_model": config.hidden,
        "n_heads": config.heads,
        "n_layers": config.layers,
        "candle_qlora_architecture": config.family.value,
        "candle_qlora_linear_layers": config.layer_types.count(LINEAR),
        "candle_qlora_full_layers": config.layer_types.count(FULL),
        "candle_qlora_graph_id": "full_graph_v1" if targets is AdapterTargets.FULL_GRAPH else "lm_head_only",
        "candle_qlora_middle_layers_active": len(layers),
        "candle_qlora_proxy_stack_complete": adapted == len(linear_layers(config)),
    }


def _data_fields(facts: FinishedRun) -> dict[str, Any]:
    plan, data = facts.plan, facts.plan.contract.data
    return {
        "train_file": plan.train.file_id,
        "train_file_sha256": plan.train.sha256,
        "validation_file": plan.validation.file_id if plan.validation else None,
        "validation_file_sha256": plan.validation.sha256 if plan.validation else None,
        "replay_file": plan.replay.file_id if plan.replay else None,
        "replay_file_sha256": plan.replay.sha256 if plan.replay else None,
        "pairs_loaded": facts.training_rows,
        "validation_pairs": facts.validation_rows,
        "tokenizer": facts.training.tokenizer,
        "context_filter": data.context_filter.model_dump(exclude_none=True) if data.context_filter else None,
        "min_rating": data.min_rating,
    }


def _recipe_fields(contract: FineTuneContract) -> dict[str, Any]:
    exec_ = contract.exec
    names = ("seq_len", "epochs", "batch_size", "grad_accum", "learning_rate", "weight_decay")
    more = ("max_grad_norm", "seed", "adapter_tag", "max_vram_fraction")
    return {
        **contract.adapter.model_dump(mode="json", include={"rank", "alpha", "dropout", "target_modules"}),
        **{name: getattr(exec_, name) for name in (*names, *more)},
        "ce_last_k": exec_.qlora_ce_last_k,
        "candle_qlora_ce_last_k": exec_.qlora_ce_last_k,
        "optimizer_experiment": contract.optimizer.experiment,
        "contract": contract.model_dump(mode="json"),
    }


def _trajectory_fields(contract: FineTuneContract) -> dict[str, Any]:
    trajectory = contract.trajectory.model_dump()
    return {"trajectory_weighting_enabled": trajectory.pop("enabled")} | {
        f"trajectory_{name}": value for name, value in trajectory.items()
    }


def _run_fields(facts: FinishedRun) -> dict[str, Any]:
    skips = facts.skips
    return {
        "training_steps_executed": facts.progress.step,
        "planned_steps": facts.planned_steps,
        "stopped_early": facts.stopped_early,
        "resume_guarantee": facts.progress.guarantee,
        "candle_qlora_training_steps_executed": facts.progress.step,
        **{f"skip_{reason}": skips.get(reason, 0) for reason in SKIP_REASONS},
        "candle_qlora_skips_bad_vocab": skips.get("token_id_oob", 0),
        "candle_qlora_skips_short_seq": skips.get("short_seq", 0),
        "skipped_lines": facts.training.skipped_lines,
    }


def _delta_note(facts: FinishedRun) -> str | None:
    """Describe how the validation loss changed; None before the second measurement."""
    validations = facts.series("valid_loss")
    if len(validations) < 2:
        return None
    (first, before), (last, after) = validations[0], validations[-1]
    return f"Validation loss {before:.4f} at step {first}, {after:.4f} at step {last}: {after - before:+.4f}."
