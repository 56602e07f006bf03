"""Merge a request's template arguments with its adapter's, which are the defaults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHAT_PATHS = frozenset(("/v1/chat/completions", "/v1/responses", "/tokenize"))
"""A replica's paths whose requests use the chat template."""
EFFORT = frozenset(("enable_thinking", "reasoning_effort", "thinking", "thinking_effort"))
"""Names of template arguments that control whether and how much to think: a request that sets one of them overrides
them all.
"""


def with_template_arguments(path: str, body: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request to an adapter, for a replica; the same object if nothing is added.

    Args:
        path: the replica's path.
        body: the caller's.
        stored: the arguments that the adapter was trained with.
    """
    if not stored or path not in CHAT_PATHS or not ("messages" in body or "input" in body):
        return body
    own = body.get("chat_template_kwargs")
    if own is not None and not isinstance(own, dict):
        return body  # vLLM refuses it
    reasoning = body.get("reasoning")
    effort = body.get("reasoning_effort") or (reasoning.get("effort") if isinstance(reasoning, dict) else None)
    defaults = {name: value for name, value in stored.items() if not (effort and name in EFFORT)}
    return {**body, "chat_template_kwargs": {**defaults, **(own or {})}}
