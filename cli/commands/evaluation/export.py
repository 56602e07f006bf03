"""``mens eval export``: the items of a run in a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import note
from cli.evaluation import runs as api
from cli.evaluation.run_items import OutputItem, as_line
from shared.counted_nouns import counted


def export(
    run_id: Annotated[str, typer.Argument(help="Id of a run, from `mens eval list`, or any unique part of it.")],
    output: Annotated[Path | None, typer.Option(dir_okay=False, help="File to write. Default: stdout.")] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Write CSV: a column for each score, text on one line.")
    ] = False,
) -> None:
    """Write the items of a run, with answers and scores, as JSONL or CSV."""
    items = list(api.output_items(api.find_run(run_id)))
    text = _csv(items) if as_csv else _jsonl(items)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        note(f"{counted(len(items), 'item')} in {output}")


def _jsonl(items: Sequence[OutputItem]) -> str:
    return "".join(json.dumps(as_line(item), ensure_ascii=False) + "\n" for item in items)


def _csv(items: Sequence[OutputItem]) -> str:
    lines = [as_line(item) for item in items]
    names = list(dict.fromkeys(name for line in lines for name in line["scores"]))
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(["item_index", "status", "item", "answer", *names])
    for line in lines:
        cells = [line["scores"].get(name, "") for name in names]
        item = json.dumps(line["item"], ensure_ascii=False)
        writer.writerow([line["item_index"], line["status"], item, line["answer"], *cells])
    return buffer.getvalue()
