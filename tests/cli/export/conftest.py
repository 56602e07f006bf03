"""An adapter that was downloaded."""

from __future__ import annotations

import pytest

from cli.export.download import README_NAME, Downloaded
from tests.support.exported_adapter import store_small_adapter


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Downloaded:
    """With a short README; tests read it and never change it."""
    folder, manifest = store_small_adapter(tmp_path_factory.mktemp("stored"))
    (folder / README_NAME).write_text("---\nlibrary_name: peft\n---\n\n# helper\n")
    return Downloaded(folder, manifest, "http://127.0.0.1:8000")
