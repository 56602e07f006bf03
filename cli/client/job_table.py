"""Jobs as rows of a table: when, for how long, by whom, from which base and for which alias."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cli.client.job_progress import describe_stage, remaining
from cli.output import format_duration, format_minute

COLUMNS = ("id", "created (UTC)", "kind", "state", "time", "alias", "base", "by", "progress", "result", "tenant")
SPARE_COLUMNS = ("tenant", "kind", "progress", "by", "base", "time")
"""Columns that a narrow terminal leaves out, the first of them first."""


def job_rows(jobs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a row of :data:`COLUMNS` for each job's summary."""
    for job in jobs:
        yield (
            job["id"],
            format_minute(job["created_at"]),
            job["kind"],
            job["state"] + (f": {describe_stage(dict(job))}" if job["stage"] else ""),
            run_time(job),
            _alias(job["alias"], is_kept=job["alias_moved"] is False),
            job["base_model"],
            job["created_by"] or "",
            describe_steps(job),
            result_of(job),
            job["tenant"],
        )


def describe_origin(job: Mapping[str, Any]) -> str:
    """Return when a job was created, by whom, for which alias, and how long it has run."""
    phrases = [f"{format_minute(job['created_at'])} UTC"]
    phrases += [f"by {job['created_by']}"] if job.get("created_by") else []
    phrases += [f"for the alias {alias}"] if (alias := describe_alias_of(job)) else []
    return " ".join(phrases) + (f", ran {time}" if (time := run_time(job)) else "")


def run_time(job: Mapping[str, Any]) -> str:
    """Return the time from a job's first start to its end, or until now while it runs; empty for others."""
    if not job["started_at"] or (not job["finished_at"] and job["state"] != "running"):
        return ""
    end = datetime.fromisoformat(job["finished_at"]) if job["finished_at"] else datetime.now(UTC)
    return format_duration((end - datetime.fromisoformat(job["started_at"])).total_seconds())


def describe_alias_of(job: Mapping[str, Any]) -> str:
    """Return the alias that a whole job's contract moves, and whether the finished job kept it."""
    contract = job["contract"]
    name = contract.get("artifact", contract).get("alias") or ""
    is_kept = job["state"] == "succeeded" and not (job["result"].get("alias") or {}).get("moved", True)
    return _alias(name, is_kept=is_kept)


def describe_steps(job: Mapping[str, Any]) -> str:
    """Return the progress in a job's summary: steps, shards or items, loss and remaining time; empty before any."""
    if not job["total_steps"]:
        return ""
    phrases = [f"{job['step']}/{job['total_steps']}"]
    phrases += [f"loss {job['train_loss']:.3f}"] if job["train_loss"] is not None else []
    return "  ".join([*phrases, *remaining(job["eta_seconds"], job["state"])])


def result_of(job: Mapping[str, Any]) -> str:
    """Return the adapter or merged model in a job's summary, or the code of its error; empty for others."""
    return str(job["adapter_id"] or job["model_digest"] or (job["error"] or {}).get("code", ""))


def _alias(name: str | None, *, is_kept: bool) -> str:
    return f"{name} (not moved)" if name and is_kept else name or ""
