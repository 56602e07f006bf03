"""The requests of Ollama's clients that are answered here, and which of their fields count.

What would change an answer and cannot be honoured is refused. What only sizes Ollama's own runner is taken, so that its
clients work unchanged, and changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from api.openai_types import Closed
from shared.training_row import Role

RUNNER_OPTIONS = frozenset(
    {
        "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all",
        "vocab_only", "use_mmap", "use_mlock", "embedding_only",
    }
)  # fmt: skip
"""How Ollama loads a model. Here the serving tier's settings say that."""
RENAMED = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
"""Options that vLLM calls otherwise; it knows the rest by the same names."""


def _refuse_unless_empty(value: Any) -> None:
    if value:
        raise ValueError("this is not supported here; leave it out")


Unsupported = Annotated[Any, AfterValidator(_refuse_unless_empty)]
"""A field that clients may send empty."""


class Options(Closed):
    """How tokens are chosen. What is left out is as the model's own generation settings say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    num_predict: int | None = Field(None, description="Most tokens of the answer; negative: as many as fit.")
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_the_runners(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in RUNNER_OPTIONS and value is not None}

    def sampling(self) -> dict[str, Any]:
        """The same as vLLM calls it."""
        given = self.model_dump(exclude_none=True)
        if given.get("num_predict", 0) < 0:
            del given["num_predict"]
        return {RENAMED.get(name, name): value for name, value in given.items()}


def _without_latest(name: str) -> str:
    return name.removesuffix(":latest")


class Question(Closed):
    """What both kinds of request say. Ollama's clients may write ``:latest`` after a name; it means nothing here."""

    model: Annotated[str, AfterValidator(_without_latest)]
    stream: bool | None = Field(None, description="Only false means: in one piece.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="`json`, or a JSON schema.")
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: float | str | None = Field(None, description="Taken and not used: adapters come and go by themselves.")
    images: Unsupported = None

    @property
    def streams(self) -> bool:
        """Whether the answer is sent as it is made, as it is unless the caller says otherwise."""
        return self.stream is not False


class CalledFunction(BaseModel):
    """Name and arguments of a call; what else clients send back from an earlier answer is not needed."""

    name: str
    arguments: dict[str, Any] = {}


class ToolCall(BaseModel):
    """A call that the model made before."""

    function: CalledFunction


class Message(Closed):
    """One turn. A tool's result says by ``tool_name`` which call it answers, else it answers the next one."""

    role: Role
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    images: Unsupported = None


class ChatQuestion(Question):
    """Body of POST /api/chat. Without messages the model is only loaded."""

    messages: list[Message] = []
    tools: list[dict[str, Any]] | None = None

    @property
    def only_loads(self) -> bool:
        """Whether nothing is asked."""
        return not self.messages


class GenerateQuestion(Question):
    """Body of POST /api/generate. Without a prompt the model is only loaded."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = Field(None, description="The prompt is the model's whole text: no chat template is used.")
    suffix: Unsupported = None
    template: Unsupported = None
    context: Unsupported = None

    @property
    def only_loads(self) -> bool:
        """Whether nothing is asked."""
        return not self.prompt

    @model_validator(mode="after")
    def _raw_is_plain(self) -> GenerateQuestion:
        if self.raw and (self.system or self.logprobs or self.think):
            raise ValueError("`system`, `think` and `logprobs` do not go with `raw`")
        return self
