"""The load on marker adapters, the outcome of each request, and the adapters to which an alias may have pointed at the
time of the request.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.support.waiting import eventually

ADAPTER_HEADER = "x-mens-adapter"


@dataclass(frozen=True)
class Prompt:
    """Something to ask; ``text`` is what the engine sees of it, with the template's marks when it is a chat."""

    path: str
    content: dict[str, Any]
    text: str

    @classmethod
    def plain(cls, text: str) -> Prompt:
        return cls("/v1/completions", {"prompt": text}, text)

    @classmethod
    def chat(cls, text: str) -> Prompt:
        seen = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return cls("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, seen)


@dataclass(frozen=True)
class Question:
    """One request; ``scored``: with the log-probabilities of its prompt, which vLLM gives of no stream."""

    model: str
    prompt: Prompt
    tokens: int
    streamed: bool
    user: str
    scored: bool = False

    @property
    def body(self) -> dict[str, Any]:
        asked = {"model": self.model, "max_tokens": self.tokens, "stream": self.streamed, "user": self.user}
        scored = {"prompt_logprobs": 0} if self.scored else {}
        return asked | self.prompt.content | {"temperature": 0, "ignore_eos": True} | scored


@dataclass
class Outcome:
    """Outcome of a question; times are of the monotonic clock (s).

    Attributes:
        sent, headed, ended: times when it was sent, when its headers arrived, and when it ended.
        adapter: adapter that the header names.
        models: model that each piece of the body names.
        scores: log-probabilities of the prompt's tokens (nats), without the first, which has none.
        pieces: number of parts of the answer that arrived.
        whole: it ended as an answer ends.
        error: the client's error instead.
    """

    question: Question
    sent: float
    headed: float = math.inf
    ended: float = math.inf
    adapter: str | None = None
    models: set[str] = field(default_factory=set)
    text: str = ""
    scores: list[float] = field(default_factory=list)
    pieces: int = 0
    whole: bool = False
    error: str = ""


def ask(client: httpx.Client, question: Question) -> Outcome:
    """Ask, whatever becomes of it."""
    outcome = Outcome(question, time.monotonic())
    pursue(client, outcome)
    return outcome


def pursue(client: httpx.Client, outcome: Outcome) -> None:
    """Ask, and fill the outcome in as the answer comes."""
    question = outcome.question
    try:
        with client.stream("POST", question.prompt.path, json=question.body) as answer:
            outcome.headed, outcome.adapter = time.monotonic(), answer.headers.get(ADAPTER_HEADER)
            if answer.status_code == 200:
                _read(answer, outcome)
            else:
                outcome.error = f"{answer.status_code} {answer.read()[:300]!r}"
    except httpx.TransportError as error:
        outcome.error = repr(error)
    outcome.ended = time.monotonic()


def _read(answer: httpx.Response, outcome: Outcome) -> None:
    for line in answer.iter_lines():
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            outcome.whole = True
        elif data:
            outcome.pieces += 1
            _add(json.loads(data), outcome)
    outcome.whole |= not outcome.question.streamed


def _add(piece: dict[str, Any], outcome: Outcome) -> None:
    if "error" in piece:
        outcome.error = str(piece["error"])
        return
    outcome.models.add(piece["model"])
    for choice in piece["choices"]:
        message = choice.get("delta") or choice.get("message") or {}
        outcome.text += choice.get("text") or message.get("content") or ""
        scores = choice.get("prompt_logprobs") or piece.get("prompt_logprobs") or []
        outcome.scores += [score["logprob"] for position in scores if position for score in position.values()]


@dataclass(frozen=True)
class Meaning:
    """Target of an alias after a move; the move was made between ``began`` and ``ended``."""

    adapters: frozenset[str]
    began: float
    ended: float


class MovingAlias:
    """An alias that is moved while it is asked, and the record of what it has meant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._meanings: list[Meaning] = []

    def move(self, to: Callable[[], list[str]], *, slack: float = 0.0) -> None:
        """Move it by a call that gives its adapters; ``slack`` seconds later at the latest, everybody knows."""
        began = time.monotonic()
        adapters = frozenset(to())
        self._meanings.append(Meaning(adapters, began, time.monotonic() + slack))

    @property
    def moves(self) -> int:
        return len(self._meanings)

    def meant(self, sent: float, headed: float) -> list[Meaning]:
        """All that it could have meant at some moment of the time span."""
        ends = [meaning.ended for meaning in self._meanings[1:]] + [math.inf]
        spans = zip(self._meanings, ends, strict=True)
        return [meaning for meaning, end in spans if meaning.began <= headed and end >= sent]


class Load:
    """Threads that send requests continuously.

    Args:
        client: makes a client; each thread has its own.
        questions: makes a thread's next question.
        askers: how many threads.

    Attributes:
        outcomes: outcomes of all questions, including those in flight.
        pause: seconds that a thread waits between two questions.
    """

    def __init__(
        self, client: Callable[[], httpx.Client], questions: Callable[[Random], Question], askers: int
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.pause = 0.0
        self._client, self._questions = client, questions
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._keep_asking, args=(Random(n),)) for n in range(askers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, count: int, seconds: float) -> None:
        """Wait until this many more questions have ended."""
        before = self._over_already()
        eventually(lambda: self._over_already() >= before + count, seconds, f"{count} more questions are over")

    def _over_already(self) -> int:
        return sum(outcome.ended < math.inf for outcome in list(self.outcomes))

    def scored(self) -> int:
        """Answers that had scores of their prompt."""
        return sum(bool(outcome.scores) for outcome in list(self.outcomes))

    def begun(self) -> dict[int, int]:
        """Streams that have begun and not ended: index of the outcome → pieces that are here."""
        outcomes = enumerate(list(self.outcomes))
        return {at: o.pieces for at, o in outcomes if o.question.streamed and o.pieces and o.ended == math.inf}

    def _keep_asking(self, random: Random) -> None:
        with self._client() as client:
            while not self._over.wait(self.pause):
                outcome = Outcome(self._questions(random), time.monotonic())
                self.outcomes.append(outcome)
                pursue(client, outcome)


def settled(outcomes: list[Outcome], alias: MovingAlias) -> Iterator[tuple[Meaning, Outcome]]:
    """Those outcomes during which the alias had one meaning, with it."""
    for outcome in outcomes:
        if outcome.question.model == alias.name and outcome.adapter:
            meanings = alias.meant(outcome.sent, outcome.headed)
            if len(meanings) == 1:
                yield meanings[0], outcome
