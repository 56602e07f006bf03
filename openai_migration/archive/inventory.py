"""A project's objects at OpenAI, and their remaining lifetime there: ``inventory.json`` and the lines of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date

import msgspec

from openai_migration.archive.pages import OLDEST_FIRST, Item, Reader
from openai_migration.archive.sections import tuned_models, url_path
from openai_migration.archive.shutdown_dates import EVALS_END, TRAINING_ENDS, ending_of, parse_name

FORMAT = "mens-openai-inventory/1"


class TunedModel(msgspec.Struct, frozen=True):
    """A tuned model.

    Attributes:
        ends_on: its last day; None if not announced.
        date_from: source of that date.
        is_listed: whether OpenAI still lists it; otherwise it is known only from its job.
        jobs: the project's jobs that made it.
        requests: number of requests by the whole organisation in the last 60 days; None without an admin key.
    """

    name: str
    base: str
    suffix: str
    ends_on: date | None
    days_left: int | None
    date_from: str
    is_listed: bool
    jobs: list[str]
    requests: int | None


class FileGroup(msgspec.Struct):
    """Files of one purpose."""

    count: int = 0
    bytes: int = 0


class ProjectInventory(msgspec.Struct, frozen=True):
    """Objects that one key can see.

    Attributes:
        jobs: counts by state.
        files: files by purpose.
        refused: lists that OpenAI refused, and why.
    """

    project: str
    models: list[TunedModel]
    jobs: dict[str, int]
    files: dict[str, FileGroup]
    evals: int
    eval_runs: int
    refused: list[str]


class ArchiveInventory(msgspec.Struct, frozen=True):
    """``inventory.json``."""

    format: str
    day: date
    evals_end_on: date
    training_ends_on: date
    projects: list[ProjectInventory]


def make_inventory(projects: list[ProjectInventory], today: date) -> ArchiveInventory:
    """Make the inventory of several projects."""
    return ArchiveInventory(FORMAT, today, EVALS_END, TRAINING_ENDS, projects)


def inspect_project(reader: Reader, today: date, requests: Mapping[str, int] | None = None) -> ProjectInventory:
    """List a project's models, jobs, files, evals and their runs. No content is fetched.

    Args:
        requests: requests of the last 60 days by model, if known.
    """
    makers: dict[str, list[str]] = {}
    states: Counter[str] = Counter()
    for job in reader.items("fine_tuning/jobs", ("jobs",)):
        states[str(job.get("status"))] += 1
        if model := job.get("fine_tuned_model"):
            makers.setdefault(str(model), []).append(str(job["id"]))
    listed = tuned_models(reader)
    # A deleted model appears in its job, but not in a list.
    models = [
        _tuned_model(
            name, listed.get(name), makers.get(name, []), today, None if requests is None else requests.get(name, 0)
        )
        for name in {**listed, **makers}
    ]
    files: dict[str, FileGroup] = {}
    for file in reader.items("files", ("files",)):
        group = files.setdefault(str(file.get("purpose")), FileGroup())
        group.count, group.bytes = group.count + 1, group.bytes + int(file.get("bytes") or 0)
    evals = [str(evaluation["id"]) for evaluation in reader.items("evals", ("evals",), OLDEST_FIRST)]
    runs = sum(
        1
        for name in evals
        for _ in reader.items(url_path("evals", name, "runs"), ("evals", name, "runs"), OLDEST_FIRST)
    )
    return ProjectInventory(
        reader.client.project,
        sorted(models, key=lambda model: (model.ends_on or date.max, model.name)),
        dict(states),
        files,
        len(evals),
        runs,
        [f"{entry.path}: {entry.status} {entry.code} {entry.message}".rstrip() for entry in reader.refused],
    )


def _tuned_model(name: str, entry: Item | None, jobs: list[str], today: date, requests: int | None) -> TunedModel:
    parsed, ending = parse_name(name), ending_of(name, (entry or {}).get("shutdown_date"))
    return TunedModel(
        name=name,
        base=parsed.base,
        suffix=parsed.suffix,
        ends_on=ending.day,
        days_left=ending.days_left(today),
        date_from=ending.source,
        is_listed=entry is not None,
        jobs=jobs,
        requests=requests,
    )
