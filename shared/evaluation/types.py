"""Evals and runs as requested, in OpenAI's wire format, and the results of one item.

OpenAI's specification names the shapes (`openapi.yaml`, "Evals"); a block ``mens`` has the fields that OpenAI lacks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from shared.graders.types import (
    GraderMessage,
    GraderValue,
    LabelModel,
    PythonGrader,
    ScoreModel,
    StringCheck,
    TextSimilarity,
)

MAX_CRITERIA = 32
MAX_SAMPLES = 64
DEFAULT_MARGIN = 0.03
"""Default of the accepted loss against the incumbent: the bound of the original's regression gate."""

Criterion = Annotated[
    StringCheck | TextSimilarity | LabelModel | ScoreModel | PythonGrader, Field(discriminator="type")
]
"""A grader that judges an eval's answers; as at OpenAI, without ``multi``."""


class CustomConfig(GraderValue):
    """Rows described by the user's own JSON Schema."""

    type: Literal["custom"]
    item_schema: dict[str, Any] = Field(description="JSON Schema of an item.")
    include_sample_schema: StrictBool = Field(
        False, description="True: rows contain answers, as `sample` next to `item`."
    )


class StoredConfig(GraderValue):
    """Answers that a server has stored. Mens stores none, so an eval of this kind can be kept, but not run."""

    type: Literal["logs", "stored_completions"]
    metadata: dict[str, Any] | None = None


DataSourceConfig = Annotated[CustomConfig | StoredConfig, Field(discriminator="type")]


def _fault(error: PydanticCustomError, number: int, field: str) -> InitErrorDetails:
    """Return the fault of a criterion's field. A `ValueError` of the eval would not name the field."""
    return InitErrorDetails(type=error, loc=("testing_criteria", number, field), input=None)


class EvalSpec(GraderValue):
    """An eval: its data and its criteria."""

    data_source_config: DataSourceConfig
    testing_criteria: Annotated[list[Criterion], Field(min_length=1, max_length=MAX_CRITERIA)]

    @model_validator(mode="after")
    def _criteria_are_complete(self) -> EvalSpec:
        faults: list[InitErrorDetails] = []
        names: set[str] = set()
        for number, criterion in enumerate(self.testing_criteria):
            if criterion.name in names:
                error = PydanticCustomError("same_name", "another criterion has this name")
                faults.append(_fault(error, number, "name"))
            names.add(criterion.name)
            if isinstance(criterion, TextSimilarity) and criterion.pass_threshold is None:
                error = PydanticCustomError("missing", "an eval needs the lowest score that passes")
                faults.append(_fault(error, number, "pass_threshold"))
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)
        return self


class SourceItem(GraderValue):
    """A row: the value of ``item`` in templates, and that of ``sample`` if the row was already answered."""

    item: dict[str, Any]
    sample: dict[str, Any] | None = None


class FileContent(GraderValue):
    """Rows that come with the request."""

    type: Literal["file_content"]
    content: Annotated[list[SourceItem], Field(min_length=1)]


class FileId(GraderValue):
    """Rows of an uploaded JSONL file: ``{"item": …}``, with ``sample`` if the row was already answered."""

    type: Literal["file_id"]
    id: str


class StoredSource(BaseModel):
    """Answers that a server has stored. Mens stores none, so this source is refused when a run is created."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["stored_completions", "responses", "logs"]


RowSource = Annotated[FileContent | FileId, Field(discriminator="type")]
Source = Annotated[FileContent | FileId | StoredSource, Field(discriminator="type")]


class MessageTemplate(GraderValue):
    """Messages in which ``{{ item.path }}`` is filled in."""

    type: Literal["template"]
    template: Annotated[list[GraderMessage], Field(min_length=1)]


class ItemReference(GraderValue):
    """Messages that the item itself has."""

    type: Literal["item_reference"]
    item_reference: Annotated[str, StringConstraints(pattern=r"^item(\.[^.\[\]{}]+|\[\d{1,9}\])+$")] = Field(
        description="Path of the messages: `item.messages`."
    )


InputMessages = Annotated[MessageTemplate | ItemReference, Field(discriminator="type")]


class Sampling(GraderValue):
    """Sampling parameters that both kinds of requests have."""

    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = None
    # OpenAI's own example of a run spells the field as its graders do.
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = Field(
        None, validation_alias=AliasChoices("max_completion_tokens", "max_completions_tokens")
    )
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None


class ChatSampling(Sampling):
    response_format: dict[str, Any] | None = None


class ResponseText(GraderValue):
    format: dict[str, Any] | None = None


class ResponseSampling(Sampling):
    text: ResponseText | None = None


class JsonlSource(GraderValue):
    """Rows that already contain answers; no model gets a request."""

    type: Literal["jsonl"]
    source: RowSource


class CompletionsSource(GraderValue):
    """Rows that a model answers by chat completions."""

    type: Literal["completions"]
    source: Source
    model: str | None = None
    input_messages: InputMessages | None = None
    sampling_params: ChatSampling | None = None


class ResponsesSource(GraderValue):
    """Rows that a model answers by responses."""

    type: Literal["responses"]
    source: Source
    model: str | None = None
    input_messages: InputMessages | None = None
    sampling_params: ResponseSampling | None = None


DataSource = Annotated[JsonlSource | CompletionsSource | ResponsesSource, Field(discriminator="type")]


class RunExtension(GraderValue):
    """Fields of a run that OpenAI's runs do not have."""

    incumbent: str | None = Field(
        None,
        min_length=1,
        description="A second model, which gets the same requests with the same seeds; the answers "
        "are compared in pairs.",
    )
    samples: StrictInt = Field(1, ge=1, le=MAX_SAMPLES, description="Answers to each item, each with its own seed.")
    noise_floor: StrictBool = Field(
        False, description="Request answers from the incumbent twice; their difference is the run's noise floor."
    )
    margin: StrictFloat = Field(
        DEFAULT_MARGIN, ge=0, le=1, description="Largest allowed loss of the mean score against the incumbent."
    )


class RunSpec(GraderValue):
    """Prompts, model and sampling of a run."""

    data_source: DataSource
    mens: RunExtension = RunExtension()


class CriterionResult(BaseModel):
    """Result of one criterion for an answer.

    Attributes:
        fault: why the answer failed without a score, by its own fault, in the form of `MensError.as_dict`.
        error: why it could not judge, in the form of `MensError.as_dict`; then the score is 0 and has no meaning.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    type: str
    passed: bool
    score: float
    fault: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Answer(BaseModel):
    """A model's or a row's answer, with its judgement.

    Attributes:
        model: the requested name; empty for a row's own answer.
        input: messages that were sent.
        sample: the value of ``sample`` in templates; None: no answer.
        finish_reason: as reported by the model's server.
        usage: token counts of the request.
        error: why it has no answer, in the form of `MensError.as_dict`.
    """

    model_config = ConfigDict(frozen=True)
    model: str = ""
    input: list[dict[str, Any]] = []
    sample: dict[str, Any] | None = None
    finish_reason: str = ""
    usage: dict[str, int] = {}
    seed: int = 0
    results: list[CriterionResult] = []
    error: dict[str, Any] | None = None

    @property
    def status(self) -> Literal["pass", "fail", "error"]:
        """Passed when every criterion passes. An answer that is missing or could not be judged is an error, not a
        failure.
        """
        if self.error or not self.results or any(result.error for result in self.results):
            return "error"
        return "pass" if all(result.passed for result in self.results) else "fail"


class ItemResult(BaseModel):
    """Result of one item, or of one of its several answers.

    Attributes:
        item_index: index of the item in its source, from 0.
        sample_index: the answer's index, from 0.
        incumbent: the second model's answer to the same item, if a run has one.
        repeated: the second model's second answer, if the run measures the noise floor.
    """

    model_config = ConfigDict(frozen=True)
    item_index: int
    sample_index: int = 0
    item: dict[str, Any]
    answer: Answer
    incumbent: Answer | None = None
    repeated: Answer | None = None

    @property
    def status(self) -> Literal["pass", "fail", "error"]:
        """Status of the evaluated model's answer; the incumbent's answer has its own."""
        return self.answer.status

    @property
    def results(self) -> list[CriterionResult]:
        """Results of the evaluated model's answer."""
        return self.answer.results
