"""``mens migrate openai``: saves the data that OpenAI still has about a team's tuned models. It needs no installation."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cli.client.connection import fail, note
from cli.options import existing_file
from cli.output import print_table
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.export import ProjectExport, export_project
from openai_migration.archive.folder import (
    INVENTORY,
    SECRECY,
    Archive,
    is_archive,
    is_finished,
    read_entries,
    write_json,
)
from openai_migration.archive.inventory import ArchiveInventory, ProjectInventory, inspect_project, make_inventory
from openai_migration.archive.pages import Reader
from openai_migration.archive.sections import Section
from openai_migration.archive.shutdown_dates import TABLE_SOURCE, describe_days
from openai_migration.archive.usage import requests_by_model
from openai_migration.commands import gate, import_files, offline, report, successors
from openai_migration.commands.clients import KeyVariables, activity, read_keys
from openai_migration.commands.options import EXPORT, ExportFolder
from openai_migration.prompts import choose_prompts
from openai_migration.record import (
    Bounds,
    ModelPlan,
    RecordedSampling,
    Recording,
    describe_plans,
    golden_file,
    questions,
    record_answers,
    sum_estimates,
    write_golden,
)
from shared.counted_nouns import counted
from shared.errors import MensError

app = typer.Typer(no_args_is_help=True, help="Migrate from another provider.")
openai = typer.Typer(
    no_args_is_help=True,
    help="Migrate from OpenAI: save everything a key can read before it is switched off.\n\n"
    "OpenAI switches its Evals API off on 30 November 2026, accepts the last fine-tuning job on 6 January 2027 and "
    "shuts the last "
    "tuned models down on 14 January 2027. Before these dates, save everything that you want to compare with later.\n\n"
    "Start with `mens migrate openai inventory`, then `mens migrate openai export`. The key is read from "
    "OPENAI_API_KEY. "
    "Nothing at OpenAI is changed.",
)
app.add_typer(openai, name="openai")
openai.add_typer(import_files.app)
openai.add_typer(offline.app)
openai.add_typer(successors.app)
openai.add_typer(gate.app)
openai.add_typer(successors.switch_app)
openai.add_typer(report.app)
SHOWN_REFUSALS = 10

ArchiveFolder = Annotated[Path, typer.Argument(file_okay=False, help="Folder of the archive.")]


@app.callback()
def migrate() -> None:
    """Migrate from another provider."""


@openai.command("inventory")
def inventory(
    *,
    archive: ArchiveFolder = Path("openai-archive"),
    key_env: KeyVariables,
    usage_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="Environment variable with an organisation's admin key; adds the requests of the last 60 days.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be listed; send nothing.")] = False,
) -> None:
    """List the projects' tuned models, jobs, files and evals; those that end first come first.

    Fetches only lists, no content. Writes inventory.json into the archive's folder.
    """
    if dry_run:
        typer.echo(f"would list models, jobs, files, evals and their runs with {_listed(key_env)}, into {archive}")
        return
    today = datetime.now(UTC).date()
    projects: list[ProjectInventory] = []
    failures: list[str] = []
    requests = None
    for usage_key in read_keys([usage_key_env] if usage_key_env else []):
        with activity(usage_key) as admin:
            requests = requests_by_model(admin.client, today)
    for key in read_keys(key_env):
        # Lists that a later export reads must then be current.
        with (
            tempfile.TemporaryDirectory() as folder,
            activity(key) as client,
            Archive(Path(folder) / "lists") as lists,
        ):
            try:
                projects.append(inspect_project(Reader(client.client, lists, client.show), today, requests))
            except MensError as error:
                failures.append(f"{key.project}: {error}")
    listing = make_inventory(projects, today)
    if projects:
        with Archive(archive):
            write_json(archive / INVENTORY, listing)
        _show_inventory(listing)
        note(f"written to {archive / INVENTORY}; next: `mens migrate openai export {archive}`")
    if failures:
        fail("\n".join(failures))


@openai.command("export")
def export(
    *,
    archive: ArchiveFolder = Path("openai-archive"),
    key_env: KeyVariables,
    only: Annotated[
        list[Section],
        typer.Option(
            "--only",
            help="Fetch only this section; may be repeated. Default: all sections.",
            default_factory=list,
            show_default=False,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be fetched; send nothing.")] = False,
) -> None:
    """Save evals, models, jobs, files, stored chats and batches unchanged, in this order.

    You can interrupt and repeat it at any time: saved objects are not requested again, refused ones are. An archive is a
    snapshot; for a newer one, use a new folder. Exit code 1 if a project could not be read completely.
    """
    sections = only or list(Section)
    if dry_run:
        kept = [entry for entry in read_entries(archive).values() if entry.file] if is_archive(archive) else []
        size = f"{sum(entry.bytes for entry in kept):,} bytes"
        state = (
            f"which has {len(kept)} responses, {size}, of "
            f"{'a finished' if is_finished(archive) else 'an unfinished'} export"
        )
        typer.echo(f"would fetch {', '.join(sections)} with {_listed(key_env)}, into {archive}, {state}")
        return
    keys = read_keys(key_env)
    results = []
    with Archive(archive) as target:
        for key in keys:
            with activity(key) as client:
                results.append(export_project(client.client, target, sections, client.show))
        target.finish({result.project: result.failure for result in results if result.failure})
    for result in results:
        _show_export(result)
    typer.echo(f"{archive}: {SECRECY}")
    if failed := [result for result in results if result.failure]:
        fail("\n".join(f"{result.project} is not complete. {result.failure}" for result in failed))
    note(f"next: `mens migrate openai record {archive}`, or `convert` if you do not want to compare answers")


@openai.command("record")
def record(
    *,
    archive: ExportFolder = EXPORT,
    key_env: KeyVariables,
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            help="Only this tuned model, or checkpoint; may be repeated.",
            default_factory=list,
            show_default=False,
        ),
    ],
    prompts: Annotated[
        Path | None,
        existing_file("JSONL file with your own prompts; they are sent first."),
    ] = None,
    trained: Annotated[
        list[Path],
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Training file that the archive lacks; its prompts are excluded.",
            default_factory=list,
            show_default=False,
        ),
    ],
    limit: Annotated[
        int, typer.Option(min=1, help="Prompts per model: 250 detect a difference of .05, 700 one of .03.")
    ] = 500,
    samples: Annotated[
        int, typer.Option(min=0, help="Repeated answers per prompt, to measure how much the model's own answers vary.")
    ] = 0,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Your production temperature, for --samples.")] = 1.0,
    max_answer_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 2048,
    control: Annotated[
        bool, typer.Option(help="Also record answers of the untuned base, to see what tuning gained.")
    ] = True,
    max_requests: Annotated[int | None, typer.Option(min=1, help="Stop after this many requests.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Stop after this many tokens.")] = None,
    price_in: Annotated[float | None, typer.Option(min=0, help="Your price per million prompt tokens.")] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="Your price per million answer tokens.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Start without confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
) -> None:
    """Record answers of tuned models before they are shut down, to compare successors with them. This costs money at
    OpenAI.

    Prompts come from validation rows, stored chats, eval items, batches and your own file, without those that were
    trained on. Shows the number of requests and tokens, and asks for confirmation. You can interrupt it: answered
    prompts are not sent again. Writes golden/.
    """
    contents, sampling = ArchiveContents(archive), RecordedSampling(samples, temperature, max_answer_tokens, control)
    plans = [
        ModelPlan(project, name, choice, list(questions(name, choice, sampling)))
        for project in key_env
        for name in model or contents.last_models(project)
        for choice in [choose_prompts(contents, project, name, limit=limit, own=prompts, trained=trained)]
    ]
    with Archive(archive) as target:
        cost = sum_estimates(target, plans)
        for line in describe_plans(plans, cost, price_in, price_out):
            typer.echo(line)
        if dry_run:
            return
        if cost.requests and not yes:
            typer.confirm("Send them?", abort=True)
        failures = _send(target, plans, key_env, Bounds(max_requests, max_tokens)) if cost.requests else []
        # Even if nothing was to be sent: an earlier run may have been killed before this point.
        for plan in plans:
            lines = write_golden(target, plan)
            typer.echo(
                f"{plan.model}: {counted(lines, 'prompt')} with answers in "
                f"{archive / golden_file(plan.project, plan.model)}"
            )
        target.finish()
    if failures:
        fail("\n".join(failures))
    note(f"next: `mens migrate openai convert {archive}`")


def _send(target: Archive, plans: list[ModelPlan], key_env: list[str], bounds: Bounds) -> list[str]:
    """Send the questions of every project; return why some projects could not be read completely."""
    failures = []
    for key in read_keys(key_env):
        project_plans = [plan for plan in plans if plan.project == key.project]
        done = Recording()
        try:
            with activity(key, sum(len(plan.questions) for plan in project_plans)) as client:
                record_answers(client.client, target, project_plans, bounds, done, client.show)
        except MensError as error:
            failures.append(f"{key.project} is not complete. {error}")
        bounds = bounds.after(done)
        typer.echo(f"{key.project}: {done.describe()}")
    return failures


def _listed(variables: list[str]) -> str:
    return f"the key{'s' if variables[1:] else ''} in {', '.join(variables)}"


def _show_inventory(listing: ArchiveInventory) -> None:
    lines: list[tuple[str, ...]] = []
    for what, end in (("evals", listing.evals_end_on), ("new fine-tuning jobs", listing.training_ends_on)):
        lines.append((str(end), describe_days((end - listing.day).days), f"OpenAI's {what}", "", "", TABLE_SOURCE))
    for project in listing.projects:
        for model in project.models:
            ends_on = str(model.ends_on or "?")
            requests = "" if model.requests is None else str(model.requests)
            days = describe_days(model.days_left)
            lines.append((ends_on, days, model.name, project.project, requests, model.date_from))
    print_table(("ends", "days left", "what", "project", "requests", "date from"), sorted(lines))
    for project in listing.projects:
        files = ", ".join(f"{group.count} {name}" for name, group in sorted(project.files.items())) or "none"
        jobs = ", ".join(f"{count} {state}" for state, count in sorted(project.jobs.items())) or "none"
        typer.echo(
            f"{project.project}: jobs: {jobs}; files: {files}; {counted(project.evals, 'eval')} with "
            f"{counted(project.eval_runs, 'run')}"
        )
        for refusal in project.refused:
            typer.echo(f"  not listed: {refusal}")


def _show_export(result: ProjectExport) -> None:
    objects = ", ".join(f"{count} {kind}" for kind, count in result.objects.items() if count) or "nothing"
    typer.echo(f"{result.project}: {objects} ({counted(result.sent, 'request')} in this run)")
    for line in result.notes:
        typer.echo(f"  may be incomplete: {line}")
    for entry in result.refused[:SHOWN_REFUSALS]:
        typer.echo(f"  refused: {entry.path}: {entry.status} {entry.code} {entry.message}".rstrip())
    if (more := len(result.refused) - SHOWN_REFUSALS) > 0:
        typer.echo(f"  refused: {more} more, in manifest.json")
