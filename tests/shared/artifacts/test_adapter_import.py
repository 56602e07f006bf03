"""Import of the original's adapters: the same numbers under different names, or a code that names what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shared.artifacts.adapter_import import import_adapter
from shared.artifacts.imported_folder import Imported, ImportRequest
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, parse_manifest, peft_keys
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME, parse_sidecar
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file
from tests.support.original_adapter import ALPHA, EMBEDDING, RANK, OriginalAdapter, make_original
from tests.support.tiny_base import write_base

ZEROS = "0" * 64
SHAPE = {"head_dim": 24}
"""Heads together are wider than the hidden size: not every projection is square."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "tiny", **SHAPE)


@pytest.fixture(scope="module")
def sizes(base: Path) -> tuple[int, int]:
    config = json.loads((base / "config.json").read_text())
    return config["vocab_size"], config["hidden_size"]


def take_in(made: OriginalAdapter, base: Path, folder: Path) -> Imported:
    made.write(folder / "original")
    sidecar = folder / "original" / (V2_NAME if made.version == 2 else V3_NAME)
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    request = ImportRequest(
        weights=folder / "original" / ORIGINAL_WEIGHTS,
        sidecar=parse_sidecar(sidecar.read_bytes()),
        base=entry,
        base_folder=base,
        name="old",
        sidecar_digest=digest_file(sidecar),
        contract_digest=ZEROS,
        template_digest=ZEROS,
    )
    return import_adapter(request, folder / "adapter")


@pytest.mark.parametrize("era", ["P", "F"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_every_number_is_under_the_name_that_peft_has_for_it(
    base: Path, sizes: tuple[int, int], tmp_path: Path, era: str, version: int, suffix: str
) -> None:
    made = make_original(base, era, version, suffix, sizes=sizes)
    found = take_in(made, base, tmp_path)
    weights = load_file(tmp_path / "adapter" / WEIGHTS_NAME)
    trained = {logical: key for logical, key in made.layers.items() if logical != "lm_head"}
    assert weights.keys() == {name for key in trained.values() for name in peft_keys(key)}
    for logical, key in trained.items():
        for side, name in zip("ab", peft_keys(key), strict=True):
            assert np.array_equal(weights[name], made.tensors[f"{logical}.lora_{side}"])
    config = json.loads((tmp_path / "adapter" / CONFIG_NAME).read_text())
    assert (config["r"], config["lora_alpha"]) == (RANK, ALPHA)
    assert set(config["target_modules"]) == {key.removesuffix(".weight") for key in trained.values()}
    raw = (tmp_path / "adapter" / MANIFEST_NAME).read_bytes()
    assert parse_manifest(raw, digest_file(tmp_path / "adapter" / MANIFEST_NAME)) == found.manifest
    assert found.manifest.base_key_map == trained
    sidecar = tmp_path / "original" / (V2_NAME if version == 2 else V3_NAME)
    assert found.manifest.source_digests == {
        "weights": digest_file(tmp_path / "original" / ORIGINAL_WEIGHTS),
        "sidecar": digest_file(sidecar),
    }
    assert (found.manifest.quant.base_quant, found.manifest.quant.double_quant) == ("nf4", True)
    assert found.notes == ["lm_head: its B is all zeros, so it has no effect and was left out."]


def test_the_same_files_make_the_same_adapter(base: Path, sizes: tuple[int, int], tmp_path: Path) -> None:
    made = make_original(base, "F", sizes=sizes)
    one, other = (take_in(made, base, tmp_path / name).manifest.digest for name in "ab")
    assert one == other


def test_thousands_of_unused_fields_do_not_make_thousands_of_events(
    base: Path, sizes: tuple[int, int], tmp_path: Path
) -> None:
    made = make_original(base, "F", sizes=sizes)
    made.changes = {f"field{number:04}": 1 for number in range(2_000)}
    notes = take_in(made, base, tmp_path).notes
    assert len(notes) < 30
    assert "1980 more fields of the sidecar are not used." in notes


def test_what_is_not_used_is_said(base: Path, sizes: tuple[int, int], tmp_path: Path) -> None:
    made = make_original(base, "P", head=False, sizes=sizes)
    made.changes = {
        "base_model": "Qwen/other", "note": "x", "base_key_map": made.layers | {"lm_head": EMBEDDING},
        "provenance": {"license_class": "apache-2.0"},
    }  # fmt: skip
    found = take_in(made, base, tmp_path)
    assert [note.split(":")[0] for note in found.notes] == ["note", "base_key_map", "base_model"]
    assert found.manifest.provenance is not None and found.manifest.provenance.license_class == "apache-2.0"


Change = Callable[[OriginalAdapter], None]


def trained_head(made: OriginalAdapter) -> None:
    made.tensors["lm_head.lora_b"][0, 0] = 1


def unknown_base_tensor(made: OriginalAdapter) -> None:
    made.layers["mid0"] = "model.layers.9.self_attn.o_proj.weight"


def missing_b(made: OriginalAdapter) -> None:
    del made.tensors["mid0.lora_b"]


def extra_layer(made: OriginalAdapter) -> None:
    made.tensors["mid7.lora_a"] = made.tensors["mid0.lora_a"].copy()


def unmapped(made: OriginalAdapter) -> None:
    made.changes = {"base_key_map": {key: value for key, value in made.layers.items() if key != "mid0"}}


def other_width(made: OriginalAdapter) -> None:
    made.changes = {"d_model": 7}


def other_rank(made: OriginalAdapter) -> None:
    made.changes = {"rank": RANK + 1}


def transposed_b(made: OriginalAdapter) -> None:
    made.tensors["mid0.lora_b"] = np.ascontiguousarray(made.tensors["mid0.lora_b"].T)


def not_finite(made: OriginalAdapter) -> None:
    made.tensors["mid0.lora_a"][0, 0] = np.nan


def double_precision(made: OriginalAdapter) -> None:
    made.tensors["mid0.lora_a"] = made.tensors["mid0.lora_a"].astype(np.float64)


def nothing_trained(made: OriginalAdapter) -> None:
    made.layers = {"lm_head": made.layers["lm_head"]}
    made.tensors = {name: value for name, value in made.tensors.items() if name.startswith("lm_head")}


REFUSED: dict[Change, tuple[Code, str | None]] = {
    trained_head: (Code.NOT_SERVABLE_HEAD, "lm_head"),
    unknown_base_tensor: (Code.ADAPTER_IMPORT_INCOMPLETE, "mid0"),
    missing_b: (Code.ADAPTER_IMPORT_INCOMPLETE, "mid0"),
    extra_layer: (Code.ADAPTER_IMPORT_INCOMPLETE, "mid7.lora_a"),
    unmapped: (Code.ADAPTER_IMPORT_INCOMPLETE, "mid0"),
    other_width: (Code.ADAPTER_BASE_MISMATCH, "d_model"),
    other_rank: (Code.ADAPTER_SHAPE_MISMATCH, None),
    transposed_b: (Code.ADAPTER_SHAPE_MISMATCH, None),
    not_finite: (Code.ADAPTER_VALUES_INVALID, "mid0.lora_a"),
    double_precision: (Code.ADAPTER_DTYPE_UNSUPPORTED, "mid0.lora_a"),
    nothing_trained: (Code.ADAPTER_IMPORT_INCOMPLETE, "layer_order"),
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_it_lacks_is_named(base: Path, sizes: tuple[int, int], tmp_path: Path, change: Change) -> None:
    made = make_original(base, "P", sizes=sizes)
    change(made)
    with pytest.raises(ArtifactInvalid) as refused:
        take_in(made, base, tmp_path)
    code, param = REFUSED[change]
    assert refused.value.code == code
    assert param is None or refused.value.param == param
    assert refused.value.remedy
    assert not (tmp_path / "adapter" / MANIFEST_NAME).exists()


def test_a_family_that_vllm_does_not_adapt_is_refused(tmp_path: Path) -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    base = write_base(tmp_path / "gpt2", **gpt2)
    vocab = json.loads((base / "config.json").read_text())["vocab_size"]
    layers = {"mid0": "h.0.attn.c_proj.weight"}
    ones = np.ones((RANK, 32), np.float32)
    made = OriginalAdapter(layers, {"mid0.lora_a": ones, "mid0.lora_b": ones.T.copy()}, 3, "", (vocab, 32))
    with pytest.raises(ArtifactInvalid) as refused:
        take_in(made, base, tmp_path)
    assert refused.value.code == Code.ADAPTER_NOT_SERVABLE
