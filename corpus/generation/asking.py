"""Requests to models: each is looked up in the store first, counted against the budget, sent with the common retry
rule, and its response stored.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import httpx
import msgspec

from corpus.filters.redactors import Redactors
from corpus.filters.secrets import find_secrets
from corpus.generation.budget import Spending, SpendingMeter
from corpus.generation.completions import ModelRequest, TokenCounts, read_completion
from corpus.generation.endpoints import ModelEndpoint
from corpus.generation.responses import FailedRequests, ResponseStore, StoredResponse
from corpus.verdicts import VerdictCode
from shared.errors import Code, InvalidRequest, MensError, Unavailable
from shared.http_retry import Outcome, Retries, describe_outcome, keyed_client

# With waits that double from a second: a server that restarts is back within half a minute.
ATTEMPTS = 6
LONGEST_WAIT_SECONDS = 60.0
LIMIT_PATIENCE_SECONDS = 900.0
"""How long to keep waiting while the server limits the caller's rate (429)."""
# The answer is not a stream: nothing arrives until the last token, which takes minutes on a CPU.
READ_SECONDS = 600.0
MAX_RESPONSE_BYTES = 16 << 20
OF_THE_REQUEST = frozenset({400, 413, 422})
"""Statuses that fail only this request, not the run."""
MAY_HAVE_COST = frozenset({408, 500, 502, 504, *range(520, 525)})
"""Statuses after which the model may have answered: the caller still pays for an answer that a gateway (including
Cloudflare's) did not deliver.
"""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
REFUSED_AT_FIRST = 10
"""If this many requests are refused before the first answer, the run ends: the cause is then not a single prompt."""
TOKENS_OF_A_TURN = 16
"""Upper bound on the tokens that a chat template adds to a turn."""
MOST_OF_A_MESSAGE, SHOWN_OF_A_MESSAGE = 10_000, 300
"""Number of characters of a server's message that are redacted, and of the result that are shown: a truncated value
would no longer be recognised by its form.
"""
REPLACEMENT = "\ufffd"
ADAPTER_HEADER = "x-mens-adapter"
_RETRY_HEADERS = ("retry-after", "retry-after-ms", ADAPTER_HEADER)


@dataclass(slots=True)
class _SentRequests:
    """The attempts of one request.

    Attributes:
        most: largest amount that one attempt may use.
        reserved: largest amount that all of them may use.
        count: number of attempts.
        lost: number of attempts that the server may have processed but whose response was not stored.
        is_last_lost: whether the last attempt is one of these.
    """

    most: Spending
    reserved: Spending
    count: int = 0
    lost: int = 0
    is_last_lost: bool = False

    def begin(self) -> None:
        """Count an attempt; it counts as lost until its outcome is known."""
        self.count += 1
        self.lost += 1
        self.is_last_lost = True

    def cost_nothing(self) -> None:
        """Note that the server did not process the last attempt."""
        self.lost -= self.is_last_lost
        self.is_last_lost = False


class GenerationStopped(Exception):
    """The run has ended; no further requests are sent."""


class RowDropped(Exception):
    """A row is left out."""

    def __init__(self, code: VerdictCode, note: str = "") -> None:
        super().__init__(code)
        self.code, self.note = code, note


class ModelAsker:
    """Answers of models, from the store or from their servers. Used by many threads.

    Args:
        endpoints: endpoints of the models, by their names in the recipe.
        redactors: redactors of personal data, applied before a response is stored.
        secret: secret key of the digests under which responses are stored.
        connections: largest number of concurrent requests.
    """

    def __init__(
        self,
        endpoints: Mapping[str, ModelEndpoint],
        store: ResponseStore,
        meter: SpendingMeter,
        redactors: Redactors,
        secret: bytes,
        connections: int,
    ) -> None:
        self.endpoints, self.meter = endpoints, meter
        self._store, self._redactors, self._secret = store, redactors, secret
        self._redacted_by = {"names": redactors.names, "rules": redactors.digests}
        self._client = keyed_client(read_seconds=READ_SECONDS, connections=connections)
        self._closing = threading.Event()
        self._reason: Exception | None = None
        self._in_flight: set[str] = set()
        # Guards what the threads count, and wakes those that wait for a response to the same request.
        self._changed = threading.Condition()
        # A redactor is called from one thread at a time (`corpus/filters/redactors.py`).
        self._redacting = threading.Lock()
        # For this run, by the model's name: an answer of one model does not show that requests to another are correct.
        self._answers = Counter[str]()
        self._refusals = Counter[str]()
        self._refused: dict[str, str] = {}

    def __enter__(self) -> ModelAsker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def stop(self, reason: Exception | None = None) -> None:
        """Send no further requests; responses to those in flight are still stored.

        Args:
            reason: the error that ends the run; later requests raise it too.
        """
        self._reason = self._reason or reason
        self._closing.set()

    def ask(self, request: ModelRequest) -> StoredResponse:
        """Return the response to a request. Each request is sent only once, in any number of threads and runs.

        Raises:
            RowDropped: the response has a fault, or a prompt contains a secret.
            BudgetSpent: the request could exceed the budget.
            GenerationStopped: the run ends.
            Unavailable: ``CORPUS_MODEL_UNAVAILABLE``: the server does not respond.
            InvalidRequest: ``CORPUS_MODEL_REFUSED``: it refuses the key, the model, or every request.
        """
        endpoint = self.endpoints[request.name]
        key = request.key(endpoint, self._secret, self._redacted_by)
        if any(find_secrets(turn["content"]) for turn in request.messages):
            raise RowDropped(VerdictCode.SECRET)
        with self._changed:
            self._changed.wait_for(lambda: key not in self._in_flight)
            if key in self._refused:
                raise RowDropped(VerdictCode.REQUEST_REFUSED, self._refused[key])
            response = self._store.get(key)
            if response and response.fault == VerdictCode.REQUEST_REFUSED:
                response = None  # an earlier version stored refusals
            if response is None:
                self._in_flight.add(key)
            else:
                self._answers[request.name] += 1
        if response is None:
            try:
                response = self._send(request, endpoint, key)
            finally:
                with self._changed:
                    self._in_flight.discard(key)
                    self._changed.notify_all()
        if response.fault:
            raise RowDropped(VerdictCode(response.fault))
        return response

    def _send(self, request: ModelRequest, endpoint: ModelEndpoint, key: str) -> StoredResponse:
        most_prompt = sum(len(turn["content"].encode()) + TOKENS_OF_A_TURN for turn in request.messages)
        most = self.meter.usage(request.name, most_prompt, request.max_tokens)
        body = msgspec.json.encode(request.body(endpoint.model))
        sent = _SentRequests(most, replace(most))
        self.meter.reserve(most)
        used: Spending | None = None
        try:
            retries = Retries(
                ATTEMPTS,
                LONGEST_WAIT_SECONDS,
                limit_seconds=LIMIT_PATIENCE_SECONDS,
                pause=lambda seconds, _: self._closing.wait(seconds),
            )
            outcome = retries.send(partial(self._post, endpoint, body, sent))
            response = self._response(request, endpoint, key, outcome, most_prompt, sent.count)
            self._store.add(response)
            sent.lost -= 1
            used = self.meter.usage(request.name, response.prompt_tokens, response.answer_tokens, sent.count)
            return response
        except MensError as error:
            # At once: other threads would send more requests until the run notices.
            self.stop(error)
            raise
        finally:
            failed = FailedRequests(
                name=request.name,
                requests=0 if used else sent.count,
                prompt_tokens=sent.lost * most_prompt,
                answer_tokens=sent.lost * request.max_tokens,
            )
            used = used or Spending(sent.count)
            used.add(self.meter.usage(request.name, failed.prompt_tokens, failed.answer_tokens, 0))
            self.meter.settle(sent.reserved, used)
            if failed.requests or sent.lost:
                # A full disk is reported for this response, or for the next one.
                with suppress(MensError):
                    self._store.add_failed(failed)

    def _post(self, endpoint: ModelEndpoint, body: bytes, sent: _SentRequests) -> httpx.Response:
        if self._closing.is_set():
            raise self._reason or GenerationStopped
        if sent.count:
            more = sent.most if sent.is_last_lost else Spending(1)
            self.meter.reserve(more, again=True)
            sent.reserved.add(more)
        sent.begin()
        headers = {"Content-Type": "application/json", **endpoint.headers}
        if endpoint.key:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        url = f"{endpoint.url}/chat/completions"
        try:
            with self._client.stream("POST", url, content=body, headers=headers) as response:
                if not response.is_success and response.status_code not in MAY_HAVE_COST:
                    sent.cost_nothing()
                content = bytearray()
                for part in response.iter_bytes():
                    content += part
                    if len(content) > MAX_RESPONSE_BYTES:
                        raise _refused(endpoint, f"its response has more than {MAX_RESPONSE_BYTES >> 20} MiB")
        except NOT_SENT:
            sent.cost_nothing()
            raise
        kept = [(name, response.headers[name]) for name in _RETRY_HEADERS if name in response.headers]
        return httpx.Response(response.status_code, headers=kept, content=bytes(content))

    def _response(
        self,
        request: ModelRequest,
        endpoint: ModelEndpoint,
        key: str,
        outcome: Outcome,
        most_prompt: int,
        requests: int,
    ) -> StoredResponse:
        if isinstance(outcome, httpx.RequestError) or not outcome.is_success:
            raise self._failure(request, endpoint, key, outcome)
        try:
            completion, is_whole = read_completion(outcome.content)
            choice = completion.choices[0]
        except (ValueError, IndexError, RecursionError):
            raise _refused(endpoint, "its response is not a chat completion") from None
        with self._changed:
            self._answers[request.name] += 1
        counts = completion.usage or TokenCounts()
        # A server that repeats the headers of a request must not bring its key into a file.
        text = _without(choice.message.content or "", endpoint.key)
        fault = ""
        if choice.message.refusal or choice.finish_reason == "content_filter":
            fault = VerdictCode.MODEL_REFUSED
        elif choice.finish_reason == "length":
            fault = VerdictCode.CUT_OFF
        elif not is_whole and REPLACEMENT in text:
            fault = VerdictCode.LONE_SURROGATE
        elif find_secrets(text):
            fault = VerdictCode.SECRET
        with self._redacting:
            redacted = self._redactors.redact(["" if fault else text])
        return StoredResponse(
            key=key,
            name=request.name,
            model=_without(completion.model or "", endpoint.key),
            revision=_without(outcome.headers.get(ADAPTER_HEADER) or completion.system_fingerprint or "", endpoint.key),
            text=redacted.texts[0],
            fault=fault,
            redactions=dict(redacted.counts.get(0, {})),
            # If the server reports no count, the largest possible number.
            prompt_tokens=most_prompt if counts.prompt_tokens is None else counts.prompt_tokens,
            answer_tokens=request.max_tokens if counts.completion_tokens is None else counts.completion_tokens,
            requests=requests,
        )

    def _failure(self, request: ModelRequest, endpoint: ModelEndpoint, key: str, outcome: Outcome) -> Exception:
        """Return why a row is left out, or the error that ends the run."""
        reason = describe_outcome(outcome)
        if isinstance(outcome, httpx.RequestError):
            return _unavailable(endpoint, reason)
        status = outcome.status_code
        if status in OF_THE_REQUEST:
            reason = f"{reason}{self._message(outcome, endpoint)}"
            with self._changed:
                # Only in this run: the recipe or the server may be to blame, which the user will correct.
                self._refused[key] = reason
                self._refusals[request.name] += 1
                is_always = not self._answers[request.name] and self._refusals[request.name] >= REFUSED_AT_FIRST
            if is_always:
                return _refused(endpoint, f"it refuses every request: {reason}")
            return RowDropped(VerdictCode.REQUEST_REFUSED, reason)
        if 300 <= status < 500 and status not in (408, 409, 429):
            # Another server's message is left out, because the message about a refused key may quote the key.
            return _refused(
                endpoint, f"it returns {reason}{self._message(outcome, endpoint) if endpoint.is_ours else ''}"
            )
        return _unavailable(endpoint, reason)

    def _message(self, response: httpx.Response, endpoint: ModelEndpoint) -> str:
        """Return the message of an error response on one line, redacted for display: servers may repeat the prompt or
        the key in it.
        """
        try:
            text = str(response.json()["error"]["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            text = response.text
        text = _without(" ".join(text.split()), endpoint.key)[:MOST_OF_A_MESSAGE]
        if find_secrets(text):
            return ""
        with self._redacting:
            [text] = self._redactors.redact([text]).texts
        return f": {text[:SHOWN_OF_A_MESSAGE]}" if text else ""


def _unavailable(endpoint: ModelEndpoint, reason: str) -> MensError:
    return Unavailable(
        Code.CORPUS_MODEL_UNAVAILABLE,
        f"The server of {endpoint.name}, {endpoint.url}, does not respond: {reason}.",
        remedy="Check that it is running, and run the command again: stored responses are not requested again.",
    )


def _refused(endpoint: ModelEndpoint, reason: str) -> MensError:
    remedy = "Check the name of the model in the recipe, and that its installation serves it (`mens models`)."
    if not endpoint.is_ours:
        remedy = f"Check url, key and model of {endpoint.name} in MENS_REMOTE_MODELS, and the fields of the column."
    return InvalidRequest(
        Code.CORPUS_MODEL_REFUSED,
        f"{endpoint.name} at {endpoint.url} refuses requests: {reason}.",
        remedy=remedy,
        param="model",
    )


def _without(text: str, key: str) -> str:
    return text.replace(key, "[key]") if key else text
