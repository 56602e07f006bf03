"""Entry point of ``mens``: the commands, and one line for every error that ends a command."""

from __future__ import annotations

import itertools
import sys
from typing import Annotated, Any, NoReturn

import typer

from cli.client.json_errors import note_json, print_json_error, wants_json
from cli.lazy_commands import ENTRY_POINT, CommandPlace, LazyGroup
from cli.wrong_values import reword
from shared.errors import Code, MensError, Unavailable

# Typer exports this error's kinds only, and its copy of click is private.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

PLACES = (
    CommandPlace(
        "up",
        "up:up",
        "Start Valkey, API, worker, control worker and vLLM on this machine, and keep them running until Ctrl-C.",
    ),
    CommandPlace(
        "demo",
        "demo:demo",
        "Run the whole loop on a real model: fetch it, upload rows, tune, publish, and compare the answers of base and tuned model.",
    ),
    CommandPlace(
        "train",
        "jobs.train:train",
        "Tune a base model on a JSONL file. Check it first with `mens data check FILE` and `mens plan FILE --model NAME`.",
        takes_unknown_options=True,
    ),
    CommandPlace(
        "plan",
        "plan:plan",
        "Run every check of a job and show its plan. Exit code 1, with error and remedy, if the job could not run.",
        takes_unknown_options=True,
    ),
    CommandPlace(
        "chat",
        "models:chat",
        "Chat with a model: one message, or a conversation without one; --with compares two models.",
    ),
    CommandPlace(
        "usage",
        "tenants.usage:usage",
        "Show requests and tokens by day, key and model: with an admin's key the tenant's, otherwise the key's own.",
    ),
    CommandPlace(
        "replicas",
        "replicas:replicas",
        "Show the serving replicas: base model, state, requests in flight, and last error with its age. For an admin of `shared`.",
    ),
    CommandPlace(
        "status",
        "status:status",
        "Show the number of workers and the newest jobs with their progress. `mens jobs show ID` shows one job.",
    ),
    CommandPlace(
        "open",
        "open:open_console",
        "Print a link that opens the web console signed in; it works once, within a minute. If there is a screen, open it.",
    ),
    CommandPlace(
        "retention",
        "retention:retention",
        "List what the retention policy deletes: old checkpoints and adapters, run folders, merged models, unreferenced folders, encoded data.",
    ),
    CommandPlace(
        "models",
        "models:app",
        "List every name that `model` accepts: bases, adapters, aliases; show one; delete an adapter.",
    ),
    CommandPlace(
        "jobs",
        "jobs.commands:app",
        "Jobs: list, show, checkpoints, compare, watch, logs, cancel, pause, resume, priority, merge.",
    ),
    CommandPlace("aliases", "aliases:app", "Aliases: list, move, split between adapters, roll back, history."),
    CommandPlace("names", "names:app", "Names of another provider's models: map, list, remove, history."),
    CommandPlace(
        "policies",
        "gates.policies:app",
        "Policies: files of gates that an adapter must pass before an alias may point to it (docs/evaluation.md).",
    ),
    CommandPlace(
        "receipts",
        "gates.receipts:app",
        "Receipts: create, list, show. A receipt records, gate by gate, whether an adapter passed a policy, compared with the adapter it would replace.",
    ),
    CommandPlace("base", "bases.commands:app", "Base models: build a tiny one, add your own, list and remove them."),
    CommandPlace("adapter", "adapters:app", "Adapters as files: import, export, sign, verify."),
    CommandPlace("keys", "keys.commands:app", "API keys: create, list, limit, change, rotate, revoke."),
    CommandPlace(
        "tenants",
        "tenants.quotas:app",
        "Tenants: jobs, GPU-minutes of the month, keys, files, last activity; and job quotas.",
    ),
    CommandPlace(
        "webhooks",
        "tenants.webhooks:app",
        "Webhooks: get notified of checkpoints and of the end of a job or an eval run, instead of polling. They need an admin's key.",
    ),
    CommandPlace(
        "permissions",
        "tenants.permissions:app",
        "Permissions lend an adapter to other tenants: create, list, delete. They need an admin's key (docs/tenants.md).",
    ),
    CommandPlace(
        "audit",
        "tenants.audit:app",
        "The audit log: who created, changed and deleted keys, limits, jobs, files, models, aliases, policies and webhooks.",
    ),
    CommandPlace(
        "data",
        "data.commands:app",
        "Data: check training files, and convert files of other programs, offline.",
    ),
    CommandPlace(
        "corpus",
        "corpus.commands:app",
        "Corpora: make training files from tables, code and documents, and find out where each row comes from.",
    ),
    CommandPlace(
        "generate-data",
        "corpus.generate:generate",
        "Generate training rows from drawn values and templates, and from the answers of models.",
    ),
    CommandPlace(
        "eval",
        "evaluation.evals:app",
        "Evaluations: test whether a model is good enough and not worse than another, by your own rows and graders or by benchmarks.",
    ),
    CommandPlace(
        "scorecard",
        "evaluation.scorecards:app",
        "Scorecards: tasks that models answer with code. Code that does not compile is returned with the errors, a few times. A scorecard counts answers that compile, answers that solve the task, and repairs.",
    ),
    CommandPlace("migrate", ENTRY_POINT, "Migrate from another provider."),
    CommandPlace("files", "data.files:app", "Uploaded files: list, show, rows, delete."),
    CommandPlace("storage", "storage:app", "Storage: verify that everything in the database is stored, byte for byte."),
)
"""All commands."""

PANELS = {
    "Start": ("up", "demo", "train", "chat", "status", "open"),
    "Data": ("data", "corpus", "generate-data", "plan", "files"),
    "Jobs and models": ("jobs", "models", "base", "adapter", "aliases", "names", "migrate"),
    "Prove": ("eval", "scorecard", "policies", "receipts"),
    "Run the installation": (
        "replicas",
        "storage",
        "retention",
        "keys",
        "tenants",
        "usage",
        "audit",
        "webhooks",
        "permissions",
    ),
}
"""Panels of `mens --help`, and the commands of each, in their order."""

ALIASES = {
    "alias": ("aliases", "set"),
    "merge": ("jobs", "merge"),
    "probe": ("status", "--workers"),
    "watch-telemetry": ("jobs", "watch", "--events"),
}
"""Verbs of the original system, and the words that each stands for; lists leave them out."""


class Commands(LazyGroup):
    """All commands; with ``--json``, errors in a call are JSON on stdout too."""

    places = PLACES
    panels = PANELS
    aliases = ALIASES

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        note_json("--json" in itertools.takewhile("--".__ne__, args))
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            reword(error)
            if not wants_json():
                raise
            print_json_error(
                {
                    "code": str(Code.REQUEST_INVALID),
                    "message": message_of(error),
                    "remedy": f"See `{command_of(error)} --help`.",
                    "param": param_of(error),
                }
            )
            raise typer.Exit(2) from error


def message_of(error: Any) -> str:
    """Return click's message about a wrong call."""
    return str(error.format_message())


def command_of(error: Any) -> str:
    """Return the command that was called wrongly, as typed."""
    context = getattr(error, "ctx", None)
    # The program's own name is its path in tests and under `python -m`.
    return " ".join(["mens", *context.command_path.split()[1:]]) if context else "mens"


def param_of(error: Any) -> str | None:
    """Return the argument or option that a wrong call is about, in the form of contract fields: ``seq_len``."""
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


def _print_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

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
    # Commands report errors of the API themselves, so errors that arrive here are mostly wrong settings.
    except MensError as error:
        _end(str(error), error.as_dict())
    except ModuleNotFoundError as error:
        missing = _missing_package(error)
        _end(str(missing), missing.as_dict())
    except _failures() as error:
        from shared.host import path_fault  # multiprocessing is slow to import

        if isinstance(error, OSError) and (fault := path_fault(error)):
            _end(str(fault), fault.as_dict())
        message = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        unexpected = MensError(Code.INTERNAL_ERROR, message)
        _end(str(unexpected), unexpected.as_dict())


def _missing_package(error: ModuleNotFoundError) -> MensError:
    """Return the error of a command that needs more than the extra `cli`, which is sufficient only for commands that
    call an API.
    """
    package = str(error.name).partition(".")[0]
    return Unavailable(
        Code.PROGRAM_FAILED,
        f"This command needs the Python package {package}, which is not installed here.",
        remedy="Run it where all of Mens is installed (`make install`, or the extra `standalone`); the extra `cli` is for commands "
        "that call an API.",
        retryable=False,
    )


def _failures() -> tuple[type[Exception], ...]:
    """Return the other exceptions that may end a command. Called only after a command has failed, because HTTPX alone
    takes as long to import as everything else.
    """
    import httpx

    return httpx.HTTPError, OSError, ValueError


def _end(message: str, error: dict[str, Any]) -> NoReturn:
    if wants_json():
        print_json_error(error)
    else:
        typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
