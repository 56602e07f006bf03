"""``mens status``: the machines of the workers, and the newest jobs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cli.client.connection import find_all
from cli.client.job_progress import describe_stage
from cli.client.job_table import describe_steps
from cli.client.json_errors import Json
from cli.output import print_table
from shared.counted_nouns import counted
from shared.errors import Code

GIB = 1 << 30


def status(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of jobs to show.")] = 10,
    workers_only: Annotated[
        bool,
        typer.Option("--workers", help="Show only the workers' machines: GPUs and memory that jobs are planned for."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the number of workers and the newest jobs with their progress. `mens jobs show ID` shows one job."""
    workers = find_all("/v1/workers")
    if workers_only:
        _print_machines(workers, as_json)
        return
    jobs = find_all("/v1/jobs", view="summary", limit=limit)
    if as_json:
        typer.echo(json.dumps({"workers": workers, "jobs": jobs}, indent=2))
        return
    typer.echo(f"{counted(len(workers), 'worker')}, {counted(sum(worker['devices'] for worker in workers), 'GPU')}")
    rows = [(job["id"], job["state"], describe_stage(job) if job["stage"] else "", describe_steps(job)) for job in jobs]
    _print_faults(workers)
    print_table(("id", "state", "stage", "progress"), rows)


def _print_machines(workers: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(workers, indent=2))
        return
    sizes = ("memory_bytes", "free_bytes", "host_bytes")
    rows = [
        (
            *(worker["device"], worker["device_name"], str(worker["devices"]), *(_gib(worker[size]) for size in sizes)),
            (worker.get("sandbox") or "unknown").partition(":")[0],
        )
        for worker in workers
    ]
    print_table(("device", "name", "GPUs", "memory", "free", "main memory", "sandbox"), rows)
    _print_faults(workers)
    if not workers:
        typer.echo("No worker has reported. Check that a worker and Valkey are running.", err=True)


def _print_faults(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        if fault := worker.get("fault"):
            typer.echo(fault, err=True)
        elif code := worker.get("fault_code"):  # only operators get the sentence
            typer.echo(f"{code}: a worker takes no job.", err=True)
        if fault := worker.get("gpu_fault"):
            typer.echo(f"{Code.GPU_UNUSABLE}: {fault}", err=True)


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f} GiB"
