"""Run one stage by its own command, and print the lines that describe its output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.client.connection import fail_with
from cli.output import plain_console
from shared.errors import MensError

if TYPE_CHECKING:
    from corpus.shards import ShardIndex
    from corpus.stages import CorpusStage


def run_stage(
    make: Callable[[], CorpusStage],
    out: Path,
    describe: Callable[[ShardIndex], str],
    counts: Callable[[ShardIndex], dict[str, int]],
    *,
    as_json: bool,
) -> None:
    """Run a stage; print its description, its counts and what was left out, or its index as JSON."""
    import msgspec

    from corpus.stages import key_of

    try:
        stage = make()
        index = stage.run(out, key_of(stage))
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(index))
        return
    console = plain_console()
    console.print(describe(index))
    for name, count in counts(index).items():
        console.print(f"  {count:>8,} {name}")
    if index.report["left_out"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in index.report["left_out"].items())
        console.print(f"left out: {reasons}")
