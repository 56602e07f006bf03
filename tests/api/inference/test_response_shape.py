"""The shape of responses: nulls that OpenAI omits are removed, in fields and never inside texts."""

from __future__ import annotations

import json
from typing import Any

from api.inference.response_shape import (
    in_openais_shape,
    response_event_in_openais_shape,
    response_in_openais_shape,
)

CHAT: dict[str, Any] = {
    "id": "c",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "x",
                "refusal": None,
                "annotations": None,
                "function_call": None,
            },
            "logprobs": None,
        }
    ],
    "system_fingerprint": None,
    "usage": {"prompt_tokens": 1, "completion_tokens_details": None},
}
PART = {"annotations": [], "text": "x", "type": "output_text", "logprobs": None}
RESPONSE: dict[str, Any] = {
    "id": "r",
    "incomplete_details": None,
    "output": [{"content": [PART]}],
    "text": None,
    "usage": None,
    "user": None,
}


SCHEMA = {
    "type": "object",
    "default": {"a": 1, "text": None, "user": None, "description": None, "error": None, "annotations": None},
    "examples": [{"logprobs": {"content": []}, "incomplete_details": None}],
}
"""As a caller may write it: it looks like fields of vLLM's."""


def written(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def shaped(body: Any) -> Any:
    return json.loads(in_openais_shape(written(body)))


def shaped_response(body: Any) -> Any:
    return json.loads(response_in_openais_shape(written(body)))


def test_chat_completion_has_no_null_that_openai_never_writes() -> None:
    body = shaped(CHAT)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "x", "refusal": None}
    assert choice["logprobs"] is None, "OpenAI writes null here"
    assert body["usage"] == {"prompt_tokens": 1}
    assert "system_fingerprint" not in body


def test_response_has_an_error_field_and_no_null_text() -> None:
    body = shaped_response(RESPONSE)
    assert (body["error"], body["incomplete_details"], body["usage"]) == (None, None, None)
    assert not {"text", "user"} & set(body)
    assert body["output"][0]["content"][0]["logprobs"] == []
    assert shaped_response(body) == body, "once is enough"


def test_log_probabilities_have_those_of_a_refusal() -> None:
    assert shaped({"logprobs": {"content": []}}) == {"logprobs": {"content": [], "refusal": None}}
    completion = {"choices": [{"logprobs": {"text_offset": [0], "tokens": ["a"]}}]}
    assert shaped(completion) == completion


def test_calls_and_tools_of_a_response_have_no_null_that_openai_never_writes() -> None:
    call = {
        "type": "function_call",
        "name": "f",
        "async": None,
        "caller": None,
        "namespace": None,
        "status": "completed",
    }
    tool = {"type": "function", "name": "f", "strict": None, "defer_loading": None, "description": None}
    body = shaped_response(RESPONSE | {"output": [call], "tools": [tool]})
    assert body["output"] == [{"type": "function_call", "name": "f", "status": "completed"}]
    assert body["tools"] == [{"type": "function", "name": "f", "strict": None}], "OpenAI requires `strict`"


def test_what_the_caller_wrote_is_repeated_as_it_was() -> None:
    tool = {"type": "function", "name": "f", "strict": None, "parameters": SCHEMA}
    text_format = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    text = {"format": text_format | {"description": None}, "verbosity": None}
    body = RESPONSE | {"tools": [tool | {"description": None}], "text": text}
    created = b"event: response.created\ndata: " + written({"response": body, "sequence_number": 0}) + b"\n\n"
    name, data, content = response_event_in_openais_shape(created).partition(b"data: ")
    assert (name + data, content[-2:]) == (b"event: response.created\ndata: ", b"\n\n")
    event = json.loads(content)
    assert event["sequence_number"] == 0
    for found in (shaped_response(body), event["response"]):
        assert found["tools"] == [tool]
        assert found["text"] == {"format": text_format, "verbosity": None}
        assert found["error"] is None


def test_what_is_not_a_response_is_left_alone() -> None:
    for content in (b"", b"x", b"[]", b"{", b'{"tools":3}'):
        assert response_in_openais_shape(content) == content
        event = b"event: response.created\ndata: " + content + b"\n\n"
        assert response_event_in_openais_shape(event) == event


def test_texts_are_left_alone() -> None:
    text = ',"annotations":null,"user":null,"incomplete_details":1'
    assert shaped({"a": 1, "content": text}) == {"a": 1, "content": text}
    values = {"a": 1, "text": "x", "user": "u", "annotations": [], "function_call": {"name": "f"}}
    assert shaped(values) == values


def test_openais_client_takes_them() -> None:
    from openai.types.chat import ChatCompletion

    body = shaped(CHAT | {"created": 1, "model": "m", "object": "chat.completion"})
    body["choices"][0]["finish_reason"] = "stop"
    body["usage"] |= {"completion_tokens": 1, "total_tokens": 2}
    assert ChatCompletion.model_validate(body, strict=True).choices[0].message.annotations is None
