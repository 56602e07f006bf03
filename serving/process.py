"""From settings to the objects of one serving process.

vLLM builds the wall and the resolver itself and hands them no settings, so the vLLM process has two entry points of
ours that share one store. :func:`process_settings` and :func:`process_store` are for those two only.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from serving.adapters import AdapterStore
from serving.settings import ServingSettings, load_settings
from shared.catalog import BaseModelEntry, load_catalog
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hub import locate
from shared.storage import Storage


def find_base(settings: ServingSettings) -> tuple[BaseModelEntry, Path]:
    """The base model to serve: its catalogue entry and its folder, fetched first if it must be.

    Raises:
        NotFound: ``MODEL_NOT_FOUND``. InvalidRequest: ``CATALOG_INVALID``. Unavailable: ``HUB_UNAVAILABLE``.
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``: the catalogue names another base than the settings ask for.
    """
    entry = load_catalog(settings.catalog_path).get(settings.serving_base)
    # The engine holds the base of its start. Without this, adapters of a later base would be let onto it.
    if settings.serving_base_digest not in (None, entry.digest):
        raise ArtifactInvalid(
            Code.BASE_DIGEST_MISMATCH,
            f"The catalogue's {entry.name} is not the base model this replica was started for.",
            remedy="Start the replica again, so that it loads the base that the catalogue names now.",
            param=entry.name,
        )
    return entry, locate(entry, settings.catalog_path)


def open_store(settings: ServingSettings) -> AdapterStore:
    """The adapters that fit the settings' base model.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the largest rank is open still; else what :func:`find_base` raises.
    """
    if settings.serving_max_lora_rank is None:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            "MENS_SERVING_MAX_LORA_RANK: the engine's largest rank is not known.",
            remedy="Start the engine with `python -m serving`, which chooses it and hands it down.",
            param="MENS_SERVING_MAX_LORA_RANK",
        )
    entry, folder = find_base(settings)
    return AdapterStore(
        Storage(settings.storage_dir),
        base=entry,
        base_folder=folder,
        cache=settings.serving_cache_dir,
        max_rank=settings.serving_max_lora_rank,
    )


@cache
def process_settings() -> ServingSettings:
    """Settings of this process, read once."""
    return load_settings()


@cache
def process_store() -> AdapterStore:
    """Store of this process, opened at its first use."""
    return open_store(process_settings())
