"""OpenAI's error vocabulary: ``type`` and ``code`` of an error on OpenAI's routes, for programs that branch on them.

Our own code is next to them, in ``mens.code``, as on every route. If OpenAI has no code for the error, ``code`` is
ours.
"""

from __future__ import annotations

from shared.errors import Code, MensError

CODES: dict[Code, str] = {
    Code.KEY_MISSING: "invalid_api_key",
    Code.KEY_INVALID: "invalid_api_key",
    Code.KEY_EXPIRED: "invalid_api_key",
    Code.MODEL_NOT_FOUND: "model_not_found",
    Code.MODEL_UNCERTIFIED: "model_not_found",
    Code.RATE_LIMITED: "rate_limit_exceeded",
    Code.CONCURRENCY_LIMITED: "rate_limit_exceeded",
    Code.AUTHENTICATION_THROTTLED: "rate_limit_exceeded",
    Code.QUOTA_EXCEEDED: "insufficient_quota",
    Code.GPU_MINUTES_EXHAUSTED: "insufficient_quota",
    Code.QUEUED_JOBS_LIMITED: "rate_limit_exceeded",
    Code.CONTEXT_LENGTH_EXCEEDED: "context_length_exceeded",
    Code.FIELD_UNKNOWN: "unknown_parameter",
    Code.FIELD_UNSUPPORTED: "unsupported_parameter",
    Code.ROUTE_NOT_FOUND: "unknown_url",
}
FIELD_CODES = frozenset({Code.REQUEST_INVALID, Code.REQUEST_REJECTED, Code.CONTRACT_INVALID, Code.NAME_INVALID})
"""Our codes for a wrong field, for which OpenAI's code names the kind of fault."""
FAULTS = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
"""OpenAI's code for each of pydantic's faults."""


def openai_code(error: MensError) -> str | None:
    """Return OpenAI's code; our own code if OpenAI has none; None for a request without a wrong field, as at OpenAI."""
    if error.code not in FIELD_CODES:
        return CODES.get(error.code, str(error.code))
    fault = str(error.details.get("fault", ""))
    if fault in FAULTS:
        return FAULTS[fault]
    if error.param is None:
        return None
    return "invalid_type" if fault.endswith(("_type", "_parsing")) else "invalid_value"


def openai_type(error: MensError, status: int) -> str:
    """Return OpenAI's type: the class of the error."""
    if status == 429:
        return str(error.details.get("limit", "requests"))  # which limit was reached
    if error.code in (Code.QUOTA_EXCEEDED, Code.GPU_MINUTES_EXHAUSTED):
        return "insufficient_quota"
    return "server_error" if status >= 500 else "invalid_request_error"
