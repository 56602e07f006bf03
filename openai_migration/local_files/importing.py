"""Writes local files in the form that ``export`` and ``record`` produce, as a separate project, so that every later
step accepts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from openai_migration.archive.folder import Archive, ArchiveEntry, file_name, make_private, now, write_private
from openai_migration.archive.pages import Item
from openai_migration.archive.sections import url_path
from openai_migration.archive.shutdown_dates import is_tuned, parse_name
from openai_migration.conversion.training_files import guess_method
from openai_migration.local_files.reading import RecordedAnswer, read_answers_file, read_graders_file
from openai_migration.prompts import TrainedPrompts
from openai_migration.record import golden_file
from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.hashing import digest_file, digest_json

PROJECT = "local-files"
IMPORTED = "imported"
"""Source of a prompt whose answer was read from a file, and the name of the eval for graders from a file."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A team's files on a tuned model.

    Attributes:
        model: its name at OpenAI, ``ft:…``.
        epochs: epochs of its job, as OpenAI's dashboard shows them; None if unknown.
    """

    model: str
    training: Path
    validation: Path | None = None
    answers: Path | None = None
    graders: Path | None = None
    epochs: int | None = None

    @property
    def base(self) -> str:
        return parse_name(self.model).base


@dataclass(slots=True)
class ImportedFiles:
    """Result of an import.

    Attributes:
        prompts: number of prompts with an answer of the tuned model.
        answers: number of its answers and its base's.
        left_out: number of answers left out, by reason.
        again: number of lines left out because they have the completion id of another line.
        alike: number of lines without an id that equal another line; they count as repeated answers.
        scored: number of answers with stored scores of the graders.
    """

    prompts: int = 0
    answers: int = 0
    graders: int = 0
    scored: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    again: int = 0
    alike: int = 0


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Content of files, read and checked; ``done`` holds the counts."""

    files: LocalFiles
    graders: list[Item]
    answers: list[RecordedAnswer]
    done: ImportedFiles


def read_files(files: LocalFiles) -> ReadFiles:
    """Read and check the files; nothing is written.

    Raises:
        InvalidRequest: ``NAME_INVALID`` for a name that is not a tuned model's; as :func:`read_answers_file` and
            :func:`read_graders_file`.
        ArtifactInvalid: no comparable answer is left.
    """
    if not is_tuned(files.model):
        message = f"{files.model!r} is not a tuned model's name at OpenAI."
        raise InvalidRequest(
            Code.NAME_INVALID, message, remedy="Give the name that programs use: ft:BASE:ORG:SUFFIX:ID."
        )
    done = ImportedFiles()
    graders = read_graders_file(files.graders) if files.graders else []
    recorded = read_answers_file(files.answers, files.model) if files.answers else []
    answers = list(_comparable(_each_once(recorded, done), files.training, done.left_out))
    if recorded and not any(answer.model == files.model for answer in answers):
        message = f"None of the {len(recorded)} answers can be compared: {dict(done.left_out)}."
        remedy = "Give answers of the tuned model to prompts that it was not trained on, or leave --answers out."
        raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy=remedy)
    done.prompts, done.answers = len({digest_json(answer.request) for answer in answers}), len(answers)
    done.graders, done.scored = len(graders), sum(bool(answer.scores) for answer in answers)
    return ReadFiles(files, graders, answers, done)


def write_files(archive: Archive, read: ReadFiles) -> None:
    """Write the read files into an archive, replacing those of an earlier import for the model."""
    _add_job(archive, read.files)
    if read.graders:
        _add_eval(archive, read.files.model, read.graders, read.answers)
    if read.answers:
        _add_answers(archive, read.files.model, read.answers)


def _each_once(recorded: Iterable[RecordedAnswer], done: ImportedFiles) -> Iterator[RecordedAnswer]:
    """Yield answers, each completion once. Without ids, equal answers may be one completion or two, so both are kept."""
    ids: set[str] = set()
    texts: set[str] = set()
    for answer in recorded:
        name, text = answer.response.get("id"), digest_json(msgspec.to_builtins(answer))
        if isinstance(name, str) and name in ids:
            done.again += 1
            continue
        done.alike += name is None and text in texts
        ids |= {name} if isinstance(name, str) else set()
        texts.add(text)
        yield answer


def _comparable(recorded: Iterable[RecordedAnswer], training: Path, left_out: Counter[str]) -> Iterator[RecordedAnswer]:
    """Yield the answers to prompts that the model was not trained on, because training on them would favour it."""
    trained = TrainedPrompts([training])
    for answer in recorded:
        if reason := trained.reason(answer.request["messages"]):
            left_out[reason] += 1
        else:
            yield answer


def _add_job(archive: Archive, files: LocalFiles) -> None:
    rows = {"training_file": files.training, "validation_file": files.validation}
    file_ids = {name: f"file-{digest_file(path)[:24]}" for name, path in rows.items() if path}
    listed = [
        {
            "id": file_ids[name],
            "object": "file",
            "filename": path.name,
            "bytes": path.stat().st_size,
            "purpose": "fine-tune",
        }
        for name, path in rows.items()
        if path
    ]
    for name, path in rows.items():
        if path:
            _add(
                archive,
                url_path("files", file_ids[name], "content"),
                ("files", "content", file_ids[name]),
                path.read_bytes(),
            )
    method = str(guess_method(files.training))
    hyperparameters = {"n_epochs": files.epochs or "auto"}
    job: dict[str, Any] = {
        "id": f"ftjob-{digest_json({'model': files.model})[:24]}",
        "object": "fine_tuning.job",
        "model": files.base,
        "fine_tuned_model": files.model,
        "status": "succeeded",
        "method": {"type": method, method: {"hyperparameters": hyperparameters}},
        "validation_file": None,
        **file_ids,
    }
    query = {"model": files.model}
    _add_page(archive, "models", ("models", files.model), [{"id": files.model, "object": "model"}], query)
    _add_page(archive, "fine_tuning/jobs", ("jobs", files.model), [job], query)
    _add_page(archive, "files", ("files", files.model), listed, query)


def _add_eval(archive: Archive, model: str, graders: list[Item], answers: list[RecordedAnswer]) -> None:
    """Add an eval of the graders, whose output items are the tuned model's answers with the scores in the file."""
    name = f"eval_{digest_json({'model': model})[:24]}"
    query, run = {"model": model}, f"evalrun_{name[5:]}"
    evaluation: dict[str, Any] = {"id": name, "object": "eval", "name": IMPORTED, "testing_criteria": graders}
    runs = url_path("evals", name, "runs")
    outputs = [
        {
            "id": f"outputitem_{number}",
            "object": "eval.run.output_item",
            "datasource_item": answer.item,
            "sample": answer.request
            | {"input": answer.request["messages"], "output": [answer.response["choices"][0]["message"]]},
            "results": [{"name": grader, "score": score} for grader, score in answer.scores.items()],
        }
        for number, answer in enumerate(answers)
        if answer.model == model
    ]
    _add_page(archive, "evals", ("evals", model), [evaluation], query)
    _add_page(archive, runs, ("evals", name, "runs"), [{"id": run, "model": model}], query)
    _add_page(archive, f"{runs}/{url_path(run, 'output_items')}", ("evals", name, run), outputs, query)


def _add_answers(archive: Archive, model: str, answers: list[RecordedAnswer]) -> None:
    """Write each answer and ``golden/…``. Repeated answers to one prompt are stored as the model's samples."""
    lines: dict[str, dict[str, Any]] = {}
    sampled: Counter[tuple[str, str]] = Counter()
    for answer in answers:
        prompt = digest_json(answer.request)
        sample = sampled[prompt, answer.model]
        sampled[prompt, answer.model] += 1
        query = {"request": digest_json({**answer.request, "model": answer.model}), "sample": str(sample)}
        location = ("answers", answer.model, f"{prompt[:32]}-{sample}.json")
        entry = _add(archive, "chat/completions", location, msgspec.json.encode(answer.response), query)
        line: dict[str, Any] = {
            "id": prompt,
            "source": IMPORTED,
            "request": answer.request,
            "model": model,
            "answers": [],
        }
        lines.setdefault(prompt, line)["answers"].append(
            {
                "model": answer.model,
                "sample": sample,
                "sampling": answer.sampling,
                "file": entry.file,
                "sha256": entry.sha256,
                "response": answer.response,
            }
        )
    path = archive.folder / golden_file(PROJECT, model)
    make_private(path.parent, archive.folder)
    write_private(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines.values()))


def _add_page(archive: Archive, path: str, location: tuple[str, ...], items: list[Item], query: dict[str, str]) -> None:
    page = {"object": "list", "data": items, "has_more": False}
    _add(archive, path, (*location, "imported.json"), msgspec.json.encode(page), query)


def _add(
    archive: Archive, path: str, location: tuple[str, ...], content: bytes, query: dict[str, str] | None = None
) -> ArchiveEntry:
    """Store a body with a method and status which show that no request was sent for it."""
    with archive.body() as body:
        body.write(content)
        entry = ArchiveEntry(PROJECT, "IMPORT", path, query or {}, 0, now(), file_name(PROJECT, *location))
        return archive.add(entry, body)
