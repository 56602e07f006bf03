"""A replica's self-test: every few seconds, it requests an answer from the base and compares it with the first answer
after the start.

vLLM's ``/health`` shows that the engine's loop runs, not that it computes correctly. A single NaN in the KV cache that
all requests share makes every model return empty answers with status 200, until the replica restarts. So ``/health``
returns 503 until the first answer. It returns 503 again as soon as an answer is invalid, has a log-probability that is
not finite, or differs from the first. The replica then exits, and its supervisor restarts it.

The test runs in the replica instead of the API's health monitor for two reasons: an orchestrator's probe sees only this
replica, and each of several API processes would send its own test requests. Two tokens every ten seconds do not
noticeably delay other requests. A test waits in the engine's queue like any request, so on a busy replica it is late,
but never skipped. A missing answer alone does not fail the test. With a long queue, a working engine does not answer in
time either; if it exited, its load could overload the next replica. But a working engine makes progress on other
requests meanwhile. So the engine counts as hanging only if, for minutes, it has not answered the test, generated a
token or processed a part of a prompt.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import REGISTRY

from serving.metrics import SELF_TEST_PASSING, SELF_TESTS
from serving.middleware.asgi_types import App, Message
from shared.errors import Code, Unavailable

PROMPT = "."
"""Prompt of the test. It is short, so that it fills only the beginning of a block of the KV cache: the engine reads
whole blocks, and so finds a NaN that another request left in the rest. A long prompt would overwrite it.
"""
TOLERANCE = 0.25
"""Allowed difference of the first token's log-probability, in nats: in bfloat16, the rounding depends on the size of
the batch.
"""
ANSWER_SECONDS = 120.0
"""Time without an answer after which a warning is logged and the test is repeated."""
LATE_ANSWERS = 2
"""Number of consecutive late answers without progress of the engine after which it counts as hanging. The longest step
of a working engine, a full batch of prompts on a slow CPU, takes less than two such periods.
"""
PROGRESS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc")
"""vLLM's own metrics; the last one changes with each part of a long prompt. The engine reports the values, so they stay
the same while it hangs.
"""

IDLE_TOKENS = 0.5
"""Above this many tokens per second, the engine serves other requests too: the self-test alone generates fewer."""
SPEED = re.compile(r"throughput: ([\d.]+) tokens/s")

log = logging.getLogger("vllm.mens.self_test")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one test of the engine.

    Attributes:
        fault: description of the fault; None without a fault.
        logprob: log-probability of the answer's first token, in nats.
        is_certain: whether the result proves a broken engine, so that the test need not be repeated.
    """

    fault: str | None = None
    logprob: float = math.nan
    is_certain: bool = False


def engine_progress() -> tuple[float, ...]:
    """Return the values of metrics that change while the engine works; empty if vLLM exports none of them."""
    metrics = REGISTRY.restricted_registry(PROGRESS).collect()
    return tuple(sample.value for metric in metrics for sample in metric.samples if sample.name in PROGRESS)


class SelfTest:
    """Tests the engine from within the server's event loop. If it was never started, as in unit tests without vLLM, it
    counts as passing.

    Args:
        app: vLLM's application, behind the guard.
        key: the serving key, which vLLM requires too.
        progress: see :func:`engine_progress`.
    """

    def __init__(self, app: App, key: bytes, progress: Callable[[], tuple[float, ...]] = engine_progress) -> None:
        self._app = app
        self._key = key
        self._progress = progress
        self._reference: float | None = None
        self._fault: str | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, model: str, seconds: float, state: Any, on_fault: Callable[[], None]) -> None:
        """Begin the tests.

        Args:
            model: name of the base.
            seconds: seconds between two answers.
            state: vLLM's application, which its routes expect as ``app`` in their scope.
            on_fault: called once, when the engine is known to be broken.
        """
        self._fault = "the engine has not answered yet"
        self._task = asyncio.create_task(self._keep_asking(model, seconds, state, on_fault))

    def stop(self) -> None:
        """Stop the tests."""
        if self._task is not None:
            self._task.cancel()

    def raise_if_failed(self) -> None:
        """Raise an error if the engine failed its last test or was not tested yet.

        Raises:
            Unavailable: ``SERVING_UNAVAILABLE``.
        """
        if self._fault is not None:
            raise Unavailable(
                Code.SERVING_UNAVAILABLE,
                f"This replica failed its own test: {self._fault}.",
                remedy="Use another replica; this one restarts. Its log has the details.",
            )

    async def _keep_asking(self, model: str, seconds: float, state: Any, on_fault: Callable[[], None]) -> None:
        while True:
            verdict = await self._ask_until_known(model, state)
            # Test again, so that an answer that was cut off or rounded differently does not end the replica. A certain
            # fault, such as a NaN, is not tested again: another request may have overwritten this NaN, but further NaNs
            # may remain.
            if verdict.fault and not verdict.is_certain:
                verdict = await self._ask(model, state) or verdict
            self._fault = verdict.fault
            SELF_TESTS.labels("failed" if verdict.fault else "passed").inc()
            SELF_TEST_PASSING.set(verdict.fault is None)
            if verdict.fault:
                log.critical(
                    "The engine is broken: %s. This replica exits, so that it is started again.", verdict.fault
                )
                on_fault()
                return
            await asyncio.sleep(seconds)

    async def _ask_until_known(self, model: str, state: Any) -> Verdict:
        """Repeat the test until it is answered, and return the verdict. If the engine makes no progress meanwhile,
        return a verdict that it hangs.
        """
        seen = [self._progress()]
        while (verdict := await self._ask(model, state)) is None:
            seen = [*seen, self._progress()][-LATE_ANSWERS - 1 :]
            if len(seen) > LATE_ANSWERS and seen[0] and len(set(seen)) == 1:
                return Verdict(
                    f"no output was computed for any request in {LATE_ANSWERS * ANSWER_SECONDS:g} s", is_certain=True
                )
        return verdict

    async def _ask(self, model: str, state: Any) -> Verdict | None:
        """Test the engine once; return None if no answer arrived in time."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status, body = await self._complete(model, state)
        except TimeoutError:
            log.warning("The engine has not answered within %g s.", ANSWER_SECONDS)
            SELF_TESTS.labels("late").inc()
            return None
        except Exception as error:
            log.exception("The engine's test could not be sent.")
            return Verdict(f"the request failed ({type(error).__name__})")
        verdict = judge(status, body, self._reference)
        if verdict.fault is None and self._reference is None:
            log.info("The first answer's log-probability is %.4f.", verdict.logprob)
            self._reference = verdict.logprob
        return verdict

    async def _complete(self, model: str, state: Any) -> tuple[int, bytes]:
        """Send one request to vLLM's own route. A salt prevents a hit in the prefix cache, so that vLLM computes the
        answer again, in memory that other requests have used.
        """
        body = json.dumps(
            {
                "model": model,
                "prompt": PROMPT,
                "max_tokens": 2,
                "temperature": 0,
                "ignore_eos": True,
                "logprobs": 1,
                "cache_salt": uuid.uuid4().hex,
            }
        ).encode()
        path = "/v1/completions"
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if self._key:
            headers.append((b"authorization", b"Bearer " + self._key))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": headers,
            "client": None, "server": None, "app": state, "state": {},
        }  # fmt: skip
        messages: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])
        never = asyncio.Event()
        status, content = 500, bytearray()

        async def receive() -> Message:
            if (message := next(messages, None)) is None:
                await never.wait()  # this caller never disconnects
            assert message is not None
            return message

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            content.extend(message.get("body", b""))

        await self._app(scope, receive, send)
        return status, bytes(content)


def is_of_requests(record: logging.LogRecord) -> bool:
    """Return False for a log line of vLLM's statistics, which it writes every ten seconds, if the only requests were
    self-tests.
    """
    message = record.getMessage()
    speeds = [float(speed) for speed in SPEED.findall(message)]
    is_idle = "Running: 0 reqs, Waiting: 0 reqs" in message
    return not (speeds and is_idle and max(speeds) <= IDLE_TOKENS)


def judge(status: int, body: bytes, reference: float | None) -> Verdict:
    """Return the verdict on one answer.

    Args:
        status: the response's status.
        body: a completion in OpenAI's shape.
        reference: the log-probability of the first token in the first answer after the start; None for that answer
            itself.
    """
    try:
        logprobs = [float(logprob) for logprob in json.loads(body)["choices"][0]["logprobs"]["token_logprobs"]]
    except (ValueError, LookupError, TypeError):
        # vLLM cannot write a NaN as JSON, and responds with status 400; it has no other reason to refuse this request.
        return Verdict(f"no log-probabilities (status {status})", is_certain=status == 400)
    if len(logprobs) != 2 or not all(map(math.isfinite, logprobs)):
        return Verdict(f"log-probabilities {logprobs}", is_certain=True)
    if reference is not None and abs(logprobs[0] - reference) > TOLERANCE:
        return Verdict(f"log-probability {logprobs[0]:.4f}, which was {reference:.4f} after the start", logprobs[0])
    return Verdict(None, logprobs[0])
