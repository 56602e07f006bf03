"""Columns whose values a model writes, and what a recipe says about models: budget, prices, terms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat

from shared.corpus.mixing.mix_file import MixModel
from shared.graders.types import Grader

MAX_TOKENS = 131_072
TEMPLATES = ("system", "prompt")
"""Fields that are templates."""
Temperature = Annotated[FiniteFloat, Field(ge=0, le=2)]


def _long_form(value: Any) -> Any:
    """Return a grader for a check that is written without one: ``{check: regex, pattern: …}``."""
    if isinstance(value, dict) and "check" in value and "type" not in value:
        return {"type": "python", "source": "", "mens": value}
    return value


Check = Annotated[Grader, BeforeValidator(_long_form)]


class ModelColumn(MixModel):
    """Fields of every column that a model writes.

    Attributes:
        model: a name of ``MENS_REMOTE_MODELS``, else a model that the installation serves.
        system: template of the system prompt.
        max_tokens: of one answer.
        temperature: 0 asks equal prompts once; null leaves it to the server.
    """

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,63}$")
    model: str = Field(min_length=1, max_length=256)
    system: str | None = None
    max_tokens: int = Field(512, ge=1, le=MAX_TOKENS)
    temperature: Temperature | None = 0.0

    @property
    def requests(self) -> int:
        """The most requests for a row."""
        return 1

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


class GenerationBudget(MixModel):
    """The most that a recipe may use of models, with what the stored responses have used.

    Attributes:
        requests: that are sent, with those that are sent again after a failure.
        tokens: of prompts and answers, as the servers count them.
        money: by ``prices``, in their currency.
    """

    requests: int | None = Field(None, ge=1)
    tokens: int | None = Field(None, ge=1)
    money: Annotated[FiniteFloat, Field(gt=0)] | None = None


class Price(MixModel):
    """Price of a model, for a million tokens.

    Attributes:
        input: of prompts.
        output: of answers.
    """

    input: Annotated[FiniteFloat, Field(ge=0)]
    output: Annotated[FiniteFloat, Field(ge=0)]

    def cost(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Return the price of tokens."""
        return (self.input * prompt_tokens + self.output * answer_tokens) / 1e6
