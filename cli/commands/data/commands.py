"""``mens data``: the group of its commands."""

from __future__ import annotations

import typer

from cli.commands.data import check, convert

app = typer.Typer(
    no_args_is_help=True,
    help="Data: check training files, and convert files of other programs, offline.\n\n"
    "Start with `mens data check FILE`; convert files in another form with `mens data convert FILE -o rows.jsonl`.",
)
app.command("check")(check.check)
app.command("convert")(convert.convert)
