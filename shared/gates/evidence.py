"""Evidence on an adapter: the report of its training, and the scores of its runs next to the incumbent's.

All of it is typed, and comes from the records of jobs and evaluations in the database. Nothing is read from files in a
folder, so a gate cannot disappear together with a file.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.sandbox.levels import Level
from shared.scorecard.records import ScorecardEvent
from shared.scorecard.spec import ConditionId, ScorecardCondition, ScorecardSpec, ScorecardValue

MIN_CYCLES, MAX_CYCLES = 2, 16
MAX_EVENTS = 16_000
"""Largest number of events in all cycles together: four complete cycles of the largest packs, or more of smaller ones.
"""


class Evidenced(BaseModel):
    """A part of the evidence: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingReport(Evidenced):
    """The database's record of the run that made an adapter."""

    job_id: str
    device: str = Field(description="`cpu`, or the name of the GPU.")
    tokens: int = Field(ge=0, description="Over all rows, after truncation.")
    supervised_tokens: int = Field(ge=0)
    truncation_fraction: float | None = Field(
        None, ge=0, le=1, description="Truncated tokens per token before truncation."
    )
    tokens_per_second: float | None = Field(None, ge=0)
    voice_fraction: float | None = Field(
        None, ge=0, le=1, description="Share of spoken rows; None: not every row has this information."
    )


class ScoredAnswer(Evidenced):
    """Scores of one answer, by criterion; ``error`` explains missing scores."""

    scores: dict[str, float] = {}
    passed: bool = False
    error: str | None = None


class AnswerPair(Evidenced):
    """Two models' answers to one item, drawn with the same seeds.

    ``incumbent`` is empty without a comparison, ``repeated`` if the incumbent did not answer twice.
    """

    item_index: int
    context: str | None = Field(None, description="`item.context`, by which `per_context` groups items.")
    candidate: tuple[ScoredAnswer, ...] = Field(min_length=1)
    incumbent: tuple[ScoredAnswer, ...] = ()
    repeated: tuple[ScoredAnswer, ...] = ()


class RunScores(Evidenced):
    """A run of an eval: each model's scores, item by item."""

    eval_id: str
    run_id: str
    measured_at: datetime
    candidate: str = Field(description="Id of the adapter that answered.")
    incumbent: str | None = Field(description="Id of the adapter, or name of the base, that was the incumbent.")
    pairs: tuple[AnswerPair, ...]
    sandbox: Level | None = Field(
        None, description="Weakest sandbox level of code criteria; None: the run has no code criteria."
    )
    unrepeatable: dict[str, int] = Field(
        {}, description="Code criteria whose second run gave a different score, each with the number of such answers."
    )


class ShadowCounts(Evidenced):
    """Outcomes of copied requests: how often only one of the two answers passed the eval's criteria."""

    wins: int = Field(ge=0)
    losses: int = Field(ge=0)
    ties: int = Field(ge=0)
    errored: int = Field(ge=0)
    last_error: str | None = None
    last_at: datetime


class PromotionCycle(ScorecardValue):
    """One scorecard, and which of its conditions are compared."""

    spec: ScorecardSpec
    candidate: ConditionId = Field(description="The candidate condition.")
    incumbent: ConditionId = Field(description="The incumbent condition.")
    events: Annotated[list[ScorecardEvent], Field(min_length=1, max_length=MAX_EVENTS)] = Field(
        description="Lines of events.all.jsonl. Those of other conditions are not used."
    )

    @property
    def conditions(self) -> tuple[ScorecardCondition | None, ScorecardCondition | None]:
        """Conditions of the candidate and the incumbent; each is None if the spec does not have it."""
        return self.spec.condition(self.candidate), self.spec.condition(self.incumbent)


class ForgetEvidence(Evidenced):
    """Runs of the gate `forget`, by name: the general questions, and the runs by which the parent was judged.

    Attributes:
        compared_with: id of the parent or, if no parent can answer, name of the base.
        missing: why a run is absent, by its name.
    """

    compared_with: str
    runs: dict[str, RunScores] = {}
    missing: dict[str, str] = {}


class AdapterRef(Evidenced):
    """An adapter, by its id and by the digest of its bytes."""

    id: str
    digest: str


class ServedBaseRef(Evidenced):
    """The base that answered, as the replicas serve it: the tuned one, or its twin."""

    name: str
    digest: str


class Evidence(Evidenced):
    """The evidence on which a policy judges an adapter.

    Attributes:
        compared_with: id of the incumbent; for a new alias, id of the parent or name of the base; None: no items were compared.
        runs: runs by the policy's name for them; failed runs are absent.
        missing: why a run is absent, by its name.
        shadows: outcomes of copied requests for the alias, by the eval that judged them.
        cycles: scorecards of the candidate and the incumbent.
        cycles_from: time at which the cycles' file was uploaded, because scorecards do not contain a time.
        forget: answers of the candidate and of the model from which its training started; None: no gate needs them.
        attempt: number of receipts under this policy of this adapter against this incumbent, this one included, if a
            run draws new answers each time; else 0: the same answers are judged again.
    """

    adapter: AdapterRef
    incumbent: AdapterRef | None
    compared_with: str | None
    serving_base: ServedBaseRef | None
    judged_at: datetime
    training: TrainingReport | None = None
    runs: dict[str, RunScores] = {}
    missing: dict[str, str] = {}
    shadows: dict[str, ShadowCounts] = {}
    cycles: tuple[PromotionCycle, ...] = ()
    cycles_from: datetime | None = None
    forget: ForgetEvidence | None = None
    attempt: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _runs_are_of_these_models(self) -> Evidence:
        for name, run in self.all_runs.items():
            before = self.compared_with if name in self.runs or not self.forget else self.forget.compared_with
            if run.candidate != self.adapter.id:
                raise ValueError(f"the run {name} evaluates {run.candidate}, not {self.adapter.id}")
            if run.incumbent not in (None, before):
                raise ValueError(f"the run {name} compares with {run.incumbent}, not with {before}")
        return self

    @property
    def all_runs(self) -> dict[str, RunScores]:
        """The runs of the policy, and those of the gate `forget`, whose names have spaces."""
        return self.runs | (self.forget.runs if self.forget else {})
