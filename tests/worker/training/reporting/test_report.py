"""The reports of a finished run: every field is measured, and the summary is written last."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version

import pytest

import worker.training.reporting.report
from shared.artifacts.manifests import AdapterManifest
from shared.base_models.config import parse_model_config
from shared.contract.base_quant import with_pair
from shared.contract.choices import AdapterMethod, BaseQuant, DeploymentTarget
from worker.run_folder import SUMMARY_NAME, TRAINING_MANIFEST_NAME, read_json
from worker.training.checkpoint import Progress
from worker.training.data.prepared import PreparationReport
from worker.training.reporting.facts import FinishedRun, new_run_id
from worker.training.reporting.model_card import CARD_NAME, CURVES_NAME
from worker.training.reporting.report import (
    MOBILE_NOTE,
    SKIP_STATS_NAME,
    SKIP_STATS_SCHEMA,
    SUMMARY_SCHEMA,
    objective_note,
    write_reports,
)
from worker.training.reporting.telemetry import TrainingSummary

MEMORY = {"device": "cpu", "predicted_bytes": 100, "peak_bytes": 90}
SPECIFIED_SUMMARY = [
    "schema",
    "run_id",
    "base_model",
    "adapter_tag",
    "global_step",
    "optimizer_step_count",
    "avg_train_loss",
    "avg_val_loss_last_epoch",
    "total_tokens",
    "artifacts",
]
SPECIFIED_MANIFEST = [
    "vocab_size",
    "d_model",
    "n_heads",
    "n_layers",
    "base_model",
    "tokenizer_path",
    "provenance_base_family",
    "provenance_upstream_model_id",
    "provenance_license_class",
    "provenance_attribution_required",
    "train_file",
    "rank",
    "alpha",
    "seq_len",
    "epochs",
    "run_id",
    "git_sha",
    "device_profile",
    "adapter_tag",
    "seed",
    "grad_accum",
    "context_filter",
    "max_vram_fraction",
    "manifest_schema_version",
    "execution_kernel",
    "finetune_contract_digest",
    "candle_qlora_training_steps_executed",
    "candle_qlora_skips_bad_vocab",
    "candle_qlora_skips_short_seq",
    "candle_qlora_proxy_stack_complete",
    "candle_qlora_graph_id",
    "candle_qlora_middle_layers_active",
    "candle_qlora_ce_last_k",
    "candle_qlora_architecture",
    "candle_qlora_linear_layers",
    "candle_qlora_full_layers",
    "training_objective_note",
    "training_deployment_target",
    "training_deployment_note",
    "eval_baseline_delta_note",
    "trajectory_weighting_enabled",
    "trajectory_tool_trace_boost",
    "trajectory_failure_category_boost",
    "trajectory_quality_floor",
    "trajectory_quality_boost",
]


# -- a real run -------------------------------------------------------------------------------------------------------


def test_summary(finished):
    summary = read_json(finished.run_dir / SUMMARY_NAME)
    manifest = read_json(finished.run_dir / "adapter" / "adapter_manifest.json")
    assert set(SPECIFIED_SUMMARY) <= summary.keys()
    assert summary["schema"] == SUMMARY_SCHEMA
    assert summary["adapter_id"] == f"{manifest['name']}@{summary['adapter_digest']}"
    assert summary["optimizer_step_count"] == summary["global_step"] == 12
    assert summary["trained_tokens"] == summary["total_tokens"] > 0
    assert summary["metrics"]["step"] == 12
    assert summary["last_train_loss"] == summary["metrics"]["train_loss"]
    assert summary["last_val_loss"] == summary["metrics"]["valid_loss"]
    assert 0 < summary["last_train_loss"] < summary["avg_train_loss"]
    assert {"predicted_bytes", "peak_bytes"} <= summary["memory"].keys()
    took = summary["training_summary"]
    assert (took["total_steps"], took["total_tokens"]) == (12, summary["total_tokens"])
    assert 0 < took["ms_per_step"] * 12 / 1000 < took["wall_secs"]


def test_every_artifact_is_there(finished):
    summary = read_json(finished.run_dir / SUMMARY_NAME)
    assert all((finished.run_dir / path).exists() for path in summary["artifacts"].values())
    made = {"adapter", "adapter_manifest", "telemetry", "metrics", "model_card", "curves", "training_skip_stats"}
    assert made <= summary["artifacts"].keys()


def test_training_manifest(finished):
    manifest = read_json(finished.run_dir / TRAINING_MANIFEST_NAME)
    plan = finished.run.plan
    assert set(SPECIFIED_MANIFEST) <= manifest.keys()
    assert manifest["manifest_schema_version"] == 5
    assert (manifest["n_layers"], manifest["n_heads"], manifest["d_model"]) == (4, 4, 128)
    assert manifest["plan_digest"] == plan.digest
    assert manifest["finetune_contract_digest"] == plan.contract_digest
    assert manifest["train_file_sha256"] == plan.train.sha256
    assert manifest["training_steps_executed"] == 12
    assert manifest["provenance_base_family"] == "qwen3"
    assert manifest["provenance_attribution_required"] is False
    assert manifest["execution_kernel"] == "candle_qlora"
    assert manifest["candle_qlora_graph_id"] == "full_graph_v1"
    assert manifest["candle_qlora_middle_layers_active"] == 4
    assert manifest["candle_qlora_proxy_stack_complete"] is True
    assert (manifest["candle_qlora_full_layers"], manifest["candle_qlora_linear_layers"]) == (4, 0)
    assert manifest["packages"]["torch"] == version("torch")
    assert datetime.fromisoformat(manifest["finished_at"]).utcoffset().total_seconds() == 0


def test_one_run_has_one_id(finished):
    ids = {
        read_json(finished.run_dir / name)["run_id"] for name in (SUMMARY_NAME, TRAINING_MANIFEST_NAME, SKIP_STATS_NAME)
    }
    lines = [json.loads(line) for line in (finished.run_dir / "telemetry.jsonl").read_text().splitlines()]
    told = {line["payload"]["run_id"] for line in lines if "run_id" in line["payload"]}
    assert len(ids | told) == 1
    assert new_run_id() != new_run_id()


# -- made-up facts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def facts(finished, tiny) -> FinishedRun:
    """Facts of a run that is not needed for real."""
    raw = (finished.run_dir / "adapter" / "adapter_manifest.json").read_bytes()
    return FinishedRun(
        run_id="01K9ZZZZZZZZZZZZZZZZZZZZZZ",
        plan=finished.run.plan,
        config=parse_model_config(json.loads((tiny.base / "config.json").read_bytes())),
        manifest=AdapterManifest.model_validate_json(raw),
        progress=Progress(3, 30, []),
        summary=TrainingSummary(1.5, 3, 30, 250.0),
        training=PreparationReport(rows=6, tokens=100, supervised_tokens=40),
        training_rows=6,
        validation=None,
        validation_rows=0,
        skips={},
        rate_at=lambda step: 0.1 / step,
        last_epoch_steps=2,
        planned_steps=3,
        memory=MEMORY,
        device="cpu",
    )


@pytest.fixture
def written(facts, tmp_path):
    """Writes reports of the facts with changes; returns summary, manifest and skip statistics."""

    def write(metrics=(), **changes):
        changed = replace(facts, progress=Progress(3, 30, list(metrics)), **changes)
        write_reports(tmp_path, changed)
        return tuple(read_json(tmp_path / name) for name in (SUMMARY_NAME, TRAINING_MANIFEST_NAME, SKIP_STATS_NAME))

    return write


def test_kernel_of_plain_lora_is_not_one_of_the_originals(facts, written):
    plain = with_pair(facts.plan.contract, AdapterMethod.LORA, BaseQuant.NONE)
    _, manifest, _ = written(plan=facts.plan.model_copy(update={"contract": plain}))
    assert manifest["execution_kernel"] == "peft_lora"


def test_the_warmup_is_the_one_that_was_used(facts, written):
    exec_ = facts.plan.contract.exec.model_copy(update={"warmup_steps": 50})
    contract = facts.plan.contract.model_copy(update={"exec": exec_})
    _, manifest, _ = written(plan=facts.plan.model_copy(update={"contract": contract}), planned_steps=40)
    assert (manifest["warmup_steps"], manifest["training_steps_executed"], manifest["planned_steps"]) == (4, 3, 40)
    assert manifest["contract"]["exec"]["warmup_steps"] == 50


def test_losses_are_averaged_where_there_are_some(written):
    metrics = [
        {"step": 1, "train_loss": 3.0, "valid_loss": 9.0},
        {"step": 2, "valid_loss": 5.0},
        {"step": 3, "train_loss": 2.0, "valid_loss": 4.0},
    ]
    summary, manifest, _ = written(metrics)
    assert (summary["avg_train_loss"], summary["last_train_loss"], summary["last_val_loss"]) == (2.5, 2.0, 4.0)
    assert summary["avg_val_loss_last_epoch"] == 4.5
    assert manifest["eval_baseline_delta_note"] == "Validation loss 9.0000 at step 1, 4.0000 at step 3: -5.0000."


def test_a_run_without_metrics_has_nulls(written):
    summary, manifest, _ = written()
    empty = ("avg_train_loss", "last_train_loss", "last_val_loss", "avg_val_loss_last_epoch", "tokens_per_second")
    assert [summary[name] for name in empty] == [None] * 5
    assert summary["metrics"] == {}
    assert manifest["eval_baseline_delta_note"] is None


def test_skipped_rows_are_counted_by_reason(written):
    report = PreparationReport(
        rows=6, skipped={"short_seq": 1, "no_supervised_positions": 1}, skipped_lines=[3, 7], truncated_rows=2
    )
    _, manifest, stats = written(training=report, skips={**report.skipped, "curriculum": 4})
    assert stats["schema"] == SKIP_STATS_SCHEMA
    assert (stats["rows"], stats["rows_seen"], stats["skip_rate"]) == (6, 8, 0.25)
    assert (stats["skip_short_seq"], stats["skip_no_supervised_positions"], stats["skip_curriculum"]) == (1, 1, 4)
    assert (stats["skip_token_id_oob"], stats["skipped_lines"], stats["truncated_rows"]) == (0, [3, 7], 2)
    assert stats["validation"] is None
    assert manifest["candle_qlora_skips_short_seq"] == manifest["skip_short_seq"] == 1
    assert manifest["skipped_lines"] == [3, 7]


def test_a_validation_files_skips_are_its_own(written):
    _, _, stats = written(validation=PreparationReport(rows=1, skipped={"short_seq": 1}), validation_rows=1)
    assert (stats["skip_short_seq"], stats["validation"]["skip_short_seq"]) == (0, 1)
    assert stats["validation"]["skip_rate"] == 0.5


def test_the_engines_decisions_and_device_are_reported(written):
    _, manifest, _ = written(
        engine={"layout": "packed", "token_budget": 4096}, device="cuda", device_name="NVIDIA H200"
    )
    assert manifest["engine"] == {"layout": "packed", "token_budget": 4096}
    assert manifest["device_profile"] == "NVIDIA H200"


def test_a_target_list_is_not_a_complete_stack(facts, written):
    some = [name for name in facts.manifest.layer_order if name.startswith("l2.")]
    keys = {name: facts.manifest.base_key_map[name] for name in some}
    manifest = facts.manifest.model_copy(update={"layer_order": some, "base_key_map": keys})
    _, told, _ = written(manifest=manifest)
    assert told["candle_qlora_middle_layers_active"] == 1
    assert told["candle_qlora_proxy_stack_complete"] is False


def test_notes_follow_from_the_contract(facts, written):
    contract = facts.plan.contract
    assert objective_note(contract) == "Cross-entropy on all assistant tokens; prompts carry no loss."
    changed = contract.model_copy(
        update={
            "exec": contract.exec.model_copy(update={"qlora_ce_last_k": 8}),
            "trajectory": contract.trajectory.model_copy(update={"enabled": True}),
            "artifact": contract.artifact.model_copy(update={"deployment_target": DeploymentTarget.MOBILE_EDGE}),
        }
    )
    _, manifest, _ = written(plan=facts.plan.model_copy(update={"contract": changed}))
    assert "the last 8 assistant tokens of a row, rows weighted" in manifest["training_objective_note"]
    assert manifest["training_deployment_note"] == MOBILE_NOTE
    assert manifest["trajectory_weighting_enabled"] is True


def test_the_summary_comes_last(written, tmp_path, monkeypatch):
    seen = {}
    real = worker.training.reporting.report.write_json

    def noting(path, value):
        seen[path.name] = {file.name for file in path.parent.iterdir()}
        real(path, value)

    monkeypatch.setattr(worker.training.reporting.report, "write_json", noting)
    written()
    assert list(seen) == [SKIP_STATS_NAME, TRAINING_MANIFEST_NAME, SUMMARY_NAME]
    assert seen[SUMMARY_NAME] >= {SKIP_STATS_NAME, TRAINING_MANIFEST_NAME, CARD_NAME, CURVES_NAME}


def test_equal_facts_give_an_equal_card(facts, written, tmp_path):
    digests = set()
    for _ in range(2):
        written([{"step": 1, "train_loss": 3.0}])
        digests.add(
            hashlib.sha256((tmp_path / CARD_NAME).read_bytes() + (tmp_path / CURVES_NAME).read_bytes()).digest()
        )
    assert len(digests) == 1
