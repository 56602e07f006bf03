"""A training file for the tests of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from tests.support.cli_installation import CliInstallation
from tests.support.tiny_base import write_base


@pytest.fixture
def rows(tmp_path: Path, installation: CliInstallation) -> str:
    """A file to tune the base ``tiny`` on, for a tier with a replica."""
    folder, settings = write_base(tmp_path / "bases" / "tiny"), installation.services.settings
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(folder)), digests=digest_model_folder(folder))
    save_catalog(settings.catalog_path, Catalog(bases=[entry]))
    settings.serving_urls[:] = ["http://127.0.0.1:9"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return str(tmp_path / "rows.jsonl")
