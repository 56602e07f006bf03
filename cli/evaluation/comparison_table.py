"""Comparisons of two models on the same items, as a table of the results and the smallest visible differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from shared.counted_nouns import counted
from shared.statistics.paired import CONFIDENCE, Comparison, Status
from shared.statistics.wins import WinRate

COLUMNS = ("items", "old", "new", "difference", "95 % each end", "visible", "verdict")
"""``visible``: the smallest difference that this many items show with a power of .8."""
VERDICTS = {Status.PASSED: "not worse", Status.FAILED: "worse", Status.MISSING_EVIDENCE: "too few items"}


def cells(comparison: Comparison) -> tuple[str, ...]:
    """Return a row for the table with :data:`COLUMNS`."""
    interval = f"{comparison.interval[0]:+.3f} … {comparison.interval[1]:+.3f}" if comparison.interval else ""
    return (
        str(comparison.items),
        _number(comparison.old),
        _number(comparison.new),
        "" if comparison.difference is None else f"{comparison.difference:+.3f}",
        interval,
        _number(comparison.smallest_visible),
        VERDICTS[comparison.status],
    )


def notes(
    named: Mapping[str, Comparison], margin: float, noise_floors: Mapping[str, float | None] | None = None
) -> list[str]:
    """Return sentences that warn of wrong conclusions from a table; empty if every result is shown to be not worse.

    Args:
        named: comparisons by criterion.
        margin: margin of the comparisons.
        noise_floors: difference between two runs of the old model by each criterion, if it was run twice.
    """
    lines = []
    for name, comparison in named.items():
        floor = (noise_floors or {}).get(name)
        if floor is not None and comparison.difference is not None:
            lines.append(f"{name}: two runs of old differ by {floor:.3f}; {_compare_with_noise(comparison, floor)}")
    for name, comparison in named.items():
        if comparison.status is Status.PASSED:
            continue
        more = f"; about {counted(comparison.items_needed, 'item')} would decide" if comparison.items_needed else ""
        lines.append(f"{name}: {comparison.reason}{more}")
    if any(comparison.status is not Status.PASSED for comparison in named.values()):
        lines.append(f"`not worse` means that the interval lies above -{margin:g} (--margin).")
    return lines


def wins_line(name: str, outcome: WinRate) -> str:
    """Return a sentence on how often the new model's answer is the better one; empty without a pair."""
    if outcome.rate is None or outcome.interval is None:
        return ""
    counts = f"{outcome.wins} won, {outcome.ties} tied, {outcome.losses} lost"
    low, high = outcome.interval
    return f"{name}: win rate of new {outcome.rate:.3f} ({counts}; 95 % each end {low:.3f} … {high:.3f})"


def _compare_with_noise(comparison: Comparison, floor: float) -> str:
    """Describe a difference relative to noise: varying answers, which the floor measures, or the chance selection of
    items.
    """
    if abs(comparison.difference or 0) <= floor:
        return "the difference is noise"
    if comparison.p_value is not None and comparison.p_value > 1 - CONFIDENCE:
        return (
            f"the difference is larger, but with {counted(comparison.items, 'item')} it may be chance (p = "
            f"{comparison.p_value:.2g})"
        )
    return "the difference is larger than noise"


def as_json(comparison: Comparison, wins: WinRate | None = None) -> dict[str, Any]:
    """Return a comparison for ``--json``."""
    counted_wins = {"win_rate": asdict(wins)} if wins else {}
    return asdict(comparison) | {"status": str(comparison.status)} | counted_wins


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
