"""The scoring process: transformers and peft on a full-precision base, in a child process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import worker.score
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.base_models.tensors import COMPOSITE_NAMESPACE
from shared.contract.sections import AdapterSection, DeviceSection
from shared.errors import ArtifactInvalid, Code
from tests.support.tiny_models import RAW, save
from worker.child_runtime import EXIT_FAILED
from worker.run_folder import SCORES_NAME, ScoreRun, read_json, write_json
from worker.score import load, main
from worker.training.model.layer_names import renamed
from worker.training.model.load import attach_lora
from worker.training.probes import score_probes


def with_effect(model):
    """A model with LoRA on every layer whose B is not zero."""
    model = attach_lora(model, AdapterSection(rank=4, alpha=8), seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(scope="module")
def run(tiny, tokenizer, tmp_path_factory):
    """A score run of an adapter with an effect, on its full-precision base."""
    folder = tmp_path_factory.mktemp("adapter")
    with_effect(AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)).save_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in ("What is a bug? A mistake.", "A file is bytes with a name.")]
    probes = [{"token_ids": one, "positions": list(range(2, len(one)))} for one in ids]
    write_json(folder / "probes.json", {"probes": probes})
    paths = {"base": str(tiny.base), "adapter": str(folder), "probes": str(folder / "probes.json")}
    return ScoreRun(**paths, dtype="float32", device=DeviceSection())


def expected_scores(run):
    """The same, the plain way: all logits of the whole model."""
    model = AutoModelForCausalLM.from_pretrained(run.base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, run.adapter).eval()
    scores = []
    for probe in read_json(Path(run.probes))["probes"]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([probe["token_ids"]])).logits[0].log_softmax(-1)
        scores.append([logits[at - 1, probe["token_ids"][at]].item() for at in probe["positions"]])
    return scores


def test_scores_are_those_of_the_plain_way(run, tmp_path):
    """As a process: `jobs/test_reference_scores.py`."""
    (tmp_path / "plan.json").write_text(run.model_dump_json())
    assert main([str(tmp_path / "plan.json"), str(tmp_path)]) == 0
    found = json.loads((tmp_path / SCORES_NAME).read_text())["scores"]
    assert len(found) == 2
    for mine, theirs in zip(found, expected_scores(run), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_half_precision_is_near(run, tmp_path):
    (tmp_path / "plan.json").write_text(run.model_copy(update={"dtype": "bfloat16"}).model_dump_json())
    assert main([str(tmp_path / "plan.json"), str(tmp_path)]) == 0
    found = read_json(tmp_path / SCORES_NAME)["scores"]
    for mine, theirs in zip(found, expected_scores(run), strict=True):
        assert mine == pytest.approx(theirs, abs=0.3)
        assert mine != pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED")], ids=str
)
def test_a_base_that_does_not_fit_names_the_setting(run, tmp_path, monkeypatch, error):
    def full(*_):
        raise error

    monkeypatch.setattr(worker.score, "load", full)
    (tmp_path / "plan.json").write_text(run.model_dump_json())
    assert main([str(tmp_path / "plan.json"), str(tmp_path)]) == EXIT_FAILED
    error = read_json(tmp_path / "error.json")
    assert (error["code"], "MENS_PARITY=shift" in error["remedy"]) == ("OUT_OF_MEMORY", True)


def test_a_composite_model_s_adapter_names_its_layers_as_the_files_do(tmp_path):
    """`model.language_model.layers…` in the files, `model.layers…` in the class: the adapter must not be passed over."""
    base, cpu = save(RAW["qwen3_5"], tmp_path / "base"), torch.device("cpu")
    model = with_effect(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    model.save_pretrained(tmp_path / "adapter")
    weights = renamed(load_file(tmp_path / "adapter" / WEIGHTS_NAME), "model", COMPOSITE_NAMESPACE)
    assert any(f".{COMPOSITE_NAMESPACE}." in name for name in weights)
    save_file(weights, tmp_path / "adapter" / WEIGHTS_NAME)
    probes = [{"token_ids": [5, 9, 30, 40, 80], "positions": [1, 2, 3, 4]}]
    loaded = load(base, tmp_path / "adapter", torch.float32, cpu)
    expected = score_probes(model, probes, cpu)
    assert score_probes(loaded, probes, cpu)[0] == pytest.approx(expected[0], abs=1e-5)
    with loaded.disable_adapter():
        assert score_probes(loaded, probes, cpu)[0] != pytest.approx(expected[0], abs=1e-2)


def test_an_adapter_of_other_layers_is_not_passed_over(run, tmp_path):
    shutil.copytree(run.adapter, tmp_path / "adapter")
    weights = load_file(tmp_path / "adapter" / WEIGHTS_NAME)
    save_file(
        {name.replace(".layers.", ".strata."): one for name, one in weights.items()},
        tmp_path / "adapter" / WEIGHTS_NAME,
    )
    with pytest.raises(ArtifactInvalid) as refused:
        load(Path(run.base), tmp_path / "adapter", torch.float32, torch.device("cpu"))
    assert refused.value.code == Code.ADAPTER_SHAPE_MISMATCH
