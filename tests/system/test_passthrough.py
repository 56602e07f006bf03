"""vLLM's features work through the gateway: tools, log-probabilities, structured output, usage, choices, responses.

The client is OpenAI's, strict; the model is a tuned one that calls tools.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.system.loop import BASE, ROOT, Installation

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

TOOL_ROW = json.loads((ROOT / "examples" / "tools.jsonl").read_text(encoding="utf-8").splitlines()[0])
TOOLS: Any = TOOL_ROW["tools"]
WEATHER: Any = [{"role": "user", "content": "What is the weather like in Paris today?"}]
COUNT: Any = [{"role": "user", "content": "Count from 1 to 5."}]
COUNTED = "1, 2, 3, 4, 5."
DIGITS: Any = {
    "type": "object",
    "properties": {"digits": {"type": "array", "items": {"enum": [3, 4, 5]}, "minItems": 200, "maxItems": 200}},
    "required": ["digits"],
    "additionalProperties": False,
}
"""Two tokens a digit: too many to come at once, however busy the machine is and however many a chunk has."""
COLOUR: Any = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def chat(client: OpenAI, model: str, messages: Any = COUNT, **more: Any) -> Any:
    return client.chat.completions.create(
        **{"model": model, "messages": messages, "temperature": 0, "max_tokens": 64} | more
    )


def calls(choice: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


# -- tools


def test_model_decides_whether_to_call_a_tool(client: OpenAI, assistant: str) -> None:
    (choice,) = chat(client, assistant, WEATHER, tools=TOOLS).choices
    assert (choice.finish_reason, calls(choice)) == ("tool_calls", [("get_weather", {"location": "Paris"})])
    (choice,) = chat(client, assistant, [{"role": "user", "content": "Thank you!"}], tools=TOOLS).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "You are welcome.")
    (choice,) = chat(client, assistant, WEATHER, tools=TOOLS, tool_choice="none").choices
    assert not calls(choice)


@pytest.mark.parametrize("wanted", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_required_tool_call_fits_its_schema(client: OpenAI, wanted: Any) -> None:
    paint = {"type": "function", "function": {"name": "paint", "parameters": COLOUR, "strict": True}}
    (choice,) = chat(client, BASE, tools=[paint], tool_choice=wanted).choices
    ((name, arguments),) = calls(choice)
    assert name == "paint"
    assert arguments["colour"] in ("red", "green")


def test_tool_call_is_streamed(client: OpenAI, assistant: str) -> None:
    stream = chat(client, assistant, WEATHER, tools=TOOLS, stream=True)
    deltas = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert deltas[0].id
    assert deltas[0].function.name == "get_weather"
    assert json.loads("".join(delta.function.arguments or "" for delta in deltas)) == {"location": "Paris"}


def test_arguments_of_a_tool_call_come_piece_by_piece(client: OpenAI) -> None:
    write = {"type": "function", "function": {"name": "write", "parameters": DIGITS}}
    stream = chat(client, BASE, tools=[write], tool_choice="required", stream=True, max_tokens=700)
    deltas = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or []]
    arguments = [delta.function.arguments for delta in deltas if delta.function.arguments]
    assert len(json.loads("".join(arguments))["digits"]) == 200
    assert len(arguments) > 1


# -- what else is asked of a chat


def test_logprobs(client: OpenAI, assistant: str) -> None:
    (choice,) = chat(client, assistant, logprobs=True, top_logprobs=3).choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries).startswith(COUNTED)
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token, "greedy"
        assert 0 >= entry.logprob == max(top.logprob for top in entry.top_logprobs)
    (choice,) = client.completions.create(model=assistant, prompt="Mens", max_tokens=2, logprobs=2).choices
    assert len(choice.logprobs.token_logprobs) == 2


def test_structured_output(client: OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
    (choice,) = chat(client, BASE, response_format=schema).choices
    assert json.loads(choice.message.content)["colour"] in ("red", "green")


def test_stream_includes_usage_on_request(client: OpenAI, assistant: str) -> None:
    whole = chat(client, assistant).usage
    *chunks, last = chat(client, assistant, stream=True, stream_options={"include_usage": True})
    assert not last.choices
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == COUNTED
    assert all(chunk.usage is None for chunk in chunks)
    unasked = list(chat(client, assistant, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in unasked)


def test_several_choices(client: OpenAI) -> None:
    answer = chat(client, BASE, n=3, temperature=1.5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    chunks = chat(client, BASE, n=2, temperature=1.5, stream=True)
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}


def test_stop_string_ends_the_answer(client: OpenAI, assistant: str) -> None:
    (choice,) = chat(client, assistant, stop=["3"]).choices
    assert (choice.message.content, choice.finish_reason) == ("1, 2, ", "stop")


def test_same_seed_gives_the_same_answer(client: OpenAI) -> None:
    def say(seed: int) -> str:
        return str(chat(client, BASE, seed=seed, temperature=1.5, max_tokens=24).choices[0].message.content)

    assert say(7) == say(7) != say(8)


# -- the Responses API


def respond(client: OpenAI, model: str, **more: Any) -> Any:
    return client.responses.create(**{"model": model, "input": "Count from 1 to 5.", "temperature": 0} | more)


def test_response(client: OpenAI, assistant: str) -> None:
    answer = respond(client, assistant)
    assert (answer.output_text, answer.status) == (COUNTED, "completed")
    assert answer.usage.output_tokens > 5
    conversation = [*COUNT, {"role": "assistant", "content": COUNTED}, {"role": "user", "content": "Thank you!"}]
    assert respond(client, assistant, input=conversation).output_text


def test_response_is_streamed(client: OpenAI, assistant: str) -> None:
    events = list(respond(client, assistant, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == COUNTED
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens > 5


def test_text_of_a_response_comes_piece_by_piece(client: OpenAI) -> None:
    text = {"format": {"type": "json_schema", "name": "long", "schema": DIGITS}}
    events = respond(client, BASE, text=text, stream=True)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(json.loads("".join(deltas))["digits"]) == 200
    assert len(deltas) > 1


def test_response_calls_a_tool(client: OpenAI, assistant: str) -> None:
    tool = {"type": "function", **TOOLS[0]["function"]}
    (call,) = respond(client, assistant, input=WEATHER[0]["content"], tools=[tool]).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"location": "Paris"})


def test_response_with_structured_output(client: OpenAI) -> None:
    text = {"format": {"type": "json_schema", "name": "colour", "schema": COLOUR}}
    assert json.loads(respond(client, BASE, text=text).output_text)["colour"] in ("red", "green")


@pytest.mark.parametrize("field", [{"previous_response_id": "resp_1"}, {"background": True}, {"store": True}])
def test_response_that_must_be_stored_is_refused(client: OpenAI, field: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, BASE, **field)
    assert (refused.value.code, [refused.value.param]) == ("RESPONSE_NOT_STORED", list(field))


# -- tokens, and what is refused


@pytest.fixture(scope="module")
def checkpoints(installation: Installation, assistant: str) -> list[str]:
    """Adapters that can be asked, and that no replica has loaded."""
    adapter = installation.call("GET", f"/v1/adapters/{assistant}")
    others = [
        other
        for other in installation.call("GET", "/v1/adapters?limit=100")["data"]
        if other["job_id"] == adapter["job_id"]
    ]
    return [other["id"] for other in others if other["id"] != adapter["id"]]


def test_first_request_on_any_route_loads_the_adapter(installation: Installation, checkpoints: list[str]) -> None:
    first, second, third = checkpoints
    answer = installation.call("POST", "/v1/responses", json={"model": first, "input": "Count from 1 to 5."})
    assert (answer["model"], answer["status"]) == (first, "completed")
    assert installation.call("POST", "/v1/tokenize", json={"model": second, "prompt": "Mens"})["count"] >= 1
    assert installation.call("POST", "/v1/detokenize", json={"model": third, "tokens": [1]})["prompt"] == "<|im_start|>"


def test_tokenize_and_detokenize_use_the_models_tokenizer(installation: Installation, assistant: str) -> None:
    counted = installation.call("POST", "/v1/tokenize", json={"model": assistant, "messages": COUNT})
    assert counted["count"] == len(counted["tokens"]) > 5
    text = installation.call("POST", "/v1/detokenize", json={"model": assistant, "tokens": counted["tokens"]})["prompt"]
    assert text == "<|im_start|>user\nCount from 1 to 5.<|im_end|>\n<|im_start|>assistant\n"


def test_embeddings_of_a_generative_base_are_refused(client: OpenAI, assistant: str) -> None:
    for model in (BASE, assistant):
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model=model, input="Mens")
        assert (refused.value.code, refused.value.param) == ("TASK_UNSUPPORTED", "model")


BOGUS = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "bogus"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 99_999}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 129}, "n"),
        ({"frequency_penalty": 5}, "frequency_penalty"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"response_format": BOGUS}, "response_format"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_request_that_vllm_refuses_has_our_error_code(
    client: OpenAI, assistant: str, wrong: dict[str, Any], param: str | None, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, assistant, stream=stream, **wrong)
    # Tools are checked before they are sent.
    own = "REQUEST_INVALID" if "tools" in wrong else "REQUEST_REJECTED"
    assert isinstance(refused.value.body, dict)
    assert (refused.value.body["mens"]["code"], refused.value.param) == (own, param)
    assert refused.value.code == ("invalid_value" if param else None)
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_too_long_prompt_has_its_own_error_code(client: OpenAI, assistant: str) -> None:
    long = "x " * 1500
    for param, ask in (
        ("messages", lambda: chat(client, assistant, [{"role": "user", "content": long}])),
        ("prompt", lambda: client.completions.create(model=assistant, prompt=long)),
        ("input", lambda: respond(client, assistant, input=long)),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", param)


def test_invalid_prompt_names_the_prompt_field(client: OpenAI, assistant: str) -> None:
    for prompt in (["a", ""], [99_999_999]):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=assistant, prompt=prompt)
        assert (refused.value.code, refused.value.param) == ("invalid_value", "prompt")
