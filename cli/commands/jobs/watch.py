"""``mens jobs watch``: follow a job until it ends; ``mens train`` and the jobs of adapters end with it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.client.chat_hints import describe_chat
from cli.client.connection import note
from cli.client.gate_outcome import ALIAS_NOT_MOVED, describe_gates, keeps_alias
from cli.client.id_prefixes import resolve_job_id
from cli.client.job_progress import follow, print_events
from cli.client.self_evaluation import describe_evaluation
from cli.commands.jobs.descriptions import describe_outcome
from cli.commands.jobs.job_arguments import JobId, JobJson
from cli.output import plain_console

console, errors = plain_console(), plain_console(stderr=True)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def watch_job(
    job_id: JobId,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event, steps included, in place of a progress bar.")
    ] = False,
    as_json: JobJson = False,
) -> None:
    """Follow a job until it ends. The exit code is 1 unless the job succeeds, and 3 if it succeeds but its alias was not moved.

    Ctrl-C ends the command with exit code 130; the job continues.
    """
    job_id = resolve_job_id(job_id)
    try:
        job = (print_events if events else follow)(job_id, errors if as_json else console)
    except KeyboardInterrupt:
        note(f"the job continues; follow it: `mens jobs watch {job_id}`; cancel it: `mens jobs cancel {job_id}`")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        console.print_json(data=job)
    else:
        typer.echo(describe_outcome(job))
        for line in describe_evaluation(job["result"], "against base  ", brief=True):
            typer.echo(line)
        for line in (*describe_gates(job["result"]), *describe_chat(job)):
            typer.echo(line)
    if job["state"] != "succeeded":
        raise typer.Exit(1)
    if keeps_alias(job["result"]):
        raise typer.Exit(ALIAS_NOT_MOVED)
