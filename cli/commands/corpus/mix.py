"""``mens corpus mix``: sources with weights become one training file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.output import plain_console, print_table
from shared.counted_nouns import counted
from shared.errors import MensError

if TYPE_CHECKING:
    from corpus.mixing.mix import MixResult


def mix(
    file: Annotated[Path, typer.Argument(metavar="MIX.yaml", exists=True, dir_okay=False, help="The mix file.")],
    root: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder that paths in the file are relative to. Default: the file's folder.",
        ),
    ] = None,
    allow_missing_sources: Annotated[
        bool, typer.Option("--allow-missing-sources", help="Leave out sources that are missing or contribute no rows.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the report as JSON.")] = False,
) -> None:
    """Mix sources into one training file by weights, without duplicates, with a validation file and a report.

    A mix file has at least `output` and `sources`:

        output: train.jsonl

        sources: [{path: tickets.jsonl}, {path: synthetic.jsonl, weight: 0.5, max_share: 0.3}]

    It writes train.jsonl, train.sources.jsonl (where each row comes from), train.mix_report.json and train.metadata.json. If no source and
    no setting has changed, it writes nothing.
    """
    from cli.evaluation.eval_items import tenant_evals
    from corpus.mixing.mix import run_mix  # numpy is slow to import
    from corpus.mixing.mix_file import read_mix

    try:
        plan = read_mix(file)
        needs_evals = plan.decontaminate and plan.decontaminate.policies
        evals = list(tenant_evals()) if needs_evals else []
        result = run_mix(plan, file, root=root, strict=not allow_missing_sources, evals=evals)
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(result.report))
        return
    _print(result)


def _print(result: MixResult) -> None:
    report, console = result.report, plain_console()
    rows = [
        (
            source.path,
            f"{source.weight:g}",
            f"{source.input_lines:,}",
            f"{source.emitted_lines:,}",
            f"{source.share_of_output:.1%}",
            source.skipped_reason or ", ".join(f"{code} {count:,}" for code, count in source.dropped.items()),
        )
        for source in report.sources
    ]
    print_table(["source", "weight", "lines", "rows", "share", "left out"], rows, header=True)
    held_out = f", {counted(report.total_held_out, 'row')} held out for validation" if report.total_held_out else ""
    if result.unchanged:
        console.print(f"Nothing has changed: {result.output} has {counted(report.total_emitted, 'row')}{held_out}.")
        return
    console.print(f"{result.output}: {counted(report.total_emitted, 'row')}{held_out}.")
    for note in report.notes:
        console.print(f"Note: {note}")
    if report.contaminated:
        console.print("Rows that contain parts of eval items are listed as `contaminated` in the report.")
    console.print(f"Next: mens data check {result.output}")
