"""``mens adapter import``: finds the two files, looks at the sidecar before it uploads, and queues the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.artifacts.original_layout import ORIGINAL_WEIGHTS, V2_NAME
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.contract.plan import ImportPlan
from shared.hashing import digest_file
from tests.support.cli_installation import CliInstallation
from tests.support.original_adapter import make_original
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
    assert "ADAPTER_IMPORT_FORMAT" in refused or "neither a version 2 nor a version 3" in refused
    assert not installation.services.files.list(after=None, limit=1, purpose=None, newest_first=True)


@pytest.mark.parametrize("gone", [ORIGINAL_WEIGHTS, V2_NAME])
def test_a_file_that_is_not_there_is_named(installation: CliInstallation, original: Path, gone: str) -> None:
    (original / gone).unlink()
    assert gone in installation.mens("adapter", "import", str(original), "--model", "tiny", code=1)
