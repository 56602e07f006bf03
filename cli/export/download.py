"""Download an adapter's files from the API into a folder, and check them against its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from cli.client.connection import connect, fail_with, fail_with_response, unreachable
from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    parse_manifest,
    verify_adapter,
)
from shared.artifacts.signatures import SIGNATURE_NAME

README_NAME = "README.md"
ADAPTER_FILES = (MANIFEST_NAME, CONFIG_NAME, WEIGHTS_NAME)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """An adapter on this machine.

    Attributes:
        folder: holds the adapter's three files, its signature if it has one, and README.md.
        url: URL of the API that it was downloaded from.
    """

    folder: Path
    manifest: AdapterManifest
    url: str

    @property
    def files(self) -> list[Path]:
        """Files to export, in order."""
        names = (*ADAPTER_FILES, SIGNATURE_NAME, README_NAME)
        return [path for name in names if (path := self.folder / name).is_file()]


def download(adapter_id: str, folder: Path) -> Downloaded:
    """Fetch an adapter into an empty folder and check each byte; end the command if the API refuses.

    Args:
        adapter_id: the full id, whose digest is the manifest's.
    """
    connection = connect()
    base = f"/v1/adapters/{quote(adapter_id, safe='')}/files"
    try:
        with connection.client(timeout=600.0) as client:
            for name in (*ADAPTER_FILES, SIGNATURE_NAME, README_NAME):
                with client.stream("GET", f"{base}/{name}") as response:
                    if name == SIGNATURE_NAME and response.status_code == httpx.codes.NOT_FOUND:
                        continue
                    if response.is_error:
                        response.read()
                        fail_with_response(response)
                    with (folder / name).open("wb") as file:
                        for chunk in response.iter_bytes(1 << 20):
                            file.write(chunk)
    except httpx.HTTPError as error:
        fail_with(unreachable(connection, error))
    manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), adapter_id.rpartition("@")[2])
    verify_adapter(folder, manifest)
    return Downloaded(folder, manifest, connection.url)
