"""Preparing a launch: complete and verified before vLLM starts, or refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from serving.launch.prepare import (
    check_head_sizes,
    check_quantization,
    choose_dtype,
    prepare,
    stored_rank,
)
from serving.process import open_store
from serving.settings import ServingSettings
from shared.artifacts.folder_storage import FolderStorage
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, TwinOf, digest_model_folder, save_catalog
from shared.base_models.config import parse_model_config
from shared.errors import MensError
from tests.serving.launch.launches import QWEN35_4B, TINY
from tests.support.tiny_base import write_base

ZEROS = "0" * 64


@pytest.fixture
def home(tmp_path) -> Path:
    write_base(tmp_path / "base")
    register(tmp_path)
    return tmp_path


def register(home: Path, **changes: object) -> BaseModelEntry:
    """Put the base into the catalogue as it is now."""
    folder = home / "base"
    fields = {"name": "b", "source": LocalSource(path=str(folder)), "digests": digest_model_folder(folder), **changes}
    entry = BaseModelEntry(**fields)
    save_catalog(home / "catalog.json", Catalog(bases=[entry]))
    return entry


def settings(home: Path, **more: object) -> ServingSettings:
    return ServingSettings(home=home, serving_base="b", **more)


def store(home: Path, rank: int, digests: dict[str, str], name: str = "a") -> str:
    """Store an adapter's manifest; its files are not read here."""
    manifest = AdapterManifest.model_validate(
        {
            "adapter_method": "qlora",
            "quant": {"base_quant": "nf4"},
            "base_key_map": {"l0": "model.layers.0.mlp.up_proj.weight"},
            "layer_order": ["l0"],
            "vocab": 1,
            "d_model": 1,
            "rank": rank,
            "alpha": 1,
            "base_model": "b",
            "name": name,
            "base_digests": digests,
            "contract_digest": ZEROS,
            "template_digest": ZEROS,
            "step": 1,
            "files": {WEIGHTS_NAME: ZEROS, CONFIG_NAME: ZEROS},
        }
    )
    made = home / "made"
    made.mkdir(exist_ok=True)
    (made / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    FolderStorage(home / "storage").put_folder("adapters", manifest.digest, made, [], MANIFEST_NAME)
    return manifest.digest


def refusal(home: Path, **more: object) -> MensError:
    with pytest.raises(MensError) as caught:
        prepare(settings(home, **more))
    return caught.value


def test_launch_is_complete(home):
    launch = prepare(settings(home))
    assert (launch.folder, launch.dtype) == (home / "base", "float32")
    assert launch.base_digest == register(home).digest
    assert (launch.sizes.max_rank, launch.sizes.max_loras) == (32, 4)
    assert launch.sizes.max_cpu_loras > 4
    assert (
        str(launch)
        == f"Serving b in float32: {launch.cache}; 1 thread; {launch.sizes}; tool calls: hermes, reasoning: not parsed."
    )


def test_stored_adapter_of_larger_rank_raises_max_rank(home):
    store(home, 40, register(home).digests)
    assert prepare(settings(home)).sizes.max_rank == 64
    assert prepare(settings(home, serving_max_lora_rank=8)).sizes.max_rank == 8


def test_stored_rank_ignores_other_bases_and_broken_adapters(home):
    entry, storage = register(home), FolderStorage(home / "storage")
    assert stored_rank(storage, entry) == 0
    store(home, 100, {"config.json": ZEROS})
    broken = store(home, 200, entry.digests)
    (storage.folder("adapters", broken) / MANIFEST_NAME).write_text("{}")
    store(home, 24, entry.digests, name="valid")
    (home / "storage" / "adapters" / hashlib.sha256(b"half").hexdigest()).mkdir()
    (home / "storage" / "adapters" / "lost+found").mkdir()
    assert stored_rank(storage, entry) == 24


def test_stored_rank_of_twin_includes_its_original(home):
    original = {"config.json": ZEROS}
    twin = register(home, twin_of=TwinOf(name="original", digests=original, double_quant=True))
    store(home, 50, original)
    assert stored_rank(FolderStorage(home / "storage"), twin) == 50


def test_twin_is_not_rounded(home):
    rounded = settings(home, serving_device="cuda", serving_quantization="mxfp4")
    base = register(home)
    check_quantization(rounded, base)
    twin = base.model_copy(update={"twin_of": TwinOf(name="original", digests=base.digests, double_quant=True)})
    check_quantization(settings(home), twin)
    with pytest.raises(MensError) as caught:
        check_quantization(rounded, twin)
    assert (caught.value.code, caught.value.param) == ("SETTINGS_INVALID", "MENS_SERVING_QUANTIZATION")
    assert "MENS_SERVING_BASE=original" in str(caught.value.remedy)


def test_changed_base_is_refused(home):
    with (home / "base" / "config.json").open("a") as file:
        file.write(" ")
    assert refusal(home).code == "BASE_DIGEST_MISMATCH"


def change_config(home: Path, **changes: object) -> None:
    path = home / "base" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    register(home)


def test_base_stored_in_4_bits_is_refused(home):
    """Its tensors are not those that an adapter is checked against, and no adapter was trained on it."""
    change_config(home, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert refusal(home).code == "MODEL_CONFIG_INVALID"


def test_base_of_unknown_family_is_refused(home):
    change_config(home, model_type="gemma4")
    assert refusal(home).code == "MODEL_FAMILY_UNSUPPORTED"


def test_base_without_adapter_support_is_refused(home):
    gpt2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 260}
    change_config(home, **gpt2)
    error = refusal(home)
    assert (error.code, error.param) == ("NOT_SERVABLE_FAMILY", "config.json")


def test_adapters_without_room_are_refused_at_the_start(home):
    error = refusal(home, serving_lora_memory_bytes=1 << 20, serving_max_loras=500)
    assert error.code == "ADAPTERS_DO_NOT_FIT"


def test_base_without_template_has_no_tool_parser(home):
    (home / "base" / "chat_template.jinja").unlink()
    register(home)
    assert prepare(settings(home)).parsers.tool is None


@pytest.mark.parametrize(
    ("config", "device", "requested", "dtype"),
    [
        (TINY, "cpu", None, "float32"),
        (TINY, "cpu", "bfloat16", "bfloat16"),
        (TINY, "cuda", None, "auto"),
        (QWEN35_4B, "cpu", None, "bfloat16"),
        (QWEN35_4B, "cuda", "float32", "float32"),
    ],
)
def test_dtype_by_base_and_device(config, device, requested, dtype):
    configured = ServingSettings(serving_base="b", serving_device=device, serving_dtype=requested)
    assert choose_dtype(configured, parse_model_config(config)) == dtype


def test_float32_is_refused_for_linear_attention_on_cpu():
    configured = ServingSettings(serving_base="b", serving_dtype="float32")
    with pytest.raises(MensError, match="only in bfloat16") as caught:
        choose_dtype(configured, parse_model_config(QWEN35_4B))
    assert caught.value.code == "SETTINGS_INVALID"


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (TINY, {"head_dim": 40}, "head_dim"),
        (QWEN35_4B["text_config"], {"linear_key_head_dim": 32}, "linear_key_head_dim"),
        (QWEN35_4B["text_config"], {"linear_value_head_dim": 256}, "linear_value_head_dim"),
    ],
)
def test_heads_that_a_cpu_cannot_compute_are_refused_there(config, changes, key):
    """vLLM would start, and end at the first request."""
    config = parse_model_config(config | changes)
    with pytest.raises(MensError, match=f"{key} is {changes[key]}; on a CPU vLLM supports only .*128") as caught:
        check_head_sizes(ServingSettings(serving_base="b"), config)
    assert caught.value.code == "NOT_SERVABLE_HEAD_SIZE" and "GPU" in caught.value.remedy
    check_head_sizes(ServingSettings(serving_base="b", serving_device="cuda"), config)


def test_store_needs_a_largest_rank(home):
    with pytest.raises(MensError, match="MENS_SERVING_MAX_LORA_RANK") as caught:
        open_store(settings(home))
    assert caught.value.code == "SETTINGS_INVALID"
    assert open_store(settings(home, serving_max_lora_rank=20)).base.name == "b"
