"""``mens base``: the catalogue of base models on this machine: build a tiny one, add, dequantise, list, remove."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cli.client.connection import fail, fail_with, note
from cli.client.json_errors import Json
from cli.output import print_table
from cli.standalone.base_changes import check_name, own_folder, refuse_copy, refuse_needed
from cli.standalone.base_facts import describe_base
from cli.standalone.base_sources import add, default_name, is_gguf, pinned, read_source
from cli.standalone.gguf_bases import add_gguf
from cli.standalone.worker_programs import PROJECT, run_worker_program
from shared.artifacts.base_folders import fetch_merged, stored_manifest
from shared.artifacts.merge_fidelity import PROBES_NAME, MergeProbes
from shared.artifacts.open_storage import open_storage
from shared.artifacts.storage import Storage
from shared.base_models.catalog import (
    BaseModelEntry,
    HubSource,
    LocalSource,
    MergedFrom,
    TwinOf,
    digest_model_folder,
    load_catalog,
    save_catalog,
    verify_model_folder,
)
from shared.errors import ArtifactInvalid, Code, Conflict, MensError, NotFound
from shared.settings import Settings, read_settings

app = typer.Typer(no_args_is_help=True, help="Base models: build a tiny one, add your own, list and remove them.")

DIGEST_BEGINNING = r"[0-9a-f]{8,64}"
NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
LONGEST_LABEL = 128
TINY_LEARNING_RATE = 4e-3
"""Twenty times the usual learning rate, because the model has only a million parameters."""
CORPUS = PROJECT / "examples" / "base_corpus.jsonl"


class TinyFamily(StrEnum):
    """Architectures of which a tiny base can be built."""

    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_5 = "qwen3.5"
    LLAMA = "llama"
    MISTRAL = "mistral"

    @property
    def in_config(self) -> str:
        """Its name in a config.json, which has no dots."""
        return self.value.replace(".", "_")


@app.command("build")
def build_command(
    name: Annotated[str, typer.Argument(help="Name in the catalogue.")],
    family: Annotated[TinyFamily, typer.Option(help="Shape of the model.")] = TinyFamily.QWEN3,
    composite: Annotated[
        bool,
        typer.Option("--composite", help="Qwen3.5: include a vision part, as models on the hub have; it is not tuned."),
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
    name: Annotated[str, typer.Argument(help="Name in the catalogue. A single argument is the SOURCE.")],
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
    given = [str(value) for value in (source, path, hub) if value is not None]
    if len(given) > 1:
        fail("give the source once: as SOURCE, with --path, or with --hub.")
    place = given[0] if given else name
    name = name if given else default_name(place)
    if revision and (path or Path(place).exists()):
        fail("--revision only applies to a hub repository.")
    settings = read_settings(Settings)
    try:
        if hub is None and is_gguf(place):
            note(f"reading {place}; a new GGUF file is converted first: about 20 s for each 100 MB")
            entry = add_gguf(settings, name, Path(place), license, learning_rate)
        else:
            found = pinned(hub, revision) if hub else LocalSource(path=place) if path else read_source(place, revision)
            entry = add(settings, name, found, license, learning_rate)
        notes = notes_on(settings, entry)
    except ValidationError as error:
        fail("this cannot be a base model: " + "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()))
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
        known = {name: found and found.as_dict() for name, found in facts.items()}
        listed = [base.model_dump(mode="json") | {"facts": known[base.name]} for base in bases]
        typer.echo(json.dumps(listed, indent=2))
        return
    columns = ("name", "family", "parameters", "context", "dtype", "size", "licence", "source", "digest")
    rows = []
    for base in bases:
        found = facts[base.name]
        described = found.columns if found else ("not on this machine", "", "", "", "")
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


def build(
    settings: Settings,
    name: str,
    *,
    family: TinyFamily = TinyFamily.QWEN3,
    composite: bool = False,
    steps: int | None = None,
    seed: int = 0,
    allow_copy: bool = False,
) -> BaseModelEntry:
    """Make a tiny base unless its folder exists already, and add it to the catalogue.

    Args:
        allow_copy: accept files that the catalogue has under another name; the same options and seed make the same files.

    Raises:
        MensError: its name is an alias's, the folder does not contain a base, or the catalogue has its files under another
            name; then the new folder is removed.
    """
    check_name(settings, name)
    folder = settings.home / "bases" / name
    is_new = not folder.exists()
    if is_new:
        folder.parent.mkdir(parents=True, exist_ok=True)
        options = ["--family", family.in_config, "--seed", str(seed), *(["--steps", str(steps)] if steps else [])]
        options += ["--composite"] if composite else []
        # One thread, because a model this small is many times slower when threads compete.
        run_worker_program("worker.pretrain", str(folder), "--corpus", str(CORPUS), *options, threads=1)
    source = LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent))
    try:
        return add(settings, name, source, "Apache-2.0", TINY_LEARNING_RATE, checked=True, allow_copy=allow_copy)
    except Conflict:
        if is_new:
            shutil.rmtree(folder)
        raise


def dequantize(settings: Settings, name: str, twin: str, *, double_quant: bool = True) -> BaseModelEntry:
    """Create the dequantised twin of a base and add it to the catalogue.

    Raises:
        MensError: the base is missing, its files are not those of the catalogue, the twin's name is an alias's, or the
            base has such a twin under another name.
            ValidationError: ``twin`` is not a valid name.
    """
    from shared.base_models.hub import locate

    catalog = load_catalog(settings.catalog_path)
    original = catalog.get(name)
    if original.twin_of:
        fail(f"{name} is itself the twin of {original.twin_of.name}.")
    folder = settings.home / "bases" / twin
    source = LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent))
    origin = TwinOf(name=name, digests=original.digests, double_quant=double_quant)
    # Checked before any work: an invalid name must not become a folder.
    draft = original.model_copy(update={"source": source, "twin_of": origin})
    draft = BaseModelEntry.model_validate({**draft.model_dump(), "name": twin})
    if folder.exists() or any(base.name == twin for base in catalog.bases):
        fail(f"{twin} already exists; give the twin another name with --as.")
    check_name(settings, twin)
    refuse_copy(settings, twin, lambda base: base.twin_of == origin)
    base = locate(original, settings.catalog_path)
    verify_model_folder(original, base)
    run_worker_program("worker.dequantize", str(base), str(folder), *([] if double_quant else ["--no-double-quant"]))
    entry = draft.model_copy(update={"digests": digest_model_folder(folder)})
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    return entry


def add_merged(settings: Settings, digest: str, name: str | None = None) -> BaseModelEntry:
    """Copy a merged model out of the storage, verify the copy, and add it to the catalogue.

    Args:
        digest: digest of the merged model's manifest.
        name: name in the catalogue; None: the adapter's name with ``-merged``.

    Raises:
        MensError: the model does not exist or is damaged, the name is an alias's, or the catalogue has the model under
            another name. ValidationError: not a valid name for a base.
    """
    storage = open_storage(settings)
    manifest = stored_manifest(storage, digest)
    probes = _probes(storage, digest)
    catalog = load_catalog(settings.catalog_path)
    original = next((base for base in catalog.bases if base.digests == manifest.base_digests), None)
    name = name or f"{manifest.adapter_id.partition('@')[0]}-merged"
    folder = settings.home / "bases" / name
    source = LocalSource(path=os.path.relpath(folder, settings.catalog_path.parent))
    # Before any work: an invalid name must not become a folder.
    entry = BaseModelEntry(
        name=name,
        source=source,
        digests=manifest.files,
        license=original.license if original else None,
        learning_rate=original.learning_rate if original else None,
        merged_from=MergedFrom(
            digest=digest,
            adapter_id=manifest.adapter_id,
            base_model=manifest.base_model,
            probes_digest=hashlib.sha256(probes).hexdigest(),
        ),
        template_arguments=dict(manifest.template_arguments or {}),
    )
    if folder.exists() or any(base.name == name for base in catalog.bases):
        fail(f"{name} already exists; give the merged model another name with --as.")
    check_name(settings, name)
    refuse_copy(settings, name, lambda base: base.merged_from is not None and base.merged_from.digest == digest)
    fetch_merged(storage, digest, folder)
    entry = entry.model_copy(update={"digests": digest_model_folder(folder)})
    save_catalog(settings.catalog_path, load_catalog(settings.catalog_path).having(entry))
    return entry


def _probes(storage: Storage, digest: str) -> bytes:
    """Return the probes that measure the replicas of a merged model.

    Raises:
        ArtifactInvalid: ``MODEL_UNCERTIFIED``: an earlier release has merged it.
    """
    with suppress(NotFound):
        raw = storage.manifest_bytes("models", digest, PROBES_NAME)
        with suppress(ValidationError):
            if MergeProbes.model_validate_json(raw).model_digest == digest:
                return raw
    raise ArtifactInvalid(
        Code.MODEL_UNCERTIFIED,
        f"The merged model {digest} is stored without the scores that replicas are checked against ({PROBES_NAME}).",
        remedy="Merge the adapter again: this stores the same model with its scores.",
        param=PROBES_NAME,
    )


def merged_base(settings: Settings, digest: str) -> BaseModelEntry | None:
    """Return the base of a merged model, by its digest or a prefix of it; add it to the catalogue first if necessary.

    Returns:
        None if no merged model has this digest.

    Raises:
        MensError: as :func:`add_merged`.
    """
    if not re.fullmatch(DIGEST_BEGINNING, digest):
        return None
    for base in load_catalog(settings.catalog_path).bases:
        if base.merged_from and base.merged_from.digest.startswith(digest):
            return base
    found = [stored for stored in open_storage(settings).digests("models") if stored.startswith(digest)]
    if len(found) > 1:
        message = f"{len(found)} merged models have a digest that begins with {digest}."
        fail_with(Conflict(Code.ID_AMBIGUOUS, message, remedy="Give more of its digits.", details={"ids": found}))
    return add_merged(settings, found[0]) if found else None


def entry_and_folder(settings: Settings, model: str) -> tuple[BaseModelEntry, Path]:
    """Return a base model and its folder, by its name in the catalogue or by its folder.

    Raises:
        MensError: neither exists, or the folder does not contain a base model.
    """
    from shared.base_models.hub import locate

    folder = Path(model).resolve()
    if folder.is_dir():
        source = LocalSource(path=str(folder))
        # A folder's name may be invalid for a base: here it is only a label, not a catalogue entry.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-")[:LONGEST_LABEL] or "base"
        return BaseModelEntry(name=name, source=source, digests=digest_model_folder(folder)), folder
    entry = load_catalog(settings.catalog_path).get(model)
    return entry, locate(entry, settings.catalog_path)


def notes_on(settings: Settings, entry: BaseModelEntry) -> list[str]:
    """Return notes on a base that was added, in sentences."""
    from shared.base_models.hub import locate  # tokenizers and the hub's client are slow to import
    from shared.tokenization.end_tokens import folder_end_token_note

    found = folder_end_token_note(locate(entry, settings.catalog_path))
    return [found] if found else []
