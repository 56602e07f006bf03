"""The steps of ``mens migrate openai`` that need an installation: plan, train, switch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.client.connection import Connection, connect, fail, note, saved_connection
from cli.client.job_progress import follow, poll
from cli.client.json_errors import note_json
from cli.output import plain_console, print_table
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import Archive
from openai_migration.successors.contracts import ConvertedModel, Unplannable, tuned_models
from openai_migration.successors.installation import Installation
from openai_migration.successors.planners import InstallationPlanner, LocalPlanner, Planner
from openai_migration.successors.plans import PlanRefusal, SuccessorPlan, plan_successors, read_plans, write_plan
from openai_migration.successors.switching import Switch, aliases_for, prepare, switch
from openai_migration.successors.training import ENDED_WITHOUT, Training, read_training, record, submit
from shared.counted_nouns import counted
from shared.errors import MensError
from shared.settings import Settings, read_settings

app = typer.Typer()
switch_app = typer.Typer()
"""A separate app, because `--help` lists steps in the order of their use, and `gate` comes before `switch`."""
console = plain_console(stderr=True)
GIB = 1 << 30
NO_PROMISE = "A base may be worse than the model it replaces: compare them with `gate`."

ArchiveFolder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="Folder of an export whose rows are converted.")
]
Models = Annotated[
    list[str],
    typer.Option("--model", help="Only this tuned model; may be repeated.", default_factory=list, show_default=False),
]
Json = Annotated[bool, typer.Option("--json", callback=note_json, help="Print the result as JSON.")]


@app.command("plan")
def plan(
    *,
    archive: ArchiveFolder = Path("openai-archive"),
    model: Models,
    bases: Annotated[
        str,
        typer.Option(metavar="NAME,NAME", help="Base to train on; may be repeated. Default: the largest that fits."),
    ] = "",
    local: Annotated[bool, typer.Option("--local", help="Plan for this machine instead of the installation.")] = False,
    vram_gb: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=1e6, help="With --local: memory of the training GPU in GiB, if it is in another machine."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be planned; upload and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a contract for the successor of each tuned model, with the source of each value and the cost of training.

    The plan is made by the installation (MENS_API_URL, or `mens up` here), which knows its workers' GPUs; the converted
    rows are uploaded to it. Without an installation, the plan uses this machine's catalogue. Writes
    plans/PROJECT/MODEL/BASE.json; you may edit a contract before `train`. Sends nothing to OpenAI.
    """
    every = list(tuned_models(ArchiveContents(archive)))
    _check_models(archive, [tuned.name for tuned in every], model)
    selected = [tuned for tuned in every if not model or tuned.name in model]
    base_names = [base.strip() for base in bases.split(",") if base.strip()]
    if dry_run:
        for tuned in selected:
            fate = f"not planned: {tuned.reason}" if isinstance(tuned, Unplannable) else f"on {bases or 'every base'}"
            typer.echo(f"{tuned.name}: {fate}")
        return
    made: list[SuccessorPlan] = []
    failures = [f"{tuned.name}: {tuned.reason}" for tuned in selected if isinstance(tuned, Unplannable)]
    with Archive(archive), _planner(archive, vram_gb, local=local or vram_gb is not None) as planner:
        for tuned in selected:
            if not isinstance(tuned, ConvertedModel):
                continue
            options = list(plan_successors(archive, tuned, planner, base_names))
            fits = sorted(
                (option for option in options if isinstance(option, SuccessorPlan)),
                key=lambda option: option.estimate.parameters,
            )
            chosen = fits if base_names else fits[-1:]
            for option in chosen:
                write_plan(archive, option)
            made += chosen
            if not chosen:
                failures.append(f"{tuned.name}: no base fits, according to {planner.place}")
            if not as_json:
                refusals = [option for option in options if isinstance(option, PlanRefusal)]
                _show_plans(tuned, planner.place, fits, chosen, refusals)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(made), indent=2))
    note(NO_PROMISE)
    if failures:
        fail("\n".join(failures))
    note(f"next: `mens migrate openai train {archive}`")


@app.command("train")
def train(
    *,
    archive: ArchiveFolder = Path("openai-archive"),
    model: Models,
    retry: Annotated[
        bool, typer.Option("--retry", help="Create a new job for each that failed or was cancelled.")
    ] = False,
    watch: Annotated[bool, typer.Option(help="Follow the jobs until they end.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which jobs would be created; send nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train the planned successors on the installation: upload the rows, and create one job for each plan.

    You can interrupt and repeat it: jobs continue; they are recognised by the digest of contract and rows. A failed job
    does not stop the others; the exit code is then 1. Writes train/PROJECT/MODEL/BASE.json. Sends nothing to OpenAI.
    """
    plans = _by_end(ArchiveContents(archive), read_plans(archive, model))
    if dry_run:
        for entry in plans:
            stored = read_training(archive, entry)
            same = stored is not None and stored.plan == entry.digest
            fate = f"has {stored.job} ({stored.state})" if stored and same else f"would be trained on {entry.base}"
            typer.echo(f"{entry.model}: {fate}")
        return
    done: list[Training] = []
    failures: list[str] = []
    with Archive(archive), Installation(connect(), archive) as installation:
        for entry in plans:
            try:
                training = submit(archive, installation, entry, retry=retry)
            except MensError as error:
                failures.append(f"{entry.model} on {entry.base}: {error}")
            else:
                note(f"{entry.model}: {training.job} on {entry.base} is {training.state}")
                done.append(training)
        if watch:
            done = [_follow(archive, installation, plans, training, quiet=as_json) for training in done]
    failures += [
        f"{entry.model} on {entry.base}: {entry.job} {entry.state}: {entry.error} Fix the cause, then run again with --retry".replace(
            ":  ", ": "
        )
        for entry in done
        if entry.state in ENDED_WITHOUT
    ]
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(done), indent=2))
    else:
        rows = [(entry.model, entry.base, entry.job, entry.state, entry.adapter) for entry in done]
        print_table(("model", "base", "job", "state", "adapter"), rows)
    if failures:
        fail("\n".join(failures))
    note(
        f"next: `mens migrate openai {'gate' if watch else 'train'} {archive}`{'' if watch else ', which follows them'}"
    )


@switch_app.command("switch")
def switch_models(
    *,
    archive: ArchiveFolder = Path("openai-archive"),
    model: Models,
    alias: Annotated[
        str, typer.Option(help="With one --model: alias to create. Default: the model's suffix at OpenAI.")
    ] = "",
    adapter: Annotated[
        str, typer.Option(help="With one --model: its successor. Default: the adapter that `gate` compared.")
    ] = "",
    override_reason: Annotated[
        str,
        typer.Option(
            metavar="WHY",
            help="Switch without a passed gate, for this reason; it is recorded in the histories and the report.",
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be moved; send nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Replace the tuned models by their successors: create an alias for each, and map the model's OpenAI name to it.

    A model whose gate has not passed is not switched without --override-reason. Prints the two settings that a program
    must change. You can repeat it; `mens aliases rollback` undoes a move. Writes switch/MODEL.json.
    """
    tuned_names = [tuned.name for tuned in tuned_models(ArchiveContents(archive))]
    _check_models(archive, tuned_names, model)
    if (alias or adapter) and len(model) != 1:
        fail("--alias and --adapter are for one model: name it with --model.")
    names = aliases_for(tuned_names) | ({model[0]: alias} if alias else {})
    done: list[Switch] = []
    failures: list[str] = []
    connection = connect()
    with Archive(archive), Installation(connection, archive) as installation:
        for name in model or tuned_names:
            try:
                move = prepare(archive, name, names[name], adapter=adapter, override_reason=override_reason)
                if dry_run:
                    typer.echo(f"{name} → alias {move.alias} → {move.adapter}: {move.reason}")
                else:
                    done.append(switch(archive, installation, move, take_alias=bool(alias)))
            except MensError as error:
                failures.append(str(error))
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(done), indent=2))
    elif done:
        _show_switches(done, connection)
    if failures:
        fail("\n".join(failures))


def _by_end(contents: ArchiveContents, plans: list[SuccessorPlan]) -> list[SuccessorPlan]:
    """Return the plans in the order in which their models end, because an installation trains jobs in the order in
    which it gets them.
    """
    names = [name for project in contents.projects() for name in contents.last_models(project)]
    ends = {name: place for place, name in enumerate(names)}
    return sorted(plans, key=lambda plan: ends.get(plan.model, len(ends)))


def _check_models(archive: Path, available: Sequence[str], requested: Sequence[str]) -> None:
    """End the command if the archive has no tuned model, or lacks a requested one."""
    if not available:
        fail(
            f"{archive} has no tuned model. If you have the files of a tuned model, import them: `mens migrate openai import`."
        )
    if unknown := [name for name in requested if name not in available]:
        fail(f"the archive has no tuned model {', '.join(unknown)}; it has {', '.join(available)}")


@contextmanager
def _planner(archive: Path, vram_gb: float | None, *, local: bool) -> Iterator[Planner]:
    """Yield the installation's planner if an installation is configured, otherwise this machine's."""
    settings = read_settings(Settings)
    if local or not (os.environ.get("MENS_API_URL", "").strip() or saved_connection(settings.home)):
        yield LocalPlanner(settings, int(vram_gb * GIB) if vram_gb else None)
        return
    with Installation(connect(), archive) as installation:
        yield InstallationPlanner(installation)


def _follow(
    archive: Path, installation: Installation, plans: Iterable[SuccessorPlan], training: Training, *, quiet: bool
) -> Training:
    """Store a training and return it once its job has ended. ``quiet``: print nothing but the result to stdout."""
    if quiet:
        *_, job = poll(training.job, installation.connection)
    else:
        job = follow(training.job, console, installation.connection)
    plan = next(
        candidate for candidate in plans if (candidate.digest, candidate.model) == (training.plan, training.model)
    )
    return record(archive, installation, plan, job)


def _show_plans(
    model: ConvertedModel,
    place: str,
    fits: list[SuccessorPlan],
    chosen: list[SuccessorPlan],
    refusals: list[PlanRefusal],
) -> None:
    typer.echo(f"{model.name}: {counted(model.rows, 'row')}; planned by {place}")
    for fitting in fits:
        needs = fitting.estimate
        budget = f" of {needs.memory_budget / GIB:.1f} GiB available" if needs.memory_budget else ""
        time = f"training about {needs.seconds / 60:.0f} min" if needs.seconds else "time not known yet"
        facts = [
            f"{needs.parameters / 1e9:.2f}B parameters",
            f"context {needs.context or '?'}",
            counted(needs.steps, "step"),
            f"{needs.tokens or '?'} tokens",
            f"estimated peak {needs.memory_bytes / GIB:.1f} GiB{budget}",
            time,
        ]
        typer.echo(f"  {fitting.base}: {', '.join(facts)}{' → planned' if fitting in chosen else ''}")
    for refusal in refusals:
        typer.echo(f"  {refusal.base}: not possible: {refusal.error}")
    for fitting in chosen:
        for source in fitting.sources:
            original = "" if source.openai is None else f" (OpenAI: {source.openai})"
            typer.echo(f"    {source.field} = {_shown(source.value)}{original}: {source.reason}")
        for warning in fitting.warnings:
            typer.echo(f"    warning: {warning}")


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _show_switches(done: list[Switch], connection: Connection) -> None:
    for move in done:
        evidence = f"without a passed gate: {move.override_reason}" if move.override_reason else "its gate passed"
        typer.echo(f"{move.model} → alias {move.alias} → {move.adapter} ({evidence})")
    typer.echo("Change only these two settings of a program:")
    typer.echo(f"  OPENAI_BASE_URL={connection.url}/v1")
    typer.echo("  OPENAI_API_KEY=…    # a key of this installation: mens keys create NAME --role viewer")
