"""Usage taps: a caller gets exactly the bytes that it requested, whatever the texts are and however the network splits
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inference.usage.taps import CompletionEvents, ResponseEvents, Tap, WholeBody
from shared.database.usage import Amount

TRAPS = (
    ',"usage":{',
    '],"usage":{"prompt_tokens":1}',
    '"choices":[],"usage":{"prompt_tokens":9}',
    "\\",
    '"',
    "\n\n",
    "}",
)
TEXTS = st.lists(st.one_of(st.sampled_from(TRAPS), st.text(max_size=8)), max_size=4).map("".join)
CUTS = st.lists(st.integers(0, 4000), max_size=8)
DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """As pydantic writes it."""
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


@dataclass(frozen=True)
class Piece:
    """One event of a stream: a choice's text, and its token count so far."""

    choice: int
    text: str
    completion_tokens: int
    prompt_tokens: int = 7


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion, **details}


FINAL = usage(14, 30, prompt_tokens_details={"cached_tokens": 8, "multimodal_tokens": None})


def stream(pieces: Iterable[Piece], *, every: bool, last: bool, first: dict[str, Any] | None = None) -> bytes:
    """Return events as vLLM sends them, with usage in every event or not, and in the last event or not."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1790000000, "model": 'we"ird'}
    events, tail = [], first or {}
    for piece in pieces:
        choice = {"index": piece.choice, "delta": {"content": piece.text}, "logprobs": None, "finish_reason": None}
        usage_ = {"usage": usage(piece.prompt_tokens, piece.completion_tokens)} if every else {}
        events.append(event({**head, "choices": [choice], **usage_, **tail}))
        tail = {}
    if last:
        events.append(event({**head, "choices": [], "usage": FINAL, "system_fingerprint": "vllm-0"}))
    return b"".join([*events, DONE])


def run(tap: Tap, data: bytes, cuts: Iterable[int] = ()) -> bytes:
    """Return the output when the network cuts the data at these places."""
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return b"".join([*(tap(data[begin:end]) for begin, end in pairwise(places)), tap.end()])


class Counted(list[Amount]):
    """The amounts that taps have counted."""

    def __call__(self, amount: Amount) -> None:
        self.append(amount)


def completions(counted: Callable[[Amount], None], *, choices: int = 1, last: bool = False, every: bool = False) -> Tap:
    return CompletionEvents(counted, choices=choices, keep_last=last, keep_every=every)


PIECES = st.lists(st.builds(Piece, st.integers(0, 1), TEXTS, st.integers(1, 100)), min_size=1, max_size=5)


@given(PIECES, CUTS, st.sampled_from([(False, False), (True, False), (True, True)]), TEXTS)
def test_caller_gets_what_vllm_would_have_sent_without_the_gateway(
    pieces: list[Piece], cuts: list[int], requested: tuple[bool, bool], prompt: str
) -> None:
    last, every = requested
    first = {"prompt_token_ids": None, "prompt_text": prompt}
    counted = Counted()
    tap = completions(counted, choices=2, last=last, every=every)
    got = run(tap, stream(pieces, every=True, last=True, first=first), cuts)
    assert got == stream(pieces, every=every, last=last, first=first)
    tap.close()
    assert counted == [Amount(1, 14, 8, 30)]


@given(PIECES, st.integers(0, 4000))
def test_early_disconnect_counts_the_tokens_reported_so_far(pieces: list[Piece], cut: int) -> None:
    data = stream(pieces, every=True, last=False)[: -len(DONE)]
    counted = Counted()
    tap = completions(counted, choices=2)
    passed = tap(data[:cut])
    tap.close()
    seen = pieces[: data[:cut].count(b"\n\n")]
    assert passed == stream(seen, every=False, last=False)[: -len(DONE)]
    by_choice = {piece.choice: piece.completion_tokens for piece in seen}
    assert counted == [Amount(1, 7 if seen else 0, 0, sum(by_choice.values()))]


def test_no_whole_event_is_held_back() -> None:
    tap = completions(Counted())
    for piece in (Piece(0, "a", 1), Piece(0, "b", 2)):
        whole = stream([piece], every=True, last=False)[: -len(DONE)]
        assert tap(whole) == stream([piece], every=False, last=False)[: -len(DONE)]


def test_prompts_are_added_up_and_count_once_for_their_choices() -> None:
    # Two prompts with two choices each; the last choice has not begun.
    counted = Counted()
    tap = completions(counted, choices=2)
    tap(
        stream(
            [Piece(0, "a", 1, 5), Piece(1, "b", 2, 5), Piece(2, "c", 3, 6), Piece(0, "d", 4, 5)], every=True, last=False
        )
    )
    tap.close()
    assert counted == [Amount(1, 5 + 6, 0, 4 + 2 + 3)]


def test_closing_twice_counts_once() -> None:
    counted = Counted()
    tap = completions(counted)
    tap.close()
    tap.close()
    assert counted == [Amount(1)]


def test_whole_response_in_one_event_keeps_its_usage() -> None:
    # Beam search: the whole response comes as one event, and its usage was not requested by the gateway.
    whole = event({"id": "c", "choices": [{"index": 0, "text": "x"}], "system_fingerprint": None, "usage": usage(3, 4)})
    counted = Counted()
    tap = completions(counted)
    assert run(tap, whole + DONE) == whole + DONE
    tap.close()
    assert counted == [Amount(1, 3, 0, 4)]


def test_error_in_a_stream_is_not_passed_and_earlier_usage_counts() -> None:
    begun, broken = stream([Piece(0, "a", 1)], every=True, last=False)[: -len(DONE)], event({"error": {"message": "x"}})
    counted = Counted()
    tap = completions(counted)
    passed = run(tap, begun + broken + DONE)
    assert passed.startswith(b"data: ")
    assert b"error" not in passed
    assert b"[DONE]" not in passed
    tap.close()
    assert counted == [Amount(1, 7, 0, 1)]


def test_last_event_without_its_blank_line_is_passed_on() -> None:
    assert run(completions(Counted()), b"data: [DONE]") == b"data: [DONE]"


@given(TEXTS, CUTS, st.sampled_from(["chat", "responses"]))
def test_whole_body_passes_unchanged_and_is_counted(text: str, cuts: list[int], kind: str) -> None:
    # What a caller can put into a response, its tools' schemas, must not count as usage.
    forged = {"usage": {"prompt_tokens": 1000, "input_tokens": 1000}}
    usage_ = {
        "chat": usage(3, 4, prompt_tokens_details={"cached_tokens": 2}),
        "responses": {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2, "turns": []}},
    }[kind]
    data = json.dumps({"choices": [text], "tools": [forged], "usage": usage_, "after": forged}).encode()
    counted = Counted()
    tap = WholeBody(counted)
    assert run(tap, data, cuts) == data
    tap.close()
    assert counted == [Amount(1, 3, 2, 4)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"a":' + b"[" * 100_000,
        b"not json",
        b"[]",
        b'{"usage":null}',
        b'{"usage":{"prompt_tokens":"x"}}',
        b"\xff",
    ],
)
def test_body_without_usage_is_a_request_without_tokens(body: bytes) -> None:
    counted = Counted()
    tap = WholeBody(counted)
    assert run(tap, body) == body
    tap.close()
    assert counted == [Amount(1)]


def test_embeddings_have_prompt_tokens_only() -> None:
    counted = Counted()
    tap = WholeBody(counted)
    tap(json.dumps({"data": [], "usage": {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": None}}).encode())
    tap.close()
    assert counted == [Amount(1, 6, 0, 0)]


@given(TEXTS, CUTS, st.sampled_from(["completed", "incomplete", "failed"]))
def test_responses_stream_passes_unchanged_and_counts_at_its_end(text: str, cuts: list[int], how: str) -> None:
    usage_ = {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}
    created = {"type": "response.created", "response": {"instructions": text, "usage": None}}
    delta = {"type": "response.output_text.delta", "delta": f"event: response.completed\ndata: {text}"}
    ended = {"type": f"response.{how}", "response": {"instructions": f"data: {text}", "usage": usage_}}
    data = b"".join(f"event: {body['type']}\n".encode() + event(body) for body in (created, delta, ended))
    counted = Counted()
    tap = ResponseEvents(counted)
    assert run(tap, data, cuts) == data
    tap.close()
    assert counted == [Amount(1, 3, 2, 4)]


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_nothing_is_passed_from_an_error_event_on(cut: int) -> None:
    before, error = b'data: {"id":"a","choices":[]}\n\n', b'data: {"error":{"code":500}}\n\n'
    data = before + error + b"data: [DONE]\n\n"
    tap = CompletionEvents(Counted(), choices=1, keep_last=True, keep_every=True)
    assert not tap.has_failed
    assert tap(data[:cut]) + tap(data[cut:]) + tap.end() == before
    assert tap.has_failed


def test_responses_stream_left_early_is_a_request_without_tokens() -> None:
    counted = Counted()
    tap = ResponseEvents(counted)
    tap(b"event: response.created\n" + event({"type": "response.created", "response": {"usage": None}}))
    tap.close()
    assert counted == [Amount(1)]
