"""The v3 adapter: files that verify, names that can be mapped to the base, and bytes that depend only on the run."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file

from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    parse_manifest,
    peft_keys,
    verify_adapter,
    verify_base,
)
from shared.artifacts.original_layout import base_key_map
from shared.base_models.weights import read_folder_tensors, read_tensors
from shared.contract.sections import QuantSection
from shared.hashing import digest_file
from worker.training.adapter import save_adapter
from worker.training.model.load import attach_lora, load_base

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tuned(tiny, tmp_path_factory):
    plan = tiny.plan_run(tmp_path_factory.mktemp("adapter")).plan
    return plan, attach_lora(load_base(tiny.base, QuantSection(), CPU), plan.contract.adapter, seed=3)


def test_folder_verifies_against_its_manifest_and_its_base(finished, tiny):
    folder = finished.run_dir / "adapter"
    raw = (folder / MANIFEST_NAME).read_bytes()
    manifest = parse_manifest(raw, hashlib.sha256(raw).hexdigest())
    verify_adapter(folder, manifest, read_folder_tensors(tiny.base))
    verify_base(manifest, tiny.entry.digests)
    assert manifest.files == {name: digest_file(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME)}


def test_manifest_says_what_was_trained(finished, tiny, tokenizer):
    folder = finished.run_dir / "adapter"
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    plan = finished.run.plan
    assert manifest["format"] == "vox_mens_adapter"
    assert manifest["version"] == 3
    assert manifest["adapter_method"] == "qlora"
    assert manifest["quant"] == {"base_quant": "nf4", "double_quant": True}
    assert (manifest["rank"], manifest["alpha"], manifest["step"]) == (4, 8, 12)
    assert (manifest["vocab"], manifest["d_model"]) == (2048, 128)
    assert (manifest["name"], manifest["base_model"]) == ("tiny", tiny.entry.name)
    assert manifest["base_digests"] == tiny.entry.digests
    assert manifest["contract_digest"] == plan.contract_digest
    assert manifest["template_digest"] == hashlib.sha256(tokenizer.chat_template.encode()).hexdigest()
    assert manifest["source_digests"] == {"train": plan.train.sha256, "validation": plan.validation.sha256}
    provenance = {"base_family": "qwen3", "license_class": "apache-2.0", "attribution_required": False}
    assert manifest["provenance"] == provenance


def test_weights_are_fp32_and_named_as_peft_names_them(finished):
    tensors = read_tensors(finished.run_dir / "adapter" / WEIGHTS_NAME)
    assert {info.dtype for info in tensors.values()} == {"F32"}
    assert len(tensors) == 4 * 7 * 2
    assert tensors["base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"].shape == (4, 128)
    assert tensors["base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"].shape == (64, 4)


def test_trained_b_is_not_zero(finished):
    tensors = load_file(finished.run_dir / "adapter" / WEIGHTS_NAME)
    assert all(tensor.any() for tensor in tensors.values())


def test_config_is_peft_s_and_free_of_paths(finished, tiny):
    raw = (finished.run_dir / "adapter" / CONFIG_NAME).read_text()
    config = json.loads(raw)
    assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"]) == ("LORA", "CAUSAL_LM", 4, 8)
    assert config["base_model_name_or_path"] == tiny.entry.name
    assert config["inference_mode"] is True
    assert config["target_modules"] == sorted(config["target_modules"])
    assert "/" not in raw


def test_peft_itself_loads_the_folder(finished, tiny):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    ids = torch.arange(300, 320).reshape(1, 20)
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, finished.run_dir / "adapter")(ids).logits
    assert (before - after).abs().max() > 0.1


def test_base_key_map_leads_to_the_base_and_to_peft(finished, tiny_base):
    keys = list(read_tensors(finished.run_dir / "adapter" / WEIGHTS_NAME))
    mapped = base_key_map(keys)
    assert mapped["l0.q"] == "model.layers.0.self_attn.q_proj.weight"
    assert set(mapped.values()) <= read_folder_tensors(tiny_base).keys()
    assert sorted(key for base_key in mapped.values() for key in peft_keys(base_key)) == sorted(keys)
    assert [name.partition(".")[0] for name in mapped] == [f"l{n}" for n in range(4) for _ in range(7)]


def test_digest_depends_on_nothing_but_weights_and_plan(tuned, tokenizer, tmp_path, tiny):
    plan, model = tuned
    one = save_adapter(model, tokenizer, plan, 5, tmp_path / "one", tiny.base)
    other = save_adapter(model, tokenizer, plan, 5, tmp_path / "a" / "longer" / "path", tiny.base)
    assert one.adapter_id == other.adapter_id == f"tiny@{one.digest}"
    assert one.digest == digest_file(tmp_path / "one" / MANIFEST_NAME)
    assert save_adapter(model, tokenizer, plan, 6, tmp_path / "later", tiny.base).digest != one.digest


def test_a_plan_that_went_through_json_gives_the_same_digest(tuned, tokenizer, tmp_path, tiny):
    plan, model = tuned
    again = type(plan).model_validate_json(plan.model_dump_json())
    assert again == plan
    folders = [(one, tmp_path / str(number)) for number, one in enumerate((plan, again))]
    digests = [save_adapter(model, tokenizer, one, 5, folder, tiny.base).digest for one, folder in folders]
    assert digests[0] == digests[1]
