"""The original's sidecars: both versions are converted to each other and back, and every missing field is named."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.artifacts.original_layout import (
    MAX_SIDECAR_BYTES,
    SidecarV2,
    SidecarV3,
    base_key_map,
    logical_name,
    mapped_layers,
    parse_sidecar,
    tensor_pairs,
    to_v2,
    to_v3,
)
from shared.errors import ArtifactInvalid, Code

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
POSITIVE = st.integers(1, 100_000)


@st.composite
def sidecars(draw: st.DrawFn, version: int) -> dict[str, Any]:
    """A sidecar's content, with an lm_head."""
    keys = draw(st.dictionaries(NAMES, NAMES, max_size=6)) | {"lm_head": draw(NAMES)}
    content = {
        "base_key_map": keys,
        "layer_order": draw(st.permutations(sorted(keys))),
        "base_model": draw(st.none() | NAMES),
        **{name: draw(POSITIVE) for name in ("vocab", "d_model", "rank")},
        "alpha": draw(st.integers(1, 1000)),
        "version": version,
    }
    if version == 2:
        return content | {"format": "vox_mens_qlora_lora_only_v2", "embed_key": keys["lm_head"]}
    provenance = st.none() | st.fixed_dictionaries({"base_family": NAMES, "attribution_required": st.booleans()})
    return content | {
        "format": draw(st.sampled_from(["vox_mens_adapter", "vox_populi_adapter"])),
        "adapter_method": draw(st.sampled_from(["lora", "qlora"])),
        "quant": {"base_quant": draw(st.sampled_from(["none", "nf4"])), "double_quant": draw(st.booleans())},
        "provenance": draw(provenance),
    }


@settings(max_examples=25)
@given(st.one_of(sidecars(2), sidecars(3)))
def test_what_is_written_is_read_again(content: dict[str, Any]) -> None:
    once = parse_sidecar(json.dumps(content).encode())
    assert parse_sidecar(once.model_dump_json().encode()) == once
    assert isinstance(once, SidecarV2 if content["version"] == 2 else SidecarV3)


@settings(max_examples=25)
@given(sidecars(2))
def test_version_2_survives_version_3(content: dict[str, Any]) -> None:
    sidecar = parse_sidecar(json.dumps(content).encode())
    newer = to_v3(sidecar)
    assert (newer.adapter_method, newer.quant.base_quant, newer.quant.double_quant) == ("qlora", "nf4", True)
    assert newer.provenance is None
    assert to_v2(newer) == sidecar
    assert to_v3(newer) is newer


@settings(max_examples=25)
@given(sidecars(3))
def test_version_3_survives_version_2_but_for_what_that_cannot_say(content: dict[str, Any]) -> None:
    sidecar = parse_sidecar(json.dumps(content).encode())
    assert isinstance(sidecar, SidecarV3)
    back = to_v3(to_v2(sidecar))
    lost = {"format": back.format, "adapter_method": "qlora", "quant": back.quant, "provenance": None}
    assert back == sidecar.model_copy(update=lost)
    # Version 3 keeps both, which its own round trip must show.
    again = parse_sidecar(sidecar.model_dump_json().encode())
    assert isinstance(again, SidecarV3)
    assert (again.quant.double_quant, again.provenance) == (content["quant"]["double_quant"], sidecar.provenance)


def valid(version: int = 2, **changes: Any) -> dict[str, Any]:
    content = {
        "version": version, "vocab": 9, "d_model": 4, "rank": 2, "alpha": 4, "layer_order": ["mid0", "lm_head"],
        "base_key_map": {"mid0": "a.weight", "lm_head": "b.weight"},
    }  # fmt: skip
    if version == 2:
        content |= {"format": "vox_mens_qlora_lora_only_v2", "embed_key": "b.weight"}
    else:
        content |= {"format": "vox_mens_adapter", "adapter_method": "qlora", "quant": {"base_quant": "nf4"}}
    return content | changes


MALFORMED = {
    "a list": ([], "the top level"),
    "another version": (valid() | {"version": 4}, "version"),
    "a version that is not a number": (valid() | {"version": [2]}, "version"),
    "another format": (valid() | {"format": "other"}, "format"),
    "rank 0": (valid(rank=0), "rank"),
    "a layer twice": (valid(layer_order=["mid0", "mid0"]), "the top level"),
    "quantisation at the top": (valid(3, quant="nf4"), "quant"),
    "no embed_key": ({k: v for k, v in valid().items() if k != "embed_key"}, "embed_key"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_a_sidecar_is_refused(name: str) -> None:
    content, where = MALFORMED[name]
    with pytest.raises(ArtifactInvalid) as refused:
        parse_sidecar(json.dumps(content).encode())
    assert (refused.value.code, refused.value.param) == (Code.ADAPTER_IMPORT_FORMAT, where)


@pytest.mark.parametrize("raw", [b"\xff\x00", b"[" * 100_000, b" " * MAX_SIDECAR_BYTES + b"{}"])
def test_bytes_that_are_not_json_are_refused(raw: bytes) -> None:
    with pytest.raises(ArtifactInvalid) as refused:
        parse_sidecar(raw)
    assert refused.value.code == Code.ADAPTER_IMPORT_FORMAT


def test_version_2_needs_the_heads_place() -> None:
    sidecar = parse_sidecar(json.dumps(valid(3, base_key_map={"mid0": "a.weight"}, layer_order=["mid0"])).encode())
    with pytest.raises(ArtifactInvalid) as refused:
        to_v2(sidecar)
    assert (refused.value.code, refused.value.param) == (Code.ADAPTER_IMPORT_INCOMPLETE, "lm_head")


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_tensors_are_found_with_and_without_their_suffix(suffix: str) -> None:
    stored = [f"l0.q.lora_{side}{suffix}" for side in "ab"]
    assert tensor_pairs(["l0.q"], stored) == {"l0.q": tuple(stored)}


@pytest.mark.parametrize(
    ("stored", "param"),
    [(["l0.q.lora_a"], "l0.q"), ([], "l0.q"), (["l0.q.lora_a", "l0.q.lora_b", "l1.q.lora_a"], "l1.q.lora_a")],
)
def test_a_gap_in_the_tensors_is_named(stored: list[str], param: str) -> None:
    with pytest.raises(ArtifactInvalid) as refused:
        tensor_pairs(["l0.q"], stored)
    assert (refused.value.code, refused.value.param) == (Code.ADAPTER_IMPORT_INCOMPLETE, param)


@pytest.mark.parametrize("keys", [{"lm_head": "b.weight"}, {"mid0": "b.weight", "lm_head": "b.weight"}])
def test_a_layer_without_a_place_of_its_own_is_named(keys: dict[str, str]) -> None:
    with pytest.raises(ArtifactInvalid) as refused:
        mapped_layers(parse_sidecar(json.dumps(valid(base_key_map=keys)).encode()))
    assert refused.value.code == Code.ADAPTER_IMPORT_INCOMPLETE
    assert refused.value.param in {"mid0", "lm_head"}


def test_fields_that_nothing_reads_are_known() -> None:
    assert parse_sidecar(json.dumps(valid(note="x")).encode()).unused == ["note"]


def test_a_sidecar_of_the_largest_size_is_mapped_at_once() -> None:
    """A layer compared with all before it would keep a worker for many minutes."""
    layers = {f"l{number}": f"w{number}" for number in range(20_000)}
    sidecar = parse_sidecar(json.dumps(valid(base_key_map=layers, layer_order=[*layers])).encode())
    began = time.process_time()
    assert len(mapped_layers(sidecar)) == 20_000
    assert time.process_time() - began < 5


def test_names_are_short_enough_for_an_error() -> None:
    with pytest.raises(ArtifactInvalid) as caught:
        parse_sidecar(json.dumps(valid(layer_order=["l" * 201])).encode())
    assert caught.value.code == Code.ADAPTER_IMPORT_FORMAT


def test_logical_names_of_layers() -> None:
    names = {
        "model.layers.3.self_attn.q_proj": "l3.q",
        "model.layers.11.mlp.down_proj": "l11.down",
        "model.language_model.layers.0.linear_attn.in_proj_qkv": "l0.lin_qkv",
        "model.language_model.layers.0.linear_attn.out_proj": "l0.lin_o",
        "transformer.h.2.attn.c_attn": "l2.qkv",
        "transformer.h.2.attn.c_proj": "l2.o",
        "transformer.h.2.mlp.c_proj": "l2.down",
        "h.2.mlp.c_fc": "l2.up",
        "lm_head": "lm_head",
    }
    assert {module: logical_name(module) for module in names} == names


def test_layers_are_in_the_order_of_their_numbers() -> None:
    keys = [f"base_model.model.model.layers.{n}.mlp.up_proj.lora_{side}.weight" for n in (10, 2, 1) for side in "AB"]
    assert list(base_key_map(keys)) == ["l1.up", "l2.up", "l10.up"]
