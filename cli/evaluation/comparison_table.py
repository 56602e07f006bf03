"""Comparisons of two models on the same items, as a table of the results and the smallest visible differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cli.output import counted
from shared.statistics.paired import CONFIDENCE, Comparison, Status
from shared.statistics.wins import WinRate

COLUMNS = ("items", "old", "new", "difference", "95 % each end", "visible", "verdict")
"""``visible``: the smallest difference that this many items show with a power of .8."""
VERDICTS = {Status.PASSED: "not worse", Status.FAILED: "worse", Status.MISSING_EVIDENCE: "too few items"}


def cells(found: Comparison) -> tuple[str, ...]:
    """Return a row for the table with :data:`COLUMNS`."""
    interval = f"{found.interval[0]:+.3f} … {found.interval[1]:+.3f}" if found.interval else ""
    return (
        str(found.items),
        _number(found.old),
        _number(found.new),
        "" if found.difference is None else f"{found.difference:+.3f}",
        interval,
        _number(found.smallest_visible),
        VERDICTS[found.status],
    )


def notes(
    named: Mapping[str, Comparison], margin: float, noise_floors: Mapping[str, float | None] | None = None
) -> list[str]:
    """Return sentences on what a reader may not conclude from a table; empty if every result is not worse.

    Args:
        named: comparisons by criterion.
        margin: margin of the comparisons.
        noise_floors: how far the old model differs from itself by each criterion, if it was run twice.
    """
    lines = []
    for name, found in named.items():
        floor = (noise_floors or {}).get(name)
        if floor is not None and found.difference is not None:
            lines.append(f"{name}: in two runs, old differs from itself by {floor:.3f}; {_beside_noise(found, floor)}")
    for name, found in named.items():
        if found.status is Status.PASSED:
            continue
        more = f"; about {counted(found.items_needed, 'item')} would decide" if found.items_needed else ""
        lines.append(f"{name}: {found.reason}{more}")
    if any(found.status is not Status.PASSED for found in named.values()):
        lines.append(f"`not worse` means that the interval lies above -{margin:g} (--margin).")
    return lines


def wins_line(name: str, found: WinRate) -> str:
    """Return a sentence on how often the new model's answer is the better one; empty without a pair."""
    if found.rate is None or found.interval is None:
        return ""
    counts = f"{found.wins} won, {found.ties} tied, {found.losses} lost"
    low, high = found.interval
    return f"{name}: win rate of new {found.rate:.3f} ({counts}; 95 % each end {low:.3f} … {high:.3f})"


def _beside_noise(found: Comparison, floor: float) -> str:
    """Describe a difference relative to noise: varying answers, which the floor measures, or the chance selection of
    items.
    """
    if abs(found.difference or 0) <= floor:
        return "the difference is noise"
    if found.p_value is not None and found.p_value > 1 - CONFIDENCE:
        return f"the difference is larger, but with {counted(found.items, 'item')} it may be chance (p = {found.p_value:.2g})"
    return "the difference is larger than noise"


def as_json(found: Comparison, wins: WinRate | None = None) -> dict[str, Any]:
    """Return a comparison for ``--json``."""
    counted_wins = {"win_rate": asdict(wins)} if wins else {}
    return asdict(found) | {"status": str(found.status)} | counted_wins


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
