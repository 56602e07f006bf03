"""Findings on a file of preferences as a whole: labels that contradict each other, answers preferred for their length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared.datasets.duplicates import ExactIndex
from shared.datasets.preferences.rows import PairRecord, essence
from shared.datasets.report_types import PreferenceReport
from shared.datasets.rows import Message
from shared.errors import Code, DatasetInvalid

MAX_COMPARED_PAIRS = 1_000_000
"""Pairs that are compared with later ones; the fingerprints of more would not fit in bounded memory."""
LONGER_SHARE = 0.8
CONTRADICTING_WARNING, CONTRADICTING_LIMIT = 0.01, 0.25
ENOUGH_TO_REFUSE = 4


@dataclass(slots=True)
class PreferenceFindings:
    """Counts of the pairs of a file; add every valid one.

    Attributes:
        prompts: index of the pairs by prompt, to find held-out prompts that are trained on too.
    """

    pairs: int = 0
    longer: int = 0
    contradicting: int = 0
    prompts: ExactIndex = field(default_factory=ExactIndex)
    _seen: set[int] = field(default_factory=set)

    def add(self, record: PairRecord, line: int) -> None:
        """Count a pair, and compare it with the earlier ones."""
        chosen, rejected = (side.conversation()[-1] for side in (record, record.rejected))
        prompt = _fingerprint([record.prompt_turns, record.tools])
        one, other = _fingerprint(essence(chosen)), _fingerprint(essence(rejected))
        self.pairs += 1
        self.longer += _size(chosen) > _size(rejected)
        self.contradicting += hash((prompt, other, one)) in self._seen
        if len(self._seen) < MAX_COMPARED_PAIRS:
            self._seen.add(hash((prompt, one, other)))
        self.prompts.add([prompt], [line])

    def report(self) -> PreferenceReport:
        """Return the counts."""
        return PreferenceReport(pairs=self.pairs, longer_chosen=self.longer, contradicting=self.contradicting)


def warnings(report: PreferenceReport, kind: str = "") -> list[str]:
    """Return notes on the pairs of a file; ``kind`` is ``"validation "`` for that file."""
    found = []
    if report.contradicting:
        share = f"{report.contradicting} of {report.pairs} {kind}pairs"
        found.append(f"{share} prefer the opposite of an earlier pair with the same prompt and answers.")
    if report.longer_chosen > LONGER_SHARE * report.pairs:
        found.append(
            f"In {report.longer_chosen} of {report.pairs} {kind}pairs the preferred answer is the longer one, so the model may learn to"
            " prefer length. preference.loss sigmoid_norm compares means per token instead."
        )
    return found


def refuse_contradictions(report: PreferenceReport | None, param: str) -> None:
    """Refuse a file in which too many pairs contradict another.

    Raises:
        DatasetInvalid: ``PREFERENCES_CONTRADICT``.
    """
    if report is None or report.pairs < ENOUGH_TO_REFUSE or report.contradicting <= CONTRADICTING_LIMIT * report.pairs:
        return
    raise DatasetInvalid(
        Code.PREFERENCES_CONTRADICT,
        f"{report.contradicting} of the file's {report.pairs} pairs prefer the opposite of an earlier pair with the same prompt and"
        " answers.",
        remedy="Keep one of two pairs that contradict each other, as most raters decided.",
        param=param,
        details={"pairs": report.pairs, "contradicting": report.contradicting},
    )


def _fingerprint(value: Sequence[Any]) -> int:
    return int.from_bytes(hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest())


def _size(turn: Message) -> int:
    return len(turn.content or "") + len(turn.reasoning_content or "")
