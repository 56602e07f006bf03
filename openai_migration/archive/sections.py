"""The sections of an export, and the objects fetched for each, in the order in which OpenAI removes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from urllib.parse import quote

from openai_migration.archive.pages import OLDEST_FIRST, Item, Reader
from openai_migration.archive.shutdown_dates import is_tuned

MAX_CHATS = 2_000
"""Largest number of stored chats that are fetched per model; each costs a request."""
TUNING_PURPOSES = ("fine-tune", "fine-tune-results", "evals", "batch", "batch_output")
"""Purposes of files that are fetched; files with other purposes are unrelated to tuning, and are only listed."""


class Section(StrEnum):
    """A part of an export, in the order of urgency."""

    EVALS = "evals"
    MODELS = "models"
    JOBS = "jobs"
    FILES = "files"
    BATCHES = "batches"
    CHATS = "chats"


def url_path(*segments: str) -> str:
    """Return a URL path built from ids that OpenAI chose."""
    return "/".join(quote(segment, safe="") for segment in segments)


def _fetch_evals(reader: Reader, counts: Counter[str]) -> None:
    for evaluation in reader.items("evals", ("evals",), OLDEST_FIRST):
        counts["evals"] += 1
        of_eval = ("evals", str(evaluation["id"]), "runs")
        for run in reader.items(url_path(*of_eval), of_eval, OLDEST_FIRST):
            counts["eval runs"] += 1
            of_run = (*of_eval, str(run["id"]), "output_items")
            # The pages decide where the list ends: `result_counts.total` counts only executed items.
            counts["eval output items"] += sum(1 for _ in reader.items(url_path(*of_run), of_run, OLDEST_FIRST))


def _fetch_models(reader: Reader, counts: Counter[str]) -> None:
    counts["tuned models"] += len(tuned_models(reader))


def tuned_models(reader: Reader) -> dict[str, Item]:
    """Return the project's tuned models by name. The list has no pages."""
    models = {str(model["id"]): model for model in reader.items("models", ("models",), {})}
    return {name: model for name, model in models.items() if is_tuned(name)}


def _fetch_jobs(reader: Reader, counts: Counter[str]) -> None:
    for job in reader.items("fine_tuning/jobs", ("jobs",)):
        counts["jobs"] += 1
        for part in ("events", "checkpoints"):
            of_job = ("jobs", str(job["id"]), part)
            counts[f"job {part}"] += sum(1 for _ in reader.items(url_path("fine_tuning", *of_job), of_job))


def _fetch_files(reader: Reader, counts: Counter[str]) -> None:
    for file in reader.items("files", ("files",)):
        if file.get("purpose") not in TUNING_PURPOSES:
            counts["files listed only (other purposes)"] += 1
            continue
        file_id = str(file["id"])
        # Documents disagree on whether training files can be downloaded: it is tried, and a refusal is counted.
        entry = reader.fetch(url_path("files", file_id, "content"), ("files", "content", file_id))
        if entry.is_refused:
            reader.refused.append(entry)
        else:
            counts["files"] += 1


def _fetch_batches(reader: Reader, counts: Counter[str]) -> None:
    # Their input and output files are fetched with the other files.
    counts["batches"] += sum(1 for _ in reader.items("batches", ("batches",)))


def _fetch_chats(reader: Reader, counts: Counter[str]) -> None:
    for model in tuned_models(reader):
        chats = reader.items("chat/completions", ("chats", model), {**OLDEST_FIRST, "model": model}, MAX_CHATS)
        for chat in chats:
            counts["stored chats"] += 1
            chat_id = str(chat["id"])
            messages = ("chats", model, chat_id)
            for _ in reader.items(url_path("chat", "completions", chat_id, "messages"), messages, OLDEST_FIRST):
                pass


FETCH: dict[Section, Callable[[Reader, Counter[str]], None]] = {
    Section.EVALS: _fetch_evals,
    Section.MODELS: _fetch_models,
    Section.JOBS: _fetch_jobs,
    Section.FILES: _fetch_files,
    Section.BATCHES: _fetch_batches,
    Section.CHATS: _fetch_chats,
}
