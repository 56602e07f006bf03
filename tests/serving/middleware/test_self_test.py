"""The replica's test of itself, on an application that responds as vLLM would."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from serving.middleware.self_test import (
    LATE_ANSWERS,
    TOLERANCE,
    SelfTest,
    Verdict,
    engine_progress,
    is_of_requests,
    judge,
)
from shared.errors import Code, Unavailable

KEY = b"key"


def answer(*logprobs: float | None) -> bytes:
    return json.dumps({"choices": [{"text": "", "logprobs": {"token_logprobs": list(logprobs)}}]}).encode()


NAN = float("nan")
SOUND = answer(-1.5, -2.0)
BROKEN = {
    "nothing": (200, b""),
    "no choices": (200, b'{"choices": []}'),
    "no log-probabilities": (200, b'{"choices": [{"text": ""}]}'),
    "null": (200, answer(None, -2.0)),
    "one token": (200, answer(-1.5)),
    "NaN first": (200, answer(NAN, -2.0)),
    "NaN later": (200, answer(-1.5, NAN)),
    "infinite": (200, answer(-1.5, -float("inf"))),
    "refused": (400, b'{"error": {"message": "Out of range float values are not JSON compliant"}}'),
    "dead": (500, b"EngineDeadError"),
}


CERTAIN = {"one token", "NaN first", "NaN later", "infinite", "refused"}
"""Responses that a sound engine never gives."""


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("reference", [None, -1.5])
def test_broken_answers(kind: str, reference: float | None) -> None:
    verdict = judge(*BROKEN[kind], reference)
    assert verdict.fault
    assert verdict.is_certain is (kind in CERTAIN)


@pytest.mark.parametrize(
    ("found", "sound"),
    [(-1.5, True), (-1.5 - 0.9 * TOLERANCE, True), (-1.5 + 0.9 * TOLERANCE, True), (-1.8, False), (-1.2, False)],
)
def test_answer_is_that_after_the_start(found: float, sound: bool) -> None:
    assert judge(200, answer(found, -2.0), None) == Verdict(None, found)
    assert (judge(200, answer(found, -2.0), -1.5).fault is None) is sound


class AnsweringVllm:
    """Responds with the given answers, the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (scope["method"], scope["path"], scope["app"]) == ("POST", "/v1/completions", "state")
        assert (b"authorization", b"Bearer key") in scope["headers"]
        self.requests.append(json.loads((await receive())["body"]))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body[:9], "more_body": True})
        await send({"type": "http.response.body", "body": body[9:]})


def run(
    app: AnsweringVllm,
    until: Callable[[SelfTest], bool],
    progress: Callable[[], tuple[float, ...]] = engine_progress,
) -> tuple[list[str | None], int]:
    """What ``/health`` would have said after each answer, until a condition holds; and how often the replica was ended."""
    said: list[str | None] = []
    ended: list[bool] = []

    async def main() -> None:
        test = SelfTest(app, KEY, progress)
        test.raise_if_failed()
        test.start("base", 0.0, "state", lambda: ended.append(True))
        async with asyncio.timeout(10):
            while not until(test):
                try:
                    test.raise_if_failed()
                    said.append(None)
                except Unavailable as error:
                    assert error.code is Code.SERVING_UNAVAILABLE
                    said.append(error.message)
                await asyncio.sleep(0)
        test.stop()

    asyncio.run(main())
    return said, len(ended)


def test_healthy_from_the_first_answer_on() -> None:
    app = AnsweringVllm((200, SOUND))
    said, ended = run(app, lambda _: len(app.requests) > 5)
    assert "has not answered yet" in str(said[0])
    assert said[-1] is None
    assert ended == 0
    assert {one["model"] for one in app.requests} == {"base"}
    # Another salt each time: an answer from the prefix cache would prove nothing.
    assert len({one["cache_salt"] for one in app.requests}) == len(app.requests)


@pytest.mark.parametrize("kind", BROKEN)
def test_replica_that_breaks_is_unhealthy_and_ends_once(kind: str) -> None:
    app = AnsweringVllm((200, SOUND), (200, SOUND), BROKEN[kind])
    said, ended = run(app, is_over)
    assert ended == 1
    assert None in said
    assert len(app.requests) == (3 if kind in CERTAIN else 4), "it asks a second time, and then no more"


def test_one_bad_answer_ends_nothing() -> None:
    app = AnsweringVllm((200, SOUND), (500, b""), (200, SOUND))
    said, ended = run(app, lambda _: len(app.requests) > 6)
    assert (said[-1], ended) == (None, 0)


class SilentVllm(AnsweringVllm):
    """Gives this many answers, then none for ``silent`` requests."""

    def __init__(self, answers: int, silent: float) -> None:
        super().__init__((200, SOUND))
        self._silence = range(answers, answers + int(min(silent, 1e6)))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if len(self.requests) in self._silence:
            self.requests.append(json.loads((await receive())["body"]))
            await receive()  # the caller never hangs up
        await super().__call__(scope, receive, send)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.middleware.self_test.ANSWER_SECONDS", 0.01)


def is_over(test: SelfTest) -> bool:
    return test._task is not None and test._task.done()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("answers", [0, 1])
def test_engine_that_computes_nothing_for_anybody_hangs_and_ends_once(answers: int) -> None:
    app = SilentVllm(answers, math.inf)
    said, ended = run(app, is_over, lambda: (7.0, 3.0, 0.5))
    assert (ended, len(app.requests)) == (1, answers + LATE_ANSWERS)
    assert (None in said) is (answers > 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("changing", range(3))
def test_overloaded_engine_works_for_others_and_is_tested_again(changing: int) -> None:
    """One token in each such time is enough, or a part of a prompt."""
    app, counts = SilentVllm(1, 4 * LATE_ANSWERS), [7.0, 3.0, 0.5]

    def progress() -> tuple[float, ...]:
        counts[changing] += len(app.requests) % LATE_ANSWERS == 0
        return tuple(counts)

    said, ended = run(app, lambda _: len(app.requests) > 4 * LATE_ANSWERS + 3, progress)
    assert (said[-1], ended) == (None, 0)


@pytest.mark.usefixtures("impatient")
def test_silence_of_an_engine_that_reports_nothing_is_not_a_verdict() -> None:
    app = SilentVllm(1, 4 * LATE_ANSWERS)
    said, ended = run(app, lambda _: len(app.requests) > 4 * LATE_ANSWERS + 3, tuple)
    assert (said[-1], ended) == (None, 0)


def test_progress_is_read_from_vllms_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr("serving.middleware.self_test.REGISTRY", registry)
    assert engine_progress() == ()
    tokens = Counter("vllm:generation_tokens", "", ("engine",), registry=registry).labels("0")
    usage = Gauge("vllm:kv_cache_usage_perc", "", registry=registry)
    Counter("http_requests", "", registry=registry).inc()
    tokens.inc(3)
    usage.set(0.5)
    assert sorted(engine_progress()) == [0.5, 3.0]


@pytest.mark.parametrize(
    ("prompt", "generated", "running", "is_logged"),
    [(0.1, 0.2, 0, False), (0.0, 0.0, 0, False), (12.0, 0.2, 0, True), (0.1, 5.4, 0, True), (0.1, 0.2, 1, True)],
)
def test_statistics_of_the_self_test_alone_are_not_logged(
    prompt: float, generated: float, running: int, is_logged: bool
) -> None:
    line = (
        f"Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {generated} tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, CPU KV cache usage: 0.0%"
    )
    assert is_of_requests(logging.makeLogRecord({"msg": line})) is is_logged


def test_other_lines_of_the_engine_are_logged() -> None:
    assert is_of_requests(logging.makeLogRecord({"msg": "Running: 0 reqs, Waiting: 0 reqs"}))
