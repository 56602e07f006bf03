"""Summarise a condition's events as one row of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from shared.scorecard.records import ConditionSummary, ScorecardEvent
from shared.scorecard.spec import ScorecardCondition


def summarize(condition: ScorecardCondition, events: Sequence[ScorecardEvent]) -> ConditionSummary:
    """Return the numbers of a condition.

    Raises:
        ValueError: it has no events.
    """
    if not events:
        raise ValueError(f"the condition {condition.id} has no events")
    depths = [event.repair_depth for event in events if event.repair_depth is not None]
    waits = [event.time_to_first_valid_ms for event in events if event.time_to_first_valid_ms is not None]
    latencies = [event.latency_ms for event in events]
    return ConditionSummary(
        id=condition.id,
        label=condition.label,
        backend=condition.backend,
        model_id=condition.model_id,
        adapter_revision=condition.adapter_revision,
        total_tasks=len(events),
        compile_pass_at_1=_mean(event.compile_pass_1 for event in events),
        compile_pass_at_n=_mean(event.compile_pass_n for event in events),
        canonical_pass=_mean(event.canonical_pass for event in events),
        voxelized_strictness=_mean(event.voxelized_strictness for event in events),
        task_success=_mean(event.task_success for event in events),
        semantic_task_success=_mean(event.semantic_task_success for event in events),
        repair_depth_mean=_mean(depths) if depths else None,
        repair_stall_rate=_mean(event.repair_stalled for event in events),
        time_to_first_valid_p50_ms=statistics.median(waits) if waits else None,
        latency_p50_ms=statistics.median(latencies),
        # The nearest rank: a latency that occurred.
        latency_p95_ms=sorted(latencies)[math.ceil(0.95 * len(latencies)) - 1],
        tokens_in_total=sum(event.tokens_in for event in events),
        tokens_out_total=sum(event.tokens_out for event in events),
        placeholder_hits_total=sum(event.placeholder_marker_hits for event in events),
        placeholder_event_rate=_mean(event.placeholder_marker_hits > 0 for event in events),
        trivial_placeholder_rate=_mean(event.trivial_placeholder_output for event in events),
        construct_richness_mean=_mean(event.construct_richness_score for event in events),
        anti_stub_pass_rate=_mean(event.anti_stub_pass for event in events),
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
