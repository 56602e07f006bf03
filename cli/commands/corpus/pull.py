"""``mens corpus pull``: from a table to training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.json_errors import note_json
from cli.commands.corpus.table_options import (
    KeyOption,
    LagOption,
    RedactOption,
    RowOption,
    SqlOption,
    TableOptions,
    UrlOption,
    WatermarkOption,
    describe_pull,
)
from cli.output import plain_console
from shared.counted_nouns import counted


def pull(
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="NAME|FILE",
            help="Name of a database in MENS_CORPUS_SOURCES, or the path of an SQLite file (.db, .sqlite).",
        ),
    ],
    sql: SqlOption = None,
    key: KeyOption = None,
    watermark: WatermarkOption = None,
    lag: LagOption = "10m",
    row: RowOption = None,
    redact: RedactOption = None,
    url_env: UrlOption = None,
    license_: Annotated[
        str | None, typer.Option("--license", help="Licence of the rows, for their provenance.")
    ] = None,
    out: Annotated[Path | None, typer.Option(file_okay=False, help="Folder of the rows. Default: pulled/NAME.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", dir_okay=False, help="Also write one training file with the newest version of each row."
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Compare all keys, and write rows that were deleted from the table to gone.jsonl."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the counts as JSON.")] = False,
) -> None:
    """Make training rows from a table: those that are new since the last pull, with personal data replaced.

    Needs no installation. The database is only read. The address of a database is a secret, so it belongs in
    MENS_CORPUS_SOURCES or in the variable that --url-env names, never in a command or file. An interrupted pull
    continues where it stopped.

    mens corpus pull --source shop.db --sql "SELECT id, question AS prompt, answer AS response FROM tickets" --file tickets.jsonl
    """
    options = TableOptions(source, sql, key, watermark, lag, row, redact, url_env, license_)
    folder = out or options.folder()
    report = options.pull(folder)
    counts = msgspec.to_builtins(report)
    lines = describe_pull(report, folder)
    if full:
        from corpus.reading.deletions import GONE_NAME, compare_keys

        counts["gone"] = gone = compare_keys(options.spec(), options.address(), folder)
        lines.append(
            f"{counted(gone, 'row')} deleted from the table since they were pulled: {folder / GONE_NAME}"
            if gone
            else "no row was deleted"
        )
    if file:
        from corpus.reading.newest import write_newest

        counts["file_rows"] = rows = write_newest(folder, file)
        lines.append(f"wrote {file} with {counted(rows, 'row')}: next, `mens data check {file}`")
    console = plain_console()
    if as_json:
        console.print_json(data=counts)
        return
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
