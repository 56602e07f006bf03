"""Bases that are made from other bases: the dequantised twin of a base, and a merged model."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress

from pydantic import ValidationError

from cli.client.connection import fail, fail_with
from cli.standalone.base_changes import check_name, refuse_copy
from cli.standalone.worker_programs import run_worker_program
from shared.artifacts.base_folders import fetch_merged, stored_manifest
from shared.artifacts.merge_fidelity import PROBES_NAME, MergeProbes
from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import Storage
from shared.base_models.catalog import (
    BaseModelEntry,
    LocalSource,
    MergedFrom,
    TwinOf,
    digest_model_folder,
    load_catalog,
    save_catalog,
    verify_model_folder,
)
from shared.errors import ArtifactInvalid, Code, Conflict, NotFound
from shared.settings import Settings

DIGEST_BEGINNING = r"[0-9a-f]{8,64}"


def dequantize(settings: Settings, name: str, twin: str, *, double_quant: bool = True) -> BaseModelEntry:
    """Create the dequantised twin of a base and add it to the catalogue.

    Raises:
        MensError: the base is missing, its files are not those of the catalogue, an alias has the twin's name, or the
            base has such a twin under another name.
    """
    from shared.base_models.hub import locate

    catalog = load_catalog(settings.catalog_path)
    original = catalog.get(name)
    if original.twin_of:
        fail(f"{name} is itself the twin of {original.twin_of.name}.")
    folder = settings.home / "bases" / twin
    source = LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent))
    origin = TwinOf(name=name, digests=original.digests, double_quant=double_quant)
    # Checked before any work: an invalid name must not become a folder.
    draft = original.model_copy(update={"source": source, "twin_of": origin})
    draft = BaseModelEntry.model_validate({**draft.model_dump(), "name": twin})
    if folder.exists() or any(base.name == twin for base in catalog.bases):
        fail(f"{twin} already exists; give the twin another name with --as.")
    check_name(settings, twin)
    refuse_copy(settings, twin, lambda base: base.twin_of == origin)
    base = locate(original, settings.catalog_path)
    verify_model_folder(original, base)
    run_worker_program("worker.dequantize", str(base), str(folder), *([] if double_quant else ["--no-double-quant"]))
    entry = draft.model_copy(update={"digests": digest_model_folder(folder)})
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    return entry


def add_merged(settings: Settings, digest: str, name: str | None = None) -> BaseModelEntry:
    """Copy a merged model out of the storage, verify the copy, and add it to the catalogue.

    Args:
        digest: digest of the merged model's manifest.
        name: name in the catalogue; None: the adapter's name with ``-merged``.

    Raises:
        MensError: the model does not exist or is damaged, an alias has this name, or the catalogue has the model under
            another name.
    """
    storage = open_storage(settings)
    manifest = stored_manifest(storage, digest)
    probes = _probes(storage, digest)
    catalog = load_catalog(settings.catalog_path)
    original = next((base for base in catalog.bases if base.digests == manifest.base_digests), None)
    name = name or f"{manifest.adapter_id.partition('@')[0]}-merged"
    folder = settings.home / "bases" / name
    source = LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent))
    # Before any work: an invalid name must not become a folder.
    entry = BaseModelEntry(
        name=name,
        source=source,
        digests=manifest.files,
        license=original.license if original else None,
        learning_rate=original.learning_rate if original else None,
        merged_from=MergedFrom(
            digest=digest,
            adapter_id=manifest.adapter_id,
            base_model=manifest.base_model,
            probes_digest=hashlib.sha256(probes).hexdigest(),
        ),
        template_arguments=dict(manifest.template_arguments or {}),
    )
    if folder.exists() or any(base.name == name for base in catalog.bases):
        fail(f"{name} already exists; give the merged model another name with --as.")
    check_name(settings, name)
    refuse_copy(settings, name, lambda base: base.merged_from is not None and base.merged_from.digest == digest)
    fetch_merged(storage, digest, folder)
    entry = entry.model_copy(update={"digests": digest_model_folder(folder)})
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    return entry


def _probes(storage: Storage, digest: str) -> bytes:
    """Return the probes that measure the replicas of a merged model.

    Raises:
        ArtifactInvalid: ``MODEL_UNCERTIFIED``: an earlier release has merged it.
    """
    with suppress(NotFound):
        raw = storage.manifest_bytes("models", digest, PROBES_NAME)
        with suppress(ValidationError):
            if MergeProbes.model_validate_json(raw).model_digest == digest:
                return raw
    raise ArtifactInvalid(
        Code.MODEL_UNCERTIFIED,
        f"The merged model {digest} is stored without the scores that replicas are checked against ({PROBES_NAME}).",
        remedy="Merge the adapter again: this stores the same model with its scores.",
        param=PROBES_NAME,
    )


def merged_base(settings: Settings, digest: str) -> BaseModelEntry | None:
    """Return the base of a merged model, by its digest or a prefix of it; add it to the catalogue first if necessary.

    Returns:
        None if no merged model has this digest.

    Raises:
        MensError: as :func:`add_merged`.
    """
    if not re.fullmatch(DIGEST_BEGINNING, digest):
        return None
    for base in load_catalog(settings.catalog_path).bases:
        if base.merged_from and base.merged_from.digest.startswith(digest):
            return base
    digests = [stored for stored in open_storage(settings).digests("models") if stored.startswith(digest)]
    if len(digests) > 1:
        message = f"{len(digests)} merged models have a digest that begins with {digest}."
        fail_with(Conflict(Code.ID_AMBIGUOUS, message, remedy="Give more of its digits.", details={"ids": digests}))
    return add_merged(settings, digests[0]) if digests else None
