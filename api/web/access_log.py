"""Access log: every request has a line in the log, with its id, and counts in the metrics.

Uvicorn would log before it sends the first byte; here the line is written after the response.
"""

from __future__ import annotations

import logging
from typing import Any

from starlette.routing import Route
from starlette.types import Scope

from api.errors import ERROR_CODE
from api.inference.gateway import REQUEST_ID
from api.metrics.requests import ApiMetrics, FinishedRequest

logger = logging.getLogger(__name__)


def log_request(
    scope: Scope, route: Route | None, status: int, seconds: float, first_byte: float | None
) -> dict[str, Any]:
    """Write a request's line and count the request; return the fields of the line.

    Args:
        scope: the request as it was sent.
        route: the route that answered; None for an unknown path.
        status: status of the response; 0 without one.
        seconds: time from the request's head to the end of the response.
        first_byte: seconds until the first byte of a stream.
    """
    path = None if route is None else route.path
    metrics: ApiMetrics = scope["app"].state.services.metrics
    metrics.finished(FinishedRequest(path, scope["method"], status, scope["state"], seconds, first_byte))
    # A caller's input must stay on the request's line: the path as it was sent, the id quoted.
    client, sent_path = (scope.get("client") or ("-",))[0], scope.get("raw_path", b"").decode("latin-1")
    # JSON lines have separate fields for these values; a line of text already contains them.
    fields: dict[str, Any] = {"method": scope["method"], "route": path, "status": status, "seconds": round(seconds, 6)}
    if (code := scope["state"].get(ERROR_CODE)) is not None:
        fields["code"] = code
    values = (client, scope["method"], sent_path, status, seconds * 1000, scope["state"][REQUEST_ID])
    logger.info("%s %s %s %d %.1f ms %a", *values, extra=fields)
    return fields
