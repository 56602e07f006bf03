"""Findings on a file of preferences as a whole: labels that contradict each other, answers preferred for their length,
and the share of good answers among rated ones.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from shared.contract.choices import MethodType
from shared.contract.plan import MAX_RATED_WEIGHT
from shared.contract.sections import PreferenceSection
from shared.counted_nouns import counted
from shared.datasets.duplicates import ExactIndex, Lines
from shared.datasets.preferences.rated import RatedRecord
from shared.datasets.preferences.rows import MAX_COMPARED_PAIRS, PairRecord, essence, fingerprint
from shared.datasets.report_types import PreferenceReport, RatedReport
from shared.datasets.rows import Message
from shared.errors import Code, DatasetInvalid

LONGER_SHARE = 0.8
CONTRADICTING_WARNING, CONTRADICTING_LIMIT = 0.01, 0.25
ENOUGH_TO_REFUSE = 4
LEAST_RATIO, MOST_RATIO, ROUNDING = 1.0, 4 / 3, 1e-6


@dataclass(slots=True)
class PreferenceFindings:
    """Counts of the pairs of a file; add every valid one that passes the filter.

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
        prompt = fingerprint([record.prompt_turns, record.tools])
        preferred, other = fingerprint(essence(chosen)), fingerprint(essence(rejected))
        self.pairs += 1
        self.longer += _size(chosen) > _size(rejected)
        self.contradicting += hash((prompt, other, preferred)) in self._seen
        if len(self._seen) < MAX_COMPARED_PAIRS:
            self._seen.add(hash((prompt, preferred, other)))
        self.prompts.add([prompt], [line])

    def report(self) -> PreferenceReport:
        """Return the counts."""
        return PreferenceReport(pairs=self.pairs, longer_chosen=self.longer, contradicting=self.contradicting)


@dataclass(slots=True)
class RatedFindings:
    """Counts of the rated answers of a file; add every valid one that passes the filter.

    Attributes:
        prompts: as in :class:`PreferenceFindings`.
    """

    good: int = 0
    bad: int = 0
    prompts: ExactIndex = field(default_factory=ExactIndex)
    _bad_lines: array[int] = field(default_factory=lambda: array("I"))

    def add(self, record: RatedRecord, line: int) -> None:
        """Count an answer."""
        self.good += record.is_good
        self.bad += not record.is_good
        if not record.is_good:
            self._bad_lines.append(line)
        self.prompts.add([fingerprint([record.prompt_turns, record.tools])], [line])

    def report(self) -> RatedReport:
        """Return the counts."""
        return RatedReport(good=self.good, bad=self.bad)

    def report_on(self, lines: Lines) -> RatedReport:
        """Return the counts of some lines of the file, each of them an added one."""
        bad = int(np.isin(lines, np.frombuffer(self._bad_lines, np.uint32)).sum())
        return RatedReport(good=len(lines) - bad, bad=bad)


def findings_of(method: MethodType) -> PreferenceFindings | RatedFindings | None:
    """Return the object that finds faults of a method's whole file; None for rows of answers."""
    if method is MethodType.KTO:
        return RatedFindings()
    return PreferenceFindings() if method is MethodType.DPO else None


def rated_warnings(report: RatedReport, section: PreferenceSection) -> list[str]:
    """Return a note if the weights (set in the contract, or computed and at their bound) make one kind of answers count
    far more than the other.

    The range is TRL's, from Ethayarajh et al. 2024 (https://arxiv.org/abs/2402.01306).
    """
    desirable, undesirable = section.desirable_weight, section.undesirable_weight
    if desirable is None or undesirable is None or not (report.good and report.bad):
        return []
    ratio = desirable * report.good / (undesirable * report.bad)
    if LEAST_RATIO / (1 + ROUNDING) <= ratio <= MOST_RATIO * (1 + ROUNDING):
        return []
    share = f"The answers that are rated good weigh {ratio:.2g} times as much as those rated bad; 1 to 1.33 is advised."
    if MAX_RATED_WEIGHT in (desirable, undesirable):
        rarer = "bad" if report.bad < report.good else "good"
        return [f"{share} No weight is over {MAX_RATED_WEIGHT:g}, so add answers that are rated {rarer}."]
    names = "preference.desirable_weight or preference.undesirable_weight"
    return [f"{share} Leave {names} out, and both kinds weigh the same."]


def refuse_one_label(report: RatedReport | None, param: str, held_out: int | None = None) -> None:
    """Refuse answers that are all rated good, or all rated bad.

    Args:
        report: report on the answers that pass the filter.
        held_out: number of answers held out for validation, if the report covers only the others.

    Raises:
        DatasetInvalid: ``KTO_ONE_LABEL``.
    """
    if report is None or (report.good and report.bad) or not (report.good or report.bad):
        return
    kind, other = ("good", "false") if report.good else ("bad", "true")
    which = "of the file that pass the filter" if held_out is None else f"to train on ({held_out} more are held out)"
    remedy = f"Add rows whose label is {other} and that pass data.min_rating and data.context_filter"
    remedy += "; or set data.validation_split_ratio to 0, or give a validation file" if held_out else ""
    raise DatasetInvalid(
        Code.KTO_ONE_LABEL,
        f"All {report.good or report.bad} answers {which} are rated {kind}, so the model has nothing to distinguish.",
        remedy=remedy + ("; or train on these answers with method.type supervised." if report.good else "."),
        param=param,
        details={"good": report.good, "bad": report.bad, "held_out": held_out or 0},
    )


def warnings(report: PreferenceReport, kind: str = "") -> list[str]:
    """Return notes on the pairs of a file; ``kind`` is ``"validation "`` for that file."""
    notes = []
    if report.contradicting:
        share = f"{report.contradicting} of {counted(report.pairs, f'{kind}pair')}"
        notes.append(f"{share} prefer the opposite of an earlier pair with the same prompt and answers.")
    if report.longer_chosen > LONGER_SHARE * report.pairs:
        notes.append(
            f"In {report.longer_chosen} of {counted(report.pairs, f'{kind}pair')} the preferred answer is the longer "
            "one, so the model may learn to"
            " prefer length. preference.loss sigmoid_norm compares means per token instead."
        )
    return notes


def refuse_contradictions(report: PreferenceReport | None, param: str) -> None:
    """Refuse a file in which too many pairs contradict an earlier one.

    Raises:
        DatasetInvalid: ``PREFERENCES_CONTRADICT``.
    """
    if report is None or report.pairs < ENOUGH_TO_REFUSE or report.contradicting <= CONTRADICTING_LIMIT * report.pairs:
        return
    raise DatasetInvalid(
        Code.PREFERENCES_CONTRADICT,
        f"{report.contradicting} of the file's {report.pairs} pairs that pass the filter prefer the opposite of an "
        "earlier pair with"
        " the same prompt and answers.",
        remedy="If two pairs contradict each other, keep the one that most raters chose.",
        param=param,
        details={"pairs": report.pairs, "contradicting": report.contradicting},
    )


def _size(turn: Message) -> int:
    return len(turn.content or "") + len(turn.reasoning_content or "")
