"""Source of a base to add: a folder, a GGUF file, or a hub repository pinned to a commit."""

from __future__ import annotations

import re
from pathlib import Path

from cli.client.connection import note
from cli.output import format_size
from cli.standalone.base_changes import check_name, refuse_copy
from cli.standalone.base_facts import check_base
from shared.base_models.catalog import (
    BaseModelEntry,
    HubSource,
    LocalSource,
    digest_model_folder,
    load_catalog,
    model_files,
    save_catalog,
)
from shared.errors import Code, InvalidRequest
from shared.settings import Settings

COMMIT = r"[0-9a-f]{40}"
REPOSITORY = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
DEFAULT_REVISION = "main"


def is_gguf(source: str) -> bool:
    """Return whether a source is meant as a GGUF file."""
    return source.lower().endswith(".gguf")


def default_name(source: str) -> str:
    """Return the catalogue name for a source without one: the repository's, the folder's or the file's name."""
    path = Path(source)
    if not path.exists() and re.fullmatch(REPOSITORY, source):
        return source
    stem = path.resolve().stem if is_gguf(source) else path.resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-") or "base"


def read_source(source: str, revision: str | None = None) -> LocalSource | HubSource:
    """Return a folder, or a hub repository at the current commit of its branch or tag.

    Raises:
        InvalidRequest: ``REQUEST_INVALID``: the source is neither.
        MensError: as :func:`pinned`.
    """
    if Path(source).is_dir():
        return LocalSource(path=source)
    if re.fullmatch(REPOSITORY, source):
        return pinned(source, revision)
    raise InvalidRequest(
        Code.REQUEST_INVALID,
        f"{source!r} is neither a folder, nor a GGUF file, nor the name of a hub repository.",
        remedy="Correct the path, or give a repository as OWNER/NAME.",
        param="source",
    )


def pinned(repo: str, revision: str | None = None) -> HubSource:
    """Return a hub repository at a commit, which is printed if the hub resolved it.

    Args:
        repo: OWNER/NAME.
        revision: a branch, a tag or a commit; None: the main branch.

    Raises:
        MensError: the repository or the revision is missing, private or gated, or the hub does not respond.
    """
    revision = revision or DEFAULT_REVISION
    if re.fullmatch(COMMIT, revision):
        return HubSource(repo=repo, revision=revision)
    from shared.base_models.hub import resolve_commit  # the hub's client is slow to import

    commit = resolve_commit(repo, revision)
    note(f"{repo}: {revision} is pinned to its current commit {commit}")
    return HubSource(repo=repo, revision=commit)


def add(
    settings: Settings,
    name: str,
    source: LocalSource | HubSource,
    license: str | None,
    learning_rate: float | None = None,
    *,
    checked: bool = False,
    allow_copy: bool = False,
) -> BaseModelEntry:
    """Fetch a source, check it, compute the digests of its files, and add it to the catalogue.

    Args:
        settings: settings of the installation.
        name: name in the catalogue.
        source: a relative path is relative to the catalogue, or, if it does not exist there, to the working directory.
        license: license, for the records.
        learning_rate: see :class:`BaseModelEntry`.
        checked: the folder was created by Mens.
        allow_copy: accept files that the catalogue has under another name.

    Raises:
        MensError: the source cannot be fetched, it can be neither tuned nor served, an alias has its name, or the
            catalogue has its files under another name.
    """
    from shared.base_models.hub import fetch  # the hub's client is slow to import

    check_name(settings, name)
    if isinstance(source, LocalSource) and not Path(source.path).is_absolute():
        resolved = settings.catalog_path.parent / source.path
        source = source if resolved.is_dir() else LocalSource(path=str(Path(source.path).resolve()))
    # Refuse an invalid name before a download and its digests.
    BaseModelEntry(name=name, source=source, digests={"config.json": "0" * 64})
    if isinstance(source, HubSource) and not allow_copy:  # a commit does not change, so this needs no download
        refuse_copy(settings, name, lambda base: base.source == source)
    folder = fetch(source, settings.catalog_path)
    if not checked:
        size = format_size(sum(file.stat().st_size for file in model_files(folder)))
        note(f"hashing and checking the files of {name} ({size})")
    digests = digest_model_folder(folder)
    if not allow_copy:
        refuse_copy(settings, name, lambda base: base.digests == digests)
    if not checked:
        check_base(folder)
    entry = BaseModelEntry(name=name, source=source, digests=digests, license=license, learning_rate=learning_rate)
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    return entry
