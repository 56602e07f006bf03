"""Entry point of ``mens``: the commands, and one line for every error that ends one."""

from __future__ import annotations

import itertools
import sys
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import httpx
import typer
from typer.core import TyperGroup

from cli.client.json_errors import note_json, print_json_error, wants_json
from cli.commands import (
    adapters,
    aliases,
    bases,
    data,
    demo,
    jobs,
    migrate,
    models,
    names,
    plan,
    replicas,
    retention,
    status,
    up,
)
from cli.commands.evaluation import evals, scorecards
from cli.commands.gates import policies, receipts
from cli.commands.keys import commands as keys
from cli.commands.tenants import quotas, usage, webhooks
from shared.errors import Code, MensError

# Typer exports this error's kinds only, and its copy of click is private.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """All commands; with ``--json``, what is wrong with how one is called is JSON on stdout too."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        note_json("--json" in itertools.takewhile("--".__ne__, args))
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            if not wants_json():
                raise
            print_json_error(
                {"code": str(Code.REQUEST_INVALID), "message": message_of(error), "param": param_of(error)}
            )
            raise typer.Exit(2) from error


def message_of(error: Any) -> str:
    """What click says about a wrong call."""
    return str(error.format_message())


def param_of(error: Any) -> str | None:
    """The argument or option that a wrong call is about, as the contract's fields are written: ``seq_len``."""
    if param := getattr(error, "param", None):
        return str(param.name)
    name = getattr(error, "option_name", None)
    return str(name).lstrip("-").replace("-", "_") if name else None


app = typer.Typer(
    cls=Commands,
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
app.command("merge")(jobs.merge)
app.add_typer(models.app, name="models")
app.add_typer(jobs.app, name="jobs")
app.add_typer(aliases.app, name="aliases")
app.command("alias", hidden=True)(aliases.set_alias)  # the short form of `aliases set`
app.add_typer(names.app, name="names")
app.add_typer(policies.app, name="policies")
app.add_typer(receipts.app, name="receipts")
app.add_typer(bases.app, name="base")
app.add_typer(adapters.app, name="adapter")
app.add_typer(keys.app, name="keys")
app.add_typer(quotas.app, name="tenants")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(data.app, name="data")
app.add_typer(evals.app, name="eval")
app.add_typer(scorecards.app, name="scorecard")
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


def main() -> None:
    """Run ``mens``. An error that no command has caught ends it with one line and exit code 1."""
    try:
        app()
    # Commands report errors of the API themselves, so what arrives here is mostly a setting that is wrong.
    except MensError as error:
        _end(str(error), error.as_dict())
    except (httpx.HTTPError, OSError, ValueError) as error:
        message = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        _end(message, {"code": str(Code.INTERNAL_ERROR), "message": message, "param": None})


def _end(message: str, error: dict[str, Any]) -> NoReturn:
    if wants_json():
        print_json_error(error)
    else:
        typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
