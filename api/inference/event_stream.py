"""Format of the server-sent events that vLLM writes."""

from __future__ import annotations

EVENT_STREAM = "text/event-stream"
EVENT_END = b"\n\n"
DATA = b"data: "
ERROR_EVENT = b'data: {"error":'
"""The beginning of an event that ends a stream: vLLM refuses the request, or has failed."""
