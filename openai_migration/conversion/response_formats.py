"""The schemas that recorded prompts, stored chats and batches of an archive request, and whether an installation
accepts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cli.conversion.schemas import schema_fault, schemas_of, written_schema
from openai_migration.archive.contents import ArchiveContents
from openai_migration.archive.sections import url_path
from openai_migration.prompts import file_requests
from openai_migration.record import GOLDEN


class FormatCheck(msgspec.Struct, frozen=True):
    """A schema that recorded prompts, stored chats or batches request.

    Attributes:
        name: its name in the request.
        requests: number of requests with it, by source.
        refused: why an installation would not accept it; empty if it would.
    """

    name: str
    requests: dict[str, int]
    refused: str


def check_formats(contents: ArchiveContents) -> list[FormatCheck]:
    """Return the schemas of the requests in an archive, each once."""
    uses: dict[tuple[str, str], Counter[str]] = {}
    for source, request in _requests(contents):
        for name, schema in schemas_of(request):
            uses.setdefault((name, written_schema(schema)), Counter())[source] += 1
    return [FormatCheck(name, dict(requests), schema_fault(text)) for (name, text), requests in uses.items()]


def _requests(contents: ArchiveContents) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted((contents.folder / GOLDEN).glob("*/*.jsonl")):
        for line in path.read_bytes().splitlines():
            yield "recorded", msgspec.json.decode(line)["request"]
    for project in contents.projects():
        # `record` sends its requests to the same path; those of the lists have a model in their query.
        for model in contents.tuned_models(project):
            yield from (
                ("chat", chat) for chat in contents.items(project, url_path("chat", "completions"), model=model)
            )
        for _, file in contents.files(project, "batch"):
            yield from (("batch", request) for request in file_requests(file))
