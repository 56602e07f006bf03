"""Follows a job to its end: asks for it again and again, and shows how far it is and why it was queued again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from cli.connection import Connection, connect, describe_error, fail

POLL_SECONDS = 0.5
SECONDS_PER_LINE = 5.0
PATIENCE_SECONDS = 60.0
"""How long an API that does not answer is waited for."""
FINAL = ("succeeded", "failed", "cancelled")


def follow(job_id: str, console: Console, connection: Connection | None = None) -> dict[str, Any]:
    """Show a job's progress, and why it was queued again if it was, until it is over; returns the finished job."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=console, transient=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("waiting", total=None, facts="")
        job: dict[str, Any] = {}
        lines = _Lines()
        for job in poll(job_id, connection or connect()):
            _warn(console, job["events"])
            _show(bar, task, job, lines)
    return job


def poll(job_id: str, connection: Connection) -> Iterator[dict[str, Any]]:
    """The job's versions until it is over, each with its new events. Unchanged ones cost a 304; an API that restarts, or is
    without its database for a while, is waited for.
    """
    etag, seen, silence = "", 0, _Silence(connection.url, job_id)
    with connection.client() as client:
        while True:
            response = _get(client, f"/v1/jobs/{job_id}", after=seen, etag=etag)
            silence.note(response)
            if response is not None and response.is_client_error:
                fail(describe_error(response))
            if response is not None and response.is_success:
                etag, job = response.headers["etag"], response.json()
                seen = max((event["seq"] for event in job["events"]), default=seen)
                yield job
                if job["state"] in (*FINAL, "paused"):
                    return
            time.sleep(POLL_SECONDS)


def _get(client: httpx.Client, path: str, *, after: int, etag: str) -> httpx.Response | None:
    """The answer; None when there is none, or one that a later try may mend."""
    try:
        response = client.get(path, params={"after": after}, headers={"If-None-Match": etag})
    except httpx.TransportError:
        return None
    return None if response.is_server_error else response


class _Silence:
    """How long the API has not answered; it is told once, and ends the command when it lasts too long."""

    def __init__(self, url: str, job_id: str) -> None:
        self._url, self._job_id = url, job_id
        self._last_answer, self._told = time.monotonic(), False

    def note(self, response: httpx.Response | None) -> None:
        """An answer has come, or none has."""
        now = time.monotonic()
        if response is not None:
            self._last_answer = now
        elif now - self._last_answer > PATIENCE_SECONDS:
            fail(
                f"no answer from {self._url}. The job goes on by itself; follow it with `mens jobs watch {self._job_id}`"
            )
        elif not self._told:
            typer.echo(f"{self._url} does not answer; trying again", err=True)
            self._told = True


def _warn(console: Console, events: list[dict[str, Any]]) -> None:
    """Warnings, a line each: an attempt that failed or was given back, and so the job is queued again."""
    for event in events:
        if (event["level"], event["type"]) == ("warn", "message"):
            console.print(" ".join(event["message"].split()), markup=False, highlight=False, soft_wrap=True)


class _Lines:
    """Progress for what is no terminal: a line when the stage changes, and every few seconds."""

    def __init__(self) -> None:
        self._stage, self._next = "", 0.0

    def show(self, stage: str, facts: str) -> None:
        if stage != self._stage or time.monotonic() > self._next:
            typer.echo(f"{stage}  {facts}".rstrip())
            self._stage, self._next = stage, time.monotonic() + SECONDS_PER_LINE


def _show(bar: Progress, task: TaskID, job: dict[str, Any], lines: _Lines) -> None:
    progress = job["progress"]
    stage, facts = job["stage"] or job["state"], describe_progress(progress)
    if bar.disable:
        lines.show(stage, facts)
    else:
        done, total = progress.get("step", 0), progress.get("total_steps")
        bar.update(task, description=stage, completed=done, total=total, facts=facts)


def describe_progress(progress: dict[str, Any]) -> str:
    """Step, loss and the time that is left, in one line."""
    if not progress:
        return ""
    loss, eta = progress.get("loss"), progress.get("eta_seconds")
    parts = [f"step {progress['step']}/{progress['total_steps']}"]
    parts += [f"loss {loss:.3f}"] if loss is not None else []
    parts += [f"ETA {eta // 60:.0f}:{eta % 60:02.0f}"] if eta else []
    return "  ".join(parts)
