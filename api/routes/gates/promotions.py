"""POST /v1/promotions:evaluate: whether a candidate may replace an incumbent. Nothing is moved or stored."""

from __future__ import annotations

from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from api.web.auth import TRAINER
from api.web.tenant_rates import GRADER_LIMIT
from api.web.tenant_view import TenantView, TenantViewDep
from shared.contract.values import Name
from shared.gates.cycle_gates import PromotionResult, judge_cycles
from shared.gates.evidence import MAX_CYCLES, MAX_EVENTS, PromotionCycle

router = APIRouter(tags=["promotions"], dependencies=[*TRAINER, GRADER_LIMIT])

RUNS_AT_ONCE = CapacityLimiter(2)
"""Concurrent evaluations: one computes intervals for up to ten seconds, in steps of milliseconds; more would delay
other requests."""


class EvaluatePromotion(BaseModel):
    """Cycles of scorecards, each with the conditions that it compares."""

    model_config = ConfigDict(extra="forbid")
    alias: Name | None = Field(
        None,
        description="The alias to promote to: the incumbent of one cycle must be the adapter that it points to now.",
    )
    cycles: Annotated[list[PromotionCycle], Field(min_length=1, max_length=MAX_CYCLES)]

    @field_validator("cycles", mode="before")
    @classmethod
    def _are_not_too_many_events(cls, cycles: object) -> object:
        # Checked before any file is read: reading and comparing files delays other requests, because they share the
        # interpreter.
        events = (
            [cycle.get("events") for cycle in cycles if isinstance(cycle, dict)] if isinstance(cycles, list) else []
        )
        if (count := sum(len(cycle_events) for cycle_events in events if isinstance(cycle_events, list))) > MAX_EVENTS:
            raise PydanticCustomError(
                "too_many_events",
                "the cycles have {count} events together; at most {most} are accepted: send only those of the two conditions",
                {"count": count, "most": MAX_EVENTS},
            )
        return cycles


@router.post("/v1/promotions:evaluate")
async def evaluate(body: EvaluatePromotion, view: TenantViewDep) -> PromotionResult:
    """Judge a promotion as the gate `cycles` of a policy does, by two or more distinct cycles: `eligible`,
    `not_eligible`, or `insufficient_evidence` with the missing evidence.

    In each cycle the candidate has to gain more than .05 in task success, with an interval above 0, and must not lose
    in any other KPI of the groups syntax, semantic and runtime repair.
    """
    return await to_thread.run_sync(lambda: _judge(body, view), limiter=RUNS_AT_ONCE)


def _judge(body: EvaluatePromotion, view: TenantView) -> PromotionResult:
    missing = _not_at_alias(body, view) if body.alias else []
    return judge_cycles(body.cycles, missing=missing)


def _not_at_alias(body: EvaluatePromotion, view: TenantView) -> list[str]:
    """Return the reasons why the cycles do not apply to an alias. Raises NotFound (``ALIAS_NOT_FOUND``)."""
    assert body.alias
    targets = {target.adapter for target in view.aliases.get(body.alias).targets}
    incumbents = {
        condition.adapter_revision
        for cycle in body.cycles
        if (condition := cycle.spec.condition(cycle.incumbent)) is not None
    }
    if targets & incumbents:
        return []
    return [f"no cycle's incumbent has the adapter_revision that {body.alias} points to: {', '.join(sorted(targets))}"]
