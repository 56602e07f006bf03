"""Locate and download base models: local folders, and hub repositories pinned to a commit.

Only the model files that `shared/base_models/catalog.py` lists are downloaded (safetensors, never pickle, never code).
They are kept in the hub client's own cache, so every tier on a machine shares one copy.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from shared.base_models.catalog import MODEL_FILES, BaseModelEntry, HubSource, LocalSource
from shared.errors import Code, Forbidden, InvalidRequest, MensError, NotFound, Unavailable

RESOLVE_SECONDS = 30.0


def locate(entry: BaseModelEntry, catalog_path: Path) -> Path:
    """Return the folder with the base model's files, downloaded first if necessary."""
    return fetch(entry.source, catalog_path)


def fetch(source: LocalSource | HubSource, catalog_path: Path) -> Path:
    """Return the folder of a source; see :func:`locate`.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``: the folder or the repository does not exist.
        Forbidden: ``HUB_ACCESS_DENIED``.
        Unavailable: ``HUB_UNAVAILABLE``: no response from the hub and nothing in its cache.
    """
    if isinstance(source, LocalSource):
        folder = (catalog_path.parent / source.path).resolve()
        if not folder.is_dir():
            raise NotFound(
                Code.MODEL_NOT_FOUND, f"The base model's folder {folder} does not exist.", param="source.path"
            )
        return folder
    try:
        return Path(snapshot_download(source.repo, revision=source.revision, allow_patterns=list(MODEL_FILES)))
    # LocalEntryNotFoundError: the hub is unreachable and the cache has no copy. HTTP errors are not OSErrors.
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx2.HTTPError, OSError) as error:
        raise _hub_error(source.repo, source.revision, error) from error


def resolve_commit(repo: str, revision: str = "main") -> str:
    """Return the commit (40 hex digits) that a branch, a tag or a commit of a hub repository refers to now.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``.
        Forbidden: ``HUB_ACCESS_DENIED``: gated, and this token may not read it.
        Unavailable: ``HUB_UNAVAILABLE``.
        InvalidRequest: ``REQUEST_INVALID``: not the name of a repository.
    """
    try:
        commit = HfApi(library_name="mens").model_info(repo, revision=revision, timeout=RESOLVE_SECONDS).sha
    except HFValidationError as error:
        raise InvalidRequest(
            Code.REQUEST_INVALID,
            f"{repo!r} is not a folder, a GGUF file or the name of a hub repository.",
            remedy="Correct the path, or give a repository as OWNER/NAME.",
            param="source",
        ) from error
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise _hub_error(repo, revision, error) from error
    if commit is None:
        raise _hub_error(repo, revision, OSError("the hub does not return a commit"))
    return commit


def _hub_error(repo: str, revision: str, error: Exception) -> MensError:
    """Convert an error of the hub's client to ours, with its code."""
    if isinstance(error, GatedRepoError):
        return Forbidden(
            Code.HUB_ACCESS_DENIED,
            f"{repo} is gated, and its owner has not granted access to this token.",
            remedy=f"Accept its terms on the model's page at the hub, then set HF_TOKEN to a token of that account ({repo}).",
            param="repo",
        )
    if isinstance(error, RevisionNotFoundError):
        return NotFound(
            Code.MODEL_NOT_FOUND,
            f"The hub's repository {repo} has no branch, tag or commit {revision!r}.",
            remedy="Leave --revision out for its main branch, or name one that exists at the hub.",
            param="revision",
        )
    # The hub does not distinguish a private repository from a missing one.
    if isinstance(error, RepositoryNotFoundError) or _status(error) in (401, 403):
        return NotFound(
            Code.MODEL_NOT_FOUND,
            f"The hub has no repository {repo}, or it is private and this token may not read it.",
            remedy="Check the name; for a private repository set HF_TOKEN to a token that may read it.",
            param="repo",
        )
    return Unavailable(
        Code.HUB_UNAVAILABLE,
        f"{repo} could not be fetched: {(str(error).splitlines() or [type(error).__name__])[0]}.",
        remedy="Check the network (HF_ENDPOINT, HTTPS_PROXY), or copy the model to a folder and add that: `mens base add NAME FOLDER`.",
    )


def _status(error: Exception) -> int | None:
    """Return the HTTP status of the hub's response; None if the hub did not respond."""
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def locate_fetched(entry: BaseModelEntry, catalog_path: Path) -> Path:
    """Return the folder of a base that a tier has already fetched; download nothing, because a control plane must not
    fetch weights during a request.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``: a local folder does not exist.
        Unavailable: ``BASE_NOT_FETCHED``: a hub model is not (yet) in the cache that the tiers share.
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
    """Return the refusal of a job whose base this process has not fetched yet; it does not fetch a base during a
    request.
    """
    return Unavailable(
        Code.BASE_NOT_FETCHED,
        f"The base model {name} has not been fetched from {place} yet.",
        remedy=f"Start a replica of it, which fetches it (`mens up --base {name}`), then try again. If the API shares no folder with"
        " its replicas, set MENS_FETCH_BASES=true.",
        param="model",
    )
