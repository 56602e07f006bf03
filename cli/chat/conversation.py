"""A conversation with one model: the turns so far, and answers that are printed as they arrive."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import typer

from cli.client.chat_hints import describe_empty
from cli.client.connection import connect, fail_with, fail_with_response, note, unreachable
from cli.output import printable, shorten_ids

ADAPTER_HEADER = "x-mens-adapter"


@dataclass(frozen=True)
class ChatSettings:
    """Settings with which answers are requested.

    Attributes:
        user: identifies the caller to a split alias; None: the conversation's beginning does.
    """

    max_tokens: int
    temperature: float
    user: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request."""
        user = {"user": self.user} if self.user else {}
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, **user}


@dataclass
class Conversation:
    """A chat with one model.

    Attributes:
        model: name of the model, as requests name it.
        system: the system prompt.
        turns: messages so far; a question counts once it is answered.
        adapter: the adapter that gave the last answer; None: the last answer is a base's, or no answer was given yet.
    """

    model: str
    settings: ChatSettings
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    adapter: str | None = None

    @property
    def stands_for(self) -> str | None:
        """Return the adapter that gave the last answer, if the model has another name."""
        return self.adapter if self.adapter != self.model else None

    @property
    def title(self) -> str:
        """Return the model's name, and the adapter that it stands for."""
        return shorten_ids(f"{self.model} ({self.stands_for})" if self.stands_for else self.model)

    def ask(self, message: str, begun: Callable[[Conversation], None] = lambda _: None) -> None:
        """Print a model's answer as it arrives, and keep both turns; end the command if the request fails.

        Args:
            message: the user's message.
            begun: called with this conversation when the answer begins and its adapter is known.
        """
        question = {"role": "user", "content": message}
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {"model": self.model, "messages": [*system, *self.turns, question], "stream": True}
        written, finish_reason = "", None
        for choice in self._choices(body | self.settings.fields(), begun):
            part = choice.get("delta", {}).get("content") or ""
            # In a file or a pipe the answer stays unchanged.
            typer.echo(printable(part) if sys.stdout.isatty() else part, nl=False)
            written, finish_reason = written + part, choice.get("finish_reason") or finish_reason
        typer.echo()
        self.turns += [question, {"role": "assistant", "content": written}]
        if not written.strip():
            note(describe_empty(self.model, self.system, self.settings.max_tokens, finish_reason))

    def _choices(self, body: dict[str, Any], begun: Callable[[Conversation], None]) -> Iterator[dict[str, Any]]:
        """Yield the first choice of each event of a stream that has a choice."""
        connection = connect()
        try:
            with connection.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    fail_with_response(response)
                self.adapter = response.headers.get(ADAPTER_HEADER)
                begun(self)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield from (json.loads(line.removeprefix("data: ")).get("choices") or [])[:1]
        except httpx.HTTPError as error:
            fail_with(unreachable(connection, error))


def echo_title(conversation: Conversation) -> None:
    """Print the name of the answering model above the answer."""
    typer.secho(f"{conversation.title}:", bold=True)
