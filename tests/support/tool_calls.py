"""Forced tool calls: requests, the parsers that a replica may choose, and a call in each parser's format."""

from __future__ import annotations

from typing import Any

import pytest

from shared.tokenization.tool_call_forms import FORMS

SCHEMA = {"type": "object", "properties": {"c": {"type": "integer"}}, "required": ["c"]}
FUNCTION = {"name": "f", "parameters": SCHEMA, "strict": True}
CALLS = {
    "qwen3_xml": "<tool_call>\n<function=f>\n<parameter=c>\n%s\n</parameter>\n</function>\n</tool_call>",
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"c": %s}}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": {"c": %s}}',
    "mistral": '[{"name": "f", "arguments": {"c": %s}}]',
}
"""A call in the format of each parser."""
NAMED = {"type": "function", "name": "f"}


def request_of(route: str, choice: Any) -> Any:
    """vLLM's request with a strict tool, as the API makes it for a forced call."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    if route == "responses":
        return ResponsesRequest(input="x", tools=[{"type": "function", **FUNCTION}], tool_choice=choice)
    chosen = {"type": "function", "function": {"name": "f"}} if choice == NAMED else choice
    tools = [{"type": "function", "function": FUNCTION}]
    return ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], tools=tools, tool_choice=chosen)


def parser_named(name: str) -> Any:
    from vllm.parser.parser_manager import ParserManager

    return ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)


def small_tokenizer() -> Any:
    """A tokenizer with the tokens that the parsers need."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = ["?", "<tool_call>", "</tool_call>", *(form.token for form in FORMS if form.token)]
    model = tokenizers.models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="?")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), unk_token="?")
