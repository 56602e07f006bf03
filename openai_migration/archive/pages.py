"""Reads OpenAI's lists, page by page, through an archive: archived pages are not requested again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from openai_migration.archive.folder import Archive, ArchiveEntry, file_name, now, request_key
from openai_migration.archive.openai_client import OpenAIClient, Query

PAGES = {"limit": "100"}
OLDEST_FIRST = {"limit": "100", "order": "asc"}
MAX_DELETED = 10
"""Largest number of objects at the end of a page that may be deleted before the next page is requested."""
NOT_JSON = "not_json"
Item = dict[str, Any]


class ArchivePage(msgspec.Struct):
    """A page of a list. ``last_id`` is not read: OpenAI's own value is wrong on some lists."""

    data: list[Item]
    has_more: bool = False


@dataclass(slots=True)
class Reader:
    """Reads one project into an archive.

    Attributes:
        refused: requests that OpenAI refused.
        notes: lists that may be incomplete, and why.
        sent: requests of this run.
    """

    client: OpenAIClient
    archive: Archive
    advance: Callable[[str], None] = lambda _: None
    refused: list[ArchiveEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sent: int = 0

    def fetch(
        self, path: str, location: tuple[str, ...], query: Query | None = None, *, page: bool = False
    ) -> ArchiveEntry:
        """Return the entry of a GET request, which is sent only if the archive lacks its body.

        Args:
            location: the body's path below the project's folder.
            page: whether the body must be a page of a list; any other body counts as a refusal.
        """
        parameters = dict(query or {})
        project = self.client.project
        self.advance(path)
        if stored := self.archive.find(request_key(project, "GET", path, parameters)):
            return stored
        self.sent += 1
        with self.archive.body() as body:
            reply = self.client.send("GET", path, body, parameters)
            entry = ArchiveEntry(
                project, "GET", path, parameters, reply.status, now(), "", code=reply.code, message=reply.message
            )
            if reply.status != 200:
                return self.archive.add(entry, None)
            if page and not _is_page(body):
                return self.archive.add(msgspec.structs.replace(entry, code=NOT_JSON), None)
            return self.archive.add(msgspec.structs.replace(entry, file=file_name(project, *location)), body)

    def items(
        self, path: str, location: tuple[str, ...], query: Query = PAGES, limit: int | None = None
    ) -> Iterator[Item]:
        """Yield the objects of a list, each once. It ends at a refusal, which is added to ``refused``.

        Args:
            limit: largest number of objects; a longer list is noted.
        """
        seen: dict[str, None] = {}
        after: list[str] = []
        number = 1
        while True:
            following = {**query, "after": after[-1]} if after else query
            entry = self.fetch(path, (*location, f"page-{number:04}.json"), following, page=True)
            if entry.is_refused:
                # The last object of a page may be deleted by now: the one before it serves as well.
                if after[1:] and entry.status in {400, 404}:
                    after.pop()
                    continue
                self.refused.append(entry)
                return
            page = msgspec.json.decode((self.archive.folder / entry.file).read_bytes(), type=ArchivePage)
            new = [item for item in page.data if item.get("id") not in seen]
            for item in new:
                if limit is not None and len(seen) >= limit:
                    self.notes.append(f"{path}: only the first {limit}")
                    return
                seen[str(item.get("id"))] = None
                yield item
            if not page.has_more:
                return
            if not new:
                self.notes.append(f"{path}: page {number} announces more entries, but has no new ones")
                return
            after, number = [str(item.get("id")) for item in page.data[-MAX_DELETED:]], number + 1


def _is_page(body: BinaryIO) -> bool:
    body.seek(0)
    try:
        msgspec.json.decode(body.read(), type=ArchivePage)
    except msgspec.DecodeError:
        return False
    return True
