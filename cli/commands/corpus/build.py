"""``mens corpus build``: from a recipe to a training file, stage by stage."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.commands.corpus.table_options import describe_pull
from shared.counted_nouns import counted
from shared.errors import MensError


class LastStage(StrEnum):
    """The stages of a recipe."""

    PULL = "pull"
    EXTRACT = "extract"
    PAIRS = "pairs"
    GENERATE = "generate"
    FILTER = "filter"
    MIX = "mix"


def build(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", exists=True, dir_okay=False, help="The recipe.")],
    to: Annotated[LastStage, typer.Option(help="The last stage.")] = LastStage.MIX,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which stages would run, and why; nothing is read from a table.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the actions as JSON.")] = False,
) -> None:
    """Make a training file from a recipe: run the stages that are missing or out of date, and show why each runs.

    Example of a recipe, from a table to a file without duplicates, with 50 rows held out:

        pull: {source: shop.db, sql: "SELECT id, question, answer FROM tickets", key: id,

          row: {prompt: "{{ item.question }}", response: "{{ item.answer }}"}}

        mix: {output: train.jsonl, holdout: {rows: 50}}

    An interrupted stage runs again; the stages before it do not.
    """
    import msgspec

    from cli.evaluation.eval_items import tenant_evals
    from corpus.build import build as run  # numpy is slow to import
    from corpus.mixing.mix_report import read_report, report_path
    from corpus.reading.pull import PullReport
    from corpus.recipe import read_recipe

    def note_pull(report: PullReport, folder: Path) -> None:
        for line in describe_pull(report, folder):
            typer.echo(f"  {line}", err=True)

    actions = []
    try:
        plan = read_recipe(recipe)
        needs_evals = plan.mix.decontaminate and plan.mix.decontaminate.policies and to is LastStage.MIX and not dry_run
        evals = list(tenant_evals()) if needs_evals else []
        for action in run(plan, recipe, to=to.value, dry_run=dry_run, evals=evals, note_pull=note_pull):
            actions.append(action._asdict())
            if not as_json:
                typer.echo(f"{action.name}\t{'run' if action.runs else 'keep'}\t{action.reason}")
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(actions))
    elif to is LastStage.MIX and not dry_run:
        output = Path(os.path.normpath(recipe.parent / plan.mix.output))
        if report := read_report(report_path(output)):
            held_out = (
                f", {counted(report.total_held_out, 'row')} held out for validation" if report.total_held_out else ""
            )
            typer.echo(f"{output}: {counted(report.total_emitted, 'row')}{held_out}.")
            for note in report.notes:
                typer.echo(f"Note: {note}")
            typer.echo(f"Next: mens data check {output}")
