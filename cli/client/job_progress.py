"""Follows a job until it has finished: polls it, shows its progress, and prints why it was queued again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from cli.client.connection import Connection, connect, fail_with, fail_with_response, note
from cli.client.gate_outcome import is_of_gates
from shared.database.job_states import Stage
from shared.errors import Code, Unavailable
from shared.job_progress import (
    EvaluationProgress,
    MergeProgress,
    SelfEvaluationProgress,
    TrainingProgress,
    read_progress,
)

POLL_SECONDS = 0.5
SECONDS_PER_LINE = 5.0
OUTAGE_SECONDS = 60.0
"""Longest wait for an API that does not respond."""
FINAL = ("succeeded", "failed", "cancelled")


def follow(job_id: str, console: Console, connection: Connection | None = None) -> dict[str, Any]:
    """Show a job's progress until it has finished, and why it was queued again if it was; return the finished job."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        # An explanation of the queue contains names of models that other users chose.
        TextColumn("{task.fields[facts]}", markup=False),
    )
    with Progress(*columns, console=console, transient=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("waiting", total=None, facts="")
        job: dict[str, Any] = {}
        plain = PlainProgress(console)
        for job in poll(job_id, connection or connect()):
            for event in job["events"]:
                # Warnings: an attempt failed or was given back, and so the job is queued again.
                if (event["level"], event["type"]) == ("warn", "message") and not is_of_gates(event):
                    console.print(" ".join(event["message"].split()), markup=False, highlight=False, soft_wrap=True)
            progress, stage = read_progress(job["progress"]), describe_stage(job)
            facts = describe_wait(job) if job["state"] == "queued" else describe_progress(job)
            if bar.disable:
                plain.show(stage, facts)
            else:
                done, total = (progress.done, progress.total) if progress else (0, None)
                bar.update(task, description=stage, completed=done, total=total, facts=facts)
    return job


def print_events(job_id: str, console: Console, connection: Connection | None = None) -> dict[str, Any]:
    """Print every event of a job, steps included, until it has finished; return the finished job."""
    job: dict[str, Any] = {}
    for job in poll(job_id, connection or connect()):
        for event in job["events"]:
            line = f"{event['created_at'][11:19]}  {event['message']}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return job


def poll(job_id: str, connection: Connection) -> Iterator[dict[str, Any]]:
    """Yield the job's versions until it has finished or is paused, each with its new events. An unchanged job costs a
    304. Wait for an API that restarts, or has lost its database; end the command if that takes too long.
    """
    etag, last_event = "", 0
    last_response, warned = time.monotonic(), False
    with connection.client() as client:
        while True:
            response: httpx.Response | None
            try:
                headers = {"If-None-Match": etag}
                response = client.get(f"/v1/jobs/{job_id}", params={"after": last_event}, headers=headers)
            except httpx.TransportError:
                response = None
            if response is None or response.is_server_error:
                if time.monotonic() - last_response > OUTAGE_SECONDS:
                    watch = f"`mens jobs watch {job_id}`"
                    message = f"{connection.url} has not responded for {OUTAGE_SECONDS:.0f} seconds."
                    remedy = f"The job continues without this command; follow it with {watch}."
                    fail_with(Unavailable(Code.API_UNAVAILABLE, message, remedy=remedy))
                if not warned:
                    note(f"{connection.url} does not respond; trying again")
                    warned = True
            else:
                last_response = time.monotonic()
                if response.is_client_error:
                    fail_with_response(response)
                # Otherwise it is a 304: the job has not changed.
                if response.is_success:
                    etag, job = response.headers["etag"], response.json()
                    last_event = max((event["seq"] for event in job["events"]), default=last_event)
                    yield job
                    if job["state"] in (*FINAL, "paused"):
                        return
            time.sleep(POLL_SECONDS)


class PlainProgress:
    """Progress on an output that is not a terminal: a line when the stage changes, and every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console, self._stage, self._next = console, "", 0.0

    def show(self, stage: str, facts: str) -> None:
        if stage != self._stage or time.monotonic() > self._next:
            self._console.print(f"{stage}  {facts}".rstrip(), markup=False, highlight=False, soft_wrap=True)
            self._stage, self._next = stage, time.monotonic() + SECONDS_PER_LINE


def describe_wait(job: dict[str, Any]) -> str:
    """Describe in one line a queued job's place and why it waits."""
    # An API of an earlier release returns no place, and jobs that have left the queue meanwhile have none.
    place = job.get("queue")
    return f"{place['position']} in the queue. {place['explanation']}" if place else ""


def describe_stage(job: dict[str, Any]) -> str:
    """Return a job's stage, otherwise its state, in words."""
    return str(job["stage"] or job["state"]).replace("_", "-")


def describe_progress(job: dict[str, Any]) -> str:
    """Describe a job's progress in one line: its steps and loss, shards or items, and the remaining time while it runs.

    The line is empty before the first progress.
    """
    progress = read_progress(job["progress"])
    eta = None
    match progress:
        case TrainingProgress():
            phrases, eta = [f"step {progress.step}/{progress.total_steps}"], progress.eta_seconds
            phrases += [f"loss {progress.loss:.3f}"] if progress.loss is not None else []
        # The last count may be below the total, and would look like a fault of a job that has continued or succeeded.
        case SelfEvaluationProgress() if job.get("stage") != Stage.SELF_EVALUATION:
            phrases = []
        case SelfEvaluationProgress():
            phrases = [f"{progress.activity.replace('_', ' ')} {progress.items_done}/{progress.items_total}"]
        case EvaluationProgress():
            phrases, eta = [f"item {progress.items_done}/{progress.items_total}"], progress.eta_seconds
        case MergeProgress():
            phrases = [f"shard {progress.shard}/{progress.of}"] if progress.of else [f"{100 * progress.fraction:.0f} %"]
        case None:
            phrases = []
    return "  ".join([*phrases, *remaining(eta, job["state"])])


def remaining(eta: float | None, state: str) -> list[str]:
    """Return the remaining time of a job's stage as a part of a line; an empty list unless the job is running.

    The estimate of an earlier run is not valid for a job that waits, is paused or has ended.
    """
    return [f"stage ends in {eta // 60:.0f}:{eta % 60:02.0f}"] if eta and state == "running" else []
