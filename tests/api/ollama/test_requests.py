"""Ollama's questions, without a replica: what is asked for each, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from api.ollama_questions import ask_chat, ask_generate
from api.ollama_types import RUNNER_OPTIONS, ChatQuestion, GenerateQuestion

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}}


def chat(**body: Any) -> dict[str, Any]:
    """What a replica is asked for POST /api/chat."""
    path, asked = ask_chat(ChatQuestion.model_validate({"model": "m", "messages": HELLO, **body}))
    assert path == "/v1/chat/completions"
    return asked


def generate(**body: Any) -> tuple[str, dict[str, Any]]:
    return ask_generate(GenerateQuestion.model_validate({"model": "m", "prompt": "Hello", **body}))


def test_a_chat_is_streamed_with_its_usage_unless_it_says_otherwise() -> None:
    streamed = {"model": "m", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    assert chat() == chat(stream=True) == chat(stream=None) == streamed
    assert chat(stream=False) == {"model": "m", "messages": HELLO, "stream": False}


def test_options_are_named_as_vllm_names_them() -> None:
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["\n"], "num_predict": 9,
        "repeat_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip
    asked = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["\n"], "max_tokens": 9,
        "repetition_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip
    assert asked.items() <= chat(options=options).items()
    assert asked.items() <= generate(options=options)[1].items()


@pytest.mark.parametrize("endless", [-1, -2])
def test_an_endless_answer_is_one_without_a_limit(endless: int) -> None:
    assert "max_tokens" not in chat(options={"num_predict": endless})


def test_what_sizes_ollamas_runner_changes_nothing() -> None:
    assert chat(options=dict.fromkeys(RUNNER_OPTIONS, 1), keep_alive="5m") == chat()


@pytest.mark.parametrize("option", ["mirostat", "typical_p", "repeat_last_n", "num_keep", "tempurature"])
def test_an_option_that_would_change_the_answer_and_cannot_is_refused(option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        chat(options={option: 1})
    assert chat(options={"mirostat": None}) == chat(), "clients send what is not set as null"


@pytest.mark.parametrize("field", ["images", "suffix", "template", "context"])
def test_a_field_that_is_not_supported_may_be_sent_empty(field: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){field}.*not supported"):
        generate(**{field: ["x"]})
    assert generate(**{field: []}) == generate(**{field: None}) == generate()


def test_a_role_that_chats_do_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"(?s)role.*'assistant'"):
        chat(messages=[{"role": "usr", "content": "Hello"}])
    assert chat(messages=[{"role": "user"}])["messages"] == [{"role": "user", "content": ""}], "as Ollama takes it"


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="mesages"):
        chat(mesages=[])


def test_format_is_structured_output() -> None:
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    asked = chat(format=SCHEMA)["response_format"]
    assert (asked["type"], asked["json_schema"]["schema"]) == ("json_schema", SCHEMA)
    assert chat(format="") == chat(format=None) == chat()


def test_thinking_is_asked_of_the_template() -> None:
    assert chat(think=False)["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(think="high")["reasoning_effort"] == "high"


def test_logprobs() -> None:
    assert {"logprobs": True, "top_logprobs": 3}.items() <= chat(logprobs=True, top_logprobs=3).items()


def test_a_name_may_carry_ollamas_tag() -> None:
    assert chat(model="helper:latest")["model"] == "helper"


def test_tool_calls_get_ids_and_results_name_the_call_they_answer() -> None:
    def call(name: str, **arguments: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": arguments, "index": 0}, "id": "theirs"}

    calls = [call("time", at="é"), call("weather", at="Oslo")]
    turns = chat(
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
    assert turns[1]["tool_calls"][0] == first
    assert [turn["tool_call_id"] for turn in turns if turn["role"] == "tool"] == ["call_2", "call_1", "call_3"]
    assert (turns[1]["content"], turns[4]["tool_calls"][0]["id"]) == ("", "call_3")


def test_tools_pass_as_they_are() -> None:
    tools = [{"type": "function", "function": {"name": "time", "parameters": SCHEMA}}]
    assert chat(tools=tools)["tools"] == tools


def test_a_prompt_is_a_chat_of_one_turn_and_a_raw_one_is_none() -> None:
    path, asked = generate(system="Be brief.")
    assert (path, asked["messages"]) == ("/v1/chat/completions", [{"role": "system", "content": "Be brief."}, *HELLO])
    path, asked = generate(raw=True)
    assert (path, asked["prompt"], "messages" in asked) == ("/v1/completions", "Hello", False)
    with pytest.raises(ValidationError, match="do not go with"):
        generate(raw=True, system="Be brief.")


def test_no_question_only_loads_the_model() -> None:
    loading = ("/v1/completions", {"model": "m", "prompt": "\n", "max_tokens": 1})
    assert generate(prompt="") == loading
    assert ask_chat(ChatQuestion(model="m", messages=[])) == loading
