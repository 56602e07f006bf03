"""Which of vLLM's parsers read the model's text: tool calls, so that ``tool_choice: "auto"`` is answered, and thoughts.

A base learnt tool calls in the form in which its chat template writes them, and so do its adapters. So the template is
asked: it writes a chat with a call in it, and the form that comes out names the parser. Some parsers need a token of
their own, and vLLM does not start without it.

The parser of thoughts takes everything before ``</think>`` for thoughts. An answer without that mark has no content
then, so it is used only where the template writes the mark before every answer that is learnt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from serving.settings import OFF, ServingSettings
from shared.errors import InvalidRequest
from shared.tokenizer import Tokenizer

QUESTION, ANSWER, FUNCTION = "Qw7 asked", "Aw7 answered", "call_w7"
CHAT: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": FUNCTION, "arguments": {"unit": "w7"}}}
CALLED: list[dict[str, Any]] = [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]
# Another name than the call's: templates write the list of tools, and examples of calls, into the prompt.
TOOLS = [{"type": "function", "function": {"name": "listed_w7", "description": "", "parameters": {"type": "object"}}}]

REASONING = "qwen3"
CHATML = "<|im_start|>"


@dataclass(frozen=True, slots=True)
class Form:
    """A way to write a tool call: the parser that reads it, what it looks like, the token that the parser needs."""

    parser: str
    looks: re.Pattern[str]
    token: str | None = None


FORMS = (
    Form("qwen3_xml", re.compile(rf"<tool_call>\s*<function={FUNCTION}>")),
    Form("hermes", re.compile(rf'<tool_call>\s*{{"name": ?"{FUNCTION}"')),
    Form("mistral", re.compile(rf"\[TOOL_CALLS\].*{FUNCTION}"), "[TOOL_CALLS]"),
    Form("llama3_json", re.compile(rf'{{"name": ?"{FUNCTION}", ?"parameters"'), "<|python_tag|>"),
    # ChatML alone says nothing of calls; hermes is how models with such turns are taught them.
    Form("hermes", re.compile(re.escape(CHATML))),
)


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names of vLLM's parsers; None: none."""

    tool: str | None = None
    reasoning: str | None = None

    def __str__(self) -> str:
        return f"tool calls: {self.tool or 'not read'}, thoughts: {self.reasoning or 'not read'}"


def choose_parsers(settings: ServingSettings, tokenizer: Tokenizer | None) -> Parsers:
    """What the settings say; where they leave it open, what the template shows, and nothing without a template."""
    shown = Parsers() if tokenizer is None else Parsers(_tool_parser(tokenizer), _reasoning_parser(tokenizer))
    return Parsers(
        _set_or(settings.serving_tool_parser, shown.tool), _set_or(settings.serving_reasoning_parser, shown.reasoning)
    )


def _set_or(setting: str | None, shown: str | None) -> str | None:
    return None if setting == OFF else setting or shown


def _tool_parser(tokenizer: Tokenizer) -> str | None:
    text = _written(tokenizer, CALLED, TOOLS) or _written(tokenizer, CHAT)
    for form in FORMS:
        if form.looks.search(text) and (form.token is None or tokenizer.backend.token_to_id(form.token) is not None):
            return form.parser
    return None


def _reasoning_parser(tokenizer: Tokenizer) -> str | None:
    opening = _written(tokenizer, CHAT).rpartition(QUESTION)[2].partition(ANSWER)[0]
    return REASONING if "</think>" in opening else None


def _written(tokenizer: Tokenizer, chat: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """The chat as text; nothing when the template does not take it."""
    try:
        return tokenizer.render(chat, tools).text
    except InvalidRequest:
        return ""
