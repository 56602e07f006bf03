"""What a finished run leaves for people and machines. ``run_summary.json`` is written last: it marks a complete run."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from shared.manifest import AdapterManifest
from shared.planner import ExecutionPlan
from worker.rundir import SUMMARY_NAME, TRAINING_MANIFEST_NAME, write_json
from worker.training.checkpoint import Progress

SUMMARY_SCHEMA = "vox_mens_run_summary_v1"
TRAINING_MANIFEST_VERSION = 5
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")


def write_reports(
    run_dir: Path,
    plan: ExecutionPlan,
    config: PreTrainedConfig,
    manifest: AdapterManifest,
    progress: Progress,
    skipped_lines: list[int],
    memory: dict[str, object],
) -> None:
    """Write ``training_manifest.json`` (what was run) and ``run_summary.json`` (what came out)."""
    write_json(run_dir / TRAINING_MANIFEST_NAME, _training_manifest(plan, config, progress, skipped_lines))
    write_json(
        run_dir / SUMMARY_NAME,
        _summary(plan, manifest, progress) | {"memory": memory, "tokens_per_second": progress.tokens_per_second},
    )


def _training_manifest(
    plan: ExecutionPlan, config: PreTrainedConfig, progress: Progress, skipped_lines: list[int]
) -> dict[str, Any]:
    contract = plan.contract
    return {
        "manifest_schema_version": TRAINING_MANIFEST_VERSION,
        "vocab_size": config.vocab_size,
        "d_model": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "n_layers": config.num_hidden_layers,
        "base_model": plan.base.name,
        "base_digests": plan.base.digests,
        **{f"provenance_{key}": value for key, value in contract.provenance.model_dump().items()},
        "train_file": plan.train.file_id,
        "train_file_sha256": plan.train.sha256,
        "rank": contract.adapter.rank,
        "alpha": contract.adapter.alpha,
        "seq_len": contract.exec.seq_len,
        "epochs": contract.exec.epochs,
        "seed": contract.exec.seed,
        "grad_accum": contract.exec.grad_accum,
        "adapter_tag": contract.exec.adapter_tag,
        "execution_kernel": plan.execution_kernel,
        "finetune_contract_digest": plan.contract_digest,
        "plan_digest": plan.digest,
        "training_steps_executed": progress.step,
        "skip_no_supervised_positions": len(skipped_lines),
        "skipped_lines": skipped_lines[:100],
        "ce_last_k": contract.exec.qlora_ce_last_k,
        "training_deployment_target": contract.artifact.deployment_target,
        "packages": {name: version(name) for name in PACKAGES},
        "finished_at": datetime.now(UTC).isoformat(),
    }


def _summary(plan: ExecutionPlan, manifest: AdapterManifest, progress: Progress) -> dict[str, Any]:
    losses = [row["train_loss"] for row in progress.metrics if "train_loss" in row]
    validations = [row["valid_loss"] for row in progress.metrics if "valid_loss" in row]
    return {
        "schema": SUMMARY_SCHEMA,
        "base_model": plan.base.name,
        "adapter_id": manifest.adapter_id,
        "adapter_digest": manifest.digest,
        "optimizer_step_count": progress.step,
        "trained_tokens": progress.trained_tokens,
        "avg_train_loss": sum(losses) / len(losses) if losses else None,
        "last_train_loss": losses[-1] if losses else None,
        "last_val_loss": validations[-1] if validations else None,
        "metrics": progress.metrics[-1] if progress.metrics else {},
    }
