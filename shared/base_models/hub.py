"""Locates and downloads base models: local folders, and hub repositories pinned to a commit.

Hub downloads are pinned to a commit, take the model files of `shared/base_models/catalog.py` only (safetensors, never pickle, never
code) and land in the hub client's own cache, so every tier on a machine shares one copy.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from shared.base_models.catalog import MODEL_FILES, BaseModelEntry, HubSource, LocalSource
from shared.errors import Code, NotFound, Unavailable


def locate(entry: BaseModelEntry, catalog_path: Path) -> Path:
    """Folder with the base model's files, downloaded first if it must be."""
    return fetch(entry.source, catalog_path)


def fetch(source: LocalSource | HubSource, catalog_path: Path) -> Path:
    """Folder of a source; see :func:`locate`.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``: the folder or the repository is not there.
        Unavailable: ``HUB_UNAVAILABLE``: no response from the hub and nothing in its cache.
    """
    if isinstance(source, LocalSource):
        folder = (catalog_path.parent / source.path).resolve()
        if not folder.is_dir():
            raise NotFound(Code.MODEL_NOT_FOUND, f"The base model's folder {folder} is not there.", param="source.path")
        return folder
    try:
        return Path(snapshot_download(source.repo, revision=source.revision, allow_patterns=list(MODEL_FILES)))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise NotFound(
            Code.MODEL_NOT_FOUND,
            f"The hub has no repository {source.repo} at {source.revision}, or this token may not read it.",
            remedy="Check the name; for a gated model set HF_TOKEN.",
        ) from error
    # LocalEntryNotFoundError: the hub could not be reached, and the cache has no copy. The HTTP library's errors are no OSError.
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx2.HTTPError, OSError) as error:
        raise Unavailable(
            Code.HUB_UNAVAILABLE,
            f"{source.repo} could not be fetched: {error}.",
            remedy="Check the network, or copy the model to a folder and use `mens base add --path`.",
        ) from error


def locate_fetched(entry: BaseModelEntry, catalog_path: Path) -> Path:
    """Folder of a base model that a tier has fetched already: a control plane downloads no weights in a request.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``: a local folder is not there.
        Unavailable: ``BASE_NOT_FETCHED``: a hub model is not in the cache that the tiers share, not yet at least.
    """
    if not isinstance(entry.source, HubSource):
        return fetch(entry.source, catalog_path)
    try:
        # Never a download: it would block a request for minutes, and fill the API's disk with weights.
        cached = snapshot_download(
            entry.source.repo,
            revision=entry.source.revision,
            allow_patterns=list(MODEL_FILES),
            local_files_only=True,
        )
    except LocalEntryNotFoundError as error:
        raise not_fetched(entry.name, "the hub") from error
    return Path(cached)


def not_fetched(name: str, place: str) -> Unavailable:
    """The refusal of a job whose base this process has not got yet, and does not fetch in a request."""
    return Unavailable(
        Code.BASE_NOT_FETCHED,
        f"The base model {name} has not been fetched from {place} yet.",
        remedy="The serving tier fetches it when it starts; try again then. The API must share its folders, or have MENS_FETCH_BASES=true.",
        param="model",
    )
