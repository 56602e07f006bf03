"""``mens corpus validate``: writes valid rows to one file, and the others with a reason to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.client.uploads import refuse_other_file
from cli.output import plain_console
from shared.counted_nouns import counted
from shared.errors import MensError


def validate(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, callback=refuse_other_file, help="A training file.")
    ],
    language: Annotated[
        list[str] | None,
        typer.Option(help="Check answers in this language: python, sql, json, or an installed one. Can be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for both files.")] = Path("validated"),
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the counts as JSON.")] = False,
) -> None:
    """Write the valid rows of a training file to one file, and the others, with line, code and reason, to another.

    Example: mens corpus validate train.jsonl --language python --out validated

    Rows are checked as by `mens data check`, and code in their last answers by the checker of its language: blocks with
    the language's name, and answers with `response_mode: code_only`. Nothing is run. The code may use names from the
    prompt. A row without `difficulty` gets that of its code. Exit code 1 if no row is valid.
    """
    from corpus.measures.validation import QUARANTINE_NAME, VALIDATED_NAME
    from corpus.measures.validation import validate as run

    try:
        report = run(file, out, tuple(dict.fromkeys(language or ())))
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(report))
    else:
        console = plain_console()
        console.print(f"{out / VALIDATED_NAME}: {counted(report.rows, 'row')}", soft_wrap=True)
        if language:
            console.print(f"answers with checked code: {report.checked:,}")
        if report.quarantined:
            reasons = ", ".join(f"{code} {count:,}" for code, count in report.quarantined.items())
            console.print(f"{out / QUARANTINE_NAME}: {reasons}", soft_wrap=True)
    raise typer.Exit(0 if report.rows else 1)
