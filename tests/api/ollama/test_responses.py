"""What Ollama's clients read of an answer, without a replica: lines of a stream, whole answers, tags."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.ollama_answers import Answering, as_chat, as_generate, chunks, tag
from api.openai_types import Model
from shared.errors import Unavailable


def delta(finish_reason: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish_reason}]}


def called(index: int, **function: str) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, "function": function}])


def ticking(*times: int) -> Answering:
    return Answering("m", as_chat, iter(times).__next__)


def timeless(shape: Any = as_chat) -> Answering:
    return Answering("m", shape, itertools.count().__next__)


def lines(answering: Answering, *made: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for chunk in made for line in answering.lines(chunk)]


def test_every_chunk_is_a_line_at_once() -> None:
    answering = timeless()
    assert not lines(answering, delta(role="assistant", content=""))
    for text in ("Hel", "lo"):
        (line,) = lines(answering, delta(content=text))
        assert line["message"] == {"role": "assistant", "content": text}
        assert (line["model"], line["done"], line["created_at"][-1]) == ("m", False, "Z")


def test_the_last_line_has_counts_of_the_engine_and_durations() -> None:
    answering = ticking(100, 130, 190)
    lines(answering, delta(content="Hello", finish_reason="stop"))
    lines(answering, {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 2}})
    last = answering.last()
    del last["created_at"]
    assert last == {
        "model": "m",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "total_duration": 90,
        "load_duration": 0,
        "prompt_eval_count": 11,
        "prompt_eval_duration": 30,
        "eval_count": 2,
        "eval_duration": 60,
    }


@pytest.mark.parametrize(("reason", "expected"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop")])
def test_done_reasons(reason: str, expected: str) -> None:
    answering = timeless()
    lines(answering, delta(finish_reason=reason))
    assert answering.last()["done_reason"] == expected


def test_a_generated_answer_is_a_response() -> None:
    answering = timeless(as_generate)
    (line,) = lines(answering, {"choices": [{"index": 0, "text": "Hello", "finish_reason": None}]})
    assert (line["response"], "message" in line) == ("Hello", False)
    assert answering.last()["response"] == ""


def test_thoughts_and_logprobs_have_their_places() -> None:
    logprob = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    chunk = delta(reasoning="hm", content="a")
    chunk["choices"][0]["logprobs"] = {"content": [logprob]}
    (line,) = lines(timeless(), chunk)
    assert line["message"] == {"role": "assistant", "content": "a", "thinking": "hm"}
    assert line["logprobs"] == [logprob]
    (line,) = lines(timeless(as_generate), chunk)
    assert (line["response"], line["thinking"], line["logprobs"]) == ("a", "hm", [logprob])


def test_tool_calls_come_whole_with_objects_for_arguments() -> None:
    answering = timeless()
    said = lines(
        answering,
        called(0, name="time"),
        called(0, arguments='{"at": '),
        called(0, arguments='"Oslo"}'),
        called(1, name="weather", arguments=""),
        delta(finish_reason="tool_calls"),
    )
    calls = [line["message"]["tool_calls"] for line in said]
    assert calls == [
        [{"function": {"name": "time", "arguments": {"at": "Oslo"}}}],
        [{"function": {"name": "weather", "arguments": {}}}],
    ]
    assert all(line["message"]["content"] == "" for line in said)


def test_a_call_is_sent_when_the_next_begins() -> None:
    assert len(lines(timeless(), called(0, name="time", arguments="{}"), called(1, name="weather"))) == 1


def test_a_call_that_was_cut_off_is_none() -> None:
    answering = timeless()
    assert not lines(answering, called(0, name="time", arguments='{"at": "Os'), delta(finish_reason="length"))
    assert answering.last()["done_reason"] == "length"


def test_an_answer_in_one_piece() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "time", "arguments": '{"at": "Oslo"}'}}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    usage = {"prompt_tokens": 5, "completion_tokens": 4}
    whole = timeless().whole({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage})
    assert whole["message"] == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"function": {"name": "time", "arguments": {"at": "Oslo"}}}],
    }
    assert (whole["done"], whole["prompt_eval_count"], whole["eval_count"]) == (True, 5, 4)


def test_two_calls_in_one_piece() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("time", "weather")]
    whole = timeless().whole(
        {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "stop"}]}
    )
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["time", "weather"]


def test_a_model_that_was_only_loaded() -> None:
    loaded = timeless(as_generate).loaded()
    assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")


# -- streams


async def _stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def read(*pieces: bytes) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [chunk async for chunk in chunks(_stream(*pieces))]

    return asyncio.run(collect())


EVENTS = 'data: {"n": 1}\n\ndata: {"n": "é"}\n\ndata: [DONE]\n\n'.encode()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_chunks_are_found_however_the_bytes_are_cut(size: int) -> None:
    pieces = [EVENTS[start : start + size] for start in range(0, len(EVENTS), size)]
    assert read(*pieces) == [{"n": 1}, {"n": "é"}]


def test_a_chunk_does_not_wait_for_the_next() -> None:
    async def first() -> dict[str, Any]:
        async def endless() -> AsyncIterator[bytes]:
            yield b'data: {"n": 1}\n\ndata: {"n'
            await asyncio.Event().wait()

        return await anext(chunks(endless()))

    assert asyncio.run(asyncio.wait_for(first(), 5)) == {"n": 1}


def test_comments_and_carriage_returns_are_no_chunks() -> None:
    assert read(b": ping\r\n\r\n", b'data:{"n": 1}\r\n\r\nevent: x\n', b"data: [DONE]\n\n") == [{"n": 1}]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b'data: {"n": 1}\n\n'], "broke off"),
        ([], "broke off"),
        ([b'data: {"error": {"message": "EngineCore died"}}\n\n'], "EngineCore died"),
        ([b'data: {"error": "bad"}\n\ndata: [DONE]\n\n'], "bad"),
    ],
)
def test_a_stream_that_ends_badly_says_so(pieces: list[bytes], reason: str) -> None:
    with pytest.raises(Unavailable, match=reason) as error:
        read(*pieces)
    assert error.value.code == "SERVING_FAILED"


# -- tags


def test_tags_name_every_kind_of_model() -> None:
    def model(id_: str, **mens: Any) -> Model:
        return Model(id=id_, created=0, owned_by="mens", mens=mens)

    base = tag(model("base", kind="base", digest="b" * 64))
    adapter = tag(model("helper@" + "a" * 64, kind="adapter", base_model="base"))
    alias = tag(model("prod", kind="alias", adapter_id="helper@" + "a" * 64, base_model="base"))
    assert (base["name"], base["model"], base["digest"]) == ("base", "base", "b" * 64)
    assert adapter["digest"] == alias["digest"] == "a" * 64
    assert [entry["details"]["parent_model"] for entry in (base, adapter, alias)] == ["", "base", "base"]
    assert alias["modified_at"] == "1970-01-01T00:00:00+00:00"
    json.dumps([base, adapter, alias])
