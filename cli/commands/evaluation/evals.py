"""``mens eval``: evaluations of models that are served."""

from __future__ import annotations

import typer

from cli.commands.evaluation import export, runs, suites

app = typer.Typer(
    no_args_is_help=True,
    help="Evaluations: test whether a model is good enough and not worse than another, by your own rows and graders or by benchmarks.\n\n"
    'Start with `mens eval run FILE --model NAME`; a line of FILE is {"messages": […], "expected": "…"}.',
)
app.command("run")(runs.run)
app.command("show")(runs.show)
app.command("list")(runs.list_runs)
app.command("compare")(runs.compare)
app.command("export")(export.export)
app.command("cancel")(runs.cancel)
app.add_typer(suites.app, name="suites")
