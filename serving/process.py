"""The objects of one serving process: its settings, its base model, its adapter store.

vLLM creates the guard middleware and the resolver itself, without passing settings to them. Both need the same settings
and the same adapter store, which they get from :func:`process_settings` and :func:`process_store`. No other code should
call these functions.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from serving.adapter_store import AdapterStore
from serving.settings import ServingSettings, load_settings
from shared.artifacts.base_folders import locate_base
from shared.artifacts.open_storage import open_storage
from shared.artifacts.signatures import read_trusted_keys
from shared.base_models.catalog import BaseModelEntry, load_catalog
from shared.errors import ArtifactInvalid, Code, InvalidRequest


def find_base(settings: ServingSettings) -> tuple[BaseModelEntry, Path]:
    """Find the base model to serve: its catalogue entry and its folder, fetched first if necessary.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``: the base in the catalogue has a different digest from the one in the
            settings.
    """
    entry = load_catalog(settings.catalog_path).get(settings.serving_base)
    # The engine keeps the base that it was started with. Without this check, it would load adapters of a different base
    # that was added under the same name later.
    if settings.serving_base_digest not in (None, entry.digest):
        raise ArtifactInvalid(
            Code.BASE_DIGEST_MISMATCH,
            f"The catalogue's {entry.name} is not the base model this replica was started for.",
            remedy="Restart the replica, so that it loads the current base of the catalogue.",
            param=entry.name,
        )
    return entry, locate_base(entry, settings)


def open_store(settings: ServingSettings) -> AdapterStore:
    """Open the store of the adapters that fit the settings' base model.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID``: the largest rank is not set.
        MensError: the errors of :func:`find_base`.
    """
    if settings.serving_max_lora_rank is None:
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            "MENS_SERVING_MAX_LORA_RANK: the engine's largest rank is unknown.",
            remedy="Start the engine with `python -m serving`, which chooses it and passes it on.",
            param="MENS_SERVING_MAX_LORA_RANK",
        )
    entry, folder = find_base(settings)
    return AdapterStore(
        open_storage(settings),
        base=entry,
        base_folder=folder,
        cache=settings.serving_cache_dir,
        max_rank=settings.serving_max_lora_rank,
        adapts_head=settings.adapts_head,
        trusted_keys=read_trusted_keys(settings.serving_trusted_keys) if settings.serving_trusted_keys else None,
        # With a size limit, do not keep adapters of an earlier process: the limit would not count them.
        keep=settings.serving_cache_bytes is None,
    )


@cache
def process_settings() -> ServingSettings:
    """Settings of this process, read once."""
    return load_settings()


@cache
def process_store() -> AdapterStore:
    """Adapter store of this process, opened at its first use."""
    return open_store(process_settings())
