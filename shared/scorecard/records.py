"""Records of a scorecard: an event per task and condition, a summary, a decision. The original's fields and names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shared.scorecard.spec import Backend, ConditionId, ScorecardSpec, ScorecardValue, TaskId

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ScorecardEvent(ScorecardValue):
    """A model's result on a task: after its last attempt, unless a field says otherwise."""

    condition_id: ConditionId
    backend: Backend
    task_id: TaskId
    attempts: int = Field(ge=1, le=9)
    compile_pass_1: bool = Field(description="The first attempt compiles.")
    compile_pass_n: bool = Field(description="The last attempt compiles.")
    repair_depth: Count | None = Field(description="Repairs until it compiled; null when it never did.")
    canonical_pass: bool = Field(
        description="The unmodified answer compiles, without a code fence or other content around it."
    )
    voxelized_strictness: Share = Field(description="Share of the answer's lines that are code.")
    task_success: bool = Field(description="It compiles and contains the expected strings.")
    semantic_task_success: bool = Field(description="It compiles and contains the semantically expected strings.")
    hir_error_count: Count = Field(description="Diagnostics of the validator.")
    latency_ms: Milliseconds = Field(description="Total of all attempts.")
    time_to_first_valid_ms: Milliseconds | None = Field(
        description="Time until an answer compiled; null if no answer compiled."
    )
    repair_stalled: bool = Field(description="Repair stopped because the same errors occurred again.")
    tokens_in: Count = Field(description="As the server counts them.")
    tokens_out: Count
    placeholder_marker_hits: Count
    trivial_placeholder_output: bool
    construct_richness_score: Share
    anti_stub_pass: bool

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ScorecardEvent:
        valid = self.attempts - 1 if self.compile_pass_n else None
        wrong = {
            "repair_depth": self.repair_depth != valid,
            "compile_pass_1": self.compile_pass_1 != (self.repair_depth == 0),
            "time_to_first_valid_ms": (self.time_to_first_valid_ms is None) == self.compile_pass_n,
            "repair_stalled": self.repair_stalled and (self.compile_pass_n or self.attempts < 2),
            "canonical_pass": self.canonical_pass and not self.compile_pass_n,
            "task_success": self.task_success and not self.compile_pass_n,
            "semantic_task_success": self.semantic_task_success and not self.compile_pass_n,
            "anti_stub_pass": self.anti_stub_pass and not self.compile_pass_n,
            "hir_error_count": (self.hir_error_count == 0) != self.compile_pass_n,
        }
        if contradicting := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise ValueError(f"these fields contradict others of the row: {', '.join(contradicting)}")
        return self


class ConditionSummary(ScorecardValue):
    """Means and sums of a condition's events."""

    id: str
    label: str
    backend: Backend
    model_id: str | None = None
    adapter_revision: str | None = None
    total_tasks: Count
    compile_pass_at_1: Share
    compile_pass_at_n: Share
    canonical_pass: Share
    voxelized_strictness: Share
    task_success: Share
    semantic_task_success: Share
    repair_depth_mean: float | None = Field(
        description="Mean over the tasks that compiled; null if no answer compiled."
    )
    repair_stall_rate: Share
    time_to_first_valid_p50_ms: Milliseconds | None
    latency_p50_ms: Milliseconds
    latency_p95_ms: Milliseconds
    tokens_in_total: Count
    tokens_out_total: Count
    placeholder_hits_total: Count
    placeholder_event_rate: Share
    trivial_placeholder_rate: Share
    construct_richness_mean: Share
    anti_stub_pass_rate: Share


class ScorecardSummary(ScorecardValue):
    """One scorecard: what was run, and every condition's numbers."""

    schema_id: Literal["vox_mens_scorecard_summary_v1"] = Field("vox_mens_scorecard_summary_v1", alias="schema")
    schema_version: Literal[1] = 1
    prompt_pack_version: str
    git_sha: str | None = Field(description="Commit of the folder that it was run in; null outside a repository.")
    run_started_utc: str
    spec_path: str
    conditions: Annotated[list[ConditionSummary], Field(min_length=1)]


class ScorecardDecision(ScorecardValue):
    """Recommendation from the summaries."""

    recommended: Literal["continue_qlora_first", "invest_in_custom_model_rnd"]
    reason: str
    qlora_plateau: bool
    strictness_unmet: bool
    semantic_unmet: bool
    anti_stub_unmet: bool


SCHEMAS: dict[str, type[ScorecardValue]] = {
    "spec": ScorecardSpec,
    "event": ScorecardEvent,
    "summary": ScorecardSummary,
    "decision": ScorecardDecision,
}
"""Each file's type by the name that it is published under."""
