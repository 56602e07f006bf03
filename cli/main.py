"""Entry point of ``mens``: the commands, and one line for every error that ends one."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Annotated

import httpx
import typer

from cli.client.json_errors import note_json, wants_json
from cli.commands import (
    aliases,
    bases,
    data,
    demo,
    jobs,
    keys,
    migrate,
    models,
    names,
    plan,
    replicas,
    retention,
    status,
    up,
    usage,
)
from shared.errors import MensError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Mens: a JSONL file in, a tuned model that answers OpenAI-style chat completions out, on your own machines.\n\n"
    "Start with `mens up` (or `mens demo`), then `mens train FILE --model NAME`, then `mens chat`.",
)
app.command("up")(up.up)
app.command("demo")(demo.demo)
app.command("train", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(jobs.train)
app.command("plan")(plan.plan)
app.command("chat")(models.chat)
app.add_typer(models.app, name="models")
app.add_typer(jobs.app, name="jobs")
app.add_typer(aliases.app, name="aliases")
app.command("alias", hidden=True)(aliases.set_alias)  # the short form of `aliases set`
app.add_typer(names.app, name="names")
app.add_typer(bases.app, name="base")
app.add_typer(keys.app, name="keys")
app.add_typer(data.app, name="data")
app.add_typer(migrate.app, name="migrate")
app.command("usage")(usage.usage)
app.command("replicas")(replicas.replicas)
app.command("probe")(status.probe)
app.command("status")(status.status)
app.command("watch-telemetry")(status.watch_telemetry)
app.command("retention")(retention.retention)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mens {version('mens')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of ``mens`` itself, before a command."""
    note_json(False)


def main() -> None:
    """Run ``mens``. An error that no command has caught ends it with one line and exit code 1."""
    try:
        app()
    # Commands report errors of the API themselves, so what arrives here is mostly a setting that is wrong.
    except MensError as error:
        if wants_json():
            typer.echo(json.dumps({"error": error.as_dict()}, indent=2))
            sys.exit(1)
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(1)
    except (httpx.HTTPError, OSError, ValueError) as error:
        text = str(error).splitlines()
        typer.secho(f"error: {type(error).__name__}: {text[0] if text else ''}", fg=typer.colors.RED, err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
