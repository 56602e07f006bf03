"""The adapters of an installation that were trained on a file, by the digest in their manifests."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Annotated

import typer

from cli.client.connection import find_pages

AdaptersOption = Annotated[
    bool,
    typer.Option(
        "--adapters",
        help="Ask the installation which adapters were trained on the files, by the digests in their manifests.",
    ),
]


def adapters_by_digest(digests: AbstractSet[str]) -> dict[str, list[str]]:
    """Return the ids of adapters by the digest of a training, validation or replay file; end the command if no API answers."""
    by_digest: dict[str, list[str]] = {}
    if not digests:
        return by_digest
    for adapter in find_pages("/v1/adapters"):
        sources = adapter["manifest"].get("source_digests") or {}
        for digest in digests & set(sources.values()):
            by_digest.setdefault(digest, []).append(adapter["id"])
    return by_digest
