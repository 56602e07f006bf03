"""A PEFT folder, imported, computes what PEFT computes with the folder itself."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from shared.artifacts.adapter_import import import_adapter, parse_description
from shared.artifacts.imported_folder import ImportRequest
from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME
from worker.score import load

PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
OPTIONS = {
    "plain": PLAIN,
    "rslora": PLAIN | {"use_rslora": True},
    "patterns": PLAIN
    | {
        "target_modules": r".*\.(q|k|v|o|up)_proj",
        "rank_pattern": {"k_proj": 2, r"layers\.1\.mlp\.up_proj": 5, "^model.layers.2.*q_proj": 3},
        "alpha_pattern": {"v_proj": 3, r"layers\.0\..*\.o_proj": 9},
    },
    "some layers": PLAIN | {"layers_to_transform": [1, 2]},
    "all but one": PLAIN | {"target_modules": "all-linear", "exclude_modules": ["v_proj"]},
}


@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_logits_are_those_of_peft(tiny, tmp_path, name):
    options = LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, **OPTIONS[name])
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32), options)
    torch.manual_seed(0)
    for parameter_name, parameter in theirs.named_parameters():
        if ".lora_" in parameter_name:
            parameter.normal_(std=0.1)
    folder = tmp_path / "theirs"
    theirs.save_pretrained(folder)
    description = parse_description((folder / CONFIG_NAME).read_bytes())
    request = ImportRequest(
        folder / WEIGHTS_NAME, description, tiny.entry, tiny.base, "t", "0" * 64, "0" * 64, "0" * 64
    )
    import_adapter(request, tmp_path / "ours")
    ids = torch.arange(5, 45)[None]
    plain = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    base = plain(input_ids=ids).logits
    # From its own file, so that what PEFT reads is compared, and not what it had in memory.
    expected = PeftModel.from_pretrained(plain, folder).eval()(input_ids=ids).logits
    found = load(tiny.base, tmp_path / "ours", torch.float32, torch.device("cpu")).eval()(input_ids=ids).logits
    assert (expected - base).abs().max() > 0.1
    assert (found - expected).abs().max() < 1e-4
