"""``mens base``: the catalogue of base models on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cli.connection import fail
from cli.tables import print_table
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

NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
TINY_LEARNING_RATE = 4e-3
"""A model of a million parameters learns at twenty times the rate of a real one."""
PROJECT = Path(__file__).resolve().parent.parent
CORPUS = PROJECT / "examples" / "base_corpus.jsonl"


class Family(StrEnum):
    QWEN3 = "qwen3"
    LLAMA = "llama"


@app.command("build")
def build_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue.")],
    family: Annotated[Family, typer.Option(help="Shape of the model.")] = Family.QWEN3,
    steps: Annotated[int | None, typer.Option(help="Pretraining steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    replace: Annotated[bool, typer.Option("--replace", help="Build again when it is there.")] = False,
) -> None:
    """Make a tiny chat model from the bundled text, in seconds, and add it to the catalogue."""
    if not re.fullmatch(NAME, name):
        fail(f"{name!r} is no name for a base: lower-case letters, digits, `.`, `_` and `-`, at most 64.")
    settings = Settings()
    folder = settings.home / "bases" / name
    if replace:
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        fail(f"{name} is already there, in {folder}; give --replace to build it again.")
    entry = build(settings, name, family=family, steps=steps, seed=seed)
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")


@app.command("add")
def add_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue; what `model` will say.")],
    path: Annotated[Path | None, typer.Option(help="Folder with config, tokenizer and safetensors weights.")] = None,
    hub: Annotated[str | None, typer.Option(help="Hub repository, e.g. Qwen/Qwen3-0.6B.")] = None,
    revision: Annotated[str | None, typer.Option(help="Commit of the hub repository: 40 hex digits.")] = None,
    license: Annotated[str | None, typer.Option(help="Licence, for the records.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Rate at which it learns well; 2e-4 when left out.")
    ] = None,
) -> None:
    """Add a model folder, or a hub model pinned to a commit. Safetensors only; code in a repository is never run."""
    if (path is None) == (hub is None):
        fail("give either --path or --hub (with --revision).")
    if hub and not revision:
        fail("a hub model is pinned: give --revision with the commit's 40 hex digits.")
    try:
        source = HubSource(repo=hub, revision=revision or "") if hub else LocalSource(path=str(path))
        entry = add(Settings(), name, source, license, learning_rate)
    except ValidationError as error:
        faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
        fail(f"this cannot be a base model: {faults}. A revision is a commit's 40 hex digits, not a branch.")
    except MensError as error:
        fail(str(error))
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")


@app.command("list")
def list_command() -> None:
    """Show the catalogue."""
    rows = [
        (base.name, _where(base), base.digest[:16], base.license or "")
        for base in load_catalog(Settings().catalog_path).bases
    ]
    print_table(("name", "source", "digest", "licence"), rows)


def _where(base: BaseModelEntry) -> str:
    source = base.source
    return f"{source.repo}@{source.revision}" if isinstance(source, HubSource) else source.path


def build(
    settings: Settings, name: str, *, family: Family = Family.QWEN3, steps: int | None = None, seed: int = 0
) -> BaseModelEntry:
    """Make a tiny base unless its folder is already there, and put it into the catalogue."""
    folder = settings.home / "bases" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "worker.pretrain", str(folder), "--corpus", str(CORPUS)]
        command += ["--family", str(family), "--seed", str(seed), *(["--steps", str(steps)] if steps else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
        if subprocess.run(command, env=environment, check=False).returncode:
            fail(f"the base model could not be built; run again by hand: {' '.join(command)}")
    relative = os.path.relpath(folder, settings.catalog_path.parent)
    return add(settings, name, LocalSource(path=relative), "Apache-2.0", TINY_LEARNING_RATE)


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


def add(
    settings: Settings,
    name: str,
    source: LocalSource | HubSource,
    license: str | None,
    learning_rate: float | None = None,
) -> BaseModelEntry:
    """Fetch a source, digest its files, and write the catalogue.

    Raises:
        MensError: it cannot be fetched, or is no model folder.
    """
    from shared.hub import fetch  # the hub's client is slow to import

    if isinstance(source, LocalSource) and not Path(source.path).is_absolute():
        resolved = settings.catalog_path.parent / source.path
        source = source if resolved.is_dir() else LocalSource(path=str(Path(source.path).resolve()))
    digests = digest_model_folder(fetch(source, settings.catalog_path))
    entry = BaseModelEntry(name=name, source=source, digests=digests, license=license, learning_rate=learning_rate)
    catalog: Catalog = load_catalog(settings.catalog_path)
    save_catalog(settings.catalog_path, catalog.having(entry))
    return entry
