"""Export formats: the adapter's own bytes under the file names that other programs expect."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cli.export.download import ADAPTER_FILES, README_NAME, Downloaded
from cli.export.formats import Format, write
from shared.artifacts.manifests import parse_manifest, verify_adapter
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME, mapped_layers, parse_sidecar
from shared.hashing import digest_file

LAYOUTS = [layout for layout in Format if layout not in {Format.OLLAMA, Format.MLFLOW}]  # which have tests of their own


def written(found: Downloaded, target: Path, layout: Format) -> Path:
    target.mkdir()
    assert str(target) in write(found, target, layout, None) or layout is Format.ORIGINAL
    return target


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_adapters_are_exported_as_equal_files(stored: Downloaded, tmp_path: Path, layout: Format) -> None:
    assert contents(written(stored, tmp_path / "a", layout)) == contents(written(stored, tmp_path / "b", layout))


@pytest.mark.parametrize("layout", [Format.PEFT, Format.HF])
def test_the_peft_folder_is_the_stored_one_and_still_verifies(
    stored: Downloaded, tmp_path: Path, layout: Format
) -> None:
    target = written(stored, tmp_path / "out", layout)
    assert {path.name for path in target.iterdir()} - {".gitattributes"} == {*ADAPTER_FILES, README_NAME}
    manifest = parse_manifest((target / "adapter_manifest.json").read_bytes(), stored.manifest.digest)
    verify_adapter(target, manifest)


def test_the_hubs_client_reads_the_card(stored: Downloaded, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard.load(written(stored, tmp_path / "out", Format.HF) / README_NAME)
    assert card.data.library_name == "peft"


def test_the_original_reads_its_own_tensors_again(stored: Downloaded, tmp_path: Path) -> None:
    """Out is in, backwards: what was imported is exported under the names that it came with."""
    target = written(stored, tmp_path / "out", Format.ORIGINAL)
    before, after = (
        load_file(stored.folder.parent / "original" / ORIGINAL_WEIGHTS),
        load_file(target / ORIGINAL_WEIGHTS),
    )
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    old = parse_sidecar((stored.folder.parent / "original" / V3_NAME).read_bytes())
    new = parse_sidecar((target / V3_NAME).read_bytes())
    assert mapped_layers(new) == mapped_layers(old)
    assert (new.rank, new.alpha, new.vocab, new.d_model) == (old.rank, old.alpha, old.vocab, old.d_model)
    assert not (target / V2_NAME).exists()  # version 2 names the head, which was not trained here


def test_the_oci_layout_is_one_of_the_specification(stored: Downloaded, tmp_path: Path) -> None:
    """Every rule of image-spec 1.1 that concerns it: layout file, index, descriptors, artifact with an empty config."""
    target = written(stored, tmp_path / "out", Format.OCI)
    assert json.loads((target / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((target / "index.json").read_bytes())
    (entry,) = index["manifests"]
    assert (index["schemaVersion"], entry["mediaType"]) == (2, "application/vnd.oci.image.manifest.v1+json")

    def blob(descriptor: dict) -> bytes:
        algorithm, _, digest = descriptor["digest"].partition(":")
        content = (target / "blobs" / algorithm / digest).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, descriptor["size"])
        return content

    manifest = json.loads(blob(entry))
    assert manifest["artifactType"] == entry["artifactType"] == "application/vnd.mens.adapter.v1"
    assert (manifest["config"]["mediaType"], blob(manifest["config"])) == ("application/vnd.oci.empty.v1+json", b"{}")
    layers = {layer["annotations"]["org.opencontainers.image.title"]: blob(layer) for layer in manifest["layers"]}
    assert layers == {name: (stored.folder / name).read_bytes() for name in (*ADAPTER_FILES, README_NAME)}
    named = {entry["digest"], manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}
    assert {f"sha256:{path.name}" for path in (target / "blobs" / "sha256").iterdir()} == named
    assert all(digest_file(path) == path.name for path in (target / "blobs" / "sha256").iterdir())
