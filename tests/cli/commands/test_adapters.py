"""``mens adapter``: import finds two files and queues a job; keygen and verify need no server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.artifacts.adapter_import import import_adapter
from shared.artifacts.imported_folder import ImportRequest
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME, V3_NAME, parse_sidecar
from shared.artifacts.signatures import make_key, sign_folder
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.contract.plan import ImportPlan
from shared.hashing import digest_file
from tests.support.cli_installation import CliInstallation
from tests.support.exported_adapter import LINEAGE
from tests.support.original_adapter import make_original
from tests.support.peft_folder import make_torchtune
from tests.support.tiny_base import write_base

pytestmark = pytest.mark.network


@pytest.fixture
def original(tmp_path: Path, installation: CliInstallation) -> Path:
    """A run folder of the original's, for the base ``tiny`` of the catalogue."""
    base = write_base(tmp_path / "bases" / "tiny")
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(installation.services.settings.catalog_path, Catalog(bases=[entry]))
    return make_original(base, "P", 2, sizes=(1, 1)).write(tmp_path / "original")


@pytest.mark.parametrize("path", ["", ORIGINAL_WEIGHTS])
def test_import_uploads_both_files_and_queues_the_job(installation: CliInstallation, original: Path, path: str) -> None:
    arguments = ["--model", "tiny", "--name", "old", "--no-publish", "--no-watch"]
    job_id = installation.mens("adapter", "import", str(original / path), *arguments)
    job = installation.services.jobs.get(job_id)
    plan = ImportPlan.model_validate(job.plan)
    assert (job.kind, plan.contract.name, plan.contract.publish) == ("import", "old", False)
    assert plan.weights_sha256 == digest_file(original / ORIGINAL_WEIGHTS)
    assert plan.sidecar_sha256 == digest_file(original / V2_NAME)


def test_nothing_is_uploaded_for_a_sidecar_that_is_none(installation: CliInstallation, original: Path) -> None:
    (original / V2_NAME).write_text(json.dumps({"format": "other"}))
    refused = installation.mens("adapter", "import", str(original), "--model", "tiny", code=1)
    assert "ADAPTER_IMPORT_FORMAT" in refused or "not a valid version 2 or 3" in refused
    assert not installation.services.files.list(after=None, limit=1, purpose=None, newest_first=True)


@pytest.mark.parametrize("gone", [ORIGINAL_WEIGHTS, V2_NAME])
def test_a_file_that_is_missing_is_named(installation: CliInstallation, original: Path, gone: str) -> None:
    (original / gone).unlink()
    assert gone in installation.mens("adapter", "import", str(original), "--model", "tiny", code=1)


@pytest.mark.parametrize("in_config", [False, True])
def test_a_peft_folder_is_uploaded_with_its_template(
    installation: CliInstallation, original: Path, tmp_path: Path, in_config: bool
) -> None:
    folder = make_torchtune(original.parent / "bases" / "tiny").write(tmp_path / "theirs")
    (folder / MANIFEST_NAME).write_text("{}")  # as in a folder that was exported here
    if in_config:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    else:
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    job_id = installation.mens("adapter", "import", str(folder), "--model", "tiny", "--no-publish", "--no-watch")
    plan = ImportPlan.model_validate(installation.services.jobs.get(job_id).plan)
    assert plan.weights_sha256 == digest_file(folder / WEIGHTS_NAME)
    assert plan.sidecar_sha256 == digest_file(folder / CONFIG_NAME)
    assert plan.template_sha256 == hashlib.sha256(b"{{ messages }}").hexdigest()


def test_nothing_is_uploaded_of_what_cannot_be_served(installation: CliInstallation, original: Path) -> None:
    folder = original.parent / "theirs"
    made = make_torchtune(original.parent / "bases" / "tiny")
    made.options["use_dora"] = True
    made.write(folder)
    assert "use_dora" in installation.mens("adapter", "import", str(folder), "--model", "tiny", code=1)
    (folder / WEIGHTS_NAME).rename(folder / "adapter_model.bin")
    assert "pickle" in installation.mens("adapter", "import", str(folder), "--model", "tiny", code=1)
    assert not installation.services.files.list(after=None, limit=1, purpose=None, newest_first=True)


runner = CliRunner()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An adapter's folder, of a tiny base, imported without any server."""
    base = write_base(tmp_path / "bases" / "offline")
    sizes = json.loads((base / "config.json").read_text())
    original = make_original(base, "F", sizes=(sizes["vocab_size"], sizes["hidden_size"])).write(tmp_path / "old")
    entry = BaseModelEntry(name="offline", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    sidecar = parse_sidecar((original / V3_NAME).read_bytes())
    request = ImportRequest(original / ORIGINAL_WEIGHTS, sidecar, entry, base, "old", "b" * 64, "c" * 64, "d" * 64)
    import_adapter(request, tmp_path / "adapter")
    return tmp_path / "adapter"


def verified(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, ["adapter", "verify", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_verify_prints_what_an_adapter_is_made_from(made: Path, tmp_path: Path) -> None:
    key = runner.invoke(app, ["adapter", "keygen", str(tmp_path / "key.pem")]).output.strip()
    (tmp_path / "trusted").write_text(key)
    assert "ADAPTER_UNSIGNED" in verified(str(made), "--trusted", str(tmp_path / "trusted"), code=1)
    assert "none" in verified(str(made))
    sign_folder(made, tmp_path / "key.pem")
    printed = verified(str(made), "--trusted", str(tmp_path / "trusted"))
    assert f"old@{digest_file(made / MANIFEST_NAME)}" in printed
    assert f"sidecar {'b' * 64}" in printed
    assert key in printed and "c" * 64 in printed and "d" * 64 in printed and "qlora over nf4, rank 3" in printed
    assert "not recorded" in printed


def test_verify_leads_back_to_plan_code_and_packages(made: Path) -> None:
    manifest = AdapterManifest.model_validate_json((made / MANIFEST_NAME).read_bytes())
    (made / MANIFEST_NAME).write_bytes(manifest.model_copy(update={"lineage": LINEAGE}).to_bytes())
    printed = verified(str(made))
    assert f"code       0.1.0, commit abc, sources {LINEAGE.code_digest}" in printed
    assert f"packages   torch 2.13.0; all {LINEAGE.environment_digest}" in printed


@pytest.mark.parametrize("name", [WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME])
def test_verify_finds_one_changed_bit(made: Path, tmp_path: Path, name: str) -> None:
    make_key(tmp_path / "key.pem")
    sign_folder(made, tmp_path / "key.pem")
    raw = bytearray((made / name).read_bytes())
    raw[len(raw) // 2] ^= 1
    (made / name).write_bytes(raw)
    assert "ADAPTER_" in verified(str(made), code=1)


def test_a_manifest_that_is_not_its_folders_is_found(made: Path) -> None:
    other = made.with_name("0" * 64)
    made.rename(other)
    assert "is not the one of" in verified(str(other), code=1)


def test_a_key_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("mine")
    assert runner.invoke(app, ["adapter", "keygen", str(tmp_path / "key.pem")]).exit_code == 1
    assert (tmp_path / "key.pem").read_text() == "mine"
