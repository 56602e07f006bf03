"""``mens base``: the group of its commands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cli.client.connection import fail, fail_with, note
from cli.client.json_errors import Json
from cli.commands.bases.derived import add_merged, dequantize
from cli.commands.bases.tiny import TinyFamily, build
from cli.output import print_table
from cli.standalone.base_changes import check_name, own_folder, refuse_needed
from cli.standalone.base_facts import describe_base
from cli.standalone.base_sources import add, default_name, is_gguf, pinned, read_source
from cli.standalone.gguf_bases import add_gguf
from shared.base_models.catalog import BaseModelEntry, HubSource, LocalSource, load_catalog, save_catalog
from shared.errors import MensError
from shared.settings import Settings, read_settings

app = typer.Typer(no_args_is_help=True, help="Base models: build a tiny one, add your own, list and remove them.")

NAME = r"[a-z0-9][a-z0-9._-]{0,63}"


@app.command("build")
def build_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue.")],
    family: Annotated[TinyFamily, typer.Option(help="Shape of the model.")] = TinyFamily.QWEN3,
    composite: Annotated[
        bool,
        typer.Option(
            "--composite", help="Qwen3.5: include a vision part, like the models on the hub; it is not tuned."
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Pretraining steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    replace: Annotated[bool, typer.Option("--replace", help="Build again if it exists.")] = False,
) -> None:
    """Build a tiny chat model from the bundled text in seconds, and add it to the catalogue."""
    if not re.fullmatch(NAME, name):
        fail(f"{name!r} is not a valid name for a base: use at most 64 lower-case letters, digits, `.`, `_` and `-`.")
    if composite and family is not TinyFamily.QWEN3_5:
        fail(f"a {family} model has no vision part; leave --composite out.")
    settings = read_settings(Settings)
    folder = settings.home / "bases" / name
    try:
        check_name(settings, name)
        if replace:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.exists():
            fail(f"{name} already exists in {folder}; give --replace to build it again.")
        note(f"building {name}: 15 s on an idle machine, up to some minutes on a busy one")
        entry = build(settings, name, family=family, composite=composite, steps=steps, seed=seed)
    except MensError as error:
        fail_with(error)
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")


@app.command("add")
def add_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue. If you give only one argument, it is SOURCE.")],
    source: Annotated[
        str | None, typer.Argument(help="A model's folder, a GGUF file, or a hub repository, e.g. Qwen/Qwen3-0.6B.")
    ] = None,
    path: Annotated[Path | None, typer.Option(help="The same as SOURCE, for a folder or a GGUF file.")] = None,
    hub: Annotated[str | None, typer.Option(help="The same as SOURCE, for a hub repository.")] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the repository. Default: main.")
    ] = None,
    license: Annotated[str | None, typer.Option(help="Licence, for the records.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of jobs that leave it at `auto`. Default: 2e-4.")
    ] = None,
) -> None:
    """Add a model to tune and serve: a folder, a GGUF file, or a hub repository.

    mens base add Qwen/Qwen3-0.6B              # named after the repository
    mens base add mine ./my-model              # a folder with safetensors
    mens base add small ./SmolLM2.Q4_1.gguf    # dequantised

    A branch or tag is resolved once and pinned to its current commit; HF_TOKEN opens gated and private repositories.
    A GGUF file is dequantised into a folder of MENS_HOME. A model that cannot be tuned or served is refused. Weights must be
    safetensors, never pickle; code in a repository is never run.
    """
    sources = [str(value) for value in (source, path, hub) if value is not None]
    if len(sources) > 1:
        fail("give the source once: as SOURCE, with --path, or with --hub.")
    place = sources[0] if sources else name
    name = name if sources else default_name(place)
    if revision and (path or Path(place).exists()):
        fail("--revision only applies to a hub repository.")
    settings = read_settings(Settings)
    try:
        if hub is None and is_gguf(place):
            note(f"reading {place}; a new GGUF file is converted first: about 20 s for each 100 MB")
            entry = add_gguf(settings, name, Path(place), license, learning_rate)
        else:
            origin = pinned(hub, revision) if hub else LocalSource(path=place) if path else read_source(place, revision)
            entry = add(settings, name, origin, license, learning_rate)
        notes = notes_on(settings, entry)
    except ValidationError as error:
        fail(
            "this cannot be a base model: "
            + "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
        )
    except MensError as error:
        fail_with(error)
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")
    if facts := describe_base(entry, settings.catalog_path):
        typer.echo(f"{facts}{f'; licence {entry.license}' if entry.license else ''}")
    for line in notes:
        typer.echo(f"note: {line}")
    typer.echo(f"next: mens up --base {entry.name}                      # serve it on this machine")
    typer.echo(f"      mens plan my.jsonl --model {entry.name}           # check a job on it")
    typer.echo(f"      mens train my.jsonl --model {entry.name} --alias helper")


@app.command("dequantize")
def dequantize_command(
    name: Annotated[str, typer.Argument(help="Base of the catalogue.")],
    as_name: Annotated[str | None, typer.Option("--as", help="Name of the twin. Default: NAME-nf4.")] = None,
    double_quant: Annotated[
        bool, typer.Option(help="Use double quantisation, like quant.double_quant of a contract.")
    ] = True,
) -> None:
    """Create a base's twin, which has the dequantised weights that NF4 training computes with: adapters served on it have no base shift."""
    note(f"quantising and dequantising the weights of {name}")
    try:
        entry = dequantize(read_settings(Settings), name, as_name or f"{name}-nf4", double_quant=double_quant)
    except ValidationError:
        fail(f"{as_name!r} is not a valid name for a base.")
    except MensError as error:
        fail_with(error)
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")
    typer.echo(
        f"Serve it with `mens up --base {entry.name}`, or MENS_SERVING_BASE={entry.name} python -m serving;"
        f" adapters tuned on {name} are served on it."
    )


@app.command("from-merge")
def from_merge_command(
    digest: Annotated[str, typer.Argument(help="Digest of the merged model, as printed by `mens jobs merge`.")],
    as_name: Annotated[str | None, typer.Option("--as", help="Name in the catalogue. Default: ADAPTER-merged.")] = None,
) -> None:
    """Add a merged model to the catalogue as a base to serve and tune: a verified copy that retention does not delete.

    `mens up --base DIGEST` does the same, and serves it.
    """
    note(f"copying the merged model {digest[:12]} and verifying its digests")
    try:
        entry = add_merged(read_settings(Settings), digest, as_name)
    except ValidationError:
        fail(f"{as_name!r} is not a valid name for a base.")
    except MensError as error:
        fail_with(error)
    typer.echo(f"{entry.name} is in the catalogue; digest {entry.digest}")
    typer.echo(f"Serve it with `mens up --base {entry.name}`, or MENS_SERVING_BASE={entry.name} python -m serving.")


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """Show the catalogue."""
    settings = read_settings(Settings)
    bases = load_catalog(settings.catalog_path).bases
    facts = {base.name: describe_base(base, settings.catalog_path) for base in bases}
    if as_json:
        by_name = {name: facts_of_base and facts_of_base.as_dict() for name, facts_of_base in facts.items()}
        listed = [base.model_dump(mode="json") | {"facts": by_name[base.name]} for base in bases]
        typer.echo(json.dumps(listed, indent=2))
        return
    columns = ("name", "family", "parameters", "context", "dtype", "size", "licence", "source", "digest")
    rows = []
    for base in bases:
        facts_of_base = facts[base.name]
        described = facts_of_base.columns if facts_of_base else ("not on this machine", "", "", "", "")
        rows.append((base.name, *described, base.license or "", where(base), base.digest[:16]))
    print_table(columns, rows)


def where(base: BaseModelEntry) -> str:
    """Describe the origin of a base's files."""
    source = base.source
    if isinstance(source, HubSource):
        return f"{source.repo}@{source.revision[:12]}"
    return f"{base.gguf.file} ({base.gguf.stored_type})" if base.gguf else source.path


@app.command("remove")
def remove_command(
    name: Annotated[str, typer.Argument(help="Base of the catalogue.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a base from the catalogue, and the files that Mens made for it in MENS_HOME; your own files stay on the disk.

    Refused while adapters, twins, names of another provider or unfinished jobs need it. A running replica serves it until it
    stops, and then needs another base: `mens up --base`.
    """
    settings = read_settings(Settings)
    try:
        entry = load_catalog(settings.catalog_path).get(name)
        refuse_needed(settings, entry)
        folder = own_folder(settings, entry)
        files = f"its files in {folder} are deleted" if folder else "its files stay where they are"
        if not yes:
            typer.confirm(f"Remove {name} from the catalogue? {files[0].upper()}{files[1:]}", abort=True)
        save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).without(name))
    except MensError as error:
        fail_with(error)
    if folder:
        shutil.rmtree(folder)
    typer.echo(f"{name} is removed from the catalogue; {files}.")


def notes_on(settings: Settings, entry: BaseModelEntry) -> list[str]:
    """Return notes on a base that was added, in sentences."""
    from shared.base_models.hub import locate  # tokenizers and the hub's client are slow to import
    from shared.tokenization.end_tokens import folder_end_token_note

    end_token_note = folder_end_token_note(locate(entry, settings.catalog_path))
    return [end_token_note] if end_token_note else []
