"""What of OpenAI's Responses API is answered: each request by itself. Pure.

A replica would keep a stored response in its own memory, for ever, and no other replica would know it. So nothing is
stored, and what needs a stored response is refused rather than answered by chance.
"""

from __future__ import annotations

from typing import Any

from api.openai_questions import asks_response
from shared.errors import Code, InvalidRequest

NEED_A_STORED_RESPONSE = ("previous_response_id", "conversation", "background")
FUNCTION = "function"


def stateless(body: dict[str, Any]) -> dict[str, Any]:
    """The request as a replica is asked it.

    Raises:
        InvalidRequest: ``RESPONSE_NOT_STORED``, ``TOOL_UNSUPPORTED``: a tool that the server itself would have to run.
            ``REQUEST_INVALID``: nothing is asked.
    """
    for name in NEED_A_STORED_RESPONSE:
        if body.get(name):
            raise _not_stored(name, "Send the whole conversation in `input`, and wait for the answer.")
    if body.get("store") is True:
        raise _not_stored("store", "Leave `store` out, or set it to false.")
    _refuse_tools_of_the_server(body.get("tools"))
    return {**asks_response(body), "store": False}


def _refuse_tools_of_the_server(tools: Any) -> None:
    for index, tool in enumerate(tools if isinstance(tools, list) else []):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != FUNCTION:
            raise InvalidRequest(
                Code.TOOL_UNSUPPORTED,
                f"A tool of the type {kind!r} would have to be run by the server, and it runs none.",
                remedy="Describe it as a function, and run it yourself.",
                param=f"tools[{index}].type",
            )


def _not_stored(param: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        Code.RESPONSE_NOT_STORED, f"`{param}` needs responses that are stored, and none is.", remedy=remedy, param=param
    )
