"""Chat completions in OpenAI's form: the request to a model, and its response."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corpus.generation.endpoints import ModelEndpoint
from shared.hashing import canonical_json


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model.

    Attributes:
        name: the model's name, in the recipe.
        options: further fields, such as ``temperature``.
        sample: number that distinguishes requests with the same content.
    """

    name: str
    messages: list[dict[str, str]]
    max_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)
    sample: int = 0

    def body(self, model: str) -> dict[str, Any]:
        """Return the body."""
        required = {"model": model, "messages": self.messages, "max_completion_tokens": self.max_tokens}
        return {**required, **self.options}

    def key(self, endpoint: ModelEndpoint, secret: bytes, redactors: Any) -> str:
        """Return the key under which its response is stored.

        Args:
            secret: key of the corpus; without one, the digest could be used to check guesses of the prompt.
            redactors: JSON value that identifies the redactors of responses: a stored response has passed exactly
                these.
        """
        content = {
            "endpoint": endpoint.place,
            "request": self.body(endpoint.model),
            "sample": self.sample,
            "redactors": redactors,
        }
        return hmac.new(secret, canonical_json(content), hashlib.sha256).hexdigest()


class _Message(msgspec.Struct):
    """An answer, or a refusal."""

    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    """An answer, with the reason why it ended."""

    message: _Message
    finish_reason: str | None = None


class TokenCounts(msgspec.Struct):
    """Token counts that the server returns."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ModelCompletion(msgspec.Struct):
    """A response; only these fields of it are read."""

    choices: list[_Choice]
    model: str | None = None
    usage: TokenCounts | None = None
    system_fingerprint: str | None = None


_decode = msgspec.json.Decoder(ModelCompletion).decode


def read_completion(content: bytes) -> tuple[ModelCompletion, bool]:
    """Return a completion, and whether it contains only valid characters."""
    try:
        return _decode(content), True
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Half of a surrogate pair, as in an answer that ends within a character.
        text = json.dumps(json.loads(content), ensure_ascii=False)
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return _decode(whole.encode()), False
