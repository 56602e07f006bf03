"""Filters for every row with text written by a model: secrets, personal data, contamination, duplicates."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corpus.filters.contamination import CONTAMINATED, EvalIndex
from corpus.filters.eval_items import EvalContent
from corpus.filters.redactors import Redactors
from corpus.filters.row_filters import PersonalDataFilter, SecretFilter
from corpus.filters.row_texts import texts_of
from corpus.mixing.mix_file import Dedup
from corpus.provenance import LABELS, Provenance, forget_digests
from corpus.verdicts import VerdictCode
from shared.datasets.duplicates import NearIndex, SketchedRows
from shared.datasets.fingerprints import fingerprints


@dataclass(slots=True)
class MadeRow:
    """A row and its provenance.

    Attributes:
        line: the row with its id, encoded; None if filters may still change it.
    """

    row: dict[str, Any]
    provenance: Provenance
    line: bytes | None = None


class OutputFilters:
    """The filters, with the fingerprints of the rows so far.

    Args:
        redactors: redactors of personal data.
        evals: evals whose items must not be in a row.
        rows: largest number of rows that will be filtered.
    """

    def __init__(self, redactors: Redactors, dedup: Dedup, evals: Sequence[EvalContent], rows: int) -> None:
        self._secrets, self._people = SecretFilter(), PersonalDataFilter(())
        self._people.redactors = redactors
        self._dedup = dedup
        self._evals = EvalIndex.of(evals) if evals else None
        self._digests: set[int] = set()
        self._near = NearIndex(rows) if dedup.near is not None else None
        self._compared = 0

    def judge(self, rows: Sequence[MadeRow]) -> list[MadeRow | VerdictCode]:
        """Return, for each row, the row to write or the reason why it is left out. The result does not depend on how
        rows are divided among calls.
        """
        verdicts: list[MadeRow | VerdictCode] = [*rows]
        for number, verdict in enumerate(self._secrets.judge([made.row for made in rows])):
            if verdict.row is None:
                verdicts[number] = VerdictCode.SECRET
        kept = [number for number, verdict in enumerate(verdicts) if isinstance(verdict, MadeRow)]
        for number, verdict in zip(kept, self._people.judge([rows[number].row for number in kept]), strict=True):
            assert verdict.row is not None
            rows[number].row = verdict.row
            provenance = rows[number].provenance
            _count(provenance, verdict.redactions)
            # Answers were redacted before they became part of the row.
            forget_digests(provenance, redacted=bool(self._people.redactors.names), changed=bool(provenance.redactions))
        self._leave_out_evals(rows, kept, verdicts)
        self._leave_out_duplicates(rows, verdicts)
        return verdicts

    def _leave_out_evals(
        self, rows: Sequence[MadeRow], kept: Sequence[int], verdicts: list[MadeRow | VerdictCode]
    ) -> None:
        if self._evals is None:
            return
        texts = [_texts(rows[number].row) for number in kept]
        for number, overlap in zip(
            kept, self._evals.overlaps([(row_texts, row_texts) for row_texts in texts]), strict=True
        ):
            if overlap and overlap.score >= CONTAMINATED:
                verdicts[number] = VerdictCode.CONTAMINATED

    def _leave_out_duplicates(self, rows: Sequence[MadeRow], verdicts: list[MadeRow | VerdictCode]) -> None:
        kept = [number for number, verdict in enumerate(verdicts) if isinstance(verdict, MadeRow)]
        texts = ["\n".join(_texts(rows[number].row)) for number in kept]
        digests, sketches = fingerprints(texts, near=self._near is not None)
        if self._dedup.exact:
            for number, digest in zip(kept, digests, strict=True):
                if digest in self._digests:
                    verdicts[number] = VerdictCode.DUPLICATE_EXACT
                self._digests.add(digest)
        if self._near is not None and kept:
            lines = array("I", range(self._compared, self._compared + len(kept)))
            pairs = self._near.find_and_add(SketchedRows(bytearray(sketches), array("Q", digests), lines))
            for second in pairs.where(pairs.similarity >= (self._dedup.near or 0)).second.tolist():
                number = kept[int(second) - self._compared]
                if isinstance(verdicts[number], MadeRow):
                    verdicts[number] = VerdictCode.DUPLICATE_NEAR
            self._compared += len(kept)


def _texts(row: dict[str, Any]) -> list[str]:
    """Return the texts of a row, without its labels."""
    return texts_of({name: value for name, value in row.items() if name not in LABELS})


def _count(provenance: Provenance, redactions: dict[str, int]) -> None:
    for kind, number in redactions.items():
        provenance.redactions = {**provenance.redactions, kind: provenance.redactions.get(kind, 0) + number}
