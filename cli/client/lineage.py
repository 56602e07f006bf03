"""The lineage of an adapter as table rows: base, data, contract and template by digest, and the code and packages that
trained it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.counted_nouns import counted
from shared.hashing import digest_json

NOT_RECORDED = "not recorded: imported, or trained by an older release"


def describe_lineage(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each row.

    Args:
        manifest: the adapter's manifest as JSON.
    """
    if "base_digests" not in manifest:  # this is the record of another kind of artifact
        return
    digests = manifest["base_digests"]
    yield "base", f"{manifest['base_model']}, {counted(len(digests), 'file')}, digest {digest_json(digests)}"
    if parent := manifest.get("parent"):
        yield "parent", f"{parent['id']}, step {parent['step']}"
    for source, digest in (manifest.get("source_digests") or {}).items():
        yield "made from", f"{source} {digest}"
    yield "contract", manifest["contract_digest"]
    yield "template", manifest["template_digest"]
    lineage = manifest.get("lineage")
    if lineage is None:
        yield "code", NOT_RECORDED
        return
    commit = f", commit {lineage['code_commit']}" if lineage.get("code_commit") else ""
    yield "code", f"{lineage['code_version']}{commit}, sources {lineage['code_digest']}"
    packages = ", ".join(f"{name} {number}" for name, number in lineage["packages"].items())
    yield "packages", f"{packages}; all {lineage['environment_digest']}"
