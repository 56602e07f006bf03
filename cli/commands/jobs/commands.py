"""``mens jobs``: the group of its commands, and those that show or change one job."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.client.completion import complete_alias, complete_base
from cli.client.connection import call, fail_with_response, note, send
from cli.client.gate_outcome import describe_gates, is_of_gates
from cli.client.id_prefixes import resolve_job_id
from cli.client.job_progress import FINAL, describe_progress, describe_stage
from cli.client.job_table import COLUMNS, SPARE_COLUMNS, describe_origin, job_rows
from cli.client.json_errors import Json, note_json
from cli.client.self_evaluation import describe_evaluation
from cli.commands.jobs.descriptions import describe_outcome, describe_place, describe_plan
from cli.commands.jobs.job_arguments import JobId, job_path
from cli.commands.jobs.merge import merge
from cli.commands.jobs.watch import watch_job
from cli.output import plain_console, print_table, shorten_ids
from cli.times import past_time
from shared.database.job_states import JobState
from shared.database.records import Kind
from shared.scheduling.types import HIGHEST_PRIORITY, LOWEST_PRIORITY

app = typer.Typer(
    no_args_is_help=True,
    help="Jobs: list, show, checkpoints, compare, watch, logs, cancel, pause, resume, priority, merge.",
)
console = plain_console()

LAST_EVENTS = 10
CHECKPOINT_METRICS = {
    "train_loss": "training loss",
    "valid_loss": "validation loss",
    "valid_mean_token_accuracy": "validation accuracy",
}
"""Columns of a checkpoint's metrics, by their names in the API."""


@app.command("list")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only jobs of this kind.")] = None,
    base: Annotated[
        str | None, typer.Option(autocompletion=complete_base, help="Only jobs of this base model.")
    ] = None,
    alias: Annotated[
        str | None, typer.Option(autocompletion=complete_alias, help="Only jobs that move this alias.")
    ] = None,
    created_by: Annotated[
        str | None, typer.Option("--by", help="Only jobs that the key of this name submitted.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", callback=past_time, help="Created since: 2h, 7d, 2027-01-31, 2027-01-31T18:00Z."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--find", metavar="TEXT", help="Part of the name or base, or the beginning or end of the id."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Show the page that follows this job, which is the last job of the previous page."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs per page.")] = 20,
    as_json: Json = False,
) -> None:
    """Show jobs, newest first, with time, duration, alias, base and creator. `mens jobs show ID` shows the rest."""
    which = {
        "state": [str(job_state) for job_state in state or ()],
        "kind": kind and str(kind),
        "base_model": base,
        "alias": alias,
        "created_by": created_by,
        "created_after": since,
        "q": text,
        "after": after and resolve_job_id(after),
    }
    query = {"view": "summary", "limit": limit}
    page = call("GET", "/v1/jobs", params=query | {name: value for name, value in which.items() if value})
    jobs = page["data"]
    if as_json:
        typer.echo(json.dumps(jobs, indent=2))
        return
    print_table(COLUMNS, job_rows(jobs), spare=SPARE_COLUMNS)
    if page["has_more"]:
        note(f"for older ones, repeat the command with --after {shorten_ids(jobs[-1]['id'])}")


@app.command("show")
def show(
    job_id: JobId,
    as_json: Annotated[
        bool, typer.Option("--json", callback=note_json, help="Print the whole record as JSON.")
    ] = False,
) -> None:
    """Show a job: state, progress, outcome and its last events."""
    job = call("GET", job_path(job_id), params={"after": "0"} if as_json else {"last": LAST_EVENTS})
    if as_json:
        console.print_json(data=job)
        return
    state = job["state"] + (f" ({describe_stage(job)})" if job["stage"] else "")
    requested = f", {job['requested']} requested" if job["requested"] else ""
    lines = [f"{job['id']}  {job['kind']}  {state}{requested}  attempt {job['attempt']}"]
    lines += [f"created  {describe_origin(job)}", f"base     {job['base_model']}", f"tenant   {job['tenant']}"]
    lines += [f"plan     {describe_plan(job)}"] if job["kind"] == "finetune" else []
    lines += describe_place(job.get("queue"))
    lines += [f"progress {progress}"] if (progress := describe_progress(job)) else []
    lines += [f"outcome  {describe_outcome(job)}"] if job["state"] in FINAL else []
    lines += describe_evaluation(job["result"], "against base  ")
    lines += describe_gates(job["result"])
    shown_events = [event for event in job["events"] if job["state"] not in FINAL or not is_of_gates(event)]
    lines += [f"  {event['created_at'][11:19]}  {event['message']}" for event in shown_events]
    for line in lines:
        typer.echo(line)


@app.command("checkpoints")
def checkpoints(job_id: JobId, as_json: Json = False) -> None:
    """Show a job's checkpoints and its result, newest first, also while it runs: step, losses, accuracy, state.

    `mens chat ID` chats with a published one, and `mens train --continue ID` starts a job from it.
    """
    listed = call("GET", f"{job_path(job_id)}/checkpoints")["data"]
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    print_table(
        ("id", "step", *CHECKPOINT_METRICS.values(), "state"),
        [
            (
                adapter["id"],
                f"{adapter['step']}{' (result)' if adapter['final'] else ''}",
                *(_cell(adapter["metrics"].get(name)) for name in CHECKPOINT_METRICS),
                adapter["state"],
            )
            for adapter in listed
        ],
        header=True,
    )
    if not listed:
        note("no checkpoint is stored: a job has them from its first save, until retention deletes them")


@app.command("compare")
def compare(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Two or more fine-tuning jobs.")],
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The job to compare the others with. Default: the job whose adapter its alias points to now, otherwise the first."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show settings that do not differ.")] = False,
    as_json: Json = False,
) -> None:
    """Compare jobs: settings that differ, each with its source in parentheses, and results."""
    body: dict[str, Any] = {"jobs": [resolve_job_id(job_id) for job_id in job_ids]}
    if baseline:
        body["baseline"] = resolve_job_id(baseline)
    comparison = call("POST", "/v1/plans:compare", json=body)
    if as_json:
        typer.echo(json.dumps(comparison, indent=2))
        return
    names = [f"{job['name']} {shorten_ids(job['id'])}" for job in comparison["jobs"]]
    columns = [
        "",
        *(
            f"{name} (baseline)" if job["id"] == comparison["baseline"] else name
            for job, name in zip(comparison["jobs"], names, strict=True)
        ),
    ]
    rows = [
        [row["path"], *(_cell(value, source) for value, source in zip(row["values"], row["sources"], strict=True))]
        for row in comparison["rows"]
        if everything or row["differs"]
    ]
    rows += [[row["path"], *map(_cell, row["values"])] for row in comparison["results"]]
    print_table(columns, rows)


def _cell(value: object, source: str | None = None) -> str:
    if isinstance(value, float):
        # Bytes and tokens are numbers too, and are shown with all digits.
        text = str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:g}"
    else:
        text = "-" if value is None else str(value)
    return f"{text} ({source})" if source else text


app.command("watch")(watch_job)


@app.command("logs")
def logs(
    job_id: JobId,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt. Default: the last attempt that has a log.")
    ] = None,
    size: Annotated[int, typer.Option("--bytes", min=1, max=65536, help="At most this many, from the end.")] = 65536,
) -> None:
    """Print the end of an attempt's log. While the trainer runs, its last 15 seconds may be missing."""
    query = {"bytes": size} | ({"attempt": attempt} if attempt else {})
    response = send("GET", f"{job_path(job_id)}/log", params=query)
    if response.is_error:
        fail_with_response(response)
    if response.text:
        note(f"attempt {response.headers['x-mens-attempt']}")
        typer.echo(response.text, nl=not response.text.endswith("\n"))
    else:
        note("no log is kept: an attempt has a log from the start of its trainer until retention deletes it")


@app.command("cancel")
def cancel(job_id: JobId) -> None:
    """Cancel a job."""
    _print_state(call("POST", f"{job_path(job_id)}/cancel"))


@app.command("pause")
def pause(job_id: JobId) -> None:
    """Pause a job; a running one writes a checkpoint first."""
    _print_state(call("POST", f"{job_path(job_id)}/pause"))


@app.command("resume")
def resume(job_id: JobId) -> None:
    """Resume a paused job from its checkpoint."""
    _print_state(call("POST", f"{job_path(job_id)}/resume"))


@app.command("priority")
def priority(
    job_id: JobId,
    level: Annotated[
        int,
        typer.Argument(
            min=LOWEST_PRIORITY, max=HIGHEST_PRIORITY, help="-5 to 5, higher runs first; above 0 only for operators."
        ),
    ],
) -> None:
    """Change the priority of an unfinished job. Write a negative number after `--`: `mens jobs priority ID -- -2`."""
    job = call("PATCH", job_path(job_id), json={"priority": level})
    typer.echo(f"{job['id']} is {job['state']} with priority {job['priority']}")


app.command("merge")(merge)


def _print_state(job: dict[str, Any]) -> None:
    requested = job["requested"]
    stopping = f"{job['id']}: {requested} requested; its worker is stopping"
    typer.echo(stopping if requested else f"{job['id']} is {job['state']}")
