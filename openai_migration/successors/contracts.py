"""Converts a job at OpenAI to the contract that trains its successor: the values that are kept or dropped, each with
the reason. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cli.conversion.outcomes import ConvertedMethod
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.pages import Item
from openai_migration.archive.shutdown_dates import is_tuned, parse_name
from openai_migration.conversion.training_files import REPORT
from shared.contract.auto_hyperparameters import auto_exec
from shared.contract.values import describe_bad_name
from shared.errors import ArtifactInvalid, Code

MAX_EPOCHS = 10
MAX_BETA = 2
LARGEST_SEED = 2**31 - 1


class Source(msgspec.Struct, frozen=True):
    """Origin of one value of a contract.

    Attributes:
        field: field of the contract, or of OpenAI's job if the value is dropped.
        openai: the job's value at OpenAI.
        value: the contract's value; None if it is dropped.
        reason: reason for the value.
    """

    field: str
    openai: Any
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A tuned model whose job and rows are in the archive.

    Attributes:
        train: its converted training file.
        rows: number of rows of that file.
        validation: its converted validation file, if it had one.
        method: training method, which determines the kind of its rows.
    """

    project: str
    name: str
    job: Item
    train: Path
    rows: int
    validation: Path | None
    method: ConvertedMethod = ConvertedMethod.SUPERVISED


@dataclass(frozen=True, slots=True)
class Unplannable:
    """A tuned model for which no contract can be made, and why."""

    project: str
    name: str
    reason: str


class Converted(msgspec.Struct, frozen=True):
    """The fields of a file's report that are read here (`openai_migration/conversion/files.py:FileReport`)."""

    method: ConvertedMethod
    rows: int
    output: str
    refused: str


class FileInReport(msgspec.Struct, frozen=True):
    """A file in ``convert-report.json``; ``report`` is None for one whose content is missing."""

    project: str
    file_id: str
    report: Converted | None


class ConvertedFiles(msgspec.Struct, frozen=True):
    """``convert-report.json``."""

    files: list[FileInReport]


def tuned_models(contents: ArchiveContents) -> Iterator[ConvertedModel | Unplannable]:
    """Yield every tuned model of an archive that is not a checkpoint, with its converted files.

    Raises:
        ArtifactInvalid: no file has been converted yet.
    """
    converted = {(file.project, file.file_id): file for file in _read_report(contents.folder).files}
    for project in contents.projects():
        jobs = {job["fine_tuned_model"]: job for job in contents.jobs(project) if job.get("fine_tuned_model")}
        for name in contents.last_models(project):
            yield _tuned_model(contents.folder, converted, project, name, jobs.get(name))


def _tuned_model(
    folder: Path, converted: Mapping[tuple[str, str], FileInReport], project: str, name: str, job: Item | None
) -> ConvertedModel | Unplannable:
    if job is None:
        return Unplannable(project, name, "the archive does not contain the job that trained it")
    train = converted.get((project, str(job["training_file"])))
    if train is None or train.report is None or not train.report.output:
        reason = f"its training file {job['training_file']} is not converted"
        refused = train.report.refused if train and train.report else "give its original: convert --original PATH"
        return Unplannable(project, name, f"{reason}: {refused}")
    if train.report.method is ConvertedMethod.REINFORCEMENT:
        return Unplannable(project, name, f"it was tuned by {train.report.method}, which this release cannot train")
    if not (folder / train.report.output).is_file():
        return Unplannable(project, name, f"{train.report.output} no longer exists; run `convert` again")
    validation = converted.get((project, str(job.get("validation_file"))))
    held = folder / validation.report.output if validation and validation.report and validation.report.output else None
    return ConvertedModel(
        project, name, job, folder / train.report.output, train.report.rows, held, train.report.method
    )


def _read_report(folder: Path) -> ConvertedFiles:
    try:
        return msgspec.json.decode((folder / REPORT).read_bytes(), type=ConvertedFiles)
    except (OSError, msgspec.DecodeError):
        remedy = f"Run `mens migrate openai convert {folder}` first."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, f"{folder} has no converted rows.", remedy=remedy) from None


def successor_sections(
    model: ConvertedModel, base: str, base_rate: float | None
) -> tuple[dict[str, Any], list[Source]]:
    """Return the contract's sections for a model's successor, without the ids of files, and the origin of each value.

    Args:
        base: its name in the catalogue.
        base_rate: the base's own learning rate there, if it names one.
    """
    hyperparameters = _hyperparameters(model.job)
    pairs = model.method is ConvertedMethod.DPO
    rules = auto_exec(model.rows, base_rate, pairs=pairs)
    sources = [_epochs(hyperparameters.get("n_epochs"), rules), _batch_size(hyperparameters.get("batch_size"), rules)]
    rate = (
        "Mens' rule for this base; OpenAI's multiplier is not used, because OpenAI does not publish the rate that it "
        "multiplies"
    )
    sources.append(
        Source("exec.learning_rate", hyperparameters.get("learning_rate_multiplier"), rules["learning_rate"], rate)
    )
    seed = model.job.get("seed")
    if isinstance(seed, int) and 0 <= seed <= LARGEST_SEED:
        sources.append(Source("exec.seed", seed, seed, "used for the order of rows; results differ nevertheless"))
    validation = "separate file" if model.validation else "OpenAI trains on every row, so none is held out"
    sources.append(Source("data.validation_split_ratio", model.job.get("validation_file"), 0.0, validation))
    sections: dict[str, Any] = {"model": {"hf_repo": base}, "exec": {"grad_accum": 1}, "data": {}, "artifact": {}}
    if pairs:
        sources += _preference(hyperparameters.get("beta"))
        sections |= {"method": {}, "preference": {}}
    for source in sources:
        section, _, field = source.field.partition(".")
        sections[section][field] = source.value
    return sections, [*sources, *_dropped(model.job, hyperparameters, pairs=pairs)]


def successor_name(model: str) -> str:
    """Return a name for a tuned model's successor: the suffix of its job, otherwise the last part of its name."""
    for part in (parse_name(model).suffix, model.rpartition(":")[2]):
        name = re.sub(r"[^a-z0-9._-]+", "-", part.lower()).strip("-._")[:64]
        if describe_bad_name(name) is None:
            return name
    return "successor"


def _hyperparameters(job: Item) -> dict[str, Any]:
    """Return a job's hyperparameters; older jobs have them in a different field."""
    method = job.get("method") or {}
    return (method.get(method.get("type")) or {}).get("hyperparameters") or job.get("hyperparameters") or {}


def _epochs(original: Any, rules: Mapping[str, float]) -> Source:
    if not isinstance(original, int):
        return Source(
            "exec.epochs", original, rules["epochs"], "OpenAI does not report the number; Mens' rule for this many rows"
        )
    if original > MAX_EPOCHS:
        return Source("exec.epochs", original, MAX_EPOCHS, f"limited to {MAX_EPOCHS}; set more in the contract")
    return Source("exec.epochs", original, original, "used: it means the same in both systems")


def _batch_size(original: Any, rules: Mapping[str, float]) -> Source:
    if not isinstance(original, int):
        reason = "OpenAI does not report the number; Mens' rule for this many rows"
        return Source("exec.batch_size", original, rules["batch_size"], reason)
    return Source(
        "exec.batch_size", original, original, "used as rows per step; the trainer splits a step to fit the memory"
    )


def _preference(beta: Any) -> Iterator[Source]:
    """Yield the values of a preference-tuning job."""
    yield Source("method.type", "dpo", "dpo", "used: the rows are pairs of answers")
    if isinstance(beta, int | float) and 0 < beta <= MAX_BETA:
        yield Source("preference.beta", beta, beta, "used: it means the same in both systems")


def _dropped(job: Item, hyperparameters: Mapping[str, Any], *, pairs: bool = False) -> Iterator[Source]:
    """Yield the values of a job that its successor's contract has no field for."""
    if is_tuned(parent := str(job.get("model") or "")):
        chain = (
            f"dropped: OpenAI's job continued from {parent}; train its successor first, then set "
            "adapter.continue_from to that"
        )
        yield Source("model", parent, None, chain)
    used = {"n_epochs", "batch_size", "learning_rate_multiplier"} | ({"beta"} if pairs else set())
    for name in sorted(hyperparameters.keys() - used):
        yield Source(name, hyperparameters[name], None, "dropped: Mens has no field for it")
    if job.get("integrations"):
        names = [integration.get("type") for integration in job["integrations"]]
        yield Source("integrations", names, None, "dropped: set MENS_TRACKERS of the worker to send metrics")
