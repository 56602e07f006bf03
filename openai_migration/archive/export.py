"""Exports one project into an archive: section by section, continuing after refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from openai_migration.archive.folder import Archive, ArchiveEntry
from openai_migration.archive.openai_client import OpenAIClient
from openai_migration.archive.pages import Reader
from openai_migration.archive.sections import FETCH, Section
from shared.errors import MensError


@dataclass(slots=True)
class ProjectExport:
    """The archive's current content of one project.

    Attributes:
        objects: number of objects of each kind.
        refused: requests that OpenAI refused; they are sent again by the next export.
        notes: lists that may be incomplete, and why.
        sent: requests of this run.
        failure: why the project could not be read completely; empty if it could.
    """

    project: str
    objects: Counter[str] = field(default_factory=Counter)
    refused: list[ArchiveEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sent: int = 0
    failure: str = ""


def export_project(
    client: OpenAIClient,
    archive: Archive,
    sections: Collection[Section] = tuple(Section),
    advance: Callable[[str], None] = lambda _: None,
) -> ProjectExport:
    """Fetch the parts of one project that the archive lacks. A refusal is counted and does not end the export."""
    reader = Reader(client, archive, advance)
    result = ProjectExport(client.project, refused=reader.refused, notes=reader.notes)
    try:
        for section in Section:
            if section in sections:
                FETCH[section](reader, result.objects)
    # A project whose key is refused must not keep the others from being saved.
    except MensError as error:
        result.failure = str(error)
    result.sent = reader.sent
    return result
