"""Known fields: fields that would be ignored are refused, and every field of vLLM and OpenAI is handled."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import pytest

from api.inference.request_fields import known
from api.inference.request_fields.known import check_chat_fields, check_completion_fields, check_response_fields
from shared.errors import InvalidRequest

Check = Callable[[dict[str, Any]], None]
CHECKS: list[Check] = [check_chat_fields, check_completion_fields, check_response_fields]


def refusal(check: Check, body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check({"model": "m", **body})
    assert refused.value.remedy
    return refused.value


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["temprature", "x", "guided_json", "", "a" * 100_000])
def test_unknown_field_is_refused_even_when_it_is_null(check: Check, name: str) -> None:
    error = refusal(check, {name: None})
    assert (error.code, error.param) == ("FIELD_UNKNOWN", name[:100])
    assert len(error.message) < 200


def test_refusal_names_the_field_that_was_meant() -> None:
    assert "`temperature`" in refusal(check_chat_fields, {"temprature": 0}).remedy
    assert "`structured_outputs.json`" in refusal(check_chat_fields, {"guided_json": {}}).remedy


@pytest.mark.parametrize(
    ("check", "field", "value"),
    [
        (check_chat_fields, "modalities", ["text", "audio"]),
        (check_chat_fields, "audio", {"voice": "x"}),
        (check_chat_fields, "web_search_options", {}),
        (check_chat_fields, "service_tier", "flex"),
        (check_chat_fields, "verbosity", "low"),
        (check_chat_fields, "return_token_offsets", True),
        (check_chat_fields, "mm_payload", "none"),
        (check_completion_fields, "return_mm_kwargs", False),
        (check_completion_fields, "best_of", 3),
        (check_response_fields, "mm_payload", "none"),
        (check_response_fields, "service_tier", "priority"),
        (check_response_fields, "context_management", [{"type": "compaction"}]),
    ],
)
def test_field_that_nothing_serves_is_refused(check: Check, field: str, value: Any) -> None:
    error = refusal(check, {field: value})
    assert (error.code, error.param) == ("FIELD_UNSUPPORTED", field)


def test_stored_completion_is_refused() -> None:
    error = refusal(check_chat_fields, {"store": True})
    assert (error.code, error.param) == ("RESPONSE_NOT_STORED", "store")


def test_fields_that_request_nothing_pass() -> None:
    check_chat_fields(
        {
            "messages": [],
            "modalities": ["text"],
            "store": False,
            "metadata": {"a": "b"},
            "prediction": {"type": "content", "content": "x"},
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "service_tier": "auto",
            "verbosity": "medium",
            "audio": None,
            "functions": [{"name": "f"}],
            "return_token_offsets": False,
            "mm_payload": "tensors",
            "return_mm_kwargs": None,
        }
    )
    check_completion_fields({"prompt": "x", "best_of": 1})
    check_response_fields({"input": "x", "conversation": None, "stream_options": {"include_obfuscation": False}})
    check_response_fields({"input": "x", "service_tier": "default", "max_tool_calls": 3})


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (known.CHAT, "chat_completion.protocol.ChatCompletionRequest"),
        (known.COMPLETION, "completion.protocol.CompletionRequest"),
        (known.RESPONSE, "responses.protocol.ResponsesRequest"),
    ],
)
def test_fields_are_those_of_the_installed_vllm(fields: frozenset[str], path: str) -> None:
    module, _, name = path.rpartition(".")
    model = getattr(pytest.importorskip(f"vllm.entrypoints.openai.{module}"), name)
    assert fields == set(model.model_fields)


def test_every_field_of_openais_client_is_known() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase as Chat
    from openai.types.completion_create_params import CompletionCreateParamsBase as Completion
    from openai.types.responses.response_create_params import ResponseCreateParamsBase as Response

    for fields, params in (
        (known.CHAT | known.CHAT_OPENAI, Chat),
        (known.COMPLETION | known.COMPLETION_OPENAI, Completion),
        (known.RESPONSE | known.RESPONSE_OPENAI, Response),
    ):
        assert not set(typing.get_type_hints(params)) - fields
