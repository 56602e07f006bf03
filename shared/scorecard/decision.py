"""Recommend, from summaries, to continue with adapters or to invest in a custom model. The original's rule."""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import Code, InvalidRequest
from shared.scorecard.records import ConditionSummary, ScorecardDecision, ScorecardSummary

PLATEAU = 0.05
MIN_STRICTNESS, MIN_COMPILE_AT_1, MIN_SEMANTIC = 0.95, 0.9, 0.85
MIN_ANTI_STUB, MAX_TRIVIAL, MAX_PLACEHOLDER, MIN_RICHNESS = 0.92, 0.08, 0.08, 0.2


def decide(summaries: Sequence[ScorecardSummary]) -> ScorecardDecision:
    """Decide over all conditions of all summaries. The decision is about where to invest, and promotes nothing.

    Raises:
        InvalidRequest: ``SCORECARD_INVALID``: no condition was given.
    """
    conditions = [condition for summary in summaries for condition in summary.conditions]
    if not conditions:
        raise InvalidRequest(
            Code.SCORECARD_INVALID, "The summary does not contain a condition.", remedy="Give a summary."
        )
    best = max(conditions, key=lambda condition: condition.task_success)
    plateau = _is_plateau(conditions)
    unmet = {
        "strictness": best.voxelized_strictness < MIN_STRICTNESS or best.compile_pass_at_1 < MIN_COMPILE_AT_1,
        "semantic": best.semantic_task_success < MIN_SEMANTIC,
        "anti_stub": _has_stubs(best),
    }
    names = [name for name, is_unmet in unmet.items() if is_unmet]
    invest = plateau and bool(names)
    return ScorecardDecision(
        recommended="invest_in_custom_model_rnd" if invest else "continue_qlora_first",
        reason=f"The best condition is {best.id}, with a task success of {best.task_success:.3f}; "
        f"{'adapters have reached a plateau' if plateau else 'adapters still differ, or fewer than two were compared'}; "
        f"unmet: {', '.join(names) or 'nothing'}.",
        qlora_plateau=plateau,
        strictness_unmet=unmet["strictness"],
        semantic_unmet=unmet["semantic"],
        anti_stub_unmet=unmet["anti_stub"],
    )


def _is_plateau(conditions: Sequence[ConditionSummary]) -> bool:
    successes = [condition.task_success for condition in conditions if condition.backend == "qlora"]
    return len(successes) >= 2 and max(successes) - min(successes) < PLATEAU


def _has_stubs(best: ConditionSummary) -> bool:
    return (
        best.anti_stub_pass_rate < MIN_ANTI_STUB
        or best.trivial_placeholder_rate > MAX_TRIVIAL
        or best.placeholder_event_rate > MAX_PLACEHOLDER
        or best.construct_richness_mean < MIN_RICHNESS
    )
