"""/v1/responses: what would need a stored response is refused, and nothing is ever stored."""

from __future__ import annotations

from typing import Any

import pytest

from api.responses import stateless
from shared.errors import InvalidRequest

FUNCTION = {"type": "function", "name": "time", "parameters": {}}


@pytest.mark.parametrize("given", [{}, {"store": False}, {"store": None}])
def test_nothing_is_stored_though_openais_default_is_to_store(given: dict[str, Any]) -> None:
    body = {"model": "m", "input": "Hello", "stream": True, "tools": [FUNCTION], **given}
    assert stateless(body) == {**body, "store": False}


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "store"])
def test_what_needs_a_stored_response_is_refused(field: str) -> None:
    value = True if field in ("background", "store") else "resp_1"
    with pytest.raises(InvalidRequest) as refused:
        stateless({"model": "m", "input": "Hello", field: value})
    assert (refused.value.code, refused.value.param) == ("RESPONSE_NOT_STORED", field)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "tools"])
@pytest.mark.parametrize("nothing", [None, False, []])
def test_saying_that_it_is_not_wanted_is_no_request_for_it(field: str, nothing: Any) -> None:
    assert stateless({"model": "m", "input": "Hello", field: nothing})["store"] is False


@pytest.mark.parametrize("tool", [{"type": "mcp", "server_url": "http://x"}, {"type": "web_search"}, {}, "function"])
def test_a_tool_that_the_server_would_run_is_refused(tool: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        stateless({"model": "m", "input": "Hello", "tools": [FUNCTION, tool]})
    assert (refused.value.code, refused.value.param) == ("TOOL_UNSUPPORTED", "tools[1].type")


def test_the_callers_body_is_left_as_it_is() -> None:
    body = {"model": "m", "input": "Hello"}
    stateless(body)
    assert "store" not in body
