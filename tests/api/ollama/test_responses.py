"""OpenAI's responses in Ollama's shape, without a replica: lines of a stream, whole responses, tags."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.ollama.responses import ResponseBuilder, as_chat, as_generate, chunks, tag
from api.openai.types import Model
from shared.errors import Unavailable


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def called(index: int, **function: str) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, "function": function}])


def ticking(*times: int) -> ResponseBuilder:
    return ResponseBuilder("m", as_chat, iter(times).__next__)


def timeless(shape: Any = as_chat) -> ResponseBuilder:
    return ResponseBuilder("m", shape, itertools.count().__next__)


def lines(builder: ResponseBuilder, *chunks_: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for chunk in chunks_ for line in builder.lines(chunk)]


def test_each_chunk_is_a_line_at_once() -> None:
    builder = timeless()
    assert not lines(builder, delta(role="assistant", content=""))
    for text in ("Hel", "lo"):
        (line,) = lines(builder, delta(content=text))
        assert line["message"] == {"role": "assistant", "content": text}
        assert (line["model"], line["done"], line["created_at"][-1]) == ("m", False, "Z")


def test_last_line_has_vllms_token_counts_and_durations() -> None:
    builder = ticking(100, 130, 190)
    lines(builder, delta(content="Hello", finish_reason="stop"))
    lines(builder, {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 2}})
    last = builder.last()
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
def test_finish_reason_becomes_done_reason(reason: str, expected: str) -> None:
    builder = timeless()
    lines(builder, delta(finish_reason=reason))
    assert builder.last()["done_reason"] == expected


def test_generated_text_is_in_the_field_response() -> None:
    builder = timeless(as_generate)
    (line,) = lines(builder, {"choices": [{"index": 0, "text": "Hello", "finish_reason": None}]})
    assert (line["response"], "message" in line) == ("Hello", False)
    assert builder.last()["response"] == ""


def test_thinking_and_logprobs_have_fields_of_their_own() -> None:
    logprob = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    chunk = delta(reasoning="hm", content="a")
    chunk["choices"][0]["logprobs"] = {"content": [logprob]}
    (line,) = lines(timeless(), chunk)
    assert line["message"] == {"role": "assistant", "content": "a", "thinking": "hm"}
    assert line["logprobs"] == [logprob]
    (line,) = lines(timeless(as_generate), chunk)
    assert (line["response"], line["thinking"], line["logprobs"]) == ("a", "hm", [logprob])


def test_tool_calls_are_complete_with_objects_as_arguments() -> None:
    builder = timeless()
    sent = lines(
        builder,
        called(0, name="time"),
        called(0, arguments='{"at": '),
        called(0, arguments='"Oslo"}'),
        called(1, name="weather", arguments=""),
        delta(finish_reason="tool_calls"),
    )
    calls = [line["message"]["tool_calls"] for line in sent]
    assert calls == [
        [{"function": {"name": "time", "arguments": {"at": "Oslo"}}}],
        [{"function": {"name": "weather", "arguments": {}}}],
    ]
    assert all(line["message"]["content"] == "" for line in sent)


def test_tool_call_is_sent_when_the_next_begins() -> None:
    assert len(lines(timeless(), called(0, name="time", arguments="{}"), called(1, name="weather"))) == 1


def test_tool_call_that_was_cut_off_is_left_out() -> None:
    builder = timeless()
    assert not lines(builder, called(0, name="time", arguments='{"at": "Os'), delta(finish_reason="length"))
    assert builder.last()["done_reason"] == "length"


def test_whole_response_has_tool_calls_and_counts() -> None:
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


def test_whole_response_with_two_tool_calls() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("time", "weather")]
    whole = timeless().whole(
        {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "stop"}]}
    )
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["time", "weather"]


def test_load_request_has_a_response_without_text() -> None:
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
def test_chunks_are_the_same_wherever_the_bytes_are_cut(size: int) -> None:
    pieces = [EVENTS[start : start + size] for start in range(0, len(EVENTS), size)]
    assert read(*pieces) == [{"n": 1}, {"n": "é"}]


def test_chunk_does_not_wait_for_the_next() -> None:
    async def first() -> dict[str, Any]:
        async def endless() -> AsyncIterator[bytes]:
            yield b'data: {"n": 1}\n\ndata: {"n'
            await asyncio.Event().wait()

        return await anext(chunks(endless()))

    assert asyncio.run(asyncio.wait_for(first(), 5)) == {"n": 1}


def test_comments_and_carriage_returns_are_ignored() -> None:
    assert read(b": ping\r\n\r\n", b'data:{"n": 1}\r\n\r\nevent: x\n', b"data: [DONE]\n\n") == [{"n": 1}]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b'data: {"n": 1}\n\n'], "disconnected"),
        ([], "disconnected"),
        ([b'data: {"error": {"message": "EngineCore died"}}\n\n'], "EngineCore died"),
        ([b'data: {"error": "bad"}\n\ndata: [DONE]\n\n'], "bad"),
    ],
)
def test_stream_with_an_error_or_without_an_end_is_a_failure(pieces: list[bytes], reason: str) -> None:
    with pytest.raises(Unavailable, match=reason) as error:
        read(*pieces)
    assert error.value.code == "SERVING_FAILED"


# -- tags


def test_tags_describe_every_kind_of_model() -> None:
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
