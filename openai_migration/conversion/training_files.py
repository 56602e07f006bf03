"""The training and validation files of an archive, with local originals for files that could not be downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cli.conversion.file_report import ConversionReport
from cli.conversion.outcomes import ConvertedMethod, RowOptions
from cli.conversion.rows import is_preference
from corpus.filters.rules import RedactionRules
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.folder import Archive, make_private, safe_name, write_json
from openai_migration.archive.pages import Item
from openai_migration.conversion.lines import sampled_rows
from openai_migration.conversion.response_formats import FormatCheck
from openai_migration.golden import decode_line
from openai_migration.record import GOLDEN

if TYPE_CHECKING:
    from openai_migration.conversion.digests import DigestSet

DATA, REPORT = "data", "convert-report.json"
ORIGINALS = "originals"
"""Folder for originals that correspond to no file of the archive."""


@dataclass(slots=True)
class TrainingFile:
    """A file that jobs have trained or validated on.

    Attributes:
        path: path of its content; None if it is neither in the archive nor among the originals.
        validates: ids of the training files of the jobs that validated on this file.
    """

    project: str
    file_id: str
    name: str
    size: int
    method: ConvertedMethod
    path: Path | None
    jobs: list[str] = field(default_factory=list)
    validates: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices for a conversion; choices about single rows are in ``rows``."""

    rows: RowOptions
    strip: bool = False
    allow_image_loss: bool = False
    redaction: RedactionRules | None = None


class ConvertedFile(msgspec.Struct, frozen=True):
    """A file in the report; ``report`` is None for one whose content is missing."""

    project: str
    file_id: str
    name: str
    size: int
    jobs: list[str]
    report: ConversionReport | None


def find_files(contents: ArchiveContents, originals: Iterable[Path]) -> list[TrainingFile]:
    """Return the files of every project, training files first, and then the originals that match none of them.

    Args:
        originals: files and folders, which are matched by the name and size that OpenAI lists.
    """
    local = {(path.name, path.stat().st_size): path for path in _files_in(originals)}
    files = [file for project in contents.projects() for file in _project_files(contents, project)]
    for file in files:
        file.path = file.path or local.get((file.name, file.size))
    used = {file.path for file in files}
    own = [path for path in originals if path.is_file() and path not in used]
    files += [
        TrainingFile(ORIGINALS, path.stem, path.name, path.stat().st_size, guess_method(path), path) for path in own
    ]
    return sorted(files, key=lambda file: bool(file.validates))


def _files_in(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from (file for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file())


def _project_files(contents: ArchiveContents, project: str) -> list[TrainingFile]:
    listed = {str(item["id"]): item for item in contents.items(project, "files")}
    files: dict[str, TrainingFile] = {}
    for job in contents.jobs(project):
        kind = (job.get("method") or {}).get("type")
        method = ConvertedMethod(kind) if kind in list(ConvertedMethod) else ConvertedMethod.SUPERVISED
        training = job.get("training_file")
        for name in filter(None, (training, job.get("validation_file"))):
            file = files.setdefault(name, _training_file(contents, project, name, listed.get(name, {}), method))
            file.jobs.append(str(job["id"]))
            if name != training:
                file.validates.append(str(training))
    for name, item in listed.items():
        if name not in files and item.get("purpose") == "fine-tune":
            files[name] = _training_file(contents, project, name, item, None)
    return list(files.values())


def _training_file(
    contents: ArchiveContents, project: str, file_id: str, item: Item, method: ConvertedMethod | None
) -> TrainingFile:
    path = contents.file(project, file_id)
    kind = method or (guess_method(path) if path else ConvertedMethod.SUPERVISED)
    return TrainingFile(project, file_id, str(item.get("filename") or file_id), int(item.get("bytes") or 0), kind, path)


def guess_method(path: Path) -> ConvertedMethod:
    """Guess the method of a file that no job has used, from its first row."""
    return ConvertedMethod.DPO if is_preference(next(sampled_rows(path), {})) else ConvertedMethod.SUPERVISED


def output_of(file: TrainingFile) -> str:
    """Return the path of a converted file in the archive. The name shows the method that its rows are for."""
    kind = "" if file.method is ConvertedMethod.SUPERVISED else f".{file.method}"
    return f"{DATA}/{safe_name(file.project)}/{safe_name(file.file_id)}{kind}.jsonl"


def convert_files(
    archive: Archive,
    files: list[TrainingFile],
    choices: Choices,
    advance: Callable[[str, int], None] = lambda _name, _read: None,
    executor: Executor | None = None,
    formats: Iterable[FormatCheck] = (),
) -> list[ConvertedFile]:
    """Convert every file whose content is available, and write the report.

    Args:
        advance: called with a file's name and the number of bytes read.
        executor: processes that convert large files.
        formats: format checks for the report.
    """
    from openai_migration.conversion.files import FileTask, convert_file  # numpy is slow to import

    digests: dict[str, DigestSet] = {}
    validated = {name for file in files for name in file.validates}
    held_out = _held_out(archive.folder)
    done = []
    for file in files:
        report = None
        if file.path:
            method = (
                ConvertedMethod.SUPERVISED
                if choices.rows.as_supervised and file.method is ConvertedMethod.DPO
                else file.method
            )
            output = archive.folder / output_of(replace(file, method=method))
            make_private(output.parent, archive.folder)
            trained = [digests[name] for name in file.validates if name in digests]
            task = FileTask(
                file.path,
                output,
                method,
                choices.rows,
                strip=choices.strip,
                allow_image_loss=choices.allow_image_loss,
                redaction=choices.redaction,
                trained=trained,
                held_out=held_out,
            )
            report, file_digests = convert_file(task, partial(advance, file.name), executor)
            if file.file_id in validated:
                digests[file.file_id] = file_digests
            if report.output:
                # By its place in the archive, because the archive may be moved, and commands run from anywhere.
                report.output = output.relative_to(archive.folder).as_posix()
        done.append(ConvertedFile(file.project, file.file_id, file.name, file.size, file.jobs, report))
    write_json(
        archive.folder / REPORT, {"format": "mens-convert-report/1", "files": done, "response_formats": [*formats]}
    )
    return done


def _held_out(folder: Path) -> frozenset[str]:
    """Return the ids of training prompts that `record` sent to the old model because no other prompts existed."""
    lines = (
        decode_line(path, number, line)
        for path in sorted((folder / GOLDEN).rglob("*.jsonl"))
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
    )
    return frozenset(line.id for line in lines if line.source == "training")
