"""Columns whose values a model writes, and a recipe's fields about models: budget, prices, terms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, StrictInt, model_validator

from corpus.mixing.mix_file import MixModel
from shared.graders.types import Grader

MAX_TOKENS = 131_072
MAX_SAMPLES = 64
"""Largest number of answers to one prompt."""
TEMPLATES = ("system", "prompt", "text", "about")
"""Fields that are templates."""
Temperature = Annotated[FiniteFloat, Field(ge=0, le=2)]
SampledTemperature = Annotated[FiniteFloat, Field(gt=0, le=2)]


def _long_form(value: Any) -> Any:
    """Return the grader that a check in short form stands for: ``{check: regex, pattern: …}``."""
    if isinstance(value, dict) and "check" in value and "type" not in value:
        return {"type": "python", "source": "", "mens": value}
    return value


Check = Annotated[Grader, BeforeValidator(_long_form)]


class ModelColumn(MixModel):
    """Fields of every column that a model writes.

    Attributes:
        model: a name from ``MENS_REMOTE_MODELS``, or else a model that the installation serves.
        system: template of the system prompt.
        max_tokens: largest number of tokens of one answer.
        temperature: with 0, equal prompts are sent once; null leaves it to the server.
    """

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,63}$")
    model: str = Field(min_length=1, max_length=256)
    system: str | None = None
    max_tokens: int = Field(512, ge=1, le=MAX_TOKENS)
    temperature: Temperature | None = 0.0

    @property
    def requests(self) -> int:
        """Largest number of requests to the model for a row."""
        return 1

    @property
    def graders(self) -> list[Grader]:
        """The graders of its answers."""
        return []

    @property
    def runs_code(self) -> bool:
        """True if code written by the model is run."""
        return False

    def stand_in(self, text: str) -> Any:
        """Return a value of the form that the method returns, with a stand-in for each text that the model would write."""
        return text

    @property
    def templates(self) -> dict[str, str]:
        """The templates, by field."""
        fields = {field: getattr(self, field, None) for field in TEMPLATES}
        return {field: value for field, value in fields.items() if value is not None}


class AnswerColumn(ModelColumn):
    """The answer of a model to a prompt.

    Attributes:
        prompt: template; without it, the prompt of the row.
        check: graders that the answer must pass.
    """

    method: Literal["answer"]
    prompt: str | None = None
    check: list[Check] = []

    @property
    def graders(self) -> list[Grader]:
        """The checks."""
        return self.check


class JudgeColumn(ModelColumn):
    """The judgement of a model: a number, or a label.

    Attributes:
        prompt: template of the text to judge and the instructions for judging it.
        range: the number's range; the judge's number is rounded.
        least: rows with a smaller number are left out.
        labels: labels from which the judge chooses one, instead of a number.
        passing: labels that pass; rows with another label are left out.
    """

    method: Literal["judge"]
    prompt: str
    max_tokens: int = Field(1_024, ge=1, le=MAX_TOKENS)
    range: tuple[StrictInt, StrictInt] = (1, 5)
    least: int | None = None
    labels: list[str] | None = Field(None, min_length=2)
    passing: list[str] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> JudgeColumn:
        if not self.range[0] < self.range[1]:
            raise ValueError("`range` must be ascending")
        if self.labels is None and self.passing is not None:
            raise ValueError("`passing` needs `labels`")
        if self.labels is not None and (self.least is not None or "range" in self.model_fields_set):
            raise ValueError("`labels` cannot be combined with `range` or `least`")
        if unknown := sorted({*(self.passing or [])} - {*(self.labels or [])}):
            raise ValueError(f"`passing` has {unknown[0]}, which is not one of `labels`")
        return self

    def stand_in(self, _text: str) -> int | str:
        """Return a judgement."""
        return self.labels[0] if self.labels else self.range[1]

    @property
    def result_schema(self) -> dict[str, Any]:
        """JSON Schema of the result."""
        return {"type": "number"} if self.labels is None else {"type": "string", "enum": self.labels}


class PreferColumn(ModelColumn):
    """Several answers to a prompt, from which a grader picks the best and the worst: a row for DPO.

    Attributes:
        prompt: template; without it, the prompt of the row.
        n: number of answers to each prompt.
        grader: grader of one answer; a higher score is better.
    """

    method: Literal["prefer"]
    prompt: str | None = None
    n: int = Field(4, ge=2, le=MAX_SAMPLES)
    temperature: SampledTemperature = 0.8
    grader: Check

    def stand_in(self, text: str) -> dict[str, Any]:
        """Return two answers with scores."""
        return {"chosen": text, "rejected": text, "chosen_score": 1.0, "rejected_score": 0.0}

    @property
    def requests(self) -> int:
        """One request for each answer."""
        return self.n

    @property
    def graders(self) -> list[Grader]:
        """The grader."""
        return [self.grader]


class BackTranslateColumn(ModelColumn):
    """The instruction to which a text is the answer; the row's answer is then the text that a person wrote.

    Attributes:
        text: template of the text.
    """

    method: Literal["back_translate"]
    text: str
    max_tokens: int = Field(256, ge=1, le=MAX_TOKENS)

    @property
    def requests(self) -> int:
        """One request for the instruction, one for the judgement."""
        return 2


class SelfInstructColumn(ModelColumn):
    """A new instruction in the style of examples, most of them written by people.

    Attributes:
        seeds: file of instructions written by people, one per line.
        about: template of the instruction's subject.
    """

    method: Literal["self_instruct"]
    seeds: str
    about: str | None = None
    max_tokens: int = Field(256, ge=1, le=MAX_TOKENS)
    temperature: SampledTemperature = 1.0


class SelfAlignColumn(ModelColumn):
    """A task inspired by some code, and an answer that passes the tests that the model wrote with it.

    Attributes:
        text: template of the code.
        n: number of answers to each task.
    """

    method: Literal["self_align"]
    text: str
    n: int = Field(4, ge=1, le=MAX_SAMPLES)
    max_tokens: int = Field(1_024, ge=1, le=MAX_TOKENS)
    temperature: SampledTemperature = 0.7

    def stand_in(self, text: str) -> dict[str, Any]:
        """Return a task with an answer and tests."""
        return {"concepts": text, "instruction": text, "answer": text, "tests": text}

    @property
    def requests(self) -> int:
        """One request for the concepts, one for the task, one for each answer."""
        return 2 + self.n

    @property
    def runs_code(self) -> bool:
        """True: its answers are tested."""
        return True


class GenerationBudget(MixModel):
    """Bounds on a recipe's use of models; use by stored responses counts too.

    Attributes:
        requests: number of requests sent, including retries after a failure.
        tokens: number of tokens of prompts and answers, as the servers count them.
        money: cost at ``prices``, in their currency.
    """

    requests: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    money: Annotated[FiniteFloat, Field(gt=0)] | None = None


class Price(MixModel):
    """Price of a model, per million tokens.

    Attributes:
        input: price of prompts.
        output: price of answers.
    """

    input: Annotated[FiniteFloat, Field(ge=0)]
    output: Annotated[FiniteFloat, Field(ge=0)]

    def cost(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Return the price of tokens."""
        return (self.input * prompt_tokens + self.output * answer_tokens) / 1e6
