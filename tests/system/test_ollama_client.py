"""Ollama's own Python client, on a tuned model: chat, generate, tools, formats, tags, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.fetched import ollama_client
from tests.system.loop import BASE, ROOT, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

GREEDY = {"temperature": 0, "num_predict": 64}
TOOLS = json.loads((ROOT / "examples" / "tools.jsonl").read_text(encoding="utf-8").splitlines()[0])["tools"]
COUNT = [{"role": "user", "content": "Count from 1 to 5."}]
COUNTED = "1, 2, 3, 4, 5."


@pytest.fixture
def ollama(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The client, pointed at the API."""
    monkeypatch.syspath_prepend(str(ollama_client()))
    from ollama import Client

    connection = installation.connection
    client = Client(host=connection.url, headers={"Authorization": f"Bearer {connection.key}"})
    yield client
    client._client.close()


def test_chat_is_streamed(ollama: Any, assistant: str) -> None:
    *parts, last = ollama.chat(assistant, COUNT, stream=True, options=GREEDY)
    assert "".join(part.message.content for part in parts) == COUNTED
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason, last.message.content) == (True, "stop", "")
    assert last.prompt_eval_count > 5
    assert last.eval_count > 5
    assert last.total_duration == last.prompt_eval_duration + last.eval_duration > 0


def test_long_answer_comes_piece_by_piece(ollama: Any) -> None:
    # Two tokens a digit: too many to come at once, however busy the machine is.
    digits = {"type": "array", "items": {"enum": [3, 4, 5]}, "minItems": 200, "maxItems": 200}
    *parts, _ = ollama.chat(BASE, COUNT, stream=True, format=digits, options=GREEDY | {"num_predict": 700})
    assert len(json.loads("".join(part.message.content for part in parts))) == 200
    assert len(parts) > 1


def test_streamed_and_whole_answer_are_the_same(ollama: Any, assistant: str) -> None:
    whole = ollama.chat(assistant, COUNT, options=GREEDY)
    *_, last = ollama.chat(assistant, COUNT, stream=True, options=GREEDY)
    assert whole.message.content == COUNTED
    assert (whole.prompt_eval_count, whole.eval_count) == (last.prompt_eval_count, last.eval_count)


def test_generate_is_a_chat_of_one_turn(ollama: Any, assistant: str) -> None:
    answer = ollama.generate(assistant, "Count from 1 to 5.", options=GREEDY)
    assert (answer.response, answer.done_reason) == (COUNTED, "stop")
    parts = list(ollama.generate(assistant, "Count from 1 to 5.", stream=True, options=GREEDY))
    assert "".join(part.response for part in parts) == COUNTED


def test_raw_prompt_is_completed_without_a_template(ollama: Any, assistant: str) -> None:
    prompt = "<|im_start|>user\nCount from 1 to 5.<|im_end|>\n<|im_start|>assistant\n"
    assert ollama.generate(assistant, prompt, raw=True, options=GREEDY).response == COUNTED


def test_options_take_effect(ollama: Any, assistant: str) -> None:
    cut = ollama.chat(assistant, COUNT, options=GREEDY | {"num_predict": 3})
    assert (cut.done_reason, cut.eval_count) == ("length", 3)
    assert ollama.chat(assistant, COUNT, options=GREEDY | {"stop": ["3"]}).message.content == "1, 2, "
    wild = {"temperature": 1.5, "seed": 5, "num_predict": 12}
    first, again = (ollama.chat(BASE, COUNT, options=wild).message.content for _ in range(2))
    assert first == again


@pytest.mark.parametrize("stream", [False, True])
def test_tool_is_called_and_its_result_read(ollama: Any, assistant: str, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    answer = ollama.chat(assistant, messages, tools=TOOLS, stream=stream, options=GREEDY)
    said = [part.message for part in (answer if stream else [answer])]
    (call,) = [call for message in said for call in message.tool_calls or []]
    assert (call.function.name, call.function.arguments) == ("get_weather", {"location": "Paris"})
    messages += [{"role": "assistant", "tool_calls": [call.model_dump()]}]
    messages += [{"role": "tool", "tool_name": "get_weather", "content": '{"degrees": 14, "sky": "sunny"}'}]
    final = ollama.chat(assistant, messages, tools=TOOLS, options=GREEDY)
    assert final.message.content == "It is 14 degrees and sunny there."


def test_format_is_enforced(ollama: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    answer = ollama.chat(BASE, COUNT, format=schema, options=GREEDY)
    assert json.loads(answer.message.content)["colour"] in ("red", "green")


def test_logprobs(ollama: Any, assistant: str) -> None:
    answer = ollama.chat(assistant, COUNT, logprobs=True, top_logprobs=2, options=GREEDY)
    assert "".join(entry.token for entry in answer.logprobs).startswith(COUNTED)
    assert all(len(entry.top_logprobs) == 2 for entry in answer.logprobs)


def test_models_are_listed(ollama: Any, assistant: str) -> None:
    names = {model.model for model in ollama.list().models}
    assert {BASE, assistant} <= names


def test_empty_request_loads_the_model(ollama: Any, assistant: str) -> None:
    assert ollama.generate(assistant).done_reason == "load"


def test_errors_have_ollamas_shape(ollama: Any, assistant: str) -> None:
    from ollama import ResponseError

    with pytest.raises(ResponseError, match="nobody") as unknown:
        ollama.chat("nobody", COUNT)
    assert unknown.value.status_code == 404
    with pytest.raises(ResponseError, match="temperature must be non-negative") as wrong:
        list(ollama.chat(assistant, COUNT, stream=True, options={"temperature": -1}))
    assert wrong.value.status_code == 400
