"""Tensor names and shapes derived from a config equal those of the models that transformers builds from it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shared.base_models.config import MAX_LAYERS, parse_model_config
from shared.base_models.families import SPECS, Family
from shared.base_models.tensors import (
    default_namespace,
    detect_namespace,
    expected_tensors,
    linear_layers,
    lora_modules,
    middle_keys,
    parameter_count,
)
from shared.errors import ArtifactInvalid, Code
from tests.support.tiny_models import GPT2, HYBRID, RAW, SIZES, build

QWEN3 = RAW["qwen3"]


def refusal(raw: dict[str, Any]) -> tuple[Code, str | None]:
    with pytest.raises(ArtifactInvalid) as caught:
        parse_model_config(raw)
    return caught.value.code, caught.value.param


def real_config(name: str) -> dict[str, Any]:
    """The config.json that transformers writes for a tiny model."""
    config: dict[str, Any] = build(RAW[name]).config.to_dict()
    return config


@pytest.mark.torch
@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("written", [False, True], ids=["as-given", "as-written"])
def test_tensors_are_those_that_transformers_builds(name: str, written: bool) -> None:
    model = build(RAW[name])
    config = parse_model_config(real_config(name) if written else RAW[name])
    real = {key: tuple(value.shape) for key, value in model.state_dict().items() if ".visual." not in key}
    if config.tied:
        real.pop("lm_head.weight")
    assert expected_tensors(config) == real
    assert detect_namespace(config, real) == default_namespace(config)
    assert set(middle_keys(config, default_namespace(config))) <= real.keys()
    language = [p for key, p in model.named_parameters() if ".visual." not in key]
    assert parameter_count(expected_tensors(config)) == sum(p.numel() for p in language)


@pytest.mark.torch
@pytest.mark.parametrize("family", [spec.model_types[-1] for spec in SPECS.values()])
def test_defaults_of_absent_keys_are_those_of_transformers(family: str) -> None:
    from transformers import AutoConfig

    kept = {"model_type": family, "hidden_size": 4096, "num_hidden_layers": 5, "num_attention_heads": 32}
    kept |= {"vocab_size": 96, "intermediate_size": 112}
    if family == "gpt2":
        kept = {"model_type": "gpt2", "n_embd": 64, "n_layer": 5, "n_head": 4, "vocab_size": 96}
    assert expected_tensors(parse_model_config(kept)) == expected_tensors(
        parse_model_config(AutoConfig.for_model(**kept).to_dict())
    )


@pytest.mark.torch
@pytest.mark.parametrize("name", RAW)
def test_lora_targets_are_those_that_peft_finds(name: str) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    config = parse_model_config(RAW[name])
    raw = RAW[name]
    model = AutoModelForCausalLM.from_config(Qwen3_5TextConfig(**HYBRID)) if "text_config" in raw else build(raw)
    lora = LoraConfig(
        r=2, target_modules="all-linear", task_type="CAUSAL_LM", fan_in_fan_out=config.family is Family.GPT2
    )
    tuned = get_peft_model(model, lora)
    real = {
        module.removeprefix("base_model.model."): (layer.in_features, layer.out_features)
        for module, layer in tuned.named_modules()
        if hasattr(layer, "lora_A")
    }
    assert linear_layers(config) == real


def test_hybrid_config_without_layer_types_has_every_fourth_layer_full() -> None:
    config = parse_model_config(RAW["qwen3_5_text"])
    assert config.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert parse_model_config(RAW["qwen3_5_text"] | {"full_attention_interval": 2}).layer_types[1] == "full_attention"


def test_composite_config_reads_its_language_part() -> None:
    config = parse_model_config(RAW["qwen3_5"])
    assert (config.composite, config.family, config.hidden) == (True, Family.QWEN3_5, 64)
    assert default_namespace(config) == "model.language_model"
    assert "lm_head.weight" in expected_tensors(config)
    assert next(iter(linear_layers(config))).startswith("model.layers.0.")


def test_composite_tie_flag_may_stand_outside() -> None:
    raw = RAW["qwen3_5"] | {"tie_word_embeddings": True}
    assert parse_model_config(raw).tied


def test_text_only_weights_under_a_composite_config_are_found() -> None:
    config = parse_model_config(RAW["qwen3_5"])
    names = expected_tensors(config, "model")
    assert detect_namespace(config, names) == "model"
    assert detect_namespace(config, ["nothing"]) == "model.language_model"


def test_gpt2_of_the_hub_has_no_prefix() -> None:
    config = parse_model_config(RAW["gpt2"])
    names = expected_tensors(config, "")
    assert "h.0.attn.c_proj.weight" in names
    assert names["h.0.attn.c_attn.weight"] == (64, 192)
    assert detect_namespace(config, names) == ""


def test_lora_modules_match_as_peft_does() -> None:
    config = parse_model_config(QWEN3)
    assert len(lora_modules(config, ["q_proj", "v_proj"])) == 8
    assert list(lora_modules(config, ["model.layers.1.mlp.up_proj"])) == ["model.layers.1.mlp.up_proj"]
    assert lora_modules(config, ["proj"]) == {}
    assert lora_modules(config, ["lm_head"]) == {"lm_head": (64, 96)}


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "64", True, [], 1 << 40])
def test_broken_number_is_named(key: str, value: Any) -> None:
    raw = {**QWEN3, key: value}
    assert refusal(raw) == (Code.MODEL_CONFIG_INVALID, key)
    raw.pop(key)
    assert refusal(raw) == (Code.MODEL_CONFIG_INVALID, key)


@pytest.mark.parametrize(
    ("changes", "code", "key"),
    [
        ({"model_type": None}, Code.MODEL_CONFIG_INVALID, "model_type"),
        ({"model_type": "qwen3_moe"}, Code.MODEL_FAMILY_UNSUPPORTED, "model_type"),
        ({"model_type": "qwen2_vl"}, Code.MODEL_FAMILY_UNSUPPORTED, "model_type"),
        ({"num_hidden_layers": MAX_LAYERS + 1}, Code.MODEL_CONFIG_INVALID, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, Code.MODEL_CONFIG_INVALID, "num_key_value_heads"),
        ({"tie_word_embeddings": "yes"}, Code.MODEL_CONFIG_INVALID, "tie_word_embeddings"),
        ({"quantization_config": {"quant_method": "gptq"}}, Code.MODEL_CONFIG_INVALID, "quantization_config"),
        ({"layer_types": ["linear_attention"] * 4}, Code.LAYER_TYPES_INVALID, "layer_types"),
        ({"layer_types": 7}, Code.LAYER_TYPES_INVALID, "layer_types"),
    ],
)
def test_broken_config_is_named(changes: dict[str, Any], code: Code, key: str) -> None:
    assert refusal(QWEN3 | changes) == (code, key)


@pytest.mark.parametrize(
    "kinds", [["full_attention"] * 3, ["full_attention"] * 5, ["sliding_attention"] * 4, "full_attention", [None] * 4]
)
def test_hybrid_layer_types_are_checked(kinds: Any) -> None:
    assert refusal(RAW["qwen3_5_text"] | {"layer_types": kinds}) == (Code.LAYER_TYPES_INVALID, "layer_types")


def test_hybrid_head_counts_must_divide() -> None:
    raw = RAW["qwen3_5_text"] | {"linear_num_value_heads": 3}
    assert refusal(raw) == (Code.MODEL_CONFIG_INVALID, "linear_num_value_heads")


def test_gpt2_faults_carry_its_own_key_names() -> None:
    raw: dict[str, Any] = {"model_type": "gpt2", **GPT2}
    assert refusal({key: value for key, value in raw.items() if key != "n_embd"})[1] == "n_embd"
    assert refusal(raw | {"n_head": 5})[1] == "n_head"


def test_head_dim_must_divide_when_it_is_not_stated() -> None:
    raw = copy.deepcopy(RAW["llama"]) | {"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 2}
    assert refusal(raw) == (Code.MODEL_CONFIG_INVALID, "num_attention_heads")
    assert parse_model_config(raw | {"hidden_size": 96}).head_dim == SIZES["hidden_size"] // 4
