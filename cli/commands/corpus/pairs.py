"""``mens corpus pairs``: units as training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.output import counted, plain_console
from shared.errors import MensError


def pairs(
    sources: Annotated[
        list[Path], typer.Argument(metavar="UNITS…", help="Folders that `mens corpus extract` has written.")
    ],
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="implement, from_docstring, explain, test_for, complete, fix, docs_qa, query. Can be repeated. Default: all."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the rows.")] = Path("pairs"),
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one for each processor.")] = None,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the index as JSON.")] = False,
) -> None:
    """Make training rows of units: functions from their docstrings, repairs, explanations, tests, answers from documents.

    Example: mens corpus pairs units --rule implement --rule fix --out pairs

    Every answer passes the checker of its language. Stubs are left out. The rows are training rows already: try
    `mens data check pairs/part-00000.jsonl`.
    """
    import msgspec

    from shared.corpus.keys import stage_key
    from shared.corpus.pairs.making import Pairing

    try:
        stage = Pairing(tuple(sources), tuple(rule or ()), processes)
        index = stage.run(out, stage_key(stage.name, stage.version, stage.parameters(), stage.inputs()))
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(index))
        return
    console = plain_console()
    console.print(f"{counted(index.rows, 'row')} in {out}")
    for name, count in index.report["rows"].items():
        console.print(f"  {count:>8,} {name}")
    if index.report["left_out"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in index.report["left_out"].items())
        console.print(f"left out: {reasons}")
