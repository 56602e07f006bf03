"""The archive's facts about each tuned model, whichever steps were done. Start reading here; `page.py` renders them as
a page.

Nothing is sent: days left are computed from the dates in the archive.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import INVENTORY, safe_name
from openai_migration.archive.inventory import ArchiveInventory
from openai_migration.archive.shutdown_dates import (
    EVALS_END,
    TRAINING_ENDS,
    ModelEnding,
    ending_of,
    is_tuned,
    parse_name,
)
from openai_migration.conversion.training_files import REPORT
from openai_migration.gate.answers import NewAnswer, read_answers
from openai_migration.gate.measures import resemblance
from openai_migration.gate.recorded import RecordedPrompt, answer_of, labels, recorded_models, recorded_prompts
from openai_migration.local_files.importing import PROJECT
from openai_migration.prompts import model_of
from openai_migration.receipts import MigrationReceipt, read_receipt
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_json

SWITCH = "switch"
LONGEST_SHOWN = 2_000
"""Largest number of characters of a prompt or an answer that are shown."""


class Switched(msgspec.Struct, frozen=True):
    """Content of ``switch/MODEL.json``."""

    alias: str = ""
    adapter: str = ""
    override_reason: str = ""
    switched_at: str = ""


class Sample(msgspec.Struct, frozen=True):
    """Answers to one prompt, side by side; None for a missing one."""

    source: str
    prompt: str
    label: str | None
    recorded: str
    control: str | None
    successor: str | None
    alike: float | None


class ConvertedRows(msgspec.Struct, frozen=True):
    """Conversion outcome for a file of the model's jobs; ``lines`` is None if the file is missing."""

    name: str
    lines: int | None = None
    kept: int = 0
    changed: int = 0
    dropped: int = 0
    reasons: dict[str, int] = {}
    refused: str = ""


class ModelFacts(msgspec.Struct, frozen=True):
    """One tuned model.

    Attributes:
        files: the files of its jobs, and whether the archive has their content.
        recorded: number of prompts with an answer of the model, by source.
        favoured: whether the model was trained on these prompts, which favours it.
        trained: successors, by base: the job's state or the adapter.
        continued_from: the tuned model that its job continued from.
    """

    name: str
    project: str
    base: str
    ends_on: date | None
    days_left: int | None
    date_from: str
    jobs: list[str]
    files: dict[str, bool]
    rows: list[ConvertedRows]
    recorded: dict[str, int]
    favoured: bool
    trained: dict[str, str]
    receipt: MigrationReceipt | None
    switched: Switched | None
    samples: list[Sample]
    continued_from: str = ""

    @property
    def lost(self) -> list[str]:
        """Ids of files whose content is not in the archive."""
        return [name for name, is_here in self.files.items() if not is_here]


class _Sums(msgspec.Struct, frozen=True):
    lines: int = 0
    kept: int = 0
    changed: int = 0
    dropped: int = 0
    drops: dict[str, int] = {}
    refused: str = ""


class _ConvertedFile(msgspec.Struct, frozen=True):
    project: str
    name: str
    jobs: list[str]
    report: _Sums | None


class ConvertReport(msgspec.Struct, frozen=True):
    """The part of ``convert-report.json`` that is read."""

    files: list[_ConvertedFile]


class Facts(msgspec.Struct, frozen=True):
    """The whole report.

    Attributes:
        steps: whether each step was done.
        refused: number of OpenAI's refusals, by reason.
    """

    made_on: date
    evals_end_on: date
    training_ends_on: date
    steps: dict[str, bool]
    models: list[ModelFacts]
    refused: dict[str, int]


def collect(folder: Path, today: date, samples: int) -> Facts:
    """Collect the facts of an archive.

    Args:
        samples: number of prompts per model that are shown with their answers; half of them are those whose answers
            differ most.

    Raises:
        ArtifactInvalid: the folder is not an archive, or a file in it cannot be read.
    """
    contents = ArchiveContents(folder)
    endings = _endings(contents)
    golden = recorded_models(folder)
    projects = {name: project for name, (project, _) in endings.items()} | golden
    converted = _converted(folder)
    models = [
        _model(
            contents, name, project, endings.get(name, (project, ending_of(name, None)))[1], today, converted, samples
        )
        for name, project in projects.items()
    ]
    return Facts(
        made_on=today,
        evals_end_on=EVALS_END,
        training_ends_on=TRAINING_ENDS,
        steps={
            "inventory": (folder / INVENTORY).is_file(),
            "import": PROJECT in contents.projects(),
            "export": any(name != PROJECT for name in contents.projects()),
            "record": any(project != PROJECT for project in golden.values()),
            "convert": (folder / REPORT).is_file(),
            "train": any((folder / "train").glob("*/*/*.json")),
            "gate": any(model.receipt for model in models),
            "switch": any(model.switched for model in models),
        },
        models=sorted(models, key=lambda model: (model.ends_on or date.max, model.name)),
        refused=dict(Counter(f"{entry.status} {entry.code}".strip() for entry in contents.refused())),
    )


def _endings(contents: ArchiveContents) -> dict[str, tuple[str, ModelEnding]]:
    """Return the project and end date of each tuned model, from the inventory and the export; checkpoints count as
    their model.
    """
    endings: dict[str, tuple[str, ModelEnding]] = {}
    path = contents.folder / INVENTORY
    if path.is_file():
        for project in _read(path, ArchiveInventory).projects:
            for model in project.models:
                endings[model.name] = project.project, ModelEnding(model.ends_on, model.date_from)
    for name in contents.projects():
        endings |= {model: (name, ending) for model, ending in contents.endings(name).items()}
    return {name: ending_of_project for name, ending_of_project in endings.items() if parse_name(name).step is None}


def _converted(folder: Path) -> list[_ConvertedFile]:
    path = folder / REPORT
    return _read(path, ConvertReport).files if path.is_file() else []


def _model(
    contents: ArchiveContents,
    name: str,
    project: str,
    ending: ModelEnding,
    today: date,
    converted: list[_ConvertedFile],
    samples: int,
) -> ModelFacts:
    folder = contents.folder
    jobs = [job for job in contents.jobs(project) if job.get("fine_tuned_model") == model_of(name)]
    ids = [str(job["id"]) for job in jobs]
    file_ids = [str(job[kind]) for job in jobs for kind in ("training_file", "validation_file") if job.get(kind)]
    prompts = recorded_prompts(folder, project, name) if name in recorded_models(folder) else []
    receipt = read_receipt(folder, name)
    switched = folder / SWITCH / f"{safe_name(name)}.json"
    return ModelFacts(
        name=name,
        project=project,
        base=parse_name(name).base,
        ends_on=ending.day,
        days_left=ending.days_left(today),
        date_from=ending.source,
        jobs=ids,
        files={file_id: contents.file(project, file_id) is not None for file_id in file_ids},
        rows=[_rows(file) for file in converted if file.project == project and set(file.jobs) & set(ids)],
        recorded=dict(Counter(prompt.source for prompt in prompts)),
        favoured=any(prompt.source == "training" for prompt in prompts),
        trained=_trained(folder, name),
        receipt=receipt,
        switched=_read(switched, Switched) if switched.is_file() else None,
        samples=_samples(contents, project, name, prompts, receipt, samples),
        continued_from=next((str(job["model"]) for job in jobs if is_tuned(str(job.get("model")))), ""),
    )


def _rows(file: _ConvertedFile) -> ConvertedRows:
    if (report := file.report) is None:
        return ConvertedRows(file.name)
    return ConvertedRows(
        file.name, report.lines, report.kept, report.changed, report.dropped, report.drops, report.refused
    )


class _Training(msgspec.Struct, frozen=True):
    base: str = ""
    state: str = ""
    adapter: str = ""


def _trained(folder: Path, model: str) -> dict[str, str]:
    trainings = [_read(path, _Training) for path in sorted((folder / "train").glob(f"*/{safe_name(model)}/*.json"))]
    return {training.base: training.adapter or training.state for training in trainings}


def _samples(
    contents: ArchiveContents,
    project: str,
    model: str,
    prompts: list[RecordedPrompt],
    receipt: MigrationReceipt | None,
    count: int,
) -> list[Sample]:
    if not count:
        return []
    labels_by_prompt = labels(contents, project, model) if prompts else {}
    answers = read_answers(contents.folder, model) if receipt else {}
    shown = [
        _sample(prompt, labels_by_prompt.get(prompt.id), answers.get(_digest(prompt, receipt))) for prompt in prompts
    ]
    by_difference = sorted(shown, key=lambda sample: 1.0 if sample.alike is None else sample.alike)
    chosen = by_difference[: (count + 1) // 2]
    return (chosen + [sample for sample in shown if sample not in chosen])[:count]


def _digest(prompt: RecordedPrompt, receipt: MigrationReceipt | None) -> str:
    """Return the digest of the request to the successor that the receipt refers to."""
    served = (receipt.adapters or [receipt.mens_model])[0] if receipt else ""
    return digest_json({**prompt.request, **prompt.sampling, "model": served})


def _sample(prompt: RecordedPrompt, label: Any, new_answer: NewAnswer | None) -> Sample:
    answer = answer_of(new_answer.response) if new_answer and not new_answer.code else None
    successor = None if new_answer is None else answer.spoken if answer else f"(refused: {new_answer.code})"
    return Sample(
        source=prompt.source,
        prompt=_cut("\n\n".join(f"{turn.get('role')}: {_text(turn)}" for turn in prompt.request["messages"])),
        label=_cut(label.spoken) if label else None,
        recorded=_cut(prompt.answer.spoken),
        control=_cut(prompt.control.spoken) if prompt.control else None,
        successor=None if successor is None else _cut(successor),
        alike=resemblance(prompt.answer, answer) if answer else None,
    )


def _text(turn: dict[str, Any]) -> str:
    content = turn.get("content")
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _cut(text: str) -> str:
    more = len(text) - LONGEST_SHOWN
    return text if more <= 0 else f"{text[:LONGEST_SHOWN]} … ({more} more characters)"


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        message = f"{path} cannot be read: {error}."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy="Run the step that writes it again.") from None
