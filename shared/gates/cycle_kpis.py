"""KPIs of two conditions on the same tasks: their values, the difference with its interval, and the verdict on it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from shared.scorecard.records import ScorecardEvent
from shared.scorecard.spec import ScorecardValue
from shared.statistics.exact import items_needed, smallest_visible
from shared.statistics.paired import CONFIDENCE, PADDING
from shared.statistics.resampling import SEED, bca_interval

RESAMPLES = 999
MIN_GAIN = 0.05
"""Gain that the candidate's task success must exceed."""


class Group(StrEnum):
    """Groups of KPIs, each of which a promotion needs."""

    SYNTAX = "syntax"
    SEMANTIC = "semantic"
    RUNTIME_REPAIR = "runtime_repair"


@dataclass(frozen=True, slots=True)
class Kpi:
    """A KPI of an event.

    Attributes:
        value: value of one event; None where it has none.
        is_rate: whether it lies between 0 and 1 and higher is better; otherwise lower is better.
        is_median: whether conditions are compared by their medians.
        must_gain: whether the candidate must be better; otherwise it must not be worse.
    """

    group: Group
    value: Callable[[ScorecardEvent], float | None]
    is_rate: bool = True
    is_median: bool = False
    must_gain: bool = False


KPIS: dict[str, Kpi] = {
    "compile_pass_at_1": Kpi(Group.SYNTAX, lambda event: event.compile_pass_1),
    "compile_pass_at_n": Kpi(Group.SYNTAX, lambda event: event.compile_pass_n),
    "canonical_pass": Kpi(Group.SYNTAX, lambda event: event.canonical_pass),
    "voxelized_strictness": Kpi(Group.SYNTAX, lambda event: event.voxelized_strictness),
    "task_success": Kpi(Group.SEMANTIC, lambda event: event.task_success, must_gain=True),
    "semantic_task_success": Kpi(Group.SEMANTIC, lambda event: event.semantic_task_success),
    "repair_stall_rate": Kpi(Group.RUNTIME_REPAIR, lambda event: event.repair_stalled, is_rate=False),
    "repair_depth_mean": Kpi(Group.RUNTIME_REPAIR, lambda event: event.repair_depth, is_rate=False),
    "time_to_first_valid_p50_ms": Kpi(
        Group.RUNTIME_REPAIR, lambda event: event.time_to_first_valid_ms, is_rate=False, is_median=True
    ),
}  # fmt: skip


class KpiDelta(ScorecardValue):
    """A KPI of both conditions, over the tasks that have a value under both."""

    kpi: str
    group: Group
    items: int = Field(description="Tasks that have a value under both conditions.")
    candidate: float
    incumbent: float
    delta: float = Field(description="Candidate minus incumbent.")
    interval: tuple[float, float] = Field(
        description="Confidence interval of the delta; each end holds with 95 % confidence."
    )
    required: str
    holds: bool = Field(description="True: the delta meets its requirement.")
    smallest_visible: float | None = Field(description="Smallest difference of a rate that this many tasks can detect.")
    items_needed: int | None = Field(
        description="Number of tasks that would be enough to show the required gain; null unless the cycle has too few."
    )

    @property
    def open_question(self) -> str | None:
        """The reason why the tasks leave the KPI undecided although the delta is as required."""
        if not (self.holds and self.items_needed):
            return None
        return (
            f"{self.items} tasks are too few to show a gain of {self.delta:.3f}, whose interval reaches down to "
            f"{self.interval[0]:.3f}; about {self.items_needed} would"
        )


def compare_kpis(candidate: Mapping[str, ScorecardEvent], incumbent: Mapping[str, ScorecardEvent]) -> list[KpiDelta]:
    """Compare every KPI with values under both conditions. Events are by task."""
    deltas = []
    for name, kpi in KPIS.items():
        values = [(kpi.value(candidate[task]), kpi.value(incumbent[task])) for task in sorted(candidate)]
        pairs = [(float(new), float(old)) for new, old in values if new is not None and old is not None]
        if pairs:
            deltas.append(_compare(name, kpi, pairs))
    return deltas


def _compare(name: str, kpi: Kpi, pairs: Sequence[tuple[float, float]]) -> KpiDelta:
    average = statistics.median if kpi.is_median else statistics.fmean
    new, old = average([new for new, _ in pairs]), average([old for _, old in pairs])
    delta, visible, needed = new - old, None, None
    if kpi.is_median:
        interval = _median_interval(pairs)
    else:
        differences = [new - old for new, old in pairs]
        is_share = kpi.is_rate or name == "repair_stall_rate"
        # As in every comparison of rates: a few equal answers must not give an interval of no width.
        padded = [*differences, *PADDING] if is_share else differences
        interval = bca_interval(padded, CONFIDENCE, RESAMPLES)
        spread = math.fsum(difference**2 for difference in padded) / len(padded)
        visible = smallest_visible(len(pairs), spread, 1 - CONFIDENCE) if is_share else None
        if kpi.must_gain and delta > MIN_GAIN and interval[0] <= 0:
            needed = max(items_needed(delta, spread, 1 - CONFIDENCE), len(pairs) + 1)
    return KpiDelta(
        kpi=name,
        group=kpi.group,
        items=len(pairs),
        candidate=new,
        incumbent=old,
        delta=delta,
        interval=interval,
        required=f"> {MIN_GAIN:g}" if kpi.must_gain else ">= 0" if kpi.is_rate else "<= 0",
        holds=delta > MIN_GAIN + 1e-12 if kpi.must_gain else delta >= -1e-12 if kpi.is_rate else delta <= 1e-12,
        smallest_visible=visible,
        items_needed=needed,
    )


def _median_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the difference of two medians, with whole pairs drawn."""
    generator = random.Random(SEED)
    differences = []
    for _ in range(RESAMPLES):
        drawn = generator.choices(pairs, k=len(pairs))
        differences.append(statistics.median([new for new, _ in drawn]) - statistics.median([old for _, old in drawn]))
    differences.sort()
    return differences[int((1 - CONFIDENCE) * RESAMPLES)], differences[int(CONFIDENCE * RESAMPLES)]
