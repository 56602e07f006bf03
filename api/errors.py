"""From errors to HTTP: the one table of statuses, and OpenAI's error shape with our facts in a block of their own.

{"error": {"message", "type", "param", "code", "mens": {"remedy", "details", "retryable"}}}
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.faults import describe_faults
from api.limits import limit_headers
from api.rejections import Rejection
from shared import errors
from shared.contract import BAD_NAME, describe_bad_name
from shared.errors import Code, InvalidRequest, MensError

STATUS: dict[type[MensError], HTTPStatus] = {
    errors.InvalidRequest: HTTPStatus.BAD_REQUEST,
    errors.ContractRejected: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.DatasetInvalid: HTTPStatus.BAD_REQUEST,
    errors.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.TooMany: HTTPStatus.TOO_MANY_REQUESTS,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.LeaseLost: HTTPStatus.CONFLICT,
    errors.ArtifactInvalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.JobFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
}
OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
RETRY_AFTER_SECONDS = 2
SEE_OPENAPI = "See GET /v1/openapi.json for what is expected."
SEE_CONTRACT = "See GET /v1/openapi.json for what is expected; the contract's schema is at GET /v1/contract/schema."

logger = logging.getLogger(__name__)


def problem_response(error: MensError, status: int | None = None) -> JSONResponse:
    """The HTTP answer for an error."""
    status = status or status_of(error)
    return JSONResponse({"error": _body(error, status)}, status, headers=headers_of(error, status))


def problem_event(error: MensError) -> bytes:
    """The error as a server-sent event: how a stream that has begun tells it. OpenAI's clients raise it."""
    return b"data: " + json.dumps({"error": _body(error, status_of(error))}).encode() + b"\n\n"


def status_of(error: MensError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, Rejection) else STATUS[type(error)]


def headers_of(error: MensError, status: int) -> dict[str, str]:
    """Whether to ask again. OpenAI's clients retry 409 and 5xx by themselves unless they are told not to."""
    if isinstance(error, errors.TooMany):
        return limit_headers(error.details)
    if error.retryable:
        return {"Retry-After": str(RETRY_AFTER_SECONDS)}
    headers = {"x-should-retry": "false"}
    return {**headers, "WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else headers


def install(app: FastAPI) -> None:
    """Answer every error, ours and the framework's, in the one shape."""
    app.add_exception_handler(MensError, _answer_mens_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(Exception, _answer_bug)


def validation_problem(error: RequestValidationError, remedy: str = "") -> InvalidRequest:
    """The first fault of a body or query, with its field path.

    Args:
        error: what FastAPI found.
        remedy: where the caller reads what is expected; empty: where our own routes say it.
    """
    if isinstance(error.body, bytes):  # FastAPI has not read it, for it is not said to be JSON
        return _not_json()
    faults = describe_faults(error.errors(), error.body)
    path, reason = next(iter(faults.items()))
    return InvalidRequest(
        Code.NAME_INVALID if error.errors()[0]["type"] == BAD_NAME else Code.REQUEST_INVALID,
        f"{path or 'The request body'}: {reason}.",
        remedy=remedy or (SEE_CONTRACT if _is_in_contract(path, error.body) else SEE_OPENAPI),
        param=path or None,
        details={"errors": [{"param": path, "reason": reason} for path, reason in faults.items()]},
    )


def _not_json() -> InvalidRequest:
    return InvalidRequest(
        Code.REQUEST_INVALID,
        "The request body is not declared to be JSON.",
        remedy="Send the header `Content-Type: application/json`.",
    )


def _is_in_contract(path: str, body: object) -> bool:
    """Whether a field is one of the fine-tune contract: the whole one, or what of it is in OpenAI's request."""
    merges = isinstance(body, dict) and body.get("kind") == "merge"
    return path.partition(".")[0] in ("contract", "mens") and not merges


def _body(error: MensError, status: int) -> dict[str, Any]:
    default = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "message": f"{error.message} {error.remedy}".strip(),
        "type": OPENAI_TYPES.get(status, default),
        "param": error.param,
        "code": str(error.code),
        "mens": {"remedy": error.remedy, "details": error.details, "retryable": error.retryable},
    }


def _answer_mens_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MensError)
    return problem_response(error)


def _answer_validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(validation_problem(error), HTTPStatus.UNPROCESSABLE_ENTITY)


def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and (fault := _fault_of_slashed_alias(request)):
        named = InvalidRequest(Code.NAME_INVALID, f"name: {fault}.", remedy=SEE_OPENAPI, param="name")
        return problem_response(named, HTTPStatus.UNPROCESSABLE_ENTITY)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        code, message = Code.METHOD_NOT_ALLOWED, f"{request.method} is not allowed on {request.url.path}."
    elif error.status_code == HTTPStatus.NOT_FOUND:
        code, message = Code.ROUTE_NOT_FOUND, f"There is no route {request.method} {request.url.path}."
    else:
        code, message = Code.REQUEST_INVALID, str(error.detail)
    remedy = "See GET /v1/openapi.json for what there is."
    return problem_response(InvalidRequest(code, message, remedy=remedy), error.status_code)


def _fault_of_slashed_alias(request: Request) -> str | None:
    """What is wrong with an alias's name when it has a slash, quoted as it has to be: no route takes one, so none refused it."""
    _, _, name = request.url.path.partition("/v1/aliases/")
    return describe_bad_name(name) if name and b"%2f" in request.scope.get("raw_path", b"").lower() else None


def _answer_bug(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s %s met a bug", request.method, request.url.path, exc_info=error)
    bug = errors.JobFailed(
        Code.INTERNAL_ERROR, "The server met an unexpected error.", remedy="The API's log has the details."
    )
    return problem_response(bug)
