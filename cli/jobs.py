"""``mens jobs`` and ``mens train``: create jobs, watch them, stop them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from cli.connection import Connection, call, connect, describe_error, fail

app = typer.Typer(no_args_is_help=True, help="Jobs: list, show, watch, cancel, pause, resume, merge.")
console = Console()

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
FINAL = ("succeeded", "failed", "cancelled")
JobId = Annotated[str, typer.Argument(help="Id of the job, e.g. ftjob-01…")]


def train(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL file with the training rows.")],
    model: Annotated[str, typer.Option(help="Base model, by its name in the catalogue.")],
    validation: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="JSONL file to validate on.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Left part of the adapter's id.")] = None,
    alias: Annotated[str | None, typer.Option(help="Alias to move to the adapter when it is published.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the file.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per micro-batch.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens per row.")] = None,
    rank: Annotated[int | None, typer.Option(help="LoRA rank.")] = None,
    publish: Annotated[bool, typer.Option(help="Prove it on the serving tier; --no-publish trains only.")] = True,
    contract: Annotated[Path | None, typer.Option(help="JSON file with a whole contract; options win over it.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; upload the file but train nothing.")
    ] = False,
    watch: Annotated[bool, typer.Option(help="Follow the job to its end.")] = True,
) -> None:
    """Tune a base model on a JSONL file."""
    sections: dict[str, dict[str, Any]] = json.loads(contract.read_text()) if contract else {}
    options: dict[str, dict[str, Any]] = {
        "data": {"train_file": upload(file), "validation_file": upload(validation) if validation else None},
        "exec": {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "seq_len": seq_len},
        "adapter": {"rank": rank},
        "artifact": {"alias": alias, "publish": publish},
        "model": {"hf_repo": model},
    }
    for section, values in options.items():
        given = {key: value for key, value in values.items() if value is not None}
        sections[section] = sections.get(section, {}) | given
    if dry_run:
        console.print_json(data=call("POST", "/v1/plans", json={"contract": sections, "name": name}))
        return
    job = call("POST", "/v1/jobs", json={"kind": "finetune", "contract": sections, "name": name})
    console.print(f"created {job['id']}")
    if watch:
        watch_job(job["id"])


def upload(path: Path) -> str:
    """Upload a training file; returns its id."""
    with path.open("rb") as file:
        answer = call("POST", "/v1/files", data={"purpose": "fine-tune"}, files={"file": (path.name, file)})
    return str(answer["id"])


@app.command("list")
def list_jobs(limit: Annotated[int, typer.Option(help="How many.")] = 20) -> None:
    """Show the newest jobs."""
    table = Table("id", "kind", "state", "base", "step", "loss", "result")
    for job in call("GET", "/v1/jobs", params={"limit": limit})["data"]:
        progress, result = job["progress"], job["result"]
        outcome = result.get("adapter_id") or (job["error"] or {}).get("code", "")
        loss = progress.get("loss")
        table.add_row(
            job["id"], job["kind"], job["state"], job["base_model"],
            f"{progress.get('step', '')}", "" if loss is None else f"{loss:.3f}", outcome,
        )  # fmt: skip
    console.print(table)


@app.command("show")
def show(job_id: JobId) -> None:
    """Show all that is known about a job."""
    console.print_json(data=call("GET", f"/v1/jobs/{job_id}"))


@app.command("watch")
def watch_job(job_id: JobId) -> None:
    """Follow a job to its end; the exit code is 1 unless it succeeds."""
    job = follow(job_id, console)
    console.print(_outcome(job))
    if job["state"] != "succeeded":
        raise typer.Exit(1)


@app.command("cancel")
def cancel(job_id: JobId) -> None:
    """Cancel a job."""
    console.print(f"{job_id} is {call('POST', f'/v1/jobs/{job_id}/cancel')['state']}")


@app.command("pause")
def pause(job_id: JobId) -> None:
    """Pause a job; a running one writes a checkpoint first."""
    console.print(f"{job_id} is {call('POST', f'/v1/jobs/{job_id}/pause')['state']}")


@app.command("resume")
def resume(job_id: JobId) -> None:
    """Resume a paused job from its checkpoint."""
    console.print(f"{job_id} is {call('POST', f'/v1/jobs/{job_id}/resume')['state']}")


@app.command("merge")
def merge(
    adapter: Annotated[str, typer.Argument(help="Adapter id, or an alias.")],
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the base's own by default.")] = None,
) -> None:
    """Fold an adapter into its base: a complete model folder in storage."""
    job = call("POST", "/v1/jobs", json={"kind": "merge", "contract": {"adapter": adapter, "dtype": dtype}})
    watch_job(job["id"])


def follow(job_id: str, console: Console, connection: Connection | None = None) -> dict[str, Any]:
    """Show a job's progress until it is over; returns the finished job."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=console, transient=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("waiting", total=None, facts="")
        job: dict[str, Any] = {}
        for job in poll(job_id, connection or connect()):
            _show(bar, task, job, console)
    return job


def poll(job_id: str, connection: Connection) -> Iterator[dict[str, Any]]:
    """The job's versions until it is over. Unchanged ones cost a 304; an API that restarts is waited for."""
    etag, last_answer = "", time.monotonic()
    with connection.client() as client:
        while True:
            try:
                response = client.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": etag})
                last_answer = time.monotonic()
            except httpx.TransportError:
                if time.monotonic() - last_answer > PATIENCE_SECONDS:
                    raise
            else:
                if response.is_client_error:
                    fail(describe_error(response))
                if response.status_code == 200:
                    etag = response.headers["etag"]
                    job: dict[str, Any] = response.json()
                    yield job
                    if job["state"] in (*FINAL, "paused"):
                        return
            time.sleep(POLL_SECONDS)


def _show(bar: Progress, task: TaskID, job: dict[str, Any], console: Console) -> None:
    progress = job["progress"]
    stage = job["stage"] or job["state"]
    facts = _facts(progress)
    bar.update(
        task, description=stage, completed=progress.get("step", 0), total=progress.get("total_steps"), facts=facts
    )
    if not console.is_terminal:
        console.print(f"{stage} {facts}".rstrip())


def _facts(progress: dict[str, Any]) -> str:
    if not progress:
        return ""
    loss, eta = progress.get("loss"), progress.get("eta_seconds")
    parts = [f"step {progress['step']}/{progress['total_steps']}"]
    parts += [f"loss {loss:.3f}"] if loss is not None else []
    parts += [f"ETA {eta:.0f} s"] if eta is not None else []
    return "  ".join(parts)


def _outcome(job: dict[str, Any]) -> str:
    if job["error"]:
        return f"{job['state']}: {job['error']['code']}: {job['error']['message']} {job['error']['remedy']}"
    result = job["result"].get("adapter_id") or ""
    merged = job["result"].get("model_digest")
    return f"{job['state']}  {f'merged model {merged}' if merged else result}"
