"""A receipt: the outcome of judging an adapter by a policy. Its JSON Schema is published at ``/v1/receipts/schema``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.gate_outcome import GateStatus
from shared.gates.evidence import AdapterRef, ServedBaseRef


class Recorded(BaseModel):
    """A part of a receipt: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class GateCheck(Recorded):
    """One number against one bound.

    Attributes:
        measure: what was measured, such as `pass@1` or `loss of the mean score`.
        relation: how `value` has to lie to `bound`. `loss_at_most`: `value` is the mean difference, new less old, and has to be shown to
            be above -bound. `wins_above`: `value` is the win rate against the incumbent, whose interval has to lie above the bound.
        interval: interval of `value`: Wilson's of a rate, two-sided at `confidence`; of a difference or a win rate BCa, each end at `confidence`.
        smallest_visible: the smallest loss that this many items detect with a power of .8.
        noise_floor: how far the incumbent differs from itself, by the mean of the absolute differences; None: it was asked once.
        items_needed: how many items would decide; only where these are too few.
    """

    measure: str
    status: GateStatus
    message: str
    relation: Literal["at_least", "at_most", "loss_at_most", "wins_above"]
    value: float | None = None
    bound: float
    n: int | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    p_value: float | None = None
    smallest_visible: float | None = None
    noise_floor: float | None = None
    items_needed: int | None = None


class GateRow(Recorded):
    """Outcome of one gate: the numbers are those of the check that decided it.

    Attributes:
        passed: whether the gate does not stand in the way: passed, or not applicable.
        evidence: digest of the evidence; None without evidence.
    """

    name: str
    status: GateStatus
    passed: bool
    block: bool
    message: str
    value: float | None = None
    bound: float | None = None
    n: int | None = None
    interval: tuple[float, float] | None = None
    smallest_visible: float | None = None
    items_needed: int | None = None
    evidence: str | None = None
    checks: tuple[GateCheck, ...] = ()


class PolicyRef(Recorded):
    """The policy, by the name it was stored under and the digest of its requirements."""

    name: str
    digest: str


class Receipt(Recorded):
    """Result of judging an adapter by a policy.

    Attributes:
        timestamp: when it was judged.
        valid_until: when it can move an alias no longer: how old it is counts from its oldest run, not from the judgement.
        incumbent: the adapter that the alias pointed to; None: to none.
        compared_with: the incumbent's id, or the base's name; None: no items were compared.
        sandbox: the weakest level that code criteria ran at; None: the run had no code criteria.
        attempt: number of this receipt among those of the adapter against this incumbent under the policy, if each samples new answers; 0: answers
            are not sampled again, so that a repetition gives the same result.
        alpha: what all blocking comparisons together may err by, and from the second attempt each rate: smaller with each attempt, so that
            all attempts together stay within .05.
        unrepeatable: criteria of code that gave another score the second time, and for how many answers, by the policy's run.
        overall_passed: no gate with `block` stands in the way.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    schema_: Literal["mens_gate_receipt_v1"] = Field("mens_gate_receipt_v1", alias="schema")
    timestamp: datetime
    valid_until: datetime
    adapter: AdapterRef
    incumbent: AdapterRef | None
    compared_with: str | None
    policy: PolicyRef
    serving_base: ServedBaseRef | None
    sandbox: str | None
    attempt: int = 0
    alpha: float = 0.05
    unrepeatable: dict[str, dict[str, int]] = {}
    overall_passed: bool
    gates: tuple[GateRow, ...] = Field(min_length=1)
