"""The supported requests of Ollama's clients, and the fields that count.

A field that would change a response and is not supported is refused. An option that only sizes Ollama's own runner is
accepted and ignored, so that Ollama's clients work unchanged.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from api.openai.types import ClosedObject
from shared.datasets.rows import Role

RUNNER_OPTIONS = frozenset(
    {
        "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all",
        "vocab_only", "use_mmap", "use_mlock", "embedding_only",
    }
)  # fmt: skip
"""Options of how Ollama loads a model. Here the settings of the serving tier decide that."""
RENAMED = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
"""Options with another name in vLLM; the others have the same name."""


def _refuse_unless_empty(value: Any) -> None:
    if value:
        raise ValueError("this is not supported here; leave it out")


Unsupported = Annotated[Any, AfterValidator(_refuse_unless_empty)]
"""A field that clients may send empty."""

Small = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Options(ClosedObject):
    """Sampling options. The model's own generation settings decide those that are left out."""

    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: Small | None = None
    min_p: Finite | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: list[str] | str | None = None
    num_predict: Small | None = Field(
        None, description="Maximum number of tokens to generate; negative: as many as fit."
    )
    repeat_penalty: Finite | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_runner_options(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options
        return {name: value for name, value in options.items() if name not in RUNNER_OPTIONS and value is not None}

    def sampling(self) -> dict[str, Any]:
        """Return the options by vLLM's names."""
        options = self.model_dump(exclude_none=True)
        if options.get("num_predict", 0) < 0:
            del options["num_predict"]
        return {RENAMED.get(name, name): value for name, value in options.items()}


class OllamaRequest(ClosedObject):
    """Fields of both kinds of request. Ollama's clients may write ``:latest`` after a name; it is cut off."""

    model: Annotated[str, AfterValidator(lambda name: name.removesuffix(":latest"))]
    stream: bool | None = Field(None, description="False: the response comes in one piece.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="`json`, or a JSON schema.")
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Small | None = None
    keep_alive: float | str | None = Field(
        None, description="Accepted and ignored: adapters are loaded and unloaded on demand."
    )
    images: Unsupported = None

    @property
    def streams(self) -> bool:
        """Return true if the response is streamed, which is the default."""
        return self.stream is not False


class CalledFunction(BaseModel):
    """Name and arguments of a call; other fields that clients send back from an earlier response are ignored."""

    name: str
    arguments: dict[str, Any] = {}


class ToolCall(BaseModel):
    """A tool call that the model made earlier in the chat."""

    function: CalledFunction


class OllamaMessage(ClosedObject):
    """One message of a chat. A tool's result names its call by ``tool_name``; without it, it belongs to the oldest open call."""

    role: Role
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    images: Unsupported = None


class ChatRequest(OllamaRequest):
    """Body of POST /api/chat. Without messages the model is only loaded."""

    messages: list[OllamaMessage] = []
    tools: list[dict[str, Any]] | None = None

    @property
    def only_loads(self) -> bool:
        """Return true if the request only loads the model."""
        return not self.messages


class GenerateRequest(OllamaRequest):
    """Body of POST /api/generate. Without a prompt the model is only loaded."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = Field(None, description="The prompt is passed to the model unchanged: no chat template is used.")
    suffix: Unsupported = None
    template: Unsupported = None
    context: Unsupported = None

    @property
    def only_loads(self) -> bool:
        """Return true if the request only loads the model."""
        return not self.prompt

    @model_validator(mode="after")
    def _raw_excludes_chat_fields(self) -> GenerateRequest:
        if self.raw and (self.system or self.logprobs or self.think):
            raise ValueError("`system`, `think` and `logprobs` cannot be combined with `raw`")
        return self
