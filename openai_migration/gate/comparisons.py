"""The comparison of a gate: the scores of both models and the allowed loss; gates with few prompts are only shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count

import msgspec

from openai_migration.receipts import MigrationGate
from shared.statistics.exact import wilson_interval
from shared.statistics.paired import CONFIDENCE, Status, compare

DEFAULT_MARGIN = 0.03
SIMILARITY = "similarity"
SAME_CALLS = "same_calls"
OF_QUALITY = ("eval:", "label:", SIMILARITY, SAME_CALLS)
"""Prefixes of the gates that measure whether an answer is right; the others measure whether it has the right form."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Losses that a gate allows.

    Attributes:
        margin: allowed loss of a mean score.
        by_gate: the same for gates whose names match a pattern such as ``eval:*``; the first match applies.
        min_prompts: a gate with fewer prompts is shown, and does not count for the verdict.
    """

    margin: float = DEFAULT_MARGIN
    by_gate: Mapping[str, float] = field(default_factory=dict)
    min_prompts: int = 0

    def of(self, gate: str) -> float:
        """Return the allowed loss of a gate's mean score."""
        return next((margin for pattern, margin in self.by_gate.items() if fnmatchcase(gate, pattern)), self.margin)

    def shown(self, gate: MigrationGate) -> MigrationGate:
        """Return a gate, made non-blocking if it has too few prompts."""
        if not gate.block or gate.items + gate.unscored >= self.min_prompts:
            return gate
        why = f"shown only: fewer prompts than --min-prompts {self.min_prompts}"
        return msgspec.structs.replace(gate, block=False, reason="; ".join(filter(None, (why, gate.reason))))


def compared(
    name: str, old: list[float], new: list[float], margins: Margins, *, block: bool = True, reason: str = ""
) -> MigrationGate:
    """Return a gate on paired scores from 0 to 1; it passes if the mean loss is shown to be at most the margin."""
    margin = margins.of(name)
    outcome = compare(old, new, margin, CONFIDENCE)
    return MigrationGate(
        name=name,
        status=outcome.status,
        block=block,
        old=outcome.old,
        new=outcome.new,
        value=outcome.difference,
        interval=outcome.interval,
        bound=-margin,
        items=outcome.items,
        items_needed=outcome.items_needed,
        smallest_visible=outcome.smallest_visible,
        p_value=outcome.p_value,
        reason="; ".join(filter(None, (reason, outcome.reason))),
        decisive=name.startswith(OF_QUALITY)
        and compare(old, [0.0] * len(old), margin, CONFIDENCE).status is Status.FAILED,
    )


def rate(name: str, like: int, items: int, least: float, margins: Margins, *, block: bool) -> MigrationGate:
    """Return a gate on the share of answers that resemble the recorded ones, with Wilson's interval.

    Args:
        least: the required share; a larger margin lowers it.
    """
    bound = min(least, 1 - margins.of(name))
    value, sides = like / items, 2 * CONFIDENCE - 1
    interval = wilson_interval(like, items, sides)
    status, needed, reason = Status.PASSED, None, ""
    if interval[0] < bound:
        status, reason = Status.FAILED, f"{like} of {items} are similar to the recorded answers"
        if value >= bound:
            status, reason = Status.MISSING_EVIDENCE, f"{items} prompts are too few to prove a share of {bound:g}"
            if like == items:
                needed = next(n for n in count(items) if wilson_interval(n, n, sides)[0] >= bound)
    return MigrationGate(
        name, status, block, None, value, value, interval, bound, items, items_needed=needed, reason=reason
    )


def with_unscored(gate: MigrationGate, unscored: int, most: float) -> MigrationGate:
    """Return a gate some of whose prompts no judge scored. The scored ones may be easier, so the gate does not pass if
    many are unscored.

    Args:
        most: largest share of unscored prompts.
    """
    share = unscored / (unscored + gate.items)
    status = Status.MISSING_EVIDENCE if gate.passed and share > most else gate.status
    reason = "; ".join(
        filter(None, (f"the judge returned no score for {unscored} of {unscored + gate.items}", gate.reason))
    )
    return msgspec.structs.replace(gate, unscored=unscored, status=status, reason=reason)
