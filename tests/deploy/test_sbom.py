"""`make sbom` lists exactly what the lock of each image pins, and each image holds the same list."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.locks import pins

IMAGES = ["api", "worker", "worker-cpu", "serving", "serving-cpu"]
GENERATOR = "cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible"


@pytest.mark.parametrize("image", [IMAGES[0], *(pytest.param(each, marks=pytest.mark.long) for each in IMAGES[1:])])
def test_each_list_is_its_lock(root: Path, tmp_path: Path, image: str) -> None:
    # The check against CycloneDX's schema takes 5 s a list; the images' builds do it.
    made = tmp_path / f"{image}.cdx.json"
    done = subprocess.run(
        ["make", "-s", str(made), f"SBOMS={tmp_path}", "SBOM_FLAGS=--no-validate"],
        cwd=root, capture_output=True, text=True, timeout=250, check=False, env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(made.read_text())
    assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "mens")
    libraries = {one["name"]: one for one in found["components"] if one.get("purl", "").startswith("pkg:npm/")}
    packages = {one["name"]: one["version"] for one in found["components"] if one not in libraries.values()}
    assert packages == pins(image)
    vendored = json.loads((root / "api/console/vendor/vendored.json").read_text())["packages"] if image == "api" else {}
    assert {name: (one["version"], one["licenses"][0]["license"]["id"]) for name, one in libraries.items()} == {
        name: (package["version"], package["license"]) for name, package in vendored.items()
    }
    assert {one["bom-ref"] for one in found["components"]} < {one["ref"] for one in found["dependencies"]}
    listed = [one for one in found["components"] if one["name"] == "numpy"]
    assert all(one["externalReferences"][0]["hashes"] for one in listed), "the digests of the lock"


@pytest.mark.parametrize("tier", ["api", "worker", "serving"])
def test_each_image_makes_its_own_from_what_it_installs(root: Path, tier: str) -> None:
    text = (root / tier / "Dockerfile").read_text()
    assert text.count(f"{GENERATOR} -o sbom.cdx.json requirements.lock") == text.count("-r requirements.lock")
    assert text.count("/build/sbom.cdx.json") == text.count(GENERATOR)
    program = "scripts/console_components.py"
    assert (
        text.count("python console_components.py sbom.cdx.json vendored.json") == text.count(program) == (tier == "api")
    )
    assert f"!{program}" in (root / ".dockerignore").read_text()
    assert GENERATOR in (root / "Makefile").read_text()
