"""``mens eval``: evaluations of models that are served."""

from __future__ import annotations

import typer

from cli.commands.evaluation import suites

app = typer.Typer(no_args_is_help=True, help="Evaluations: benchmark suites against models that are served.")
app.add_typer(suites.app, name="suites")
