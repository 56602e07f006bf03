"""An imported PEFT folder computes what PEFT computes with the folder itself; a folder that PEFT would load only in
part is refused.
"""

from __future__ import annotations

import json
from random import Random

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from shared.artifacts.adapter_import import import_adapter, parse_description
from shared.artifacts.imported_folder import ImportRequest
from shared.artifacts.manifests import CONFIG_NAME, WEIGHTS_NAME, peft_keys
from shared.errors import ArtifactInvalid
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


def take_in(tiny, folder, target):
    description = parse_description((folder / CONFIG_NAME).read_bytes())
    request = ImportRequest(
        folder / WEIGHTS_NAME, description, tiny.entry, tiny.base, "t", "0" * 64, "0" * 64, "0" * 64
    )
    return import_adapter(request, target)


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
    take_in(tiny, folder, tmp_path / "ours")
    ids = torch.arange(5, 45)[None]
    plain = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    base = plain(input_ids=ids).logits
    # From its own file, so that what PEFT reads is compared, and not what it had in memory.
    expected = PeftModel.from_pretrained(plain, folder).eval()(input_ids=ids).logits
    found = load(tiny.base, tmp_path / "ours", torch.float32, torch.device("cpu")).eval()(input_ids=ids).logits
    assert (expected - base).abs().max() > 0.1
    assert (found - expected).abs().max() < 1e-4


# --- differential test on generated folders

TARGETS = (
    ["q_proj", "down_proj"],
    ["self_attn.v_proj", "up_proj"],
    ["model.layers.0.self_attn.q_proj", "k_proj"],
    ["proj"],
    "all-linear",
    "ALL-linear",
    r".*\.(q|o|up)_proj",
    r"model\.layers\.[01]\.mlp\..*_proj",
)
CHOICES = {
    "exclude_modules": ([], ["q_proj"], "", r".*\.0\..*", ["mlp.up_proj", "model.layers.1.self_attn.q_proj"]),
    "layers_to_transform": (0, [1], [0, 1], [], [7]),
    "layers_pattern": ("layers", ["h", "layers"], [], "", "h|layers"),
    "rank_pattern": ({"q_proj": 2}, {r"layers\.1\..*_proj": 5, "up_proj": 3}, {"^model.layers.0.*o_proj": 1}),
    "alpha_pattern": ({"v_proj": 3}, {r"layers\.0\..*": 9.5}),
    "use_rslora": (True,),
}
WRAPPED = {
    "adapter": lambda name: name.replace(".weight", ".default.weight"),
    "other adapter": lambda name: name.replace(".weight", ".mine.weight"),
    "DDP": lambda name: f"module.{name}",
    "compile": lambda name: name.replace("base_model.model.", "base_model.model._orig_mod."),
    "FSDP": lambda name: name.replace("_proj.", "_proj._fsdp_wrapped_module."),
    "twice": lambda name: f"base_model.model.{name}",
}
READ_BY_PEFT = (None, "adapter")


def make_options(random):
    chosen = {name: random.choice(values) for name, values in CHOICES.items() if random.random() < 0.35}
    return {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": random.choice(TARGETS)} | chosen


def peft_model(tiny, options):
    """The base with random weights, and PEFT's own random pairs; None if PEFT refuses the options."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny.base))
    try:
        tuned = get_peft_model(
            model, LoraConfig(**{key: value for key, value in options.items() if key != "peft_type"})
        )
    except ValueError:
        return None
    for name, parameter in tuned.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_(std=0.1)
    return tuned


def deltas(model):
    """Update of each weight, scale times B A, by layer."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    return {name.removeprefix("base_model.model."): layer.get_delta_weight("default") for name, layer in layers.items()}


def damaged(random, tensors):
    """Tensors of which some are missing, or belong to no target."""
    module = random.choice(sorted(tensors)).partition(".lora_")[0]
    layer = ".".join(module.split(".")[:5]) + "."
    pair = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{module}.")}
    kind = random.choice(["tensor", "module", "layer", "more", "another layer"])
    if kind == "tensor":
        return {name: tensor for name, tensor in tensors.items() if name != min(pair)}
    if kind == "module":
        return {name: tensor for name, tensor in tensors.items() if name not in pair}
    if kind == "layer":
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(layer)}
    new = f"{layer}self_attn.another_proj" if kind == "more" else module.replace("layers.", "layers.9")
    return tensors | {name.replace(module, new): tensor.clone() for name, tensor in pair.items()}


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("seed", range(50))
@torch.no_grad()
def test_generated_folder_is_loaded_as_by_peft_or_refused(tiny, tmp_path, seed):
    random = Random(seed)
    torch.manual_seed(seed)
    options, change = make_options(random), random.choice([None, None, "damage", *WRAPPED])
    made = peft_model(tiny, options)
    source = made or peft_model(tiny, {"r": 4, "target_modules": ["q_proj"]})
    tensors = original = get_peft_model_state_dict(source)
    if change == "damage":
        tensors = damaged(random, original)
    elif change:
        tensors = {WRAPPED[change](name): tensor for name, tensor in original.items()}
    folder = tmp_path / "theirs"
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_NAME)
    (folder / CONFIG_NAME).write_text(json.dumps(options))
    is_complete = False
    if made:
        loaded = set_peft_model_state_dict(peft_model(tiny, options), load_file(folder / WEIGHTS_NAME))
        is_complete = not loaded.unexpected_keys and not any(".lora_" in key for key in loaded.missing_keys)
        assert is_complete is (change in READ_BY_PEFT)
    if not is_complete and not (made and change in WRAPPED):
        with pytest.raises(ArtifactInvalid):
            take_in(tiny, folder, tmp_path / "ours")
        return
    manifest = take_in(tiny, folder, tmp_path / "ours").manifest
    ours, scale, expected = load_file(tmp_path / "ours" / WEIGHTS_NAME), manifest.alpha / manifest.rank, deltas(made)
    assert {f"{module}.weight" for module in expected} == set(manifest.base_key_map.values())
    for module, delta in expected.items():
        a, b = (ours[name] for name in peft_keys(f"{module}.weight"))
        assert (b @ a * scale - delta).abs().max() < 1e-5
