"""The adapter manifest, and adapter folders that do not match it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file

from shared.artifacts.manifests import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    parse_manifest,
    peft_keys,
    verify_adapter,
    verify_base,
)
from shared.base_models.weights import TensorInfo
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file

RANK = 2
GOLDEN_DIGEST = "9cb929a6fe0aca747c0e79f010c9f4f957b7baac05630e4b7429153f865dd0d5"
BASE_TENSORS = {
    "model.layers.0.self_attn.q_proj.weight": TensorInfo("BF16", (6, 4)),
    "model.layers.0.mlp.up_proj.weight": TensorInfo("BF16", (8, 4)),
    "model.norm.weight": TensorInfo("BF16", (4,)),
}
KEYS = {"l0.q": "model.layers.0.self_attn.q_proj.weight", "l0.up": "model.layers.0.mlp.up_proj.weight"}
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "bias": "none", "use_dora": False, "rank_pattern": {}}
Arrays = dict[str, Any]


def fields(**changes: Any) -> dict[str, Any]:
    """A valid manifest's fields."""
    return {
        "adapter_method": "qlora",
        "quant": {"base_quant": "nf4"},
        "base_key_map": KEYS,
        "layer_order": list(KEYS),
        "vocab": 32,
        "d_model": 4,
        "rank": RANK,
        "alpha": 4,
        "base_model": "tiny",
        "name": "demo",
        "base_digests": {"config.json": "a" * 64, "model.safetensors": "b" * 64},
        "contract_digest": "c" * 64,
        "template_digest": "d" * 64,
        "step": 12,
        "files": {WEIGHTS_NAME: "e" * 64, CONFIG_NAME: "f" * 64},
    } | changes


def manifest(**changes: Any) -> AdapterManifest:
    return AdapterManifest.model_validate(fields(**changes))


def arrays() -> Arrays:
    """A and B of each adapted tensor."""
    made: Arrays = {}
    for key in KEYS.values():
        rows, columns = BASE_TENSORS[key].shape
        a, b = peft_keys(key)
        made[a], made[b] = np.ones((RANK, columns), np.float32), np.ones((rows, RANK), np.float32)
    return made


def adapter(
    folder: Path, tensors: Arrays | None = None, config: dict[str, Any] | bytes | None = None, **changes: Any
) -> AdapterManifest:
    """Write an adapter's files; the manifest names their true digests, whatever is in them."""
    save_file(arrays() if tensors is None else tensors, folder / WEIGHTS_NAME)
    raw = config if isinstance(config, bytes) else json.dumps(CONFIG if config is None else config).encode()
    (folder / CONFIG_NAME).write_bytes(raw)
    files = {name: digest_file(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME)}
    return manifest(**({"files": files} | changes))


def refusal(call: Callable[..., object], *args: Any) -> ArtifactInvalid:
    with pytest.raises(ArtifactInvalid) as caught:
        call(*args)
    return caught.value


PROVENANCE = {
    "base_family": "qwen",
    "upstream_model_id": "Org/Big",
    "license_class": "mit",
    "attribution_required": True,
}


@pytest.mark.parametrize(
    "change", [{}, {"quant": {"base_quant": "nf4", "double_quant": False}}, {"provenance": PROVENANCE}, {"step": 0}]
)
def test_parsed_bytes_give_the_same_manifest(change: dict[str, Any]) -> None:
    made = manifest(**change)
    copy = parse_manifest(made.to_bytes(), made.digest)
    assert copy == made
    assert copy.to_bytes() == made.to_bytes()


def test_nulls_are_left_out() -> None:
    assert b"null" not in manifest(provenance={"base_family": "qwen"}).to_bytes()
    assert "provenance" not in json.loads(manifest().to_bytes())


def test_v3_fields_keep_their_names() -> None:
    found = json.loads(manifest().to_bytes())
    assert (found["format"], found["version"]) == ("vox_mens_adapter", 3)
    assert found["quant"] == {"base_quant": "nf4", "double_quant": True}
    assert found["base_key_map"] == KEYS
    v3 = {"adapter_method", "layer_order", "vocab", "d_model", "rank", "alpha", "base_model"}
    assert v3 <= found.keys()


def test_golden_digest_and_id() -> None:
    made = manifest()
    assert made.digest == GOLDEN_DIGEST, "adapters are named by this digest: a change renames what is published"
    assert made.adapter_id == f"demo@{GOLDEN_DIGEST}"


@pytest.mark.parametrize("field", sorted(fields().keys() - {"base_key_map", "layer_order", "files", "quant"}))
def test_digest_changes_with_every_field(field: str) -> None:
    others: dict[type, Callable[[Any], Any]] = {
        int: lambda value: value + 1,
        dict: lambda value: value | {"more": "9" * 64},
        str: lambda value: "9" * 64 if len(value) == 64 else f"{value}-2",
    }
    value = fields()[field]
    changed = "lora" if field == "adapter_method" else others[type(value)](value)
    assert manifest(**{field: changed}).digest != manifest().digest


@pytest.mark.parametrize(
    "order",
    [[], ["l0.q"], ["l0.q", "l0.q"], ["l0.q", "l0.up", "l0.up"], ["l0.q", "l0.k"], ["l0.q", "l0.up", "l1.q"]],
)
def test_layer_order_must_list_every_layer_once(order: list[str]) -> None:
    with pytest.raises(ValidationError, match="layer_order"):
        manifest(layer_order=order)


def test_layer_order_may_be_any_order() -> None:
    assert manifest(layer_order=["l0.up", "l0.q"]).layer_order == ["l0.up", "l0.q"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "vox_populi_adapter"}, {"version": 2}, {"version": 4}, {"adapter_method": "dora"}, {"rank": 0},
        {"alpha": 0}, {"alpha": 4097}, {"vocab": 0}, {"d_model": 0}, {"step": -1}, {"name": "Up"}, {"name": "../up"}, {"extra": 1},
        {"base_digests": {}}, {"contract_digest": "C" * 64}, {"template_digest": "d" * 63}, {"base_model": None},
        {"base_key_map": {}, "layer_order": []}, {"quant": {"base_quant": "int8"}}, {"quant": {}},
        {"files": {WEIGHTS_NAME: "e" * 64}}, {"files": {CONFIG_NAME: "e" * 64}},
        {"files": dict.fromkeys((WEIGHTS_NAME, CONFIG_NAME, "tokenizer.json"), "e" * 64)},
    ],
    ids=str,
)  # fmt: skip
def test_bad_manifest_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        manifest(**change)
    error = refusal(parse_changed, change)
    assert error.code is Code.ADAPTER_MANIFEST_INVALID


def parse_changed(change: dict[str, Any]) -> AdapterManifest:
    """Parse the bytes of a manifest with these changes, under their true digest."""
    raw = json.dumps(fields(**change)).encode()
    return parse_manifest(raw, hashlib.sha256(raw).hexdigest())


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/passwd", "a/b", "..", ".", ".hidden", "", "a\\b", "a\n", "a\0b", "x" * 129, "a b", "ü"],
)
def test_file_name_with_a_path_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        manifest(files=fields()["files"] | {name: "0" * 64})


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 5000], ids=repr)
def test_bytes_that_are_not_a_manifest_are_refused(raw: bytes) -> None:
    assert refusal(parse_manifest, raw, hashlib.sha256(raw).hexdigest()).code is Code.ADAPTER_MANIFEST_INVALID


def test_one_changed_byte_is_refused() -> None:
    made = manifest()
    raw = made.to_bytes().replace(b'"step":12', b'"step":13')
    assert refusal(parse_manifest, raw, made.digest).code is Code.ADAPTER_DIGEST_MISMATCH


def test_other_bytes_of_the_same_manifest_are_refused() -> None:
    assert refusal(parse_changed, {}).code is Code.ADAPTER_MANIFEST_INVALID


def test_peft_keys() -> None:
    assert peft_keys("model.layers.0.q_proj.weight") == (
        "base_model.model.model.layers.0.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.q_proj.lora_B.weight",
    )


def test_valid_adapter_passes(tmp_path: Path) -> None:
    made = adapter(tmp_path)
    verify_adapter(tmp_path, made)
    verify_adapter(tmp_path, made, BASE_TENSORS)


@pytest.mark.parametrize("name", [WEIGHTS_NAME, CONFIG_NAME])
def test_tampered_file_is_named(tmp_path: Path, name: str) -> None:
    made = adapter(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    error = refusal(verify_adapter, tmp_path, made)
    assert (error.code, error.param) == (Code.ADAPTER_DIGEST_MISMATCH, name)


@pytest.mark.parametrize("name", [WEIGHTS_NAME, CONFIG_NAME])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    made = adapter(tmp_path)
    (tmp_path / name).unlink()
    error = refusal(verify_adapter, tmp_path, made)
    assert (error.code, error.param) == (Code.ADAPTER_DIGEST_MISMATCH, name)


def test_symlink_to_the_right_bytes_is_refused(tmp_path: Path) -> None:
    made = adapter(tmp_path)
    (tmp_path / WEIGHTS_NAME).rename(tmp_path / "moved")
    (tmp_path / WEIGHTS_NAME).symlink_to(tmp_path / "moved")
    assert refusal(verify_adapter, tmp_path, made).code is Code.ADAPTER_DIGEST_MISMATCH


def test_weights_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    made = adapter(tmp_path)
    (tmp_path / WEIGHTS_NAME).write_bytes(b"pickle")
    files = made.files | {WEIGHTS_NAME: digest_file(tmp_path / WEIGHTS_NAME)}
    assert refusal(verify_adapter, tmp_path, manifest(files=files)).code is Code.SAFETENSORS_INVALID


A, B = peft_keys(KEYS["l0.q"])


@pytest.mark.parametrize(
    ("change", "base"),
    [
        ({A: None}, None),
        ({"base_model.model.stranger.lora_A.weight": (RANK, 4)}, None),
        ({A: (RANK + 1, 4), B: (6, RANK + 1)}, None),
        ({A: (RANK, 4), B: (6, RANK + 1)}, None),
        ({A: (RANK * 4,)}, None),
        ({B: (6, RANK, 1)}, None),
        ({A: (RANK, 5)}, BASE_TENSORS),
        ({B: (7, RANK)}, BASE_TENSORS),
        ({A: (RANK, 6), B: (4, RANK)}, BASE_TENSORS),
        ({}, {key: info for key, info in BASE_TENSORS.items() if "q_proj" not in key}),
        ({}, {}),
    ],
    ids=[
        "no A", "stranger", "other rank", "A and B differ", "A flat", "B 3d", "in", "out", "transposed", "not in base",
        "empty base",
    ],
)  # fmt: skip
def test_wrong_shape_is_refused(
    tmp_path: Path, change: dict[str, tuple[int, ...] | None], base: dict[str, TensorInfo] | None
) -> None:
    tensors = arrays() | {key: None if shape is None else np.ones(shape, np.float32) for key, shape in change.items()}
    made = adapter(tmp_path, {key: array for key, array in tensors.items() if array is not None})
    error = refusal(verify_adapter, tmp_path, made, base)
    assert error.code is Code.ADAPTER_SHAPE_MISMATCH
    assert error.param


def test_manifest_of_another_rank_is_refused(tmp_path: Path) -> None:
    adapter(tmp_path)
    made = adapter(tmp_path, config=CONFIG | {"r": 4}, rank=4)
    assert refusal(verify_adapter, tmp_path, made).code is Code.ADAPTER_SHAPE_MISMATCH


@pytest.mark.parametrize(
    "change",
    [
        {"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}, {"rank_pattern": {"q_proj": 4}},
        {"alpha_pattern": {"q_proj": 4}}, {"fan_in_fan_out": True}, {"peft_type": "IA3"}, {"r": 3}, {"lora_alpha": 5},
    ],
    ids=str,
)  # fmt: skip
def test_config_that_vllm_cannot_serve_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    made = adapter(tmp_path, config=CONFIG | change)
    error = refusal(verify_adapter, tmp_path, made)
    assert error.code is Code.ADAPTER_NOT_SERVABLE
    assert [error.param] == list(change)


# Rank-stabilised LoRA scales by alpha / sqrt(r), which the manifest does not say. Fails while it is let through.
def test_rank_stabilised_scaling_is_refused(tmp_path: Path) -> None:
    made = adapter(tmp_path, config=CONFIG | {"use_rslora": True})
    assert refusal(verify_adapter, tmp_path, made).code is Code.ADAPTER_NOT_SERVABLE


@pytest.mark.parametrize("missing", ["peft_type", "r", "lora_alpha", "bias"])
def test_config_without_a_needed_key_is_refused(tmp_path: Path, missing: str) -> None:
    made = adapter(tmp_path, config={key: value for key, value in CONFIG.items() if key != missing})
    assert refusal(verify_adapter, tmp_path, made).param == missing


@pytest.mark.parametrize("raw", [b"{", b"[]", b"5", b"\xff", b" " * (1 << 20) + b"{}"], ids=lambda raw: repr(raw[:9]))
def test_config_that_is_not_an_object_is_refused(tmp_path: Path, raw: bytes) -> None:
    assert isinstance(refusal(verify_adapter, tmp_path, adapter(tmp_path, config=raw)), ArtifactInvalid)


def test_same_base_passes() -> None:
    verify_base(manifest(), dict(reversed(manifest().base_digests.items())))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"config.json": "0" * 64}, "config.json"), ({"added.json": "0" * 64}, "added.json")],
)
def test_other_base_is_refused(change: dict[str, str], named: str) -> None:
    error = refusal(verify_base, manifest(), manifest().base_digests | change)
    assert (error.code, error.param) == (Code.ADAPTER_BASE_MISMATCH, named)


def test_base_without_a_file_is_refused() -> None:
    error = refusal(verify_base, manifest(), {"config.json": "a" * 64})
    assert (error.code, error.param) == (Code.ADAPTER_BASE_MISMATCH, "model.safetensors")


def test_numbers_that_overflow_only_together_are_refused(tmp_path: Path) -> None:
    """Each is within its own limits; a real vLLM, given them, got NaN in the memory that all its requests share."""
    tensors = {name: np.full_like(tensor, 1000.0) for name, tensor in arrays().items()}
    made = adapter(tmp_path, tensors, CONFIG | {"lora_alpha": 4096}, alpha=4096)
    error = refusal(verify_adapter, tmp_path, made, BASE_TENSORS)
    assert (error.code, error.param) == (Code.ADAPTER_VALUES_INVALID, peft_keys(KEYS["l0.q"])[1])
