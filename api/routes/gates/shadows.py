"""/v1/aliases/{name}/shadow: comparison of the adapters that get copies of an alias's requests with its target."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from api.web.params import WholeList
from api.web.tenant_view import TenantViewDep
from shared.contract.values import Name
from shared.database.gates.shadow_comparisons import ShadowComparison
from shared.statistics.sequential import anytime_interval, log_e_value

router = APIRouter(prefix="/v1/aliases", tags=["aliases"])


class JudgedShadow(ShadowComparison):
    """A comparison, and the result of its counts so far."""

    verdict: Literal["worse", "undecided"] = Field(
        description="`worse`: the e-value has reached 20, and requests are no longer copied."
    )
    log_e: float = Field(
        description="Natural logarithm of the e-value against the hypothesis that the candidate is not worse."
    )
    difference: float | None = Field(description="Wins minus losses, per request.")
    interval: tuple[float, float] = Field(
        description="Confidence interval of the difference; each end holds with 95 % confidence, at all looks together."
    )


@router.get("/{name}/shadow")
def retrieve_shadow(name: Name, view: TenantViewDep) -> WholeList[JudgedShadow]:
    """Comparisons of the shadows that the alias has had, by the tenant's own requests; the last one first."""
    view.aliases.get(name)
    return WholeList(data=[_judged(comparison) for comparison in view.shadow_comparisons.of_alias(name)])


def _judged(comparison: ShadowComparison) -> JudgedShadow:
    seen = comparison.wins + comparison.losses + comparison.ties
    return JudgedShadow(
        **comparison.model_dump(),
        verdict="worse" if comparison.worse_at else "undecided",
        log_e=log_e_value(comparison.losses, comparison.wins),
        difference=(comparison.wins - comparison.losses) / seen if seen else None,
        interval=anytime_interval(comparison.losses, comparison.wins, comparison.ties),
    )
