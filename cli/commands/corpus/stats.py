"""``mens corpus stats``: where rows come from, and how varied they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.options import refuse_recipe
from cli.output import counted, plain_console, print_table, printable
from shared.errors import Code, InvalidRequest, MensError


def stats(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, callback=refuse_recipe, help="A training file.")],
    min_diversity: Annotated[
        float, typer.Option(min=0, max=1, help="Exit code 1 if the share of rows that repeat no other row is lower.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the statistics as JSON.")] = False,
) -> None:
    """Show where the rows of a training file come from and how varied they are: by source, stage, origin and label.

    Example: mens corpus stats train.jsonl --min-diversity 0.4

    Synthetic rows are compared with those of people. `mens data check` lists bad lines and duplicates one by one.
    """
    from corpus.measures.statistics import measure  # numpy is slow to import

    try:
        found = measure(file)
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        console = plain_console()
        bad = f", {counted(found.error_count, 'bad line')}" if found.error_count else ""
        console.print(f"{file}: {counted(found.rows, 'row')}{bad}", soft_wrap=True)
        console.print(
            f"diversity {found.diversity:.2f}: {found.exact_duplicates:,} equal and {found.near_duplicates:,} similar rows"
        )
        origins = [
            (name, f"{one.rows:,}", f"{one.characters:,.0f}", f"{one.distinct_2:.2f}", f"{one.length_entropy:.2f}")
            for name, one in found.origins.items()
        ]
        print_table(["origin", "rows", "characters", "distinct pairs", "length bits"], origins, header=True)
        for name in ("sources", "stages", "categories", "lanes", "ratings", "difficulties"):
            if counts := getattr(found, name):
                listed = ", ".join(f"{key} {count:,}" for key, count in counts.items())
                console.print(printable(f"{name}: {listed}"), soft_wrap=True, highlight=False)
        for note in found.notes:
            console.print(printable(f"note: {note}"), soft_wrap=True)
    if min_diversity and not found.rows:
        fail_with(
            InvalidRequest(
                Code.CORPUS_DIVERSITY_LOW,
                f"{file} has no valid row, so it has no diversity.",
                remedy="Correct the file; `mens data check` names its bad lines.",
                param="min_diversity",
            )
        )
    if found.diversity < min_diversity:
        fail_with(
            InvalidRequest(
                Code.CORPUS_DIVERSITY_LOW,
                f"{found.diversity:.0%} of the rows repeat no other row; the lowest share is {min_diversity:.0%}.",
                remedy="Add other rows, or leave out duplicates with `dedup` in a mix.",
                param="min_diversity",
            )
        )
