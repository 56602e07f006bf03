"""`make sbom` lists exactly what the lock of each image pins, and each image holds the same list."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.locks import pins

IMAGES = ["api", "worker", "worker-cpu", "serving", "serving-cpu"]
GENERATOR = "cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible"


def test_each_list_is_its_lock(root: Path, tmp_path: Path) -> None:
    # The check against CycloneDX's schema takes 5 s a list; the images' builds do it.
    variables = [f"SBOMS={tmp_path}", "SBOM_FLAGS=--no-validate"]
    done = subprocess.run(
        ["make", "-s", "-j2", "sbom", *variables],
        cwd=root, capture_output=True, text=True, timeout=250, check=False, env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for image in IMAGES:
        found = json.loads((tmp_path / f"{image}.cdx.json").read_text())
        assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "mens")
        assert {one["name"]: one["version"] for one in found["components"]} == pins(image), image
        listed = [one for one in found["components"] if one["name"] == "numpy"]
        assert all(one["externalReferences"][0]["hashes"] for one in listed), "the digests of the lock"


@pytest.mark.parametrize("tier", ["api", "worker", "serving"])
def test_each_image_makes_its_own_from_what_it_installs(root: Path, tier: str) -> None:
    text = (root / tier / "Dockerfile").read_text()
    assert text.count(f"{GENERATOR} -o sbom.cdx.json requirements.lock") == text.count("-r requirements.lock")
    assert text.count("/build/sbom.cdx.json") == text.count(GENERATOR)
    assert GENERATOR in (root / "Makefile").read_text()
