"""A patch of vLLM's Responses API: refuse tool choices that vLLM cannot enforce, as it does in chat completions.

vLLM (0.32) answers such requests with plain text. Without a parser of tool calls, it cannot find a call in the text.
And a forced call follows its function's schema only if the parser provides a structural tag or a schema. Mistral's
parser provides one only for chat completions.
"""

from __future__ import annotations

from typing import Any

from vllm.renderers.online_renderer import OnlineRenderer


def apply_patch() -> None:
    """Make vLLM refuse such requests, in this process. Idempotent."""
    render = OnlineRenderer.render_responses
    if getattr(render, "refuses_tool_choices", False):
        return

    async def render_or_refuse(renderer: Any, request: Any, **more: Any) -> Any:
        parser = renderer.parser.tool_parser_cls if renderer.parser else None
        fault = unkept(parser, request.tool_choice) if request.tools and not renderer.use_harmony else None
        if fault:
            return renderer.create_error_response(fault, param="tool_choice")
        return await render(renderer, request, **more)

    render_or_refuse.refuses_tool_choices = True  # type: ignore[attr-defined]
    OnlineRenderer.render_responses = render_or_refuse


def unkept(parser: Any, choice: Any) -> str | None:
    """Return the reason why a replica cannot enforce a tool choice; None if it can.

    Args:
        parser: vLLM's parser class of tool calls; None: the replica has no such parser.
        choice: the tool choice of a request with tools.
    """
    if choice == "none":
        return None
    if parser is None:
        return "Tool calls of this model cannot be parsed, so the tool choice must be `none`."
    is_held = parser.structural_tag_model is not None or parser.supports_required_and_named
    if choice == "auto" or is_held:
        return None
    return "Tool calls of this model can be forced only in chat completions; here, choose `auto` or `none`."
