"""``mens corpus stats``: where rows come from, and how varied they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.client.uploads import refuse_other_file
from cli.output import plain_console, print_table, printable
from shared.counted_nouns import counted
from shared.errors import Code, InvalidRequest, MensError


def stats(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, callback=refuse_other_file, help="A training file.")
    ],
    min_diversity: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Exit with code 1 if the share of rows that are neither equal nor similar to another row is lower.",
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the statistics as JSON.")] = False,
) -> None:
    """Show where the rows of a training file come from and how varied they are: by source, stage, origin and label.

    Example: mens corpus stats train.jsonl --min-diversity 0.4

    Synthetic rows are compared with human-written ones. `mens data check` lists bad lines and duplicates one by one.
    """
    from corpus.measures.statistics import measure  # numpy is slow to import

    try:
        statistics = measure(file)
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(statistics))
    else:
        console = plain_console()
        bad = f", {counted(statistics.error_count, 'bad line')}" if statistics.error_count else ""
        console.print(f"{file}: {counted(statistics.rows, 'row')}{bad}", soft_wrap=True)
        console.print(
            f"diversity {statistics.diversity:.2f}: {statistics.exact_duplicates:,} equal and "
            f"{statistics.near_duplicates:,} similar rows"
        )
        origins = [
            (
                name,
                f"{origin.rows:,}",
                f"{origin.characters:,.0f}",
                f"{origin.distinct_2:.2f}",
                f"{origin.length_entropy:.2f}",
            )
            for name, origin in statistics.origins.items()
        ]
        print_table(["origin", "rows", "characters", "distinct pairs", "length bits"], origins, header=True)
        for name in ("sources", "stages", "categories", "lanes", "ratings", "difficulties"):
            if counts := getattr(statistics, name):
                listed = ", ".join(f"{key} {count:,}" for key, count in counts.items())
                console.print(printable(f"{name}: {listed}"), soft_wrap=True, highlight=False)
        for note in statistics.notes:
            console.print(printable(f"note: {note}"), soft_wrap=True)
    if min_diversity and not statistics.rows:
        fail_with(
            InvalidRequest(
                Code.CORPUS_DIVERSITY_LOW,
                f"{file} has no valid row, so its diversity cannot be measured.",
                remedy="Correct the file; `mens data check` names its bad lines.",
                param="min_diversity",
            )
        )
    if statistics.diversity < min_diversity:
        fail_with(
            InvalidRequest(
                Code.CORPUS_DIVERSITY_LOW,
                f"{statistics.diversity:.0%} of the rows repeat no other row; at least {min_diversity:.0%} is "
                "required.",
                remedy="Add other rows, or leave out duplicates with `dedup` in a mix.",
                param="min_diversity",
            )
        )
