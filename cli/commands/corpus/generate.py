"""``mens generate-data``, ``mens corpus generate``: rows from columns and templates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import fail_with
from cli.client.json_errors import note_json
from cli.output import counted
from shared.errors import MensError


def generate(
    recipe: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="YAML file with columns and a row.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the rows.")] = Path("generated"),
    rows: Annotated[
        int | None, typer.Option(min=1, help="Number of rows. Default: the recipe's. More rows keep the earlier ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the index as JSON.")] = False,
) -> None:
    """Generate training rows from drawn values and templates, without a model.

    Example: mens generate-data examples/corpus/support.yaml --out generated

    The same recipe gives the same rows on every machine. docs/corpus.md lists the samplers.
    """
    import msgspec

    from shared.corpus.generation.generating import Generation
    from shared.corpus.keys import stage_key

    try:
        stage = Generation(recipe, rows)
        index = stage.run(out, stage_key(stage.name, stage.version, stage.parameters(), stage.inputs()))
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(index))
    else:
        typer.echo(f"{counted(index.rows, 'row')} in {out}")
