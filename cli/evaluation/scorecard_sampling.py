"""Answers for a scorecard from a chat endpoint, with the server's own token counts. Waits while the server is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx

from cli.client.connection import Connection
from shared.errors import Code, Unavailable
from shared.http_retry import Retries
from shared.scorecard.attempts import Generate, Message, ModelAnswer
from shared.scorecard.run import MakeGenerate
from shared.scorecard.spec import ScorecardCondition, ScorecardSpec, ScorecardTask

ATTEMPTS = 4
TIMEOUT_SECONDS = 300.0


def sampler(
    spec: ScorecardSpec,
    client: httpx.Client,
    connection: Connection | None,
    wait: Callable[[float], None] = time.sleep,
) -> MakeGenerate:
    """Return the generator of answers to tasks: the endpoint that a condition names.

    Args:
        connection: the installation whose key is known; no other address gets this key.
        wait: called with the seconds to wait before a busy server is retried.
    """

    def make(condition: ScorecardCondition, _task: ScorecardTask) -> Generate:
        url = (condition.server_url or "").rstrip("/").removesuffix("/v1")
        is_ours = connection is not None and url == connection.url
        headers = {"Authorization": f"Bearer {connection.key}"} if connection and is_ours else {}

        def generate(messages: list[Message], _attempt: int) -> ModelAnswer:
            body = {
                "model": condition.model_id,
                "messages": messages,
                **spec.sampling.model_dump(exclude={"max_tokens"}),
            }
            body["max_completion_tokens"] = spec.sampling.max_tokens
            began = time.monotonic()
            response = _post(client, f"{url}/v1/chat/completions", headers, body, wait)
            return _answer(condition, response, (time.monotonic() - began) * 1_000)

        return generate

    return make


def _post(
    client: httpx.Client, url: str, headers: dict[str, str], body: dict[str, Any], wait: Callable[[float], None]
) -> httpx.Response:
    retries = Retries(ATTEMPTS, pause=lambda seconds, _: wait(seconds))
    outcome = retries.send(partial(client.post, url, headers=headers, json=body, timeout=TIMEOUT_SECONDS))
    if isinstance(outcome, httpx.RequestError):
        failure = str(outcome) or type(outcome).__name__
    elif outcome.is_success:
        return outcome
    else:
        failure = f"{outcome.status_code}: {outcome.text[:300]}"
    remedy = "Finished tasks are kept: run the same command again to continue."
    raise Unavailable(Code.SERVING_FAILED, f"{url} did not answer: {failure}.", remedy=remedy)


def _answer(condition: ScorecardCondition, response: httpx.Response, latency_ms: float) -> ModelAnswer:
    try:
        completion = response.json()
        text, usage = completion["choices"][0]["message"]["content"], completion["usage"]
        return ModelAnswer(text or "", usage["prompt_tokens"], usage["completion_tokens"], latency_ms)
    except (ValueError, KeyError, IndexError, TypeError):
        message = f"{condition.server_url} did not return a chat completion with its usage: {response.text[:300]}"
        raise Unavailable(Code.SERVING_FAILED, message, retryable=False) from None
