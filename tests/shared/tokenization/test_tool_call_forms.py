"""Formats of tool calls, and the parser for each."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, models

from shared.tokenization.tool_call_forms import parser_of

XML = "<tool_call>\n<function=look.up>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
HERMES = '<tool_call>\n{"name": "look.up", "arguments": {}}\n</tool_call>'
LLAMA = '{"name": "look.up", "parameters": {}}'
MISTRAL = '[TOOL_CALLS] [{"name": "look.up", "arguments": {}}]'


def backend(*tokens: str) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.add_tokens([AddedToken(token) for token in tokens])
    return made


@pytest.mark.parametrize(
    ("text", "parser"),
    [(XML, "qwen3_xml"), (HERMES, "hermes"), (LLAMA, "llama3_json"), (MISTRAL, "mistral"), ("look.up()", None)],
)
def test_parser_of_a_form(text, parser):
    assert parser_of(text, "look.up", backend("[TOOL_CALLS]", "<|python_tag|>")) == parser


@pytest.mark.parametrize("text", [LLAMA, MISTRAL])
def test_form_whose_token_is_missing_is_not_known(text):
    assert parser_of(text, "look.up", backend()) is None


def test_name_is_not_a_pattern():
    assert parser_of(HERMES.replace("look.up", "lookXup"), "look.up", backend()) is None
