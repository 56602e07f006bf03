"""The folder of a merged model matches its manifest exactly, and is signed by the right key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME, ModelManifest
from shared.artifacts.merge_fidelity import FIDELITY_NAME, PROBES_NAME
from shared.artifacts.merged_models import read_model_manifest, verify_merged_folder, verify_model_signature
from shared.artifacts.signatures import (
    ADAPTER,
    MERGED_MODEL,
    MODEL_SIGNATURE_NAME,
    SIGNATURE_NAME,
    make_key,
    sign_folder,
    verify_signature,
)
from shared.errors import ArtifactInvalid, Code
from tests.support.builders import base_entry
from tests.support.merged_models import write_merged


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_merged(tmp_path / "model", base_entry())
    return tmp_path / "model"


@pytest.fixture
def manifest(folder: Path) -> ModelManifest:
    return read_model_manifest(folder)


def refusal(folder: Path) -> tuple[Code, str | None]:
    with pytest.raises(ArtifactInvalid) as refused:
        verify_merged_folder(folder, read_model_manifest(folder))
    return refused.value.code, refused.value.param


def test_a_sound_folder_reports_its_fidelity(folder: Path, manifest: ModelManifest) -> None:
    measured = verify_merged_folder(folder, manifest)
    assert measured is not None and measured.passed


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md", "chat_template.jinja"])
def test_a_changed_or_missing_file_is_refused(folder: Path, name: str) -> None:
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:-1] + b"x" + raw[-1:])
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, name)
    (folder / name).unlink()
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, name)
    (folder.parent / "elsewhere").write_bytes(raw)
    (folder / name).symlink_to(folder.parent / "elsewhere")
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, name)


def test_a_further_file_is_refused(folder: Path) -> None:
    (folder / "more.safetensors").write_bytes(b"")
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, "more.safetensors")
    (folder / "more.safetensors").unlink()
    (folder / "modeling.so").write_bytes(b"")
    assert refusal(folder) == (Code.BASE_FILE_UNKNOWN, "modeling.so")


@pytest.mark.parametrize("name", [FIDELITY_NAME, PROBES_NAME])
def test_numbers_of_another_model_are_refused(folder: Path, name: str) -> None:
    found = json.loads((folder / name).read_bytes())
    (folder / name).write_text(json.dumps(found | {"model_digest": "0" * 64}))
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, name)
    (folder / name).write_text("{}")
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, name)
    (folder / name).unlink()
    verify_merged_folder(folder, read_model_manifest(folder))


@pytest.mark.parametrize("content", [None, b"{}", b"not JSON"])
def test_a_manifest_that_is_none_is_refused(folder: Path, content: bytes | None) -> None:
    path = folder / MODEL_MANIFEST_NAME
    raw = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, MODEL_MANIFEST_NAME)
    path.write_bytes(raw + b"\n")
    assert refusal(folder) == (Code.BASE_DIGEST_MISMATCH, MODEL_MANIFEST_NAME), "not canonical"


def test_a_signature_is_of_one_model_and_one_key(folder: Path, manifest: ModelManifest, tmp_path: Path) -> None:
    public = make_key(tmp_path / "key.pem")
    assert verify_model_signature(folder, manifest, None) is None
    with pytest.raises(ArtifactInvalid) as refused:
        verify_model_signature(folder, manifest, {public})
    assert refused.value.code == Code.MODEL_UNSIGNED
    sign_folder(folder, tmp_path / "key.pem", MERGED_MODEL)
    found = verify_model_signature(folder, manifest, {public})
    assert found is not None and found.public_key == public
    for other, keys in ((manifest.model_copy(update={"adapter_id": "other@1"}), {public}), (manifest, {"other"})):
        with pytest.raises(ArtifactInvalid) as refused:
            verify_model_signature(folder, other, keys)
        assert refused.value.code == Code.MODEL_SIGNATURE_INVALID


def test_a_signature_of_an_adapter_is_none_of_a_model(folder: Path, manifest: ModelManifest, tmp_path: Path) -> None:
    """Even where both manifests had one digest."""
    make_key(tmp_path / "key.pem")
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    made = sign_folder(folder, tmp_path / "key.pem", ADAPTER)
    raw = (folder / SIGNATURE_NAME).read_bytes()
    assert verify_signature(raw, manifest.digest, None) == made
    renamed = made.model_copy(update={"format": MERGED_MODEL.format}).model_dump_json().encode()
    for forged in (raw, renamed):
        (folder / MODEL_SIGNATURE_NAME).write_bytes(forged)
        with pytest.raises(ArtifactInvalid) as refused:
            verify_model_signature(folder, manifest, None)
        assert refused.value.code == Code.MODEL_SIGNATURE_INVALID
