"""The original's adapters, imported and served: what they do to the model is what NumPy computes from the original's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shared.artifacts.manifests import MANIFEST_NAME
from shared.artifacts.original_import import ImportRequest, import_original
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME, parse_sidecar
from shared.tokenization.tokenizer import Tokenizer
from tests.support.original_adapter import make_original
from tests.support.serving_installation import KEY, ServingInstallation
from tests.support.vllm_server import VllmServer
from worker.jobs.certificates import differences, rms
from worker.jobs.publish import REQUEST_SECONDS
from worker.replica_client import ReplicaClient

TEXTS = ["the red fox runs near the forest", "a ship sails by the stars\nhello"]


def predicted(base: Path, merged: Path, tensors: dict[str, Any], probes: list[dict[str, Any]]) -> list[list[float]]:
    """Log-probabilities of the probes by a model whose weights NumPy has merged."""
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM

    shutil.copytree(base, merged)
    save_file(tensors, merged / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    scores = []
    for probe in probes:
        ids = torch.tensor([probe["token_ids"]])
        with torch.no_grad():
            logs = model(ids).logits[0].log_softmax(-1)
        scores.append([float(logs[at - 1, ids[0, at]]) for at in probe["positions"]])
    return scores


@pytest.mark.parametrize(("era", "version", "suffix"), [("P", 2, ""), ("F", 3, ".weight"), ("F", 2, "")])
def test_served_with_the_effect_that_numpy_predicts(
    vllm_server: VllmServer,
    serving_installation: ServingInstallation,
    tmp_path: Path,
    era: str,
    version: int,
    suffix: str,
) -> None:
    base, entry = serving_installation.base, serving_installation.entry
    config, tokenizer = json.loads((base / "config.json").read_text()), Tokenizer.load(base)
    made = make_original(base, era, version, suffix, sizes=(config["vocab_size"], config["hidden_size"]), seed=version)
    folder = made.write(tmp_path / "original")
    request = ImportRequest(
        weights=folder / ORIGINAL_WEIGHTS,
        sidecar=parse_sidecar((folder / (V2_NAME if version == 2 else V3_NAME)).read_bytes()),
        base=entry,
        base_folder=base,
        name=f"old-{era.lower()}{version}",
        sidecar_digest="0" * 64,
        contract_digest="0" * 64,
        template_digest=tokenizer.template.digest,
    )
    manifest = import_original(request, tmp_path / "adapter").manifest
    names = sorted(manifest.files)
    serving_installation.storage.put_folder("adapters", manifest.digest, tmp_path / "adapter", names, MANIFEST_NAME)
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    probes = [{"token_ids": row, "positions": list(range(1, len(row)))} for row in ids]
    expected = predicted(base, tmp_path / "merged", made.merged_into(base), probes)
    with ReplicaClient(vllm_server.url, KEY, REQUEST_SECONDS) as replica:
        replica.check(manifest.adapter_id)
        served, plain = (
            [replica.scores(name, probe) for probe in probes] for name in (manifest.adapter_id, entry.name)
        )
    effect, error = rms(differences(plain, expected)), rms(differences(served, expected))
    print(json.dumps({"era": era, "version": version, "effect": effect, "error": error}))
    assert effect > 0.1
    assert error < 1e-4
