"""``mens corpus``: the group of its commands."""

from __future__ import annotations

import typer

from cli.commands.corpus import build, evaluate, extract, generate, mix, pairs, pull, retract, stats, validate, where

app = typer.Typer(
    no_args_is_help=True,
    help="Corpora: make training files from tables, code and documents, and find out where each row comes from.",
)
app.command("build")(build.build)
app.command("eval")(evaluate.evaluate)
app.command("extract")(extract.extract)
app.command("generate")(generate.generate)
app.command("mix")(mix.mix)
app.command("pairs")(pairs.pairs)
app.command("pull")(pull.pull)
app.command("retract")(retract.retract)
app.command("stats")(stats.stats)
app.command("validate")(validate.validate)
app.command("where")(where.where)
