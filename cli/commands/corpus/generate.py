"""``mens generate-data``, ``mens corpus generate``: rows from columns, templates and answers of models."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client.connection import connect, fail, fail_with, note
from cli.client.json_errors import note_json, wants_json
from shared.counted_nouns import counted
from shared.errors import MensError
from shared.settings import Settings, read_settings

if TYPE_CHECKING:
    from corpus.generation.endpoints import ModelEndpoint
    from corpus.generation.planning import PlannedRequests

PROGRESS_SECONDS = 5.0


def generate(
    recipe: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="YAML file with columns and a row.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the rows.")] = Path("generated"),
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of rows. Default: the recipe's. With a larger number, the earlier rows stay the same."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Number of concurrent requests to models; it does not affect the rows.")
    ] = 8,
    accept_terms: Annotated[
        bool,
        typer.Option(
            "--accept-terms", help="State that the terms of other servers' models permit training on their answers."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the requests that each model would get; send nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Send requests to models without confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", callback=note_json, help="Print the index as JSON.")] = False,
) -> None:
    """Generate training rows from drawn values and templates, and from the answers of models.

    Example: mens generate-data examples/corpus/support.yaml --out generated

    A recipe without models gives the same rows on every machine. A column with a `method` asks a model: one that your installation
    serves, or one of MENS_REMOTE_MODELS. Each response is stored in OUT/responses, so the same command continues after an interruption
    and repeats no request. docs/corpus.md lists samplers and methods.
    """
    import msgspec

    from cli.evaluation.eval_items import tenant_evals
    from corpus.filters.placeholder_key import find_key
    from corpus.filters.redactors import PATTERNS
    from corpus.generation.generating import Generation
    from corpus.generation.model_rows import ModelAccess
    from corpus.keys import stage_key

    try:
        plain = Generation(recipe, rows)
        settings = read_settings(Settings)
        key = find_key((PATTERNS,), makes=not dry_run) if plain.recipe.models else None
        decontaminate = plain.recipe.decontaminate
        access = ModelAccess(
            remote=settings.named_models,
            installation=_installation,
            accepts_terms=accept_terms,
            concurrency=concurrency,
            redaction_key=key.value if key else b"",
            sandbox=settings.sandbox,
            evals=list(tenant_evals()) if decontaminate and decontaminate.policies else (),
            progress=_progress(rows or plain.recipe.rows),
        )
        stage = Generation(recipe, rows, access)
        _announce(stage.plan(out), yes=yes or dry_run)
        if dry_run:
            return
        index = stage.run(out, stage_key(stage.name, stage.version, stage.parameters(), stage.inputs()))
    except MensError as error:
        fail_with(error)
    if as_json:
        typer.echo(msgspec.json.encode(index))
        return
    typer.echo(f"{counted(index.rows, 'row')} in {out}")
    if dropped := index.report.get("dropped"):
        note("left out: " + ", ".join(f"{code} {count:,}" for code, count in dropped.items()))


def _installation(name: str) -> ModelEndpoint:
    """Return the endpoint of a model that the installation serves."""
    from corpus.generation.endpoints import INSTALLATION, ModelEndpoint

    connection = connect()
    tenant = os.environ.get("MENS_TENANT")
    headers = {"X-Mens-Tenant": tenant} if tenant else {}
    return ModelEndpoint(name, INSTALLATION, f"{connection.url}/v1", name, connection.key, headers)


def _announce(plans: list[PlannedRequests], *, yes: bool) -> None:
    """Print the requests that will be sent, and ask for confirmation if there are any."""
    for plan in plans:
        stored = f", {plan.stored:,} responses are stored" if plan.stored else ""
        money = "" if plan.money is None else f", about {plan.money:,.2f} by your prices"
        note(
            f"{plan.endpoint.name} ({plan.endpoint.url}): at most {counted(plan.requests, 'request')}{stored}; about "
            f"{plan.prompt_tokens:,} prompt tokens and at most {plan.answer_tokens:,} answer tokens{money}"
        )
    # Ask even if responses are stored, because they may belong to other prompts.
    if yes or not plans:
        return
    if wants_json() or not sys.stdin.isatty():
        fail("use --yes to send requests to models without confirmation.")
    typer.confirm("Begin?", abort=True, err=True)


def _progress(rows: int) -> Callable[[int], None]:
    """Return a function that prints, every few seconds, how many rows are done and how long the others will take."""
    began = last = time.monotonic()

    def show(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > PROGRESS_SECONDS:
            last = now
            note(f"{done:,} of {rows:,} rows, {(now - began) / done * (rows - done):,.0f} s left")

    return show
