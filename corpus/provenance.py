"""Identity and origin of a row. The same row has the same id in every corpus; its origin is in a file next to the rows."""

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
"""Suffix of a provenance file: ``train.sources.jsonl`` next to ``train.jsonl``."""
LABELS = frozenset(Labels.__struct_fields__)
_TURN_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")


class Provenance(msgspec.Struct, kw_only=True):
    """Origin of a row, and the steps that changed it.

    Attributes:
        id: the row's id.
        source: kind and name: ``sql:telemetry``, ``file:faq.jsonl``, ``code:shared``, ``generate:support``.
        locator: place in the source: ``{file, line}``, ``{key, watermark}``, ``{repo, commit, path, lines}`` or
            ``{recipe, index, sample}``.
        content_sha256: SHA-256 of the source's own content (line, tuple, unit) before anything was changed; None if
            personal data was replaced.
        license: an SPDX expression, or ``proprietary-own``.
        stages: marks of the stages that the row passed (``keys.py:stage_mark``), in order.
        parents: ids of the rows or units that it was made from.
        generator: ``{endpoint, model, revision, request_sha256, method}`` for a row that a model wrote.
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
    """Remove digests of the content before redaction: with them, a reader of the redacted row could confirm guesses of
    the personal data.

    Args:
        redacted: whether the row went through redactors.
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
    """Return the id of a row.

    It depends only on the turns and tools, not on labels or on the format of the row. A row that is not a chat, such as
    a pair of answers, is identified by all of its keys except labels.
    """
    try:
        return record_id(decode_line(msgspec.json.encode(row)))
    except RowError:
        return content_id({key: value for key, value in row.items() if key not in LABELS})


def line_with_id(row_id: str, line: bytes) -> bytes:
    """Return an encoded row, which has no id, with its id as the first key."""
    return b'{"id":"%s",%s' % (row_id.encode(), line[1:])


def record_id(record: Record) -> str:
    """Return the id of a parsed row."""
    if not record.tools and (plain := _plain_turns(record)) is not None:
        # The same bytes as canonical JSON, in a third of its time: there are only strings.
        return sha256(_encode_plain(_PlainChat(plain))).hexdigest()[:ID_DIGITS]
    turns = [
        {name: value for name in _TURN_FIELDS if (value := getattr(turn, name)) is not None}
        for turn in record.conversation()
    ]
    return content_id({"messages": turns, "tools": record.tools or []})


class _PlainTurn(msgspec.Struct, gc=False):
    """A turn that has nothing else, its fields in the order of canonical JSON."""

    content: str
    role: str


class _PlainChat(msgspec.Struct, gc=False):
    messages: list[_PlainTurn]
    tools: tuple[()] = ()


_encode_plain = msgspec.json.Encoder().encode


def _plain_turns(record: Record) -> list[_PlainTurn] | None:
    """Return the turns of a row if they have nothing but texts."""
    if not (record.messages or record.turns or record.system):
        prompt, answer = record.pair()
        if prompt is not None and answer is not None:
            return [_PlainTurn(prompt, "user"), _PlainTurn(answer, "assistant")]
    plain = []
    for turn in record.conversation():
        more = turn.tool_calls or turn.reasoning_content or turn.name is not None or turn.tool_call_id is not None
        if more or turn.content is None:
            return None
        plain.append(_PlainTurn(turn.content, turn.role))
    return plain


def read_provenance(path: Path) -> Iterator[Provenance]:
    """Yield the lines of a provenance file."""
    with path.open("rb") as file:
        yield from map(_decode, file)


def stated_terms(rows: Path) -> list[str]:
    """Return the remote models that wrote rows of a file, each with the statement about its terms; none without
    provenance.
    """
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
    """Parse a line of a provenance file.

    Raises:
        ArtifactInvalid: ``CORPUS_SHARD_CHANGED``.
    """
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ArtifactInvalid(
            Code.CORPUS_SHARD_CHANGED,
            f"A line of a source's *{SOURCES_SUFFIX} is not provenance.",
            remedy=f"Rename other files whose names end in {SOURCES_SUFFIX}, or rerun the stage that wrote this one.",
        ) from None


_decode = msgspec.json.Decoder(Provenance).decode
