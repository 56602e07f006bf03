"""``mens corpus where``: from a row to its origin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.output import plain_console, printable
from shared.corpus.provenance import SOURCES_SUFFIX, Provenance, read_provenance
from shared.errors import ArtifactInvalid, Code, MensError, NotFound


def where(
    row_id: Annotated[str, typer.Argument(metavar="ROW_ID", help="`id` of the row: 16 hexadecimal digits.")],
    corpus: Annotated[
        Path,
        typer.Option(
            "--in", exists=True, help="Folder of the corpus, searched with its subfolders, or one `.sources.jsonl`."
        ),
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the records as JSON.")] = False,
) -> None:
    """Show where a row comes from: its source, file and line, and what was done to it."""
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
    if as_json:
        typer.echo(
            msgspec.json.encode([{"file": str(path), **msgspec.to_builtins(record)} for path, record in records])
        )
        return
    console = plain_console()
    for path, record in records:
        # Names of files and keys of tables are other people's.
        console.print(printable(f"{record.id} in {path.name.removesuffix(SOURCES_SUFFIX)}: {record.source}"))
        for name in ("locator", "license", "stages", "parents", "generator", "redactions", "checks"):
            if value := getattr(record, name):
                console.print(printable(f"  {name}: {_plain(value)}"))


def _records(corpus: Path, row_id: str) -> Iterator[tuple[Path, Provenance]]:
    files = sorted(corpus.rglob(f"*{SOURCES_SUFFIX}")) if corpus.is_dir() else [corpus]
    for path in files:
        try:
            yield from ((path, record) for record in read_provenance(path) if record.id == row_id)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ArtifactInvalid(
                Code.CORPUS_SHARD_CHANGED,
                f"{path} has a line that is not provenance.",
                remedy=f"Run the stage that writes it again, or name another folder or *{SOURCES_SUFFIX} with --in.",
                param="in",
            ) from None


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items() if item is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
