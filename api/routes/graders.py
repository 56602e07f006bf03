"""OpenAI's graders: /v1/fine_tuning/alpha/graders, one answer at a time."""

from __future__ import annotations

import json
import time
from typing import Any

from anyio import CapacityLimiter, from_thread, to_thread
from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect

from api.errors import interrupted_response
from api.inference.replicas.client import ReplicaDisconnected
from api.inference.request_validation import validate_chat
from api.openai.graders import GraderRun, RunGrader, ValidatedGrader, ValidateGrader, run_view
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, Caller, CallerDep
from api.web.tenant_rates import GRADER_LIMIT
from shared.errors import MensError, TooMany
from shared.graders.grading import Grade, check_runnable, grade, make_sample

router = APIRouter(
    prefix="/v1/fine_tuning/alpha/graders", tags=["graders (OpenAI)"], dependencies=[*TRAINER, GRADER_LIMIT]
)

RUNS_AT_ONCE = CapacityLimiter(8)
"""A run that waits for a model that judges holds its thread. Other routes have threads of their own, so they do not wait for it."""


@router.post("/validate")
def validate_grader(body: ValidateGrader) -> ValidatedGrader:
    """Whether a grader is well-formed; returns it as it was understood. That it can be run here is not said by this."""
    return ValidatedGrader(grader=body.grader.model_dump(mode="json", exclude_none=True))


@router.post("/run")
async def run_grader(body: RunGrader, request: Request, services: ServicesDep, caller: CallerDep) -> GraderRun:
    """Run a grader on one answer. One that fails at this answer gives 0 and its error; one that cannot be run here is refused."""

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        return from_thread.run(_complete, request, services, caller, question)

    def judge() -> Grade:
        check_runnable(body.grader)
        began.append(time.monotonic())
        return grade(body.grader, body.item, make_sample(body.model_sample), ask)

    began: list[float] = []
    result: Grade | MensError
    try:
        result = await to_thread.run_sync(judge, limiter=RUNS_AT_ONCE)
    except MensError as error:
        # A limit of the key is not the answer's fault, and a grader that cannot be run here judges no answer.
        if isinstance(error, TooMany) or not began:
            raise
        result = error
    return run_view(body.grader, result, time.monotonic() - began[0])


async def _complete(request: Request, services: Services, caller: Caller, question: dict[str, Any]) -> dict[str, Any]:
    """The completion of a request to a model that judges: with the caller's names, limits and usage."""
    response = await services.gateway.open(
        request, caller.key, caller.tenant, "/v1/chat/completions", validate_chat(question)
    )
    if response is None:
        raise ClientDisconnect
    try:
        completion: dict[str, Any] = json.loads(b"".join([chunk async for chunk in response]))
    except ReplicaDisconnected:
        raise interrupted_response() from None
    finally:
        await response.aclose()
    return completion
