"""Converts errors to HTTP: the single table of statuses, OpenAI's error shape with our own block `mens`, and field
paths.

{"error": {"message", "type", "param", "code", "mens": {"code", "remedy", "details", "retryable"}}}

On OpenAI's routes ``type`` and ``code`` are OpenAI's (`api/openai_vocabulary.py`); ``mens.code`` is ours on every route.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api.openai_vocabulary import openai_code, openai_type
from shared import errors
from shared.contract.faults import MISSING_FIELD, UNKNOWN_FIELD, reason_of, unknown_before_missing
from shared.contract.field_names import nearest_field
from shared.contract.values import BAD_NAME, describe_bad_name
from shared.errors import Code, InvalidRequest, MensError, Unavailable
from shared.host import disk_fault

STATUS: dict[type[MensError], HTTPStatus] = {
    errors.InvalidRequest: HTTPStatus.BAD_REQUEST,
    errors.ContractRejected: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.DatasetInvalid: HTTPStatus.BAD_REQUEST,
    errors.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.TooMany: HTTPStatus.TOO_MANY_REQUESTS,
    errors.TooSlow: HTTPStatus.REQUEST_TIMEOUT,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.LeaseLost: HTTPStatus.CONFLICT,
    errors.ArtifactInvalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.JobFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
}
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
RETRY_AFTER_SECONDS = 2
ERROR_CODE = "mens_error_code"
"""Name in a request's state of the code of its error."""
CLIENT_GONE = 499
"""Status in the log for a caller that disconnected; it is never received."""
OPENAI_PATHS = (
    "/v1/files", "/v1/uploads", "/v1/fine_tuning", "/v1/models", "/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings",
    "/v1/evals", "/v1/webhook_endpoints",
)  # fmt: skip
"""Prefixes of the paths where OpenAI's clients expect OpenAI's statuses and codes."""
OLLAMA_PATHS = "/api/"
SEE_OLLAMA_ROUTES = "Use a supported route of Ollama's API: /api/chat, /api/generate, /api/tags or /api/version."
SEE_TAGS = "List the available models with GET /api/tags."
SEE_OPENAPI = "See GET /v1/openapi.json for the expected fields."
WRITE_JSON = "Correct it there; most languages have a function that writes JSON."
SEE_CONTRACT = "See GET /v1/openapi.json for the expected fields; the contract's schema is at GET /v1/contract/schema."
logger = logging.getLogger(__name__)


class ErrorFields(BaseModel):
    """An error in OpenAI's shape, with a block of ours."""

    message: str
    type: str
    param: str | None
    code: str | None
    mens: dict[str, Any]


class ErrorAnswer(BaseModel):
    """Body of every error response, except for Ollama's routes."""

    error: ErrorFields


class OllamaErrorAnswer(BaseModel):
    """Body of every error response of Ollama's routes."""

    error: str
    code: str


def declared(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return error responses for the OpenAPI document, with a body of the given shape."""
    return {
        "4XX": {"model": answer, "description": "Refused; docs/errors.md has the codes."},
        "5XX": {
            "model": answer,
            "description": "Failed; docs/errors.md has the codes, and says which are worth a retry.",
        },
    }


def declared_of_other_type(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return error responses for the OpenAPI document of a route with another media type: FastAPI would otherwise
    declare its errors in that type.
    """
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}}
    responses = declared(answer).items()
    return {status: {"description": error["description"], "content": content} for status, error in responses}


class ErrorResponse(JSONResponse):
    """The HTTP response for an error; leaves the error's code in the request's state, for log and metrics."""

    def __init__(self, content: dict[str, Any], error: MensError, status: int) -> None:
        super().__init__(content, status, headers=headers_of(error, status))
        self._code = str(error.code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope.setdefault("state", {})[ERROR_CODE] = self._code
        await super().__call__(scope, receive, send)


def error_response(error: MensError, status: int | None = None) -> JSONResponse:
    """Return the HTTP response for an error, in the shape of our own routes."""
    status = status or status_of(error)
    return ErrorResponse({"error": _body(error, status)}, error, status)


def openai_error_response(error: MensError, status: int | None = None) -> JSONResponse:
    """Return the HTTP response for an error, in OpenAI's shape."""
    status = status or status_of(error)
    return ErrorResponse({"error": _openai_body(error, status)}, error, status)


def error_response_at(path: str, error: MensError, status: int | None = None) -> JSONResponse:
    """Return the HTTP response for an error, in the shape that a path's clients expect."""
    if path.startswith(OLLAMA_PATHS):
        return ollama_error_response(error, status)
    return openai_error_response(error, status) if path.startswith(OPENAI_PATHS) else error_response(error, status)


def ollama_error_response(error: MensError, status: int | None = None) -> JSONResponse:
    """Return the HTTP response for an error in Ollama's shape."""
    status = status or status_of(error)
    return ErrorResponse(ollama_error_body(error), error, status)


def ollama_error_body(error: MensError) -> dict[str, str]:
    """Return ``{"error": message, "code": code}``."""
    remedy = SEE_TAGS if error.code == Code.MODEL_NOT_FOUND else None
    return {"error": public_message(error, remedy), "code": str(error.code)}


def public_message(error: MensError, remedy: str | None = None) -> str:
    """Return the message for callers; why the database does not respond, with its address, goes only to the log."""
    is_internal = error.code == Code.DATABASE_UNAVAILABLE
    message = "The database did not respond." if is_internal else error.message
    return f"{message} {error.remedy if remedy is None else remedy}".strip()


def error_event(error: MensError) -> bytes:
    """Return the error as a server-sent event, for a stream that has begun. OpenAI's clients raise it."""
    return b"data: " + json.dumps({"error": _openai_body(error, status_of(error))}).encode() + b"\n\n"


def status_of(error: MensError) -> int:
    """Return the HTTP status of an error."""
    return error.status if isinstance(error, UpstreamError) else STATUS[type(error)]


def headers_of(error: MensError, status: int) -> dict[str, str]:
    """Return the headers that say whether to retry. OpenAI's clients retry 409 and 5xx unless a header forbids it."""
    if isinstance(error, errors.TooMany):
        return limit_headers(error.details)
    if error.retryable:
        return {"Retry-After": str(RETRY_AFTER_SECONDS)}
    headers = {"x-should-retry": "false"}
    return {**headers, "WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else headers


def install(app: FastAPI) -> None:
    """Register handlers so that every error, ours and the framework's, gets a response in the same shape."""
    for kind in (ClientDisconnect, MensError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle)


def unexpected_error(method: str, path: str, error: Exception) -> MensError:
    """Return the error that a caller gets for an unhandled exception; its details go only to the log.

    A disk's fault is ``STORAGE_FULL`` or ``STORAGE_UNAVAILABLE``.
    """
    if fault := disk_fault(error):
        logger.error("%s %s: %s", method, path, error)
        return fault
    logger.error("unexpected error in %s %s", method, path, exc_info=error)
    remedy = "The API's log has the details."
    return errors.JobFailed(Code.INTERNAL_ERROR, "The server had an unexpected error.", remedy=remedy)


def validation_error(error: RequestValidationError, remedy: str = "") -> InvalidRequest:
    """Return the first fault of a body or query, with its field path.

    Args:
        error: FastAPI's error.
        remedy: points to the description of the expected input; empty: the description of this API's own routes.
    """
    if isinstance(error.body, bytes):  # FastAPI has not parsed it, because it is not declared to be JSON
        return InvalidRequest(
            Code.REQUEST_INVALID,
            "The request body is not declared to be JSON.",
            remedy="Send the header `Content-Type: application/json`.",
        )
    pydantic_errors = unknown_before_missing(error.errors())
    if pydantic_errors[0]["type"] == NOT_JSON:
        return _not_json(pydantic_errors[0], error.body, remedy)
    faults = describe_faults(pydantic_errors, error.body)
    path, reason = next(iter(faults.items()))
    # This API's requests have the fine-tune contract in the field `contract`; OpenAI's have parts of it in the field
    # `mens`.
    is_merge = isinstance(error.body, dict) and error.body.get("kind") == "merge"
    is_in_contract = path.partition(".")[0] in ("contract", "mens") and not is_merge
    meant = None
    if pydantic_errors[0]["type"] == UNKNOWN_FIELD:
        meant = _meant(path, pydantic_errors, is_in_contract=is_in_contract)
    elif pydantic_errors[0]["type"] == UNKNOWN_PARAMETER:
        meant = next(iter(get_close_matches(path, pydantic_errors[0]["ctx"]["known"], n=1)), None)
    remedy = remedy or (SEE_CONTRACT if is_in_contract else SEE_OPENAPI)
    return InvalidRequest(
        Code.NAME_INVALID if pydantic_errors[0]["type"] == BAD_NAME else Code.REQUEST_INVALID,
        f"{path or 'The request body'}: {reason}.",
        remedy=f"Did you mean {meant}? {remedy}" if meant else remedy,
        param=path or None,
        details={
            "fault": pydantic_errors[0]["type"],
            "errors": [{"param": path, "reason": reason} for path, reason in faults.items()],
        },
    )


def _meant(path: str, pydantic_errors: Sequence[Mapping[str, Any]], *, is_in_contract: bool) -> str | None:
    """Return the field that was most likely meant by an unknown one; None if no field resembles it.

    Args:
        path: the unknown field's path.
        pydantic_errors: the faults, the unknown field's first.
        is_in_contract: whether the field is within the fine-tune contract.
    """
    block, _, inner = path.partition(".")
    if is_in_contract and inner:
        near = nearest_field(inner)
        return near and f"{block}.{near}"
    # Otherwise only the other missing fields are known.
    parent, _, name = path.rpartition(".")
    siblings = [
        str(fault["loc"][-1])
        for fault in pydantic_errors
        if fault["type"] == MISSING_FIELD and fault["loc"][:-1] == pydantic_errors[0]["loc"][:-1]
    ]
    close = get_close_matches(name, siblings, n=1)
    return f"{parent}.{close[0]}".lstrip(".") if close else None


def _not_json(fault: Mapping[str, Any], body: object, remedy: str) -> InvalidRequest:
    """Return the error for a body that FastAPI could not parse, with the place where the JSON becomes invalid."""
    position = fault["loc"][-1]
    # Python counts characters, but the caller's editor and the errors of model routes count bytes.
    byte = len(body[:position].encode(errors="surrogatepass")) if isinstance(body, str) else position
    reason = str(fault.get("ctx", {}).get("error", "")) or "it cannot be parsed"
    return InvalidRequest(
        Code.REQUEST_INVALID,
        f"The request body is not JSON: {reason} (byte {byte}).",
        remedy=remedy or WRITE_JSON,
        details={"fault": fault["type"], "byte": byte},
    )


def _body(error: MensError, status: int) -> dict[str, Any]:
    default = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "message": public_message(error),
        "type": TYPES.get(status, default),
        "param": error.param,
        "code": str(error.code),
        "mens": {
            "code": str(error.code),
            "remedy": error.remedy,
            "details": error.details,
            "retryable": error.retryable,
        },
    }


def _openai_body(error: MensError, status: int) -> dict[str, Any]:
    return _body(error, status) | {"type": openai_type(error, status), "code": openai_code(error)}


def _handle(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, RequestValidationError):
        return refused_fields_at(request.url.path, validation_error(error))
    if isinstance(error, HTTPException):
        return _handle_http_exception(request, error)
    assert isinstance(error, MensError)
    if isinstance(error, errors.ContractRejected):
        return refused_fields_at(request.url.path, error)
    if error.code == Code.DATABASE_UNAVAILABLE:
        logger.warning("%s %s: %s", request.method, request.url.path, error.message)
    return error_response_at(request.url.path, error)


def refused_fields_at(path: str, error: MensError) -> JSONResponse:
    """Return the HTTP response for wrong fields: 400 for OpenAI's clients, 422 for all others."""
    status = HTTPStatus.BAD_REQUEST if path.startswith(OPENAI_PATHS) else HTTPStatus.UNPROCESSABLE_ENTITY
    return error_response_at(path, error, status)


def _handle_http_exception(request: Request, error: HTTPException) -> Response:
    # A slash in an alias's name, quoted as required in a path, matches no route, so no route refused the name.
    _, _, name = request.url.path.partition("/v1/aliases/")
    has_slash = bool(name) and b"%2f" in request.scope.get("raw_path", b"").lower()
    if error.status_code == HTTPStatus.NOT_FOUND and has_slash and (fault := describe_bad_name(name)):
        named = InvalidRequest(Code.NAME_INVALID, f"name: {fault}.", remedy=SEE_OPENAPI, param="name")
        return error_response(named, HTTPStatus.UNPROCESSABLE_ENTITY)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
        code, message = Code.METHOD_NOT_ALLOWED, f"{request.method} is not allowed on {request.url.path}."
    elif error.status_code == HTTPStatus.NOT_FOUND:
        code, message = Code.ROUTE_NOT_FOUND, f"The route {request.method} {request.url.path} does not exist."
    else:
        code, message = Code.REQUEST_INVALID, str(error.detail)
    is_ollamas = request.url.path.startswith(OLLAMA_PATHS)
    remedy = SEE_OLLAMA_ROUTES if is_ollamas else "See GET /v1/openapi.json for the existing routes."
    response = error_response_at(request.url.path, InvalidRequest(code, message, remedy=remedy), error.status_code)
    response.headers.update(headers)
    return response


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes with the request's path."""
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.include_in_schema]
    methods = {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set()))


NOT_JSON = "json_invalid"
"""FastAPI's fault type for a body that is not JSON."""
UNKNOWN_PARAMETER = "unknown_parameter"
"""Our fault type for a query parameter that a route does not have; its context names the parameters that the route has.
"""
UNKNOWN_KIND = "unknown_kind"
"""Our fault type for a body whose ``kind`` the route does not have; pydantic gives it no field."""
OUTSIDE = ("path", "query", "header")
"""Parts of a request where a field may be, besides the body."""


def describe_faults(errors: Iterable[Mapping[str, Any]], sent: object) -> dict[str, str]:
    """Return the reasons by field path, in pydantic's order.

    Pydantic's locations also name the branches of a union that it tried. Those are not fields, so they are left out,
    and the reasons of all branches are joined.

    Args:
        errors: pydantic's errors.
        sent: the body that was validated; None if unknown.
    """
    faults: dict[str, list[str]] = {}
    for error in errors:
        location = [part for part in error["loc"] if part != "body"]
        if location and location[0] in OUTSIDE:  # this part is not in the body, so it has no branches to leave out
            path = ".".join(map(str, location[1:]))
        else:
            path = _path(location, sent, keep_last=error["type"] == "missing")
        if error["type"] == UNKNOWN_KIND:
            path = f"{path}.kind".lstrip(".")
        faults.setdefault(path, []).append(reason_of(error))
    return {path: "; or ".join(dict.fromkeys(reasons)) for path, reasons in faults.items()}


def _path(location: list[Any], sent: object, *, keep_last: bool) -> str:
    """Return the parts of a location that are fields of the body, including a missing field."""
    fields: list[str] = []
    for index, part in enumerate(location):
        if (isinstance(sent, dict) and part in sent) or (
            isinstance(sent, list) and isinstance(part, int) and part < len(sent)
        ):
            sent = sent[part]
        elif not (sent is None or (keep_last and index == len(location) - 1)):
            continue
        fields.append(str(part))
    return ".".join(fields)


def limit_headers(state: Mapping[str, Any]) -> dict[str, str]:
    """Return headers with the state of a key's limits: OpenAI's three for requests per minute and for tokens, and
    ``Retry-After``.

    Args:
        state: ``details`` of a :class:`TooMany`.
    """
    headers = {}
    for what, reset in (("requests", "reset_seconds"), ("tokens", "reset_tokens_seconds")):
        if f"{what}_per_minute" in state:
            headers[f"x-ratelimit-limit-{what}"] = str(state[f"{what}_per_minute"])
            headers[f"x-ratelimit-remaining-{what}"] = str(state[f"remaining_{what}"])
            headers[f"x-ratelimit-reset-{what}"] = _duration(state[reset])
    if "retry_after_seconds" in state:
        headers["Retry-After"] = str(state["retry_after_seconds"])
    return headers


def _duration(seconds: float) -> str:
    """Format a duration as OpenAI does: 1m30s, 0.25s."""
    minutes, rest = divmod(seconds, 60)
    return (f"{minutes:.0f}m" if minutes else "") + f"{rest:.3f}".rstrip("0").rstrip(".") + "s"


class UpstreamError(MensError):
    """A replica's error response; ``status`` is the replica's."""

    def __init__(self, code: Code, message: str, *, status: int, **more: Any) -> None:
        super().__init__(code, message, **more)
        self.status = status


def interrupted_response() -> Unavailable:
    """Return the error of a response that had begun when the replica disconnected."""
    return Unavailable(
        Code.SERVING_FAILED, "The serving replica disconnected in the middle of the response.", remedy="Try again."
    )
