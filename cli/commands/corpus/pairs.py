"""``mens corpus pairs``: makes training rows from units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client.json_errors import note_json
from cli.commands.corpus.stage_run import run_stage
from shared.counted_nouns import counted

if TYPE_CHECKING:
    from corpus.shards import ShardIndex


def pairs(
    sources: Annotated[list[Path], typer.Argument(metavar="UNITS…", help="Folders written by `mens corpus extract`.")],
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "implement, from_docstring, explain, test_for, complete, fix, docs_qa, query. Can be repeated. "
                "Default: all."
            )
        ),
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the rows.")] = Path("pairs"),
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one per processor.")] = None,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the index as JSON.")] = False,
) -> None:
    """Make training rows from units: functions from their docstrings, repairs, explanations, tests, answers from
    documents.

    Example: mens corpus pairs units --rule implement --rule fix --out pairs

    Every answer passes the checker of its language. Stubs are left out. The rows are ready for training: try
    `mens data check pairs/part-00000.jsonl`.
    """
    from corpus.pairs.making import Pairing

    def describe(index: ShardIndex) -> str:
        return f"{counted(index.rows, 'row')} in {out}"

    def counts(index: ShardIndex) -> dict[str, int]:
        return dict(index.report["rows"])

    run_stage(lambda: Pairing(tuple(sources), tuple(rule or ()), processes), out, describe, counts, as_json=as_json)
