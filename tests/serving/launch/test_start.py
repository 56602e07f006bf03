"""If `python -m serving` refuses to start, it prints one line with an error code, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from serving.process import open_store
from serving.settings import ServingSettings
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, save_catalog
from shared.errors import ArtifactInvalid

pytestmark = pytest.mark.network


def start(tmp_path, **variables):
    """Exit status and stderr of a start that must fail before vLLM is reached."""
    clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("MENS_")}
    environment = {**clean, "MENS_HOME": str(tmp_path), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "serving"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def register(tmp_path, serving_installation, folder):
    entry = BaseModelEntry(name="b", source=LocalSource(path=str(folder)), digests=serving_installation.entry.digests)
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[entry]))


def assert_one_line(outcome, code):
    status, stderr = outcome
    assert status == 2
    assert stderr.startswith(f"{code}: ")
    assert stderr.count("\n") == 1


def test_no_base_configured(tmp_path):
    assert_one_line(start(tmp_path), "SETTINGS_INVALID")


def test_base_not_in_the_catalogue(tmp_path):
    assert_one_line(start(tmp_path, MENS_SERVING_BASE="b"), "MODEL_NOT_FOUND")


def test_broken_catalogue(tmp_path):
    (tmp_path / "catalog.json").write_text("{")
    assert_one_line(start(tmp_path, MENS_SERVING_BASE="b"), "CATALOG_INVALID")


def test_base_folder_gone(tmp_path, serving_installation):
    register(tmp_path, serving_installation, tmp_path / "nowhere")
    assert_one_line(start(tmp_path, MENS_SERVING_BASE="b"), "MODEL_NOT_FOUND")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_base_with_a_changed_file(tmp_path, serving_installation, file):
    folder = tmp_path / "base"
    shutil.copytree(serving_installation.base, folder)
    register(tmp_path, serving_installation, folder)
    with (folder / file).open("ab") as changed:
        changed.write(b" ")
    assert_one_line(start(tmp_path, MENS_SERVING_BASE="b"), "BASE_DIGEST_MISMATCH")


def test_base_with_another_digest_than_required(tmp_path, serving_installation):
    register(tmp_path, serving_installation, serving_installation.base)
    assert_one_line(start(tmp_path, MENS_SERVING_BASE="b", MENS_SERVING_BASE_DIGEST="0" * 64), "BASE_DIGEST_MISMATCH")


def test_base_changed_in_catalogue_since_the_start(tmp_path, serving_installation):
    """The engine keeps the old base, so it must not get adapters of the new one."""
    register(tmp_path, serving_installation, serving_installation.base)
    digest = serving_installation.entry.digest
    settings = ServingSettings(home=tmp_path, serving_base="b", serving_base_digest=digest, serving_max_lora_rank=16)
    assert open_store(settings).base.digests == serving_installation.entry.digests
    changed = BaseModelEntry(
        name="b", source=LocalSource(path=str(serving_installation.base)), digests={"config.json": "0" * 64}
    )
    save_catalog(tmp_path / "catalog.json", Catalog(bases=[changed]))
    with pytest.raises(ArtifactInvalid, match="BASE_DIGEST_MISMATCH"):
        open_store(settings)


def test_key_is_never_in_an_error(tmp_path):
    _, stderr = start(tmp_path, MENS_SERVING_KEY="very-secret", MENS_SERVING_PORT="x")
    assert "very-secret" not in stderr


def test_launcher_imports_neither_vllm_nor_a_web_framework():
    code = (
        "import sys, serving.__main__, serving.middleware.guard, serving.adapter_store\n"
        "banned = {'torch', 'vllm', 'transformers', 'fastapi', 'starlette', 'sqlalchemy', 'celery', 'api', 'worker'}\n"
        "print(sorted(banned & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
