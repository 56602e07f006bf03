"""Stage ``filter``: the rows of a source without secrets and personal data, each with its provenance."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from corpus.claims import claimed
from corpus.filters.placeholder_key import find_key
from corpus.filters.row_filters import PersonalDataFilter, SecretFilter
from corpus.keys import stage_mark
from corpus.provenance import Provenance, forget_digests, parse_provenance, row_id
from corpus.shards import MAX_SHARD_BYTES, ShardIndex, StageWriter, read_lines, require_same_row
from corpus.sources import SourceFiles, find_files
from corpus.verdicts import CorpusFilter
from shared.datasets.row_validation import BYTE_ORDER_MARK
from shared.datasets.rows import RowCode

STAGE = "filter"
VERSION = 2
"""Increase this when the same rows would give different bytes."""
ROWS_AT_ONCE = 2_000


@dataclass(frozen=True)
class Filtering:
    """The stage for one source.

    Args:
        files: the source's files.
        label: the source's name in provenance and in the stage's name.
        secrets: whether rows that hold a secret are left out.
        redact: redactors of personal data, in order.
        folder: folder that paths of redaction rules are relative to.
        makes_key: whether a missing placeholder key is created; if not, the stage can be decided but not run.

    Raises:
        InvalidRequest: ``CORPUS_REDACTOR_UNKNOWN``.
    """

    files: SourceFiles
    label: str
    secrets: bool
    redact: tuple[str, ...]
    folder: Path
    makes_key: bool = True
    version: int = VERSION
    _personal_data: PersonalDataFilter = field(init=False, repr=False, compare=False)
    _key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = find_key(self.redact, makes=self.makes_key)
        redactor = PersonalDataFilter(self.redact, key.value if key else None, self.folder)
        object.__setattr__(self, "_personal_data", redactor)
        # Another key gives other placeholders, so it is a part of the stage's key, as a digest, from which it cannot be
        # derived.
        object.__setattr__(self, "_key", hmac.new(key.value, b"stage", hashlib.sha256).hexdigest() if key else "")

    @property
    def name(self) -> str:
        return f"{STAGE} {self.label}"

    def with_content_digests(self) -> Filtering:
        """Return the stage with the current digests of its files."""
        return replace(self, files=find_files(self.files.path) or self.files)

    def parameters(self) -> dict[str, Any]:
        """Return everything except the rows that affects the output."""
        filters = {corpus_filter.name: corpus_filter.version for corpus_filter in self._filters()}
        redactors = {"names": self.redact, "rules": self._personal_data.redactors.digests, "key": self._key}
        return {"filters": filters, "redactors": redactors, "label": self.label}

    def inputs(self) -> dict[str, str]:
        """Return the digest of the source."""
        return {"rows": self.files.fingerprint}

    def run(self, target: Path, key: str, max_bytes: int = MAX_SHARD_BYTES) -> ShardIndex:
        """Write the rows that pass the filters. Lines that are not JSON objects are left out.

        Raises:
            Conflict: ``CORPUS_BUSY``.
        """
        dropped, redactions = Counter[str](), Counter[str]()
        mark = stage_mark(STAGE, key)
        with (
            claimed(target, is_folder=True),
            StageWriter(target, stage=STAGE, key=key, max_bytes=max_bytes) as writer,
        ):
            rows = self._rows(dropped)
            while batch := list(islice(rows, ROWS_AT_ONCE)):
                for row, provenance, counts in self._judged(batch, dropped):
                    provenance.id = row_id(row)
                    provenance.stages = [*provenance.stages, mark]
                    provenance.redactions = dict(Counter(provenance.redactions) + Counter(counts))
                    forget_digests(provenance, redacted=bool(self.redact), changed=bool(provenance.redactions))
                    redactions.update(counts)
                    writer.write_line(msgspec.json.encode(row), msgspec.json.encode(provenance))
            writer.report = {"dropped": dict(sorted(dropped.items())), "redactions": dict(sorted(redactions.items()))}
        assert writer.index
        return writer.index

    def _filters(self) -> list[CorpusFilter]:
        filters: list[CorpusFilter] = [SecretFilter()] if self.secrets else []
        return [*filters, self._personal_data] if self.redact else filters

    def _judged(
        self, batch: list[tuple[dict[str, Any], Provenance]], dropped: Counter[str]
    ) -> Iterator[tuple[dict[str, Any], Provenance, dict[str, int]]]:
        kept = [(row, provenance, dict[str, int]()) for row, provenance in batch]
        for corpus_filter in self._filters():
            verdicts = corpus_filter.judge([row for row, _, _ in kept])
            dropped.update(str(verdict.code) for verdict in verdicts if verdict.row is None)
            kept = [
                (verdict.row, provenance, counts | verdict.redactions)
                for verdict, (_, provenance, counts) in zip(verdicts, kept, strict=True)
                if verdict.row is not None
            ]
        yield from kept

    def _rows(self, dropped: Counter[str]) -> Iterator[tuple[dict[str, Any], Provenance]]:
        for path in self.files.files:
            for number, (read, origin) in enumerate(read_lines([path]), 1):
                line = read.removeprefix(BYTE_ORDER_MARK) if number == 1 else read
                if line.isspace():
                    continue
                try:
                    row = msgspec.json.decode(line, type=dict[str, Any])
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    dropped[RowCode.ROW_NOT_JSON] += 1
                    continue
                provenance = self._provenance(path, number, line, origin)
                if origin is not None:
                    require_same_row(provenance.id, row_id(row), path, number)
                yield row, provenance

    def _provenance(self, path: Path, number: int, line: bytes, origin: bytes | None) -> Provenance:
        if origin is not None:
            return parse_provenance(origin)
        return Provenance(
            id="",
            source=f"file:{self.label}",
            locator={"file": path.name, "line": number},
            content_sha256=hashlib.sha256(line.rstrip(b"\r\n")).hexdigest(),
        )
