"""Types of fields on which vLLM fails are refused with the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from api.inference.request_fields.types import check_chat_tools, check_types
from shared.errors import InvalidRequest

FUNCTION = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"structured_outputs": value}, "structured_outputs") for value in ("", [], 0, True, "x", [{}])),
        ({"top_k": 1 << 64}, "top_k"),
        ({"stream_interval": 1 << 70}, "stream_interval"),
        ({"seed": -(1 << 63) - 1}, "seed"),
        ({"repetition_detection": {"max_pattern_size": 1 << 70}}, "repetition_detection.max_pattern_size"),
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "vllm_xargs.kv_transfer_params"),
        ({"vllm_xargs": {"a": 1 << 64}}, "vllm_xargs.a"),
        ({"vllm_xargs": {"a": ["x", 1, 1 << 64]}}, "vllm_xargs.a[2]"),
        ({"structured_outputs": {"json": {"enum": [{"a": -(1 << 63) - 1}]}}}, "structured_outputs.json.enum[0].a"),
        (
            {"response_format": {"json_schema": {"schema": {"default": 1 << 64}}}},
            "response_format.json_schema.schema.default",
        ),
        ({"text": {"format": {"schema": {"default": 1 << 64}}}}, "text.format.schema.default"),
        (
            {"tools": [{"function": {"strict": True, "parameters": {"default": 1 << 64}}}]},
            "tools[0].function.parameters.default",
        ),
    ],
)
def test_field_on_which_vllm_fails_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_types(body)
    assert (refused.value.code, refused.value.param) == ("REQUEST_INVALID", param)


def test_other_values_pass() -> None:
    check_types({"structured_outputs": None, "top_k": (1 << 64) - 1, "vllm_xargs": {"a": 1}, "temperature": "hot"})
    check_types({"structured_outputs": {}, "vllm_xargs": "x", "repetition_detection": []})
    check_types({"structured_outputs": {"json": {"enum": [(1 << 64) - 1, -(1 << 63), 1e30]}}})


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "tools"),
        ({}, "tools"),
        ([FUNCTION, None], "tools[1]"),
        ([{}], "tools[0].function"),
        ([{"function": "add"}], "tools[0].function"),
        ([{"function": {}}], "tools[0].function.name"),
        ([{"function": {"name": 3}}], "tools[0].function.name"),
    ],
)
def test_tool_without_a_named_function_is_refused(tools: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_chat_tools({"tools": tools})
    assert (refused.value.code, refused.value.param) == ("REQUEST_INVALID", param)
    check_chat_tools({"tools": [FUNCTION]})
    check_chat_tools({"tools": None})
