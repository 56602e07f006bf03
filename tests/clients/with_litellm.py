"""litellm, which most gateways and agents use: its ``openai/`` provider, chats, tools, formats, errors, files and jobs."""

from __future__ import annotations

import json

import litellm
from conversation import (
    BASE,
    COLOUR,
    COLOURS,
    COUNT,
    COUNTED,
    GET_WEATHER,
    LIMITED_KEY,
    MODEL,
    PAINT,
    READ,
    RESULT,
    TUNED,
    WEATHER,
    raises,
    user,
)


def ask(turns, model=MODEL, **more):
    turns = user(turns) if isinstance(turns, str) else turns
    more = {"temperature": 0, "max_tokens": 64, "num_retries": 0} | more
    return litellm.completion(model=f"openai/{model}", messages=turns, **more)


def calls(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def chat():
    answer = ask(COUNT)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (COUNTED, "stop")
    chunks = list(ask(COUNT, stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks)
    assert rebuilt.choices[0].message.content == COUNTED
    assert rebuilt.usage.completion_tokens == answer.usage.completion_tokens


def tools():
    called = ask(WEATHER, tools=[GET_WEATHER]).choices[0].message
    assert calls(called) == [("get_weather", {"location": "Paris"})], called
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": RESULT}
    assert ask([*user(WEATHER), called, result], tools=[GET_WEATHER]).choices[0].message.content == READ
    streamed = litellm.stream_chunk_builder(list(ask(WEATHER, tools=[GET_WEATHER], stream=True)))
    assert calls(streamed.choices[0].message) == [("get_weather", {"location": "Paris"})]
    for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
        ((name, arguments),) = calls(ask(COUNT, BASE, tools=[PAINT], tool_choice=choice).choices[0].message)
        assert (name, arguments["colour"] in COLOURS) == ("paint", True)


def structured_output():
    schema = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
    assert json.loads(ask(COUNT, BASE, response_format=schema).choices[0].message.content)["colour"] in COLOURS


def responses():
    whole = litellm.responses(model=f"openai/{MODEL}", input=COUNT, temperature=0)
    assert whole.output[0].content[0].text == COUNTED


def files_and_jobs():
    file = litellm.create_file(file=TUNED.open("rb"), purpose="fine-tune", custom_llm_provider="openai")
    assert (file.bytes, file.filename) == (TUNED.stat().st_size, TUNED.name)
    content = litellm.file_content(file_id=file.id, custom_llm_provider="openai")
    assert content.content == TUNED.read_bytes()
    job = litellm.create_fine_tuning_job(
        model=BASE, training_file=file.id, hyperparameters={"n_epochs": 50}, custom_llm_provider="openai"
    )
    assert (job.hyperparameters.n_epochs, job.training_file) == (50, file.id)
    cancelled = litellm.cancel_fine_tuning_job(fine_tuning_job_id=job.id, custom_llm_provider="openai")
    assert cancelled.id == job.id
    assert litellm.list_fine_tuning_jobs(limit=1, custom_llm_provider="openai").data[0].id == job.id


def errors():
    with raises(litellm.NotFoundError, "nobody"):
        ask(COUNT, "nobody")
    with raises(litellm.BadRequestError, "temperature"):
        ask(COUNT, temperature=-1)
    with raises(litellm.ContextWindowExceededError):
        ask("x " * 1500)
    with raises(litellm.AuthenticationError):
        ask(COUNT, api_key="mens-wrong")
    with raises(litellm.RateLimitError):
        for _ in range(2):
            ask(COUNT, api_key=LIMITED_KEY)


for check in (chat, tools, structured_output, responses, files_and_jobs, errors):
    check()
print("all is well")
