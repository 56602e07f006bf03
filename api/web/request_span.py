"""The span of a request: from its head to the end of its response, part of the caller's trace if it sent a
``traceparent``.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from shared.observability.log_context import current_ids
from shared.observability.tracing import begin_span, enter_span, leave_span

TRACEPARENT = b"traceparent"


def begin_request_span(scope: Scope) -> tuple[Any, Any]:
    """Return the span, which is current from now on, and the token for :func:`end_request_span`."""
    trace_parent = next((value for name, value in scope["headers"] if name == TRACEPARENT), b"").decode("latin-1")
    opened = begin_span(scope["method"], trace_parent or None)
    return opened, enter_span(opened)


def end_request_span(opened: Any, entered: Any, fields: dict[str, Any]) -> None:
    """End the request's span.

    Args:
        fields: fields of the request's line in the access log.
    """
    route = fields["route"] or ""
    opened.update_name(f"{fields['method']} {route}".strip())
    names = {
        "method": "http.request.method",
        "route": "http.route",
        "status": "http.response.status_code",
        "code": "mens.code",
    }
    values = {names[key]: value for key, value in fields.items() if key in names and value is not None}
    opened.set_attributes({**values, **{f"mens.{key}": value for key, value in current_ids().items()}})
    leave_span(opened, entered)
