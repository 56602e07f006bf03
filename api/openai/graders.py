"""OpenAI's view of a grader's run: the request, and an answer in which every error has its own flag."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from api.openai.types import ClosedObject
from shared.errors import Code, MensError
from shared.graders.grading import Grade
from shared.graders.types import Grader, LabelModel, ScoreModel

FLAG_OF: dict[Code, str] = {
    Code.GRADER_FORMULA_INVALID: "formula_parse_error",
    Code.GRADER_SAMPLE_INVALID: "sample_parse_error",
    Code.GRADER_VARIABLE_INVALID: "invalid_variable_error",
    Code.GRADER_MODEL_REFUSED: "model_grader_refusal_error",
    Code.GRADER_MODEL_ANSWER_INVALID: "model_grader_parse_error",
    Code.GRADER_MODEL_UNAVAILABLE: "model_grader_server_error",
    Code.SERVING_UNAVAILABLE: "model_grader_server_error",
    Code.SERVING_FAILED: "model_grader_server_error",
    Code.SERVING_REFUSED: "model_grader_server_error",
    Code.GRADER_SOURCE_INVALID: "python_grader_runtime_error",
    Code.GRADER_FAILED: "python_grader_runtime_error",
    Code.GRADER_TIMEOUT: "python_grader_runtime_error",
    Code.SANDBOX_FAILED: "python_grader_server_error",
}
"""Every other code is ``other_error``."""
DETAILS_OF = {
    "model_grader_server_error": "model_grader_server_error_details",
    "python_grader_runtime_error": "python_grader_runtime_error_details",
    "python_grader_server_error": "python_grader_server_error_type",
}
"""The field next to a flag that gives the details."""


class ValidateGrader(ClosedObject):
    """Request to validate a grader."""

    grader: Grader


class ValidatedGrader(BaseModel):
    """A grader in the normalised form."""

    grader: dict[str, Any]


class RunGrader(ClosedObject):
    """Request to run a grader on one answer."""

    grader: Grader
    model_sample: str = Field(description="The answer: `sample.output_text`, and `sample.output_json` when it is JSON.")
    item: dict[str, Any] = Field({}, description="Value of `item` in templates.")


class GraderErrors(BaseModel):
    """Kinds of errors; all false if the grader succeeded."""

    formula_parse_error: bool = False
    sample_parse_error: bool = False
    truncated_observation_error: bool = False
    unresponsive_reward_error: bool = False
    invalid_variable_error: bool = False
    other_error: bool = False
    python_grader_server_error: bool = False
    python_grader_server_error_type: str | None = None
    python_grader_runtime_error: bool = False
    python_grader_runtime_error_details: str | None = None
    model_grader_server_error: bool = False
    model_grader_refusal_error: bool = False
    model_grader_parse_error: bool = False
    model_grader_server_error_details: str | None = None
    mens: dict[str, Any] | None = Field(None, description="The error in the form of this API's other routes.")


class GraderRunMetadata(BaseModel):
    name: str
    type: str
    execution_time: float = Field(description="Seconds.")
    scores: dict[str, float]
    token_usage: int | None = None
    sampled_model_name: str | None = None
    errors: GraderErrors


class GraderRun(BaseModel):
    """Result of a grader. A failed grader returns 0, with the reason in ``metadata.errors``."""

    reward: float
    metadata: GraderRunMetadata
    sub_rewards: dict[str, float]
    model_grader_token_usage_per_model: dict[str, dict[str, Any]]


def run_view(grader: Grader, result: Grade | MensError, seconds: float) -> GraderRun:
    """Return a grader run in OpenAI's shape.

    Args:
        result: the grade, or the error that prevented it.
        seconds: duration of the run.
    """
    grade = result if isinstance(result, Grade) else Grade(0.0)
    used = [usage.get("total_tokens") for usage in grade.usage.values()]
    metadata = GraderRunMetadata(
        name=grader.name,
        type=grader.type,
        execution_time=seconds,
        scores={grader.name: grade.score, **grade.sub_scores},
        token_usage=sum(count for count in used if isinstance(count, int)) if used else None,
        sampled_model_name=grader.model if isinstance(grader, ScoreModel | LabelModel) else None,
        errors=_errors(result) if isinstance(result, MensError) else GraderErrors(),
    )
    return GraderRun(
        reward=grade.score,
        metadata=metadata,
        sub_rewards=grade.sub_scores,
        model_grader_token_usage_per_model=grade.usage,
    )


def is_of_code(error: MensError) -> bool:
    """Return whether an error has one of the flags of Python graders."""
    return FLAG_OF.get(error.code, "").startswith("python_grader")


def _errors(error: MensError) -> GraderErrors:
    flag = FLAG_OF.get(error.code, "other_error")
    described: dict[str, Any] = {flag: True}
    if flag in DETAILS_OF:
        described[DETAILS_OF[flag]] = _details(error)
    shown = {"code": str(error.code), "message": error.message, "remedy": error.remedy, "param": error.param}
    return GraderErrors.model_validate({**described, "mens": shown})


def _details(error: MensError) -> str:
    """Return the details of an error: for code its message, traceback and output; for a sandbox its code, because
    OpenAI's field wants a kind.
    """
    if error.code == Code.SANDBOX_FAILED:
        return str(error.code)
    texts = (error.message, error.details.get("traceback"), error.details.get("output"))
    return "\n".join(part.rstrip() for part in texts if part)
