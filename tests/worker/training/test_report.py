"""The reports of a finished run."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version

import pytest

import worker.training.report
from worker.rundir import SUMMARY_NAME, TRAINING_MANIFEST_NAME, read_json
from worker.training.checkpoint import Progress
from worker.training.report import SUMMARY_SCHEMA, write_reports

MEMORY = {"device": "cpu", "predicted_bytes": 100, "peak_bytes": 90}


def test_summary(finished):
    summary = read_json(finished.run_dir / SUMMARY_NAME)
    manifest = read_json(finished.run_dir / "adapter" / "adapter_manifest.json")
    assert summary["schema"] == SUMMARY_SCHEMA
    assert summary["adapter_id"] == f"{manifest['name']}@{summary['adapter_digest']}"
    assert summary["optimizer_step_count"] == 12
    assert summary["trained_tokens"] > 0
    assert summary["metrics"]["step"] == 12
    assert summary["last_train_loss"] == summary["metrics"]["train_loss"]
    assert summary["last_val_loss"] == summary["metrics"]["valid_loss"]
    assert 0 < summary["last_train_loss"] < summary["avg_train_loss"]


def test_training_manifest(finished):
    manifest = read_json(finished.run_dir / TRAINING_MANIFEST_NAME)
    plan = finished.run.plan
    assert manifest["manifest_schema_version"] == 5
    assert (manifest["n_layers"], manifest["n_heads"], manifest["d_model"]) == (4, 4, 128)
    assert manifest["plan_digest"] == plan.digest
    assert manifest["finetune_contract_digest"] == plan.contract_digest
    assert manifest["train_file_sha256"] == plan.train.sha256
    assert manifest["training_steps_executed"] == 12
    assert manifest["provenance_base_family"] == "qwen3"
    assert manifest["provenance_attribution_required"] is False
    assert manifest["execution_kernel"] == "qlora"
    assert manifest["packages"]["torch"] == version("torch")
    assert datetime.fromisoformat(manifest["finished_at"]).utcoffset().total_seconds() == 0


@pytest.fixture
def written(finished, lab, tmp_path):
    """Reports written for made-up progress."""
    from transformers import AutoConfig

    from shared.manifest import AdapterManifest

    raw = (finished.run_dir / "adapter" / "adapter_manifest.json").read_bytes()
    manifest, config = AdapterManifest.model_validate_json(raw), AutoConfig.from_pretrained(lab.base)

    def write(metrics, skipped=()):
        progress = Progress(3, 30, metrics)
        write_reports(tmp_path, finished.run.plan, config, manifest, progress, list(skipped), MEMORY)
        return read_json(tmp_path / SUMMARY_NAME), read_json(tmp_path / TRAINING_MANIFEST_NAME)

    return write


def test_losses_are_averaged_where_there_are_some(written):
    metrics = [{"step": 1, "train_loss": 3.0}, {"step": 2, "valid_loss": 9.0}, {"step": 3, "train_loss": 2.0}]
    summary, _ = written(metrics)
    assert (summary["avg_train_loss"], summary["last_train_loss"], summary["last_val_loss"]) == (2.5, 2.0, 9.0)


def test_a_run_without_metrics_has_nulls(written):
    summary, _ = written([])
    assert (summary["avg_train_loss"], summary["last_train_loss"], summary["last_val_loss"]) == (None, None, None)
    assert summary["metrics"] == {}


def test_skipped_rows_are_counted_and_their_lines_capped(written):
    _, manifest = written([], skipped=range(1, 251))
    assert manifest["skip_no_supervised_positions"] == 250
    assert manifest["skipped_lines"] == list(range(1, 101))


def test_the_summary_comes_after_the_manifest(written, monkeypatch):
    order = []
    real = worker.training.report.write_json
    monkeypatch.setattr(
        worker.training.report, "write_json", lambda path, value: (order.append(path.name), real(path, value))
    )
    written([])
    assert order == [TRAINING_MANIFEST_NAME, SUMMARY_NAME]
