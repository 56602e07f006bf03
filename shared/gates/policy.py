"""A policy: the gates that an adapter has to pass, with the original's names and defaults, and further gates on evals.

A gate that is in the file is configured, even with nothing but its name: ``supervised_ratio: {}``. Measurements on
models are in ``runs``: each sends the same items with the same seeds to candidate and incumbent, once, and several
gates may read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from shared.scorecard.spec import Backend

GateName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Share = Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]
Margin = Annotated[StrictFloat, Field(gt=0, le=1, allow_inf_nan=False)]
LEAST_ITEMS = 20
"""Smallest number of items with which a rate counts as evidence: at 20, Wilson's interval of a rate of .9 begins at
.70.
"""


def without_later(fields: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Leave out later fields with default values, so that the digest of a policy stored before these fields stays the
    same.
    """
    return {name: value for name, value in fields.items() if name not in later or value != later[name]}


class Closed(BaseModel):
    """A part of a policy: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunTemplate(Closed):
    """A run of an eval, with the candidate as its model and the incumbent for comparison."""

    eval: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(description="Id of the eval.")
    file: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        description="Id of the file with the run's rows; its content never changes."
    )
    messages: Annotated[str, StringConstraints(min_length=1)] | Annotated[list[dict[str, Any]], Field(min_length=1)] = (
        Field("item.messages", description="Where an item has its messages, or messages with {{ item.path }} in them.")
    )
    temperature: StrictFloat = Field(0.0, ge=0, le=2)
    seed: StrictInt = Field(1337, ge=0, le=2**31 - 1)
    samples: StrictInt = Field(1, ge=1, le=64, description="Answers to each item.")
    noise_floor: StrictBool = Field(
        False, description="Request answers from the incumbent twice, so that the receipt reports its noise floor."
    )
    max_completion_tokens: StrictInt = Field(128, ge=1)
    max_age_days: Positive | None = Field(
        None, description="Oldest evidence of this run that counts, in days; if left out, the policy's limit applies."
    )

    @model_serializer(mode="wrap")
    def _later_fields_only_where_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_later(dump(self), {"noise_floor": False})

    @model_validator(mode="after")
    def _answers_can_differ(self) -> RunTemplate:
        if self.samples > 1 and self.temperature == 0:
            raise PydanticCustomError(
                "samples_same", "several samples need a temperature above 0: at 0 they are all one answer"
            )
        return self


class Gate(Closed):
    """Fields of every gate."""

    block: StrictBool = Field(
        True, description="True: an adapter that fails is not moved to the alias. False: a failure is a warning."
    )
    applies: StrictBool = Field(True, description="false: the gate's row says `not_applicable`.")


class SupervisedRatio(Gate):
    """A sufficient share of the trained tokens carries loss."""

    min_pct: StrictFloat = Field(10.0, ge=0, le=100, description="Minimum share of the supervised tokens, in percent.")


class Truncation(Gate):
    """Only a small share of the training data was truncated."""

    max_fraction: Share = 0.50


class Throughput(Gate):
    """Training was not unexpectedly slow."""

    block: StrictBool = False
    min_tokens_per_sec: Annotated[dict[GateName, Positive], Field(min_length=1)] = Field(
        {"cpu": 1.0, "rtx_4080_super": 10.0}, description="By device; `cpu` is for every device that is not named."
    )


class ModalMix(Gate):
    """The training data is not mostly voice."""

    block: StrictBool = False
    max_voice_fraction: Share = 0.30


class ShadowGate(Gate):
    """The candidate's answers to copies of real requests are not worse than those that the callers got."""

    eval: Annotated[str, StringConstraints(min_length=1, max_length=40)] = Field(
        description="Id of the eval that judges the copies, as the alias's shadow names it."
    )
    max_loss: Annotated[StrictFloat, Field(gt=0, lt=1, allow_inf_nan=False)] = Field(
        0.05, description="Largest allowed net loss: losses minus wins, per request."
    )


class CyclesGate(Gate):
    """Gate on distinct cycles of scorecards: the candidate must gain overall, and must not lose in any KPI of syntax,
    semantics and repair.
    """

    min_cycles: StrictInt = Field(2, ge=2, le=16, description="Distinct cycles: their tasks or training seeds differ.")
    candidate_backend: Backend | None = Field(
        None, description="Backend of the candidate in every cycle, such as `burn`; if left out, any backend."
    )
    incumbent_backend: Backend | None = Field(
        None, description="Backend of the incumbent in every cycle, such as `qlora`; if left out, any backend."
    )


class RunGate(Gate):
    """A gate that reads a run."""

    run: GateName | None = Field(None, description="One of the policy's runs; without a run, evidence is missing.")
    min_items: StrictInt = Field(LEAST_ITEMS, ge=1, description="With fewer items, a rate does not count as evidence.")


class EvalLocal(RunGate):
    """Answers parse, and use enough of the language's constructs."""

    min_parse_rate: Share = 0.60
    min_coverage_pct: Share = 0.35
    parse_criterion: str = "parses"
    coverage_criterion: str = "construct_coverage"


class PassAtK(RunGate):
    """Enough tasks are solved, and not fewer than the incumbent solves."""

    k: StrictInt | None = Field(
        None, ge=1, description="Number of answers that may be tried; if left out, the run's samples."
    )
    min_pass_at_1: Share = 0.25
    min_pass_at_k: Share = 0.50
    max_regression_drop: Margin = 0.03
    criterion: str | None = Field(
        None, description="Criterion that counts as solved; if left out, all criteria must pass."
    )


class CollateralDamage(RunGate):
    """The model keeps its earlier skills: checked on a run of tasks that it was not trained for."""

    max_degradation: Margin = Field(0.05, description="Largest relative loss of the mean score.")
    criterion: str | None = None


class ForgetGate(Gate):
    """The model keeps what its parent could do, or its base if it has no parent: it answers the 200 general questions, and the
    rows on which the parent itself was judged.
    """

    max_degradation: Margin = Field(0.05, description="Largest relative loss of the mean score of each run.")


class ContextGate(RunGate):
    """Like `eval_local`, but only on the items of one context: those whose ``item.context`` is the gate's name."""

    min_parse_rate: Share = 0.60
    min_scope_compliance_rate: Share = 0.0
    parse_criterion: str = "parses"
    scope_criterion: str = "scope_compliance"


class McpToolSchema(RunGate):
    """Tool calls conform to their schemas. The original never enabled this gate by default."""

    block: StrictBool = False
    applies: StrictBool = False
    min: Share = 0.0
    criterion: str = "tool_schema"


class AntiStub(RunGate):
    """Answers do the task; they are not placeholders."""

    min_pass_rate: Share = 0.92
    max_placeholder_rate: Share = 0.08
    max_trivial_rate: Share = 0.08
    min_richness: Share = 0.20
    honest_criterion: str = "anti_stub"
    placeholder_criterion: str = "placeholder"
    trivial_criterion: str = "trivial"
    richness_criterion: str = "construct_richness"


class ReviewRecurrence(RunGate):
    """Findings of reviews recur rarely, and less often than with the incumbent."""

    max_repeated_rate: Share = 0.30
    max_post_regression_rate: Share = 0.15
    min_delta: Margin = Field(
        0.01, description="Share of answers by which the candidate must repeat findings less often than the incumbent."
    )
    repeated_criterion: str = "repeated_finding"
    post_regression_criterion: str = "post_regression"


class EvalGate(RunGate):
    """A custom gate on an eval: a minimum score, a maximum loss against the incumbent, a minimum win rate, or several."""

    criterion: str | None = Field(None, description="Name of one criterion; if left out, all criteria must pass.")
    min_score: Share | None = None
    max_loss: Margin | None = Field(
        None, description="Non-inferiority: largest allowed loss of the mean against the incumbent."
    )
    min_win_rate: Annotated[StrictFloat, Field(ge=0, lt=1, allow_inf_nan=False)] | None = Field(
        None, description="Win rate against the incumbent (a tie counts as half) that the whole interval must exceed."
    )

    @model_serializer(mode="wrap")
    def _later_fields_only_where_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_later(dump(self), {"min_win_rate": None})

    @model_validator(mode="after")
    def _asks_something(self) -> EvalGate:
        if self.min_score is None and self.max_loss is None and self.min_win_rate is None:
            raise PydanticCustomError("asks_nothing", "it requires nothing: set min_score, max_loss or min_win_rate")
        return self


class Gates(Closed):
    """The gates of a policy. A missing one is not configured, and has no row."""

    supervised_ratio: SupervisedRatio | None = None
    truncation: Truncation | None = None
    throughput: Throughput | None = None
    eval_local: EvalLocal | None = None
    pass_at_k: PassAtK | None = None
    collateral_damage: CollateralDamage | None = None
    per_context: dict[GateName, ContextGate] = {}
    modal_mix: ModalMix | None = None
    mcp_tool_schema: McpToolSchema | None = None
    anti_stub: AntiStub | None = None
    review_recurrence: ReviewRecurrence | None = None
    evals: dict[GateName, EvalGate] = {}
    shadow: ShadowGate | None = None
    cycles: CyclesGate | None = None
    forget: ForgetGate | None = None

    @model_serializer(mode="wrap")
    def _later_fields_only_where_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_later(dump(self), {"shadow": None, "cycles": None, "forget": None})

    def configured(self) -> Iterator[tuple[str, Gate]]:
        """Yield every gate in the file, with the name of its row: `throughput`, `per_context.web`, `evals.quality`."""
        for field in type(self).model_fields:
            value = getattr(self, field)
            if isinstance(value, dict):
                yield from ((f"{field}.{name}", gate) for name, gate in value.items())
            elif value is not None:
                yield field, value


class GatePolicy(Closed):
    """A policy file. Missing fields have the original's values."""

    version: Literal["1"]
    max_age_days: Positive = Field(30.0, description="Oldest evidence that may move an alias, in days.")
    without_incumbent: Literal["base", "not_applicable"] = Field(
        "base",
        description="Incumbent for the first adapter of a new alias; base: its parent if it continues from a published adapter, else"
        " its base; not_applicable: no comparison.",
    )
    runs: dict[GateName, RunTemplate] = {}
    gates: Gates

    @property
    def runs_read(self) -> dict[str, RunTemplate]:
        """The runs that a gate reads."""
        read = {getattr(gate, "run", None) for _, gate in self.gates.configured() if gate.applies}
        return {name: template for name, template in self.runs.items() if name in read}

    @model_validator(mode="after")
    def _gates_are_there(self) -> GatePolicy:
        gates = dict(self.gates.configured())
        if not gates:
            raise PydanticCustomError("no_gate", "gates is empty: this policy requires nothing")
        for name, gate in gates.items():
            run = getattr(gate, "run", None)
            if run is not None and run not in self.runs:
                names = ", ".join(self.runs) or "none"
                raise PydanticCustomError(
                    "run_unknown",
                    "{run} is not one of the policy's runs ({known})",
                    {"gate": name, "run": repr(run), "known": names},
                )
        return self
