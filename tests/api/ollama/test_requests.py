"""Ollama's requests, without a replica: the body into which each is translated, and the refused ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from api.ollama.requests import translate_chat, translate_generate
from api.ollama.types import RUNNER_OPTIONS, ChatRequest, GenerateRequest

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}


def chat(**body: Any) -> dict[str, Any]:
    """The body that a replica gets for POST /api/chat."""
    path, translated = translate_chat(ChatRequest.model_validate({"model": "m", "messages": HELLO, **body}))
    assert path == "/v1/chat/completions"
    return translated


def generate(**body: Any) -> tuple[str, dict[str, Any]]:
    return translate_generate(GenerateRequest.model_validate({"model": "m", "prompt": "Hello", **body}))


def test_chat_is_streamed_with_usage_by_default() -> None:
    streamed = {"model": "m", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    assert chat() == chat(stream=True) == chat(stream=None) == streamed
    assert chat(stream=False) == {"model": "m", "messages": HELLO, "stream": False}


def test_options_have_vllms_names() -> None:
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["\n"], "num_predict": 9,
        "repeat_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip
    expected = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["\n"], "max_tokens": 9,
        "repetition_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip
    assert expected.items() <= chat(options=options).items()
    assert expected.items() <= generate(options=options)[1].items()


@pytest.mark.parametrize("endless", [-1, -2])
def test_negative_num_predict_means_no_limit(endless: int) -> None:
    assert "max_tokens" not in chat(options={"num_predict": endless})


def test_runner_options_change_nothing() -> None:
    assert chat(options=dict.fromkeys(RUNNER_OPTIONS, 1), keep_alive="5m") == chat()


def test_thoughts_of_an_earlier_turn_are_sent_back() -> None:
    thought = {"role": "assistant", "content": "Hi.", "thinking": "They greet."}
    sent = {"role": "assistant", "content": "Hi.", "reasoning": "They greet."}
    assert chat(messages=[*HELLO, thought, *HELLO])["messages"] == [*HELLO, sent, *HELLO]


@pytest.mark.parametrize("option", ["mirostat", "typical_p", "repeat_last_n", "num_keep", "tempurature"])
def test_unsupported_option_is_refused(option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        chat(options={option: 1})
    assert chat(options={"mirostat": None}) == chat(), "clients send options that are not set as null"


@pytest.mark.parametrize("field", ["images", "suffix", "template", "context"])
def test_unsupported_field_may_be_sent_empty(field: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){field}.*not supported"):
        generate(**{field: ["x"]})
    assert generate(**{field: []}) == generate(**{field: None}) == generate()


def test_unknown_role_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"(?s)role.*'assistant'"):
        chat(messages=[{"role": "usr", "content": "Hello"}])
    assert chat(messages=[{"role": "user"}])["messages"] == [{"role": "user", "content": ""}], "as Ollama takes it"


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="mesages"):
        chat(mesages=[])


def test_format_is_structured_output() -> None:
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    response_format = chat(format=SCHEMA)["response_format"]
    assert (response_format["type"], response_format["json_schema"]["schema"]) == ("json_schema", SCHEMA)
    assert chat(format="") == chat(format=None) == chat()


def test_think_becomes_chat_template_arguments() -> None:
    assert chat(think=False)["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(think="high")["reasoning_effort"] == "high"


def test_logprobs() -> None:
    assert {"logprobs": True, "top_logprobs": 3}.items() <= chat(logprobs=True, top_logprobs=3).items()


def test_latest_tag_is_cut_off() -> None:
    assert chat(model="helper:latest")["model"] == "helper"


def test_tool_calls_get_ids_that_their_results_name() -> None:
    def call(name: str, **arguments: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments, "index": 0}, "id": "theirs"}

    calls = [call("time", at="é"), call("weather", at="Oslo")]
    messages = chat(
        messages=[
            *HELLO,
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "content": "rain", "tool_name": "weather"},
            {"role": "tool", "content": "noon"},
            {"role": "assistant", "content": "One more.", "tool_calls": [call("time")]},
            {"role": "tool", "content": "dusk", "tool_name": "time"},
        ]
    )["messages"]
    first = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"at": "é"}'}}
    assert messages[1]["tool_calls"][0] == first
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == [
        "call_2",
        "call_1",
        "call_3",
    ]
    assert (messages[1]["content"], messages[4]["tool_calls"][0]["id"]) == ("", "call_3")


def test_tools_pass_unchanged() -> None:
    tools = [{"type": "function", "function": {"name": "time", "parameters": SCHEMA}}]
    assert chat(tools=tools)["tools"] == tools


def test_prompt_is_a_chat_unless_it_is_raw() -> None:
    path, translated = generate(system="Be brief.")
    assert (path, translated["messages"]) == (
        "/v1/chat/completions",
        [{"role": "system", "content": "Be brief."}, *HELLO],
    )
    path, translated = generate(raw=True)
    assert (path, translated["prompt"], "messages" in translated) == ("/v1/completions", "Hello", False)
    with pytest.raises(ValidationError, match="cannot be combined"):
        generate(raw=True, system="Be brief.")


def test_request_without_a_prompt_only_loads_the_model() -> None:
    loading = ("/v1/completions", {"model": "m", "prompt": "\n", "max_tokens": 1})
    assert generate(prompt="") == loading
    assert translate_chat(ChatRequest(model="m", messages=[])) == loading
