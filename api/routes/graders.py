"""OpenAI's graders: /v1/fine_tuning/alpha/graders, one answer at a time."""

from __future__ import annotations

import json
import time
from typing import Any

from anyio import CapacityLimiter, from_thread, to_thread
from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect

from api.errors import interrupted_response
from api.grader_sandboxes import RUNS_AT_ONCE as GRADER_RUNS_AT_ONCE
from api.inference.replicas.client import ReplicaDisconnected
from api.inference.request_validation import validate_chat
from api.openai.graders import GraderRun, RunGrader, ValidatedGrader, ValidateGrader, is_of_code, run_view
from api.services import Services, ServicesDep
from api.web.auth import TRAINER, Caller, CallerDep
from api.web.tenant_rates import GRADER_LIMIT
from shared.errors import Code, InvalidRequest, MensError, TooMany
from shared.graders.grading import Grade, check_runnable, grade, has_code, make_sample
from shared.sandbox.client import Sandbox

router = APIRouter(
    prefix="/v1/fine_tuning/alpha/graders", tags=["graders (OpenAI)"], dependencies=[*TRAINER, GRADER_LIMIT]
)

RUNS_AT_ONCE = CapacityLimiter(8)
"""Concurrent runs: a run that waits for a judge model holds its thread. Other routes have threads of their own, so they
do not wait for it."""
SANDBOXED_AT_ONCE = CapacityLimiter(GRADER_RUNS_AT_ONCE)
"""Threads of runs that have a sandbox: as many as sandboxes, so that no run waits for a thread."""


@router.post("/validate")
async def validate_grader(body: ValidateGrader, services: ServicesDep, caller: CallerDep) -> ValidatedGrader:
    """Validate a grader: its form, and for code that it compiles and has its function. Returns the normalised grader.

    This does not show that it can run here: without a sandbox, code is not checked.
    """
    if has_code(body.grader):
        try:
            async with services.sandboxes.lend(caller.tenant) as sandbox:
                await to_thread.run_sync(check_runnable, body.grader, sandbox, limiter=SANDBOXED_AT_ONCE)
        except InvalidRequest as error:
            if error.code != Code.SANDBOX_UNAVAILABLE:
                raise
    return ValidatedGrader(grader=body.grader.model_dump(mode="json", exclude_none=True))


@router.post("/run")
async def run_grader(body: RunGrader, request: Request, services: ServicesDep, caller: CallerDep) -> GraderRun:
    """Run a grader on one answer. If it fails on this answer, the result is 0 with its error; a grader that cannot run
    here is refused.
    """
    remote = services.remote_models

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        if question["model"] in remote:
            return remote.complete(question)
        return from_thread.run(_complete, request, services, caller, question)

    def judge(sandbox: Sandbox | None) -> Grade:
        check_runnable(body.grader, sandbox, embeds=remote.embeds)
        began.append(time.monotonic())
        return grade(body.grader, body.item, make_sample(body.model_sample), ask, sandbox=sandbox, embed=remote.embed)

    began: list[float] = []
    result: Grade | MensError
    try:
        if has_code(body.grader):
            async with services.sandboxes.lend(caller.tenant) as sandbox:
                result = await to_thread.run_sync(judge, sandbox, limiter=SANDBOXED_AT_ONCE)
        else:
            result = await to_thread.run_sync(judge, None, limiter=RUNS_AT_ONCE)
    except MensError as error:
        # A limit of the key is not the answer's fault, and a grader that cannot be run here judges no answer. But code
        # that does not compile, and a failed sandbox, have separate flags.
        if isinstance(error, TooMany) or not (began or is_of_code(error)):
            raise
        result = error
    return run_view(body.grader, result, time.monotonic() - (began or [time.monotonic()])[0])


async def _complete(request: Request, services: Services, caller: Caller, question: dict[str, Any]) -> dict[str, Any]:
    """Return the completion of a request to a judge model: with the caller's names, limits and usage."""
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
