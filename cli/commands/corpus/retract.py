"""``mens corpus retract``: excludes rows of a table permanently."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with, note
from cli.client.json_errors import note_json
from cli.client.trained_adapters import AdaptersOption, adapters_by_digest
from cli.output import plain_console, printable
from shared.counted_nouns import counted
from shared.errors import MensError

SHOWN_KEYS = 5


def retract(
    folder: Annotated[
        Path,
        typer.Argument(metavar="PULL", exists=True, file_okay=False, help="Folder of a pull, such as corpus/pulled."),
    ],
    keys: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with one key per line, as JSON, such as the gone.jsonl of `pull --full`.",
        ),
    ],
    corpus: Annotated[
        Path,
        typer.Option("--in", exists=True, file_okay=False, help="Folder to search for files with such rows."),
    ] = Path(),
    adapters: AdaptersOption = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the result as JSON.")] = False,
) -> None:
    """Exclude rows with these keys permanently, and list the files, and with --adapters the adapters, that contain
    them.

    Example: mens corpus retract corpus/pulled --keys keys.jsonl --adapters

    The next build, and `mens corpus pull --file`, leave the rows out, even if the table has them again. Existing files
    are not changed: run the build again, and train on the new file. Exit code 1 if some key matches no pulled row, for
    example "2" where the table has 2, or if a file could not be searched.
    """
    from corpus.reading.retraction import find_affected, find_unmatched, parse_keys
    from corpus.reading.retraction import retract as run

    try:
        row_keys = parse_keys(keys)
        # Read before anything is written, so that a faulty file does not leave the work half done.
        files = list(find_affected(folder, corpus, row_keys, skipped := list[Path]()))
        unmatched = find_unmatched(folder, row_keys)
        added = run(folder, row_keys)
    except MensError as error:
        fail_with(error)
    trained = adapters_by_digest({file.sha256 for file in files}) if adapters else {}
    if as_json:
        listed = [msgspec.to_builtins(file) | {"adapters": trained.get(file.sha256, [])} for file in files]
        typer.echo(
            msgspec.json.encode(
                {
                    "keys": len(row_keys),
                    "new": added,
                    "unmatched": unmatched,
                    "skipped": list(map(str, skipped)),
                    "files": listed,
                }
            )
        )
        raise typer.Exit(1 if unmatched or skipped else 0)
    console = plain_console()
    console.print(
        f"{counted(added, 'new key')} of {counted(len(row_keys), 'key')} retracted in {folder}", soft_wrap=True
    )
    for file in files:
        console.print(printable(f"{file.path} has {counted(file.rows, 'row')} with retracted keys"), soft_wrap=True)
        for name in trained.get(file.sha256, []):
            console.print(f"  adapter {name} was trained on it")
    if files:
        console.print(
            "Next: run the build again, and train on the new file. Delete an adapter with `mens models delete`."
        )
    for path in skipped:
        note(f"{path} has a line that is not provenance, so the rows next to it were not searched")
    if unmatched:
        shown = ", ".join(msgspec.json.encode(key).decode() for key in unmatched[:SHOWN_KEYS])
        more = f" and {len(unmatched) - SHOWN_KEYS:,} more" if len(unmatched) > SHOWN_KEYS else ""
        note(
            printable(
                f"No row of {folder} has {counted(len(unmatched), 'key')}: {shown}{more}. Compare their type and "
                "spelling with those in the table."
            )
        )
    if unmatched or skipped:
        raise typer.Exit(1)
