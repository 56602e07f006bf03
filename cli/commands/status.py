"""``mens probe``, ``mens status`` and ``mens watch-telemetry``: the hardware to train on, the running jobs, and their
progress.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.client.completion import complete_job
from cli.client.connection import connect, find_all
from cli.client.id_prefixes import resolve_job_id
from cli.client.job_progress import describe_stage, poll
from cli.client.job_table import describe_steps
from cli.client.json_errors import Json
from cli.output import counted, print_table
from shared.errors import Code

GIB = 1 << 30


def probe(as_json: Json = False) -> None:
    """Show the workers' machines: the GPUs and memory that jobs are planned for."""
    found = find_all("/v1/workers")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    sizes = ("memory_bytes", "free_bytes", "host_bytes")
    rows = [
        (
            *(one["device"], one["device_name"], str(one["devices"]), *(_gib(one[size]) for size in sizes)),
            (one.get("sandbox") or "unknown").partition(":")[0],
        )
        for one in found
    ]
    print_table(("device", "name", "GPUs", "memory", "free", "main memory", "sandbox"), rows)
    _print_faults(found)
    if not found:
        typer.echo("No worker has reported. Check that a worker and Valkey are running.", err=True)


def status(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of jobs to show.")] = 10, as_json: Json = False
) -> None:
    """Show the number of workers and the newest jobs with their progress. `mens jobs show ID` shows one job."""
    workers, jobs = find_all("/v1/workers"), find_all("/v1/jobs", view="summary", limit=limit)
    if as_json:
        typer.echo(json.dumps({"workers": workers, "jobs": jobs}, indent=2))
        return
    typer.echo(f"{counted(len(workers), 'worker')}, {counted(sum(one['devices'] for one in workers), 'GPU')}")
    rows = [(job["id"], job["state"], describe_stage(job) if job["stage"] else "", describe_steps(job)) for job in jobs]
    _print_faults(workers)
    print_table(("id", "state", "stage", "progress"), rows)


def watch_telemetry(
    job_id: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_job, help="Id of the job, or a part that no other id has: its beginning or its end."
        ),
    ],
) -> None:
    """Print every event of a job, steps included, until the job ends. `mens jobs watch` shows a progress bar instead."""
    for job in poll(resolve_job_id(job_id), connect()):
        for event in job["events"]:
            typer.echo(f"{event['created_at'][11:19]}  {event['message']}")


def _print_faults(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        if fault := worker.get("fault"):
            typer.echo(fault, err=True)
        if fault := worker.get("gpu_fault"):
            typer.echo(f"{Code.GPU_UNUSABLE}: {fault}", err=True)


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f} GiB"
