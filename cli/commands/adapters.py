"""``mens adapter``: adapters that were made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.connection import call, fail
from cli.commands.jobs import upload, watch_job
from shared.artifacts.original_layout import MAX_SIDECAR_BYTES, ORIGINAL_WEIGHTS, SIDECAR_NAMES, parse_sidecar
from shared.errors import MensError

app = typer.Typer(no_args_is_help=True, help="Adapters: take in what the original trained.")


@app.callback()
def adapters() -> None:
    """Adapters: take in what the original trained."""


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
