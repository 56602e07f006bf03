"""Every family that can be tuned, as transformers itself builds and saves it: tiny, random, on the CPU.

The tests check that each LoRA parameter learns, that an adapter names its layers as the base's files do, and that a
merged model answers as base and adapter do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from shared.artifacts.manifests import WEIGHTS_NAME, AdapterManifest, verify_adapter
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.base_models.weights import read_folder_tensors
from shared.contract.plan import plan_finetune
from shared.contract.sections import AdapterSection, QuantSection
from tests.support.builders import contract, data_file
from tests.support.tiny_base import write_base
from tests.support.tiny_models import RAW, save
from worker.merging.model_folder import FolderMerge
from worker.training.adapter import save_adapter
from worker.training.model.load import attach_lora, load_base, load_tokenizer

CPU = torch.device("cpu")
WINDOW = 8
FAMILIES: dict[str, dict[str, Any]] = {
    name: RAW[name]
    for name in ("qwen2", "qwen3", "qwen3-tied", "llama-bias", "mistral", "gpt2", "qwen3_5_text", "qwen3_5")
} | {"mistral-window": RAW["mistral"] | {"sliding_window": WINDOW}}
LAYERS = {
    "gpt2": "base_model.model.transformer.h.",
    "gpt2-bare": "base_model.model.h.",
    "qwen3_5": "base_model.model.model.language_model.layers.",
}
"""How an adapter's tensors begin where it is not ``base_model.model.model.layers.``."""
NAMES = [*FAMILIES, "gpt2-bare"]


def write_bare_gpt2(folder: Path) -> Path:
    """GPT-2 as its authors published it: no ``transformer.`` before the names."""
    save(RAW["gpt2"], folder)
    path = folder / "model.safetensors"
    weights = {key.removeprefix("transformer."): value.clone() for key, value in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    return folder


class Tuned:
    """A family's base on disk, with a random adapter on its NF4 form, and the adapter's folder."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(0)
        self.base = folder / "base"
        if name == "gpt2-bare":
            write_bare_gpt2(self.base)
        else:
            save(FAMILIES[name], self.base)
        self.model = attach_lora(load_base(self.base, QuantSection(), CPU), AdapterSection(rank=4), 0)
        with torch.no_grad():
            for key, parameter in self.model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(std=0.05)
        self.ids = torch.randint(3, 90, (2, 3 * WINDOW))
        self.folder = folder / "adapter"
        self.manifest = self._save(folder)

    def _save(self, folder: Path) -> AdapterManifest:
        digests = digest_model_folder(self.base)
        entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(self.base)), digests=digests)
        plan = plan_finetune(contract(adapter={"rank": 4}), entry, data_file(), None, "demo")
        tokenizer = load_tokenizer(write_base(folder / "tokenizer"))
        return save_adapter(self.model, tokenizer, plan, 1, self.folder, self.base)

    def full_precision(self) -> Any:
        """The base in fp32, its quantised layers with the dequantised weights."""
        model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        modules = dict(model.named_modules())
        for name, layer in self.model.get_base_model().named_modules():
            if isinstance(layer, Linear4bit):
                target = modules[name.removesuffix(".base_layer")]
                weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
                target.weight.data = weight.T.contiguous() if type(target).__name__ == "Conv1D" else weight
        return model

    def logits(self, model: Any) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model.eval()(input_ids=self.ids, use_cache=False).logits
        return logits


@pytest.fixture(scope="module", params=NAMES)
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tuned]:
    return request.param, Tuned(request.param, tmp_path_factory.mktemp("family"))


def test_every_lora_parameter_gets_a_finite_gradient(tuned: tuple[str, Tuned]) -> None:
    _, made = tuned
    made.model.train()
    made.model(input_ids=made.ids, labels=made.ids, use_cache=False).loss.backward()
    gradients = {name: value.grad for name, value in made.model.named_parameters() if value.requires_grad}
    assert gradients
    assert all(grad is not None and grad.isfinite().all() and grad.abs().max() > 0 for grad in gradients.values())


# Fails for a sliding window while the attention's ordinary path forgets it, and for Conv1D while NF4 lies the wrong way.
def test_nf4_computes_what_its_dequantised_weights_do(tuned: tuple[str, Tuned]) -> None:
    _, made = tuned
    with made.model.disable_adapter():
        quantised = made.logits(made.model)
    torch.testing.assert_close(quantised, made.logits(made.full_precision()), atol=1e-4, rtol=1e-4)


# Fails for a composite base while an adapter has the text-only class's names: the server would load it and change nothing.
def test_adapter_fits_the_tensors_of_its_base(tuned: tuple[str, Tuned]) -> None:
    name, made = tuned
    verify_adapter(made.folder, made.manifest, read_folder_tensors(made.base))
    keys = load_file(made.folder / WEIGHTS_NAME).keys()
    assert all(key.startswith(LAYERS.get(name, "base_model.model.model.layers.")) for key in keys)
    assert len(keys) == len(get_peft_model_state_dict(made.model))


# Fails while peft drops, with a warning, an adapter whose names are not the model's.
def test_merged_model_answers_as_base_and_adapter_do(tuned: tuple[str, Tuned], tmp_path: Path) -> None:
    _, made = tuned
    FolderMerge(made.base, made.folder, made.manifest, tmp_path / "model", "float32").run("")
    plain = AutoModelForCausalLM.from_pretrained(made.base, dtype=torch.float32)
    base = made.logits(plain)
    made.model.save_pretrained(tmp_path / "peft")
    expected = made.logits(PeftModel.from_pretrained(plain, tmp_path / "peft"))
    merged = made.logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32))
    torch.testing.assert_close(merged, expected, atol=1e-4, rtol=1e-4)
    assert (merged - base).abs().max() > 0.05
    assert read_folder_tensors(tmp_path / "model").keys() == read_folder_tensors(made.base).keys(), (
        "a vision tower stays"
    )
