"""``python -m shared.retention.verification``: verify that the storage has everything in the database, byte for byte.

An operator runs it after a restore, wherever a tier is installed; `mens storage verify` is the same. It reads every
byte.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError

from shared.artifacts.manifests import MANIFEST_NAME, MODEL_MANIFEST_NAME, FileName
from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import ArtifactKind, Storage, changed_blob
from shared.base_models.catalog import Sha256
from shared.database.connection import Database
from shared.errors import ArtifactInvalid, Code, MensError, NotFound
from shared.hashing import digest_stream
from shared.retention.checkpoints import CHECKPOINT_MANIFEST_NAME
from shared.retention.references import Reference, references
from shared.settings import Settings, read_settings

ARTIFACTS: dict[str, tuple[ArtifactKind, str]] = {
    "adapter": ("adapters", MANIFEST_NAME),
    "merged model": ("models", MODEL_MANIFEST_NAME),
    "checkpoint": ("checkpoints", CHECKPOINT_MANIFEST_NAME),
}
"""Kind and manifest of objects that are stored as several files; all others are one blob."""


class Verified(Reference):
    """A reference, and the fault of the object that it names; None if it is sound."""

    error: str | None


class ListedFiles(BaseModel):
    """The part that manifests of all kinds have in common."""

    files: dict[FileName, Sha256]


def verify_references(database: Database, storage: Storage) -> Iterator[Verified]:
    """Read every object that rows name, each content once, and compare it with its digest. Nothing is changed.

    It may run while the installation is in use: objects that are deleted meanwhile are left out.
    """
    faults: dict[tuple[bool, str], str | None] = {}
    for reference in references(database):
        content = (reference.what in ARTIFACTS, reference.digest)
        if content not in faults:
            faults[content] = _fault(storage, reference)
        if faults[content] is None or reference in references(database):
            yield Verified(**reference.model_dump(), error=faults[content])


def _fault(storage: Storage, reference: Reference) -> str | None:
    try:
        if artifact := ARTIFACTS.get(reference.what):
            _read_artifact(storage, *artifact, reference.digest)
        else:
            _read_blob(storage, reference.digest)
    except (NotFound, ArtifactInvalid) as error:
        return error.message
    return None


def _read_blob(storage: Storage, sha256: str) -> None:
    with storage.open_blob(sha256) as stream:
        if digest_stream(stream) != sha256:
            raise changed_blob(sha256)


def _read_artifact(storage: Storage, kind: ArtifactKind, manifest: str, digest: str) -> None:
    raw = storage.manifest_bytes(kind, digest, manifest)
    if hashlib.sha256(raw).hexdigest() != digest:
        raise _changed(manifest)
    try:
        files = ListedFiles.model_validate_json(raw).files
    except ValidationError:
        raise _changed(manifest) from None
    for name, sha256 in files.items():
        with storage.open_file(kind, digest, name) as stream:
            if digest_stream(stream) != sha256:
                raise _changed(name)


def _changed(name: str) -> ArtifactInvalid:
    return ArtifactInvalid(
        Code.STORAGE_OBJECT_MISSING,
        f"{name} was changed: its SHA-256 differs from that of the stored file.",
        remedy="Restore it from a backup.",
        param=name,
    )


def main() -> int:
    """Print a JSON line for everything that is missing or changed.

    Returns:
        1 if anything is missing or changed or could not be read, or if the home does not contain an installation.
    """
    settings = read_settings(Settings)
    database = Database(settings.database_url)
    if not database.exists:
        print(
            f"error: {settings.home} does not contain an installation. Set MENS_HOME to the home of an installation.",
            file=sys.stderr,
        )
        return 1
    count = faults = 0
    try:
        for verified in verify_references(database, open_storage(settings)):
            count += 1
            if verified.error is not None:
                faults += 1
                print(verified.model_dump_json())
    except MensError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        database.close()
    print(f"{count - faults} verified, {faults} missing or changed", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
