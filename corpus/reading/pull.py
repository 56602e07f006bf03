"""Pulls a table: the rows that are new or changed since the last pull, each redacted before it is written.

    time of the source ─► snapshot ─► pages in the order (watermark, key) ─► row template ─► secrets, personal data ─► shards ─► state

Rows are read up to an upper end: the current time minus the lag, but not beyond the start of the oldest running
transaction, because a row may be committed later than its own timestamp. The next pull begins ``lag`` before the last
row and skips versions that it already has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from corpus.claims import claimed
from corpus.filters.placeholder_key import PlaceholderKey
from corpus.filters.row_filters import PersonalDataFilter, SecretFilter
from corpus.filters.secrets import texts_with_secrets
from corpus.keys import stage_key, stage_mark
from corpus.provenance import Provenance, read_provenance, record_id
from corpus.reading.addresses import SourceAddress
from corpus.reading.database import SourceDatabase
from corpus.reading.pull_spec import PullSpec
from corpus.reading.pull_state import (
    STATE_NAME,
    Position,
    PullState,
    check_state,
    read_state,
    version_of,
    write_state,
)
from corpus.reading.row_template import MissingValue, RowTemplate
from corpus.reading.values import Watermark
from corpus.reading.versions import LeftOutVersions, read_left_out
from corpus.reading.window import PullWindow, key_not_unique
from corpus.shards import MAX_SHARD_BYTES, StageWriter, read_index, sources_path
from corpus.verdicts import VerdictCode
from shared.datasets.file_parts import seldom_collecting
from shared.datasets.row_validation import decode_line
from shared.datasets.rows import RowError
from shared.errors import Code, InvalidRequest
from shared.host import disk_errors

STAGE = "pull"
VERSION = 1
SNAPSHOT_SECONDS = 900.0
"""Longest duration of a transaction: a longer one would keep the server from vacuuming old row versions."""
NULL_VALUE = "NULL_VALUE"


@dataclass
class PullReport:
    """Outcome of a pull.

    Attributes:
        rows: number of rows that this pull added; ``total`` is the number of rows in the folder.
        seen: number of rows read again because of the lag that had been pulled before.
        dropped: number of rows left out, by reason.
        redactions: number of replaced values, by kind.
        notes: notes for the caller.
    """

    rows: int = 0
    total: int = 0
    seen: int = 0
    snapshots: int = 0
    seconds: float = 0
    dropped: Counter[str] = field(default_factory=Counter)
    redactions: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def pull(
    spec: PullSpec,
    address: SourceAddress,
    folder: Path,
    *,
    redaction_key: PlaceholderKey | None = None,
    rules_folder: Path = Path(),
    snapshot_seconds: float = SNAPSHOT_SECONDS,
    shard_bytes: int = MAX_SHARD_BYTES,
    restart: bool = False,
) -> PullReport:
    """Add the rows that are new since the last pull to a folder; without a watermark, pull all rows again.

    Args:
        redaction_key: key of the placeholders; None generates a random one.
        rules_folder: folder that paths of redaction rules are relative to.
        restart: whether a folder whose query or redaction has changed is pulled again as a whole; if not, it is
            refused.
        snapshot_seconds: time after which the pull continues in a new transaction.

    Raises:
        InvalidRequest: ``CORPUS_KEY_NOT_UNIQUE``, ``CORPUS_COLUMN_UNSUPPORTED``, ``CORPUS_SOURCE_EMPTY``.
        Conflict: ``CORPUS_BUSY``.
        Unavailable: ``STORAGE_FULL``: what is written stays, and the next pull continues.
    """
    personal_data = PersonalDataFilter(spec.redact, redaction_key.value if redaction_key else None, rules_folder)
    query = spec.digest(personal_data.redactors.digests)
    # Before the state is read, which another pull would change.
    with claimed(folder, is_folder=True):
        state = read_state(folder)
        if (
            state
            and restart
            and state.query_sha256 != query
            and (state.source, state.place) == (spec.source, address.place)
        ):
            state = None
        if state:
            check_state(state, spec.source, address.place, query, folder)
            if state.complete and not spec.watermark:
                state = None  # all of it again
        state = state or PullState(source=spec.source, place=address.place, query_sha256=query)
        report = _Pull(spec, address, folder, state, personal_data, shard_bytes).run(snapshot_seconds)
    if report.redactions and redaction_key and redaction_key.note:
        report.notes.append(redaction_key.note)
    return report


class _Pull:
    """One pull, with the state that it changes."""

    def __init__(
        self,
        spec: PullSpec,
        address: SourceAddress,
        folder: Path,
        state: PullState,
        personal_data: PersonalDataFilter,
        shard_bytes: int,
    ) -> None:
        self.spec, self.folder, self.state = spec, folder, state
        self.database = SourceDatabase(address)
        self.report = PullReport()
        rules = personal_data.redactors.digests
        self.stage_key = stage_key(STAGE, VERSION, spec.model_dump(exclude={"limit"}), rules)
        self._shard_bytes = shard_bytes
        self._secrets = SecretFilter()
        self._personal_data = personal_data
        self._writer: StageWriter | None = None
        self._written: Position | None = None
        self._watermark: Watermark | None = None
        self._left_out = LeftOutVersions(folder, state.left_out)
        self._noted: set[bytes] = set()
        self._stages = [stage_mark(STAGE, self.stage_key)]
        if not self.database.is_tested:
            self.report.notes.append(
                f"{address.url.get_backend_name()} is untested; only PostgreSQL and SQLite are tested."
            )

    def run(self, snapshot_seconds: float) -> PullReport:
        """Read snapshot after snapshot until one was read to its end."""
        start = time.monotonic()
        self.state.complete, self.state.snapshots = False, 0
        after: Sequence[Any] | None = None
        with seldom_collecting(), ExitStack() as stack:
            # Once: otherwise the pull of a table that grows faster than it is read would never end.
            now = self.database.time()
            while True:
                self.state.snapshots += 1
                with self.database.snapshot() as snapshot:
                    window = PullWindow(self.spec, snapshot, now, self.state.last, after)
                    self._note(window)
                    self._watermark = window.watermark or self._watermark
                    if not window.is_empty:
                        after = self._read(window, time.monotonic() + snapshot_seconds, stack)
                if window.is_empty or after is None:
                    break
            self._close(stack)
        self.state.complete = True
        self._save(self._writer)
        self.report.total = self.state.rows
        self.report.snapshots, self.report.seconds = self.state.snapshots, time.monotonic() - start
        return self.report

    def _read(self, window: PullWindow, deadline: float, stack: ExitStack) -> Sequence[Any] | None:
        """Read a window. Returns the last row's values in the order columns if time ran out before the end."""
        template = RowTemplate(self.spec.row, window.columns)
        seen = self._seen(window)
        last: Sequence[Any] | None = None
        for page in window.pages():
            self._check_keys(window, page, last)
            self._write(self._rows(window, template, page, seen), stack)
            last = window.order(page[-1])
            if time.monotonic() > deadline:
                return last
        return None

    def _seen(self, window: PullWindow) -> set[bytes]:
        """Return earlier versions that the window may contain again; record those that were left out."""
        seen: set[bytes] = set()
        if window.watermark is None:
            return seen
        self._noted |= {
            version_of({"key": key, "watermark": watermark})
            for key, watermark, _ in read_left_out(self.folder)
            if window.low is None or window.watermark.moment(watermark) >= window.low
        }
        for shard, newest in zip(self.state.shards, self.state.newest, strict=True):
            if window.low is None or window.watermark.moment(newest) < window.low:
                continue
            seen |= {
                version_of(provenance.locator)
                for provenance in read_provenance(sources_path(self.folder / shard.name))
                if window.watermark.moment(provenance.locator["watermark"]) >= window.low
            }
        return seen

    def _check_keys(self, window: PullWindow, page: Sequence[Any], last: Sequence[Any] | None) -> None:
        for row in page:
            order = window.order(row)
            if order == last:
                raise key_not_unique(self.spec.key)
            last = order
            if None in order:
                raise InvalidRequest(
                    Code.CORPUS_KEY_NOT_UNIQUE,
                    f"A column of the key ({', '.join(self.spec.key)}) is null.",
                    remedy=(
                        "Name columns that are never null, such as the primary key, or leave such rows out in the "
                        "query."
                    ),
                    param="pull.key",
                )
        self._refuse_private_keys(window, page)

    def _refuse_private_keys(self, window: PullWindow, page: Sequence[Any]) -> None:
        """Refuse keys that are personal data or secrets, because state and provenance store keys unredacted."""
        texts = [value for row in page for value in window.key(row) if isinstance(value, str)]
        what = "secrets" if texts_with_secrets(texts) else ""
        if not what and texts and self._personal_data.redactors.redact(texts).counts:
            what = "personal data"
        if what:
            raise InvalidRequest(
                Code.CORPUS_COLUMN_UNSUPPORTED,
                f"The key ({', '.join(self.spec.key)}) contains {what}, which would be stored in the state and the "
                "provenance.",
                remedy=(
                    "Name another unique key, such as a number or a UUID, or a digest of this one: `md5(email) AS key`."
                ),
                param="pull.key",
            )

    def _rows(
        self, window: PullWindow, template: RowTemplate, page: Sequence[Any], seen: set[bytes]
    ) -> Iterator[tuple[dict[str, Any], Provenance]]:
        """Yield the rows of a page that pass all filters, with their provenance."""
        rows, locators = [], []
        for values in page:
            locator = window.locator(values)
            if seen and version_of(locator) in seen:
                self.report.seen += 1
                continue
            try:
                rows.append(template.fill(values) | {"origin": "database"})
            except MissingValue:
                self._leave_out(NULL_VALUE, locator)
                continue
            locators.append(locator)
        kept = []
        for verdict, locator in zip(self._secrets.judge(rows), locators, strict=True):
            if verdict.row is None:
                self._leave_out(VerdictCode.SECRET, locator)
            else:
                kept.append((verdict.row, locator))
        verdicts = self._personal_data.judge([row for row, _ in kept])
        for verdict, (_, locator) in zip(verdicts, kept, strict=True):
            assert verdict.row is not None
            if verdict.redactions:
                self.report.redactions.update(verdict.redactions)
            yield (
                verdict.row,
                Provenance(
                    id="",
                    source=f"sql:{self.database.address.name}",
                    locator=locator,
                    license=self.spec.license,
                    stages=self._stages,
                    redactions=verdict.redactions,
                ),
            )

    def _write(self, rows: Iterator[tuple[dict[str, Any], Provenance]], stack: ExitStack) -> None:
        for row, provenance in rows:
            try:
                provenance.id = record_id(decode_line(msgspec.json.encode(row)))
            except RowError as error:
                self._leave_out(error.code, provenance.locator)
                continue
            writer = self._writer or self._open(stack)
            finished = len(writer.finished)
            writer.write_line(msgspec.json.encode({"id": provenance.id, **row}), msgspec.json.encode(provenance))
            if len(writer.finished) > finished:
                # This row is in the next shard, and the state ends before it.
                self._save(writer)
            self._written = Position(provenance.locator["key"], provenance.locator.get("watermark"))
            self.report.rows += 1

    def _leave_out(self, reason: str, locator: dict[str, Any]) -> None:
        """Count a version that is not written, and note it, because it replaces the earlier versions of its key."""
        self.report.dropped[str(reason)] += 1
        # A pull without a watermark reads all rows again, so it has no earlier version.
        if self.spec.watermark and (version := version_of(locator)) not in self._noted:
            self._noted.add(version)
            rows = self._writer.rows if self._writer else self.state.rows
            self._left_out.add(locator["key"], locator["watermark"], rows)

    def _open(self, stack: ExitStack) -> StageWriter:
        if not self.state.shards:
            # Otherwise, after a kill, the state of the earlier rows would name shards that these replace.
            with disk_errors():
                (self.folder / STATE_NAME).unlink(missing_ok=True)
        self._writer = StageWriter(
            self.folder, stage=STAGE, key=self.stage_key, kept=self.state.shards, max_bytes=self._shard_bytes
        )
        return stack.enter_context(self._writer)

    def _save(self, writer: StageWriter | None) -> None:
        """Write the state: all complete shards; the last of them ends with the row written last."""
        written = self._written
        if writer:
            if written and len(writer.finished) > len(self.state.shards):
                self.state.newest.append(written.watermark)
                if self._is_newer(written):
                    self.state.last = written
            self.state.shards = list(writer.finished)
            self.state.rows = sum(shard.rows for shard in self.state.shards)
        self.state.left_out = self._left_out.flush()
        write_state(self.folder, self.state)

    def _is_newer(self, written: Position) -> bool:
        last = self.state.last
        if last is None or self._watermark is None:
            return True
        return self._watermark.moment(written.watermark) >= self._watermark.moment(last.watermark)

    def _close(self, stack: ExitStack) -> None:
        if self._writer is None and read_index(self.folder) is None:
            if not self.state.shards:
                raise self._empty()
            self._open(stack)  # for the index: the previous pull ended between its last shard and its index
        if self._writer:
            self._writer.report |= {
                "dropped": dict(self.report.dropped), "redactions": dict(self.report.redactions), "seen": self.report.seen
            }  # fmt: skip

    def _empty(self) -> InvalidRequest:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.report.dropped.items())
        young = f" {self.report.notes[-1]}" if self.report.notes and "newer" in self.report.notes[-1] else ""
        return InvalidRequest(
            Code.CORPUS_SOURCE_EMPTY,
            f"The query gave no training rows{f': {reasons}' if reasons else ''}.{young}",
            remedy=(
                "Run the SELECT in a client of the database; with a watermark, `--lag 0s` also takes the newest rows."
            ),
            param="pull.sql",
        )

    def _note(self, window: PullWindow) -> None:
        for note in window.notes:
            if note not in self.report.notes:
                self.report.notes.append(note)
