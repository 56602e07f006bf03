"""``mens corpus eval``: measures of a training file in the original's fields, and the result of a policy's gates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.client.uploads import refuse_other_file
from cli.output import plain_console, print_table, printable
from shared.errors import MensError


def evaluate(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, callback=refuse_other_file, help="A training file.")
    ],
    language: Annotated[
        list[str] | None,
        typer.Option(
            help="Check answers in this language: python, sql, json, or an installed one. Can be repeated. Default: python."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="YAML file with gates: eval_local, per_context, anti_stub and modal_mix judge the file. Exit code 1 if a blocking gate fails.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(dir_okay=False, help="File for the measures.")] = Path("eval_results.json"),
    as_json: Annotated[
        bool, typer.Option("--json", callback=note_json, help="Print the measures and the gates as JSON.")
    ] = False,
) -> None:
    """Measure the code in the answers of a training file: how much of it can be parsed, and what it consists of.

    Example: mens corpus eval train.jsonl --policy gates.yaml

    The measures have the original's fields. Nothing is run. The gates are the same as in `mens policies`, but judge the
    file's answers instead of a model's.
    """
    from corpus.measures.evaluation import judge_file, measure_file
    from corpus.shards import write_json
    from shared.gates.policy_file import read_policy

    try:
        # Checked before the file is read, which may take long.
        gates = read_policy(policy.read_text(encoding="utf-8", errors="replace")) if policy else None
        measured = measure_file(file, tuple(dict.fromkeys(language or ("python",))))
        rows = judge_file(measured, gates, policy.stem) if gates and policy else []
        evaluation = measured.evaluation()
        write_json(out, evaluation)
    except MensError as error:
        fail_with(error)
    if as_json:
        shown = msgspec.to_builtins(evaluation) | {"gates": [row.model_dump(mode="json") for row in rows]}
        typer.echo(msgspec.json.encode(shown))
    else:
        console = plain_console()
        for name, value in msgspec.to_builtins(evaluation).items():
            if not isinstance(value, dict):
                console.print(printable(f"{name}: {'not measured' if value is None else value}"), highlight=False)
        if rows:
            shown_rows = [(row.name, row.status.value, row.message) for row in rows]
            print_table(["gate", "outcome", "why"], shown_rows, header=True)
        console.print(f"wrote {out}", soft_wrap=True)
    if not all(row.passed for row in rows if row.block):
        raise typer.Exit(1)
