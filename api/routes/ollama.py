"""The part of Ollama's API that talks to models: chat, generate, tags, version. Errors are in its shape too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from api.answer import Answer, PassedOn
from api.authentication import Caller, CallerDep
from api.gateway import CLIENT_GONE, open_answer, read_body
from api.ollama_answers import Answering, as_chat, as_generate, chunks, tag
from api.ollama_questions import Asked, ask_chat, ask_generate
from api.ollama_types import ChatQuestion, GenerateQuestion
from api.problems import headers_of, status_of, validation_problem
from api.rejections import broken_off
from api.replica_client import BrokenOff
from api.routes.models import list_models
from api.services import Services, ServicesDep
from shared.errors import Code, MensError, NotFound

NDJSON = "application/x-ndjson"
SEE_FIELDS = "docs/ollama.md says which fields and options count, and which may only be sent empty."
SEE_TAGS = "List what there is with GET /api/tags."

Question = TypeVar("Question", ChatQuestion, GenerateQuestion)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OllamaRoute(APIRoute):
    """A route whose errors are ``{"error": message, "code": code}``, those of its dependencies too."""

    def get_route_handler(self) -> Handler:
        """The handler, with errors turned into answers."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _problem(validation_problem(error, SEE_FIELDS))
            except MensError as error:
                return _problem(error)
            except ClientDisconnect:
                return Response(status_code=CLIENT_GONE)

        return answer


router = APIRouter(prefix="/api", tags=["chat (Ollama)"], route_class=OllamaRoute)


BODY: dict[str, Any] = {
    "requestBody": {
        "description": "As Ollama's documentation has it; docs/ollama.md says which fields count.",
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
            }
        },
    }
}
"""The body is read within the size limit, and so not by FastAPI."""


@router.post("/chat", openapi_extra=BODY)
async def chat(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The next turn of a chat; a stream of JSON lines unless ``stream`` is false."""
    question = await _read(request, services, ChatQuestion)
    answering = Answering(question.model, as_chat)
    return await _answer(request, services, caller, question, ask_chat(question), answering)


@router.post("/generate", openapi_extra=BODY)
async def generate(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """The answer to one prompt; a stream of JSON lines unless ``stream`` is false."""
    question = await _read(request, services, GenerateQuestion)
    answering = Answering(question.model, as_generate)
    return await _answer(request, services, caller, question, ask_generate(question), answering)


@router.get("/tags")
def tags(services: ServicesDep, caller: CallerDep) -> dict[str, Any]:
    """Everything that ``model`` may say."""
    return {"models": [tag(model) for model in list_models(services, caller).data]}


@router.get("/version")
def version(request: Request) -> dict[str, str]:
    """What answers here. Ollama's clients compare the version as numbers."""
    return {"version": request.app.version, "ollama": "compat-subset", "runtime": "vllm"}


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE", "HEAD"], include_in_schema=False)
def nothing_else(request: Request) -> None:
    """Refuses the rest of Ollama's API in its own shape."""
    raise NotFound(
        Code.ROUTE_NOT_FOUND,
        f"There is no route {request.method} {request.url.path}.",
        remedy="Of Ollama's API there are /api/chat, /api/generate, /api/tags and /api/version.",
    )


async def _read(request: Request, services: Services, kind: type[Question]) -> Question:
    body = await read_body(request, services.settings.max_body_bytes)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False), body=body) from None


async def _answer(
    request: Request,
    services: Services,
    caller: Caller,
    question: ChatQuestion | GenerateQuestion,
    asked: Asked,
    answering: Answering,
) -> Response:
    path, body = asked
    answer = await open_answer(services, caller, request, path, body)
    if answer is None:
        return Response(status_code=CLIENT_GONE)
    if body.get("stream"):
        return PassedOn(answer, _lines(answer, answering), {"content-type": NDJSON})
    completion = await _whole(answer)
    content = answering.loaded() if question.only_loads else answering.whole(completion)
    return JSONResponse(content, headers=_own(answer.headers))


async def _lines(answer: Answer, answering: Answering) -> AsyncIterator[bytes]:
    """Ollama's stream. What goes wrong after it has begun is its last line, as Ollama's clients expect it."""
    try:
        async for chunk in chunks(answer):
            for line in answering.lines(chunk):
                yield _line(line)
        yield _line(answering.last())
    except MensError as error:
        yield _line(_error(error))
    except BrokenOff:
        yield _line(_error(broken_off()))


async def _whole(answer: Answer) -> dict[str, Any]:
    try:
        completion: dict[str, Any] = json.loads(b"".join([chunk async for chunk in answer]))
    except BrokenOff:
        raise broken_off() from None
    finally:
        await answer.aclose()
    return completion


def _own(headers: dict[str, str]) -> dict[str, str]:
    """The answer's headers without those that speak of its body."""
    return {name: value for name, value in headers.items() if name != "content-type"}


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def _error(error: MensError) -> dict[str, str]:
    remedy = SEE_TAGS if error.code == Code.MODEL_NOT_FOUND else error.remedy
    return {"error": f"{error.message} {remedy}".strip(), "code": str(error.code)}


def _problem(error: MensError) -> JSONResponse:
    status = status_of(error)
    return JSONResponse(_error(error), status, headers=headers_of(error, status))
