"""``mens corpus extract``: divides source trees into units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client.json_errors import note_json
from cli.commands.corpus.stage_run import run_stage
from shared.counted_nouns import counted

if TYPE_CHECKING:
    from corpus.shards import ShardIndex

KINDS = {
    "module": "modules", "function": "functions", "class": "classes", "method": "methods", "test": "tests",
    "section": "sections", "block": "blocks of documents", "query": "SQL statements",
}  # fmt: skip


def extract(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Folders and files with code or documents.")],
    language: Annotated[
        list[str],
        typer.Option(help="python, markdown, sql, or a language whose checker divides files. Can be repeated."),
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the units.")] = Path("units"),
    license_: Annotated[
        str | None,
        typer.Option("--license", help="SPDX expression, or proprietary-own: noted in the provenance of each row."),
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one per processor.")] = None,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the index as JSON.")] = False,
) -> None:
    """Divide source trees into functions, classes, tests, sections and SQL statements. Nothing is run.

    Example: mens corpus extract src docs --language python --language markdown --out units

    Links are not followed. Generated, minified and vendored files, and files that do not compile, are left out. The
    next step is `mens corpus pairs units`.
    """
    from corpus.units.extraction import Extraction

    def describe(index: ShardIndex) -> str:
        return f"{counted(index.rows, 'unit')} of {counted(index.report['files'], 'file')} in {out}"

    def counts(index: ShardIndex) -> dict[str, int]:
        return {KINDS[kind]: count for kind, count in index.report["units"].items()}

    run_stage(
        lambda: Extraction(tuple(paths), tuple(dict.fromkeys(language)), license_, processes),
        out,
        describe,
        counts,
        as_json=as_json,
    )
