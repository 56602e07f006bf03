"""Resolve an adapter id to a private, verified folder of adapter files.

    id  support@9f2c…  ─► manifest bytes from storage, SHA-256 = the id's digest
                       ─► this base, this rank?
                       ─► copy into a private folder ─► digests, shapes, values, config ─► rename to cache/<digest>

The engine reads only the cache, so it loads exactly the verified files, whatever happens to the storage afterwards. An
adapter exists as long as the storage has its manifest. A folder is removed from the cache when the manifest has been
deleted and the engine no longer needs the files (`middleware/unloading.py`). If the engine reloaded an adapter whose
files are missing, it would exit.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from serving.metrics import ADAPTER_FETCH_SECONDS, ADAPTER_FETCHES, ADAPTERS_VERIFIED, LOADED
from serving.private_cache import PrivateCache
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest, parse_manifest, verify_adapter, verify_base
from shared.artifacts.signatures import SIGNATURE_NAME, unsigned, verify_signature
from shared.artifacts.storage import Storage
from shared.base_models.catalog import BaseModelEntry
from shared.base_models.tensors import HEAD
from shared.base_models.weights import read_folder_tensors
from shared.errors import ArtifactInvalid, Code, InvalidRequest, MensError, NotFound
from shared.host import disk_errors, measure_folder
from shared.replicas import rank_remedy

ADAPTER_ID = re.compile(r"([a-z0-9][a-z0-9._-]{0,63})@([0-9a-f]{64})")
ADAPTER_DIGEST = re.compile("[0-9a-f]{64}")
LOCKS = 64


@dataclass(frozen=True, slots=True)
class ServableAdapter:
    """An adapter that this process has verified; ``bytes`` is the total size of its files."""

    adapter_id: str
    folder: Path
    manifest: AdapterManifest
    bytes: int


class AdapterStore:
    """Fetches and verifies adapters of one base model. Safe to call from many threads.

    Args:
        storage: storage of published adapters.
        base: the base model that is served.
        base_folder: the base's files; the shapes of its tensors are read from their headers, once.
        cache: parent folder; this process uses its own subfolder of it for the verified copies.
        max_rank: largest rank that the engine was started for.
        adapts_head: whether the engine accepts adapters of ``lm_head``.
        trusted_keys: public keys, one of which must have signed an adapter; None: signatures are not required.
        keep: whether to reuse adapters that an earlier process left in the cache.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        base: BaseModelEntry,
        base_folder: Path,
        cache: Path,
        max_rank: int,
        adapts_head: bool = True,
        trusted_keys: Collection[str] | None = None,
        keep: bool = True,
    ) -> None:
        self.base = base
        self.base_folder = base_folder
        self._storage = storage
        self._base_tensors = read_folder_tensors(base_folder)
        with disk_errors():
            self._cache = PrivateCache(cache, keep=lambda digest: keep and self._is_stored(digest))
        self._max_rank = max_rank
        self._adapts_head = adapts_head
        self._trusted_keys = trusted_keys
        self._verified: dict[str, ServableAdapter] = {}
        self._refused: dict[str, ArtifactInvalid] = {}
        # A fixed number of locks instead of one per digest: callers choose the digests, so their number is unlimited.
        self._locks = [threading.Lock() for _ in range(LOCKS)]

    def fetch(self, adapter_id: str) -> ServableAdapter:
        """Return the verified adapter, copied into the cache first if necessary.

        Raises:
            InvalidRequest: ``NAME_INVALID``: this is not an adapter id.
            NotFound: ``ADAPTER_NOT_FOUND``.
            ArtifactInvalid: the adapter is invalid and cannot be served; the error's code says why.
            Unavailable: ``STORAGE_FULL``.
        """
        digest = split_adapter_id(adapter_id)[1]
        with self._lock_of(digest):
            verified = self._verified.get(adapter_id)
            if verified is not None and verified.folder.is_dir():
                return verified
            started = time.perf_counter()
            try:
                manifest = self._servable_manifest(adapter_id, digest)
                if digest in self._refused:
                    raise self._refused[digest].with_traceback(None)
                folder = self._install(digest, manifest)
                adapter = ServableAdapter(adapter_id, folder, manifest, measure_folder(folder)[0])
            except MensError as error:
                ADAPTER_FETCHES.labels(str(error.code)).inc()
                raise
            self._verified[adapter_id] = adapter
            ADAPTER_FETCHES.labels(LOADED).inc()
            ADAPTER_FETCH_SECONDS.observe(time.perf_counter() - started)
            ADAPTERS_VERIFIED.set(len(self._verified))
            return adapter

    def cached(self) -> dict[str, int]:
        """Return the size in bytes of each adapter in the cache, by adapter id."""
        return {adapter.adapter_id: adapter.bytes for adapter in list(self._verified.values())}

    def is_stored(self, adapter_id: str) -> bool:
        """Return whether the storage has the adapter, valid or not.

        Raises:
            InvalidRequest: ``NAME_INVALID``.
        """
        return self._is_stored(split_adapter_id(adapter_id)[1])

    def remove(self, adapter_id: str) -> None:
        """Remove the adapter's verified files. The engine must no longer need them.

        Raises:
            InvalidRequest: ``NAME_INVALID``.
        """
        digest = split_adapter_id(adapter_id)[1]
        with self._lock_of(digest):
            self._verified.pop(adapter_id, None)
            self._refused.pop(digest, None)
            self._cache.remove(digest)
            ADAPTERS_VERIFIED.set(len(self._verified))

    def close(self) -> None:
        """Release the cache's folder to other processes."""
        self._cache.close()

    def _is_stored(self, digest: str) -> bool:
        return ADAPTER_DIGEST.fullmatch(digest) is not None and self._storage.holds("adapters", digest, MANIFEST_NAME)

    def _lock_of(self, digest: str) -> threading.Lock:
        return self._locks[int(digest[:8], 16) % LOCKS]

    def _servable_manifest(self, adapter_id: str, digest: str) -> AdapterManifest:
        """Return the stored manifest of an adapter that this replica can serve."""
        try:
            raw = self._storage.manifest_bytes("adapters", digest, MANIFEST_NAME)
        except NotFound:
            raise _not_found(adapter_id) from None
        manifest = parse_manifest(raw, digest)
        if manifest.digest != digest:
            raise _broken(MANIFEST_NAME, "its bytes are not in canonical form")
        if manifest.adapter_id != adapter_id:
            raise _not_found(adapter_id)
        if self._trusted_keys is not None:
            self._check_signature(digest)
        twin_of = self.base.twin_of
        # A twin has the weights that were used in training on its original, so the original's adapters fit it.
        if twin_of is None or manifest.base_digests != twin_of.digests:
            verify_base(manifest, self.base.digests)
        if manifest.rank > self._max_rank:
            raise ArtifactInvalid(
                Code.ADAPTER_RANK_TOO_LARGE,
                f"The adapter has rank {manifest.rank}; this replica serves ranks up to {self._max_rank}.",
                remedy=f"Train an adapter of a lower rank, or {rank_remedy(manifest.rank)}.",
                param="rank",
            )
        if not self._adapts_head and f"{HEAD}.weight" in manifest.base_key_map.values():
            raise ArtifactInvalid(
                Code.NOT_SERVABLE_HEAD,
                "The adapter changes lm_head. Replicas on a GPU do not serve such adapters.",
                remedy="Train it again without lm_head in adapter.target_modules, or serve it on a CPU.",
                param="target_modules",
            )
        return manifest

    def _check_signature(self, digest: str) -> None:
        try:
            raw = self._storage.manifest_bytes("adapters", digest, SIGNATURE_NAME)
        except NotFound:
            raise unsigned() from None
        verify_signature(raw, digest, self._trusted_keys)

    def _install(self, digest: str, manifest: AdapterManifest) -> Path:
        """Return the adapter's folder in the cache; a valid folder from an earlier process is reused."""
        target = self._cache.folder / digest
        if target.is_dir() and not target.is_symlink():
            # A folder that is damaged now was valid once: it is fetched again below, and the adapter is not refused
            # for it.
            with suppress(MensError):
                self._verify(target, manifest)
                # The engine must find exactly the files that the manifest names, so an extra file is refused too.
                if {path.name for path in target.iterdir()} == manifest.files.keys():
                    return target
        with disk_errors(), self._cache.incoming() as private:
            folder = private / digest
            folder.mkdir(mode=0o700)
            self._storage.fetch_folder("adapters", digest, sorted(manifest.files), folder)
            # Verified under the private name, so that a crash never leaves an unverified folder under a name that
            # vLLM loads.
            self._verify(folder, manifest)
            # An invalid folder is moved away first: a rename does not replace a folder that has files.
            if os.path.lexists(target):
                target.rename(private / "invalid")
            folder.rename(target)
        return target

    def _verify(self, folder: Path, manifest: AdapterManifest) -> None:
        """Verify the files. If the published bytes are invalid, remember the error, so that they are not verified
        again.
        """
        try:
            verify_adapter(folder, manifest, self._base_tensors)
        except ArtifactInvalid as error:
            # If the bytes differ from the published ones, the storage may be repaired later, so this error is not
            # remembered.
            if error.code is not Code.ADAPTER_DIGEST_MISMATCH:
                self._refused[manifest.digest] = error
            raise
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            # The digests match, so the unreadable file was published that way.
            refusal = _broken(str(folder.name), f"a file cannot be read ({type(error).__name__})")
            self._refused[manifest.digest] = refusal
            raise refusal from error


def split_adapter_id(adapter_id: str) -> tuple[str, str]:
    """Split an adapter id into name and digest. Neither can contain a path separator, so both are safe as file names.

    Raises:
        InvalidRequest: ``NAME_INVALID``.
    """
    match = ADAPTER_ID.fullmatch(adapter_id)
    if match is None:
        raise InvalidRequest(
            Code.NAME_INVALID,
            f"{adapter_id[:200]!r} is not an adapter id.",
            remedy="Use an id of the form <name>@<64 hexadecimal digits>, as GET /v1/models lists it.",
            param="model",
        )
    return match[1], match[2]


def _not_found(adapter_id: str) -> NotFound:
    return NotFound(
        Code.ADAPTER_NOT_FOUND,
        f"The adapter {adapter_id} is not published or does not exist.",
        remedy="List the adapters; if it was just published, check that every tier uses the same storage.",
        param="model",
    )


def _broken(name: str, reason: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.ADAPTER_MANIFEST_INVALID,
        f"{name} is broken: {reason}.",
        remedy="Train or import the adapter again.",
        param=name,
    )
