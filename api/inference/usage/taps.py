"""Usage taps: pass the bytes of a replica's response through, and record the token counts that vLLM adds to them.

vLLM reports a stream's usage only on request. So the gateway always requests it, in every event, to have it also when
the caller disconnects early; parts that the caller did not request are cut out again. The cutting needs no JSON parser:
inside a JSON string a quote is escaped, so ``,"`` never occurs inside one, and a string's closing quote is never
followed by a letter.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import msgspec

from api.inference.event_stream import DATA, ERROR_EVENT, EVENT_END
from api.inference.response_shape import (
    in_openais_shape,
    response_event_in_openais_shape,
    with_refusal,
)
from shared.database.usage import Amount

USAGE = b',"usage":{"prompt_tokens":'
OBJECT = re.compile(rb"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
"""Usage as vLLM writes it: numbers, and objects of numbers."""
KEY_LENGTH = len(b',"usage":')
NO_CHOICES = b'"choices":[]'
CHOICES_END = b"]"
CHOICE = re.compile(rb',"choices":\[\{"index":(\d+)')
WITH_PART = tuple(b"event: response.%s." % what for what in (b"output_item", b"content_part"))
"""Events that contain an item of a response, or a part of one."""
RESPONSE_ENDS = tuple(b"event: response.%s\n" % how for how in (b"completed", b"incomplete", b"failed"))
WITH_RESPONSE = (*RESPONSE_ENDS, b"event: response.created\n", b"event: response.in_progress\n")
"""Events that contain the whole response."""

Kind = TypeVar("Kind")


class Tap(ABC):
    """Processes the bytes of a successful response. Used on the event loop's thread.

    Args:
        count: called with the amount when the tap is closed.
    """

    has_failed = False

    def __init__(self, count: Callable[[Amount], None]) -> None:
        self._count: Callable[[Amount], None] | None = count

    @abstractmethod
    def __call__(self, chunk: bytes) -> bytes:
        """Take a chunk of the response; return the bytes for the caller, possibly none yet."""

    def end(self) -> bytes:
        """Return the remaining bytes for the caller after the response has ended normally."""
        return b""

    @abstractmethod
    def amount(self) -> Amount:
        """Return the usage of one request, with the tokens reported so far."""

    def close(self) -> None:
        """Count the amount, even if the response ended early. The second call does nothing."""
        count, self._count = self._count, None
        if count is not None:
            count(self.amount())


class Details(msgspec.Struct):
    """Details of the prompt's tokens."""

    cached_tokens: int | None = None


class VllmUsage(msgspec.Struct):
    """vLLM's ``usage`` on every route; the Responses API has other field names."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: Details | None = None

    def amount(self) -> Amount:
        """Return the usage as an amount of one request."""
        details = self.prompt_tokens_details or self.input_tokens_details
        return Amount(
            requests=1,
            prompt_tokens=self.prompt_tokens or self.input_tokens or 0,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            completion_tokens=self.completion_tokens or self.output_tokens or 0,
        )


class Body(msgspec.Struct):
    """A response's body; only its usage is read."""

    usage: VllmUsage | None = None


class Completed(msgspec.Struct):
    """The last event of a Responses stream."""

    response: Body


_usage = msgspec.json.Decoder(VllmUsage)
_body = msgspec.json.Decoder(Body)
_completed = msgspec.json.Decoder(Completed)


class WholeBody(Tap):
    """A response in one piece, which is JSON. It is passed on in OpenAI's shape once it has arrived completely.

    Args:
        shape: converts it to that shape.
    """

    def __init__(self, count: Callable[[Amount], None], shape: Callable[[bytes], bytes] = in_openais_shape) -> None:
        super().__init__(count)
        self._shape = shape
        self._chunks: list[bytes] = []

    def __call__(self, chunk: bytes) -> bytes:
        self._chunks.append(chunk)
        return b""

    def end(self) -> bytes:
        return self._shape(b"".join(self._chunks))

    def amount(self) -> Amount:
        body = _decode(_body, b"".join(self._chunks))
        return body.usage.amount() if body and body.usage else Amount(requests=1)


class Events(Tap):
    """A stream, event by event. Only the beginning of an incomplete event is held back.

    Attributes:
        has_failed: whether an event was vLLM's error. Neither it nor the rest is passed on.
    """

    def __init__(self, count: Callable[[Amount], None]) -> None:
        super().__init__(count)
        self._begun = b""

    def __call__(self, chunk: bytes) -> bytes:
        if self.has_failed:
            return b""
        data = self._begun + chunk if self._begun else chunk
        *events, self._begun = data.split(EVENT_END)
        if ERROR_EVENT in data:
            failed = next((index for index, event in enumerate(events) if event.startswith(ERROR_EVENT)), None)
            if failed is not None:
                self.has_failed, self._begun, events = True, b"", events[:failed]
        return b"".join([self._passed(event + EVENT_END) for event in events])

    def end(self) -> bytes:
        rest, self._begun = self._begun, b""
        return self._passed(rest) if rest else b""

    @abstractmethod
    def _passed(self, event: bytes) -> bytes:
        """Return the part of an event that the caller gets."""


class CompletionEvents(Events):
    """Events of chat completions and completions, without the usage that only the gateway requested.

    Args:
        choices: number of choices per prompt (``n``).
        keep_last: whether the caller requested the last event, which has usage and no choices.
        keep_every: whether it requested usage in every event.
    """

    def __init__(self, count: Callable[[Amount], None], *, choices: int, keep_last: bool, keep_every: bool) -> None:
        super().__init__(count)
        self._choices = choices
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._total = b""
        self._by_choice: dict[bytes, bytes] = {}

    def amount(self) -> Amount:
        if total := _decode(_usage, self._total):
            return total.amount()
        # The stream was left early: the sum over choices, each as of its last event. A prompt counts once for all choices
        # that it has.
        completion, prompts = 0, dict[int, int]()
        for choice, data in self._by_choice.items():
            if usage := _decode(_usage, data):
                completion += usage.completion_tokens or 0
                prompts[int(choice) // self._choices] = usage.prompt_tokens or 0
        return Amount(requests=1, prompt_tokens=sum(prompts.values()), completion_tokens=completion)

    def _passed(self, event: bytes) -> bytes:
        start = event.rfind(USAGE)
        usage = OBJECT.match(event, start + KEY_LENGTH) if start >= 0 else None
        if usage is None:
            return event
        if event.endswith(NO_CHOICES, 0, start):
            self._total = usage[0]
            return event if self._keep_last else b""
        if not event.endswith(CHOICES_END, 0, start):  # a response that vLLM does not stream: one event has all of it
            self._total = usage[0]
            return event
        choice = CHOICE.search(event)
        self._by_choice[choice[1] if choice else b"0"] = usage[0]
        return in_openais_shape(event) if self._keep_every else with_refusal(event[:start] + event[usage.end() :])


class ResponseEvents(Events):
    """Events of the Responses API: the last one always has usage."""

    def __init__(self, count: Callable[[Amount], None]) -> None:
        super().__init__(count)
        self._last = b""

    def amount(self) -> Amount:
        last = _decode(_completed, self._last.partition(DATA)[2])
        return last.response.usage.amount() if last and last.response.usage else Amount(requests=1)

    def _passed(self, event: bytes) -> bytes:
        if event.startswith(RESPONSE_ENDS):
            self._last = event
        if event.startswith(WITH_RESPONSE):
            return response_event_in_openais_shape(event)
        return in_openais_shape(event) if event.startswith(WITH_PART) else event


def _decode(decoder: msgspec.json.Decoder[Kind], data: bytes) -> Kind | None:
    """Decode vLLM's usage; None if it has another form, so that the tokens are unknown."""
    try:
        return decoder.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
