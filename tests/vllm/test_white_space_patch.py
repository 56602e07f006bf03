"""Structured output of the installed vLLM: JSON matches its schema, and cannot continue indefinitely with white space."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import msgspec
import pytest

from api.inference.request_validation import validate_chat


def test_only_json_of_a_structural_tag_is_bounded() -> None:
    from serving.vllm_white_space_patch import bounded

    schema = {"type": "object", "properties": {"type": {"type": "json_schema"}}}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "structural_tag", "format": {"tags": [{"begin": "<", "content": content}]}}
    assert bounded(tag)["format"]["tags"] == [{"begin": "<", "content": content | {"max_whitespace_cnt": 1}}]


@pytest.mark.parametrize(
    ("value", "is_accepted"),
    [
        ('\n{"d": 1}\n', True),
        ('\n{ "d": 1 }\n', True),
        ('\n\n\n\n{"d": 1}\n', False),
        ('\n{\n\n\n\n"d": 1}\n', False),
        ('\n{"d": 1\n\n\n}\n', False),
        ('\n{"d": 1}\n\n\n\n', False),
    ],
)
def test_white_space_in_a_call_in_xml_is_bounded(value: str, is_accepted: bool) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    testing = pytest.importorskip("xgrammar.testing")
    from serving.vllm_white_space_patch import bounded

    inner = {"type": "object", "properties": {"d": {"type": "integer"}}, "required": ["d"]}
    schema = {"type": "object", "properties": {"c": inner}, "required": ["c"]}
    content = {"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}
    tag = bounded({"type": "structural_tag", "format": content})
    grammar = xgrammar.Grammar.from_structural_tag(msgspec.json.encode(tag).decode())
    text = f"<parameter=c>{value}</parameter>"
    assert testing._is_grammar_accept_string(grammar, text) is is_accepted


def test_vllm_still_needs_the_patch() -> None:
    """When this fails, vLLM bounds white space itself: remove serving/vllm_white_space_patch.py."""
    xgrammar = pytest.importorskip("xgrammar")
    registry = pytest.importorskip("vllm.tool_parsers.structural_tag_registry")
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    tool = protocol.ChatCompletionToolsParam(function={"name": "f", "parameters": {"type": "object"}, "strict": True})
    tag = registry.get_model_structural_tag("hermes", [tool], "required", reasoning=False)
    assert "max_whitespace_cnt=None" in repr(tag)
    assert xgrammar.structural_tag.JSONSchemaFormat(json_schema=True).max_whitespace_cnt is None


def test_json_has_little_white_space_and_fits_its_schema(client: httpx.Client, serving_installation: Any) -> None:
    """A random model would continue with line breaks until its tokens are used up."""
    numbers = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": numbers | {"additionalProperties": False}}}
    for seed in range(12):
        body = {
            "model": serving_installation.entry.name,
            "messages": [{"role": "user", "content": f"{seed}"}],
            "max_tokens": 60,
            "seed": seed,
            "response_format": schema,
        }
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        content = choice["message"]["content"]
        assert json.loads(content) in ({"n": True}, {"n": False})
        assert not re.search(r"\s\s", content)


def test_white_space_in_a_call_is_bounded() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    testing = pytest.importorskip("xgrammar.testing")
    from serving.vllm_white_space_patch import bounded

    schema = {"type": "object", "properties": {"c": {"type": "integer"}}, "required": ["c"]}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    loops, ends = ('{"c":\n\n\n 1}', '{ "c": 1 }')
    for made, accepted in ((tag, (True, True)), (bounded(tag), (False, True))):
        grammar = xgrammar.Grammar.from_structural_tag(msgspec.json.encode(made).decode())
        found = tuple(testing._is_grammar_accept_string(grammar, text) for text in (loops, ends))
        assert found == accepted


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "p"}}])
def test_forced_call_fits_its_functions_schema(client: httpx.Client, serving_installation: Any, choice: Any) -> None:
    """Without the schema, a random model would call with any JSON. Its context is short."""
    function = {"name": "p", "parameters": {"properties": {"c": {"enum": [7, 8]}}, "required": ["c"]}}
    for seed in range(4):
        body = {
            "model": serving_installation.entry.name,
            "messages": [{"role": "user", "content": f"{seed}"}],
            "seed": seed,
            "tools": [{"type": "function", "function": function}],
            "tool_choice": choice,
            "parallel_tool_calls": False,
        }
        (answer,) = client.post("/v1/chat/completions", json=validate_chat(body)).json()["choices"]
        (call,) = answer["message"]["tool_calls"]
        assert msgspec.json.decode(call["function"]["arguments"])["c"] in (7, 8)
