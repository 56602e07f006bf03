"""All packages in the images have permissive licences, and docs/images.md lists every exception."""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.support.locks import pins

PERMISSIVE = re.compile(
    r"0BSD|Apache|BSD|BSL-1\.0|CC0|CNRI-Python|ISC|LLVM-exception|MIT|PSF|Python Software Foundation|Unlicense|zlib",
    re.IGNORECASE,
)
CONDITIONAL = re.compile(r"GPL|MPL|Mozilla|Proprietary|End User|EULA|SSPL|BUSL|EPL|CDDL", re.IGNORECASE)
ON_A_GPU_ONLY = re.compile(r"nvidia-|cuda-|triton$")
"""Packages of the CUDA lock, which are not installed where the tests run."""
EXCEPTIONS = {
    "certifi": "MPL-2.0",
    "tqdm": "MPL-2.0",
    "psycopg": "LGPL-3.0",
    "psycopg-binary": "LGPL-3.0",
    "pycountry": "LGPL-2.1",
    "intel-openmp": "Intel",
    "intel-cmplr-lib-ur": "Intel",
}
IMAGES = ["api", "worker", "worker-cpu", "serving", "serving-cpu"]


def licence(package: Distribution) -> str:
    """Return a package's statements of its licence: an expression, classifiers, a field, or the text of its file."""
    said = package.metadata
    classifiers = [entry for entry in said.get_all("Classifier") or [] if entry.startswith("License ::")]
    words = " ".join([said.get("License-Expression") or "", *classifiers, (said.get("License") or "")[:200]])
    if PERMISSIVE.search(words) or CONDITIONAL.search(words):
        return words
    texts = [path.read_text() for path in package.files or [] if re.search(r"dist-info/.*LICEN[CS]E", str(path))]
    return (
        "MIT"
        if any("Permission is hereby granted, free of charge" in text for text in texts)
        else " ".join(texts)[:200]
    )


@pytest.mark.parametrize("lock", IMAGES)
def test_every_package_is_permissive_or_a_known_exception(lock: str) -> None:
    refused = {}
    for name in pins(lock):
        try:
            said = licence(distribution(name))
        except PackageNotFoundError:
            assert ON_A_GPU_ONLY.match(name), f"{name} is not installed: run `make install`"
            continue
        if name not in EXCEPTIONS and (CONDITIONAL.search(said) or not PERMISSIVE.search(said)):
            refused[name] = said
    assert not refused


def test_exceptions_are_shipped_and_documented(root: Path) -> None:
    page = (root / "docs" / "images.md").read_text()
    shipped = {name for lock in IMAGES for name in pins(lock)}
    assert EXCEPTIONS.keys() <= shipped
    for name, said in EXCEPTIONS.items():
        assert re.search(rf"^\|.*`{name}`.*{said}", page, re.MULTILINE), name
        assert CONDITIONAL.search(licence(distribution(name))), f"{name} is no exception any more"
