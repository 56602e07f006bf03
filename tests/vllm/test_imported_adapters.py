"""Adapters of other programs, imported and served: their effect on the model is what NumPy computes from their files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.artifacts.adapter_import import import_adapter, parse_description
from shared.artifacts.imported_folder import ImportRequest
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME
from shared.tokenization.tokenizer import Tokenizer
from tests.support.original_adapter import make_original
from tests.support.peft_folder import PeftFolder, make_patterned, make_torchtune
from tests.support.serving_installation import KEY, ServingInstallation
from tests.support.vllm_server import VllmServer
from worker.jobs.certificates import differences, rms
from worker.jobs.publish import REQUEST_SECONDS
from worker.replica_client import BlockingReplicaClient

LEAST_EFFECT, MOST_ERROR = 0.1, 1e-4
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
    base = serving_installation.base
    config = json.loads((base / "config.json").read_text())
    made = make_original(base, era, version, suffix, sizes=(config["vocab_size"], config["hidden_size"]), seed=version)
    folder = made.write(tmp_path / "theirs")
    files = folder / ORIGINAL_WEIGHTS, folder / (V2_NAME if version == 2 else V3_NAME)
    merged = made.merged_into(base)
    name = f"old-{era.lower()}{version}"
    effect, error = measure(vllm_server, serving_installation, tmp_path, files, merged, name)
    assert effect > LEAST_EFFECT
    assert error < MOST_ERROR


@pytest.mark.parametrize("make", [make_patterned, make_torchtune])
def test_a_peft_folder_is_served_with_the_effect_that_numpy_predicts(
    vllm_server: VllmServer,
    serving_installation: ServingInstallation,
    tmp_path: Path,
    make: Callable[[Path], PeftFolder],
) -> None:
    made = make(serving_installation.base)
    folder = made.write(tmp_path / "theirs")
    files, merged = (folder / WEIGHTS_NAME, folder / CONFIG_NAME), made.merged_into(serving_installation.base)
    name = make.__name__.replace("_", "-")
    effect, error = measure(vllm_server, serving_installation, tmp_path, files, merged, name)
    assert effect > LEAST_EFFECT
    assert error < MOST_ERROR


def measure(
    server: VllmServer,
    installation: ServingInstallation,
    folder: Path,
    files: tuple[Path, Path],
    merged: dict[str, Any],
    name: str,
) -> tuple[float, float]:
    """Import weights and their description; how far vLLM then is from the base, and from a model of the merged tensors (RMS, nats)."""
    base, entry, tokenizer = installation.base, installation.entry, Tokenizer.load(installation.base)
    weights, description = files
    request = ImportRequest(
        weights=weights,
        sidecar=parse_description(description.read_bytes()),
        base=entry,
        base_folder=base,
        name=name,
        sidecar_digest="0" * 64,
        contract_digest="0" * 64,
        template_digest=tokenizer.template.digest,
    )
    manifest = import_adapter(request, folder / "adapter").manifest
    names = sorted(manifest.files)
    installation.storage.put_folder("adapters", manifest.digest, folder / "adapter", names, MANIFEST_NAME)
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    probes = [{"token_ids": row, "positions": list(range(1, len(row)))} for row in ids]
    expected = predicted(base, folder / "merged", merged, probes)
    with BlockingReplicaClient(server.url, KEY, REQUEST_SECONDS) as replica:
        replica.check(manifest.adapter_id)
        served, plain = (
            [replica.scores(model, probe) for probe in probes] for model in (manifest.adapter_id, entry.name)
        )
    effect, error = rms(differences(plain, expected)), rms(differences(served, expected))
    print(json.dumps({"name": name, "effect": effect, "error": error}))
    return effect, error
