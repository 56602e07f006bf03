"""The adapter that ``--continue`` names: its manifest, from the installation or from a folder on this machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from cli.client.connection import call, find
from cli.client.id_prefixes import resolve_adapter_id
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest, parse_manifest
from shared.hashing import digest_file


def find_manifest(name: str) -> AdapterManifest:
    """Return the manifest of an adapter: by its id or the beginning of it, an alias or a foreign name; end the command if it does not exist."""
    name = resolve_adapter_id(name)
    record = find(f"/v1/adapters/{quote(name, safe='')}")
    if record is None:
        # This is a foreign name, or the API reports that the name does not exist.
        model = call("GET", f"/v1/models/{quote(name, safe='')}")
        name = model["mens"].get("stands_for", {}).get("name", name)
        record = call("GET", f"/v1/adapters/{quote(name, safe='')}")
    return AdapterManifest.model_validate(record["manifest"])


def find_or_read_manifest(name: str) -> AdapterManifest:
    """Return the manifest of an adapter's folder on this machine; without such a folder, the result of
    :func:`find_manifest`.
    """
    path = Path(name) / MANIFEST_NAME
    return parse_manifest(path.read_bytes(), digest_file(path)) if path.is_file() else find_manifest(name)
