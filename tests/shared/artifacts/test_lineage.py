"""Lineage is optional: adapters published without it stay the same, and adapters with it are checked like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest, parse_manifest, verify_adapter
from shared.artifacts.original_layout import parse_sidecar
from shared.artifacts.signatures import SIGNATURE_NAME, verify_signature
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file
from tests.support.exported_adapter import LINEAGE

OLD = Path(__file__).parent / "golden" / "adapter_without_lineage"
OLD_DIGEST = "6144a5d507486ec9945757290d0f484ba336c95647b5539a8669861a794f3ad8"
OLD_KEY = "a5TS9iLnU7JYdCqrBwRaDfw2awpJGszyNJ5QI6bsZtU="


@pytest.fixture
def old() -> AdapterManifest:
    return parse_manifest((OLD / MANIFEST_NAME).read_bytes(), OLD_DIGEST)


def test_an_adapter_of_before_is_the_same_adapter(old: AdapterManifest) -> None:
    assert old.adapter_id == f"helper@{OLD_DIGEST}"
    assert old.lineage is None
    verify_adapter(OLD, old)
    assert verify_signature((OLD / SIGNATURE_NAME).read_bytes(), OLD_DIGEST, {OLD_KEY}).public_key == OLD_KEY


def test_lineage_is_part_of_the_name(old: AdapterManifest) -> None:
    new = old.model_copy(update={"lineage": LINEAGE})
    again = parse_manifest(new.to_bytes(), new.digest)
    assert again.lineage == LINEAGE
    assert again.digest != OLD_DIGEST
    verify_adapter(OLD, again)


def test_a_reader_of_the_originals_manifest_takes_it(old: AdapterManifest) -> None:
    """Version 3 lets a reader skip what it does not know."""
    found = parse_sidecar(old.model_copy(update={"lineage": LINEAGE}).to_bytes())
    assert "lineage" in found.unused
    assert (found.rank, found.base_key_map) == (old.rank, old.base_key_map)


def test_a_broken_lineage_is_refused_by_name(old: AdapterManifest, tmp_path: Path) -> None:
    content = json.loads(old.model_copy(update={"lineage": LINEAGE}).to_bytes())
    content["lineage"]["code_digest"] = "short"
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactInvalid) as refused:
        parse_manifest(path.read_bytes(), digest_file(path))
    assert (refused.value.code, refused.value.param) == (Code.ADAPTER_MANIFEST_INVALID, "lineage.code_digest")
