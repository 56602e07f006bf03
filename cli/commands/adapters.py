"""``mens adapter``: adapters as files: import what other programs trained, export, make a signing key, verify a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.client.adapter_folder import DESCRIPTION_NAMES, read_adapter_folder
from cli.client.completion import complete_model
from cli.client.connection import call, fail, fail_with, note
from cli.client.id_prefixes import resolve_adapter_id
from cli.client.start_command import note_base
from cli.client.uploads import RequestUploads
from cli.commands.jobs.watch import watch_job
from cli.commands.verify import NEEDS_CRYPTOGRAPHY, verify
from cli.export import hub
from cli.export.download import download
from cli.export.formats import Format, write
from cli.export.handoff import Backend
from cli.export.mlflow_model import check_installed
from cli.export.ollama.modelfile import plan_model
from cli.options import TemplateArgument, parse_template_arguments
from shared.artifacts.manifests import WEIGHTS_NAME
from shared.artifacts.original_layout import ORIGINAL_WEIGHTS
from shared.artifacts.signatures import make_key
from shared.errors import MensError

app = typer.Typer(no_args_is_help=True, help="Adapters as files: import, export, sign, verify.")


@app.command("export")
def export(
    adapter: Annotated[
        str, typer.Argument(autocompletion=complete_model, help="Adapter id or its beginning, or an alias.")
    ],
    to: Annotated[Path, typer.Option("--to", help="Folder to write; it must be empty or not exist yet.")],
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
            help="Also write external_serving_handoff_v1.json for this runtime; the format ollama always writes its own."
        ),
    ] = None,
    model_folder: Annotated[
        Path | None,
        typer.Option(
            help="For ollama: folder of the adapter's merged model (`mens base from-merge`), or of its base if Ollama can convert adapters of it.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="For ollama: build from this (e.g. a GGUF file made from that folder) instead of the folder; it is not checked.",
        ),
    ] = None,
) -> None:
    """Export an adapter with its model card. Every byte is checked against its manifest first (docs/adapters.md)."""
    if (layout is Format.OLLAMA) != (model_folder is not None):
        fail("Use --format ollama and --model-folder together: the Modelfile's chat template comes from that folder.")
    if (handoff is Backend.OLLAMA and layout is not Format.OLLAMA) or (source and not model_folder):
        fail("Ollama's handoff and --from need --format ollama.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        fail(f"{to} is not an empty folder; name another one with --to.")
    if layout is Format.MLFLOW:
        check_installed()
    adapter_id = find_adapter(adapter)
    with tempfile.TemporaryDirectory(prefix="mens-export-") as folder:
        downloaded = download(adapter_id, Path(folder))
        ollama = plan_model(model_folder, downloaded.manifest, source) if model_folder else None
        to.mkdir(parents=True, exist_ok=True)
        advice = write(downloaded, to, layout, handoff, ollama)
    typer.echo(f"{adapter_id} is in {to}: {advice}")


@app.command("push")
def push_command(
    adapter: Annotated[
        str, typer.Argument(autocompletion=complete_model, help="Adapter id or its beginning, or an alias.")
    ],
    repository: Annotated[str, typer.Argument(help="OWNER/NAME on the hub; created if it does not exist.")],
    endpoint: Annotated[
        str | None, typer.Option(help="Address of another hub. Default: HF_ENDPOINT, otherwise the public hub.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Push an adapter with its model card to the Hugging Face hub, in one commit. The token is HF_TOKEN, or that of `hf auth login`."""
    hub.check_installed()
    adapter_id = find_adapter(adapter)
    with tempfile.TemporaryDirectory(prefix="mens-push-") as name:
        downloaded, target = (
            download(adapter_id, make_folder(Path(name, "stored"))),
            make_folder(Path(name, "repository")),
        )
        write(downloaded, target, Format.HF, None)
        url = hub.push(target, repository, message=f"Add {adapter_id}", endpoint=endpoint, private=private)
    typer.echo(f"{adapter_id} is on the hub: {url}")


def find_adapter(name: str) -> str:
    """Return the full id of an adapter; print a note on stderr if no replica has measured it."""
    record = call("GET", f"/v1/adapters/{quote(resolve_adapter_id(name), safe='')}")
    if record["state"] != "published":
        note(f"{record['id']} is {record['state']}: no replica has measured it and issued a certificate.")
    return str(record["id"])


def make_folder(path: Path) -> Path:
    """Create a folder and return it."""
    path.mkdir()
    return path


@app.command("import")
def import_command(
    path: Annotated[
        Path,
        typer.Argument(
            help=f"A PEFT folder, or the original's run folder; or its {WEIGHTS_NAME} or {ORIGINAL_WEIGHTS}.",
            exists=True,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model", callback=note_base, help="Base that the adapter was trained on, by its name in the catalogue."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="First part of the adapter's id.")] = "imported",
    sidecar: Annotated[
        Path | None,
        typer.Option(
            help=f"The file that describes the weights. Default: {' or '.join(DESCRIPTION_NAMES)} in the same folder.",
            exists=True,
        ),
    ] = None,
    alias: Annotated[str | None, typer.Option(help="Alias to move to the adapter once it is published.")] = None,
    publish: Annotated[
        bool, typer.Option(help="Measure the adapter on every replica and serve it. --no-publish only stores it.")
    ] = True,
    template_argument: TemplateArgument = None,
    watch: Annotated[bool, typer.Option(help="Follow the job until it ends.")] = True,
) -> None:
    """Import an adapter that PEFT, TRL, Unsloth, axolotl, torchtune or the original trained.

    It then works like an adapter that was trained here; an adapter that lacks something is refused with the reason. It is served once
    its effect, the chat template and the engine's error have been measured on every replica. See docs/adapters.md.
    """
    try:
        files = read_adapter_folder(path, sidecar)
        arguments = parse_template_arguments(template_argument) or files.template_arguments
    except MensError as error:
        fail_with(error)
    contract: dict[str, Any] = {"model": model, "name": name, "publish": publish, "alias": alias}
    contract |= {"template_arguments": arguments} if arguments else {}
    uploads = RequestUploads()
    contract |= {"weights_file": uploads.add(files.weights), "sidecar_file": uploads.add(files.description)}
    if files.template is not None:
        contract["template_file"] = uploads.add_text("chat_template.jinja", files.template)
    job = uploads.send("/v1/jobs", json={"kind": "import", "contract": contract})
    typer.echo(job["id"])
    if watch:
        watch_job(job["id"])


@app.command("keygen")
def keygen(
    path: Annotated[Path, typer.Argument(help="File that receives the private key; it must not exist.")],
) -> None:
    """Create an Ed25519 key that signs adapters and merged models, and print its public key.

    Workers sign with MENS_SIGNING_KEY=FILE. Replicas refuse everything that is not signed with a key of MENS_SERVING_TRUSTED_KEYS, a file
    with one public key per line.
    """
    try:
        typer.echo(make_key(path))
    except ModuleNotFoundError:
        fail(NEEDS_CRYPTOGRAPHY)
    except OSError as error:
        fail(f"The key cannot be written to {path}: {error.strerror}.")


app.command("verify")(verify)
