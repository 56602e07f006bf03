"""Validation of requests to /v1/responses: nothing is stored, and requests that need a stored response are refused."""

from __future__ import annotations

from typing import Any

import pytest

from api.inference.request_validation import validate_response
from shared.errors import InvalidRequest

FUNCTION = {"type": "function", "name": "time", "parameters": {}}


@pytest.mark.parametrize("given", [{}, {"store": False}, {"store": None}])
def test_store_is_false_whatever_openais_default_is(given: dict[str, Any]) -> None:
    body = {"model": "m", "input": "Hello", "stream": True, "tools": [FUNCTION], **given}
    assert validate_response(body) == {**body, "store": False}


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "store"])
def test_field_that_needs_a_stored_response_is_refused(field: str) -> None:
    value = True if field in ("background", "store") else "resp_1"
    with pytest.raises(InvalidRequest) as refused:
        validate_response({"model": "m", "input": "Hello", field: value})
    assert (refused.value.code, refused.value.param) == ("RESPONSE_NOT_STORED", field)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "tools"])
@pytest.mark.parametrize("nothing", [None, False, []])
def test_empty_field_is_accepted(field: str, nothing: Any) -> None:
    assert validate_response({"model": "m", "input": "Hello", field: nothing})["store"] is False


@pytest.mark.parametrize("tool", [{"type": "mcp", "server_url": "http://x"}, {"type": "web_search"}, {}, "function"])
def test_tool_that_the_server_would_run_is_refused(tool: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_response({"model": "m", "input": "Hello", "tools": [FUNCTION, tool]})
    assert (refused.value.code, refused.value.param) == ("TOOL_UNSUPPORTED", "tools[1].type")


@pytest.mark.parametrize("kind", ["allowed_tools", "web_search_preview", "mcp", "custom", None])
def test_choice_that_would_be_taken_for_auto_is_refused(kind: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_response({"model": "m", "input": "Hello", "tools": [FUNCTION], "tool_choice": {"type": kind}})
    assert (refused.value.code, refused.value.param) == ("FIELD_UNSUPPORTED", "tool_choice")


@pytest.mark.parametrize("choice", ["none", "auto", "required", None, {"type": "function", "name": "time"}])
def test_choice_that_is_kept_passes(choice: Any) -> None:
    body = {"model": "m", "input": "Hello", "tools": [FUNCTION], "tool_choice": choice}
    assert validate_response(body)["tool_choice"] == choice


def test_callers_body_is_not_changed() -> None:
    body = {"model": "m", "input": "Hello"}
    validate_response(body)
    assert "store" not in body
