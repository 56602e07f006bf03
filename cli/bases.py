"""``mens base``: the catalogue of base models on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cli.connection import fail
from shared.catalog import (
    BaseModelEntry,
    Catalog,
    HubSource,
    LocalSource,
    digest_model_folder,
    load_catalog,
    save_catalog,
)
from shared.errors import MensError
from shared.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Base models: make a tiny one, add your own, list them.")

PROJECT = Path(__file__).resolve().parent.parent
CORPUS = PROJECT / "examples" / "base_corpus.jsonl"


@app.command("build")
def build_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue.")],
    family: Annotated[str, typer.Option(help="Shape: qwen3 or llama.")] = "qwen3",
    steps: Annotated[int | None, typer.Option(help="Pretraining steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    replace: Annotated[bool, typer.Option("--replace", help="Build again when it is there.")] = False,
) -> None:
    """Make a tiny chat model from the bundled text, in seconds, and add it to the catalogue."""
    settings = Settings()
    if replace:
        shutil.rmtree(settings.home / "bases" / name, ignore_errors=True)
    entry = build(settings, name, family=family, steps=steps, seed=seed)
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")


@app.command("add")
def add_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue; what `model` will say.")],
    path: Annotated[Path | None, typer.Option(help="Folder with config, tokenizer and safetensors weights.")] = None,
    hub: Annotated[str | None, typer.Option(help="Hub repository, e.g. Qwen/Qwen3-0.6B.")] = None,
    revision: Annotated[str | None, typer.Option(help="Commit of the hub repository: 40 hex digits.")] = None,
    license: Annotated[str | None, typer.Option(help="Licence, for the records.")] = None,
) -> None:
    """Add a model folder, or a hub model pinned to a commit. Safetensors only; code in a repository is never run."""
    if (path is None) == (hub is None):
        fail("give either --path or --hub (with --revision).")
    if hub and not revision:
        fail("a hub model is pinned: give --revision with the commit's 40 hex digits.")
    try:
        source = HubSource(repo=hub, revision=revision or "") if hub else LocalSource(path=str(path))
        entry = add(Settings(), name, source, license)
    except (MensError, ValueError) as error:
        fail(str(error))
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")


@app.command("list")
def list_command() -> None:
    """Show the catalogue."""
    table = Table("name", "source", "digest", "licence")
    for base in load_catalog(Settings().catalog_path).bases:
        source = base.source
        where = f"{source.repo}@{source.revision[:12]}" if isinstance(source, HubSource) else source.path
        table.add_row(base.name, where, base.digest[:16], base.license or "")
    Console().print(table)


def build(
    settings: Settings, name: str, *, family: str = "qwen3", steps: int | None = None, seed: int = 0
) -> BaseModelEntry:
    """Make a tiny base unless its folder is already there, and put it into the catalogue."""
    folder = settings.home / "bases" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "worker.pretrain", str(folder), "--corpus", str(CORPUS)]
        command += ["--family", family, "--seed", str(seed), *(["--steps", str(steps)] if steps else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
        if subprocess.run(command, env=environment, check=False).returncode:
            fail(f"the base model could not be built; run again by hand: {' '.join(command)}")
    relative = os.path.relpath(folder, settings.catalog_path.parent)
    return add(settings, name, LocalSource(path=relative), "Apache-2.0")


def entry_and_folder(settings: Settings, model: str) -> tuple[BaseModelEntry, Path]:
    """A base model by its name in the catalogue, or by its folder.

    Raises:
        MensError: neither is there, or the folder holds no base model.
    """
    from shared.hub import locate

    folder = Path(model)
    if folder.is_dir():
        source = LocalSource(path=str(folder.resolve()))
        return BaseModelEntry(name=folder.name, source=source, digests=digest_model_folder(folder)), folder
    entry = load_catalog(settings.catalog_path).get(model)
    return entry, locate(entry, settings.catalog_path)


def add(settings: Settings, name: str, source: LocalSource | HubSource, license: str | None) -> BaseModelEntry:
    """Fetch a source, digest its files, and write the catalogue.

    Raises:
        MensError: it cannot be fetched, or is no model folder.
    """
    from shared.hub import fetch  # the hub's client is slow to import

    if isinstance(source, LocalSource) and not Path(source.path).is_absolute():
        resolved = settings.catalog_path.parent / source.path
        source = source if resolved.is_dir() else LocalSource(path=str(Path(source.path).resolve()))
    digests = digest_model_folder(fetch(source, settings.catalog_path))
    entry = BaseModelEntry(name=name, source=source, digests=digests, license=license)
    catalog: Catalog = load_catalog(settings.catalog_path)
    save_catalog(settings.catalog_path, catalog.having(entry))
    return entry
