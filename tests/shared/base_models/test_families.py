"""Every family has a complete, consistent spec, and a tiny model in the tests that compare it with transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from shared.base_models.config import ModelConfig, parse_model_config
from shared.base_models.families import (
    EMBEDDING_KEYS,
    FAMILY_OF_MODEL_TYPE,
    FULL,
    HEAD_FAMILIES,
    LINEAR,
    LORA_FAMILIES,
    SPECS,
    TINY_FAMILIES,
    Family,
    FamilySpec,
    Size,
    is_transposed,
)
from shared.base_models.tensors import expected_tensors, linear_layers
from tests.support.tiny_models import RAW

SIZES = set(get_args(Size))


def sizes_of(spec: FamilySpec) -> Iterator[str | int]:
    """Every size that the spec's shapes name."""
    for mixer in spec.mixers.values():
        yield from (size for pair in mixer.linears.values() for size in pair)
        yield from (size for shape in mixer.others.values() for size in shape)
    yield from (size for pair in spec.mlp.values() for size in pair)
    yield from (size for shape in (*spec.outer.values(), *spec.norms.values()) for size in shape)


def configs(family: Family) -> list[ModelConfig]:
    found = [parse_model_config(raw) for raw in RAW.values()]
    return [config for config in found if config.family is family]


def test_every_family_has_a_spec() -> None:
    assert list(SPECS) == list(Family)


@pytest.mark.parametrize("family", Family)
def test_spec_is_complete(family: Family) -> None:
    spec = SPECS[family]
    assert spec.model_types[0] == family
    assert FULL in spec.mixers
    assert set(spec.mixers) <= {FULL, LINEAR}
    assert set(spec.activations) == set(spec.fused_activations) == {2, 4}
    assert spec.embedding in spec.outer
    assert set(sizes_of(spec)) <= SIZES | {1}
    assert spec.lora or not spec.lora_head
    for mixer in spec.mixers.values():
        assert mixer.output in mixer.linears
        assert mixer.biased <= set(mixer.linears)


@pytest.mark.parametrize("model_type", FAMILY_OF_MODEL_TYPE)
def test_every_model_type_has_a_tiny_model(model_type: str) -> None:
    """Without one the comparison with transformers and PEFT would leave it out."""
    assert model_type in {raw["model_type"] for raw in RAW.values()}


@pytest.mark.parametrize("family", Family)
def test_sizes_of_the_spec_are_known_to_the_config(family: Family) -> None:
    for config in configs(family):
        assert set(sizes_of(config.spec)) <= config.sizes.keys() | {1}


def test_model_types_are_not_shared() -> None:
    assert len(FAMILY_OF_MODEL_TYPE) == sum(len(spec.model_types) for spec in SPECS.values())


def test_families_whose_vllm_class_supports_adapters() -> None:
    assert set(Family) - LORA_FAMILIES == {Family.GPT2}
    assert {Family.QWEN3, Family.QWEN3_5, Family.LLAMA} == HEAD_FAMILIES


def test_embedding_keys_are_in_their_order() -> None:
    assert EMBEDDING_KEYS == (
        "wte.weight",
        "transformer.wte.weight",
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
    )


def test_only_linear_layers_of_transposed_families_are_transposed() -> None:
    for raw in RAW.values():
        config = parse_model_config(raw)
        linears = {re.sub(r"^.*?(layers|h)\.", r"\1.", f"{name}.weight") for name in linear_layers(config)}
        for name in expected_tensors(config):
            linear = re.sub(r"^.*?(layers|h)\.", r"\1.", name) in linears
            assert is_transposed(name) == (linear and config.spec.transposed), name


def test_tiny_bases() -> None:
    """Whatever can be served can be tried without a download."""
    assert set(TINY_FAMILIES) == LORA_FAMILIES


def test_readme_names_the_families_that_a_test_tunes_and_serves() -> None:
    """`tests/system/test_base_families.py` builds, tunes, certifies and serves a base of each."""
    root = Path(__file__).resolve().parents[3]
    named = re.search(r"base models ([^;]+);", (root / "README.md").read_text())
    assert named
    bases = re.findall(
        r'^    "([a-z0-9.]+)": Base\(', (root / "tests/system/test_base_families.py").read_text(), re.MULTILINE
    )
    assert {name.lower() for name in re.split(", | and ", named[1])} == set(bases)
    assert {name.replace(".", "_") for name in bases} - {"qwen2_5"} == LORA_FAMILIES
