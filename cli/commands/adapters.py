"""``mens adapter``: adapters as files: import what the original trained, export, make a signing key, verify a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.connection import call, fail, note
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.lineage import describe_lineage
from cli.commands.jobs import upload, watch_job
from cli.export.download import download
from cli.export.formats import Format, write
from cli.export.handoff import Backend
from cli.export.mlflow_model import check_installed
from cli.export.oci_layout import is_layout, read_layout
from cli.export.ollama.modelfile import plan_model
from shared.artifacts.manifests import (
    MANIFEST_NAME,
    MODEL_MANIFEST_NAME,
    AdapterManifest,
    parse_manifest,
    verify_adapter,
)
from shared.artifacts.merged_models import read_model_manifest, verify_merged_folder, verify_model_signature
from shared.artifacts.original_layout import MAX_SIDECAR_BYTES, ORIGINAL_WEIGHTS, SIDECAR_NAMES, parse_sidecar
from shared.artifacts.signatures import (
    SIGNATURE_NAME,
    Signature,
    make_key,
    read_trusted_keys,
    unsigned,
    verify_signature,
)
from shared.artifacts.storage import is_digest
from shared.errors import MensError
from shared.hashing import digest_file

app = typer.Typer(no_args_is_help=True, help="Adapters as files: import, export, sign, verify.")

NEEDS_CRYPTOGRAPHY = "Signatures need the package cryptography: pip install 'mens[signatures]'."


@app.command("export")
def export(
    adapter: Annotated[str, typer.Argument(help="Adapter id or its beginning, or an alias.")],
    to: Annotated[Path, typer.Option("--to", help="Folder to write; it must be empty or not there yet.")],
    layout: Annotated[
        Format,
        typer.Option(
            "--format",
            help="peft: the folder that peft and vLLM load; original: the original's names; hf: a Hugging Face repository; "
            "oci: an OCI image layout for registries; ollama: a Modelfile, with --model-folder; mlflow: a model for mlflow.pyfunc.",
        ),
    ] = Format.PEFT,
    handoff: Annotated[
        Backend | None,
        typer.Option(
            help="Also write external_serving_handoff_v1.json for this runtime; ollama's comes with its format."
        ),
    ] = None,
    model_folder: Annotated[
        Path | None,
        typer.Option(
            help="For ollama: the adapter's merged model (`mens base from-merge`), or its base where Ollama converts adapters of it.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="For ollama: what it builds from in place of that folder, e.g. a GGUF file made of it; not checked.",
        ),
    ] = None,
) -> None:
    """Export an adapter with its model card. Every byte is checked against its manifest first (docs/adapters.md)."""
    if (layout is Format.OLLAMA) != (model_folder is not None):
        fail(
            "--format ollama and --model-folder go together: the folder has the chat template that the Modelfile says."
        )
    if (handoff is Backend.OLLAMA and layout is not Format.OLLAMA) or (source and not model_folder):
        fail("Ollama's handoff and --from come with --format ollama.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        fail(f"{to} is not an empty folder; name another one with --to.")
    if layout is Format.MLFLOW:
        check_installed()
    record = call("GET", f"/v1/adapters/{quote(resolve_adapter_id(adapter), safe='')}")
    if record["state"] != "published":
        note(f"{record['id']} is {record['state']}: it has no certificate that a replica measured and passed.")
    with tempfile.TemporaryDirectory(prefix="mens-export-") as folder:
        found = download(record["id"], Path(folder))
        ollama = plan_model(model_folder, found.manifest, source) if model_folder else None
        to.mkdir(parents=True, exist_ok=True)
        advice = write(found, to, layout, handoff, ollama)
    typer.echo(f"{record['id']} is in {to}: {advice}")


@app.command("import")
def import_command(
    path: Annotated[
        Path,
        typer.Argument(
            help=f"The original's run folder, or its {ORIGINAL_WEIGHTS}; the sidecar lies beside it.", exists=True
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", help="The base that it was trained on, by its name in the catalogue.")
    ],
    name: Annotated[str, typer.Option("--name", help="First part of the adapter's id.")] = "imported",
    sidecar: Annotated[
        Path | None, typer.Option(help=f"The sidecar, where it is not one of {', '.join(SIDECAR_NAMES)}.", exists=True)
    ] = None,
    alias: Annotated[str | None, typer.Option(help="Alias to move to it once it is published.")] = None,
    publish: Annotated[
        bool, typer.Option(help="Measure it on every replica and serve it; else it is stored only.")
    ] = True,
    watch: Annotated[bool, typer.Option(help="Follow the job until it ends.")] = True,
) -> None:
    """Import an adapter that the original trained: its version 2 or 3, from either era.

    It becomes an adapter like those that are trained here, or is refused with what it lacks. It is served once its effect, the chat
    template and the engine's error were measured on every replica. See docs/adapters.md.
    """
    weights, beside = find_files(path, sidecar)
    try:
        with beside.open("rb") as file:
            parse_sidecar(file.read(MAX_SIDECAR_BYTES + 1))
    except MensError as error:
        fail(str(error))  # before gigabytes are uploaded for nothing
    contract: dict[str, Any] = {"model": model, "name": name, "publish": publish, "alias": alias}
    contract |= {"weights_file": upload(weights), "sidecar_file": upload(beside)}
    job = call("POST", "/v1/jobs", json={"kind": "import", "contract": contract})
    typer.echo(job["id"])
    if watch:
        watch_job(job["id"])


def find_files(path: Path, sidecar: Path | None) -> tuple[Path, Path]:
    """The weights and their sidecar; ends the command when one of them is not there."""
    weights = path / ORIGINAL_WEIGHTS if path.is_dir() else path
    if weights.suffix.lower() != ".safetensors" or not weights.is_file():
        fail(f"{weights} is no safetensors file; the original's adapter is {ORIGINAL_WEIGHTS}.")
    beside = sidecar or next((file for each in SIDECAR_NAMES if (file := weights.with_name(each)).is_file()), None)
    if beside is None:
        fail(f"There is no {', '.join(SIDECAR_NAMES)} beside {weights.name}; name the sidecar with --sidecar.")
    return weights, beside


@app.command("keygen")
def keygen(
    path: Annotated[Path, typer.Argument(help="File that receives the private key; it must not exist.")],
) -> None:
    """Make an Ed25519 key that signs adapters and merged models, and print its public key.

    Workers sign with MENS_SIGNING_KEY=FILE. Replicas refuse whatever is not signed by a key of MENS_SERVING_TRUSTED_KEYS, a file with one
    public key a line.
    """
    try:
        typer.echo(make_key(path))
    except ModuleNotFoundError:
        fail(NEEDS_CRYPTOGRAPHY)
    except OSError as error:
        fail(f"The key cannot be written to {path}: {error.strerror}.")


@app.command("verify")
def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of an adapter or a merged model: adapters/DIGEST or models/DIGEST of the storage, or an export (peft, hf, ollama, oci).",
            exists=True,
        ),
    ],
    trusted: Annotated[
        Path | None,
        typer.Option(help="File of public keys, one a line; the signature must be of one of them.", exists=True),
    ] = None,
) -> None:
    """Check the folder of an adapter or a merged model without any server; print what it is made from and what was measured.

    Checked are every digest, tensor and number of an adapter, every file of a merged model, and the signature. Ends with code 1, and the
    reason, when anything is not as the manifest says.
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
        fail(str(error))
    typer.echo(title)
    for name, value in rows:
        typer.echo(f"  {name:10} {value}")


Rows = list[tuple[str, str]]


def describe_adapter_folder(folder: Path, trusted: Collection[str] | None) -> tuple[str, Rows]:
    """Id of a verified adapter, and what it is made from. Raises what :func:`verify_folder` raises."""
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
    """Digest of a verified merged model, and what it is made from.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``, ``BASE_FILE_UNKNOWN``, ``MODEL_UNSIGNED``, ``MODEL_SIGNATURE_INVALID``.
    """
    manifest = read_model_manifest(folder)
    _check_folder_name(folder, MODEL_MANIFEST_NAME, manifest.digest)
    measured = verify_merged_folder(folder, manifest)
    signature = verify_model_signature(folder, manifest, trusted)
    rows = [
        ("files", f"{len(manifest.files)} as stored"),
        ("signature", _describe_signature(signature, trusted)),
        ("base", f"{manifest.base_model} ({manifest.base_weights}), {len(manifest.base_digests)} files by digest"),
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
    """End the command for a folder that is named after another manifest.

    In the storage a folder's name is the manifest's digest; elsewhere the signature alone says which manifest was meant.
    """
    name = folder.resolve().name
    if is_digest(name) and name != digest:
        fail(f"{manifest_name} is not the one of {name}: its SHA-256 is {digest}.")


def verify_folder(folder: Path, trusted: Collection[str] | None) -> tuple[AdapterManifest, Signature | None]:
    """An adapter folder's manifest and signature, once everything in it is as they say.

    Raises:
        MensError: with the code of what is wrong; ``ADAPTER_UNSIGNED`` where a signature is asked for.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        fail(f"{folder} holds no {MANIFEST_NAME}.")
    digest = digest_file(path)
    manifest = parse_manifest(path.read_bytes(), digest)
    _check_folder_name(folder, MANIFEST_NAME, digest)
    verify_adapter(folder, manifest)
    beside = folder / SIGNATURE_NAME
    if beside.is_file():
        return manifest, verify_signature(beside.read_bytes(), digest, trusted)
    if trusted is not None:
        raise unsigned()
    return manifest, None
