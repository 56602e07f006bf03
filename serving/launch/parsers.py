"""Choose vLLM's parsers of the model's output: the parser of tool calls, which ``tool_choice: "auto"`` requires, and
the parser of reasoning.

A base and its adapters are trained on tool calls in the format of the base's chat template. So a chat with a tool call
is rendered with the template, and the parser is chosen by the format of the result. Some parsers need a special token
in the vocabulary; vLLM does not start if it is missing.

The reasoning parser treats everything before ``</think>`` as reasoning. With it, an answer without this marker has no
content, so the parser is used only if the template writes the marker before every answer that is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving.settings import OFF, ServingSettings
from shared.errors import InvalidRequest
from shared.tokenization.tokenizer import Tokenizer
from shared.tokenization.tool_call_forms import parser_of

# Strings that no template contains, so that they can be found in its output.
QUESTION, ANSWER, FUNCTION = "Qw7 question", "Aw7 answer", "call_w7"
CHAT: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": FUNCTION, "arguments": {"unit": "w7"}}}
CALLED: list[dict[str, Any]] = [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]
# The listed tool has a different name from the called one, because templates write the list of tools and examples of
# calls into the prompt.
TOOLS = [{"type": "function", "function": {"name": "listed_w7", "description": "", "parameters": {"type": "object"}}}]

REASONING = "qwen3"
CHATML, CHATML_PARSER = "<|im_start|>", "hermes"
"""ChatML itself does not define a format of calls; models with ChatML turns are trained on calls in the format of
hermes.
"""


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names of the chosen vLLM parsers; None: no parser."""

    tool: str | None = None
    reasoning: str | None = None

    def __str__(self) -> str:
        return f"tool calls: {self.tool or 'not parsed'}, reasoning: {self.reasoning or 'not parsed'}"


def choose_parsers(settings: ServingSettings, tokenizer: Tokenizer | None) -> Parsers:
    """Return the parsers that the settings name. If the settings do not name one, choose it by the base's template, if
    it has one.
    """
    tool = reasoning = None
    if tokenizer is not None:
        text = _render(tokenizer, CALLED, TOOLS) or _render(tokenizer, CHAT)
        tool = parser_of(text, FUNCTION, tokenizer.backend) or (CHATML_PARSER if CHATML in text else None)
        turn_start = _render(tokenizer, CHAT).rpartition(QUESTION)[2].partition(ANSWER)[0]
        reasoning = REASONING if "</think>" in turn_start else None
    return Parsers(_set_or(settings.serving_tool_parser, tool), _set_or(settings.serving_reasoning_parser, reasoning))


def _set_or(setting: str | None, shown: str | None) -> str | None:
    return None if setting == OFF else setting or shown


def _render(tokenizer: Tokenizer, chat: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """Render the chat; return an empty string if the template refuses it."""
    try:
        return tokenizer.render(chat, tools).text
    except InvalidRequest:
        return ""
