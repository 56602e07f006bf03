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
        relation: relation of `value` to `bound` with which the check passes. `loss_at_most`: `value` is the mean
            difference, new minus old, and must be shown to be above -bound. `wins_above`: `value` is the win rate
            against the incumbent, whose interval must lie above the bound.
        interval: interval of `value`: for a rate Wilson's, two-sided at `confidence`; for a difference or a win rate
            BCa, each end at `confidence`.
        smallest_visible: the smallest loss that this many items detect with a power of .8.
        noise_floor: mean absolute difference between the incumbent's first and second scores; None: it answered once.
        items_needed: number of items that would decide; None unless these are too few.
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
        passed: true if the gate passed or is not applicable.
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
        valid_until: time from which it can no longer move an alias; its age counts from its oldest run, not from the
            judgement.
        incumbent: the adapter that the alias pointed to; None: it pointed to no adapter.
        compared_with: the incumbent's id, or the base's name; None: no items were compared.
        sandbox: the weakest level that code criteria ran at; None: the run had no code criteria.
        attempt: number of this receipt among those of the adapter against this incumbent under the policy, if each
            samples new answers; 0: answers are not sampled again, so a repetition gives the same result.
        alpha: error level of all blocking comparisons together and, from the second attempt on, of each rate. It falls
            with each attempt, so that all attempts together stay within .05.
        unrepeatable: for each run of the policy, the code criteria that gave a different score the second time, with
            the number of these answers.
        overall_passed: true if every gate with `block` passed or is not applicable.
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
