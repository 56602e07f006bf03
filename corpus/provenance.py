"""Identity and origin of a row. The same row has the same id in every corpus; its origin lies in a file next to the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from shared.datasets.row_validation import decode_line
from shared.datasets.rows import Labels, Record, RowError
from shared.errors import ArtifactInvalid, Code
from shared.hashing import digest_json

ID_DIGITS = 16
SOURCES_SUFFIX = ".sources.jsonl"
"""End of the name of a file of provenance: ``train.sources.jsonl`` next to ``train.jsonl``."""
LABELS = frozenset(Labels.__struct_fields__)
_TURN_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")


class Provenance(msgspec.Struct, kw_only=True):
    """Where a row comes from, and what was done to it.

    Attributes:
        id: the row's id.
        source: kind and name: ``sql:telemetry``, ``file:faq.jsonl``, ``code:shared``, ``generate:support``.
        locator: place in the source: ``{file, line}``, ``{key, watermark}``, ``{repo, commit, path, lines}`` or
            ``{recipe, index, sample}``.
        content_sha256: SHA-256 of the source's own content (line, tuple, unit) before anything was changed; None if personal data is replaced.
        license: an SPDX expression, or ``proprietary-own``.
        stages: marks of the stages that the row passed (``keys.py:stage_mark``), the first of them first.
        parents: ids of the rows or units that it was made from.
        generator: ``{endpoint, model, revision, request_sha256, method}`` of a row that a model wrote.
        redactions: number of replaced values by kind.
        checks: results of checks, such as ``{"compiles": true, "tests": 3}``.
    """

    id: str
    source: str
    locator: dict[str, Any]
    content_sha256: str | None = None
    license: str | None = None
    stages: list[str] = []
    parents: list[str] = []
    generator: dict[str, Any] | None = None
    redactions: dict[str, int] = {}
    checks: dict[str, Any] = {}


def forget_digests(provenance: Provenance, *, redacted: bool, changed: bool) -> None:
    """Remove digests of content before personal data was replaced: who has the redacted row could confirm guesses with them.

    Args:
        redacted: whether redactors have seen the row.
        changed: whether they replaced something in it.
    """
    if redacted:
        provenance.content_sha256 = None
    if changed:
        # Ids of units are digests of their content, those of requests digests of prompts.
        provenance.parents = []
        for generator in (provenance.generator or {}).values():
            if isinstance(generator, dict):
                generator.pop("requests", None)


def content_id(value: Any) -> str:
    """Return the first 16 hex digits of SHA-256 over the canonical JSON of a value."""
    return digest_json(value)[:ID_DIGITS]


def row_id(row: Mapping[str, Any]) -> str:
    """Return the id of a row, by its turns and tools alone: labels and the form in which it is written do not matter.

    A row that is not a chat, such as a pair of answers, is identified by all of its keys except labels.
    """
    try:
        return record_id(decode_line(msgspec.json.encode(row)))
    except RowError:
        return content_id({key: value for key, value in row.items() if key not in LABELS})


def record_id(record: Record) -> str:
    """Return the id of a row that was read."""
    messages = record.conversation()
    if not record.tools and not any(turn.tool_calls or turn.reasoning_content for turn in messages):
        # The same bytes as canonical JSON, in a third of its time: there are only strings.
        plain = [
            {"content": turn.content, "role": turn.role}
            for turn in messages
            if turn.content is not None and turn.name is None and turn.tool_call_id is None
        ]
        if len(plain) == len(messages):
            return sha256(msgspec.json.encode({"messages": plain, "tools": ()})).hexdigest()[:ID_DIGITS]
    turns = [{name: value for name in _TURN_FIELDS if (value := getattr(turn, name)) is not None} for turn in messages]
    return content_id({"messages": turns, "tools": record.tools or []})


def read_provenance(path: Path) -> Iterator[Provenance]:
    """Yield the lines of a file of provenance."""
    with path.open("rb") as file:
        yield from map(_decode, file)


def stated_terms(rows: Path) -> list[str]:
    """Return the models of other servers that wrote rows of a file, each with what was stated about its terms; none without provenance."""
    path = rows.with_name(rows.name.removesuffix(".jsonl") + SOURCES_SUFFIX)
    if not path.is_file():
        return []
    statements = set()
    with path.open("rb") as file:
        for line in file:
            if b'"terms"' not in line:
                continue
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # a file of another program
                statements |= {
                    f"{note.get('model')} ({note.get('endpoint')}): {note['terms']}"
                    for note in (_decode(line).generator or {}).values()
                    if isinstance(note, dict) and note.get("terms")
                }
    return sorted(statements)


def parse_provenance(line: bytes) -> Provenance:
    """Return a line of a file of provenance.

    Raises:
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
    """
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ArtifactInvalid(
            Code.CORPUS_SHARD_CHANGED,
            f"A line of a source's *{SOURCES_SUFFIX} is not provenance.",
            remedy=f"Rename other files whose names end in {SOURCES_SUFFIX}, or run the stage again that wrote this one.",
        ) from None


_decode = msgspec.json.Decoder(Provenance).decode
