"""Malformed fields that the gateway lets through: the installed vLLM refuses them with a 4xx or answers, but never
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from api.inference.request_fields import known
from api.inference.request_fields.types import check_types
from api.inference.request_validation import validate_chat, validate_completion, validate_response
from shared.errors import InvalidRequest

WRONG: tuple[Any, ...] = (0, -1, 1 << 64, 1.5, "", "x", [], [None], [{}], {}, {"a": 1})
NAMED = {"type": "function", "function": {"name": "add"}}
OUTPUTS: tuple[Any, ...] = (
    {"json": ""},
    {"json": {"type": "bogus"}},
    {"regex": "("},
    {"choice": []},
    {"grammar": "x"},
    {"structural_tag": {}},
)
LONG = 1 << 64
PARTS: tuple[Any, ...] = (
    ["x"],
    [{}],
    [{"type": 3}],
    [{"type": "text"}],
    [{"type": "refusal", "refusal": "x"}],
    [{"type": "output_text", "text": "x"}],
    [{"type": "image_url", "image_url": "x"}],
    [{"type": "input_audio", "input_audio": "x"}],
)
CALLS: tuple[Any, ...] = ("x", ["x"], [{}], [{"function": "x"}], [{"type": "function", "function": {}}])
MESSAGES: tuple[dict[str, Any], ...] = (
    {"function_call": {"name": "f", "arguments": "{}"}},
    *({"role": role, "content": parts} for role in ("user", "assistant", "tool") for parts in PARTS),
    *({"role": "assistant", "tool_calls": calls} for calls in CALLS),
    *({"role": "assistant", "function_call": call} for call in ("x", {"name": 3}, {"name": "f", "arguments": 3})),
)
"""Malformed and odd messages of a chat."""
ITEMS: tuple[dict[str, Any], ...] = (
    *({"type": "message", "role": "assistant", "content": parts} for parts in ([], *PARTS)),
    *({"type": kind, "call_id": 3, "output": [{}]} for kind in ("function_call", "function_call_output", "x")),
)
"""The same of a response's input."""
ROUTES: list[tuple[str, frozenset[str], Callable[..., Any], dict[str, Any]]] = [
    ("chat/completions", known.CHAT, validate_chat, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
    ("completions", known.COMPLETION, validate_completion, {"prompt": "x", "max_tokens": 1}),
    ("responses", known.RESPONSE, validate_response, {"input": "x", "max_output_tokens": 1}),
]


def changes(fields: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Each field with each wrong value, and some that are wrong further inside."""
    for field in sorted(fields - {"model"}):
        for value in WRONG:
            yield {field: value}
    for outputs in OUTPUTS:
        yield {"structured_outputs": outputs}
    for tools in ("x", [{}], [{"function": {}}], [{"function": {"name": 1}}]):
        for choice in (NAMED, "required", "auto", {}):
            yield {"tools": tools, "tool_choice": choice}
    if "messages" in fields:
        yield from ({"messages": [message]} for message in MESSAGES)
    if "input" in fields:
        yield from ({"input": [item]} for item in (*MESSAGES, *ITEMS))
    for outputs in ({"json": {"default": LONG}}, {"json": {"enum": [[LONG]]}}):
        yield {"structured_outputs": outputs}
    yield {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"default": LONG}}}}
    yield {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"default": LONG}}}}
    yield {"vllm_xargs": {"a": [LONG]}}
    for transfer in ("kv_transfer_params", "ec_transfer_params"):
        yield {"vllm_xargs": {transfer: "x"}}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("route", "fields", "validate", "body"), ROUTES, ids=[route[0] for route in ROUTES])
def test_vllm_fails_on_no_malformed_field(
    client: httpx.Client,
    serving_installation: Any,
    route: str,
    fields: frozenset[str],
    validate: Callable[..., Any],
    body: dict[str, Any],
) -> None:
    failed = []
    for change in changes(fields):
        try:
            sent = validate({"model": serving_installation.entry.name, **body, **change})
            check_types(sent)
        except InvalidRequest:
            continue
        # Not on a kept connection: what vLLM closes after one failure must not hide the next.
        content, headers = msgspec.json.encode(sent), {"content-type": "application/json", "connection": "close"}
        response = client.post(f"/v1/{route}", content=content, headers=headers)
        if response.status_code >= 500 or '"code": 500' in response.text[:500]:
            failed.append((change, response.status_code, response.text[:200]))
    assert not failed


@pytest.mark.parametrize("outputs", [{"json": {"$ref": "#"}}, {"grammar": "root ::= root"}])
def test_grammar_that_allows_no_token_has_a_message_that_is_known(
    client: httpx.Client, serving_installation: Any, outputs: dict[str, Any]
) -> None:
    from api.inference.vllm_errors import UNANSWERABLE

    body = {"model": serving_installation.entry.name, "prompt": "x", "max_tokens": 4, "structured_outputs": outputs}
    response = client.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["message"]) == (500, UNANSWERABLE)
