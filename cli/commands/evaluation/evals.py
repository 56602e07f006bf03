"""``mens eval``: evaluations of models that are served."""

from __future__ import annotations

import typer

from cli.commands.evaluation import exchange, suites

app = typer.Typer(
    no_args_is_help=True,
    help="Evaluations: benchmark suites against models that are served, and promptfoo's configuration as eval files.",
)
app.command("import")(exchange.import_promptfoo)
app.add_typer(suites.app, name="suites")
