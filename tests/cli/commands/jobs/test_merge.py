"""``mens jobs merge --base-shard …``: the original's merge on this machine, with the worker's own program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.export.handoff import HANDOFF_NAME, Handoff
from cli.main import app
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V3_NAME
from shared.base_models.weights import read_tensors
from shared.hashing import digest_file
from tests.support.original_adapter import make_original
from tests.support.tiny_base import CONFIG, write_base

runner = CliRunner()


@pytest.mark.torch
def test_the_originals_merge_and_its_handoff(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    made = make_original(base, "F", sizes=(vocabulary, CONFIG["hidden_size"]))
    folder, output = made.write(tmp_path / "adapter"), tmp_path / "out" / "merged.safetensors"
    output.parent.mkdir()
    files = ["--adapter", str(folder / ORIGINAL_WEIGHTS), "--meta", str(folder / V3_NAME), "--output", str(output)]
    result = runner.invoke(app, ["merge", "--base-shard", str(base / "model.safetensors"), *files])
    assert result.exit_code == 0, result.output
    assert set(read_tensors(output)) == set(made.layers.values())
    assert f"{len(made.layers)} tensors to" in result.output and digest_file(output) in result.output
    handoff = Handoff.model_validate_json((output.parent / HANDOFF_NAME).read_bytes())
    assert (handoff.backend_family, handoff.adapter_path) == ("other", "merged.safetensors")
    assert handoff.notes is not None and "a server cannot load this file" in handoff.notes
    refused = runner.invoke(app, ["merge", *files])
    assert refused.exit_code == 1
    assert "MERGE_NO_BASE_SHARDS" in refused.output and "--base-shard" in refused.output


@pytest.mark.parametrize("given", [[], ["demo", "--base-shard", "x"], ["--base-shard", "x", "--meta", "y"]])
def test_half_of_either_merge_is_refused(given: list[str]) -> None:
    result = runner.invoke(app, ["merge", *given])
    assert result.exit_code == 1
    assert "--base-shard, --adapter, --meta and --output" in result.output
