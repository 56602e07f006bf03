"""``mens corpus``: the group of its commands."""

from __future__ import annotations

import typer

from cli.commands.corpus import extract, where

app = typer.Typer(
    no_args_is_help=True,
    help="Corpora: make training files from tables, code and documents, and find out where each row comes from.",
)
app.command("extract")(extract.extract)
app.command("where")(where.where)


@app.callback()
def _group() -> None:
    """Keep the name of a command while the group has only one."""
