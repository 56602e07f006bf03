"""``mens adapter export``: from a real API into a folder, with every byte verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from shared.artifacts.manifests import MANIFEST_NAME, WEIGHTS_NAME, verify_adapter
from shared.artifacts.signatures import SIGNATURE_NAME, make_key
from shared.database.adapters import NewAdapter
from shared.database.tenancy import Role
from shared.hashing import digest_file
from tests.support.cli_installation import CliInstallation
from tests.support.gate_rows import receipt

pytestmark = pytest.mark.network


def test_the_folder_verifies_and_its_card_names_base_and_licence(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    row = {
        "name": "truncation",
        "status": "passed",
        "passed": True,
        "block": True,
        "message": "0.1; at most 0.5 is asked",
    }
    content = {"gates": [row], "policy": {"name": "strict", "digest": "5" * 64}, "compared_with": None}
    judged = receipt(installation.services.database, adapter.id, digest=adapter.digest, receipt=content)
    said = installation.mens("adapter", "export", adapter.id[:20], "--to", str(out), "--handoff", "vllm")
    assert adapter.id in said
    assert "PeftModel.from_pretrained" in said
    from shared.artifacts.manifests import parse_manifest

    verify_adapter(out, parse_manifest((out / MANIFEST_NAME).read_bytes(), adapter.digest))
    card = (out / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["base_model"], front["license"], front["library_name"]) == ("tiny", "apache-2.0", "peft")
    assert "| 1 | passed | 0.25 | 0.001 | not measured |" in card
    assert "10.0.0.7" not in card
    assert f"| contract: SHA-256 | {'0' * 64} |" in card
    assert f"| receipt {judged.id} | passed, policy strict {judged.policy_digest}; SHA-256 " in card
    shown = installation.mens("models", "show", adapter.id)
    assert f"         made from weights {adapter.manifest['source_digests']['weights']}\n" in shown
    assert json.loads((out / "external_serving_handoff_v1.json").read_bytes())["backend_family"] == "vllm"


@pytest.mark.parametrize("layout", ["peft", "hf", "oci"])
def test_signature_travels_and_verifies_offline(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path, layout: str
) -> None:
    out, trusted = tmp_path / "out", tmp_path / "trusted"
    installation.mens("adapter", "export", adapter.id, "--to", str(out), "--format", layout)
    installation.patch.setenv("MENS_API_URL", "http://127.0.0.1:9")
    said = installation.mens("adapter", "verify", str(out), "--trusted", str(trusted))
    assert adapter.id in said
    assert f"by {trusted.read_text()}\n" in said
    other = tmp_path / "others"
    other.write_text(make_key(tmp_path / "another.pem"))
    assert "is not trusted here" in installation.mens("adapter", "verify", str(out), "--trusted", str(other), code=1)


def test_an_adapter_without_a_signature_is_exported_without(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path
) -> None:
    (installation.services.storage.folder("adapters", adapter.digest) / SIGNATURE_NAME).unlink()
    installation.mens("adapter", "export", adapter.id, "--to", str(tmp_path / "out"))
    assert not (tmp_path / "out" / SIGNATURE_NAME).exists()
    assert "signature  none" in installation.mens("adapter", "verify", str(tmp_path / "out"))
    trusted = ("--trusted", str(tmp_path / "trusted"))
    assert "ADAPTER_UNSIGNED" in installation.mens("adapter", "verify", str(tmp_path / "out"), *trusted, code=1)


@pytest.mark.parametrize("changed", ["index.json", "blobs"])
def test_a_changed_oci_layout_is_refused(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path, changed: str
) -> None:
    out = tmp_path / "out"
    installation.mens("adapter", "export", adapter.id, "--to", str(out), "--format", "oci")
    weights = digest_file(installation.services.storage.folder("adapters", adapter.digest) / WEIGHTS_NAME)
    path = out / changed if changed == "index.json" else out / "blobs" / "sha256" / weights
    path.write_bytes(b"{}")
    said = installation.mens("adapter", "verify", str(out), code=1)
    assert ("ADAPTER_MANIFEST_INVALID" if changed == "index.json" else "ADAPTER_DIGEST_MISMATCH") in said


def test_ollama_is_given_the_folder_that_its_template_is_in(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    said = installation.mens("adapter", "export", adapter.id, "--to", out, "--format", "ollama", code=1)
    assert "--model-folder" in said
    folder = ("--model-folder", str(tmp_path / "made" / "base"))
    assert "together" in installation.mens("adapter", "export", adapter.id, "--to", out, *folder, code=1)
    assert "--format ollama" in installation.mens(
        "adapter", "export", adapter.id, "--to", out, "--handoff", "ollama", code=1
    )
    assert not (tmp_path / "out").exists()


def test_equal_exports_are_equal(installation: CliInstallation, adapter: NewAdapter, tmp_path: Path) -> None:
    for name in "ab":
        installation.mens("adapter", "export", adapter.id, "--to", str(tmp_path / name), "--format", "hf")
    a, b = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b


def test_a_folder_that_holds_something_is_left_alone(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path
) -> None:
    (tmp_path / "made" / "keep").write_text("x")
    refused = installation.mens("adapter", "export", adapter.id, "--to", str(tmp_path / "made"), code=1)
    assert "not an empty folder" in refused


def test_bytes_that_changed_in_storage_are_not_exported(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path
) -> None:
    path = installation.services.storage.folder("adapters", adapter.digest) / WEIGHTS_NAME
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.chmod(0o600)
    path.unlink()
    path.write_bytes(raw)
    installation.invoke("adapter", "export", adapter.id, "--to", str(tmp_path / "out"), code=1)
    assert not (tmp_path / "out").exists()


def test_weights_are_for_trainers_of_tenants_that_see_the_adapter(
    installation: CliInstallation, adapter: NewAdapter, tmp_path: Path
) -> None:
    installation.become("reader", role=Role.VIEWER)
    refused = installation.mens("adapter", "export", adapter.id, "--to", str(tmp_path / "out"), code=1)
    assert "ROLE_INSUFFICIENT" in refused
    assert not (tmp_path / "out").exists()
