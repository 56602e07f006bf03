"""Signs, verifies and stores the adapters that a run has made: its checkpoints and its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME, parse_manifest, verify_adapter
from shared.artifacts.signatures import SIGNATURE_NAME, sign_folder
from shared.artifacts.storage import Storage
from shared.database.adapters import NewAdapter
from shared.hashing import digest_file
from worker.run_folder import ADAPTER_FOLDER, list_checkpoints


def adapter_folders(run_dir: Path, withdrawn: Collection[str] = ()) -> list[Path]:
    """Return the run's checkpoint folders and, last, its result.

    Args:
        withdrawn: digests of checkpoints that were deleted during the run; they are left out.
    """
    checkpoints = [
        folder for folder in list_checkpoints(run_dir) if digest_file(folder / MANIFEST_NAME) not in withdrawn
    ]
    return [*checkpoints, run_dir / ADAPTER_FOLDER]


def sign_adapters(signing_key: Path | None, folders: Iterable[Path]) -> None:
    """Write a signature next to each manifest if this installation has a signing key."""
    if signing_key is None:
        return
    for folder in folders:
        sign_folder(folder, signing_key)


def store_adapters(storage: Storage, folders: Iterable[Path]) -> list[NewAdapter]:
    """Put a run's checkpoints and finally its result into storage, each under its manifest's digest."""
    adapters = {}
    for folder in folders:
        adapter = store_adapter(storage, folder, final=folder.name == ADAPTER_FOLDER)
        adapters[adapter.id] = adapter
    return sorted(adapters.values(), key=lambda adapter: (adapter.final, adapter.step))


def store_adapter(storage: Storage, folder: Path, *, final: bool) -> NewAdapter:
    """Verify an adapter folder against its manifest and store it: first the files, then the manifest."""
    digest = digest_file(folder / MANIFEST_NAME)
    manifest = parse_manifest((folder / MANIFEST_NAME).read_bytes(), digest)
    verify_adapter(folder, manifest)
    signed = [SIGNATURE_NAME] if (folder / SIGNATURE_NAME).is_file() else []
    storage.put_folder("adapters", digest, folder, [WEIGHTS_NAME, CONFIG_NAME, *signed], MANIFEST_NAME)
    return NewAdapter(
        id=manifest.adapter_id,
        digest=manifest.digest,
        base_model=manifest.base_model,
        step=manifest.step,
        final=final,
        published=False,
        manifest=manifest.model_dump(mode="json", exclude_none=True),
    )
