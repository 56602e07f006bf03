"""``mens adapter verify``: checks a folder without any server, and shows its lineage."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import fail, fail_with
from cli.client.lineage import describe_lineage
from cli.export.oci_layout import is_layout, read_layout
from shared.artifacts.manifests import (
    MANIFEST_NAME,
    MODEL_MANIFEST_NAME,
    AdapterManifest,
    parse_manifest,
    verify_adapter,
)
from shared.artifacts.merged_models import read_model_manifest, verify_merged_folder, verify_model_signature
from shared.artifacts.signatures import (
    SIGNATURE_NAME,
    Signature,
    read_trusted_keys,
    unsigned,
    verify_signature,
)
from shared.artifacts.storage import is_digest
from shared.counted_nouns import counted
from shared.errors import MensError
from shared.hashing import digest_file

NEEDS_CRYPTOGRAPHY = "Signatures need the package cryptography: pip install 'mens[signatures]'."


def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            help=(
                "The folder of an adapter or a merged model: adapters/DIGEST or models/DIGEST of the storage, or an "
                "export (peft, hf, ollama, oci)."
            ),
            exists=True,
        ),
    ],
    trusted: Annotated[
        Path | None,
        typer.Option(help="File of public keys, one per line; the signature must be by one of them.", exists=True),
    ] = None,
) -> None:
    """Check the folder of an adapter or a merged model without any server; print what it is made from and what was measured.

    It checks every digest, tensor and number of an adapter, every file of a merged model, and the signature. Exit code
    1, with the reason, if anything differs from the manifest.
    """
    try:
        keys = read_trusted_keys(trusted) if trusted else None
        if is_layout(folder):
            with tempfile.TemporaryDirectory(prefix="mens-verify-") as files:
                read_layout(folder, Path(files))
                title, rows = describe_adapter_folder(Path(files), keys)
        else:
            describe = describe_merged_folder if (folder / MODEL_MANIFEST_NAME).is_file() else describe_adapter_folder
            title, rows = describe(folder, keys)
    except ModuleNotFoundError:
        fail(NEEDS_CRYPTOGRAPHY)
    except MensError as error:
        fail_with(error)
    typer.echo(title)
    for name, value in rows:
        typer.echo(f"  {name:10} {value}")


Rows = list[tuple[str, str]]


def describe_adapter_folder(folder: Path, trusted: Collection[str] | None) -> tuple[str, Rows]:
    """Return the id of a verified adapter, and its lineage. Raises the errors of :func:`verify_folder`."""
    manifest, signature = verify_folder(folder, trusted)
    rows = [
        ("files", f"{len(manifest.files)} as published"),
        ("signature", _describe_signature(signature, trusted)),
        (
            "trained",
            f"{manifest.adapter_method} over {manifest.quant.base_quant}, rank {manifest.rank}, step {manifest.step}",
        ),
        ("layers", str(len(manifest.base_key_map))),
        *describe_lineage(manifest.model_dump(mode="json")),
    ]
    return manifest.adapter_id, rows


def describe_merged_folder(folder: Path, trusted: Collection[str] | None) -> tuple[str, Rows]:
    """Return the digest of a verified merged model, and its lineage."""
    manifest = read_model_manifest(folder)
    _check_folder_name(folder, MODEL_MANIFEST_NAME, manifest.digest)
    measured = verify_merged_folder(folder, manifest)
    signature = verify_model_signature(folder, manifest, trusted)
    rows = [
        ("files", f"{len(manifest.files)} as stored"),
        ("signature", _describe_signature(signature, trusted)),
        (
            "base",
            f"{manifest.base_model} ({manifest.base_weights}), {counted(len(manifest.base_digests), 'file')} by digest",
        ),
        ("adapter", manifest.adapter_id),
    ]
    if measured:
        kl = measured.adapter_divergence.mean_kl_nats
        rows.append(("fidelity", f"{kl:.1e} nats from base + adapter, limit {measured.limit_nats:.0e}"))
    return f"merged model {manifest.digest}", rows


def _describe_signature(signature: Signature | None, trusted: Collection[str] | None) -> str:
    if signature is None:
        return "none"
    return f"by {signature.public_key}" + ("" if trusted is not None else " (not compared with keys you trust)")


def _check_folder_name(folder: Path, manifest_name: str, digest: str) -> None:
    """End the command for a folder that is named after another manifest."""
    # In the storage a folder's name is the manifest's digest; elsewhere only the signature shows which one was meant.
    name = folder.resolve().name
    if is_digest(name) and name != digest:
        fail(f"{manifest_name} is not the one of {name}: its SHA-256 is {digest}.")


def verify_folder(folder: Path, trusted: Collection[str] | None) -> tuple[AdapterManifest, Signature | None]:
    """Verify an adapter folder and return its manifest and signature."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        fail(f"{folder} contains no {MANIFEST_NAME}.")
    digest = digest_file(path)
    manifest = parse_manifest(path.read_bytes(), digest)
    _check_folder_name(folder, MANIFEST_NAME, digest)
    verify_adapter(folder, manifest)
    signature_file = folder / SIGNATURE_NAME
    if signature_file.is_file():
        return manifest, verify_signature(signature_file.read_bytes(), digest, trusted)
    if trusted is not None:
        raise unsigned()
    return manifest, None
