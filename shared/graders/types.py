"""OpenAI's graders in their wire format: six types, and a block ``mens`` for the checks without an OpenAI type.

Unknown keys are refused, because an ignored misspelt setting would change the judgement.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from shared.errors import InvalidRequest
from shared.graders.formula import FUNCTIONS, Formula
from shared.graders.templates import check_template

MAX_SOURCE_CHARACTERS = 256_000
Metric = Literal[
    "cosine", "fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l",
]  # fmt: skip


def _checked(template: str) -> str:
    try:
        check_template(template)
    except InvalidRequest as error:
        raise ValueError(f"{error.message} {error.remedy}") from None
    return template


Template = Annotated[str, AfterValidator(_checked)]
Threshold = Annotated[StrictFloat, Field(allow_inf_nan=False, description="Lowest score that passes; in evals.")]


class GraderValue(BaseModel):
    """Frozen and closed: the base of the graders and their parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NamedGrader(GraderValue):
    """Fields of every grader; OpenAI's own examples leave out the name; the type is then used as the name."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]

    @model_validator(mode="before")
    @classmethod
    def _name_of_type(cls, value: Any) -> Any:
        if isinstance(value, dict) and "name" not in value and isinstance(value.get("type"), str):
            return {**value, "name": value["type"]}
        return value


class StringCheck(NamedGrader):
    """1 when the input is, is not, or contains the reference; else 0."""

    type: Literal["string_check"]
    input: Template
    reference: Template
    operation: Literal["eq", "ne", "like", "ilike"] = Field(
        description="`like`: the input contains the reference; `ilike`: without regard to case."
    )


class TextSimilarity(NamedGrader):
    """Similarity of input and reference, from 0 to 1."""

    type: Literal["text_similarity"]
    input: Template
    reference: Template
    evaluation_metric: Metric
    pass_threshold: Threshold | None = None


class TextPart(GraderValue):
    """A text of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: Template

    @property
    def template(self) -> str:
        """The text, as a template."""
        return self.text


class ImagePart(GraderValue):
    """An image in a message. An eval may contain it, but no served model reads images, so using it is refused."""

    type: Literal["input_image"]
    image_url: Template
    file_id: str | None = None
    detail: str | None = None

    @property
    def template(self) -> str:
        """The image's URL, as a template."""
        return self.image_url


class AudioData(GraderValue):
    """A recording."""

    data: Template = Field(description="Base64.")
    format: Literal["mp3", "wav"]


class AudioPart(GraderValue):
    """A recording in a message; as with images, no model here can process it."""

    type: Literal["input_audio"]
    input_audio: AudioData

    @property
    def template(self) -> str:
        """The recording in Base64, as a template."""
        return self.input_audio.data


Part = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]


class GraderMessage(GraderValue):
    """A message to the model that judges."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Template | Part | list[Template | Part]
    type: Literal["message"] = "message"

    @property
    def parts(self) -> list[str | TextPart | ImagePart | AudioPart]:
        """The parts of the message, one or several."""
        return [*self.content] if isinstance(self.content, list) else [self.content]


class SamplingParams(GraderValue):
    """Sampling parameters of the judge model; the third name has OpenAI's spelling."""

    seed: StrictInt | None = None
    top_p: Annotated[StrictFloat, Field(gt=0, le=1)] | None = None
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    max_completions_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    reasoning_effort: str | None = None


class ScoreModel(NamedGrader):
    """The score that a judging model gives."""

    type: Literal["score_model"]
    input: Annotated[list[GraderMessage], Field(min_length=1)]
    model: str
    range: tuple[StrictFloat, StrictFloat] = (0.0, 1.0)
    sampling_params: SamplingParams | None = None
    pass_threshold: Threshold | None = None

    @model_validator(mode="after")
    def _range_rises(self) -> ScoreModel:
        if not self.range[0] < self.range[1]:
            raise ValueError("the second number of range must be larger than the first")
        return self


class LabelModel(NamedGrader):
    """1 when the label that a model gives is a passing one; else 0."""

    type: Literal["label_model"]
    input: Annotated[list[GraderMessage], Field(min_length=1)]
    model: str
    labels: Annotated[list[str], Field(min_length=1)]
    passing_labels: list[str]
    sampling_params: SamplingParams | None = None

    @model_validator(mode="after")
    def _passing_are_labels(self) -> LabelModel:
        if unknown := sorted(set(self.passing_labels) - set(self.labels)):
            raise ValueError(f"passing_labels has {', '.join(unknown)}, which labels does not list")
        return self


class RegexCheck(GraderValue):
    """1 when an expression is found in the input."""

    check: Literal["regex"]
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    input: Template = "{{ sample.output_text }}"


class SchemaCheck(GraderValue):
    """1 when the input is JSON that a schema describes; without a schema, when it is JSON."""

    check: Literal["json_schema"]
    json_schema: dict[str, Any] | StrictBool = True
    input: Template = "{{ sample.output_text }}"


class ExpectedCall(GraderValue):
    """A tool call that is expected; arguments are compared as JSON, and not at all when they are null."""

    name: str
    arguments: dict[str, Any] | None = None


class ToolCallCheck(GraderValue):
    """1 when every tool call of the answer names one of these tools, with arguments that are valid by its schema, and
    the calls equal the expected ones.
    """

    check: Literal["tool_calls"]
    tools: list[dict[str, Any]] | None = Field(None, description="As in a chat request.")
    expected: list[ExpectedCall] | None = Field(None, description="In order; null: any calls, at least one.")


class CodeCheck(GraderValue):
    """Fields that the checks of code share. Code is the content of Markdown fences in the input; without a fence, all
    of it.
    """

    language: Annotated[str, StringConstraints(min_length=1, max_length=32)] = Field(
        "python", description="python, python-types, json, sql, or a language that an installed package checks."
    )
    input: Template = "{{ sample.output_text }}"


class CompilesCheck(CodeCheck):
    """1 when the language's checker finds no fault."""

    check: Literal["compiles"]


class AntiStubCheck(CodeCheck):
    """1 when the code compiles and does something: no placeholder, not trivial, more than one kind of construct."""

    check: Literal["anti_stub"]


class PassAtKCheck(GraderValue):
    """The chance that at least one of k answers passes, estimated without bias from all answers that were sampled."""

    check: Literal["pass_at_k"]
    k: Annotated[StrictInt, Field(ge=1, le=100)] = 1
    of: Annotated[StringCheck | TextSimilarity | PythonGrader, Field(discriminator="type")] = Field(
        description="Criteria that each answer must pass."
    )

    @model_validator(mode="after")
    def _is_not_nested(self) -> PassAtKCheck:
        check = self.of.mens if isinstance(self.of, PythonGrader) else None
        if check and check.check == "pass_at_k":
            raise ValueError("pass_at_k applies only to the check pass_at_k")
        return self


ShortForm = Annotated[
    RegexCheck | SchemaCheck | ToolCallCheck | CompilesCheck | AntiStubCheck | PassAtKCheck,
    Field(discriminator="check"),
]


class PythonGrader(NamedGrader):
    """Grade by the function ``grade(sample, item)`` of a source. With a block ``mens``, run the check there instead of the code."""

    type: Literal["python"]
    source: Annotated[str, StringConstraints(max_length=MAX_SOURCE_CHARACTERS)]
    image_tag: str | None = None
    pass_threshold: Threshold | None = None
    mens: ShortForm | None = Field(
        None, description="A check by its name: regex, json_schema, tool_calls, compiles, anti_stub or pass_at_k."
    )


SingleGrader = Annotated[
    StringCheck | TextSimilarity | ScoreModel | LabelModel | PythonGrader, Field(discriminator="type")
]


class MultiGrader(NamedGrader):
    """A formula over the scores of several graders."""

    type: Literal["multi"]
    graders: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)], SingleGrader],
        Field(min_length=1, max_length=32),
    ]
    calculate_output: str

    @model_validator(mode="after")
    def _formula_is_over_graders(self) -> MultiGrader:
        if functions := sorted(self.graders.keys() & FUNCTIONS):
            raise ValueError(f"{', '.join(functions)} is a function of formulas, so a grader cannot have this name")
        try:
            names = Formula(self.calculate_output).names
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        if unknown := sorted(names - self.graders.keys()):
            raise ValueError(f"calculate_output names {', '.join(unknown)}, which graders does not list")
        return self


Grader = Annotated[
    StringCheck | TextSimilarity | ScoreModel | LabelModel | PythonGrader | MultiGrader, Field(discriminator="type")
]
GRADER: TypeAdapter[Grader] = TypeAdapter(Grader)
