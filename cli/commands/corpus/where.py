"""``mens corpus where``: from a row to its origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.client.parents import find_or_read_manifest
from cli.client.trained_adapters import AdaptersOption, adapters_by_digest
from cli.output import plain_console, printable
from corpus.provenance import SOURCES_SUFFIX, Provenance, read_provenance
from shared.counted_nouns import counted
from shared.errors import ArtifactInvalid, Code, MensError, NotFound
from shared.hashing import digest_file


def where(
    row_id: Annotated[
        str | None, typer.Argument(metavar="ROW_ID", help="`id` of the row: 16 hexadecimal digits. Or use --adapter.")
    ] = None,
    corpus: Annotated[
        Path,
        typer.Option(
            "--in", exists=True, help="Folder of the corpus, searched with its subfolders, or one `.sources.jsonl`."
        ),
    ] = Path(),
    adapters: AdaptersOption = False,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="ADAPTER",
            help="Show where the rows of an adapter come from: its id, an alias, or its folder on this machine.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the records as JSON.")] = False,
) -> None:
    """Show where a row comes from: its source, file and line, what was done to it, and which adapters were trained on it.

    Example: mens corpus where 3f9a0c1d2e4b5a69 --in my-corpus --adapters

    With --adapter instead of a row, the files that it was trained on are found by digest, and their rows are counted by
    source.
    """
    if (row_id is None) == (adapter is None):
        raise typer.BadParameter("Name a row, or an adapter with --adapter.", param_hint="ROW_ID")
    if adapter is not None:
        _print_adapter(corpus, adapter, as_json=as_json)
        return
    assert row_id is not None
    _print_row(corpus, row_id, adapters=adapters, as_json=as_json)


def _print_row(corpus: Path, row_id: str, *, adapters: bool, as_json: bool) -> None:
    """Print the records of a row."""
    try:
        records = list(_records(corpus, row_id))
    except MensError as error:
        fail_with(error)
    if not records:
        fail_with(
            NotFound(
                Code.CORPUS_ROW_NOT_FOUND,
                f"No file *{SOURCES_SUFFIX} in {corpus} has the row {row_id}.",
                remedy="Name the folder of its corpus with --in. A row's id is its key `id` in the training file.",
                param="row_id",
            )
        )
    digests = {path: digest for path, _ in records if (digest := _rows_digest(path))} if adapters else {}
    trained = adapters_by_digest(set(digests.values()))
    if as_json:
        listed = [{"file": str(path), **msgspec.to_builtins(record)} for path, record in records]
        for entry, (path, _) in zip(listed, records, strict=True):
            if adapters:
                entry["adapters"] = trained.get(digests.get(path, ""), [])
        typer.echo(msgspec.json.encode(listed))
        return
    console = plain_console()
    for path, record in records:
        # Names of files and keys of tables come from other people.
        console.print(printable(f"{record.id} in {path.name.removesuffix(SOURCES_SUFFIX)}: {record.source}"))
        for name in ("locator", "license", "stages", "parents", "generator", "redactions", "checks"):
            if value := getattr(record, name):
                console.print(printable(f"  {name}: {_plain(value)}"))
        if names := trained.get(digests.get(path, "")):
            console.print(f"  adapters: {', '.join(names)}")


def _print_adapter(corpus: Path, adapter: str, *, as_json: bool) -> None:
    """Print the files that an adapter was trained on, and their rows by source."""
    try:
        manifest = find_or_read_manifest(adapter)
        digests = {digest: role for role, digest in (manifest.source_digests or {}).items()}
        files = [
            (role, _rows_of(path), _sources_of(path))
            for path in _provenance_files(corpus)
            if (role := digests.get(_rows_digest(path) or ""))
        ]
    except MensError as error:
        fail_with(error)
    if not files:
        fail_with(
            NotFound(
                Code.CORPUS_ROW_NOT_FOUND,
                f"No file with provenance below {corpus} was used to train {adapter}.",
                remedy=(
                    "Name the folder of its corpus with --in. A file that was changed since then has a different "
                    "digest."
                ),
                param="adapter",
            )
        )
    if as_json:
        typer.echo(
            msgspec.json.encode([{"role": role, "file": str(path), "sources": counts} for role, path, counts in files])
        )
        return
    console = plain_console()
    for role, path, sources in files:
        console.print(printable(f"{role}: {path}"), soft_wrap=True)
        if sources is None:
            console.print(f"  {path.stem}{SOURCES_SUFFIX} is not provenance of a corpus", soft_wrap=True)
        for source, count in (sources or {}).items():
            console.print(printable(f"  {source}: {counted(count, 'row')}"), soft_wrap=True)


def _sources_of(provenance: Path) -> dict[str, int] | None:
    """Count the rows of a file of provenance by source; None for another program's file of this name."""
    try:
        return dict(sorted(Counter(record.source for record in read_provenance(provenance)).items()))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _records(corpus: Path, row_id: str) -> Iterator[tuple[Path, Provenance]]:
    for path in _provenance_files(corpus):
        try:
            yield from ((path, record) for record in read_provenance(path) if record.id == row_id)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ArtifactInvalid(
                Code.CORPUS_SHARD_CHANGED,
                f"{path} has a line that is not provenance.",
                remedy=f"Run the stage that writes it again, or name another folder or *{SOURCES_SUFFIX} with --in.",
                param="in",
            ) from None


def _provenance_files(corpus: Path) -> list[Path]:
    return (
        sorted(file for file in corpus.rglob(f"*{SOURCES_SUFFIX}") if file.is_file()) if corpus.is_dir() else [corpus]
    )


def _rows_of(provenance: Path) -> Path:
    return provenance.with_name(provenance.name.removesuffix(SOURCES_SUFFIX) + ".jsonl")


def _rows_digest(provenance: Path) -> str | None:
    """Return the digest of the rows next to a file of provenance; None if that file is missing."""
    rows = _rows_of(provenance)
    return digest_file(rows) if rows.is_file() else None


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items() if item is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
