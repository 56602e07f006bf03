"""Content of an archive, read without access to OpenAI: objects of its lists, and the content of its files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from openai_migration.archive.folder import ArchiveEntry, is_archive, read_entries
from openai_migration.archive.pages import Item
from openai_migration.archive.sections import url_path
from openai_migration.archive.shutdown_dates import ModelEnding, ending_of, is_tuned, parse_name
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_file


class ArchiveContents:
    """The objects of an archive, by project.

    Raises:
        ArtifactInvalid: the folder is not an archive.
    """

    def __init__(self, folder: Path) -> None:
        if not is_archive(folder):
            remedy = "Create one: `mens migrate openai export FOLDER`."
            raise ArtifactInvalid(Code.ARCHIVE_INVALID, f"{folder} is not an archive.", remedy=remedy)
        self.folder = folder
        self._entries: dict[tuple[str, str], list[ArchiveEntry]] = {}
        self._refused: list[ArchiveEntry] = []
        for entry in sorted(read_entries(folder).values(), key=lambda entry: entry.file):
            if entry.file:
                self._entries.setdefault((entry.project, entry.path), []).append(entry)
            else:
                self._refused.append(entry)

    def projects(self) -> list[str]:
        """Return the names of the projects, which are the variables of their keys."""
        return sorted({project for project, _ in self._entries})

    def refused(self) -> list[ArchiveEntry]:
        """Requests that OpenAI refused."""
        return list(self._refused)

    def items(self, project: str, path: str, **query: str) -> Iterator[Item]:
        """Yield the objects of a list, each once.

        Args:
            query: query parameters of the requests for the list's pages, e.g. ``model``.
        """
        seen = set()
        for entry in self._entries.get((project, path), []):
            if query.items() <= entry.query.items():
                for item in self.body(entry)["data"]:
                    if item.get("id") not in seen:
                        seen.add(item.get("id"))
                        yield item

    def body(self, entry: ArchiveEntry) -> dict[str, Any]:
        """Return the JSON object in a request's response."""
        value: dict[str, Any] = msgspec.json.decode((self.folder / entry.file).read_bytes())
        return value

    def tuned_models(self, project: str) -> list[str]:
        """Return the tuned models that OpenAI lists and those that jobs name, including checkpoints."""
        listed = [str(model["id"]) for model in self.items(project, "models") if is_tuned(str(model["id"]))]
        made = [str(job["fine_tuned_model"]) for job in self.jobs(project) if job.get("fine_tuned_model")]
        return sorted({*listed, *made})

    def last_models(self, project: str) -> list[str]:
        """Return the tuned models that are not checkpoints, in the order in which they end.

        Raises:
            ArtifactInvalid: the archive has no such project.
        """
        if project not in self.projects():
            message = f"{self.folder} has no project {project}; it has {', '.join(self.projects()) or 'none'}."
            remedy = "Give the same --key-env as for the export."
            raise ArtifactInvalid(Code.ARCHIVE_INVALID, message, remedy=remedy)
        ends = {name: ending.day or date.max for name, ending in self.endings(project).items()}
        return [name for name in sorted(ends, key=lambda name: (ends[name], name)) if parse_name(name).step is None]

    def endings(self, project: str) -> dict[str, ModelEnding]:
        """Return when each tuned model ends, checkpoints included."""
        dates = {str(model["id"]): model.get("shutdown_date") for model in self.items(project, "models")}
        return {name: ending_of(name, dates.get(name)) for name in self.tuned_models(project)}

    def jobs(self, project: str) -> Iterator[Item]:
        """Return fine-tuning jobs, newest first, as OpenAI lists them."""
        return self.items(project, "fine_tuning/jobs")

    def file(self, project: str, file_id: str) -> Path | None:
        """Return the content of a file if the archive has it.

        Raises:
            ArtifactInvalid: it differs from the fetched bytes.
        """
        for entry in self._entries.get((project, url_path("files", file_id, "content")), []):
            path = self.folder / entry.file
            if not path.is_file() or digest_file(path) != entry.sha256:
                remedy = "Use a copy of the archive, or delete the file and export again."
                raise ArtifactInvalid(Code.ARCHIVE_INVALID, f"{path} was changed after the export.", remedy=remedy)
            return path
        return None

    def files(self, project: str, purpose: str) -> Iterator[tuple[Item, Path]]:
        """Yield files of a purpose whose content the archive has."""
        for item in self.items(project, "files"):
            path = self.file(project, str(item["id"]))
            if path and item.get("purpose") == purpose:
                yield item, path
